// slow
//! While a task runs or waits, its branch moves or is deleted, or its worktree is removed. Also tests tasks in a
//! repository with a sparse checkout, with git-lfs, and with a state directory that cannot be written.

use std::time::{Duration, Instant};

use super::bad_input::acts;
use crate::support::{RunOutcome, TaskFixture, collect_outcome, describe_task, task_messages};

/// Makes the scripted agent wait in its first call in the role auditor, as long as this shell condition is true.
fn waits_while(fixture: &TaskFixture, holds: &str) {
    let lines = format!(
        "if [[ $prompt != *'You have done this already'* ]]; then echo waiting > \"$(document)\"\n\
         for n in $(seq 600); do {holds} || break; sleep 0.05; done; fi"
    );
    acts(fixture, "Auditor.", &lines);
}

/// Starts a task, and calls `work` while its auditor waits.
fn meanwhile(fixture: &TaskFixture, arguments: &[&str], work: impl FnOnce(&str)) -> RunOutcome {
    let mut command = fixture.command(&["--stream-json", "--agent-command"]);
    command.arg(fixture.agent()).args(arguments);
    let started = Instant::now();
    let pipe = std::process::Stdio::piped;
    let child = command.stdin(pipe()).stdout(pipe()).stderr(pipe()).spawn().unwrap();
    let worktree = fixture.repository.with_file_name(".worktrees").join("repository-x");
    let review = worktree.join("docs/dev_docs/reviews/code_review_x_v1.md");
    let reader = std::thread::spawn(move || collect_outcome(child, b"", started));
    while std::fs::read_to_string(&review).unwrap_or_default() != "waiting\n" {
        assert!(
            started.elapsed() < Duration::from_secs(180) && !reader.is_finished(),
            "nobody waits at {}",
            review.display()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    work(worktree.to_str().unwrap());
    reader.join().unwrap()
}

/// A commit arrives while the auditor reviews. The auditor must review again, because it has not seen that commit.
#[test]
fn commit_during_a_review_is_reviewed_again() {
    let fixture = TaskFixture::new();
    waits_while(&fixture, "[[ ! -e person.txt ]]");
    let outcome = meanwhile(&fixture, &["--name", "x", "Do it."], |worktree| {
        fixture.environment.run_outside(&format!(
            "cd {worktree} && echo mine > person.txt && git add person.txt && git commit -qm mine"
        ));
    });
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert!(
        task_messages(&outcome).iter().any(|line| line.contains("the branch moved while the agent")),
        "{}",
        describe_task(&outcome)
    );
    let shown = fixture.about(&["show", "--json"]);
    let task: serde_json::Value = serde_json::from_slice(&shown.output).unwrap();
    let again = task["journal"].as_array().unwrap().iter().find(|entry| entry["effect"] == "repair").unwrap();
    assert!(again["intent"]["prompt"].as_str().unwrap().contains("person.txt"), "it is told of it");
    let subjects = fixture.subjects("task/x");
    assert!(subjects.contains(&"mine".to_string()), "{subjects:?}");
}

/// An agent's worktree is deleted while the agent works in it. guard must report this with a hint, and must lose no
/// decision of the user.
#[test]
fn worktree_removed_during_work_is_reported() {
    let fixture = TaskFixture::new();
    waits_while(&fixture, "[[ -e toggle.txt ]]");
    let outcome = meanwhile(&fixture, &["--name", "x", "Do it."], |worktree| {
        fixture.environment.run_outside(&format!("rm -rf {worktree}"));
    });
    assert_eq!(outcome.code, 2, "{}", describe_task(&outcome));
    assert!(outcome.error.contains("is no longer a worktree of the repository"), "{outcome}");
    assert!(outcome.error.contains("hint: `guard task resume` creates the worktree again"), "{outcome}");
    let outcome = fixture.about(&["resume", "--stream-json"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    // A user approves at a gate, and then the task cannot continue. The decision must not be lost.
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "x", "--gate", "code=human", "Do it."]);
    let id = outcome.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(fixture.about(&["approve", &id]).code, 0);
    fixture.environment.run_outside("rm -rf .worktrees && echo > .worktrees");
    let outcome = fixture.about(&["resume", &id]);
    outcome.expect_code(2);
    assert!(outcome.error.contains("hint:"), "{outcome}");
    fixture.environment.run_outside("rm .worktrees");
    let outcome = fixture.about(&["resume", &id, "--stream-json"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert!(
        fixture.git("show task/x:docs/dev_docs/archived/reviews/code_review_x_v1.md").contains("Person <")
    );
}

/// The worktree's registration in the repository disappears, but its files are still there. guard must not delete them
/// when the task continues, because uncommitted work may be among them.
#[test]
fn files_of_an_unregistered_worktree_are_kept() {
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "x", "--gate", "code=human", "Do it."]);
    let id = outcome.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(fixture.about(&["approve", &id]).code, 0);
    fixture.environment.run_outside(
        "echo mine > .worktrees/repository-x/mine.txt && rm -r repository/.git/worktrees/repository-x",
    );
    let outcome = fixture.about(&["resume", &id]);
    outcome.expect_code(2);
    assert!(outcome.error.contains("hint: rename the directory to keep its files"), "{outcome}");
    assert_eq!(fixture.environment.run_outside("cat .worktrees/repository-x/mine.txt"), "mine\n");
    fixture.environment.run_outside("mv .worktrees/repository-x .worktrees/kept");
    let outcome = fixture.about(&["resume", &id, "--stream-json"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
}

/// git was killed while it created the worktree: it left a locked registration without an index, and some of the
/// files. guard must create the worktree again.
#[test]
fn half_created_worktree_is_created_again() {
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "x", "--gate", "code=human", "Do it."]);
    let id = outcome.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(fixture.about(&["approve", &id]).code, 0);
    fixture
        .environment
        .run_outside("cd repository/.git/worktrees/repository-x && rm index && echo initializing > locked");
    let outcome = fixture.about(&["resume", &id, "--stream-json"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
}

/// The user deletes the task's branch while the agent works on it. guard must say how to restore it.
#[test]
fn branch_deleted_during_work_can_be_restored() {
    let fixture = TaskFixture::new();
    let tip = std::cell::RefCell::new(String::new());
    // The agent does not see the user's branches, so the test tells it through its document when to continue.
    waits_while(&fixture, "[[ $(<\"$(document)\") == waiting ]]");
    let outcome = meanwhile(&fixture, &["--name", "x", "Do it."], |worktree| {
        tip.replace(fixture.git("rev-parse task/x"));
        fixture.git("update-ref -d refs/heads/task/x");
        fixture
            .environment
            .run_outside(&format!("echo go on > {worktree}/docs/dev_docs/reviews/code_review_x_v1.md"));
    });
    let hint =
        format!("the branch task/x does not exist; recreate it with `git branch task/x {}`", tip.borrow());
    assert_ne!(outcome.code, 0, "{}", describe_task(&outcome));
    assert!(outcome.error.contains(&hint), "{hint}: {}", describe_task(&outcome));
    let again = fixture.about(&["resume"]);
    assert_eq!(again.code, 2, "{}", again.error);
    assert!(again.error.contains(&hint), "{hint}: {}", again.error);
    fixture.git(&format!("update-ref refs/heads/task/x {}", tip.borrow()));
    let outcome = fixture.about(&["resume", "--stream-json"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
}

/// The user's repository has a sparse checkout. The reviewer of a task must see all files, also after a merge.
#[test]
fn reviewer_sees_all_files_despite_a_sparse_checkout() {
    let fixture = TaskFixture::new();
    fixture.environment.run_outside(
        "cd repository && mkdir -p src docs/big && echo a > src/a && echo b > docs/big/b && git add -A && git commit -qm dirs && git sparse-checkout set src",
    );
    acts(&fixture, "Auditor.", "[[ -s docs/dev_docs/plans/plan_x.md && -s docs/big/b ]] || exit 1");
    let outcome = fixture.task(&["--name", "x", "--gate", "code=human", "Do it."]);
    assert_eq!(outcome.code, 3, "{}", describe_task(&outcome));
    fixture.environment.run_outside("cd repository && echo o > src/o && git add -A && git commit -qm o");
    let id = outcome.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(fixture.about(&["approve", &id]).code, 0);
    let outcome = fixture.about(&["resume", &id, "--stream-json"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert!(fixture.subjects("task/x").contains(&"Merge Review: x: PASS".to_string()));
    assert_eq!(
        fixture.environment.run_outside("ls repository"),
        "src\ntracked\n",
        "the user's own stays as it was"
    );
}

/// guard cannot write its state directory. The error must say that the task was not started, and must not suggest to
/// resume it.
#[test]
fn unwritable_state_directory_prevents_the_task() {
    let fixture = TaskFixture::new();
    let file = fixture.repository.with_file_name("file");
    std::fs::write(&file, "").unwrap();
    for state in [file.as_path(), std::path::Path::new("/proc/nowhere")] {
        let mut command = fixture.command(&["--name", "x", "Do it.", "--agent-command"]);
        command.arg(fixture.agent()).env("XDG_STATE_HOME", state);
        let outcome = fixture.environment.run_to_end(command, b"");
        outcome.expect_code(2);
        assert!(
            outcome.error.contains("the task was not started") && !outcome.error.contains("task resume"),
            "{outcome}"
        );
        assert_eq!(fixture.git("for-each-ref refs/heads/task/"), "");
        let mut command = fixture.command(&["list"]);
        command.env("XDG_STATE_HOME", state);
        let outcome = fixture.environment.run_to_end(command, b"");
        outcome.expect_code(2);
        assert!(
            outcome.error.contains("hint: no work is lost; guard stores tasks below $XDG_STATE_HOME"),
            "{outcome}"
        );
    }
}

/// guard must not let git-lfs fetch files when it checks out an agent's commit, because the agent chose which files
/// these are.
#[test]
fn git_lfs_files_are_not_fetched_for_an_agent_commit() {
    let fixture = TaskFixture::new();
    let (log, config) =
        (fixture.repository.with_file_name("smudged"), fixture.repository.with_file_name("gitconfig"));
    // The user's git configuration defines the lfs filter for all repositories, as `git lfs install` does.
    let smudge = format!("echo skip=$GIT_LFS_SKIP_SMUDGE >> {}; cat", log.display());
    std::fs::write(&config, format!("[filter \"lfs\"]\n\tsmudge = \"{smudge}\"\n\tclean = cat\n")).unwrap();
    fixture.environment.run_outside(
        "cd repository && echo '*.bin filter=lfs' > .gitattributes && echo one > a.bin && git add -A && git commit -qm bin",
    );
    let run = |arguments: &[&str]| {
        let mut command = fixture.command(arguments);
        command.arg("--stream-json").env("GIT_CONFIG_GLOBAL", &config);
        fixture.environment.run_to_end(command, b"")
    };
    let agent = fixture.agent().to_str().unwrap();
    let outcome = run(&["--name", "x", "--gate", "code=human", "Do it.", "--agent-command", agent]);
    assert_eq!(outcome.code, 3, "{}", describe_task(&outcome));
    fixture.environment.run_outside("cd repository && echo two > a.bin && git add -A && git commit -qm two");
    assert!(std::fs::read_to_string(&log).unwrap().contains("skip="), "the filter is in use");
    std::fs::write(&log, "").unwrap();
    let id = outcome.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(fixture.about(&["approve", &id]).code, 0);
    // guard makes the worktree again from the branch, and checks out the merged files there.
    fixture.environment.run_outside("rm -rf .worktrees");
    let outcome = run(&["resume", &id]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let smudged = std::fs::read_to_string(&log).unwrap();
    assert!(smudged.lines().count() >= 2 && smudged.lines().all(|line| line == "skip=1"), "{smudged}");
}
