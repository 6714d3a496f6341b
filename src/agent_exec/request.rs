//! What somebody asks for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::result::Failure;
use crate::agent::{self, Adapter, OutputFormat};
use crate::outcome::ErrorKind;

/// What an agent may change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sandbox {
    /// Nothing: the policy `readonly`, in the directory itself.
    ReadOnly,
    /// The working directory: the policy `strict`, in a repository with a worktree of its own.
    #[default]
    WorkspaceWrite,
}

/// One request: a prompt for an agent, or a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// The prompt for the agent.
    #[serde(default, alias = "PROMPT")]
    pub prompt: String,
    /// A command to run instead; or, with a prompt, the agent's program if it is not on PATH.
    #[serde(default)]
    pub command: Vec<String>,
    /// `gemini`, `claude`, `codex`, `agy`, or `generic` for any command. Default: with a prompt, the agent whose program
    /// `command` names, or `gemini`; without a prompt, `generic`.
    #[serde(default)]
    pub agent: Option<String>,
    /// The working directory.
    pub cd: PathBuf,
    /// What the agent may change.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// The policy, instead of the one that `sandbox` selects.
    #[serde(default)]
    pub policy: Option<String>,
    /// Tell the agent not to ask for permission. The sandbox is the same either way.
    #[serde(default = "yes")]
    pub yolo: bool,
    /// The session to continue.
    #[serde(default, alias = "SESSION_ID")]
    pub session_id: Option<String>,
    /// The model; the adapter's default if not given.
    #[serde(default)]
    pub model: Option<String>,
    /// The agent's output format. With `json` there are no events while it works. With `text` the session cannot be
    /// continued, and exit code 0 with an answer counts as success.
    #[serde(default)]
    pub output_format: OutputFormat,
    /// End the run after this many seconds without output, a new program or CPU work.
    #[serde(default = "idle")]
    pub timeout: u64,
    /// End the run after this many seconds.
    #[serde(default = "total")]
    pub max_duration: u64,
    /// How often guard retries a temporary error.
    #[serde(default = "one")]
    pub max_retries: u32,
    /// In a repository: work in the directory itself instead of a worktree. Nothing can be committed then.
    #[serde(default)]
    pub in_place: bool,
    /// In a repository: work in the linked worktree that contains `cd`, on its branch.
    #[serde(default)]
    pub here: bool,
    /// Further files or directories the agent may read.
    #[serde(default)]
    pub read: Vec<PathBuf>,
    /// Further files or directories the agent may write, whatever `sandbox` says.
    #[serde(default)]
    pub write: Vec<PathBuf>,
    /// Further environment variables for the agent.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// End the run after this many tokens, input and output together.
    #[serde(default)]
    pub max_tokens: Option<u64>,
    /// End the run after this many requests to a model.
    #[serde(default)]
    pub max_requests: Option<u64>,
    /// Put all events of the agent into the result.
    #[serde(default)]
    pub return_all_messages: bool,
    /// Put usage metrics into the result.
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

/// The fields of a request that differ least from what somebody wrote.
fn nearest(field: &str) -> Option<String> {
    let schema = schemars::schema_for!(ExecRequest).to_value();
    let known = schema["properties"].as_object().map(|all| all.keys().cloned().collect::<Vec<_>>());
    let mut known = known.unwrap_or_default();
    known.push("SESSION_ID".to_string());
    let distance = |name: &String| strsim::damerau_levenshtein(&name.to_lowercase(), &field.to_lowercase());
    known.into_iter().min_by_key(distance).filter(|name| distance(name) <= 2 + field.len() / 4)
}

/// Text that is no request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Nothing but space.
    #[error("it is empty")]
    Empty,
    /// No JSON.
    #[error("it is not JSON: {0}")]
    NotJson(String),
    /// JSON of another kind.
    #[error("it is {0} and not an object")]
    NotAnObject(&'static str),
    /// A field that requests do not have, and the one that is probably meant.
    #[error("there is no field `{field}`; {}", match nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => "the schema has them all".to_string(),
    })]
    UnknownField {
        /// As it was written.
        field: String,
        /// The field with the most similar name.
        nearest: Option<String>,
    },
    /// A field is missing, or has a value that it cannot have.
    #[error("{0}")]
    Field(String),
}

/// Why a text is no request, for whoever wrote it.
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
            _ => "a bare value",
        };
        return RequestError::NotAnObject(what);
    };
    // One field at a time: serde names the first that it does not know, and this is its name.
    let is_unknown = |field: &&String| error.to_string().contains(&format!("unknown field `{field}`"));
    match fields.keys().find(is_unknown) {
        Some(field) => RequestError::UnknownField { field: field.clone(), nearest: nearest(field) },
        None => RequestError::Field(error.to_string()),
    }
}

impl ExecRequest {
    /// A request as JSON; the error says what is wrong with it, in words for people.
    pub fn from_json(text: &str) -> Result<Self, RequestError> {
        serde_json::from_str(text).map_err(|error| explain(text, &error))
    }

