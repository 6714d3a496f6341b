//! Tests the tools that queue tasks and poll for their results.

use serde_json::{Value, json};

use super::hold_to_schema;
use super::server::Piped;
use crate::support::{TestEnvironment, guard_program, one_environment};

fn start(environment: &TestEnvironment) -> (Piped, Value) {
    let mut command = environment.command(guard_program());
    command.args(["mcp", "--root"]).arg(&environment.directory);
    let mut client = Piped::of(environment, command);
    client.send(&json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" }));
    let tools = client.answer(2)["result"]["tools"].clone();
    (client, tools)
}

fn echo(id: &str) -> Value {
    json!({ "task_id": id, "type": "echo", "parameters": { "text": id } })
}

#[test]
fn batch_is_submitted_and_polled() {
    let environment = one_environment();
    let (mut client, tools) = start(&environment);
    let mut number = 2;
    let mut uses = |tool: &str, arguments: &Value| {
        number += 1;
        let answer = client.uses(number, tool, arguments);
        hold_to_schema(&tools, tool, &answer);
        answer
    };
    let tasks: Vec<Value> = (0..150).map(|number| echo(&format!("t{number}"))).collect();
    let first = uses("guard_batch_submit", &json!({ "tasks": tasks, "idempotency_key": "k" }));
    assert_eq!((&first["success"], &first["counts"]["total"]), (&json!(true), &json!(150)), "{first:#}");
    assert_eq!((first["results"].as_array().map(Vec::len), &first["next_after"]), (Some(100), &json!(99)));
    let id = &first["response_id"];
    let again = uses("guard_batch_submit", &json!({ "tasks": tasks, "idempotency_key": "k" }));
    assert_eq!(&again["response_id"], id);
    let last = uses("guard_batch_poll", &json!({ "response_id": id, "wait": 60, "limit": 1000 }));
    assert_eq!(
        (&last["status"], &last["counts"]["completed"]),
        (&json!("completed"), &json!(150)),
        "{last:#}"
    );
    assert_eq!(last["results"][149]["output"], json!({ "text": "t149" }));
    let one = uses("guard_batch_poll", &json!({ "response_id": id, "task": "t7" }));
    assert_eq!(
        (one["results"].as_array().map(Vec::len), &one["results"][0]["task_id"]),
        (Some(1), &json!("t7"))
    );
    let rest = uses("guard_batch_poll", &json!({ "response_id": id, "after": 147 }));
    assert_eq!((rest["results"].as_array().map(Vec::len), rest.get("next_after")), (Some(2), None));
    let cancelled = uses("guard_batch_cancel", &json!({ "response_id": id }));
    assert_eq!((&cancelled["success"], &cancelled["cancelled"]), (&json!(true), &json!(0)));
}

#[test]
fn invalid_batches_are_tool_errors_and_queue_nothing() {
    let environment = one_environment();
    let (mut client, tools) = start(&environment);
    let elsewhere = json!({ "task_id": "a", "type": "echo", "parameters": {}, "directory": "/etc" });
    let file = json!({ "task_id": "a", "type": "echo", "parameters": {}, "policy": "./own.toml" });
    let wrong = [
        ("guard_batch_submit", json!({}), "tasks"),
        ("guard_batch_submit", json!({ "tasks": [{}] }), "task_id"),
        ("guard_batch_submit", json!({ "tasks": [echo("a"), echo("a")] }), "already"),
        ("guard_batch_submit", json!({ "tasks": [elsewhere] }), "directory"),
        ("guard_batch_submit", json!({ "tasks": [file] }), "policy"),
        ("guard_batch_submit", json!({ "tasks": [echo("a")], "directory": "/etc" }), "directory"),
        ("guard_batch_submit", json!({ "tasks": [echo("a")], "colour": 1 }), "colour"),
        ("guard_batch_poll", json!({}), "response_id"),
        ("guard_batch_poll", json!({ "response_id": "none" }), "response_id"),
        ("guard_batch_poll", json!({ "response_id": "none", "wait": 61 }), "wait"),
        ("guard_batch_cancel", json!({ "response_id": "none" }), "response_id"),
    ];
    for (number, (tool, arguments, named)) in (10..).zip(wrong) {
        let answer = client.uses(number, tool, &arguments);
        hold_to_schema(&tools, tool, &answer);
        assert_eq!(
            (&answer["success"], &answer["error_kind"]),
            (&json!(false), &json!("invalid_input")),
            "{answer:#}"
        );
        assert!(answer["error"].as_str().is_some_and(|text| text.contains(named)), "{named}: {answer:#}");
    }
    let mut list = environment.command(guard_program());
    list.args(["batch", "list", "--json"]);
    assert_eq!(environment.run_to_end(list, b"").output.trim_ascii(), b"[]");
}
