//! Every exit code of `guard`, in one place.
//!
//! | code | `guard check` | `guard policy …` |
//! |---|---|---|
//! | 0 | allowed | done; nothing wrong |
//! | 1 | denied (with `--stdin`: at least one command) | problems found: `lint`, a changed snapshot, a contradicted label, a difference in `diff` |
//! | 2 | bad usage, unreadable or invalid policy | the same |
//! | 3 | a person would be asked (with `--stdin`: at least one, none denied) | – |
//! | 141 | the reader of standard output went away | the same |

use std::process::ExitCode;

use crate::policy::Action;

/// How a command of `guard` ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Allowed, or nothing wrong.
    Success,
    /// Denied, or problems found.
    Problem,
    /// Bad usage, or a policy that cannot be used.
    Usage,
    /// A person would be asked.
    Ask,
    /// Standard output was closed.
    ClosedPipe,
}

impl From<Action> for Exit {
    fn from(action: Action) -> Self {
        match action {
            Action::Allow => Self::Success,
            Action::Ask => Self::Ask,
            Action::Deny => Self::Problem,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Success => 0,
            Exit::Problem => 1,
            Exit::Usage => 2,
            Exit::Ask => 3,
            Exit::ClosedPipe => 141,
        })
    }
}
