//! From the settings of a run and the defaults of the user and the project to the run itself: its policy, its agent,
//! its keys and its workspace. Also finds earlier runs by the names that users type, and deletes old ones.
//!
//! ```text
//!   RunSettings ─► configuration::with_defaults ─► PreparedRun ─► OpenedRun ─► EndedRun
//! ```
//!
//! This module neither prints nor asks: it gives its notes and questions to the [`Caller`].

mod agent_run;
pub(crate) mod allow_rules;
mod caller;
pub(crate) mod checkout;
mod configuration;
mod content_record;
pub(crate) mod defaults;
mod failure;
pub(crate) mod keep_runs;
mod not_started;
mod pipeline;
pub(crate) mod policy_files;
pub(crate) mod run_reference;
mod run_request;
mod run_workspace;
pub(crate) mod user_directories;
pub(crate) mod worktree_lookup;

pub(crate) use agent_run::is_installed;
pub(crate) use caller::{Caller, Question};
pub(crate) use configuration::{configuration, confirm_defaults, policy_here, user_config, with_defaults};
pub(crate) use failure::Failure;
pub(crate) use not_started::{NotStarted, Problem, with_error};
pub(crate) use pipeline::{EndedRun, PreparedRun};
pub(crate) use run_workspace::WorkspaceProblem;
