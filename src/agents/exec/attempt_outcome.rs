//! What one attempt to execute a request produced.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agents::adapter::{Conclusion, Wait};
use crate::run::outcome::{ErrorDetail, ErrorKind, ModelUsage, RunResult};

/// One attempt to execute a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// The id of the attempt's run, for `guard log`.
    pub run_id: String,
    /// The kind of error; absent if the attempt succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<ErrorKind>,
    /// The duration of the attempt in milliseconds.
    pub duration_ms: u64,
    /// Whether the attempt left commits or changed files. guard never retries such an attempt.
    #[serde(default)]
    pub left_work: bool,
    /// The attempt's use of model APIs; absent if it used no gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelUsage>,
}

/// What one attempt produced: the result of the run, and what guard concluded from the agent's output.
pub(super) struct AttemptOutcome {
    pub(super) result: RunResult,
    pub(super) conclusion: Option<Conclusion>,
    pub(super) messages: Vec<Value>,
    /// The end of the agent's standard error.
    pub(super) stderr: String,
    /// Remarks about the run, which become part of the result's `notes`.
    pub(super) notes: Vec<String>,
}

impl AttemptOutcome {
    /// Returns the kind of error; `None` if the attempt succeeded. If guard ended the run, guard's own error takes
    /// precedence over the agent's.
    pub(super) fn error_kind(&self) -> Option<ErrorKind> {
        let own = self.result.error_kind;
        let agents = self.conclusion.as_ref().and_then(|end| end.error.as_ref()).map(|(kind, _)| *kind);
        if was_ended_by_guard(&self.result) { own } else { agents.or(own) }
    }

    /// Describes the commits and changed files that the attempt left, for example `1 commit, 2 changed files`; `None`
    /// if it left none.
    pub(super) fn left_work(&self) -> Option<String> {
        let uncommitted = self.result.worktree.as_ref().map_or(0, |tree| tree.uncommitted.len());
        let count = |number: usize, one: &str| match number {
            0 => None,
            1 => Some(format!("1 {one}")),
            more => Some(format!("{more} {one}s")),
        };
        let parts = [
            count(self.result.commits.len(), "commit"),
            count(self.result.files_changed.len().max(uncommitted), "changed file"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// Returns how long to wait before a retry; `None` if the agent's CLI did not report it.
    pub(super) fn wait(&self) -> Option<&Wait> {
        self.conclusion.as_ref().and_then(|end| end.wait.as_ref())
    }

    pub(super) fn attempt(&self) -> Attempt {
        Attempt {
            run_id: self.result.run_id.clone(),
            error_kind: self.error_kind(),
            duration_ms: self.result.duration_ms,
            left_work: self.left_work().is_some(),
            model: self.result.usage.model.clone(),
        }
    }

    /// Returns the outcome of an attempt whose `guard run` process delivered no result.
    pub(super) fn without_result(kind: ErrorKind, message: String, took: Duration) -> Self {
        let detail = ErrorDetail { message: message.clone(), ..ErrorDetail::default() };
        let result = RunResult {
            error: Some(message),
            error_kind: Some(kind),
            error_detail: Some(detail),
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            ..RunResult::default()
        };
        Self { result, conclusion: None, messages: Vec::new(), stderr: String::new(), notes: Vec::new() }
    }
}

/// True if guard ended the run, or the program never ran.
pub(super) fn was_ended_by_guard(run: &RunResult) -> bool {
    run.error_kind.is_some_and(|kind| kind != ErrorKind::UpstreamError) || run.exit_code.is_none()
}
