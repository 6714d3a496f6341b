//! Provides a user's repository, and runs git in it as the user and as the agent.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Output;

use guard::git::{Repository, Request, Workspace};

use super::{Scratch, isolated_command};

/// A user's repository in a scratch directory, with the user's own configuration beside it.
pub(crate) struct TestRepository {
    pub(crate) scratch: Scratch,
    /// The main worktree.
    pub(crate) repository: PathBuf,
}

/// Runs git as a user would, without the configuration of this machine.
pub(crate) fn git_in<A: AsRef<OsStr>>(directory: &Path, args: &[A]) -> Output {
    let mut command = isolated_command("git", Path::new("/nonexistent"));
    command
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .args(["-c", "user.name=User", "-c", "user.email=user@example.org", "-c", "init.defaultBranch=main"])
        .args(args);
    command.output().unwrap()
}

/// Runs git, which must succeed. Returns its output.
pub(crate) fn git<A: AsRef<OsStr>>(directory: &Path, args: &[A]) -> String {
    let output = git_in(directory, args);
    let words: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy().into_owned()).collect();
    assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_string()
}

impl TestRepository {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// Creates a repository with these options of `git init`, and with one commit of three files.
    pub(crate) fn with(options: &[&str]) -> Self {
        let scratch = Scratch::new("workspace");
        let repository = scratch.0.join("project");
        std::fs::create_dir(&repository).unwrap();
        let fixture = Self { scratch, repository };
        git(&fixture.repository, &[&["init", "--quiet"][..], options].concat());
        std::fs::write(fixture.repository.join("a.txt"), "one\n").unwrap();
        std::fs::write(fixture.repository.join("b.txt"), "two\n").unwrap();
        std::fs::write(fixture.repository.join(".gitignore"), "node_modules/\n*.log\n").unwrap();
        fixture.git(&["config", "user.name", "User"]);
        fixture.git(&["config", "user.email", "user@example.org"]);
        fixture.git(&["add", "."]);
        fixture.git(&["commit", "--quiet", "-m", "first"]);
        fixture
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

    /// Returns the repository, with the programs and paths of its configuration trusted.
    pub(crate) fn find_trusted(&self) -> Repository {
        Repository { trusted: true, ..self.find() }
    }

    /// Opens a workspace whose `.git` leads to the quarantine repository (the run's private git directory), as the
    /// agent sees it.
    pub(crate) fn open(&self, name: &str) -> Workspace {
        self.open_with(&self.request(name))
    }

    pub(crate) fn open_with(&self, request: &Request) -> Workspace {
        let workspace = Workspace::open(&self.find(), request).unwrap();
        workspace.point_at_quarantine().unwrap();
        workspace
    }

    /// Returns every file in the repository's git directory with its bytes.
    pub(crate) fn snapshot(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        fn walk(folder: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                let path = entry.path();
                if entry.file_type().unwrap().is_dir() {
                    walk(&path, found);
                } else {
                    found.insert(path.clone(), std::fs::read(&path).unwrap_or_default());
                }
            }
        }
        let mut found = BTreeMap::new();
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

/// Writes a file in the worktree and commits it, as the agent does. Returns the commit.
pub(crate) fn agent_commit(workspace: &Workspace, file: &str, text: &str, message: &str) -> String {
    std::fs::write(workspace.worktree().join(file), text).unwrap();
    agent_git(workspace, &["add", "-A"]);
    agent_git(workspace, &["commit", "--quiet", "-m", message]);
    agent_git(workspace, &["rev-parse", "HEAD"])
}

/// Runs git as the agent, with only the configuration of the quarantine repository (the run's private git directory).
/// git must succeed. Returns its output.
pub(crate) fn agent_git<A: AsRef<OsStr>>(workspace: &Workspace, args: &[A]) -> String {
    let output = isolated_command("git", Path::new("/nonexistent"))
        .current_dir(workspace.worktree())
        .args(args)
        .output()
        .unwrap();
    let words: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy().into_owned()).collect();
    assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_string()
}
