//! Applies the sandbox of a launch plan: Landlock rules, seccomp filters and mounts. Also probes which features this
//! kernel supports.
//!
//! The code runs in the process that is about to become the agent or, for mounts, in the init process of its
//! namespaces. It only removes rights and never restores them. If it cannot apply a layer of the sandbox, it fails:
//! it never continues with a weaker sandbox.

mod boundaries;
mod deny_filter;
mod filters;
mod landlock_rules;
mod mounts;
mod notify_filter;
mod probe;

pub use boundaries::{HeldBoundary, held_boundaries};
pub use deny_filter::{
    Entry, Errno, FORKS, Filters, LIST, List, METADATA, ON_PROCESSES, Only, compile, compile_helper,
    parse_list,
};
pub use filters::{filters, helper_filter};
pub(crate) use landlock_rules::resolve_links;
pub use landlock_rules::{Grant, Rights, landlock_version, prepare_ruleset, restrict, restrict_signals};
pub use mounts::{Layer, MountPlan, PreparedMounts, apply_mount_plan, prepare_mounts};
pub use notify_filter::Condition;
pub use probe::{
    Ability, Kernel, NAMESPACES_FIX, Need, namespace_flags, probe, quick_probe, unheld_boundaries,
};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// guard cannot parse or compile the list of system calls.
    #[error("cannot build the system call filter: {0}")]
    Filter(String),
    #[error("cannot apply Landlock: {0}")]
    Landlock(String),
    /// An overlay mount failed. Not every file system supports overlays.
    #[error("cannot mount an overlay over {}: {source}", lower.display())]
    Overlay {
        /// The read-only lower directory of the overlay.
        lower: std::path::PathBuf,
        source: std::io::Error,
    },
    /// guard cannot set up the namespaces or the mounts.
    #[error("cannot set up the namespaces: cannot {step}: {source}")]
    Namespaces { step: String, source: std::io::Error },
}
