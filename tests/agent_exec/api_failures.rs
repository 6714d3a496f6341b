//! Whatever the CLI or its API does, `guard exec` must return exactly one result with the right error kind.

use std::time::Duration;

use serde_json::{Value, json};

use super::{exec, exec_with, request};
use crate::egress::gemini::Gemini;
use crate::support::scripted_api::{Api, Part, Turn};
use crate::support::{ProgramLinks, one_environment};

fn failing(status: u16, reason: &str, message: &str) -> Turn {
    Turn::Fails(status, json!({ "error": { "code": status, "message": message, "status": reason } }))
}

// slow
#[test]
fn each_api_error_has_its_error_kind() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let cases: Vec<(Turn, &str)> = vec![
        (failing(400, "INVALID_ARGUMENT", "Bad request"), "invalid_input"),
        (failing(401, "UNAUTHENTICATED", "API keys are not supported"), "auth_error"),
        (failing(403, "PERMISSION_DENIED", "No access"), "auth_error"),
        (failing(404, "NOT_FOUND", "models/x is not found for API version v1beta"), "invalid_input"),
        (Turn::quota(), "rate_limited"),
        (failing(500, "INTERNAL", "Internal error"), "upstream_error"),
        (failing(503, "UNAVAILABLE", "Overloaded"), "upstream_error"),
        (Turn::Cut(vec![Part::Text("Well".to_string())]), "upstream_error"),
    ];
    for (turn, kind) in cases {
        let api = Api::plain(vec![turn.clone()]);
        let asked = request(&gemini, &environment, "hello", &json!({ "max_retries": 0, "in_place": true }));
        let answered = exec(&environment, &api.server.url(""), &asked);
        assert_eq!(
            (answered.kind(), &answered.result["success"]),
            (kind, &json!(false)),
            "{turn:?}: {}",
            answered.shown()
        );
        let detail = &answered.result["error_detail"];
        assert!(detail["message"].as_str().is_some_and(|text| !text.is_empty()), "{}", answered.shown());
        assert!(
            detail["last_lines"].as_array().is_some_and(|lines| lines.len() <= 20),
            "{}",
            answered.shown()
        );
        assert_eq!(
            (&detail["idle_timeout_s"], &detail["max_duration_s"], &detail["retries"]),
            (&json!(300), &json!(1800), &json!(0))
        );
    }
}

// slow
#[test]
fn temporary_api_failure_is_retried() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let api = Api::plain(vec![failing(503, "UNAVAILABLE", "Overloaded"), Turn::text("Here I am.")]);
    let asked = request(&gemini, &environment, "hello", &json!({ "in_place": true }));
    let answered = exec(&environment, &api.server.url(""), &asked);
    assert_eq!(answered.result["success"], true, "{}", answered.shown());
    assert_eq!(answered.result["result"], "Here I am.");
    let attempts = answered.result["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 2, "{}", answered.shown());
    assert_eq!(attempts[0]["error_kind"], "upstream_error");
    assert!(answered.events.iter().any(|event| event["event_type"] == "exec.retry"));
}

// slow
#[test]
fn silent_api_ends_the_request_at_the_idle_limit() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let api = Api::plain(vec![Turn::Silent(vec![Part::Text("Well".to_string())])]);
    let more = json!({ "max_retries": 0, "in_place": true, "timeout": 6 });
    let answered = exec(&environment, &api.server.url(""), &request(&gemini, &environment, "hello", &more));
    assert_eq!((answered.code, answered.kind()), (124, "idle_timeout"), "{}", answered.shown());
    assert_eq!(answered.result["error_detail"]["idle_timeout_s"], 6);
}

