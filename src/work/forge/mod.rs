//! Operations on a hosting service (GitHub) that guard performs for the user, outside every sandbox.
//!
//! ```text
//!   Remote::of ── where `origin` is ──► protection   is the base branch protected?  (only GET requests)
//!                                  └──► push         pushes only the task's branch, fast-forward
//!                                  └──► pull_request finds the open pull request, or opens a new one
//! ```
//!
//! guard sends a token only to GitHub's own API or to the API that the user's environment names: never to a host that
//! a repository's configuration or a redirect names. If guard cannot determine the protection of a branch, it reports
//! the protection as unknown, never as "protected".
#![forbid(unsafe_code)]

mod api;
mod protection;
mod pull_request;
mod push;
mod remote;
mod token;

pub use protection::{Protection, protection};
pub use pull_request::{Proposal, PullRequest, pull_request};
pub use push::{Push, push};
pub use remote::{GitHub, Kind, Remote};
pub use token::Token;

use crate::git::WorkspaceError;

/// Why an operation on a hosting service failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForgeError {
    /// git failed, or guard cannot use the repository.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// guard refuses to perform the operation, or a precondition does not hold.
    #[error("{problem}")]
    Refused { problem: String, hint: String },
    /// The remote's branch has commits that the local branch lacks.
    #[error(
        "the branch {branch} of the remote {remote} has commits that the local branch lacks, so guard pushed nothing"
    )]
    NotForward {
        /// The short name of the branch.
        branch: String,
        /// The name of the remote.
        remote: String,
    },
    /// guard could not reach the service, or the service refused the operation or sent a response that guard cannot
    /// interpret.
    #[error("{what}: {why}")]
    Service {
        /// The operation that failed, as text for the message.
        what: String,
        /// The service's error text, or a description of what else went wrong.
        why: String,
    },
}

impl ForgeError {
    fn refused(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Refused { problem: problem.into(), hint: hint.into() }
    }

    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Workspace(error) => error.hint(),
            Self::Refused { hint, .. } => Some(hint),
            Self::NotForward { .. } => Some(
                "fetch the remote branch, review its commits, and push your work under another branch name",
            ),
            Self::Service { .. } => None,
        }
    }
}

/// Removes the prefix `refs/heads/` from the name of a branch.
fn short(branch: &str) -> &str {
    branch.strip_prefix("refs/heads/").unwrap_or(branch)
}
