//! Tests `guard mcp` with official clients, and with handwritten messages that those would not send.

mod attacks;
mod batches;
mod control;
mod gemini_cli;
mod http;
mod inspector;
mod server;
mod stdio;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::egress::gemini::Gemini;
use crate::support::{RunOutcome, TestEnvironment, guard_program, skip};

/// Returns the Python interpreter with the official MCP client, which `scripts/setup` installs.
fn python() -> Option<PathBuf> {
    installed("mcp/bin/python", "the MCP client")
}

/// Returns a file below `target/tools`, or skips the test if it is not installed.
fn installed(path: &str, name: &str) -> Option<PathBuf> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools").join(path);
    if !file.exists() {
        skip(name, "it is not installed; scripts/setup installs it");
        return None;
    }
    Some(file)
}

/// Returns a command that runs the official client with this task.
fn client(
    environment: &TestEnvironment,
    python: &Path,
    gemini: &Gemini,
    url: &str,
    setting: &Value,
) -> std::process::Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/client.py");
    let mut all = json!({ "folder": environment.directory, "guard": guard_program(), "arguments": ["mcp", "--root", environment.directory] });
    all.as_object_mut().unwrap().extend(setting.as_object().unwrap().clone());
    let mut command = environment.command(python);
    command.arg(script).arg(all.to_string());
    agents(&mut command, environment, gemini, url);
    command
}

/// Sets the variables that a server needs to start the agent.
pub(crate) fn agents(
    command: &mut std::process::Command,
    environment: &TestEnvironment,
    gemini: &Gemini,
    url: &str,
) {
    let path = format!("{}:{}", gemini.program().parent().unwrap().display(), environment.user.path);
    command.env("PATH", path).env("GEMINI_API_KEY", "the-key").env("GOOGLE_GEMINI_BASE_URL", url);
}

/// Fails unless the structured answer matches the schema of the tool.
fn hold_to_schema(tools: &Value, tool: &str, structured: &Value) {
    let listed = tools.as_array().unwrap().iter().find(|listed| listed["name"] == tool);
    let schema = &listed.unwrap_or_else(|| panic!("{tool} is not listed"))["outputSchema"];
    assert!(
        schema["properties"].as_object().is_some_and(|properties| properties.len() > 2),
        "{tool}: {schema}"
    );
    let validator = jsonschema::validator_for(schema).unwrap();
    let problems: Vec<String> =
        validator.iter_errors(structured).map(|problem| problem.to_string()).collect();
    assert!(structured.is_object() && problems.is_empty(), "{tool}: {problems:?}\n{structured:#}");
    let properties = schema["properties"].as_object().unwrap();
    for name in structured.as_object().unwrap().keys() {
        assert!(properties.contains_key(name), "{tool}: `{name}` is not in its schema");
    }
}

/// Fails unless everything that the client received matches the schemas. Returns what it received.
fn sound(outcome: &RunOutcome) -> &Value {
    let seen = &outcome.result;
    assert_eq!(outcome.code, 0, "{}\n{}", outcome.error, String::from_utf8_lossy(&outcome.output));
    for answer in seen["answers"].as_array().unwrap() {
        let structured = &answer["structured"];
        hold_to_schema(&seen["tools"], answer["tool"].as_str().unwrap(), structured);
        assert_eq!(answer["is_error"], structured["success"] != true, "{answer:#}");
        let text: Value = serde_json::from_str(answer["texts"][0].as_str().unwrap()).unwrap();
        assert_eq!(text, *structured);
    }
    seen
}

/// Checks what the client received when it called all tools. The answers are the same over pipes and over HTTP.
fn tour(outcome: &RunOutcome) {
    let seen = sound(outcome);
    let names: Vec<&str> =
        seen["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    let own = ["gemini", "guard_check", "guard_report", "guard_cancel"];
    let batches = ["guard_batch_submit", "guard_batch_poll", "guard_batch_cancel"];
    assert_eq!(names, [&own[..], &batches, &["guard_control"]].concat());
    let answers: Vec<&Value> =
        seen["answers"].as_array().unwrap().iter().map(|answer| &answer["structured"]).collect();
    assert_eq!((&answers[0]["decision"], &answers[0]["rule"]), (&json!("deny"), &json!("git.remote")));
    let (first, second) = (answers[1], answers[2]);
    assert_eq!(
        (&first["success"], &first["tool"], &first["result"]),
        (&json!(true), &json!("gemini"), &json!("The word is plum."))
    );
    assert!(first["duration"].as_str().is_some_and(|text| text.contains('m') && text.ends_with('s')));
    assert!(
        first["metrics"].is_object() && first["all_messages"].as_array().is_some_and(|all| !all.is_empty()),
        "{first:#}"
    );
    assert!(second.get("metrics").is_none() && second.get("all_messages").is_none());
    assert_eq!((&second["result"], &second["SESSION_ID"]), (&json!("It was plum."), &first["SESSION_ID"]));
    let (by_call, by_run, listed, unknown) = (answers[3], answers[4], answers[5], answers[6]);
    assert_eq!(
        (&by_call["status"], &by_call["kind"], &by_call["result"]),
        (&json!("done"), &json!("call"), first)
    );
    assert_eq!((&by_run["status"], &by_run["kind"]), (&json!("done"), &json!("run")));
    assert_eq!(by_run["result"]["run_id"], first["run_id"]);
    assert_eq!(listed["calls"].as_array().map(Vec::len), Some(2), "{listed:#}");
    assert_eq!(listed["calls"][1]["call_id"], first["call_id"]);
    assert_eq!((&unknown["success"], &unknown["error_kind"]), (&json!(false), &json!("invalid_input")));
    assert_eq!(answers[7]["status"], "done");
    let wrong = ["PROMPT", "PROMPT", "timeout", "surprise", "cd", "timeout"];
    for (answer, name) in answers[8..14].iter().zip(wrong) {
        assert_eq!(
            (&answer["success"], &answer["error_kind"]),
            (&json!(false), &json!("invalid_input")),
            "{name}: {answer:#}"
        );
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(name)), "{name}: {answer:#}");
        assert!(answer["error_detail"]["message"].is_string() && answer["duration"] == "0m0s", "{answer:#}");
    }
    assert_eq!(answers[14]["error_kind"], "session_lost");
    for answer in &answers[15..18] {
        assert_eq!(
            (&answer["success"], &answer["error_kind"]),
            (&json!(false), &json!("invalid_input")),
            "{answer:#}"
        );
    }
    assert!(seen["unknown"].as_str().is_some_and(|text| text.contains("nobody")), "{seen:#}");
    assert!(seen["progress"].as_array().is_some_and(|all| !all.is_empty()), "{seen:#}");
}

/// Returns true if a process of the Gemini CLI runs in the directory of this environment.
fn is_running(environment: &TestEnvironment) -> bool {
    let folder = environment.directory.to_string_lossy().into_owned();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit())).any(
        |entry| {
            let cwd = std::fs::read_link(entry.path().join("cwd"))
                .map(|cwd| cwd.to_string_lossy().starts_with(&folder));
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            cwd.unwrap_or(false) && name.starts_with("node")
        },
    )
}
