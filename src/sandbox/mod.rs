//! A plan → Landlock rules, seccomp programs and mounts; and the probe that says what this kernel can do.
//!
//! Everything here runs in the process that is about to become the agent (or, for mounts, in init of its
//! namespaces), takes away, and never gives back. A layer that cannot be applied is an error: nothing degrades silently.

mod deny_filter;
mod landlock_rules;
mod mounts;
mod notify_filter;
mod probe;

pub use deny_filter::{
    Entry, Errno, FORKS, Filters, LIST, List, METADATA, ON_PROCESSES, Only, compile, filters, offline, read,
};
pub use landlock_rules::{Grant, Rights, landlock_version, prepare, restrict, restrict_signals};
pub use mounts::{Layer, MountPlan, Unshared, enter, part};
pub use notify_filter::Condition;
pub use probe::{Ability, Kernel, Need, namespace_flags, probe, quick_probe};

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
    /// An overlay, which not every file system can be a layer of.
    #[error("an overlay over {} cannot be mounted: {source}", lower.display())]
    Overlay {
        /// The directory that is never written.
        lower: std::path::PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Namespaces and mounts.
    #[error("the namespaces cannot be set up: {step}: {source}")]
    Namespaces {
        /// What was being done.
        step: String,
        /// Why it failed.
        source: std::io::Error,
    },
}
