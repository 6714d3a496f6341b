// slow
//! Tests `guard mcp` over standard input and output. It has one client, and everything must end with that client.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::server::{Piped, hello, using};
use super::{agents, client, hold_to_schema, is_running, python, sound, tour};
use crate::egress::gemini::Gemini;
use crate::support::scripted_api::{Api, Part, Turn};
use crate::support::{TestEnvironment, one_environment, wait_until};

fn silence() -> Turn {
    Turn::Silent(vec![Part::Text("Well".to_string())])
}

fn ask(environment: &TestEnvironment) -> Value {
    json!({ "PROMPT": "hello", "cd": environment.directory, "sandbox": "read-only", "model": "gemini-2.5-flash" })
}

#[test]
fn official_client_works_over_stdio() {
    let (Some(gemini), Some(python)) = (Gemini::installed(), python()) else { return };
    let environment = one_environment();
    let api = Api::plain(vec![Turn::text("The word is plum."), Turn::text("It was plum.")]);
    let outcome = environment.run_to_end(
        client(&environment, &python, &gemini, &api.server.url(""), &json!({ "does": "tour" })),
        b"",
    );
    tour(&outcome);
    assert_eq!(outcome.result["version"], "2026-07-28");
    assert!(api.questions()[1].json().to_string().contains("The word is plum."));
}

#[test]
fn official_client_cancels_a_call() {
    let (Some(gemini), Some(python)) = (Gemini::installed(), python()) else { return };
    let environment = one_environment();
    let api = Api::plain(vec![silence()]);
    let mut command =
        client(&environment, &python, &gemini, &api.server.url(""), &json!({ "does": "cancel" }));
    let started = Instant::now();
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let input = child.stdin.take();
    wait_until("the agent asks", || api.questions().len() == 1);
    assert!(is_running(&environment));
    drop(input);
    let outcome = environment.collect_outcome(child, started);
    let seen = sound(&outcome);
    assert_eq!(seen["report"]["result"]["error_kind"], "cancelled", "{seen:#}");
    hold_to_schema(&seen["tools"], "guard_report", &seen["report"]);
    assert!(!is_running(&environment));
}

#[test]
fn concurrent_stdio_calls_are_limited() {
    let (Some(gemini), Some(python)) = (Gemini::installed(), python()) else { return };
    let environment = one_environment();
    let slow = || Turn::Slow(Duration::from_secs(3), vec![Part::Text("Here.".to_string())]);
    let api = Api::plain(vec![slow(), slow(), slow(), slow()]);
    let arguments = json!(["mcp", "--max-calls", "2", "--root", environment.directory]);
    let setting = json!({ "does": "several", "count": 3, "arguments": arguments });
    let outcome =
        environment.run_to_end(client(&environment, &python, &gemini, &api.server.url(""), &setting), b"");
    let seen = sound(&outcome);
    assert_eq!(seen["kinds"], json!(["None", "None", "busy"]), "{seen:#}");
}

#[test]
fn no_process_is_left_when_the_official_client_goes_away() {
    let (Some(gemini), Some(python)) = (Gemini::installed(), python()) else { return };
    let environment = one_environment();
    let api = Api::plain(vec![silence()]);
    let mut command =
        client(&environment, &python, &gemini, &api.server.url(""), &json!({ "does": "leave" }));
    let started = Instant::now();
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let input = child.stdin.take();
    wait_until("the agent asks", || api.questions().len() == 1);
    assert!(is_running(&environment));
    drop(input);
    let outcome = environment.collect_outcome(child, started);
    assert!(outcome.result["call"].is_string(), "{outcome}");
    wait_until("the run ends", || !is_running(&environment));
}

#[test]
fn long_call_reports_progress_and_usage() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let api = Api::plain(vec![Turn::Slow(Duration::from_secs(22), vec![Part::Text("At last.".to_string())])]);
    let mut client = Piped::start(&environment, &api.server.url(""), &gemini, &[]);
    let mut asked = ask(&environment);
    asked["log_metrics"] = json!(true);
    client.send(&using(2, "gemini", &asked));
    let (mut last, mut count, mut latest) = (Instant::now(), 0, 0.0);
    let answer = loop {
        let line = client.line();
        if line["id"] == 2 {
            break line;
        }
        assert_eq!(
            (&line["method"], &line["params"]["progressToken"]),
            (&json!("notifications/progress"), &json!(2))
        );
        let progress = line["params"]["progress"].as_f64().unwrap();
        assert!(
            progress > latest && last.elapsed() < Duration::from_secs(15),
            "after {:?}: {line}",
            last.elapsed()
        );
        (last, count, latest) = (Instant::now(), count + 1, progress);
    };
    assert_eq!(answer["result"]["structuredContent"]["result"], "At last.");
    assert!(count >= 3 && last.elapsed() < Duration::from_secs(15), "{count} times");
    let told = client.told();
    assert!(told.contains("guard: metrics: ") && told.contains("\"input_tokens\":100"), "{told}");
    // A call without a progress token must get no progress messages, and guard must log no metrics that were not
    // requested.
    client.send(&json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": { "name": "gemini", "arguments": { "PROMPT": "x", "cd": "/" } } }));
    assert_eq!(client.line()["id"], 3);
    assert_eq!(client.told(), told);
}

