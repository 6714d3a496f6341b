//! Determines what a command would do: argv, environment and shell text in, [`Intent`]s out.
//!
//! The input is a command with the directory and environment in which it would run. The output is every program start
//! that the command contains, even inside wrappers or shell text, with its effects. This module never reads a policy,
//! a file or the clock, and never runs anything. It marks a part that cannot be known before the command runs as
//! [`Deferred`], and returns a [`Refusal`] for a command that it does not understand.
#![forbid(unsafe_code)]

mod analyze;
mod arg;
mod cwd;
mod effects;
mod env;
mod file_operands;
mod git;
mod intent;
mod shell;
mod wrapper;

pub use analyze::{Analysis, Context, Limits, Refusal, Request, analyze};
pub use arg::Arg;
pub use cwd::Cwd;
pub use effects::{CLASSES, Effects};
pub use git::{is_known_verb, known_verbs};
pub use intent::{Access, Deferred, GitIntent, Intent, Origin, PathUse, Program};
pub use shell::{ShellError, ShellErrorKind, accepts as accepts_shell_text};
