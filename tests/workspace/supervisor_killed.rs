// slow
//! The supervisor of a run is killed, and another process finishes its work.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use guard::git::{KeepPolicy, Limits, State, Workspace, WorkspaceError, list};

use super::named_runs::{COMMIT, fsck, leftovers, run, task};
use crate::support::{Random, TestEnvironment, in_every_environment, is_root, wait_until};

/// The supervisor is killed at any moment between its start and the end of the receive. Another process must be able to
/// finish its work.
#[test]
fn work_of_a_killed_supervisor_can_be_finished() {
    in_every_environment(|environment| {
        // The test process itself finishes the run, so it only tests runs of its own user.
        if is_root() && environment.user.name != "root" {
            return;
        }
        let mut random = Random(0x2545_f491_4f6c_dd1d ^ u64::from(environment.namespaces));
        let script = format!(
            "{COMMIT}; for i in 1 2 3; do echo $i >> work; git commit -qam $i; done; echo loose > loose"
        );
        let whole = run(environment, "whole", &["--keep"], &script).took;
        let mut whole = u64::try_from(whole.as_micros()).unwrap();
        let base = environment.run_outside("cd repository && git rev-parse main");
        let mut states = std::collections::BTreeMap::<&str, usize>::new();
        // If another program slowed the machine down after the measurement, all kills come too early, so the test
        // continues until they have hit different states.
        for turn in 0..60 {
            if turn >= 12 && states.len() > 2 {
                break;
            }
            if turn > 0 && turn % 12 == 0 {
                let again = run(environment, &format!("whole{turn}"), &["--keep"], &script).took;
                whole = u64::try_from(again.as_micros()).unwrap();
            }
            let name = format!("k{turn}");
            let mut command = task(environment, &name, &["--keep"], &script);
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            // Every second kill falls into the last third of the run, in which guard receives the branch and hands
            // the worktree back.
            let delay =
                if turn % 2 == 0 { random.below(whole) } else { whole * 2 / 3 + random.below(whole / 2) };
            std::thread::sleep(Duration::from_micros(delay));
            if child.try_wait().unwrap().is_some() {
                // The first, measured run was slower because the machine was busier, so the estimate is lowered.
                whole = whole * 4 / 5;
            }
            let _ = child.kill();
            child.wait().unwrap();
            // The kernel also ends the git processes of the killed guard, which takes a moment on a busy machine.
            wait_until("the git of the killed run ends", || !is_in_use(&format!("repository-{name}")));
            finish(environment, &name, base.trim(), &mut states);
        }
        eprintln!("{}: killed while {states:?}", environment.name());
        assert!(states.len() > 2, "{}: the moments hit nothing: {states:?}", environment.name());
        // The repository must still work for another run.
        let outcome = run(environment, "after", &[], COMMIT);
        assert_eq!(outcome.result["success"], true, "{outcome}");
    });
}

/// Returns true if a process has this text in its arguments or variables.
fn is_in_use(text: &str) -> bool {
    let mentions = |process: &Path| {
        ["cmdline", "environ"].iter().any(|file| {
            let bytes = std::fs::read(process.join(file)).unwrap_or_default();
            bytes.windows(text.len()).any(|window| window == text.as_bytes())
        })
    };
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| mentions(&entry.path()))
}

/// Checks what a killed run left, finishes it as another guard process would, and checks the result.
fn finish(
    environment: &TestEnvironment,
    name: &str,
    base: &str,
    states: &mut std::collections::BTreeMap<&str, usize>,
) {
    let branch = format!("refs/heads/task/{name}");
    let ours = list(&environment.runs_directory()).unwrap();
    let mine = ours.iter().find(|entry| entry.record.as_ref().is_ok_and(|record| record.branch == branch));
    let Some(entry) = mine else {
        *states.entry("nothing").or_default() += 1;
        let left = environment.run_outside(&format!("cd repository && git for-each-ref {branch}; ls -d ../.worktrees/repository-{name} 2> /dev/null || true"));
        assert_eq!(left, "", "{}: {name}: made before it was written down", environment.name());
        return;
    };
    let mut workspace = None;
    wait_until("the run lets go of its folder", || match Workspace::load(&entry.run_folder) {
        Ok(loaded) => {
            workspace = Some(loaded);
            true
        }
        Err(WorkspaceError::Busy(_)) => false,
        Err(error) => panic!("{}: {name}: {error}", environment.name()),
    });
    let mut workspace = workspace.unwrap();
    let state = workspace.record().state;
    *states.entry(state.name()).or_default() += 1;
    let told = format!("{}: {name}, killed while {}", environment.name(), state.name());
    // A kept workspace has already been received, and a part of its quarantine may be gone.
    if matches!(state, State::Open | State::Receiving | State::Received) && workspace.quarantine().exists() {
        let received =
            workspace.receive(&Limits::default()).unwrap_or_else(|error| panic!("{told}: {error}"));
        assert_eq!(
            environment.run_outside(&format!("cd repository && git rev-parse {branch}")).trim(),
            received.new,
            "{told}"
        );
    }
    let settled = workspace.dispose(KeepPolicy::Auto).unwrap_or_else(|error| panic!("{told}: {error}"));
    assert_eq!(leftovers(environment), "", "{told}");
    fsck(environment);
    let folder = format!(".worktrees/repository-{name}");
    if settled.kept {
        let known = environment.run_outside(&format!("cd {folder} && git status -s && git rev-parse --abbrev-ref HEAD && git merge-base --is-ancestor {base} HEAD"));
        assert!(known.ends_with(&format!("task/{name}\n")), "{told}: {known}");
        let settled =
            workspace.dispose(KeepPolicy::Discard).unwrap_or_else(|error| panic!("{told}: {error}"));
        assert!(!settled.kept, "{told}: {settled:?}");
    }
    drop(workspace);
    let left = environment.run_outside(&format!("cd repository && git for-each-ref {branch}; git worktree list | grep repository-{name} || true; ls -d ../{folder} 2> /dev/null || true"));
    assert_eq!(left, "", "{told}");
    fsck(environment);
}
