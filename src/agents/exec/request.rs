//! The request of `guard exec`: its JSON format, its validation, and the choice of the agent.
//!
//! The doc comments of [`ExecRequest`] become the descriptions in the published JSON schema.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::failure::Failure;
use crate::agents::adapter;
use crate::agents::adapter::{Adapter, OutputFormat};
use crate::run::outcome::ErrorKind;

/// The policy of agents that may write no files.
pub const READ_ONLY_POLICY: &str = "readonly";

/// Which files the agent may write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sandbox {
    /// The agent may write no files. It works in `cd` itself, under the policy `readonly`.
    ReadOnly,
    /// The agent may write the working directory, under the policy `strict`. In a git repository it works in a separate
    /// worktree on a new branch.
    #[default]
    WorkspaceWrite,
}

/// A request to run an agent with a prompt, or to run a command, in a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// The prompt for the agent.
    #[serde(default, alias = "PROMPT")]
    pub prompt: String,
    /// Without a prompt: the command to run, with its arguments. With a prompt: the agent's program, if it is not on
    /// PATH.
    #[serde(default)]
    pub command: Vec<String>,
    /// The agent: `gemini`, `claude`, `codex`, `agy`, or `generic` for any other command, which gets the prompt, if
    /// there is one, on its standard input. Default: with a prompt, the agent whose program `command` names, or else
    /// `gemini`; without a prompt, `generic`.
    #[serde(default)]
    pub agent: Option<String>,
    /// The working directory, as an absolute path.
    pub cd: PathBuf,
    /// Which files the agent may write.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// The name or path of a policy to use instead of the one that `sandbox` selects.
    #[serde(default)]
    pub policy: Option<String>,
    /// Whether the agent may write the working directory under the policy of `guard run`, which a project or the user
    /// chooses, instead of `strict`.
    #[serde(skip)]
    pub uses_default_policy: bool,
    /// Whether the agent acts without asking for approval. The sandbox is the same either way.
    #[serde(default = "yes")]
    pub yolo: bool,
    /// The session to continue: `SESSION_ID` of an earlier result.
    #[serde(default, alias = "SESSION_ID")]
    pub session_id: Option<String>,
    /// Whether the agent starts without its memory of the session, so that the prompt must contain everything that the
    /// agent needs to know. It continues in the session's worktree. If the session does not exist, guard creates it,
    /// even for an agent whose CLI has no sessions.
    #[serde(default)]
    pub fresh_agent: bool,
    /// The model to use. Default: the agent's default model.
    #[serde(default)]
    pub model: Option<String>,
    /// The output format to request from the agent. With `json`, there are no events while the agent works. With
    /// `text`, sessions cannot be continued, and exit code 0 with a non-empty answer counts as success.
    #[serde(default)]
    pub output_format: OutputFormat,
    /// The idle limit in seconds: guard ends a run that for this long prints nothing, starts no program and uses no
    /// CPU.
    #[serde(default = "idle")]
    pub timeout: u64,
    /// The limit on the total duration of one attempt, in seconds.
    #[serde(default = "total")]
    pub max_duration: u64,
    /// How often guard retries after an error that may be temporary. At most 10.
    #[serde(default = "one")]
    pub max_retries: u32,
    /// Whether guard also retries after a time limit was reached.
    #[serde(default = "yes")]
    pub retry_timeouts: bool,
    /// In a git repository: whether the agent works in `cd` itself instead of a separate worktree. It cannot commit
    /// then.
    #[serde(default)]
    pub in_place: bool,
    /// In a git repository: whether the agent works in the linked worktree that contains `cd`, on the branch that is
    /// checked out there.
    #[serde(default)]
    pub here: bool,
    /// Further files or directories that the agent may read, as absolute paths.
    #[serde(default)]
    pub read: Vec<PathBuf>,
    /// Further files or directories that the agent may write, as absolute paths. They apply whatever `sandbox` is.
    #[serde(default)]
    pub write: Vec<PathBuf>,
    /// Environment variables to set for the agent.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The limit on model tokens, input and output together. guard ends the run when the limit is reached.
    #[serde(default)]
    pub max_tokens: Option<u64>,
    /// The limit on requests to a model. guard ends the run when the limit is reached.
    #[serde(default)]
    pub max_requests: Option<u64>,
    /// Whether the result contains all events of the agent, in `all_messages`.
    #[serde(default)]
    pub return_all_messages: bool,
    /// Whether the result contains usage figures, in `metrics`.
    #[serde(default)]
    pub return_metrics: bool,
}

