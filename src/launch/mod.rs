//! A plan → a running process tree → a result. The only room that spawns processes.
//!
//! ```text
//!   guard (parent.rs)  ──fork──►  first process (init.rs)  ──fork──►  agent (child.rs)
//!     outside; judges, records      reaps and kills; in a PID           sandboxed; becomes
//!     and answers notifications     namespace it is process 1           the program
//! ```
//!
//! [`plan`] decides everything and touches nothing; [`Launch::run`] only does what a plan says. [`Launch`] owns the order of the
//! steps, and undoes what was made for a run that does not take place.

mod above;
mod belongings;
mod bounds;
mod caller_output;
mod checkout;
mod child;
mod conclude;
pub mod demo;
mod descendants;
mod first;
mod folder;
mod group;
mod init;
pub mod installation;
mod keys;
mod links;
mod login;
mod managers;
mod network;
mod own_directories;
mod parent;
mod plan;
mod prepare;
mod protocol;
mod pump;
pub mod registries;
mod release;
mod repositories;
mod shims;
mod signals;
mod stdin_feeder;
mod stdin_sharing;
mod stdio;
mod system;
mod task;
mod terminal;
pub mod toolchain;
mod watch;
mod work;

pub use belongings::{Belongings, KeptHistory};
pub use caller_output::write_to_caller;
pub use checkout::{Checkout, is_shared_place, may_be_in_repository};
pub use folder::check_links;
pub use keys::{KeySource, Keys, Secrets};
pub use login::{CopiedLogin, LoginError};
pub use network::{AllowedHost, NetworkPlan, PlannedGateway, network_rules};
pub use parent::{Failure, Finished, Launch, OutputReader, Planned, Streams};
pub use plan::{LaunchError, LaunchPlan, Limits, Options, RunRequest, plan};
pub use shims::{SHIM_PROGRAM, Shims, why_no_shims};
pub use signals::on_signals;
pub use task::Task;
pub use terminal::is_interactive;

pub use crate::sys::programs::distrust;
