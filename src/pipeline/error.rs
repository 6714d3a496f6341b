//! Why a task cannot continue.

use std::path::PathBuf;

use crate::pipeline::task::journal::StoreError;
use crate::workspace::WorkspaceError;

/// Why a task cannot continue for now. Its progress is in the journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// The journal cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// git failed, or the repository cannot be used.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Another process works on the task.
    #[error("another guard process ({process}) is working on the task {id}")]
    Busy {
        /// The id of the task.
        id: String,
        /// The id of that process, if known.
        process: String,
    },
    /// No task, or more than one, matches this id.
    #[error("no task, or more than one, matches the id `{0}`")]
    Unknown(String),
    /// The task could not be created. Holds the complete message.
    #[error("{0}")]
    NotBegun(String),
    /// The task is in a state in which the operation is impossible. Holds the complete message.
    #[error("{0}")]
    Strange(String),
    /// A signal ended the run.
    #[error("interrupted")]
    Interrupted,
}
