//! Runs git. Where that is safer, reads a repository's files directly instead. Never lets git discover a repository
//! from the agent's worktree.
pub(crate) mod cat_file;
pub(crate) mod command;
pub(crate) mod config;
pub(crate) mod find_worktree;
pub(crate) mod gitfile;
pub(crate) mod jail;
pub(crate) mod jailed_worktree;
pub(crate) mod outcome;
pub(crate) mod refs;
pub(crate) mod remote;
pub(crate) mod repository;
mod running;
pub(crate) mod setting;
pub(crate) mod stderr_messages;
pub(crate) mod url_credentials;
