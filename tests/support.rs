//! What several tests need: the built-in policies, a judgement in one call, the built program.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use guard::command::{Context, Cwd, Request};
use guard::decide::{Verdict, judge};
use guard::policy::{Policy, PolicyDirs, Source, load};

/// The names of the built-in policies.
pub(crate) fn built_in() -> Vec<&'static str> {
    guard::policy::BUILT_IN.iter().map(|(name, _)| *name).collect()
}

/// A built-in policy, loaded once.
pub(crate) fn policy(name: &str) -> Policy {
    static LOADED: LazyLock<Vec<Policy>> = LazyLock::new(|| {
        built_in().into_iter().map(|name| load(name, &PolicyDirs::default()).unwrap()).collect()
    });
    LOADED.iter().find(|policy| policy.name == name).unwrap().clone()
}

/// The policy most tests ask.
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

/// The built `guard`, away from the user's own configuration.
pub(crate) fn guard() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_guard"));
    command
        .env_remove("XDG_CONFIG_HOME")
        .env("HOME", "/nonexistent")
        .env("NO_COLOR", "1")
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

/// The most memory that a guard has had in use, in KiB. A process that does not bear guard's name yet may still have
/// the memory of the tests it is started from: that is nothing.
pub(crate) fn most_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    most.filter(|_| status.starts_with("Name:\tguard\n")).and_then(|most| most.parse().ok()).unwrap_or(0)
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Copies a program to where it can be started at once, with the directories that lead there.
///
/// Another process writes it: a descriptor of ours would be had, for a moment, by whatever another test starts just then,
/// and what somebody may still write cannot be started (`ETXTBSY`).
pub(crate) fn copy_program(from: &Path, to: &Path) {
    install(from, to, b"");
}

/// A program of this text, as by [`copy_program`].
pub(crate) fn make_program(to: &Path, text: impl AsRef<[u8]>) {
    install(Path::new("/dev/stdin"), to, text.as_ref());
}

fn install(from: &Path, to: &Path, input: &[u8]) {
    let mut command = Command::new("install");
    command.args(["-D", "-m", "755", "--"]).arg(from).arg(to).stdin(Stdio::piped());
    let mut installing = command.spawn().unwrap();
    installing.stdin.take().unwrap().write_all(input).unwrap();
    assert!(installing.wait().unwrap().success(), "{} was not made", to.display());
}

/// A fresh directory that goes away with the value.
pub(crate) struct Scratch(pub(crate) std::path::PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("guard-test-{name}-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> std::path::PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
