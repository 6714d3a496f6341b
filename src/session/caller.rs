//! The caller of a run: what guard tells and asks it before the run starts.

use std::io;

use crate::session::Failure;

/// The person or program that starts a run.
pub(crate) struct Caller<'a> {
    /// Shows a note.
    pub(crate) note: &'a dyn Fn(&str),
    /// Asks the person a question.
    pub(crate) ask: &'a Ask,
    /// Whether the command uses the caller's terminal.
    pub(crate) has_terminal: bool,
    /// Whether a person is at the terminal and can end a run that takes too long. Then guard applies only the time
    /// limits of the settings.
    pub(crate) is_attended: bool,
}

/// Asks a question. Returns `None` if nobody is there to answer.
pub(crate) type Ask = dyn Fn(&Question) -> io::Result<Option<bool>>;

/// A question that the user must answer with yes before guard goes on.
pub(crate) struct Question {
    /// What is unusual.
    pub(crate) message: String,
    /// What guard asks: `allow this content?`.
    pub(crate) question: &'static str,
    /// How the user can confirm it if nobody is there to answer.
    pub(crate) hint: String,
    /// The message and the hint if the user says no.
    pub(crate) refusal: (&'static str, &'static str),
}

impl Question {
    /// Fails unless the user answers yes.
    pub(super) fn confirm(self, ask: &Ask) -> Result<(), Failure> {
        match ask(&self)? {
            Some(true) => Ok(()),
            Some(false) => Err(Failure::usage(self.refusal.0, self.refusal.1)),
            None => Err(Failure::usage(self.message, self.hint)),
        }
    }
}
