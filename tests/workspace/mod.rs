//! Real git, real files: what a run gets, what it can give back, and what it cannot.

mod attempts;
mod bombs;
mod changed;
mod commands;
mod credentials;
mod dangers;
mod differential;
mod doubts;
mod everyday;
mod fingerprint;
mod hooks;
mod hostile;
mod interrupted;
mod kinds;
mod many_refs;
mod objects;
mod other_repositories;
mod planted;
mod shapes;
pub(crate) mod shim_load;
mod user_hooks;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use guard::workspace::{Repository, Request, Workspace};

use crate::support::{Scratch, copy_program};

/// A user's repository in a scratch directory, with the user's own configuration beside it.
pub(crate) struct Place {
    pub(crate) scratch: Scratch,
    /// The main worktree.
    pub(crate) repository: PathBuf,
}

/// Runs git as a user would, away from this machine's configuration.
pub(crate) fn git_in<A: AsRef<OsStr>>(folder: &Path, args: &[A]) -> Output {
    let mut command = Command::new("git");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GIT_")) {
        command.env_remove(name);
    }
    command
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("LC_ALL", "C")
        .args(["-c", "user.name=User", "-c", "user.email=user@example.org", "-c", "init.defaultBranch=main"])
        .args(args);
    command.output().unwrap()
}

/// The same; it must work, and what it printed comes back.
pub(crate) fn git<A: AsRef<OsStr>>(folder: &Path, args: &[A]) -> String {
    let output = git_in(folder, args);
    let words: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy().into_owned()).collect();
    assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_string()
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// A repository made with these options of `git init`.
    pub(crate) fn with(options: &[&str]) -> Self {
        let scratch = Scratch::new("workspace");
        let repository = scratch.0.join("project");
        std::fs::create_dir(&repository).unwrap();
        let place = Self { scratch, repository };
        git(&place.repository, &[&["init", "--quiet"][..], options].concat());
        std::fs::write(place.repository.join("a.txt"), "one\n").unwrap();
        std::fs::write(place.repository.join("b.txt"), "two\n").unwrap();
        std::fs::write(place.repository.join(".gitignore"), "node_modules/\n*.log\n").unwrap();
        place.git(&["config", "user.name", "User"]);
        place.git(&["config", "user.email", "user@example.org"]);
        place.git(&["add", "."]);
        place.git(&["commit", "--quiet", "-m", "first"]);
        place
    }

    pub(crate) fn git<A: AsRef<OsStr>>(&self, args: &[A]) -> String {
        git(&self.repository, args)
    }

    pub(crate) fn request(&self, name: &str) -> Request {
        Request {
            run_id: format!("run-{name}"),
            run_folder: self.scratch.0.join("state/runs").join(name),
            name: Some(name.to_string()),
            prefix: "task/".to_string(),
            fallback_root: self.scratch.0.join("state/worktrees"),
            ..Request::default()
        }
    }

    pub(crate) fn find(&self) -> Repository {
        Repository::find(&self.repository).unwrap().unwrap()
    }

    /// The same, with what it says of programs and places taken for the user's own.
    pub(crate) fn find_trusted(&self) -> Repository {
        Repository { trusted: true, ..self.find() }
    }

    /// A workspace whose `.git` leads to the quarantine, as the agent sees it.
    pub(crate) fn open(&self, name: &str) -> Workspace {
        self.open_with(&self.request(name))
    }

    pub(crate) fn open_with(&self, request: &Request) -> Workspace {
        let workspace = Workspace::open(&self.find(), request).unwrap();
        workspace.point_at_quarantine().unwrap();
        workspace
    }

    /// Everything in the repository's git directory, with its bytes.
    pub(crate) fn snapshot(&self) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
        fn walk(folder: &Path, found: &mut std::collections::BTreeMap<PathBuf, Vec<u8>>) {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                let path = entry.path();
                if entry.file_type().unwrap().is_dir() {
                    walk(&path, found);
                } else {
                    found.insert(path.clone(), std::fs::read(&path).unwrap_or_default());
                }
            }
        }
        let mut found = std::collections::BTreeMap::new();
        walk(&self.repository.join(".git"), &mut found);
        found
    }

    pub(crate) fn fsck(&self) {
        let output = git_in(&self.repository, &["fsck", "--full", "--strict"]);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let real: Vec<&str> = said.lines().filter(|line| !line.starts_with("dangling")).collect();
        assert!(output.status.success() && real.is_empty(), "{said}");
    }
}

/// Those start other built programs, which may lie where only their owner can go, or become an ordinary user themselves; or,
/// as `dangers`, do not depend on who the user is.
const NOT_AGAIN: [&str; 14] = [
    "attempts",
    "bombs",
    "changed::",
    "commands",
    "credentials",
    "dangers",
    "differential",
    "killed",
    "many_refs",
    "other_repositories",
    "planted",
    "a_run_ends",
    "shim_load",
    "user_hooks",
];

/// All of it again as somebody who is not root, when root runs the tests.
#[test]
fn as_an_ordinary_user() {
    const AGAIN: &str = "GUARD_TEST_ORDINARY";
    if !nix::unistd::geteuid().is_root() || std::env::var_os(AGAIN).is_some() {
        return;
    }
    let user = 64_018;
    let scratch = Scratch::new("ordinary");
    std::os::unix::fs::chown(&scratch.0, Some(user), Some(user)).unwrap();
    let program = scratch.0.join("tests");
    copy_program(&std::env::current_exe().unwrap(), &program);
    let output = Command::new("setpriv")
        .args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"])
        .arg(&program)
        .arg("workspace::")
        .args(NOT_AGAIN.iter().flat_map(|name| ["--skip", name]))
        .env(AGAIN, "1")
        .env("HOME", "/nonexistent")
        .env("TMPDIR", &scratch.0)
        .current_dir(&scratch.0)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// What an agent does in its worktree.
pub(crate) fn commit(workspace: &Workspace, file: &str, text: &str, message: &str) -> String {
    std::fs::write(workspace.worktree().join(file), text).unwrap();
    agent(workspace, &["add", "-A"]);
    agent(workspace, &["commit", "--quiet", "-m", message]);
    agent(workspace, &["rev-parse", "HEAD"])
}

/// git as the agent runs it: with nothing but what the quarantine's configuration says.
pub(crate) fn agent<A: AsRef<OsStr>>(workspace: &Workspace, args: &[A]) -> String {
    let output = Command::new("git")
        .current_dir(workspace.worktree())
        .env_clear()
        .env("PATH", "/usr/bin:/bin:/usr/local/bin")
        .env("HOME", "/nonexistent")
        .args(args)
        .output()
        .unwrap();
    let words: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy().into_owned()).collect();
    assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_string()
}