    /// A prompt for the usual agent in a directory.
    pub fn new(prompt: impl Into<String>, cd: impl Into<PathBuf>) -> Self {
        Self {
            prompt: prompt.into(),
            command: Vec::new(),
            agent: None,
            cd: cd.into(),
            sandbox: Sandbox::default(),
            policy: None,
            yolo: true,
            session_id: None,
            model: None,
            output_format: OutputFormat::default(),
            timeout: idle(),
            max_duration: total(),
            max_retries: one(),
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

    /// Whether it can be run at all.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let bad = |message: String| Err(Failure::new(ErrorKind::InvalidInput, message));
        if self.prompt.contains('\0') || self.command.iter().any(|word| word.contains('\0')) {
            return bad("a NUL cannot be handed to a program".to_string());
        }
        if !self.cd.is_absolute() || !self.cd.is_dir() {
            return bad(format!(
                "cd must be an absolute path of a directory, and {} is not",
                self.cd.display()
            ));
        }
        for (name, seconds) in [("timeout", self.timeout), ("max_duration", self.max_duration)] {
            if seconds == 0 || seconds > 7 * 24 * 3600 {
                return bad(format!("{name} is between 1 second and a week"));
            }
        }
        if self.max_retries > 10 {
            return bad("max_retries is at most 10".to_string());
        }
        let is_odd =
            |name: &String| name.starts_with('-') || name.contains(|c: char| c.is_whitespace() || c == '\0');
        if let Some(model) = self.model.as_ref().filter(|name| name.is_empty() || is_odd(name)) {
            return bad(format!("{model:?} is no name of a model"));
        }
        if self.here && self.in_place {
            return bad("here and in_place contradict each other; give one".to_string());
        }
        if let Some(path) = self.read.iter().chain(&self.write).find(|path| !path.is_absolute()) {
            return bad(format!("read and write take absolute paths, and {} is none", path.display()));
        }
        let is_name = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
        if let Some((name, _)) =
            self.environment.iter().find(|(name, value)| !is_name(name) || value.contains('\0'))
        {
            return bad(format!("environment: {name:?} cannot be a variable"));
        }
        Ok(())
    }

    /// The agent that is asked; none where a command is just run.
    pub(super) fn adapter(&self) -> Result<Option<Adapter>, Failure> {
        let bad = |message: String| Err(Failure::new(ErrorKind::InvalidInput, message));
        let adapter = match (self.agent.as_deref(), self.command.first()) {
            (Some("generic"), None) => {
                return bad("there is neither a prompt for an agent nor a command".to_string());
            }
            (Some("generic"), Some(_)) => None,
            (Some(name), _) => match agent::named(name) {
                Some(adapter) => Some(adapter),
                None => return bad(format!("there is no agent `{name}`; there are {}", known())),
            },
            (None, None) => agent::named("gemini"),
            (None, Some(_)) if self.prompt.is_empty() => None,
            (None, Some(program)) => match agent::of_program(Path::new(program)) {
                Some(adapter) => Some(adapter),
                None => {
                    return bad(format!(
                        "{program} is no agent that takes a prompt; name the agent it is ({}), or leave the prompt out",
                        known()
                    ));
                }
            },
        };
        let Some(adapter) = adapter else {
            if !self.prompt.is_empty() {
                return bad("a command that is just run takes no prompt; name the agent it is".to_string());
            }
            return Ok(None);
        };
        if self.prompt.trim().is_empty() {
            return bad("the prompt is empty".to_string());
        }
        let longest = adapter.longest_prompt();
        if self.prompt.len() > longest {
            return bad(format!(
                "the prompt has {} bytes, and {} takes {longest}; put the rest into a file of the directory",
                self.prompt.len(),
                adapter.name
            ));
        }
        let format = self.output_format;
        if !adapter.start.formats.contains_key(&format) {
            return bad(format!("{} has no output format {}", adapter.name, format.name()));
        }
        // Which session it was would not be said, and a lost one would be taken for the right one.
        if format == OutputFormat::Text && self.session_id.is_some() {
            return bad(
                "a session cannot go on in the output format text; use stream-json or json".to_string()
            );
        }
        Ok(Some(adapter))
    }

    /// The policy that holds.
    pub(super) fn policy(&self) -> &str {
        match (&self.policy, self.sandbox) {
            (Some(policy), _) => policy,
            (None, Sandbox::ReadOnly) => "readonly",
            (None, Sandbox::WorkspaceWrite) => "strict",
        }
    }
}

/// The agents there are, for people.
fn known() -> String {
    let mut names: Vec<&str> = agent::AGENTS.iter().map(|(name, _)| *name).collect();
    names.push("generic");
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_request_is_explained() {
        for (text, words) in [
            ("", "it is empty"),
            (" \n", "it is empty"),
            ("{", "it is not JSON"),
            ("[]", "it is an array and not an object"),
            ("\"x\"", "it is a string and not an object"),
            ("5", "it is a bare value and not an object"),
            ("{\"cd\": \"/\", \"promt\": \"x\"}", "there is no field `promt`; did you mean `prompt`?"),
            (
                "{\"cd\": \"/\", \"session\": \"x\"}",
                "there is no field `session`; did you mean `session_id`?",
            ),
            (
                "{\"cd\": \"/\", \"colour_of_the_sky\": 1}",
                "there is no field `colour_of_the_sky`; the schema",
            ),
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
