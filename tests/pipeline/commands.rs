// slow
//! Commands to a running task: `guard control` pauses, resumes, adjusts and cancels it, once for each command id.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::support::{RunOutcome, TaskFixture, guard_program, wait_until};

fn control(fixture: &TaskFixture, arguments: &[&str]) -> RunOutcome {
    let mut command = fixture.environment.command(guard_program());
    command.arg("control").args(arguments).arg("--json").current_dir(&fixture.repository);
    fixture.environment.run_to_end(command, b"")
}

fn task(fixture: &TaskFixture) -> Value {
    fixture.about(&["list", "--json"]).result[0].clone()
}

/// The user pauses a task: it must finish its current step and then wait. After the user raised a limit and resumed
/// the task, it must run to its end.
#[test]
fn task_is_paused_adjusted_and_resumed() {
    let fixture = TaskFixture::new();
    let events = fixture.repository.with_file_name("events");
    let mut command = fixture.command(&["--stream-json", "--name", "x", "Do it. @wait=1", "--agent-command"]);
    command.arg(fixture.agent()).stdout(std::fs::File::create(&events).unwrap()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let id = fixture.newest_task_id();
    let paused = control(&fixture, &[&id, "pause"]);
    assert_eq!((paused.code, &paused.result["status"]), (0, &Value::from("completed")), "{paused}");
    let said = || std::fs::read_to_string(&events).unwrap_or_default();
    wait_until("the task is paused", || said().contains("The task is paused."));
    // Each step takes about a second, so a task that does not obey would be several steps further.
    std::thread::sleep(Duration::from_secs(4));
    assert!(child.try_wait().unwrap().is_none(), "the paused task has ended");
    let visit = task(&fixture)["visit"].clone();
    let bad = control(&fixture, &[&id, "adjust_config", "--data", r#"{"max_tokens": 5}"#]);
    assert_eq!((bad.code, &bad.result["status"]), (1, &Value::from("rejected")), "{bad}");
    let misspelled =
        control(&fixture, &[&id, "adjust_config", "--data", r#"{"task": {"tokens": 5, "minuts": 3}}"#]);
    assert!(misspelled.result["data"]["reason"].as_str().unwrap().contains("`minuts`"), "{misspelled}");
    let unknown =
        control(&fixture, &[&id, "adjust_config", "--data", r#"{"steps": {"fly": {"tokens": 5}}}"#]);
    assert!(unknown.result["data"]["reason"].as_str().unwrap().contains("`fly`"), "{unknown}");
    let raised = control(&fixture, &[&id, "adjust_config", "--data", r#"{"task": {"tokens": 900000}}"#]);
    assert_eq!(raised.code, 0, "{raised}");
    assert_eq!(task(&fixture)["visit"], visit);
    assert_eq!(control(&fixture, &[&id, "resume"]).code, 0);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(task(&fixture)["status"], "succeeded");
}

/// `cancel` must end the agent and the task. The same command again must report success and change nothing, and guard
/// must reject a `pause` for the ended task.
#[test]
fn cancel_ends_a_task_and_a_repeated_cancel_changes_nothing() {
    let fixture = TaskFixture::new();
    let mut child = fixture.start_slow_task();
    let id = fixture.newest_task_id();
    let first = control(&fixture, &[&id, "cancel", "--command-id", "c1"]);
    assert_eq!((first.code, &first.result["status"]), (0, &Value::from("completed")), "{first}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(task(&fixture)["status"], "cancelled");
    let again = control(&fixture, &[&id, "cancel", "--command-id", "c1"]);
    assert_eq!((again.code, &again.result["status"]), (0, &Value::from("completed")), "{again}");
    let paused = control(&fixture, &[&id, "pause"]);
    assert_eq!(paused.code, 1, "{paused}");
    assert!(paused.result["data"]["reason"].as_str().unwrap().contains("not running"), "{paused}");
    let unknown = control(&fixture, &["0000", "cancel"]);
    assert_eq!(unknown.code, 2, "{unknown}");
}
