//! Analyses `git` with any arguments and any variables. The analysis must not panic or hang, and a leading `env` or
//! `nohup` must not change its result.
#![no_main]

use std::sync::LazyLock;

use guard::judge::command::{Context, Cwd, Request};
use guard::judge::decide::judge;
use guard::judge::policy::{Policy, PolicyDirs, load};
use libfuzzer_sys::fuzz_target;

static POLICY: LazyLock<Policy> =
    LazyLock::new(|| load("strict", &PolicyDirs::default()).expect("the built-in policy loads"));

fuzz_target!(|data: &[u8]| {
    // Newlines separate the words. The words before the first empty one are environment variables.
    let mut words = data.split(|&byte| byte == b'\n');
    let mut environment = Vec::new();
    for word in words.by_ref().take_while(|word| !word.is_empty()) {
        if let Some(at) = word.iter().position(|&byte| byte == b'=') {
            environment.push((word[..at].to_vec(), word[at + 1..].to_vec()));
        }
    }
    let argv: Vec<Vec<u8>> = std::iter::once(b"git".as_slice()).chain(words).map(<[u8]>::to_vec).collect();
    let context = Context { cwd: Cwd::Known(b"/work".to_vec()), environment, ..Context::default() };
    let (plain, _) = judge(&POLICY, &Request::Argv(argv.clone()), &context);
    for wrapper in [[b"nohup".as_slice()].as_slice(), &[b"env", b"NOT_USED_BY_ANY_INPUT=1"]] {
        let wrapped = wrapper.iter().map(|word| word.to_vec()).chain(argv.clone()).collect();
        let (verdict, _) = judge(&POLICY, &Request::Argv(wrapped), &context);
        let deep = plain.cause.rule == "input.depth" || verdict.cause.rule == "input.depth";
        let counted = plain.cause.rule.starts_with("input.") || verdict.cause.rule.starts_with("input.");
        if !deep && !counted {
            assert_eq!(verdict.action(), plain.action());
        }
    }
});
