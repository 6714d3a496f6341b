//! A question to the user about an exec with an `ask` verdict, and the user's answer.

use super::exec::request::ExecRequest;
use crate::judge::decide::Verdict;
use crate::sys::seccomp::Notification;

/// The user's answer to an `ask` verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    Once,
    /// Allow every exec that the same rule asks about, for the rest of the run.
    Always,
    /// Allow every exec that the same rule asks about, for the rest of the run. When the run has ended, guard also
    /// saves a rule in the user's policy that allows such commands.
    Save,
    Deny,
}

/// Asks the user about an exec, for example on the terminal.
pub trait Ask: Send {
    /// Blocks until the user answers. No answer means [`Choice::Deny`].
    fn ask(&mut self, verdict: &Verdict) -> Choice;
}

/// An exec about which the supervisor asks the user, or will ask after the open question.
pub(crate) struct PendingExec {
    pub(crate) notification: Notification,
    pub(crate) exec_request: ExecRequest,
    pub(crate) verdict: Verdict,
}

/// The user's answer about an exec, as the asking thread returns it.
pub(crate) struct UserAnswer {
    pub(crate) pending: Box<PendingExec>,
    pub(crate) choice: Choice,
    /// The object that asked the user. The queue asks the next question with it.
    pub(crate) asker: Box<dyn Ask>,
}
