//! The error that stops a task.

use std::path::PathBuf;

use crate::pipeline::task::journal::StoreError;
use crate::workspace::WorkspaceError;

/// Why a task cannot continue for now. The journal keeps the task's progress, so that the task can be resumed.
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
    #[error("cannot read or write {}: {source}", path.display())]
    Io {
        /// The file that cannot be read or written.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Another process is working on the task.
    #[error("another guard process ({process}) is working on the task {id}")]
    Busy {
        /// The id of the task.
        id: String,
        /// The process that is working on the task: `pid N`, or `unknown pid`.
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
    /// A signal interrupted the task.
    #[error("a signal interrupted the task")]
    Interrupted,
}