/// guard must reject an invalid request or an agent that is not installed at once, and must not retry it.
#[test]
fn invalid_requests_and_missing_agents_are_rejected_without_retry() {
    let environment = one_environment();
    let cases: Vec<(Value, i32, &str)> = vec![
        (json!({ "prompt": "", "cd": environment.directory }), 2, "invalid_input"),
        (json!({ "prompt": "x\u{0}y", "cd": environment.directory }), 2, "invalid_input"),
        (json!({ "prompt": "x".repeat(1 << 20), "cd": environment.directory }), 2, "invalid_input"),
        (json!({ "prompt": "x", "cd": "relative" }), 2, "invalid_input"),
        (json!({ "prompt": "x", "cd": "/no/such/folder" }), 2, "invalid_input"),
        (json!({ "prompt": "x", "cd": environment.directory, "agent": "nobody" }), 2, "invalid_input"),
        (json!({ "prompt": "x", "cd": environment.directory, "timeout": 0 }), 2, "invalid_input"),
        (json!({ "prompt": "x", "cd": environment.directory, "command": ["bash"] }), 2, "invalid_input"),
        (json!({ "cd": environment.directory, "agent": "generic" }), 2, "invalid_input"),
        (
            json!({ "cd": environment.directory, "command": ["gemini"], "agent": "gemini" }),
            2,
            "invalid_input",
        ),
        (json!({ "prompt": "x", "cd": environment.directory, "model": "--debug" }), 2, "invalid_input"),
        (
            json!({ "prompt": "x", "cd": environment.directory, "agent": "codex", "output_format": "json" }),
            2,
            "invalid_input",
        ),
        (
            json!({ "prompt": "x", "cd": environment.directory, "command": ["/no/such/gemini"], "in_place": true }),
            127,
            "command_not_found",
        ),
        (
            json!({ "prompt": "x", "cd": environment.directory, "agent": "claude", "in_place": true }),
            127,
            "command_not_found",
        ),
        // Without a prompt, guard runs `gemini` as an ordinary command, not as an agent.
        (
            json!({ "cd": environment.directory, "command": ["/no/such/gemini"], "in_place": true }),
            127,
            "command_not_found",
        ),
    ];
    // An agent of this machine must not be found.
    let programs = ProgramLinks::new(&["bash", "env", "git", "sh"]);
    let variables = [("PATH", programs.path()), ("GEMINI_API_KEY", "the-key")];
    for (asked, code, kind) in cases {
        let answered = exec_with(&environment, &variables, &asked);
        assert_eq!((answered.code, answered.kind()), (code, kind), "{}", answered.shown());
        assert!(
            answered.result["attempts"].as_array().is_some_and(|all| all.len() <= 1),
            "{}",
            answered.shown()
        );
    }
}

/// `guard exec` must run a command for which it has no adapter, and must return its output and exit code.
#[test]
fn command_without_adapter_returns_its_output_and_exit_code() {
    let environment = one_environment();
    let asked = json!({ "command": ["sh", "-c", "echo out; echo err >&2; exit 3"], "cd": environment.directory, "in_place": true, "max_retries": 0 });
    let answered = exec(&environment, "http://127.0.0.1:1", &asked);
    assert_eq!(
        (answered.code, answered.kind(), &answered.result["exit_code"]),
        (1, "upstream_error", &json!(3)),
        "{}",
        answered.shown()
    );
    assert_eq!(answered.result["result"], "out\n");
    assert_eq!(answered.result["tool"], "sh");
}

/// While one request uses a session, guard must reject a second request for the same session, and the first request
/// must succeed.
// slow
#[test]
fn second_request_in_a_busy_session_is_rejected() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let slow = Turn::Slow(Duration::from_secs(8), vec![Part::Text("Done at last.".to_string())]);
    let api = Api::plain(vec![Turn::text("Hello."), slow]);
    let mut asked = request(&gemini, &environment, "hello", &json!({ "sandbox": "read-only" }));
    let first = exec(&environment, &api.server.url(""), &asked);
    assert_eq!(first.result["success"], true, "{}", first.shown());
    asked["SESSION_ID"] = first.result["SESSION_ID"].clone();
    std::thread::scope(|scope| {
        let long = scope.spawn(|| exec(&environment, &api.server.url(""), &asked));
        // The second request has begun when the API has received it.
        while api.questions().len() < 2 {
            assert!(!long.is_finished(), "it ended before it asked");
            std::thread::sleep(Duration::from_millis(20));
        }
        let busy = exec(&environment, &api.server.url(""), &asked);
        assert_eq!((busy.code, busy.kind()), (2, "session_busy"), "{}", busy.shown());
        assert_eq!(busy.result["attempts"], json!([]));
        let long = long.join().unwrap();
        assert_eq!(long.result["result"], "Done at last.", "{}", long.shown());
    });
    assert_eq!(api.questions().len(), 2);
}

/// When the API fails after the agent changed a file, guard must keep that change and must not retry.
// slow
#[test]
fn api_failure_after_a_change_keeps_the_work_and_is_not_retried() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let turns = vec![
        Turn::shell("echo once >> made"),
        failing(503, "UNAVAILABLE", "Overloaded"),
        Turn::text("This is never asked for."),
    ];
    let api = Api::plain(turns);
    let asked = request(&gemini, &environment, "hello", &json!({ "in_place": true, "max_retries": 3 }));
    let answered = exec(&environment, &api.server.url(""), &asked);
    assert_eq!(answered.kind(), "upstream_error", "{}", answered.shown());
    assert_eq!(answered.result["attempts"].as_array().map(Vec::len), Some(1), "{}", answered.shown());
    let why = answered.result["error_detail"]["not_retried"].as_str().unwrap_or_default();
    assert!(why.contains("left work behind (1 changed file)"), "{}", answered.shown());
    assert_eq!(std::fs::read_to_string(environment.directory.join("made")).unwrap(), "once\n");
}
