//! argv, environment, shell text → [`Intent`]s: what a command would do.
//!
//! Enters: a command somebody wants to run, with the directory and environment it would run in. Leaves: every program start
//! it contains, however wrapped, with its effects. Nothing here reads a policy, a file or the clock, and nothing runs:
//! what cannot be known without running is marked [`Deferred`], what cannot be understood is a [`Refusal`].
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
