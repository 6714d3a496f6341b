//! Plans a run, starts its processes, supervises them and returns a result. The only module that starts an agent.
//!
//! ```text
//!   guard (run/)  ──fork──►  init (process/init.rs)  ──fork──►  agent (process/agent.rs)
//!     outside the sandbox;     reaps and kills; PID 1 where        sandboxed; executes
//!     judges and records       the run has a PID namespace         the program
//! ```
//!
//! [`plan`] makes every decision. It changes nothing on disk, except that it caches the default registry hosts that
//! npm, cargo and pip report. [`Launch::run`] only executes a plan, step by step. If the run never starts, [`Launch`]
//! removes everything that it created for the run.

pub mod discover;
mod lifecycle;
mod plan;
pub(crate) mod process;
mod streams;

pub use lifecycle::caller_output::write_to_caller;
pub use lifecycle::git_session::{GitSession, danger_finding};
pub use lifecycle::home_state::{HomeState, SavedHistory};
pub use lifecycle::login::{CopiedLogin, LoginError};
pub use lifecycle::signals::on_signals;
pub use lifecycle::terminal::is_interactive;
pub use lifecycle::{Failure, Finished, Launch, Planned};
pub use plan::api_keys::{KeySource, Keys, Secrets};
pub use plan::checkout::Checkout;
pub use plan::git_paths::{is_shared_directory, may_be_in_repository};
pub use plan::network::{AllowedHost, NetworkPlan, PlannedGateway, network_rules};
pub use plan::shims::{SHIM_PROGRAM, Shims, why_no_shims};
pub use plan::workdir::check_links;
pub use plan::{LaunchError, LaunchPlan, Limits, Options, RunRequest, SnapshotPlan, plan};
pub use streams::{OutputReader, Streams};

pub use crate::sys::programs::distrust;
