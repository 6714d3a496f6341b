//! The tool `gemini`: its parameters and its result.

use std::path::PathBuf;

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::parameters::Parameters;
use crate::agents::conversation::GivenOptions;
use crate::agents::exec::{EventCounts, ExecRequest, ExecResult, Sandbox, check_model};
use crate::run::outcome::{ErrorDetail, ErrorKind, RunResult};

/// The name of the MCP tool that runs the Gemini CLI.
pub(super) const NAME: &str = "gemini";
/// The default idle limit, in seconds: how long an agent may be inactive before guard ends its run.
const IDLE: u64 = 300;
/// The default limit on the total duration of an attempt, in seconds.
const TOTAL: u64 = 1800;

/// Give a prompt to the Gemini CLI, which runs in a sandbox.
#[derive(Debug, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(non_snake_case, reason = "callers know these names")]
pub(super) struct Gemini {
    /// The prompt for the agent, with all the context it needs.
    PROMPT: String,
    /// The working directory, as an absolute path. It must be inside one of the server's root directories.
    cd: String,
    /// `read-only`: the agent cannot write files; use it for questions and reviews. `workspace-write`: the agent may
    /// write files in the working directory; in a git repository it works in a separate worktree on a new branch.
    #[serde(default)]
    #[schemars(extend("enum" = ["read-only", "workspace-write"]), with = "String")]
    sandbox: Sandbox,
    /// Whether the agent acts without asking for approval. The sandbox is the same either way.
    #[serde(default = "yes")]
    yolo: bool,
    /// The session to continue: `SESSION_ID` of an earlier result, or the id of a conversation of `guard chat`.
    #[serde(default)]
    #[schemars(with = "String")]
    SESSION_ID: Option<String>,
    /// The model to use.
    #[serde(default = "model")]
    model: String,
    /// Whether the result contains all events of the agent, in `all_messages`.
    #[serde(default)]
    return_all_messages: bool,
    /// Whether the result contains usage figures, in `metrics`.
    #[serde(default)]
    return_metrics: bool,
    /// The idle limit in seconds: guard ends a run that for this long prints nothing, starts no program and uses no
    /// CPU.
    #[serde(default = "idle")]
    #[schemars(range(min = 1, max = 604_800))]
    timeout: u64,
    /// The limit on the total duration of one attempt, in seconds.
    #[serde(default = "total")]
    #[schemars(range(min = 1, max = 604_800))]
    max_duration: u64,
    /// How often guard retries after an error that may be temporary.
    #[serde(default = "one")]
    #[schemars(range(max = 10))]
    max_retries: u32,
    /// Whether the server prints usage figures on its standard error.
    #[serde(default)]
    log_metrics: bool,
    /// The options that the client has set, without the defaults above.
    #[schemars(skip)]
    given: GivenOptions,
}

fn yes() -> bool {
    true
}

fn model() -> String {
    "gemini-3-pro-preview".to_string()
}

fn idle() -> u64 {
    IDLE
}

fn total() -> u64 {
    TOTAL
}

fn one() -> u32 {
    1
}

impl Gemini {
    /// Parses the parameters of a call. An error names the wrong parameter.
    pub(super) fn read(given: JsonObject) -> Result<Self, String> {
        let mut given = Parameters::new(given);
        let (prompt, cd) = (given.required("PROMPT")?, given.required("cd")?);
        let set = GivenOptions {
            sandbox: given.optional("sandbox")?,
            model: given.optional("model")?,
            timeout: given.optional("timeout")?,
        };
        let asked = Self {
            PROMPT: prompt,
            cd,
            sandbox: set.sandbox.unwrap_or_default(),
            yolo: given.optional("yolo")?.unwrap_or_else(yes),
            // Some clients send an empty string for a missing session.
            SESSION_ID: given.optional::<String>("SESSION_ID")?.filter(|id| !id.is_empty()),
            model: set.model.clone().unwrap_or_else(model),
            return_all_messages: given.optional("return_all_messages")?.unwrap_or_default(),
            return_metrics: given.optional("return_metrics")?.unwrap_or_default(),
            timeout: set.timeout.unwrap_or_else(idle),
            max_duration: given.optional("max_duration")?.unwrap_or_else(total),
            max_retries: given.optional("max_retries")?.unwrap_or_else(one),
            log_metrics: given.optional("log_metrics")?.unwrap_or_default(),
            given: set,
        };
        given.reject_unknown()?;
        asked.check().map(|()| asked)
    }

    /// Rejects an empty prompt, values that are not valid on a command line, and values that the CLI would interpret as
    /// an option.
    fn check(&self) -> Result<(), String> {
        if self.PROMPT.trim().is_empty() {
            return Err("the parameter `PROMPT` is empty".to_string());
        }
        if self.PROMPT.contains('\0') {
            return Err("the parameter `PROMPT` contains a NUL character; remove it".to_string());
        }
        if check_model(&self.model).is_err() {
            return Err("the parameter `model` is not a valid model name".to_string());
        }
        Ok(())
    }

    /// Returns the working directory as the client named it, not resolved yet.
    pub(super) fn cd(&self) -> &str {
        &self.cd
    }

    pub(super) fn log_metrics(&self) -> bool {
        self.log_metrics
    }

