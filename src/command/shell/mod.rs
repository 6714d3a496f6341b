//! Shell text → the simple commands it would run, wherever they stand in it.
//!
//! [`parse`] makes the tree, [`expand`] resolves quoting and what is statically known of words, [`walk`] goes through
//! the tree and hands every simple command to the analysis of its program.

mod assign;
mod ast;
mod builtin;
mod error;
mod expand;
mod lex;
mod parse;
mod redirect;
pub(super) mod scope;
pub(super) mod walk;

pub use error::{ShellError, ShellErrorKind};
pub(super) use parse::parse;

/// Whether a text is grammatical shell, judged by the same parser; for tests that compare it with a real shell.
#[doc(hidden)]
pub fn accepts(text: &[u8]) -> Result<(), ShellError> {
    parse(text, 0, super::Limits::default().depth).map(|_| ())
}
