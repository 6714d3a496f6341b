//! Creates the git workspace of a run: worktree, branch and quarantine repository.
pub(crate) mod checkout_files;
pub(crate) mod create;
pub(crate) mod extra_files;
pub(crate) mod hooks;
pub(crate) mod ignored_files;
pub(crate) mod path_text;
pub(crate) mod quarantine;
pub(crate) mod run_record;
pub(crate) mod slug;
pub(crate) mod spec;
pub(crate) mod user_changes;
