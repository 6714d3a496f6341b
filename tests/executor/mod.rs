//! Agents as functions: the real Gemini CLI by `guard exec`, with an API that says what a test wrote down.

mod asked;
mod failures;
mod faults;
mod formats;
mod quotas;
mod reading;
mod sessions;
mod steering;

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::egress::gemini::Gemini;
use crate::launch::world::{World, program};

/// What `guard exec` made of a request.
pub(crate) struct Answered {
    pub(crate) code: i32,
    pub(crate) events: Vec<Value>,
    pub(crate) result: Value,
    pub(crate) error: String,
}

impl Answered {
    pub(crate) fn kind(&self) -> &str {
        self.result["error_kind"].as_str().unwrap_or_default()
    }

    pub(crate) fn shown(&self) -> String {
        format!("{:#}\n{}", self.result, self.error)
    }
}

/// A request for the installed CLI.
pub(crate) fn request(gemini: &Gemini, world: &World, prompt: &str, more: &Value) -> Value {
    let mut request = json!({
        "agent": "gemini", "command": [gemini.program()], "prompt": prompt, "cd": world.folder, "model": "gemini-2.5-flash",
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        request[name] = value.clone();
    }
    request
}

/// Hands a request to `guard exec`, with the API as the user's own environment says it is.
pub(crate) fn exec(world: &World, url: &str, request: &Value) -> Answered {
    let mut command = world.command(program());
    command
        .args(["exec", "--stream-json"])
        .env("GEMINI_API_KEY", "the-key")
        .env("GOOGLE_GEMINI_BASE_URL", url);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(request.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let mut events: Vec<Value> = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
    let result = events.pop().unwrap_or_default();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    Answered { code: output.status.code().unwrap_or(-1), events, result, error }
}
