//! What guard does with a hosting service on behalf of the user, outside every sandbox.
//!
//! ```text
//!   Remote::of ── where `origin` is ──► protection   is the base branch protected?  (two questions, no changes)
//!                                  └──► push         the task's branch, forward, and nothing else
//!                                  └──► pull_request found if it is there, made if not
//! ```
//!
//! A token goes to the API of the service that the user or GitHub names, never to where a repository's configuration
//! leads, and never to where an answer leads. What cannot be found out is told as that: "cannot tell" is not "protected".
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

use crate::workspace::WorkspaceError;

/// Why something with a hosting service was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForgeError {
    /// git, or the repository.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// Guard does not do that, or cannot as things are.
    #[error("{problem}")]
    Refused {
        /// What, and why not.
        problem: String,
        /// The next step.
        hint: String,
    },
    /// The remote's branch has commits that the local one has not.
    #[error(
        "{branch} of the remote {remote} has commits that the local branch does not have; nothing was pushed"
    )]
    NotForward {
        /// The branch.
        branch: String,
        /// The remote.
        remote: String,
    },
    /// The other side does not want to, or cannot be understood.
    #[error("{what}: {why}")]
    Service {
        /// What was asked of it.
        what: String,
        /// What it says, or does not.
        why: String,
    },
}

impl ForgeError {
    fn refused(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Refused { problem: problem.into(), hint: hint.into() }
    }

    /// The next step for the user, where there is one to name.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Workspace(error) => error.hint(),
            Self::Refused { hint, .. } => Some(hint),
            Self::NotForward { .. } => {
                Some("somebody else has pushed there: fetch, look at it, and push under another name")
            }
            Self::Service { .. } => None,
        }
    }
}

/// A branch by its short name.
fn short(branch: &str) -> &str {
    branch.strip_prefix("refs/heads/").unwrap_or(branch)
}
