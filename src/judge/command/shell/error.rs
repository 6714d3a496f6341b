//! Errors of the shell parser. guard denies a command with such an error.

use thiserror::Error;

/// A shell text that could not be parsed, and the position of the error.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{kind} at byte {at}")]
pub struct ShellError {
    /// The offset of the error in the parsed text.
    pub at: usize,
    pub kind: ShellErrorKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShellErrorKind {
    /// A quote, substitution, group or compound command is not closed.
    #[error("unterminated {0}")]
    Unterminated(&'static str),
    #[error("unexpected {0}")]
    Unexpected(String),
    #[error("expected {0}")]
    Expected(&'static str),
    /// The text contains a NUL byte, which cannot be part of an argument to a shell.
    #[error("NUL byte")]
    Nul,
    #[error("nested deeper than {0} levels")]
    TooDeep(usize),
}
