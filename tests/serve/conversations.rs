//! Clients have conversations over HTTP. A scripted agent takes the place of the Gemini CLI.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Served, expect_error};
use crate::agent_exec::scripted;
use crate::support::{TestEnvironment, guard_program, one_environment, wait_until};

/// A script that prints what the Gemini CLI would print, and answers with its prompt.
const SCRIPT: &str = r#"#!/bin/bash
for word in "$@"; do
  case "$before" in --session-id | --resume) session=$word ;; esac
  case "$word" in --prompt=*) prompt=${word#--prompt=} ;; esac
  before=$word
done
case "$prompt" in *wait*) touch waiting; sleep 30 ;; esac
printf '{"type":"init","session_id":"%s"}\n' "$session"
printf '{"type":"message","role":"assistant","content":"you said %s"}\n' "$prompt"
printf '{"type":"result","status":"success","stats":{}}\n'
"#;

/// Starts a server whose PATH contains the scripted agent as `gemini`.
fn start(environment: &TestEnvironment) -> Served {
    let program = scripted::agent(environment, "scripted", SCRIPT);
    let mut command = environment.guard_ignoring_signals("");
    command
        .arg("serve")
        .args(["--no-worker", "--listen", "127.0.0.1:0", "--root"])
        .arg(&environment.directory);
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", program.parent().unwrap().display());
    command.env("PATH", path).env("GEMINI_API_KEY", "key");
    Served::of(command)
}

fn begin(server: &Served, asked: &Value) -> String {
    let answer = server.post("/v1/conversations", asked);
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.json()["SESSION_ID"].as_str().unwrap().to_string()
}

/// A client starts a conversation, sends two messages, and reads the turns back. `guard history` must show the same.
#[test]
fn client_starts_and_continues_a_conversation() {
    let environment = one_environment();
    let server = start(&environment);
    let id = begin(&server, &json!({ "cd": environment.directory, "title": "over http" }));
    let turns = format!("/v1/conversations/{id}/turns");
    for (number, message) in [(1, "hello"), (2, "again")] {
        let answer = server.post(&turns, &json!({ "message": message }));
        let result = answer.json();
        assert_eq!((answer.status, &result["success"]), (200, &json!(true)), "{result:#}");
        assert_eq!((&result["turn"]["number"], &result["SESSION_ID"]), (&json!(number), &json!(id)));
        assert_eq!(result["result"], format!("you said {message}"), "{result:#}");
    }
    let shown = server.get(&format!("/v1/conversations/{id}")).json();
    assert_eq!(
        (&shown["title"], &shown["turns"][1]["user"]),
        (&json!("over http"), &json!("again")),
        "{shown:#}"
    );
    let listed = server.get("/v1/conversations").json();
    assert_eq!(listed["conversations"][0]["id"], id, "{listed:#}");
    let mut command = environment.command(guard_program());
    command.args(["history", "show", &id, "--json"]);
    let printed: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    assert_eq!(printed["turns"].as_array().map(Vec::len), Some(2), "{printed:#}");
}

/// A client that accepts server-sent events must get each event at once, and the result as the last one.
#[test]
fn turn_is_streamed_as_server_sent_events() {
    let environment = one_environment();
    let server = start(&environment);
    let id = begin(&server, &json!({ "cd": environment.directory }));
    let client = server.with("Accept", "text/event-stream");
    let answer = client.post(&format!("/v1/conversations/{id}/turns"), &json!({ "message": "hello" }));
    assert_eq!(answer.header("content-type").as_deref(), Some("text/event-stream"));
    let text = answer.text();
    let events: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(events.iter().any(|event| event["event_type"] == "agent.message"), "{text}");
    let last = events.last().unwrap();
    assert_eq!(
        (&last["event_type"], &last["data"]["result"]),
        (&json!("exec.result"), &json!("you said hello"))
    );
}

