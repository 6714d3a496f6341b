//! Runs with a name in the repository of a test environment, and checks of what they leave there.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::support::{RunOutcome, TestEnvironment, wait_until};

pub(super) fn root(environment: &TestEnvironment) -> PathBuf {
    environment.temporary_directory().parent().unwrap().to_path_buf()
}

/// Returns a command `guard run --name NAME` for a script, in the main repository of the environment.
pub(super) fn task(environment: &TestEnvironment, name: &str, options: &[&str], script: &str) -> Command {
    let options = [&["--json", "--policy", "strict", "--name", name, "--no-toolchains"], options].concat();
    let mut command = environment.guard_run(&options, &["bash", "-c", script]);
    command.current_dir(root(environment).join("repository"));
    command
}

pub(super) fn run(environment: &TestEnvironment, name: &str, options: &[&str], script: &str) -> RunOutcome {
    environment.run_to_end(task(environment, name, options, script), b"")
}

/// A script that commits one file.
pub(super) const COMMIT: &str = "echo work > work; git add work; git commit -qm work";

pub(super) fn fsck(environment: &TestEnvironment) {
    let said = environment.run_outside("cd repository && git fsck --full --strict 2>&1");
    let real: Vec<&str> = said.lines().filter(|line| !line.starts_with("dangling")).collect();
    assert!(real.is_empty(), "{}: {said}", environment.name());
}

/// Returns the lock files and incomplete objects that git left in the user's repository.
pub(super) fn leftovers(environment: &TestEnvironment) -> String {
    // `find` may report files that disappear while it runs. They are not left over, so its error is ignored.
    let find = "find repository/.git \\( -name '*.lock' -o -name 'tmp_*' -o -name 'incoming-*' \\) -print";
    environment.run_outside(&format!("{find} || [ -d repository/.git ]"))
}

/// Starts a run that creates `ready.log` in its worktree and then waits for `go.log`.
pub(super) fn waiting(environment: &TestEnvironment, name: &str, script: &str) -> (Child, PathBuf) {
    let script = format!("{script}\ntouch ready.log; until [ -e go.log ]; do sleep 0.01; done");
    environment
        .run_outside("cd repository && grep -q log .git/info/exclude || echo '*.log' >> .git/info/exclude");
    let mut command = task(environment, name, &["--keep"], &script);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let tree = root(environment).join(format!(".worktrees/repository-{name}"));
    wait_until("the run is ready", || tree.join("ready.log").exists());
    (child, tree)
}

pub(super) fn go(environment: &TestEnvironment, child: Child, tree: &Path) -> RunOutcome {
    std::fs::write(tree.join("go.log"), "").unwrap();
    environment.collect_outcome(child, Instant::now())
}