#[test]
fn cancelled_call_ends_its_run() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let api = Api::plain(vec![silence(), Turn::text("Here.")]);
    let mut client = Piped::start(&environment, &api.server.url(""), &gemini, &[]);
    client.send(&using(2, "gemini", &ask(&environment)));
    wait_until("the agent asks", || api.questions().len() == 1);
    assert!(is_running(&environment));
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 2, "reason": "enough" } }));
    wait_until("the run ends", || !is_running(&environment));
    // The server must continue, and handle several calls at once.
    client.send(&using(3, "gemini", &ask(&environment)));
    client.send(&using(4, "gemini", &json!({ "PROMPT": "x", "cd": "/etc" })));
    assert_eq!(client.answer(4)["result"]["structuredContent"]["error_kind"], "invalid_input");
    assert_eq!(client.answer(3)["result"]["structuredContent"]["result"], "Here.");
}

#[test]
fn result_is_kept_for_a_client_that_stopped_waiting() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let api = Api::plain(vec![Turn::Slow(Duration::from_secs(2), vec![Part::Text("Late.".to_string())])]);
    let mut client = Piped::start(&environment, &api.server.url(""), &gemini, &[]);
    client.send(&using(2, "gemini", &ask(&environment)));
    // The client takes the call id from the first progress message, and makes another call meanwhile.
    let told = client.line()["params"]["message"].as_str().unwrap().to_string();
    let id = told.rsplit("(call ").next().unwrap().trim_end_matches(')').to_string();
    let report = client.uses(3, "guard_report", &json!({ "id": id }));
    assert_eq!((&report["status"], &report["kind"]), (&json!("running"), &json!("call")), "{report:#}");
    assert_eq!(client.answer(2)["result"]["structuredContent"]["result"], "Late.");
    let report = client.uses(4, "guard_report", &json!({ "id": id }));
    assert_eq!((&report["status"], &report["result"]["result"]), (&json!("done"), &json!("Late.")));
    drop(client);
    // A later server process must report the same result.
    let mut client = Piped::start(&environment, &api.server.url(""), &gemini, &[]);
    assert_eq!(client.uses(2, "guard_report", &json!({ "id": id })), report);
    let listed = client.uses(3, "guard_report", &json!({}));
    assert_eq!(listed["calls"][0]["call_id"], id, "{listed:#}");
    // Other users must not be able to read the stored result.
    let folder = environment.runs_directory().with_file_name("calls");
    let modes = environment.run_outside(&format!("stat -c %a {0} {0}/*", folder.display()));
    assert_eq!(modes, "700\n600\n");
}

#[test]
fn no_process_is_left_when_the_client_goes_away() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let api = Api::plain(vec![silence()]);
    let mut client = Piped::start(&environment, &api.server.url(""), &gemini, &[]);
    client.send(&using(2, "gemini", &ask(&environment)));
    wait_until("the agent asks", || api.questions().len() == 1);
    drop(client.input.take());
    wait_until("the server ends", || client.child.try_wait().unwrap().is_some());
    assert!(!is_running(&environment));
    assert!(client.child.wait().unwrap().success());
}

#[test]
fn no_process_is_left_when_the_server_is_killed() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let api = Api::plain(vec![silence(), Turn::text("again")]);
    let mut client = Piped::start(&environment, &api.server.url(""), &gemini, &[]);
    client.send(&using(2, "gemini", &ask(&environment)));
    wait_until("the agent asks", || api.questions().len() == 1);
    drop(client);
    wait_until("the run ends", || !is_running(&environment));
    // The next server process must report that the call was broken off.
    let mut client = Piped::start(&environment, &api.server.url(""), &gemini, &[]);
    let listed = client.uses(2, "guard_report", &json!({}));
    assert_eq!(listed["calls"][0]["status"], "broken_off", "{listed:#}");
    let cancelled = client.uses(3, "guard_cancel", &json!({ "id": listed["calls"][0]["call_id"] }));
    assert_eq!(cancelled["status"], "done", "{cancelled:#}");
}

