//! Determines what a command would do: argv, environment and shell text in, [`Intent`]s out.
//!
//! Input is a command with the directory and environment it would run in. Output is every program start that the
//! command contains, even inside wrappers or shell text, with its effects. This module never reads a policy, a file or
//! the clock, and never runs anything. What cannot be known without running the command is marked [`Deferred`]; what
//! cannot be understood is a [`Refusal`].
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
pub use arg::{Arg, display_line};
pub use cwd::Cwd;
pub use effects::{CLASSES, Effects};
pub use git::{is_known_verb, known_verbs};
pub use intent::{Access, Deferred, GitIntent, Intent, Origin, PathUse, Program};
pub use shell::{ShellError, ShellErrorKind, accepts as accepts_shell_text};
