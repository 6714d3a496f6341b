//! The tools: their parameters, their schemas, and those that need no agent.

use std::path::PathBuf;
use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::command::{Context, Folder, Request};
use crate::decide::{judge, load};
use crate::executor::{ExecRequest, ExecResult, Sandbox};
use crate::policy::Folders;
use crate::transcript::{FINISHED, Reader, Step, Store};

/// Ask the Gemini CLI, in a sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(non_snake_case, reason = "callers know these names")]
pub(super) struct Gemini {
    /// What it is asked, with all the context it needs.
    pub(super) PROMPT: String,
    /// The folder to work in; absolute.
    pub(super) cd: PathBuf,
    /// `read-only` for advice, `workspace-write` for work.
    #[serde(default)]
    pub(super) sandbox: Sandbox,
    /// The agent asks nobody; the sandbox holds all the same.
    #[serde(default = "yes")]
    pub(super) yolo: bool,
    /// The session to go on with.
    #[serde(default)]
    pub(super) SESSION_ID: Option<String>,
    /// The model.
    #[serde(default = "model")]
    pub(super) model: String,
    /// All that the agent said and did, in the result.
    #[serde(default)]
    pub(super) return_all_messages: bool,
    /// What it used, in the result.
    #[serde(default)]
    pub(super) return_metrics: bool,
    /// Seconds without output or a new program.
    #[serde(default = "idle")]
    pub(super) timeout: u64,
    /// Seconds in all.
    #[serde(default = "total")]
    pub(super) max_duration: u64,
    /// How often a failure that may pass is tried again.
    #[serde(default = "one")]
    pub(super) max_retries: u32,
    /// What it used, on the server's standard error.
    #[serde(default)]
    pub(super) log_metrics: bool,
}

fn yes() -> bool {
    true
}

fn model() -> String {
    "gemini-3-pro-preview".to_string()
}

fn idle() -> u64 {
    300
}

fn total() -> u64 {
    1800
}

fn one() -> u32 {
    1
}

impl Gemini {
    pub(super) fn request(self) -> ExecRequest {
        ExecRequest {
            sandbox: self.sandbox,
            yolo: self.yolo,
            // A client that has none may say so with nothing.
            session_id: self.SESSION_ID.filter(|id| !id.is_empty()),
            model: Some(self.model),
            return_all_messages: self.return_all_messages,
            return_metrics: self.return_metrics,
            timeout: self.timeout,
            max_duration: self.max_duration,
            max_retries: self.max_retries,
            ..ExecRequest::new(self.PROMPT, self.cd)
        }
    }
}

/// Ask a policy about a command.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Check {
    /// The command and its arguments.
    #[serde(default)]
    command: Vec<String>,
    /// Shell text instead.
    #[serde(default)]
    shell: Option<String>,
    /// The policy; `strict` unless given.
    #[serde(default)]
    policy: Option<String>,
    /// The folder it would run in.
    #[serde(default)]
    cwd: Option<PathBuf>,
}

/// Ask for the result of an earlier call or run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Report {
    /// A `call_id`, or a run's id.
    pub(super) id: String,
}

fn schema<T: JsonSchema>(is_input: bool) -> Arc<JsonObject> {
    let settings = SchemaSettings::draft2020_12();
    let settings = if is_input { settings } else { settings.for_serialize() };
    let schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    Arc::new(schema.as_object().cloned().unwrap_or_default())
}

/// All tools, as clients see them.
pub(super) fn all() -> Vec<Tool> {
    vec![
        Tool::new(
            "gemini",
            "Ask the Gemini CLI in a kernel sandbox: advice (sandbox read-only) or work (workspace-write, in a repository on a branch of its own).",
            schema::<Gemini>(true),
        )
        .with_raw_output_schema(schema::<ExecResult>(false))
        .with_annotations(ToolAnnotations::new().read_only(false).destructive(false).open_world(true)),
        Tool::new("guard_check", "Ask a policy whether a command would be allowed, and why.", schema::<Check>(true))
            .with_annotations(ToolAnnotations::new().read_only(true).open_world(false)),
        Tool::new("guard_report", "The result of an earlier call (call_id) or run (run_id).", schema::<Report>(true))
            .with_annotations(ToolAnnotations::new().read_only(true).open_world(false)),
    ]
}

/// What a policy says about a command.
pub(super) fn check(asked: &Check) -> Result<Value, String> {
    let name = asked.policy.as_deref().unwrap_or("strict");
    let policy = load(name, &Folders::from_environment(), false).map_err(|error| error.to_string())?;
    let request = match (&asked.shell, asked.command.is_empty()) {
        (Some(text), true) => Request::Shell(text.clone().into_bytes()),
        (None, false) => Request::Argv(asked.command.iter().map(|word| word.clone().into_bytes()).collect()),
        _ => return Err("guard_check takes a command or shell text, one of them".to_string()),
    };
    let folder = asked.cwd.as_ref().and_then(|folder| folder.to_str()).unwrap_or("/");
    let context = Context {
        folder: Folder::from_absolute(folder.as_bytes()),
        limits: policy.command_limits(),
        ..Context::default()
    };
    let (verdict, _) = judge(&policy, &request, &context);
    Ok(json!({
        "decision": verdict.action().name(), "rule": verdict.cause.rule, "reason": verdict.cause.reason,
        "instead": verdict.cause.instead, "part": verdict.part, "policy": policy.name,
    }))
}

/// The result that a run's transcript ends with.
pub(super) fn result_of_run(id: &str) -> Value {
    let failed = |error: String| json!({ "success": false, "error": error, "error_kind": "invalid_input" });
    let store = match Store::open() {
        Ok(store) => store,
        Err(error) => return failed(error.to_string()),
    };
    // An id, not a path to whatever.
    let run = match store.find(Some(id)).map_err(|error| error.to_string()) {
        Ok(run) if !id.contains('/') => run,
        Ok(_) => return failed("a run is named by its id".to_string()),
        Err(error) => return failed(error),
    };
    let mut reader = match Reader::open(&run.transcript) {
        Ok(reader) => reader,
        Err(error) => return failed(error.to_string()),
    };
    loop {
        match reader.step() {
            Ok(Step::Event(event)) if event.event_type == FINISHED => return event.data,
            Ok(Step::End { .. }) | Err(_) => {
                return json!({ "status": "running", "message": format!("the run {} has no end yet", run.id) });
            }
            Ok(_) => {}
        }
    }
}
