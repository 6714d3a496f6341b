//! Values that the runner records in a task's journal, and reads back when it resumes the task.

use serde::{Deserialize, Serialize};

use super::state::{State, Used};
use crate::run::outcome::ErrorKind;

/// The task's state when a step began, recorded so that the task can return to it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StepSnapshot {
    pub(crate) state: State,
    /// The commit that the task's branch pointed to when the step began.
    pub(crate) tip: String,
}

/// The result of one agent call, recorded in the journal after the call.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct AgentReply {
    pub(crate) answer: String,
    pub(crate) run_id: String,
    /// The kind and message of the error, if the call failed.
    pub(crate) error: Option<(ErrorKind, String)>,
    pub(crate) used: Used,
    /// The commit that the task's branch pointed to before the call.
    pub(crate) before: String,
    /// The commit that the task's branch pointed to after the call.
    pub(crate) after: String,
}
