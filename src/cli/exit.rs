//! Every exit code of `guard`, in one place.
//!
//! | code | `guard check` | `guard policy …` |
//! |---|---|---|
//! | 0 | allowed | done; nothing wrong |
//! | 1 | denied (with `--stdin`: at least one command) | problems found: `lint`, a changed snapshot, a contradicted label, a difference in `diff` |
//! | 2 | bad usage, unreadable or invalid policy | the same |
//! | 3 | a person would be asked (with `--stdin`: at least one, none denied) | – |
//! | 124 | – | `guard run`: a time limit, a budget, or a full record |
//! | 125 | – | `guard run`: guard itself failed, or the sandbox cannot be had |
//! | 126 | – | `guard run`: the command was refused, or cannot be executed |
//! | 127 | – | `guard run`: the command was not found |
//! | any other | – | `guard run`: the command's own code, or 128 and the number of the signal that ended it |
//! | 141 | the reader of standard output went away | the same |
//!
//! | code | `guard exec` |
//! |---|---|
//! | 0 | the agent succeeded |
//! | 1 | it failed, or was cancelled |
//! | 2 | bad usage, or a request that cannot be run; no such session, or a busy one |
//! | 124 | a time limit, a budget, or a full record |
//! | 125 | guard itself failed, or the sandbox cannot be had |
//! | 127 | the agent is not installed |
//!
//! | code | `guard worktree …` |
//! |---|---|
//! | 0 | done |
//! | 1 | `merge-preview`: conflicts; `receive`: refused; `clean`: something could not be removed |
//! | 2 | bad usage, no such run |
//!
//! | code | `guard log`, `replay`, `runs` | `guard verify` |
//! |---|---|---|
//! | 0 | done | the transcript is intact and its run finished |
//! | 1 | – | it is broken, or its head is another |
//! | 2 | bad usage, no such run, not readable | the same |
//! | 3 | – | it is intact up to its last line, but the run's end is missing |

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
    /// The transcript is intact, but its run never finished.
    Unfinished,
    /// Standard output was closed.
    ClosedPipe,
    /// A run reached a time limit, or used up its budget.
    TimedOut,
    /// `guard run` itself failed, or the sandbox cannot be had.
    OwnFailure,
    /// The command of a run was refused or cannot be executed.
    CannotExecute,
    /// The command of a run does not exist.
    CommandNotFound,
    /// The command's own code.
    Code(u8),
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

impl From<Exit> for u8 {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Success => 0,
            Exit::Problem => 1,
            Exit::Usage => 2,
            Exit::Ask | Exit::Unfinished => 3,
            Exit::TimedOut => 124,
            Exit::OwnFailure => 125,
            Exit::CannotExecute => 126,
            Exit::CommandNotFound => 127,
            Exit::ClosedPipe => 141,
            Exit::Code(code) => code,
        }
    }
}