fn yes() -> bool {
    true
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

/// Returns the known field whose name is most similar to the unknown name `field`; `None` if no name is similar enough.
fn nearest(field: &str) -> Option<String> {
    let schema = schemars::schema_for!(ExecRequest).to_value();
    let known = schema["properties"].as_object().map(|all| all.keys().cloned().collect::<Vec<_>>());
    let mut known = known.unwrap_or_default();
    known.push("SESSION_ID".to_string());
    let distance = |name: &String| strsim::damerau_levenshtein(&name.to_lowercase(), &field.to_lowercase());
    known.into_iter().min_by_key(distance).filter(|name| distance(name) <= 2 + field.len() / 4)
}

/// Why a text is not a valid JSON request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The text is empty or consists of white space.
    #[error("the request is empty")]
    Empty,
    #[error("the request is not valid JSON: {0}")]
    NotJson(String),
    #[error("the request must be a JSON object, but is {0}")]
    NotAnObject(&'static str),
    #[error("unknown field `{field}`; {}", match nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => "schemas/exec-request.schema.json in guard's source repository lists all fields".to_string(),
    })]
    UnknownField {
        field: String,
        /// The known field with the most similar name, if any is similar enough.
        nearest: Option<String>,
    },
    /// A field is missing or has an invalid value. Holds the parser's message, which names the field.
    #[error("{0}")]
    Field(String),
}

/// Turns an error of the JSON parser into an error that says what is wrong with the request.
fn explain(text: &str, error: &serde_json::Error) -> RequestError {
    if text.trim().is_empty() {
        return RequestError::Empty;
    }
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return RequestError::NotJson(error.to_string());
    };
    let Some(fields) = value.as_object() else {
        let what = match value {
            Value::Array(_) => "an array",
            Value::String(_) => "a string",
            _ => "a number, boolean or null",
        };
        return RequestError::NotAnObject(what);
    };
    // serde's message quotes the first unknown field. Find that field among those of the object.
    let is_unknown = |field: &&String| error.to_string().contains(&format!("unknown field `{field}`"));
    match fields.keys().find(is_unknown) {
        Some(field) => RequestError::UnknownField { field: field.clone(), nearest: nearest(field) },
        None => RequestError::Field(error.to_string()),
    }
}

impl ExecRequest {
    /// Parses a request from JSON. Fails if a field is unknown, missing or of the wrong type. Does not check the
    /// values.
    pub fn from_json(text: &str) -> Result<Self, RequestError> {
        serde_json::from_str(text).map_err(|error| explain(text, &error))
    }

    /// Creates a request for the default agent to work on a prompt in the directory `cd`.
    pub fn new(prompt: impl Into<String>, cd: impl Into<PathBuf>) -> Self {
        Self {
            prompt: prompt.into(),
            command: Vec::new(),
            agent: None,
            cd: cd.into(),
            sandbox: Sandbox::default(),
            policy: None,
            uses_default_policy: false,
            yolo: true,
            session_id: None,
            fresh_agent: false,
            model: None,
            output_format: OutputFormat::default(),
            timeout: idle(),
            max_duration: total(),
            max_retries: one(),
            retry_timeouts: true,
            in_place: false,
            here: false,
            read: Vec::new(),
            write: Vec::new(),
            environment: BTreeMap::new(),
            max_tokens: None,
            max_requests: None,
            return_all_messages: false,
            return_metrics: false,
        }
    }

