//! A repository → a worktree, a branch and a quarantine for one run; what the agent committed → one branch, received.
//!
//! ```text
//!   user's repository ──open──►  worktree + task branch          (guard, before the agent)
//!          │  objects, read-only ▲        quarantine: a private git directory the agent may ruin
//!          │                     │           │
//!          ◄──── receive ────────┴──jailed───┘                   (guard, when the agent has ended)
//! ```
//!
//! [`Repository::find`] looks at the user's directory, [`Workspace::open`] makes everything a run needs, and
//! [`Workspace::receive`] takes exactly one branch out of the quarantine, as a server takes a push from a stranger.
//! [`Workspace::settle`] gives the worktree back to the user. A record in the run's directory says what was made, so that
//! whatever was interrupted can be finished or undone.
//!
//! Never: run what an agent wrote, discover a repository from an agent's worktree, read an agent's configuration, or
//! delete work that is not kept elsewhere.

mod dispose;
pub mod findings;
#[doc(hidden)]
pub mod fuzzing;
pub(crate) mod git;
mod inspect;
pub mod nested_repositories;
mod receive;
pub(crate) mod run;
pub mod snapshot;
mod task_branch;
mod trust;

use std::io;
use std::path::{Path, PathBuf};

pub use dispose::uncommitted::{Changed, merged};
pub use dispose::{DisposeReport, KeepPolicy};
pub use git::command::GitError;
pub use git::refs::RefError;
pub use git::remote::{Pushed, RemoteUrls, without_credentials};
pub use git::repository::{Head, Repository};
pub use inspect::{Entry, Preview, diff, list, preview};
pub use receive::tree_size::TreeSizeError;
pub use receive::{Commit, Limits, OtherRef, ReceiveError, Received};
pub use run::create::{Request, Workspace};
pub use run::extra_files::{ExtraFile, is_inside as is_path_inside};
pub use run::run_record::{Record, State};
pub use task_branch::merge::{Compared, Merged};
pub use task_branch::{StepCommit, TaskTree, has_changes};

/// Why there is no workspace, or it cannot be given back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkspaceError {
    /// git itself.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A file or directory.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was being done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Something about the repository or the request that guard does not do. Nothing was made.
    #[error("{problem}")]
    Refused {
        /// What, and why not.
        problem: String,
        /// The next step.
        hint: String,
    },
    /// The branch or the worktree that would be made exists already. Nothing was made.
    #[error("{what} already exists")]
    NameTaken {
        /// The branch or the worktree.
        what: String,
        /// The next step.
        hint: &'static str,
    },
    /// A commit that no git can read into an index.
    #[error(transparent)]
    Trees(TreeSizeError),
    /// The record of a workspace cannot be understood.
    #[error("{} is not a workspace's record: {problem}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// Another process works on it.
    #[error("{} is in use by another guard", .0.display())]
    Busy(PathBuf),
    /// The worktree that a run was to go on in is not there, or is not what it was. Nothing was made.
    #[error("{0}")]
    Lost(String),
    /// A signal came while it was made. Nothing was made.
    #[error("cancelled by {0} while the worktree was made")]
    Interrupted(nix::sys::signal::Signal),
    /// The jail.
    #[error(transparent)]
    Jail(#[from] crate::sandbox::SandboxError),
}

impl WorkspaceError {
    fn refused(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Refused { problem: problem.into(), hint: hint.into() }
    }

    /// The next step for the user, where there is one to name.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Refused { hint, .. } => Some(hint),
            Self::NameTaken { hint, .. } => Some(hint),
            Self::Trees(_) => {
                Some("`guard worktree clean RUN` removes worktree and branch without reading the commit")
            }
            Self::Git(GitError::NotFound(_)) => {
                Some("install git 2.38 or newer in a directory of PATH that only you and root can write")
            }
            Self::Git(GitError::TimedOut { .. }) => {
                Some("something holds git up there: a pipe in the place of a file, or a very slow disk")
            }
            Self::Lost(_) => {
                Some("`guard worktree list` shows what there is; begin a new run without --branch")
            }
            Self::Interrupted(_) => Some("nothing of it is left; start it again when it is wanted"),
            Self::Busy(_) => Some("wait for the run to end; `guard worktree list` shows it"),
            _ => None,
        }
    }
}

/// An error of the file system with what was being done.
fn at<T>(what: &'static str, path: &Path, result: io::Result<T>) -> Result<T, WorkspaceError> {
    result.map_err(|source| WorkspaceError::Io { what, path: path.to_path_buf(), source })
}
