// slow
//! A full disk under the repository or under the state directory. No work may be lost, and no lock may be left.

use std::process::Stdio;
use std::time::Instant;

use guard::git::{KeepPolicy, Limits, Workspace, list};

use super::named_runs::{COMMIT, fsck, leftovers, root, run, task};
use crate::support::{Mounted, one_environment, wait_until};

#[test]
fn full_disk_under_the_repository_loses_no_work() {
    let environment = one_environment();
    let Some(disk) = Mounted::new(root(&environment).join("disk"), "8m") else { return };
    environment.run_outside("mv repository disk/repository && rm -rf project && cd disk/repository && git worktree prune && git branch -qD task/work && head -c 300000 /dev/urandom > big && git add big && git -c user.name=n -c user.email=e commit -qm big");
    let run = |name: &str, script: &str| {
        let mut command = task(&environment, name, &["--keep"], script);
        command.current_dir(root(&environment).join("disk/repository"));
        command
    };
    let state = || {
        environment.run_outside("cd disk/repository && git for-each-ref && git worktree list --porcelain && find .git -name '*.lock'")
    };
    let before = state();
    // With so little space, guard cannot make the worktree.
    disk.fill(100_000);
    let output = run("full", "true").output().unwrap();
    let told =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(125) && told.contains("unable to write file"), "{told}");
    disk.free();
    assert_eq!(state(), before, "what was made is undone");
    // With so little space, guard cannot receive. The commits must stay in the run's directory, which is on another
    // disk.
    let mut command = run(
        "late",
        "head -c 2000000 /dev/urandom > large && git add large && git commit -qm large && touch ready.log; until [ -e go.log ]; do sleep 0.01; done; rm *.log",
    );
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let tree = root(&environment).join("disk/.worktrees/repository-late");
    wait_until("the run is ready", || tree.join("ready.log").exists());
    std::fs::write(tree.join("go.log.new"), "").unwrap();
    disk.fill(0);
    std::fs::rename(tree.join("go.log.new"), tree.join("go.log")).unwrap();
    let outcome = environment.collect_outcome(child, Instant::now());
    outcome.expect_code(125);
    disk.free();
    let id = outcome.result["run_id"].as_str().unwrap();
    assert!(
        list(&environment.runs_directory()).unwrap().iter().any(|entry| entry.run_folder.ends_with(id)),
        "it is in the list"
    );
    let mut workspace = Workspace::load(&environment.runs_directory().join(id)).unwrap();
    let received = workspace.receive(&Limits::default()).unwrap();
    assert_eq!(received.commits.len(), 1, "{received:?}");
    workspace.dispose(KeepPolicy::Keep).unwrap();
    assert_eq!(
        environment
            .run_outside("cd disk/.worktrees/repository-late && git status -s && git log -1 --format=%s"),
        "large\n"
    );
    let said =
        environment.run_outside("cd disk/repository && git fsck --strict 2>&1 | grep -v dangling || true");
    assert_eq!(said, "");
}

#[test]
fn full_disk_under_the_state_directory_receives_nothing() {
    let environment = one_environment();
    let Some(disk) = Mounted::new(root(&environment).join("state"), "6m") else { return };
    // git in the run reports the full disk and leaves an incomplete object. guard cannot record the receive, so it
    // must receive nothing.
    let script = format!(
        "{COMMIT}; head -c 20000000 /dev/urandom > large; git add large 2>&1; echo code $?; rm large"
    );
    let outcome = run(&environment, "small", &["--keep"], &script);
    assert!(outcome.printed().contains("No space left"), "{outcome}");
    outcome.expect_code(125);
    // When there is space again, guard must receive the commit.
    let folder = environment.runs_directory().join(outcome.result["run_id"].as_str().unwrap());
    environment.run_outside(&format!("find {}/git -name 'tmp_obj_*' -delete", folder.display()));
    let mut workspace = Workspace::load(&folder).unwrap();
    assert_eq!(workspace.receive(&Limits::default()).unwrap().commits.len(), 1);
    workspace.dispose(KeepPolicy::Keep).unwrap();
    assert_eq!(
        environment.run_outside("cd .worktrees/repository-small && git status -s && git log -1 --format=%s"),
        "work\n"
    );
    // There is no space for a run at all.
    disk.fill(0);
    let before = environment.run_outside("cd repository && git for-each-ref && git worktree list");
    let output = task(&environment, "none", &[], "true").output().unwrap();
    let told =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && told.contains("No space left"), "{told}");
    assert_eq!(environment.run_outside("cd repository && git for-each-ref && git worktree list"), before);
    assert_eq!(leftovers(&environment), "");
    fsck(&environment);
}
