//! Finds the simple commands that a shell text would run, wherever they occur in it.
//!
//! [`parse`] builds the syntax tree. [`expand`] resolves quoting and the statically known parts of words. [`walk`]
//! traverses the tree and passes every simple command to the analysis of its program. If shells disagree on a text,
//! this module must reject it or judge every interpretation.

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

/// Returns an error if the parser rejects a text. For tests that compare the parser with a real shell.
#[doc(hidden)]
pub fn accepts(text: &[u8]) -> Result<(), ShellError> {
    parse(text, 0, super::Limits::default().depth).map(|_| ())
}
