//! A plan → Landlock rules, seccomp programs and mounts; and the probe that says what this kernel can do.
//!
//! Everything here runs in the process that is about to become the agent (or, for mounts, in the first process of its
//! namespaces), takes away, and never gives back. A layer that cannot be applied is an error: nothing degrades silently.

mod files;
mod filter;
mod mounts;
mod probe;
mod program;
mod shorten;

pub use files::{Grant, Rights, landlock_version, prepare, restrict, restrict_signals};
pub use filter::{
    Entry, FORKS, LIST, METADATA, ON_PROCESSES, compile, encode, filter, filter_with_forks, offline, read,
    treatments,
};
pub use mounts::{Apart, Layer, View, enter, part};
pub use probe::{Ability, Kernel, Need, namespace_flags, probe, quick_probe};
pub use program::{Action, Check, Condition, Otherwise, Treatment};
pub use shorten::shorten;

/// A layer that cannot be applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// The list of system calls, or its compilation.
    #[error("the system call filter cannot be made: {0}")]
    Filter(String),
    /// Landlock.
    #[error("Landlock cannot be applied: {0}")]
    Landlock(String),
    /// Namespaces and mounts.
    #[error("the namespaces cannot be set up: {step}: {source}")]
    Namespaces {
        /// What was being done.
        step: String,
        /// Why it failed.
        source: std::io::Error,
    },
}
