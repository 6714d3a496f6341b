//! Tests `guard exec` with the real agent CLIs and scripted APIs.

pub(crate) mod agents;
mod api_failures;
pub(crate) mod claude;
pub(crate) mod codex;
mod command_line;
mod concurrent_requests;
mod faulty_agents;
mod formats;
mod hostile_repository_settings;
mod installed_agents;
mod kept_files;
mod output_parser;
mod quotas;
mod retries;
pub(crate) mod scripted;
mod sealed_streams;
mod sessions;
mod streams;
mod work_and_refusals;

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::egress::gemini::Gemini;
use crate::support::{TestEnvironment, guard_program};

/// The exit code, the events and the result of one `guard exec`.
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

/// Returns a request for the installed Gemini CLI.
pub(crate) fn request(gemini: &Gemini, environment: &TestEnvironment, prompt: &str, more: &Value) -> Value {
    let mut request = json!({
        "agent": "gemini", "command": [gemini.program()], "prompt": prompt, "cd": environment.directory, "model": "gemini-2.5-flash",
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        request[name] = value.clone();
    }
    request
}

/// Sends a request to `guard exec`. The user's variables set the key and the address of the API.
pub(crate) fn exec(environment: &TestEnvironment, url: &str, request: &Value) -> Answered {
    exec_with(environment, &[("GEMINI_API_KEY", "the-key"), ("GOOGLE_GEMINI_BASE_URL", url)], request)
}

/// Sends a request to `guard exec` with these variables of the user.
pub(crate) fn exec_with(
    environment: &TestEnvironment,
    variables: &[(&str, &str)],
    request: &Value,
) -> Answered {
    let mut command = environment.command(guard_program());
    command.args(["exec", "--stream-json"]).envs(variables.iter().copied());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(request.to_string().as_bytes()).unwrap();
    answered(&child.wait_with_output().unwrap())
}

/// Parses the output of `guard exec`, and checks every line against its published schema.
pub(crate) fn answered(output: &Output) -> Answered {
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let mut events: Vec<Value> = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
    let result = events.pop().unwrap_or_default();
    events.iter().for_each(is_event);
    is_result(&result);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    Answered { code: output.status.code().unwrap_or(-1), events, result, error }
}

/// Returns a validator for a published schema.
pub(crate) fn schema(name: &str) -> jsonschema::Validator {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas").join(name);
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    jsonschema::validator_for(&schema).unwrap()
}

/// Fails unless the value matches the schema.
pub(crate) fn fits(schema: &jsonschema::Validator, value: &Value) {
    let problems: Vec<String> = schema.iter_errors(value).map(|problem| problem.to_string()).collect();
    assert!(problems.is_empty(), "{}\n{value:#}", problems.join("\n"));
}

/// Fails unless the value matches the published schema of an event.
pub(crate) fn is_event(value: &Value) {
    static SCHEMA: LazyLock<jsonschema::Validator> = LazyLock::new(|| schema("exec-event.schema.json"));
    fits(&SCHEMA, value);
    let time = value["timestamp"].as_str().unwrap();
    assert!(time.parse::<jiff::Timestamp>().is_ok() && time.ends_with('Z'), "{time}");
}

/// Fails unless the value matches the published schema of a result.
pub(crate) fn is_result(value: &Value) {
    static SCHEMA: LazyLock<jsonschema::Validator> = LazyLock::new(|| schema("exec-result.schema.json"));
    fits(&SCHEMA, value);
    // guard promises callers two more properties of a result, which the schema does not express.
    let success = value["success"].as_bool().unwrap();
    assert!(
        value["duration"].as_str().is_some_and(|text| text.contains('m') && text.ends_with('s')),
        "{value:#}"
    );
    assert_eq!(value["error_kind"].is_string() && value["error_detail"].is_object(), !success, "{value:#}");
}
