//! Starts `guard mcp` over pipes and over HTTP, for handwritten clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::agents;
use crate::egress::gemini::Gemini;
use crate::support::TestEnvironment;

/// The time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(180);

pub(super) fn hello() -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } } })
}

/// Returns a request that calls a tool.
pub(super) fn using(id: u64, tool: &str, arguments: &Value) -> Value {
    let params = json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": id } });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
}

/// A running `guard mcp` process that serves its standard input and output, and methods with which the test acts as
/// its client.
pub(super) struct Piped {
    pub(super) child: Child,
    pub(super) input: Option<ChildStdin>,
    lines: Receiver<Value>,
    errors: PathBuf,
}

impl Piped {
    pub(super) fn start(environment: &TestEnvironment, url: &str, gemini: &Gemini, options: &[&str]) -> Self {
        let mut command: Command = environment.guard_ignoring_signals("");
        command.args(["mcp", "--root"]).arg(&environment.directory).args(options);
        agents(&mut command, environment, gemini, url);
        Self::of(environment, command)
    }

    /// Starts a server with this command.
    pub(super) fn of(environment: &TestEnvironment, mut command: Command) -> Self {
        let errors = environment.temporary_directory().join("stderr");
        let stderr = std::fs::File::create(&errors).unwrap();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut client = Self { input: child.stdin.take(), child, lines, errors };
        client.send(&hello());
        assert_eq!(client.answer(1)["result"]["serverInfo"]["name"], "guard");
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        client
    }

    pub(super) fn send(&mut self, message: &Value) {
        self.write(message.to_string().as_bytes());
    }

    /// Writes a line, valid or not.
    pub(super) fn write(&mut self, line: &[u8]) {
        let input = self.input.as_mut().unwrap();
        input.write_all(line).and_then(|()| input.write_all(b"\n")).unwrap();
    }

    /// Returns what the server has written to standard error.
    pub(super) fn told(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap()
    }

    /// Returns the next line that the server writes.
    pub(super) fn line(&self) -> Value {
        self.lines.recv_timeout(PATIENCE).expect("an answer")
    }

    /// Returns the answer with this id, and skips the lines before it.
    pub(super) fn answer(&self, id: u64) -> Value {
        loop {
            let line = self.line();
            if line["id"] == id {
                return line;
            }
        }
    }

    /// Calls a tool. Returns its structured answer.
    pub(super) fn uses(&mut self, id: u64, tool: &str, arguments: &Value) -> Value {
        self.send(&using(id, tool, arguments));
        self.answer(id)["result"]["structuredContent"].clone()
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running `guard mcp` process that serves HTTP, and methods that act as its client.
pub(super) struct Served {
    child: Child,
    pub(super) url: String,
    /// The address of the server, as `127.0.0.1:PORT`.
    pub(super) address: String,
    pub(super) token_file: PathBuf,
    pub(super) token: String,
}

impl Served {
    pub(super) fn start(environment: &TestEnvironment, url: &str, gemini: &Gemini, options: &[&str]) -> Self {
        let mut command: Command = environment.guard_ignoring_signals("");
        command.args(["mcp", "--http", "--root"]).arg(&environment.directory).args(options);
        agents(&mut command, environment, gemini, url);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("it says where it listens: {line:?}"));
        let url = said["url"].as_str().unwrap().to_string();
        let address = url.strip_prefix("http://").unwrap().strip_suffix("/mcp").unwrap().to_string();
        let token_file = PathBuf::from(said["token_file"].as_str().unwrap());
        let token = std::fs::read_to_string(&token_file).unwrap().trim().to_string();
        Self { child, url, address, token_file, token }
    }

    /// Returns the settings with which the official client connects.
    pub(super) fn setting(&self, does: &str) -> Value {
        json!({ "url": self.url, "token": self.token, "does": does })
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Waits until the server ends. Returns true if it succeeded.
    pub(super) fn ended_well(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn is_there(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Connects to the server, with a time limit for answers.
    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Returns the headers of an authorized client.
    pub(super) fn headers(&self) -> Vec<(String, String)> {
        [
            ("Host", self.address.clone()),
            ("Authorization", format!("Bearer {}", self.token)),
            ("Accept", "application/json, text/event-stream".to_string()),
            ("Content-Type", "application/json".to_string()),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .to_vec()
    }

    /// Sends a request and reads the whole answer.
    pub(super) fn request(
        &self,
        method: &str,
        target: &str,
        headers: &[(String, String)],
        body: &[u8],
    ) -> Answer {
        let mut stream = self.connect();
        let mut text =
            format!("{method} {target} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        // The server may refuse the request and close the connection before the test has sent the body.
        let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.write_all(body));
        Answer::read(stream)
    }

    /// Sends a message as an authorized client.
    pub(super) fn post(&self, session: Option<&str>, message: &Value) -> Answer {
        let mut headers = self.headers();
        headers.extend(session.map(|id| ("Mcp-Session-Id".to_string(), id.to_string())));
        self.request("POST", "/mcp", &headers, message.to_string().as_bytes())
    }

    /// Starts a session. Returns its id.
    pub(super) fn session(&self) -> String {
        let answer = self.post(None, &hello());
        assert_eq!(answer.status, 200, "{}", answer.text);
        let id = answer.header("mcp-session-id").unwrap();
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(self.post(Some(&id), &initialized).status, 202);
        id
    }

    /// Calls a tool in a session. Returns its structured answer.
    pub(super) fn uses(&self, session: &str, tool: &str, arguments: &Value) -> Value {
        let answer = self.post(Some(session), &using(7, tool, arguments));
        let found = answer.messages().into_iter().find(|message| message["id"] == 7);
        found.unwrap_or_else(|| panic!("{}", answer.text))["result"]["structuredContent"].clone()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An HTTP response.
#[derive(Debug)]
pub(super) struct Answer {
    /// The status code; 0 if there was no response.
    pub(super) status: u16,
    pub(super) text: String,
}

impl Answer {
    pub(super) fn read(mut stream: TcpStream) -> Self {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let status = text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
        Self { status, text }
    }

    pub(super) fn header(&self, name: &str) -> Option<String> {
        let lines = self.text.split("\r\n\r\n").next()?.lines();
        let mut found = lines.filter_map(|line| line.split_once(": "));
        found.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_string())
    }

    /// Returns the messages of the event stream.
    pub(super) fn messages(&self) -> Vec<Value> {
        let lines = self.text.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}
