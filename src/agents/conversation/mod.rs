//! Conversations with agents: many turns with one agent in one worktree.
//!
//! ```text
//!   message ─► messages.jsonl (synced) ─► native session resumed, or prompt built from our history ─► `agents::exec`
//!                                                                                                        │
//!   background compaction ◄── end of the turn in messages.jsonl (synced) ◄── answer or error ◄───────────┘
//! ```
//!
//! guard's own record of the conversation is complete even if the agent's CLI has its own ("native") session,
//! so guard can replace a lost session within the same turn. Every turn is an ordinary guarded run with its own
//! transcript. The message is on disk before the agent starts: whatever kills guard, at most the unfinished
//! answer is lost. This module must never continue a conversation in another worktree or with another context
//! without a note to the user.
#![forbid(unsafe_code)]

mod compaction;
mod context;
mod continue_request;
mod export;
mod message_log;
mod model;
mod record;
mod store;
mod summary_files;
mod turn;
mod turn_control;
mod undo;
mod worktree_snapshot;

pub use compaction::Compacted;
pub use context::{ContextUse, HistorySettings, LeftOutMessage, NextPrompt, ShownSummary};
pub use continue_request::GivenOptions;
pub use export::Format;
pub use model::{Mode, TurnMode, TurnState};
pub use record::{NewConversation, Record, Settings, Turn};
pub use store::{Conversation, ConversationLine, Conversations, SearchHit};
pub use turn::{TurnOptions, TurnResult};
pub use undo::{FilesUndone, Undone};

use std::io;
use std::path::PathBuf;

use crate::run::outcome::ErrorKind;

/// The maximum length of a message, in bytes.
pub const LONGEST_MESSAGE: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConversationError {
    /// No conversation has this id, in full or shortened.
    #[error("there is no conversation {0:?}")]
    Unknown(String),
    #[error("there are no conversations yet")]
    None,
    #[error("{text:?} matches several conversations: {}", candidates.join(", "))]
    Ambiguous { text: String, candidates: Vec<String> },
    #[error("another client is using the conversation {0}; try again when its turn has ended")]
    Busy(String),
    #[error("the conversation {0} is paused; `guard control {0} resume` continues it")]
    Paused(String),
    /// The message is empty or consists of white space.
    #[error("the message is empty")]
    EmptyMessage,
    #[error("the message has {0} bytes; a message may have at most {LONGEST_MESSAGE}")]
    LongMessage(usize),
    /// The message contains a NUL character, which no command line can contain.
    #[error("the message contains a NUL character")]
    NulInMessage,
    /// The settings of a conversation or the options of a turn are not valid. Holds the reason.
    #[error("{0}")]
    Settings(String),
    #[error("the conversation has no turn {0}")]
    NoTurn(usize),
    /// There is nothing to do: no turn to undo, or nothing to compact.
    #[error("{0}")]
    Nothing(&'static str),
    #[error("guard cannot parse {}: {problem}", path.display())]
    Damaged { path: PathBuf, problem: String },
    /// A newer version of guard stored the conversation, in a format that this version cannot read.
    #[error("{} has the format version {version}, which this version of guard cannot read", path.display())]
    UnknownFormat {
        /// The file that states the version.
        path: PathBuf,
        version: u32,
    },
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation, as a verb that the path completes.
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(transparent)]
    Workspace(#[from] crate::git::WorkspaceError),
    #[error("guard could not summarise the older messages: {0}")]
    Summary(String),
}

impl ConversationError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown(_) | Self::None | Self::Ambiguous { .. } => ErrorKind::SessionLost,
            Self::Busy(_) | Self::Paused(_) => ErrorKind::SessionBusy,
            Self::EmptyMessage
            | Self::LongMessage(_)
            | Self::NulInMessage
            | Self::Settings(_)
            | Self::NoTurn(_)
            | Self::Nothing(_) => ErrorKind::InvalidInput,
            Self::Damaged { .. } | Self::UnknownFormat { .. } | Self::Io { .. } | Self::Workspace(_) => {
                ErrorKind::Internal
            }
            Self::Summary(_) => ErrorKind::UpstreamError,
        }
    }

    pub fn hint(&self) -> &str {
        match self {
            Self::Unknown(_) => {
                "`guard history list` shows the conversations; the last 4 or more characters of an id are enough"
            }
            Self::None => "start a conversation: guard chat --once 'MESSAGE'",
            Self::Ambiguous { .. } => "give more characters of the end of the id",
            Self::Busy(_) => "wait until the turn in progress has ended, or close the other `guard chat`",
            Self::Paused(_) => "`guard control ID resume` continues the conversation",
            Self::EmptyMessage => "write what the agent should do",
            Self::LongMessage(_) => {
                "put the text into a file in the working directory, and name the file in the message"
            }
            Self::NulInMessage => "remove the NUL character",
            Self::Settings(_) => "see `guard chat --help`",
            Self::NoTurn(_) => "`guard history show ID` lists the turns",
            Self::Nothing(_) => "`guard history show ID` shows the conversation",
            Self::Damaged { .. } => "restore the file from a backup, or start a new conversation",
            Self::UnknownFormat { .. } => "use a newer version of guard, or start a new conversation",
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free some disk space, and try again; what was stored before is unchanged"
            }
            Self::Io { .. } => "check the owner, the mode and the free space of the directory",
            Self::Workspace(error) => error.hint().unwrap_or("`guard worktree list` shows the worktrees"),
            Self::Summary(_) => "the next turn sends the newest messages only; try again later",
        }
    }
}

/// Converts an I/O error to [`ConversationError::Io`], with the operation `what` and the path.
fn at<T>(what: &'static str, path: &std::path::Path, result: io::Result<T>) -> Result<T, ConversationError> {
    result.map_err(|source| ConversationError::Io { what, path: path.to_path_buf(), source })
}

/// Fails if a text cannot be a message of a conversation: if it is empty, too long, or contains a NUL
/// character.
pub fn check_message(text: &str) -> Result<(), ConversationError> {
    match text {
        text if text.trim().is_empty() => Err(ConversationError::EmptyMessage),
        text if text.len() > LONGEST_MESSAGE => Err(ConversationError::LongMessage(text.len())),
        text if text.contains('\0') => Err(ConversationError::NulInMessage),
        _ => Ok(()),
    }
}
