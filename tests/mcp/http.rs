// slow
//! Tests `guard mcp` over HTTP with several clients, and with clients that reconnect.

use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::server::{Served, using};
use super::{client, hold_to_schema, is_running, python, sound, tour};
use crate::egress::gemini::Gemini;
use crate::support::scripted_api::{Api, Part, Turn};
use crate::support::{TestEnvironment, guard_program, one_environment, wait_until};

fn silence() -> Turn {
    Turn::Silent(vec![Part::Text("Well".to_string())])
}

fn slow(seconds: u64) -> Turn {
    Turn::Slow(Duration::from_secs(seconds), vec![Part::Text("Late.".to_string())])
}

fn ask(environment: &TestEnvironment) -> Value {
    json!({ "PROMPT": "hello", "cd": environment.directory, "sandbox": "read-only", "model": "gemini-2.5-flash" })
}

#[test]
fn official_client_works_over_http() {
    let (Some(gemini), Some(python)) = (Gemini::installed(), python()) else { return };
    let environment = one_environment();
    let api = Api::plain(vec![Turn::text("The word is plum."), Turn::text("It was plum.")]);
    let mut server = Served::start(&environment, &api.server.url(""), &gemini, &[]);
    let outcome =
        environment.run_to_end(client(&environment, &python, &gemini, "", &server.setting("tour")), b"");
    tour(&outcome);
    // The client must negotiate this version of the protocol. It is the newest one in which a broken connection does
    // not mean that the client cancels.
    assert_eq!(outcome.result["version"], "2025-11-25");
    assert!(api.questions()[1].json().to_string().contains("The word is plum."));
    server.signal(Signal::SIGTERM);
    assert!(server.ended_well());
}

#[test]
fn official_client_cancels_by_notification_and_by_tool() {
    let (Some(gemini), Some(python)) = (Gemini::installed(), python()) else { return };
    let environment = one_environment();
    let api = Api::plain(vec![silence(), silence()]);
    let server = Served::start(&environment, &api.server.url(""), &gemini, &[]);
    let mut command = client(&environment, &python, &gemini, "", &server.setting("cancel"));
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
    assert!(!is_running(&environment));
    let outcome = environment
        .run_to_end(client(&environment, &python, &gemini, "", &server.setting("cancel_by_tool")), b"");
    let seen = sound(&outcome);
    assert_eq!(
        (&seen["cancelled"]["status"], &seen["result"]["error_kind"]),
        (&json!("ended"), &json!("cancelled")),
        "{seen:#}"
    );
    assert!(!is_running(&environment));
}

#[test]
fn concurrent_http_calls_are_limited() {
    let (Some(gemini), Some(python)) = (Gemini::installed(), python()) else { return };
    let environment = one_environment();
    let api = Api::plain(vec![slow(3), slow(3), slow(3), slow(3)]);
    let server = Served::start(&environment, &api.server.url(""), &gemini, &["--max-calls", "2"]);
    let mut setting = server.setting("several");
    setting["count"] = json!(3);
    let outcome = environment.run_to_end(client(&environment, &python, &gemini, "", &setting), b"");
    assert_eq!(sound(&outcome)["kinds"], json!(["None", "None", "busy"]));
}

#[test]
fn disconnected_client_gets_its_result_later() {
    let (Some(gemini), Some(python)) = (Gemini::installed(), python()) else { return };
    let environment = one_environment();
    let api = Api::plain(vec![slow(4)]);
    let mut server = Served::start(&environment, &api.server.url(""), &gemini, &[]);
    let outcome =
        environment.run_to_end(client(&environment, &python, &gemini, "", &server.setting("leave")), b"");
    let call = outcome.result["call"].as_str().unwrap_or_else(|| panic!("{}", outcome.error)).to_string();
    let mut setting = server.setting("come_back");
    setting["call"] = json!(call);
    let outcome = environment.run_to_end(client(&environment, &python, &gemini, "", &setting), b"");
    let report = sound(&outcome)["report"].clone();
    assert_eq!(
        (&report["status"], &report["result"]["result"]),
        (&json!("done"), &json!("Late.")),
        "{report:#}"
    );
    hold_to_schema(&outcome.result["tools"], "guard_report", &report);
    // The next server process must report the same result.
    server.signal(Signal::SIGINT);
    assert!(server.ended_well());
    let server = Served::start(&environment, &api.server.url(""), &gemini, &[]);
    assert_eq!(server.uses(&server.session(), "guard_report", &json!({ "id": call })), report);
}