/// A client sends requests that are forbidden or wrong. The server must answer with a JSON error and change nothing.
#[test]
fn invalid_conversation_requests_are_refused() {
    let environment = one_environment();
    let server = start(&environment);
    let nobody = server.client.without("Authorization");
    expect_error(&nobody.get("/v1/conversations"), 401, "unauthorized");
    for (asked, status, kind) in [
        (json!({ "cd": "/etc" }), 400, "bad_request"),
        (json!({ "cd": "relative" }), 400, "bad_request"),
        (json!({ "agent": "nobody" }), 400, "bad_request"),
        (json!({ "agent": "generic" }), 400, "bad_request"),
        (json!({ "command": ["id"] }), 400, "bad_request"),
        (json!([]), 400, "bad_request"),
    ] {
        expect_error(&server.post("/v1/conversations", &asked), status, kind);
    }
    let unknown = "/v1/conversations/0197f0a0-0000-7000-8000-000000000000";
    expect_error(&server.get(unknown), 404, "not_found");
    expect_error(&server.get("/v1/conversations/@"), 404, "not_found");
    expect_error(&server.post(&format!("{unknown}/turns"), &json!({ "message": "x" })), 404, "not_found");
    let id = begin(&server, &json!({ "cd": environment.directory }));
    let turns = format!("/v1/conversations/{id}/turns");
    for message in ["", " \n"] {
        expect_error(&server.post(&turns, &json!({ "message": message })), 400, "bad_request");
    }
    let long = "x".repeat((1 << 20) + 1);
    expect_error(&server.post(&turns, &json!({ "message": long })), 400, "bad_request");
    let shown = server.get(&format!("/v1/conversations/{id}")).json();
    assert_eq!(shown["turns"], json!([]));
}

/// While one client is in a turn, the server must refuse the message of another client and say why. When the first
/// client disconnects, the server must cancel its turn.
#[test]
fn second_client_is_refused_and_disconnect_cancels_the_turn() {
    let environment = one_environment();
    let server = start(&environment);
    let id = begin(&server, &json!({ "cd": environment.directory }));
    let turns = format!("/v1/conversations/{id}/turns");
    let client = server.with("Content-Type", "application/json");
    let waiting = client.send("POST", &turns, json!({ "message": "wait" }).to_string().as_bytes());
    let is_open = || {
        server.get(&format!("/v1/conversations/{id}")).json()["turns"][0]["state"]["name"] == "interrupted"
    };
    wait_until("the turn has begun", is_open);
    expect_error(&server.post(&turns, &json!({ "message": "second" })), 409, "busy");
    drop(waiting);
    wait_until("the turn is cancelled", || {
        server.get(&format!("/v1/conversations/{id}")).json()["turns"][0]["state"]["name"] == "cancelled"
    });
    // The server records the end of the turn a moment before it unlocks the conversation.
    let mut answer = server.post(&turns, &json!({ "message": "third" }));
    wait_until("the conversation is free", || {
        if answer.status == 409 {
            answer = server.post(&turns, &json!({ "message": "third" }));
        }
        answer.status != 409
    });
    assert_eq!(answer.json()["success"], true, "{}", answer.text());
}

/// The server is stopped during a turn. The turn must be recorded as cancelled.
#[test]
fn turn_of_a_stopped_server_is_recorded_as_cancelled() {
    let environment = one_environment();
    let mut server = start(&environment);
    let id = begin(&server, &json!({ "cd": environment.directory }));
    let turns = format!("/v1/conversations/{id}/turns");
    let client = server.with("Content-Type", "application/json");
    let waiting = client.send("POST", &turns, json!({ "message": "wait" }).to_string().as_bytes());
    let is_running = || {
        let shown = server.get(&format!("/v1/conversations/{id}")).json();
        shown["turns"].as_array().is_some_and(|turns| !turns.is_empty())
    };
    wait_until("the turn runs", is_running);
    std::thread::sleep(Duration::from_secs(2));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.exit_code(Duration::from_secs(30)), Some(0));
    drop(waiting);
    let mut command = environment.command(guard_program());
    command.args(["history", "show", &id, "--json"]);
    let printed: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    assert_eq!(printed["turns"][0]["state"]["name"], "cancelled", "{printed:#}");
}

/// A body that is larger than any command must be refused before it is parsed.
#[test]
fn too_large_command_body_is_refused() {
    let environment = one_environment();
    let server = start(&environment);
    let command = json!({ "command_type": "pause", "command_id": "c", "data": "x".repeat(500 << 10) });
    let answer = server.post("/v1/batches/batch_x/commands", &command);
    assert_eq!(answer.status, 413, "{}", answer.text());
}