/// A client must be able to read how to write a good request: in the instructions of the server, in the tool's
/// description, and as a prompt template.
#[test]
fn server_explains_how_to_write_a_good_request() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let mut client = Piped::start(&environment, "http://127.0.0.1:1", &gemini, &[]);
    client.send(&hello());
    let instructions = client.answer(1)["result"]["instructions"].clone();
    client.send(&json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" }));
    let description = client.answer(2)["result"]["tools"][0]["description"].clone();
    for text in [instructions, description] {
        let text = text.as_str().unwrap();
        for words in
            ["ai/contracts/current.md", "plainly violates the contract", "smallest, safest", "Assumption"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
    client.send(&json!({ "jsonrpc": "2.0", "id": 3, "method": "prompts/list" }));
    let prompts = client.answer(3)["result"]["prompts"].clone();
    assert_eq!(prompts[0]["name"], "gemini_request", "{prompts:#}");
    let get = |id: u64, arguments: Value| {
        let params = json!({ "name": "gemini_request", "arguments": arguments });
        json!({ "jsonrpc": "2.0", "id": id, "method": "prompts/get", "params": params })
    };
    client.send(&get(4, json!({ "task_type": "advice", "tasks": "1. Which database?" })));
    let answer = client.answer(4)["result"].clone();
    let text = answer["messages"][0]["content"]["text"].as_str().unwrap();
    assert!(text.contains("**Task type**: advice") && text.contains("1. Which database?"), "{text}");
    client.send(&get(5, json!({ "task_type": "advice" })));
    let problem = client.answer(5)["error"]["message"].clone();
    assert!(problem.as_str().unwrap().contains("`tasks`"), "{problem}");
}

/// If the API key is missing, the answer must say so at once with its error kind, and guard must not retry.
#[test]
fn missing_api_key_is_reported_and_not_retried() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let mut command = environment.guard_ignoring_signals("");
    command.args(["mcp", "--root"]).arg(&environment.directory);
    agents(&mut command, &environment, &gemini, "http://127.0.0.1:1");
    command.env_remove("GEMINI_API_KEY");
    let mut client = Piped::of(&environment, command);
    let mut asked = ask(&environment);
    asked["max_retries"] = json!(3);
    asked["timeout"] = json!(77);
    let answer = client.uses(2, "gemini", &asked);
    assert_eq!(
        (&answer["success"], &answer["error_kind"]),
        (&json!(false), &json!("auth_error")),
        "{answer:#}"
    );
    assert!(answer["error"].as_str().unwrap().contains("GEMINI_API_KEY"), "{answer:#}");
    assert_eq!(answer["attempts"].as_array().map(Vec::len), Some(1), "{answer:#}");
    let detail = &answer["error_detail"];
    assert_eq!((&detail["retries"], &detail["idle_timeout_s"]), (&json!(0), &json!(77)), "{answer:#}");
    // A call that guard rejects at once must report its limits too.
    asked["cd"] = json!("/nonexistent");
    let answer = client.uses(3, "gemini", &asked);
    assert_eq!(answer["error_detail"]["idle_timeout_s"], 77, "{answer:#}");
}

#[test]
fn invalid_messages_get_error_answers() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let mut client = Piped::start(&environment, "http://127.0.0.1:1", &gemini, &[]);
    client.send(&using(2, "nobody", &json!({})));
    assert!(client.answer(2)["error"]["message"].as_str().is_some_and(|text| text.contains("nobody")));
    client.send(&json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/list" }));
    let tools = client.answer(3)["result"]["tools"].clone();
    assert_eq!(tools.as_array().map(Vec::len), Some(8));
    // Input that is not JSON, is incomplete, or contains an invalid character (a lone surrogate) must get no answer,
    // and must not end the server.
    client.write(b"\xff\xfe garbage");
    client.write(br#"{"jsonrpc": "2.0", "id": 4, "method""#);
    client.write(br#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"gemini","arguments":{"PROMPT":"x","cd":"/\ud800"}}}"#);
    client.write(&b"[".repeat(100_000));
    client.write(
        &[br#"{"jsonrpc": "2.0", "id": 6, "x": ""#.as_slice(), &b"y".repeat(20 << 20), br#""}"#].concat(),
    );
    client.write(br#"{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "gemini", "arguments": [1]}}"#);
    for (id, arguments) in [
        (10, json!({ "PROMPT": "x", "cd": "/\u{fffd}" })),
        (11, json!({ "PROMPT": "x", "cd": format!("{}/\u{0}", environment.directory.display()) })),
        (12, json!({ "PROMPT": "x", "cd": "." })),
        (13, json!({ "PROMPT": "x", "cd": environment.directory, "model": "--yolo" })),
        (14, json!({ "PROMPT": "x".repeat(12 << 20), "cd": environment.directory })),
    ] {
        let answer = client.uses(id, "gemini", &arguments);
        assert_eq!(
            (&answer["success"], &answer["error_kind"]),
            (&json!(false), &json!("invalid_input")),
            "{id}: {answer:#}"
        );
        hold_to_schema(&tools, "gemini", &answer);
    }
    // A client must not be able to read a file by naming it as a policy.
    let answer = client.uses(20, "guard_check", &json!({ "command": ["ls"], "policy": "/etc/passwd" }));
    assert!(
        answer["error"].as_str().is_some_and(|error| error.contains("policy") && !error.contains("root:")),
        "{answer:#}"
    );
    // A client must not be able to name a run by a path.
    for id in ["/etc", "../runs", "", "*", "0", "."] {
        assert_eq!(
            client.uses(21, "guard_report", &json!({ "id": id }))["error_kind"],
            "invalid_input",
            "{id}"
        );
    }
}
