// slow
//! The disk is full. A task must report this, and must go on when there is space again.

use crate::support::{Mounted, RunOutcome, TaskFixture, describe_task};

const REQUEST: [&str; 5] = ["--name", "x", "--gate", "plan=human", "Do it. @audit=FAIL,PASS"];

fn branch_and_subjects(fixture: &TaskFixture) -> (String, Vec<String>) {
    (fixture.git("rev-parse task/x^{tree}"), fixture.subjects("task/x"))
}

/// Runs the task of these tests with enough disk space. Returns the tree of its branch and the subjects of its commits,
/// which must be the same after the disk was full.
fn wanted() -> (String, Vec<String>) {
    let fixture = TaskFixture::new();
    let id = waits(&fixture);
    let outcome = fixture.about(&["resume", &id, "--stream-json"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    branch_and_subjects(&fixture)
}

/// Runs a task until it waits at a gate, and approves the gate. Returns the id of the task, which is not resumed yet.
fn waits(fixture: &TaskFixture) -> String {
    let outcome = fixture.task(&REQUEST);
    assert_eq!(outcome.code, 3, "{}", describe_task(&outcome));
    let id = outcome.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(fixture.about(&["approve", &id]).code, 0);
    id
}

/// Fails unless guard's error contains one of these words and says how to continue, and guard did not panic.
fn is_told(outcome: &RunOutcome, words: &[&str]) {
    assert!([1, 2, 125].contains(&outcome.code), "{}", describe_task(outcome));
    let told = format!("{} {}", outcome.error, outcome.result);
    assert!(words.iter().any(|word| told.contains(word)), "{}", describe_task(outcome));
    assert!(
        outcome.error.contains("hint: no work is lost;") || outcome.result["status"] == "failed",
        "{}",
        describe_task(outcome)
    );
    assert!(!outcome.error.contains("panicked"), "{outcome}");
}

/// The disk with guard's state directory is full, then almost full, and then has space again. The task must succeed in
/// the end.
#[test]
fn task_survives_a_full_state_disk() {
    let fixture = TaskFixture::new();
    let Some(disk) = Mounted::new(fixture.repository.with_file_name("state"), "32m") else { return };
    fixture.environment.give_to_user(&fixture.repository.with_file_name("state"));
    // If guard cannot record a task, it must not start it.
    disk.fill(0);
    let outcome = fixture.task(&REQUEST);
    assert_eq!(outcome.code, 2, "{}", describe_task(&outcome));
    assert!(outcome.error.contains("the task was not started"), "{outcome}");
    disk.free();
    assert_eq!(fixture.about(&["list", "--json"]).result.as_array().map(Vec::len), Some(0));
    assert_eq!(fixture.git("for-each-ref refs/heads/task/"), "");
    let id = waits(&fixture);
    let mut failures = 0;
    for left in [0, 16 << 10, 100 << 10, 400 << 10] {
        disk.fill(left);
        let outcome = fixture.about(&["resume", &id, "--stream-json"]);
        disk.free();
        if outcome.code == 0 {
            break;
        }
        failures += 1;
        is_told(&outcome, &["No space left", "disk is full", "disk I/O error", "os error 28"]);
        let list = fixture.about(&["list", "--json"]);
        assert_eq!(list.result.as_array().map(Vec::len), Some(1), "{}", list.error);
    }
    assert!(failures >= 2, "{failures}");
    let outcome = fixture.about(&["resume", &id, "--stream-json"]);
    // The task may already have succeeded with the last of these sizes.
    assert!(outcome.code == 0 || outcome.error.contains("has succeeded"), "{}", describe_task(&outcome));
    assert_eq!(branch_and_subjects(&fixture), wanted());
}

/// With a small limit on the size of files (`ulimit -f`), the task must fail with an error that states the cause. When
/// it is resumed without the limit, it must succeed.
#[test]
fn task_survives_a_file_size_limit() {
    let fixture = TaskFixture::new();
    let id = waits(&fixture);
    let mut failures = 0;
    for blocks in [0, 4, 32] {
        let mut command = fixture.environment.command("bash");
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
        command.args(["-c", &script, "bash"]).arg(crate::support::guard_program());
        command.args(["task", "resume", &id, "--stream-json"]).current_dir(&fixture.repository);
        let outcome = fixture.environment.run_to_end(command, b"");
        if outcome.code == 0 {
            break;
        }
        failures += 1;
        is_told(
            &outcome,
            &[
                "File too large",
                "disk I/O error",
                "disk is full",
                "os error 27",
                "internal",
                "upstream_error",
            ],
        );
    }
    assert!(failures >= 2, "{failures}");
    let outcome = fixture.about(&["resume", &id, "--stream-json"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert_eq!(branch_and_subjects(&fixture), wanted());
}