#[test]
fn ended_session_keeps_its_calls_and_a_stopped_server_ends_them() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let api = Api::plain(vec![silence(), silence()]);
    let mut server = Served::start(&environment, &api.server.url(""), &gemini, &[]);
    let session = server.session();
    let mut stream = server.connect();
    let body = using(2, "gemini", &ask(&environment)).to_string();
    let mut text =
        format!("POST /mcp HTTP/1.1\r\nMcp-Session-Id: {session}\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in server.headers() {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    std::io::Write::write_all(&mut stream, format!("{text}\r\n{body}").as_bytes()).unwrap();
    wait_until("the agent asks", || api.questions().len() == 1);
    drop(stream);
    let mut headers = server.headers();
    headers.push(("Mcp-Session-Id".to_string(), session.clone()));
    assert_eq!(server.request("DELETE", "/mcp", &headers, b"").status, 202);
    assert_eq!(server.post(Some(&session), &using(3, "guard_report", &json!({}))).status, 404);
    std::thread::sleep(Duration::from_secs(6));
    assert!(is_running(&environment), "the call goes on");
    let other = server.session();
    let listed = server.uses(&other, "guard_report", &json!({}));
    assert_eq!(listed["calls"][0]["status"], "running", "{listed:#}");
    let id = listed["calls"][0]["call_id"].clone();
    server.signal(Signal::SIGTERM);
    assert!(server.ended_well());
    assert!(!is_running(&environment));
    let server = Served::start(&environment, &api.server.url(""), &gemini, &[]);
    let report = server.uses(&server.session(), "guard_report", &json!({ "id": id }));
    assert_eq!(
        (&report["status"], &report["result"]["error_kind"]),
        (&json!("done"), &json!("cancelled")),
        "{report:#}"
    );
}

#[test]
fn server_refuses_other_addresses_and_open_token_files() {
    let environment = one_environment();
    let told = |options: &[&str]| {
        let mut command = environment.command(guard_program());
        command.args(["mcp", "--root"]).arg(&environment.directory).args(options);
        let outcome = environment.run_to_end(command, b"");
        assert_eq!(outcome.code, 2, "{options:?}: {outcome}");
        assert!(outcome.error.contains("hint:") || outcome.error.contains("error:"), "{outcome}");
        outcome.error
    };
    for address in ["0.0.0.0:0", "[::]:0", "10.0.0.1:80", "[::ffff:127.0.0.1]:0", "192.168.0.1:1"] {
        let error = told(&["--http", address]);
        assert!(
            error.contains(address) && error.contains("loopback") && error.contains("127.0.0.1:PORT"),
            "{error}"
        );
    }
    for address in ["127.0.0.1", "localhost", "example.org:80", "127.0.0.1:99999", ""] {
        assert!(told(&["--http", address]).contains("not an address"), "{address}");
    }
    let file = environment.temporary_directory().join("token");
    let path = file.to_str().unwrap();
    assert!(told(&["--http", "--token-file", path]).contains("cannot read the token file"));
    let secret = "0123456789abcdef0123456789abcdef";
    environment.run_outside(&format!("umask 022; printf %s {secret} > {path}"));
    assert!(told(&["--http", "--token-file", path]).contains("other users can access"));
    environment.run_outside(&format!("chmod 600 {path}; printf short > {path}"));
    assert!(told(&["--http", "--token-file", path]).contains("32"));
    assert!(told(&["--token-file", path]).contains("--http"));
    assert!(told(&["--max-calls", "0"]).contains("max-calls"));
    environment.run_outside(&format!("printf '%s\\n' {secret} > {path}"));
    let Some(gemini) = Gemini::installed() else { return };
    let server = Served::start(&environment, "", &gemini, &["--token-file", path]);
    assert_eq!(server.token, secret);
    let checked = server.uses(&server.session(), "guard_check", &json!({ "command": ["ls"] }));
    assert_eq!(checked["decision"], "allow", "{checked:#}");
}
