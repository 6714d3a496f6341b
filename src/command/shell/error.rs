//! Why a shell text could not be understood. Every one of these becomes a denial.

use thiserror::Error;

/// A text the parser refused, and where.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{kind} at byte {at}")]
pub struct ShellError {
    /// Offset in the text that was parsed.
    pub at: usize,
    /// What was wrong there.
    pub kind: ShellErrorKind,
}

/// What was wrong with a shell text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShellErrorKind {
    /// A quote, substitution, group or compound command that never ends.
    #[error("unterminated {0}")]
    Unterminated(&'static str),
    /// A token that cannot stand there.
    #[error("unexpected {0}")]
    Unexpected(String),
    /// Something the grammar needs is missing.
    #[error("expected {0}")]
    Expected(&'static str),
    /// A NUL byte: no shell can be given one in an argument.
    #[error("NUL byte")]
    Nul,
    /// More nested constructs than the limit allows.
    #[error("nested deeper than {0} levels")]
    TooDeep(usize),
}
