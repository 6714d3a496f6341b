//! The errors of operations on tasks.

use std::path::PathBuf;

use crate::git::WorkspaceError;
use crate::work::pipeline::task::journal::StoreError;

/// Why an operation on a task failed. The journal keeps the task's progress, so that the task can be resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// The journal cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// git failed, or the repository cannot be used.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    #[error("cannot read or write {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// Another process is working on the task.
    #[error("another guard process ({process}) is working on the task {id}")]
    Busy {
        id: String,
        /// The process that is working on the task: `pid N`, or `unknown pid`.
        process: String,
    },
    /// The task cannot be cancelled, because it has succeeded.
    #[error("the task {0} has already succeeded")]
    AlreadySucceeded(String),
    /// The process that works on a cancelled task has not ended in time.
    #[error("{}", process.map_or_else(
        || "a process was still working on the task after 60 seconds, and guard could not determine which process to end".to_string(),
        |process| format!("process {process} was still working on the task 60 seconds after guard asked it to end"),
    ))]
    WorkerStays {
        /// The id of the process; `None` if guard could not determine it reliably.
        process: Option<i32>,
    },
    /// No task, or more than one, matches this id.
    #[error("no task, or more than one, matches the id `{0}`")]
    Unknown(String),
    /// The task could not be created. Holds the complete message.
    #[error("{0}")]
    NotBegun(String),
    /// The operation is impossible in the current state of the task, its workflow or its repository. Holds the complete
    /// message.
    #[error("{0}")]
    Strange(String),
    /// A signal or a command of the user interrupted the task.
    #[error("a signal or the user interrupted the task")]
    Interrupted,
}
