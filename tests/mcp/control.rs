//! The tool `guard_control`: commands to batches and tasks.

use serde_json::{Value, json};

use super::hold_to_schema;
use super::server::Piped;
use crate::support::{TaskFixture, TestEnvironment, guard_program, one_environment};

/// An MCP client with its own server process, whose `--root` is the given directory.
struct Client {
    server: Piped,
    tools: Value,
    number: u64,
}

impl Client {
    fn new(environment: &TestEnvironment, root: &std::path::Path) -> Self {
        let mut command = environment.command(guard_program());
        command.args(["mcp", "--root"]).arg(root);
        let mut server = Piped::of(environment, command);
        server.send(&json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" }));
        let tools = server.answer(2)["result"]["tools"].clone();
        Self { server, tools, number: 2 }
    }

    fn uses(&mut self, tool: &str, arguments: &Value) -> Value {
        self.number += 1;
        let answer = self.server.uses(self.number, tool, arguments);
        hold_to_schema(&self.tools, tool, &answer);
        answer
    }
}

/// The client pauses a batch, changes its priority and resumes it. While the batch is paused its second task must not
/// start; after `resume` both tasks must complete.
#[test]
fn batch_is_paused_adjusted_and_resumed() {
    let environment = one_environment();
    let mut client = Client::new(&environment, &environment.directory);
    let slow =
        json!({ "task_id": "a", "type": "execute_shell_command", "parameters": { "command": "sleep 3" } });
    let next = json!({ "task_id": "b", "type": "echo", "parameters": {}, "depends_on": ["a"] });
    let id = client.uses("guard_batch_submit", &json!({ "tasks": [slow, next] }))["response_id"].clone();
    let pause = json!({ "id": id, "command_type": "pause", "command_id": "p1" });
    for is_repeated in [false, true] {
        let paused = client.uses("guard_control", &pause);
        assert_eq!(
            (&paused["success"], &paused["status"]),
            (&json!(true), &json!("completed")),
            "{paused:#}"
        );
        assert_eq!(paused["data"]["repeated"], json!(is_repeated), "{paused:#}");
    }
    let waiting = client.uses("guard_batch_poll", &json!({ "response_id": id, "wait": 6 }));
    assert_eq!(
        (&waiting["status"], &waiting["results"][1]["status"]),
        (&json!("pending"), &json!("pending"))
    );
    let adjust = json!({ "id": id, "command_type": "adjust_config", "data": { "priority": 7 } });
    assert_eq!(client.uses("guard_control", &adjust)["success"], json!(true));
    assert_eq!(
        client.uses("guard_control", &json!({ "id": id, "command_type": "resume" }))["success"],
        json!(true)
    );
    let ended = client.uses("guard_batch_poll", &json!({ "response_id": id, "wait": 60 }));
    assert_eq!(ended["counts"]["completed"], json!(2), "{ended:#}");
}

/// The client pauses and cancels a task in its root directory, which must succeed. To a client with another root
/// directory the server must answer that there is no such task.
// slow
#[test]
fn task_is_controlled_only_from_its_root() {
    let fixture = TaskFixture::new();
    let mut child = fixture.start_slow_task();
    let id = fixture.newest_task_id();
    let elsewhere = fixture.repository.with_file_name("elsewhere");
    fixture.environment.run_outside("mkdir elsewhere");
    let mut stranger = Client::new(&fixture.environment, &elsewhere);
    let refused = stranger.uses("guard_control", &json!({ "id": id, "command_type": "cancel" }));
    assert_eq!((&refused["success"], &refused["error_kind"]), (&json!(false), &json!("invalid_input")));
    assert!(refused["error"].as_str().is_some_and(|text| text.contains("there is no")), "{refused:#}");
    assert!(child.try_wait().unwrap().is_none(), "the task has ended");
    let mut client = Client::new(&fixture.environment, &fixture.repository);
    let paused = client.uses("guard_control", &json!({ "id": id, "command_type": "pause" }));
    assert_eq!(paused["status"], json!("completed"), "{paused:#}");
    let cancelled = client.uses("guard_control", &json!({ "id": id, "command_type": "cancel" }));
    assert_eq!(cancelled["success"], json!(true), "{cancelled:#}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let late = client.uses("guard_control", &json!({ "id": id, "command_type": "pause" }));
    assert_eq!((&late["success"], &late["status"]), (&json!(false), &json!("rejected")), "{late:#}");
    assert!(late["error"].as_str().is_some_and(|text| text.contains("not running")), "{late:#}");
}

#[test]
fn invalid_command_is_a_tool_error_naming_the_parameter() {
    let environment = one_environment();
    let mut client = Client::new(&environment, &environment.directory);
    for (arguments, named) in [
        (json!({ "command_type": "pause" }), "`id`"),
        (json!({ "id": "x" }), "`command_type`"),
        (json!({ "id": "batch_none", "command_type": "pause" }), "`id`"),
        (json!({ "id": "../../etc", "command_type": "pause" }), "`id`"),
        (json!({ "id": "x", "command_type": "pause", "command_id": "a b" }), "command id"),
        (json!({ "id": "x", "command_type": "pause", "wait": 61 }), "`wait`"),
        (json!({ "id": "x", "command_type": "pause", "data": 5 }), "`data`"),
    ] {
        let answer = client.uses("guard_control", &arguments);
        assert_eq!(answer["error_kind"], json!("invalid_input"), "{arguments}: {answer:#}");
        assert!(answer["error"].as_str().is_some_and(|text| text.contains(named)), "{named}: {answer:#}");
    }
}
