//! Tests `guard serve` with a real server, over loopback and over a Unix socket.

mod access;
mod api;
mod commands;
mod conversations;
mod events;
mod examples;
mod limits;
mod restarts;
mod schemathesis;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::http_client::{HttpAddress, HttpAnswer, HttpClient};
use crate::support::{TestEnvironment, guard_program, holds_within};

/// A running `guard serve` process, with a client for it.
struct Served {
    child: Child,
    /// A client that sends the server's token.
    client: HttpClient,
    /// The file with the token; empty if the server listens on a Unix socket.
    token_file: PathBuf,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl std::ops::Deref for Served {
    type Target = HttpClient;

    fn deref(&self) -> &HttpClient {
        &self.client
    }
}

impl Served {
    /// Starts a server on a free port, for tasks in the directory of the environment.
    fn start(environment: &TestEnvironment, options: &[&str]) -> Self {
        let mut command = environment.guard_ignoring_signals("");
        command.arg("serve").args(options);
        if !options.contains(&"--socket") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        if !options.contains(&"--root") {
            command.arg("--root").arg(&environment.directory);
        }
        Self::of(command)
    }

    /// Starts a server with this command.
    fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        // A thread reads the server's later messages, so that a full pipe does not block the server.
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::stderr()));
        let place = line.strip_prefix("guard: the server listens on ").unwrap_or_else(|| panic!("{line}"));
        let mut words = place.split("; ");
        let place = words.next().unwrap();
        let token_file =
            words.next().and_then(|word| word.strip_prefix("the token is in ")).unwrap_or_default();
        let Some(address) = place.strip_prefix("http://") else {
            let client = HttpClient::new(HttpAddress::Socket(place.into()));
            return Self { child, client, token_file: PathBuf::new() };
        };
        let token = std::fs::read_to_string(token_file).unwrap();
        let client = HttpClient::new(HttpAddress::Loopback(address.to_string()))
            .with("Authorization", &format!("Bearer {}", token.trim()));
        Self { child, client, token_file: token_file.into() }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Returns the exit code of the server if it ends within this time.
    fn exit_code(&mut self, within: Duration) -> Option<i32> {
        let mut code = None;
        holds_within(within, || {
            code = self.child.try_wait().unwrap().and_then(|status| status.code());
            code.is_some()
        });
        code
    }

    /// Submits tasks, which the server must accept. Returns the response id.
    #[track_caller]
    fn submit(&self, tasks: &Value) -> String {
        let answer = self.post("/v1/batches", tasks);
        assert_eq!(answer.status, 202, "{}", answer.text());
        answer.json()["response_id"].as_str().unwrap().to_string()
    }

    /// Polls until the batch has ended. Returns the last response.
    #[track_caller]
    fn ended(&self, id: &str) -> Value {
        let started = Instant::now();
        loop {
            let answer = self.get(&format!("/v1/batches/{id}?wait=20"));
            let response = answer.json();
            if response["status"] != "pending" {
                return response;
            }
            assert!(started.elapsed() < Duration::from_secs(120), "{response:#}");
        }
    }
}

/// Runs a worker until the queue of the environment is empty.
fn work(environment: &TestEnvironment) {
    let mut command = environment.command(guard_program());
    command.args(["worker", "--until-idle"]);
    environment.run_to_end(command, b"").expect_code(0);
}

/// Returns a task that returns its parameters.
fn echo(id: &str) -> Value {
    json!({ "task_id": id, "type": "echo", "parameters": { "text": id } })
}

/// Returns a task that runs a shell command.
fn shell(id: &str, command: &str) -> Value {
    json!({ "task_id": id, "type": "execute_shell_command", "parameters": { "command": command } })
}

fn echoes(count: usize) -> Value {
    (0..count).map(|number| echo(&format!("t{number}"))).collect()
}

/// Fails unless the answer is a JSON error with this status and kind.
#[track_caller]
fn expect_error(answer: &HttpAnswer, status: u16, kind: &str) {
    assert_eq!(answer.status, status, "{}", answer.text());
    let body = answer.json();
    assert_eq!(body["error_kind"], kind, "{body:#}");
    assert!(body["error"].as_str().is_some_and(|text| text.len() > 10), "{body:#}");
    assert_eq!(answer.header("content-type").as_deref(), Some("application/json"));
}
