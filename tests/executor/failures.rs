//! Whatever the CLI or its API does, there is one result with its kind.

use serde_json::{Value, json};

use super::{exec, request};
use crate::egress::api::{Api, Part, Turn};
use crate::egress::gemini::Gemini;
use crate::launch::world::one_world;

fn failing(status: u16, reason: &str, message: &str) -> Turn {
    Turn::Fails(status, json!({ "error": { "code": status, "message": message, "status": reason } }))
}

#[test]
fn answers_of_the_api() {
    let Some(gemini) = Gemini::installed() else { return };
    let world = one_world();
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
        let asked = request(&gemini, &world, "hello", &json!({ "max_retries": 0, "in_place": true }));
        let answered = exec(&world, &api.server.url(""), &asked);
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

#[test]
fn a_failure_that_passes_is_tried_again() {
    let Some(gemini) = Gemini::installed() else { return };
    let world = one_world();
    let api = Api::plain(vec![failing(503, "UNAVAILABLE", "Overloaded"), Turn::text("Here I am.")]);
    let asked = request(&gemini, &world, "hello", &json!({ "in_place": true }));
    let answered = exec(&world, &api.server.url(""), &asked);
    assert_eq!(answered.result["success"], true, "{}", answered.shown());
    assert_eq!(answered.result["result"], "Here I am.");
    let attempts = answered.result["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 2, "{}", answered.shown());
    assert_eq!(attempts[0]["error_kind"], "upstream_error");
    assert!(answered.events.iter().any(|event| event["event_type"] == "exec.retry"));
}

#[test]
fn silence_ends_it() {
    let Some(gemini) = Gemini::installed() else { return };
    let world = one_world();
    let api = Api::plain(vec![Turn::Silent(vec![Part::Text("Well".to_string())])]);
    let more = json!({ "max_retries": 0, "in_place": true, "timeout": 6 });
    let answered = exec(&world, &api.server.url(""), &request(&gemini, &world, "hello", &more));
    assert_eq!((answered.code, answered.kind()), (124, "idle_timeout"), "{}", answered.shown());
    assert_eq!(answered.result["error_detail"]["idle_timeout_s"], 6);
}

/// Requests that cannot be run, and agents that are not there: at once, and never tried again.
#[test]
fn bad_requests() {
    let world = one_world();
    let cases: Vec<(Value, i32, &str)> = vec![
        (json!({ "prompt": "", "cd": world.folder }), 2, "invalid_input"),
        (json!({ "prompt": "x\u{0}y", "cd": world.folder }), 2, "invalid_input"),
        (json!({ "prompt": "x".repeat(1 << 20), "cd": world.folder }), 2, "invalid_input"),
        (json!({ "prompt": "x", "cd": "relative" }), 2, "invalid_input"),
        (json!({ "prompt": "x", "cd": "/no/such/folder" }), 2, "invalid_input"),
        (json!({ "prompt": "x", "cd": world.folder, "agent": "nobody" }), 2, "invalid_input"),
        (json!({ "prompt": "x", "cd": world.folder, "timeout": 0 }), 2, "invalid_input"),
        (
            json!({ "prompt": "x", "cd": world.folder, "agent": "gemini", "command": ["/no/such/gemini"], "in_place": true }),
            127,
            "command_not_found",
        ),
    ];
    for (asked, code, kind) in cases {
        let answered = exec(&world, "http://127.0.0.1:1", &asked);
        assert_eq!((answered.code, answered.kind()), (code, kind), "{}", answered.shown());
        assert!(
            answered.result["attempts"].as_array().is_some_and(|all| all.len() <= 1),
            "{}",
            answered.shown()
        );
    }
}

/// Any command, without an adapter.
#[test]
fn a_command_is_just_run() {
    let world = one_world();
    let asked = json!({ "command": ["sh", "-c", "echo out; echo err >&2; exit 3"], "cd": world.folder, "in_place": true, "max_retries": 0 });
    let answered = exec(&world, "http://127.0.0.1:1", &asked);
    assert_eq!(
        (answered.code, answered.kind(), &answered.result["exit_code"]),
        (1, "upstream_error", &json!(3)),
        "{}",
        answered.shown()
    );
    assert_eq!(answered.result["result"], "out\n");
    assert_eq!(answered.result["tool"], "sh");
}

/// A CLI that lies, breaks off, or prints what is no JSON.
#[test]
fn a_cli_that_misbehaves() {
    let world = one_world();
    let init = r#"{"type":"init","session_id":"s"}"#;
    let done = r#"{"type":"result","status":"success","stats":{}}"#;
    let failed = r#"{"type":"result","status":"error","error":{"message":"no"}}"#;
    for (script, kind) in [
        (format!("echo '{init}'; echo '{failed}'"), "upstream_error"),
        (format!("echo '{init}'"), "upstream_error"),
        ("echo nonsense; echo '{broken'; exit 0".to_string(), "upstream_error"),
        ("exit 41".to_string(), "auth_error"),
        (format!("echo '{init}'; echo '{done}'; kill -9 $$"), "upstream_error"),
        ("echo 'API key not valid' >&2; exit 1".to_string(), "auth_error"),
        (format!("echo '{init}'; echo '{{\"type\":\"future\"}}'; echo '{done}'"), ""),
        (format!("head -c 20000000 /dev/zero | tr '\\0' x; echo; echo '{done}'"), ""),
    ] {
        let fake = world.folder.join("gemini");
        std::fs::write(&fake, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let asked = json!({ "prompt": "x", "agent": "gemini", "command": [fake], "cd": world.folder, "in_place": true, "max_retries": 0 });
        let answered = exec(&world, "http://127.0.0.1:1", &asked);
        assert_eq!(answered.kind(), kind, "{script}: {}", answered.shown());
        assert_eq!(answered.result["success"], json!(kind.is_empty()), "{script}: {}", answered.shown());
    }
}