    /// Builds the request to the executor; `cd` is the resolved working directory. Also returns the options that the
    /// client has set.
    pub(super) fn request(self, cd: PathBuf) -> (ExecRequest, GivenOptions) {
        let request = ExecRequest {
            agent: Some(NAME.to_string()),
            sandbox: self.sandbox,
            yolo: self.yolo,
            session_id: self.SESSION_ID,
            model: Some(self.model),
            return_all_messages: self.return_all_messages,
            return_metrics: self.return_metrics,
            timeout: self.timeout,
            max_duration: self.max_duration,
            max_retries: self.max_retries,
            ..ExecRequest::new(self.PROMPT, cd)
        };
        (request, self.given)
    }
}

/// The result of the tool `gemini`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Answer {
    #[serde(flatten)]
    result: ExecResult,
    /// The id of the call, for guard_report and guard_cancel. Absent if no call was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    call_id: Option<String>,
    /// Whether `all_messages` was too large and was left out. The transcript contains it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    all_messages_cut: bool,
}

/// Returns the tool's result for a call that was started and has ended.
pub(super) fn answer(id: &str, result: ExecResult) -> Value {
    let answer = Answer { result, call_id: Some(id.to_string()), all_messages_cut: false };
    serde_json::to_value(answer).unwrap_or_default()
}

/// The time limits of a call, with the defaults for parameters that the client has not set or that cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    idle: u64,
    total: u64,
}

impl Limits {
    pub(super) fn of(given: &JsonObject) -> Self {
        let seconds = |name: &str, usual: u64| given.get(name).and_then(Value::as_u64).unwrap_or(usual);
        Self { idle: seconds("timeout", IDLE), total: seconds("max_duration", TOTAL) }
    }
}

/// Returns the tool's result if no call was started, or if a call ended without a result.
pub(super) fn refused(kind: ErrorKind, problem: &str, limits: Limits) -> Value {
    let detail = ErrorDetail {
        message: problem.to_string(),
        idle_timeout_s: Some(limits.idle),
        max_duration_s: Some(limits.total),
        ..ErrorDetail::default()
    };
    let run = RunResult {
        tool: NAME.to_string(),
        duration: "0m0s".to_string(),
        error: Some(problem.chars().take(500).collect()),
        error_kind: Some(kind),
        error_detail: Some(detail),
        ..RunResult::default()
    };
    let result = ExecResult {
        run,
        attempts: Vec::new(),
        events: EventCounts::default(),
        all_messages: None,
        metrics: None,
        notes: Vec::new(),
    };
    let answer = Answer { result, call_id: None, all_messages_cut: false };
    serde_json::to_value(answer).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value) -> Result<Gemini, String> {
        Gemini::read(value.as_object().cloned().unwrap_or_default())
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let asked =
            read(&json!({ "PROMPT": "hello", "cd": "/work" })).unwrap_or_else(|problem| panic!("{problem}"));
        assert!(!asked.log_metrics() && asked.cd() == "/work");
        let (request, given) = asked.request("/real".into());
        let expected = ExecRequest {
            agent: Some("gemini".to_string()),
            model: Some("gemini-3-pro-preview".to_string()),
            ..ExecRequest::new("hello", "/real")
        };
        assert_eq!(request, expected);
        assert_eq!((request.timeout, request.max_duration, request.max_retries), (300, 1800, 1));
        assert!(request.yolo && request.sandbox == Sandbox::WorkspaceWrite);
        assert_eq!(given, GivenOptions::default());
    }

    #[test]
    fn what_the_client_sets_is_distinguished_from_defaults() {
        let asked = json!({ "PROMPT": "hello", "cd": "/work", "sandbox": "workspace-write", "timeout": 300, "model": "m" });
        let asked = read(&asked).unwrap_or_else(|problem| panic!("{problem}"));
        let (_, given) = asked.request("/real".into());
        let expected = GivenOptions {
            sandbox: Some(Sandbox::WorkspaceWrite),
            model: Some("m".to_string()),
            timeout: Some(300),
        };
        assert_eq!(given, expected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |name: &str, value: Value| {
            let mut asked = json!({ "PROMPT": "hello", "cd": "/work" });
            asked[name] = value;
            let problem = read(&asked).expect_err(name);
            assert!(problem.contains(&format!("`{name}`")), "{name}: {problem}");
        };
        for (name, value) in [
            ("PROMPT", json!("")),
            ("PROMPT", json!(" \n")),
            ("PROMPT", json!(7)),
            ("PROMPT", json!("a\0b")),
            ("cd", json!(null)),
            ("cd", json!(["/"])),
            ("sandbox", json!("none")),
            ("sandbox", json!(true)),
            ("yolo", json!("yes")),
            ("SESSION_ID", json!(5)),
            ("model", json!("")),
            ("model", json!("--yolo")),
            ("model", json!("a b")),
            ("model", json!("x".repeat(300))),
            ("return_all_messages", json!(1)),
            ("return_metrics", json!("true")),
            ("timeout", json!("soon")),
            ("timeout", json!(-1)),
            ("timeout", json!(1.5)),
            ("max_duration", json!({})),
            ("max_retries", json!(1e300)),
            ("log_metrics", json!(0)),
            ("surprise", json!(1)),
        ] {
            wrong(name, value);
        }
        assert!(read(&json!({})).is_err_and(|problem| problem.contains("`PROMPT`")));
    }
}
