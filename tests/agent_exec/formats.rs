// slow
//! Runs the Gemini CLI with each of its three output formats. The result must be the same for all of them.

use serde_json::{Value, json};

use super::{exec, request};
use crate::egress::gemini::Gemini;
use crate::support::one_environment;
use crate::support::scripted_api::{Api, Part, Turn};

const FORMATS: [&str; 3] = ["stream-json", "json", "text"];

fn failing(status: u16, reason: &str, message: &str) -> Turn {
    Turn::Fails(status, json!({ "error": { "code": status, "message": message, "status": reason } }))
}

/// The answer must be only the text after the last tool call. The format `text` does not mark tool calls, so there the
/// answer is the agent's entire output.
#[test]
fn answer_is_extracted_in_every_output_format() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    for format in FORMATS {
        let talk = Part::Text("Let me look.".to_string());
        let call = Part::Call("run_shell_command", json!({"command": "echo looked", "description": "look"}));
        let api = Api::plain(vec![Turn::Says(vec![talk, call]), Turn::text("All is well.")]);
        let more = json!({ "output_format": format, "in_place": true, "return_metrics": true });
        let answered =
            exec(&environment, &api.server.url(""), &request(&gemini, &environment, "look", &more));
        let result = &answered.result;
        assert_eq!((answered.code, &result["success"]), (0, &json!(true)), "{format}: {}", answered.shown());
        let expected = if format == "text" { "Let me look.\nAll is well." } else { "All is well." };
        assert_eq!(result["result"], expected, "{format}: {}", answered.shown());
        assert_eq!(result["SESSION_ID"].as_str().map(str::len), Some(36), "{format}: {}", answered.shown());
        assert_eq!(api.questions().len(), 2, "{format}");
        assert_eq!(
            result["metrics"]["agent"].is_object(),
            format != "text",
            "{format}: {}",
            answered.shown()
        );
        let has = |kind: &str| answered.events.iter().any(|event| event["event_type"] == kind);
        assert!(has(if format == "text" { "agent.message" } else { "agent.result" }), "{format}");
        assert_eq!(has("agent.tool_use"), format == "stream-json", "{format}");
    }
}

/// A failure must have the same error kind in every format, although `json` reports the error in another field than the
/// answer, and the exit code in `text` is not specific. `api_failures` tests more failures with `stream-json`.
#[test]
fn failure_has_the_same_error_kind_in_every_output_format() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let cases: Vec<(Turn, &str, &str)> = vec![
        (failing(401, "UNAUTHENTICATED", "No such key"), "auth_error", "No such key"),
        (
            failing(404, "NOT_FOUND", "models/x is not found for API version v1beta"),
            "invalid_input",
            "models/x",
        ),
        (Turn::quota(), "rate_limited", "quota"),
        (failing(503, "UNAVAILABLE", "Overloaded"), "upstream_error", "Overloaded"),
        (Turn::Says(Vec::new()), "upstream_error", ""),
    ];
    for format in ["json", "text"] {
        for (turn, kind, words) in &cases {
            let api = Api::plain(vec![turn.clone()]);
            let more = json!({ "output_format": format, "in_place": true, "max_retries": 0 });
            let answered =
                exec(&environment, &api.server.url(""), &request(&gemini, &environment, "hello", &more));
            let shown = || format!("{format}, {turn:?}: {}", answered.shown());
            assert_eq!((answered.kind(), &answered.result["success"]), (*kind, &json!(false)), "{}", shown());
            let detail = &answered.result["error_detail"];
            assert!(detail["message"].as_str().is_some_and(|text| text.contains(words)), "{}", shown());
            let lines = detail["last_lines"].as_array().unwrap();
            assert!(!lines.is_empty() && lines.len() <= 20, "{}", shown());
        }
    }
}

/// A session continues in the format `json`, which prints the session id. guard must reject a session id with the
/// format `text`, which does not.
#[test]
fn session_id_is_rejected_with_text_format() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let api = Api::plain(vec![Turn::text("The word is plum."), Turn::text("It was plum.")]);
    let more = json!({ "output_format": "text", "sandbox": "read-only" });
    let mut asked = request(&gemini, &environment, "say a word", &more);
    let one = exec(&environment, &api.server.url(""), &asked);
    assert_eq!(one.result["success"], true, "{}", one.shown());
    asked["SESSION_ID"] = one.result["SESSION_ID"].clone();
    asked["prompt"] = json!("which word?");
    let refused = exec(&environment, &api.server.url(""), &asked);
    assert_eq!((refused.code, refused.kind()), (2, "invalid_input"), "{}", refused.shown());
    asked["output_format"] = json!("json");
    let two = exec(&environment, &api.server.url(""), &asked);
    assert_eq!(two.result["result"], "It was plum.", "{}", two.shown());
    assert_eq!(two.result["SESSION_ID"], one.result["SESSION_ID"]);
    let body = api.questions().pop().unwrap().json().to_string();
    assert!(body.contains("say a word") && body.contains("The word is plum."), "{body}");
}

/// A request that names the agent's program needs no `agent` field, and guard must translate short model names to those
/// of the API.
#[test]
fn agent_is_found_by_program_name_and_model_by_short_name() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    for (model, asked_for) in [
        (json!("gemini-3-pro"), "gemini-3-pro-preview"),
        (Value::Null, "gemini-3-pro-preview"),
        (json!("gemini-2.5-pro"), "gemini-2.5-pro"),
    ] {
        let api = Api::plain(vec![Turn::text("Yes.")]);
        let asked = json!({
            "command": [gemini.program()], "prompt": "hello", "cd": environment.directory, "in_place": true, "model": model,
        });
        let answered = exec(&environment, &api.server.url(""), &asked);
        assert_eq!(
            (&answered.result["result"], &answered.result["tool"]),
            (&json!("Yes."), &json!("gemini")),
            "{}",
            answered.shown()
        );
        // The event has the name that guard passed to the CLI. The API may use a newer model for that name.
        let init = answered.events.iter().find(|event| event["event_type"] == "agent.init").unwrap();
        assert_eq!(init["data"]["model"], asked_for, "{model}: {init}");
    }
}
