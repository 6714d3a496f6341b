//! A plan → a running process tree → a result. The only module that spawns processes.
//!
//! ```text
//!   guard (parent.rs)  ──fork──►  init process (init.rs)  ──fork──►  agent (child.rs)
//!     outside; judges, records      reaps and kills; in a PID           sandboxed; becomes
//!     and answers notifications     namespace it is process 1           the program
//! ```
//!
//! [`plan`] decides everything and touches nothing; [`Launch::run`] only does what a plan says. [`Launch`] owns the order of the
//! steps, and undoes what was made for a run that does not take place.

pub mod discover;
mod network;
mod plan;
pub(crate) mod process;
mod run;

pub use network::{AllowedHost, NetworkPlan, PlannedGateway, network_rules};
pub use plan::api_keys::{KeySource, Keys, Secrets};
pub use plan::git_paths::{Checkout, is_shared_place, may_be_in_repository};
pub use plan::shims::{SHIM_PROGRAM, Shims, why_no_shims};
pub use plan::workdir::check_links;
pub use plan::{LaunchError, LaunchPlan, Limits, Options, RunRequest, plan};
pub use run::caller_output::write_to_caller;
pub use run::git_session::GitSession;
pub use run::home_state::{HomeState, SavedHistory};
pub use run::login::{CopiedLogin, LoginError};
pub use run::signals::on_signals;
pub use run::terminal::is_interactive;
pub use run::{Failure, Finished, Launch, OutputReader, Planned, Streams};

pub use crate::sys::programs::distrust;
