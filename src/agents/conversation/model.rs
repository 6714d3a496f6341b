//! The types that the log, the record and the worktree of a conversation share.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::run::outcome::ErrorKind;

/// How the agent learns the earlier turns of the conversation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The agent resumes its own session if its CLI has sessions; otherwise the prompt contains guard's history.
    #[default]
    Auto,
    /// The agent resumes its own session, which contains the earlier turns.
    Native,
    /// Every prompt contains the earlier turns, from guard's history.
    OwnHistory,
}

/// How the agent learnt, in one turn, the earlier turns of the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TurnMode {
    /// The agent resumed its own session, which contains the earlier turns.
    Native,
    /// The prompt contained the earlier turns, from guard's history.
    OwnHistory,
}

impl TurnMode {
    /// Returns the name of the mode, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::OwnHistory => "own-history",
        }
    }
}

/// The state of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum TurnState {
    /// The agent answered.
    Done,
    /// The turn failed.
    Failed {
        /// The kind of the error.
        #[schema(value_type = String)]
        error_kind: ErrorKind,
        /// The error message.
        error: String,
    },
    /// The user cancelled the turn.
    Cancelled,
    /// guard was killed during the turn, or the turn is still in progress.
    Interrupted,
}

impl TurnState {
    /// Returns the name of the state, as in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed { .. } => "failed",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A saved state of a worktree: the commit that its branch pointed to, and a commit with all files that git
/// does not ignore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Snapshot {
    /// The commit that the branch pointed to.
    pub(super) tip: String,
    /// The ref that points to the commit with the files.
    pub(super) files: String,
}
