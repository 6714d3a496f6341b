// slow
//! Lock files, branches and directories that a run needs and that something else holds. No work may be lost.

use guard::git::{KeepPolicy, Limits, Workspace};

use super::named_runs::{COMMIT, fsck, go, leftovers, root, run, task, waiting};
use crate::support::{in_two_environments, one_environment};

#[test]
fn stale_lock_in_the_worktree_of_a_run_is_handled() {
    in_two_environments(|environment| {
        let outcome = run(
            environment,
            "locked",
            &[],
            &format!(
                "touch \"$(git rev-parse --git-path index.lock)\"; echo a > a; git add a 2>&1; echo code $?
                 rm \"$(git rev-parse --git-path index.lock)\"; {COMMIT}; echo code $?
                 touch \"$(git rev-parse --git-path index.lock)\" \"$(git rev-parse --git-path HEAD.lock)\" \"$(git rev-parse --git-path refs/heads/task/locked.lock)\""
            ),
        );
        let said = outcome.printed();
        assert!(
            said.contains("index.lock': File exists") && said.contains("code 128\ncode 0\n"),
            "{}: {said}",
            environment.name()
        );
        assert_eq!(
            outcome.result["success"],
            true,
            "locks inside are nothing outside; {}: {:#}",
            environment.name(),
            outcome.result
        );
        assert_eq!(outcome.result["commits"].as_array().map(Vec::len), Some(1), "{outcome}");
        assert_eq!(leftovers(environment), "", "{}", environment.name());
        fsck(environment);
    });
}

/// A killed git left lock files in the real repository. A lock of the user's index must not affect a run. A lock of
/// the task's branch or index must keep guard from receiving, and the user must be able to receive later.
#[test]
fn stale_locks_in_the_repository_do_not_lose_commits() {
    // The test process itself repeats the end of the run, so it only tests runs of its own user.
    let environment = one_environment();
    environment.run_outside(
        "touch repository/.git/index.lock repository/.git/config.lock repository/.git/HEAD.lock",
    );
    let outcome = run(&environment, "users", &[], COMMIT);
    assert_eq!(outcome.result["success"], true, "{outcome}");
    assert_eq!(outcome.result["commits"].as_array().map(Vec::len), Some(1), "{outcome}");
    environment.run_outside("cd repository/.git && rm index.lock config.lock HEAD.lock");

    for lock in ["refs/heads/task/NAME.lock", "worktrees/repository-NAME/index.lock"] {
        let name = lock.replace(|c: char| !c.is_ascii_lowercase(), "");
        let lock = root(&environment).join("repository/.git").join(lock.replace("NAME", &name));
        let (child, tree) = waiting(&environment, &name, COMMIT);
        std::fs::write(&lock, "").unwrap();
        let outcome = go(&environment, child, &tree);
        assert_eq!(outcome.code, 125, "{}: {:#}", lock.display(), outcome.result);
        let told = outcome.result["error"].as_str().unwrap_or_default();
        assert!(told.contains("lock"), "{}: {told}", lock.display());
        assert!(lock.exists(), "somebody else's lock is theirs");
        std::fs::remove_file(&lock).unwrap();
        let id = outcome.result["run_id"].as_str().unwrap();
        let mut workspace = Workspace::load(&environment.runs_directory().join(id)).unwrap();
        workspace.receive(&Limits::default()).unwrap();
        let settled = workspace.dispose(KeepPolicy::Keep).unwrap();
        assert!(settled.kept && settled.has_commits && !settled.unreceived, "{settled:?}");
        assert_eq!(
            environment
                .run_outside(&format!("cd {} && git status -s && git log -1 --format=%s", tree.display())),
            "work\n"
        );
        fsck(&environment);
    }
}

#[test]
fn taken_branch_and_worktree_names_are_refused() {
    in_two_environments(|environment| {
        let state = || {
            environment.run_outside(
                "cd repository && git for-each-ref && git worktree list --porcelain && ls -A ../.worktrees",
            )
        };
        environment.run_outside(
            "mkdir -p .worktrees/repository-there && echo mine > .worktrees/repository-there/file",
        );
        environment.run_outside(
            "cd repository && git branch task/branch && git worktree add -q -b task/elsewhere ../elsewhere",
        );
        // git has records of two worktrees whose directories are gone. One of them is locked.
        environment.run_outside(
            "cd repository && for name in stale kept; do git worktree add -q --detach ../.worktrees/repository-$name; done
             echo c > ../.worktrees/repository-kept/c && cd ../.worktrees/repository-kept && git add c && git -c user.name=n -c user.email=e commit -qm kept
             cd ../../repository && git worktree lock ../.worktrees/repository-kept && rm -rf ../.worktrees/repository-stale ../.worktrees/repository-kept",
        );
        let before = state();
        for (name, wanted) in [
            ("there", "already exists"),
            ("branch", "the branch task/branch already exists"),
            ("elsewhere", "the branch task/elsewhere already exists"),
            ("kept", "worktree"),
        ] {
            let mut command = task(environment, name, &[], "true");
            let output = command.output().unwrap();
            let told = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            assert!(
                output.status.code() == Some(125) && told.contains(wanted),
                "{}: {name}: {told}",
                environment.name()
            );
            assert_eq!(state(), before, "{}: {name}", environment.name());
        }
        // If git's record of the missing worktree is not locked, the run may either use the name or be refused. Nothing
        // may be lost in either case.
        let outcome = run(environment, "stale", &["--keep"], COMMIT);
        if outcome.code == 0 {
            assert_eq!(
                environment.run_outside("cd .worktrees/repository-stale && git log -1 --format=%s"),
                "work\n"
            );
        } else {
            assert_eq!(state(), before, "{outcome}");
        }
        assert_eq!(environment.run_outside("cat .worktrees/repository-there/file"), "mine\n");
        fsck(environment);
    });
}

/// The user checks out the task's branch in a second worktree while a run works on it. guard must refuse to move the
/// branch.
#[test]
fn branch_checked_out_by_the_user_meanwhile_is_not_moved() {
    let environment = one_environment();
    let (child, tree) = waiting(&environment, "twice", COMMIT);
    environment.run_outside("cd repository && git worktree add -q --force ../second task/twice");
    let outcome = go(&environment, child, &tree);
    outcome.expect_code_and_kind(125, "receive_refused");
    assert_eq!(environment.run_outside("cd second && git status -s && git log -1 --format=%s"), "first\n");
    environment.run_outside("cd repository && git worktree remove ../second");
    let id = outcome.result["run_id"].as_str().unwrap();
    let mut workspace = Workspace::load(&environment.runs_directory().join(id)).unwrap();
    assert_eq!(workspace.receive(&Limits::default()).unwrap().commits.len(), 1);
    workspace.dispose(KeepPolicy::Keep).unwrap();
    fsck(&environment);
}
