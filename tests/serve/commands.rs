// slow
//! Commands over HTTP to tasks and research runs.

use serde_json::json;

use super::Served;
use crate::support::TaskFixture;

/// A client pauses and cancels a task below a root of the server, which must work. For a task outside the roots, and
/// for an id of another kind of work, the server must answer 404.
#[test]
fn task_is_controlled_only_below_a_root() {
    let fixture = TaskFixture::new();
    let mut child = fixture.start_slow_task();
    let id = fixture.newest_task_id();
    let other = fixture.environment.temporary_directory();
    let elsewhere = Served::start(&fixture.environment, &["--no-worker", "--root", other.to_str().unwrap()]);
    let pause = json!({ "command_type": "pause", "command_id": "p1" });
    assert_eq!(elsewhere.post(&format!("/v1/tasks/{id}/commands"), &pause).status, 404);
    let root = fixture.repository.to_str().unwrap();
    let server = Served::start(&fixture.environment, &["--no-worker", "--root", root]);
    assert_eq!(server.post(&format!("/v1/research/{id}/commands"), &pause).status, 404);
    assert_eq!(server.post("/v1/tasks/none/commands", &pause).status, 404);
    let paused = server.post(&format!("/v1/tasks/{id}/commands"), &pause);
    assert_eq!((paused.status, &paused.json()["status"]), (200, &json!("completed")), "{}", paused.text());
    let bad = json!({ "command_type": "adjust_config", "command_id": "a1", "data": { "task": 5 } });
    let rejected = server.post(&format!("/v1/tasks/{id}/commands"), &bad);
    assert_eq!(
        (rejected.status, &rejected.json()["status"]),
        (200, &json!("rejected")),
        "{}",
        rejected.text()
    );
    let cancel = json!({ "command_type": "cancel", "command_id": "c1" });
    let cancelled = server.post(&format!("/v1/tasks/{id}/commands"), &cancel);
    assert_eq!(cancelled.json()["status"], json!("completed"), "{}", cancelled.text());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}
