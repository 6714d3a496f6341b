//! How a call of git ended: its output, or why it failed.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::sys::programs::ProgramNotFound;

#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// `PATH` contains no usable git: it has none at all, or only guard's shim, or only one that an agent could have
    /// written.
    #[error("cannot find a git program to run: {0}")]
    NotFound(ProgramNotFound),
    /// guard could not start git, or could not exchange data with it.
    #[error("cannot run git {verb}: {source}")]
    Io { verb: String, source: io::Error },
    #[error("git {verb} failed{}", failure_detail(.message, *.code))]
    Failed {
        verb: String,
        /// The exit code, or 128 plus the signal number.
        code: i32,
        /// What git printed to standard error, without control characters.
        message: String,
    },
    #[error("git {verb} took longer than {} s, and guard ended it", limit.as_secs())]
    TimedOut { verb: String, limit: Duration },
    #[error("guard received {signal} and ended git {verb}")]
    Interrupted { verb: String, signal: Signal },
    #[error("git {verb} printed more than the limit of {limit} bytes")]
    TooMuch {
        verb: String,
        /// The maximum size of the output, in bytes.
        limit: usize,
    },
}

fn failure_detail(message: &str, code: i32) -> String {
    if message.is_empty() { format!(" (exit code {code})") } else { format!(": {message}") }
}

pub(crate) struct GitOutput {
    pub(crate) status: ExitStatus,
    pub(crate) output: Vec<u8>,
    pub(crate) message: String,
}

impl GitOutput {
    /// Returns the exit code as a shell reports it: 128 plus the signal number if a signal ended git.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }
}
