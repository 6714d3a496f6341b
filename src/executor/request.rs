//! What somebody asks for.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::result::Failure;

/// How much an agent may change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sandbox {
    /// Nothing: for advice.
    ReadOnly,
    /// The working folder; in a repository a worktree of its own.
    #[default]
    WorkspaceWrite,
}

/// One request: a prompt for an agent, or a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// What the agent is asked.
    #[serde(default)]
    pub prompt: String,
    /// A command instead; or, with `agent`, the agent's program where it is not on the path.
    #[serde(default)]
    pub command: Vec<String>,
    /// `gemini`, `claude`, `codex`, `agy`, or `generic` for a command that is just run. `gemini` where there is a prompt only.
    #[serde(default)]
    pub agent: Option<String>,
    /// The folder to work in.
    pub cd: PathBuf,
    /// How much it may change.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// A policy instead of the one that `sandbox` means.
    #[serde(default)]
    pub policy: Option<String>,
    /// The agent asks nobody; the sandbox holds all the same.
    #[serde(default = "yes")]
    pub yolo: bool,
    /// The session to go on with.
    #[serde(default, alias = "SESSION_ID")]
    pub session_id: Option<String>,
    /// The model.
    #[serde(default)]
    pub model: Option<String>,
    /// Seconds without output or a new program.
    #[serde(default = "idle")]
    pub timeout: u64,
    /// Seconds in all.
    #[serde(default = "total")]
    pub max_duration: u64,
    /// How often a failure that may pass is tried again.
    #[serde(default = "one")]
    pub max_retries: u32,
    /// In a repository: work in the folder itself instead of a worktree; nothing can be committed then.
    #[serde(default)]
    pub in_place: bool,
    /// Work in the linked worktree that `cd` is, on its branch.
    #[serde(default)]
    pub here: bool,
    /// Files and folders that may be written beside what the policy says.
    #[serde(default)]
    pub write: Vec<PathBuf>,
    /// Tokens of a model, questions and answers together.
    #[serde(default)]
    pub max_tokens: Option<u64>,
    /// Requests to a model.
    #[serde(default)]
    pub max_requests: Option<u64>,
    /// All that the agent said and did, in the result.
    #[serde(default)]
    pub return_all_messages: bool,
    /// What it used, in the result.
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

impl ExecRequest {
    /// A prompt for the usual agent in a folder.
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
            timeout: idle(),
            max_duration: total(),
            max_retries: one(),
            in_place: false,
            here: false,
            write: Vec::new(),
            max_tokens: None,
            max_requests: None,
            return_all_messages: false,
            return_metrics: false,
        }
    }

    /// Whether it can be run at all.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let bad = |message: String| Err(Failure::new("invalid_input", message));
        let is_asked =
            self.agent.as_deref().is_some_and(|agent| agent != "generic") || self.command.is_empty();
        if is_asked && self.prompt.trim().is_empty() {
            return bad("the prompt is empty".to_string());
        }
        if !is_asked && !self.prompt.is_empty() {
            return bad("a command takes no prompt; name the agent it is".to_string());
        }
        if self.prompt.contains('\0') || self.command.iter().any(|word| word.contains('\0')) {
            return bad("a NUL cannot be handed to a program".to_string());
        }
        if !self.cd.is_absolute() || !self.cd.is_dir() {
            return bad(format!("cd must be an absolute path of a folder, and {} is not", self.cd.display()));
        }
        for (name, seconds) in [("timeout", self.timeout), ("max_duration", self.max_duration)] {
            if seconds == 0 || seconds > 7 * 24 * 3600 {
                return bad(format!("{name} is between 1 second and a week"));
            }
        }
        if self.max_retries > 10 {
            return bad("max_retries is at most 10".to_string());
        }
        Ok(())
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
