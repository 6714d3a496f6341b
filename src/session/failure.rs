//! Why a command of guard could not do its work.

use std::io;

use crate::judge::policy::PolicyError;

/// Why a command of guard could not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// guard cannot write to standard output, or another input or output operation failed.
    Output(io::Error),
    /// guard cannot find, read or load the policy.
    Policy(Box<PolicyError>),
    /// An error that the user can fix, with a hint.
    Usage { message: String, hint: String },
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Self {
        Self::Policy(Box::new(error))
    }
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: hint.into() }
    }
}
