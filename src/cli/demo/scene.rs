//! The fixture of `guard demo`: a scratch repository, files and a server outside of it that the agent must not
//! affect, and checks after the run that the agent did not.

use std::io;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::sys::programs::ProgramSearch;

/// The demo's scratch repository, and the files and the server outside of it that the agent must not affect.
#[derive(Debug)]
pub(crate) struct Scene {
    root: PathBuf,
    server: TcpListener,
    main_before: String,
}

/// The result of one check that guard makes after the demo's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// What must be true after the run, as text for the user.
    pub(crate) what: &'static str,
    /// Whether the statement in `what` is true.
    pub(crate) holds: bool,
}

const BESIDE: &str = "a file of the user's, outside the task\n";
const KEY: &str = "DEMO-KEY-not-for-the-agent\n";

/// The program in the demo's project, with the bug that the scripted agent fixes.
const PROGRAM: &str = "#!/bin/sh\n# Adds two numbers.\necho $(($1 - $2))\n";
const TEST: &str = "#!/bin/sh\nsum=$(sh add.sh 2 3)\nif [ \"$sum\" = 5 ]; then echo 'ok: 2 + 3 = 5'; else echo \"failed: 2 + 3 = $sum\"; exit 1; fi\n";

impl Scene {
    /// Creates the demo's repository, the files and the server in a new directory below `scratch`.
    pub(crate) fn make(scratch: &Path) -> io::Result<Self> {
        let root = scratch.join(format!("guard-demo-{}", std::process::id()));
        std::fs::create_dir(&root)?;
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755))?;
        let project = root.join("project");
        std::fs::create_dir(&project)?;
        std::fs::write(project.join("add.sh"), PROGRAM)?;
        std::fs::write(project.join("test.sh"), TEST)?;
        git(&project, &["init", "-q", "-b", "main"])?;
        git(&project, &["config", "user.name", "demo"])?;
        git(&project, &["config", "user.email", "demo@example.org"])?;
        git(&project, &["add", "."])?;
        git(&project, &["commit", "-qm", "start"])?;
        std::fs::write(root.join("beside.txt"), BESIDE)?;
        std::fs::write(root.join("key.txt"), KEY)?;
        let server = TcpListener::bind(("127.0.0.1", 0))?;
        server.set_nonblocking(true)?;
        let main_before = main_branch(&project)?;
        // Wait, so that these files have older modification times than the files that the agent changes. The clock of a
        // file system may be coarse.
        std::thread::sleep(std::time::Duration::from_millis(30));
        Ok(Self { root, server, main_before })
    }

    /// Returns the path of the user's repository. The agent works in a linked worktree of it.
    pub(crate) fn project(&self) -> PathBuf {
        self.root.join("project")
    }

    /// Returns the arguments for the agent: the scratch directory, the port of the server, and the PID of the
    /// supervisor.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let port = self.server.local_addr().map(|address| address.port()).unwrap_or_default();
        vec![self.root.to_string_lossy().into_owned(), port.to_string(), std::process::id().to_string()]
    }

    /// Checks the effects of the agent's work and attacks, from outside the sandbox.
    pub(crate) fn check(&self) -> Vec<Finding> {
        let text = |name: &str| std::fs::read_to_string(self.root.join(name)).unwrap_or_default();
        let beside = self.root.join("beside.txt");
        let mode = std::fs::metadata(&beside).map(|found| found.permissions().mode() & 0o777).unwrap_or(0);
        let finding = |what, holds| Finding { what, holds };
        let of_branch = git(&self.project(), &["show", "task/demo:add.sh"]).unwrap_or_default();
        vec![
            finding("the fix is on branch task/demo", of_branch.contains("$1 + $2")),
            finding("the user's own working tree is as it was", text("project/add.sh") == PROGRAM),
            finding(
                "the file beside the project is as it was",
                text("beside.txt") == BESIDE && mode != 0o777,
            ),
            finding(
                "branch main is where it was",
                main_branch(&self.project()).ok().as_ref() == Some(&self.main_before),
            ),
            finding("no hook was planted", !self.project().join(".git/hooks/post-checkout").exists()),
            finding("the repository is sound", git(&self.project(), &["fsck", "--strict"]).is_ok()),
            finding("no connection reached the server outside", self.server.accept().is_err()),
            finding("the daemon is gone", !has_process_in(&self.root)),
        ]
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// Returns true if a process still has its working directory in `root` or below it.
fn has_process_in(root: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else { return false };
    entries.flatten().any(|entry| {
        std::fs::read_link(entry.path().join("cwd")).is_ok_and(|folder| folder.starts_with(root))
    })
}

/// Runs git in a directory that guard has just created, without the user's configuration.
fn git(directory: &Path, arguments: &[&str]) -> io::Result<String> {
    let search = ProgramSearch::from_environment();
    let output = Command::new(search.find("git").map_err(io::Error::other)?)
        .args(arguments)
        .env("PATH", search.path())
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .output()?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(io::Error::other(format!("git {}: {}", arguments.join(" "), stderr.trim())))
    }
}

fn main_branch(project: &Path) -> io::Result<String> {
    git(project, &["rev-parse", "refs/heads/main"])
}