    /// Fails if a value in the request is not valid, such as a relative path or a time limit of 0. Does not check the
    /// agent and its prompt, which [`Self::adapter`] checks.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let bad = |message: String| Err(Failure::new(ErrorKind::InvalidInput, message));
        if self.prompt.contains('\0') || self.command.iter().any(|word| word.contains('\0')) {
            return bad("the prompt or the command contains a NUL character; remove it".to_string());
        }
        if !self.cd.is_absolute() || !self.cd.is_dir() {
            return bad(format!(
                "`cd` must be the absolute path of an existing directory, and {:?} is not",
                self.cd
            ));
        }
        check_limits(self.timeout, self.max_duration, self.max_retries)
            .and_then(|()| self.model.as_deref().map_or(Ok(()), check_model))
            .or_else(bad)?;
        if self.here && self.in_place {
            return bad("`here` and `in_place` exclude each other; set only one of them".to_string());
        }
        if let Some(path) = self.read.iter().chain(&self.write).find(|path| !path.is_absolute()) {
            return bad(format!("`read` and `write` need absolute paths, and {path:?} is relative"));
        }
        let is_name = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
        if let Some((name, _)) =
            self.environment.iter().find(|(name, value)| !is_name(name) || value.contains('\0'))
        {
            return bad(format!(
                "`environment`: the variable {name:?} is invalid: a name must not be empty or contain `=`, and neither \
                 a name nor a value may contain a NUL character"
            ));
        }
        Ok(())
    }

    /// Returns the adapter of the agent to run; `None` for a plain command. Fails if the agent is unknown, or if it
    /// does not support the prompt or the output format of the request.
    pub(super) fn adapter(&self) -> Result<Option<Adapter>, Failure> {
        let bad = |message: String| Err(Failure::new(ErrorKind::InvalidInput, message));
        let adapter = match (self.agent.as_deref(), self.command.first()) {
            (Some("generic"), None) => {
                return bad(
                    "the agent `generic` needs a `command`, which gets the prompt on its standard input"
                        .to_string(),
                );
            }
            (Some("generic"), Some(_)) => None,
            (Some(name), _) => match adapter::named(name) {
                Some(adapter) => Some(adapter),
                None => return bad(format!("unknown agent `{name}`; known agents are {}", known())),
            },
            (None, None) => adapter::named("gemini"),
            (None, Some(_)) if self.prompt.is_empty() => None,
            (None, Some(program)) => match adapter::of_program(Path::new(program)) {
                Some(adapter) => Some(adapter),
                None => {
                    return bad(format!(
                        "{program} is not the program of a known agent; set `agent` to one of {}, where \
                         `generic` gets the prompt on its standard input",
                        known()
                    ));
                }
            },
        };
        let Some(adapter) = adapter else { return Ok(None) };
        if self.prompt.trim().is_empty() {
            return bad("the prompt is empty; write what the agent should do".to_string());
        }
        let longest = adapter.longest_prompt();
        if self.prompt.len() > longest {
            return bad(format!(
                "the prompt has {} bytes, and {} accepts at most {longest}; move a part of it to a file in \
                 the working directory",
                self.prompt.len(),
                adapter.name
            ));
        }
        let format = self.output_format;
        if !adapter.start.formats.contains_key(&format) {
            let known: Vec<&str> = adapter.start.formats.keys().map(|format| format.name()).collect();
            return bad(format!(
                "{} does not support the output format {}; use {}",
                adapter.name,
                format.name(),
                known.join(" or ")
            ));
        }
        // Text output does not name the session, so guard could not detect that the agent began another one.
        if format == OutputFormat::Text && self.session_id.is_some() {
            return bad(
                "guard cannot continue a session with the output format text; use stream-json or json"
                    .to_string(),
            );
        }
        Ok(Some(adapter))
    }

    /// Returns the policy under which the agent runs: `policy` if it is set, otherwise the one that `sandbox` selects;
    /// `None` if `guard run` chooses its default.
    pub(super) fn policy(&self) -> Option<&str> {
        match (&self.policy, self.sandbox) {
            (Some(policy), _) => Some(policy),
            (None, Sandbox::ReadOnly) => Some(READ_ONLY_POLICY),
            (None, Sandbox::WorkspaceWrite) if self.uses_default_policy => None,
            (None, Sandbox::WorkspaceWrite) => Some("strict"),
        }
    }
}

/// Fails, with a message, if a request cannot have these time limits, in seconds, or this number of retries.
pub fn check_limits(timeout: u64, max_duration: u64, max_retries: u32) -> Result<(), String> {
    for (name, seconds) in [("timeout", timeout), ("max_duration", max_duration)] {
        if seconds == 0 || seconds > 7 * 24 * 3600 {
            return Err(format!("`{name}` is {seconds} seconds; it must be from 1 to 604800 (a week)"));
        }
    }
    if max_retries > 10 {
        return Err(format!("`max_retries` is {max_retries}; it must be at most 10"));
    }
    Ok(())
}

/// Fails, with a message, if a text cannot be the name of a model, for example because a CLI would take it for an
/// option.
pub fn check_model(name: &str) -> Result<(), String> {
    if adapter::is_model_name(name) {
        return Ok(());
    }
    Err(format!("`model`: {name:?} is not a valid model name"))
}

/// Returns the names that the field `agent` accepts, separated by commas.
fn known() -> String {
    let mut names: Vec<&str> = adapter::AGENTS.iter().map(|(name, _)| *name).collect();
    names.push("generic");
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_request_is_explained() {
        for (text, words) in [
            ("", "the request is empty"),
            (" \n", "the request is empty"),
            ("{", "the request is not valid JSON"),
            ("[]", "the request must be a JSON object, but is an array"),
            ("\"x\"", "the request must be a JSON object, but is a string"),
            ("5", "the request must be a JSON object, but is a number"),
            ("{\"cd\": \"/\", \"promt\": \"x\"}", "unknown field `promt`; did you mean `prompt`?"),
            ("{\"cd\": \"/\", \"session\": \"x\"}", "unknown field `session`; did you mean `session_id`?"),
            ("{\"cd\": \"/\", \"colour_of_the_sky\": 1}", "unknown field `colour_of_the_sky`; schemas/"),
            ("{\"prompt\": \"x\"}", "missing field `cd`"),
            ("{\"cd\": \"/\", \"timeout\": -1}", "invalid value: integer `-1`"),
            ("{\"cd\": \"/\", \"sandbox\": \"none\"}", "unknown variant `none`, expected `read-only` or"),
        ] {
            let said = ExecRequest::from_json(text).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(said.contains(words), "{text}: {said}");
        }
        let both = "{\"PROMPT\": \"x\", \"cd\": \"/\", \"SESSION_ID\": \"s\"}";
        let request = ExecRequest::from_json(both).unwrap_or_else(|problem| panic!("{problem}"));
        assert_eq!((request.prompt.as_str(), request.session_id.as_deref()), ("x", Some("s")));
    }
}
