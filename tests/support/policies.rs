//! Loads built-in policies and judges commands in one call.

use std::sync::LazyLock;

use guard::judge::command::{Context, Cwd, Request};
use guard::judge::decide::{Verdict, judge};
use guard::judge::policy::{Policy, PolicyDirs, Source, load};

/// Returns the names of the built-in policies.
pub(crate) fn built_in() -> Vec<&'static str> {
    guard::judge::policy::BUILT_IN.iter().map(|(name, _)| *name).collect()
}

/// Returns a built-in policy, which is loaded once.
pub(crate) fn policy(name: &str) -> Policy {
    static LOADED: LazyLock<Vec<Policy>> = LazyLock::new(|| {
        built_in().into_iter().map(|name| load(name, &PolicyDirs::default()).unwrap()).collect()
    });
    LOADED.iter().find(|policy| policy.name == name).unwrap().clone()
}

/// Returns the policy `strict`, which most tests use.
pub(crate) fn strict() -> &'static Policy {
    static STRICT: LazyLock<Policy> = LazyLock::new(|| policy("strict"));
    &STRICT
}

pub(crate) fn context() -> Context {
    Context { cwd: Cwd::Known(b"/work/tree".to_vec()), ..Context::default() }
}

pub(crate) fn shell(policy: &Policy, text: impl AsRef<[u8]>) -> Verdict {
    judge(policy, &Request::Shell(text.as_ref().to_vec()), &context()).0
}

pub(crate) fn argv<W: AsRef<[u8]>>(policy: &Policy, words: &[W]) -> Verdict {
    judge(policy, &Request::Argv(words.iter().map(|word| word.as_ref().to_vec()).collect()), &context()).0
}

pub(crate) fn source(text: &str) -> Source {
    Source { name: "test.toml".to_string(), text: text.into(), built_in: false }
}
