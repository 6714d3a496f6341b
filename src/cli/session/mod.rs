//! From the arguments and the defaults of a run to its workspace and its request.

pub(in crate::cli) mod agent_run;
pub(in crate::cli) mod checkout;
pub(in crate::cli) mod content_record;
pub(in crate::cli) mod defaults;
pub(in crate::cli) mod keep_runs;
pub(in crate::cli) mod policy_files;
pub(in crate::cli) mod run_reference;
pub(in crate::cli) mod run_workspace;
pub(in crate::cli) mod user_directories;
pub(in crate::cli) mod worktree_lookup;
