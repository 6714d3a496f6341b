//! Creates the git workspace of a run (a worktree, a branch and a quarantine repository), and receives one branch
//! from the quarantine repository after the run.
//!
//! ```text
//!   user's repository ──open──►  worktree + task branch          (guard, before the agent)
//!          │  objects, read-only ▲        quarantine: a private git directory that the agent may write
//!          │                     │           │
//!          ◄──── receive ────────┴──jailed───┘                   (guard, when the agent has ended)
//! ```
//!
//! [`Repository::find`] finds the user's repository, [`Workspace::open`] creates everything that a run needs, and
//! [`Workspace::receive`] takes exactly one branch out of the quarantine, as a server accepts a push from an
//! untrusted client. [`Workspace::dispose`] gives the worktree back to the user or removes it. A record in the run's
//! directory says what guard has created, so that guard can finish or undo an interrupted operation.
//!
//! This module must never run what an agent wrote, let git discover a repository from an agent's worktree, obey an
//! agent's git configuration, or delete work that exists nowhere else.

mod dispose;
#[doc(hidden)]
pub mod fuzzing;
pub mod nested_repositories;
pub(crate) mod plumbing;
mod receive;
pub mod review;
pub mod snapshot;
mod task_branch;
mod trust;
mod undo;
pub(crate) mod workspace;

use std::io;
use std::path::{Path, PathBuf};

pub use dispose::uncommitted::{Changed, merged};
pub use dispose::{DisposeReport, KeepPolicy};
pub use plumbing::gitfile::moved_files;
pub use plumbing::outcome::GitError;
pub use plumbing::refs::RefError;
pub use plumbing::remote::{Pushed, RemoteUrls, without_credentials};
pub use plumbing::repository::{Head, Repository, files_at, head_without_git, lacks_entry, main_directory};
pub use receive::tree_size::TreeSizeError;
pub use receive::{Commit, Limits, OtherRef, ReceiveError, Received};
pub use review::apply::{ApplyMethod, ApplyPlan, ApplyRequest, Planned};
pub use review::inspect::{
    Entry, Preview, diff, has_unreceived_commits, list, newest, newest_on_branch, preview,
};
pub use review::saved_work::{
    SavedRef, SavedWork, chosen_ref, remove_saved, restore, saved_dangers, saved_work,
};
pub use review::whole_work::{ChangedFile, ReviewStart, WholeWork, WorkReader};
pub use task_branch::merge::{Compared, Merged};
pub use task_branch::{StepCommit, TaskTree, has_changes};
pub use undo::{
    DirectorySnapshot, NotCovered, SavedSnapshot, Selection, SkipReason, SnapshotKind, SnapshotLimits,
    SnapshotRequest, StepKind, TreeChanges, Undo, UndoPlan, UndoReport, UndoStep, expire_snapshots,
    saved_snapshots, snapshots_directory, snapshots_disk_use,
};
pub use workspace::checkout_files::foreign_link;
pub use workspace::create::{Workspace, check_trust};
pub use workspace::extra_files::{ExtraFile, is_inside as is_path_inside};
pub use workspace::run_record::{Record, State};
pub use workspace::spec::Request;

/// Why guard cannot create a workspace, receive a branch from it, or dispose of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkspaceError {
    #[error(transparent)]
    Git(#[from] GitError),
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation, as a verb phrase before the path: `read`, `copy files to`.
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// guard refuses to continue because of the state of the repository, or because of the request.
    #[error("{problem}")]
    Refused {
        /// What guard refused, and why.
        problem: String,
        hint: String,
    },
    /// The branch or worktree that guard should create already exists. guard has not changed it.
    #[error("{what} already exists")]
    NameTaken {
        /// The existing branch or worktree, as it appears in the error message.
        what: String,
        hint: &'static str,
    },
    /// A commit has more paths than git can read into an index in reasonable memory and time, or guard cannot count
    /// its paths.
    #[error(transparent)]
    Trees(TreeSizeError),
    /// guard cannot parse the file that describes a workspace (its record).
    #[error("{} is not a valid workspace record: {problem}", path.display())]
    Record { path: PathBuf, problem: String },
    /// Another process holds the lock of this run directory or worktree.
    #[error("{} is in use by another guard process", .0.display())]
    Busy(PathBuf),
    /// The worktree in which the run should continue is missing or was replaced; the text says how. guard has created
    /// nothing.
    #[error("{0}")]
    Lost(String),
    /// guard received this signal while it was creating the workspace, and has removed everything that it had
    /// created.
    #[error("{0} cancelled the run while guard was creating its worktree")]
    Interrupted(nix::sys::signal::Signal),
    /// guard could not set up the sandbox for its own git processes.
    #[error(transparent)]
    Jail(#[from] crate::sandbox::SandboxError),
}

impl WorkspaceError {
    fn refused(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Refused { problem: problem.into(), hint: hint.into() }
    }

    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Refused { hint, .. } => Some(hint),
            Self::NameTaken { hint, .. } => Some(hint),
            Self::Trees(_) => Some(
                "`guard worktree clean RUN` removes the worktree and the branch without reading the commit",
            ),
            Self::Git(GitError::NotFound(_)) => {
                Some("install git 2.38 or newer in a directory of PATH that only you and root can write")
            }
            Self::Git(GitError::TimedOut { .. }) => {
                Some("something blocks git: look for a FIFO in place of a file, or a very slow disk")
            }
            Self::Lost(_) => Some(
                "`guard worktree list` shows the existing worktrees; start a new run with another --name",
            ),
            Self::Interrupted(_) => Some("guard removed everything that it had created; start the run again"),
            Self::Busy(_) => Some("wait for the other run to end; `guard worktree list` shows it"),
            _ => None,
        }
    }
}

/// Converts an I/O error to a [`WorkspaceError::Io`] that also has the failed operation and its path.
fn at<T>(what: &'static str, path: &Path, result: io::Result<T>) -> Result<T, WorkspaceError> {
    result.map_err(|source| WorkspaceError::Io { what, path: path.to_path_buf(), source })
}
