//! `guard mcp`: by the official client, and by hand where that client is too well-behaved.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::egress::api::{Api, Part, Turn};
use crate::egress::gemini::Gemini;
use crate::launch::world::{World, one_world, program};

/// Python with the official client, as `scripts/test` installs it.
fn python() -> Option<std::path::PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/mcp/bin/python");
    if !python.exists() {
        eprintln!("SKIP: the MCP client is not installed; scripts/test does it");
        return None;
    }
    Some(python)
}

#[test]
fn the_official_client_is_served() {
    let (Some(gemini), Some(python)) = (Gemini::installed(), python()) else { return };
    let world = one_world();
    let api = Api::plain(vec![Turn::text("The word is plum."), Turn::text("It was plum.")]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/client.py");
    let mut command = world.command(python);
    command.arg(script).arg(program()).arg(&world.folder).arg(gemini.program().parent().unwrap());
    command.env("GEMINI_API_KEY", "the-key").env("GOOGLE_GEMINI_BASE_URL", api.server.url(""));
    let ran = world.finish(command, b"");
    let seen = &ran.result;
    assert_eq!(ran.code, 0, "{}", ran.error);
    assert_eq!(seen["tools"], json!(["gemini", "guard_check", "guard_report"]));
    assert_eq!((&seen["check"]["decision"], &seen["check"]["rule"]), (&json!("deny"), &json!("git.remote")));
    assert_eq!(seen["first"]["result"], "The word is plum.", "{seen:#}");
    assert_eq!(seen["first"]["tool"], "gemini");
    assert_eq!(seen["second"]["result"], "It was plum.", "{seen:#}");
    assert_eq!(seen["second"]["SESSION_ID"], seen["first"]["SESSION_ID"]);
    assert!(seen["progress"].as_array().is_some_and(|all| !all.is_empty()), "{seen:#}");
    assert_eq!(seen["report"], seen["first"]);
    assert_eq!(seen["run"]["run_id"], seen["first"]["run_id"], "{seen:#}");
    assert!(seen["bad"].as_str().is_some_and(|text| text.contains("PROMPT")), "{seen:#}");
    assert!(api.questions()[1].json().to_string().contains("The word is plum."));
}

/// A client that speaks the protocol by hand.
struct Client {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
}

impl Client {
    fn start(world: &World, url: &str, gemini: &Gemini) -> Self {
        let mut command: Command = world.command(program());
        let path = format!("{}:{}", gemini.program().parent().unwrap().display(), world.person.path);
        command.args(["mcp", "--root"]).arg(&world.folder).env("PATH", path);
        command.env("GEMINI_API_KEY", "the-key").env("GOOGLE_GEMINI_BASE_URL", url);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut client = Self { input: child.stdin.take(), child, lines };
        client.send(&json!({ "id": 1, "method": "initialize", "params": { "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } } }));
        assert_eq!(client.answer(1)["result"]["serverInfo"]["name"], "guard");
        client.send(&json!({ "method": "notifications/initialized" }));
        client
    }

    fn send(&mut self, message: &Value) {
        let mut message = message.clone();
        message["jsonrpc"] = json!("2.0");
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    fn call(&mut self, id: u64, arguments: &Value) {
        self.send(&json!({ "id": id, "method": "tools/call", "params": { "name": "gemini", "arguments": arguments } }));
    }

    /// The answer of this id, whatever comes before it.
    fn answer(&self, id: u64) -> Value {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(60)).expect("an answer");
            if line["id"] == id {
                return line;
            }
        }
    }
}

/// Whether anything of the Gemini CLI runs in this world's folder.
fn is_running(world: &World) -> bool {
    let folder = world.folder.to_string_lossy().into_owned();
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

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(40), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_cancelled_call_ends_its_run() {
    let Some(gemini) = Gemini::installed() else { return };
    let world = one_world();
    let api = Api::plain(vec![Turn::Silent(vec![Part::Text("Well".to_string())]), Turn::text("Here.")]);
    let mut client = Client::start(&world, &api.server.url(""), &gemini);
    let ask =
        json!({ "PROMPT": "hello", "cd": world.folder, "sandbox": "read-only", "model": "gemini-2.5-flash" });
    client.call(2, &ask);
    until("the agent asks", || api.questions().len() == 1);
    assert!(is_running(&world));
    client.send(
        &json!({ "method": "notifications/cancelled", "params": { "requestId": 2, "reason": "enough" } }),
    );
    until("the run ends", || !is_running(&world));
    // The server goes on, with several at once.
    client.call(3, &ask);
    client.call(4, &json!({ "PROMPT": "x", "cd": "/etc" }));
    assert_eq!(client.answer(4)["result"]["structuredContent"]["error_kind"], "invalid_input");
    assert_eq!(client.answer(3)["result"]["structuredContent"]["result"], "Here.");
}

#[test]
fn nothing_is_left_when_the_client_goes_away() {
    let Some(gemini) = Gemini::installed() else { return };
    let world = one_world();
    let api = Api::plain(vec![Turn::Silent(vec![Part::Text("Well".to_string())])]);
    let mut client = Client::start(&world, &api.server.url(""), &gemini);
    client.call(2, &json!({ "PROMPT": "hello", "cd": world.folder, "sandbox": "read-only", "model": "gemini-2.5-flash" }));
    until("the agent asks", || api.questions().len() == 1);
    drop(client.input.take());
    until("the server ends", || matches!(client.child.try_wait(), Ok(Some(_))) || !is_running(&world));
    until("the run ends", || !is_running(&world));
    assert!(client.child.wait().unwrap().success());
}

#[test]
fn nonsense_is_answered() {
    let Some(gemini) = Gemini::installed() else { return };
    let world = one_world();
    let mut client = Client::start(&world, "http://127.0.0.1:1", &gemini);
    client.send(&json!({ "id": 2, "method": "tools/call", "params": { "name": "nobody", "arguments": {} } }));
    assert!(client.answer(2)["error"]["message"].as_str().is_some_and(|text| text.contains("nobody")));
    client.call(3, &json!({ "PROMPT": "x", "cd": world.folder, "surprise": 1 }));
    assert!(client.answer(3)["error"]["message"].as_str().is_some_and(|text| text.contains("surprise")));
    client.call(4, &json!({ "PROMPT": "x", "cd": world.folder, "timeout": "soon" }));
    assert!(client.answer(4)["error"].is_object());
    client.call(5, &json!({ "PROMPT": "", "cd": world.folder }));
    assert_eq!(client.answer(5)["result"]["isError"], true);
    client.send(&json!({ "id": 6, "method": "tools/list" }));
    assert_eq!(client.answer(6)["result"]["tools"].as_array().map(Vec::len), Some(3));
}
