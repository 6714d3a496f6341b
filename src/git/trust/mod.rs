//! Decides whether guard may obey the configuration and layout of a repository that the user has not explicitly
//! trusted.
//!
//! An agent may have created the repository in which the user starts a run, for example during an earlier run in a
//! plain directory. Such a repository can make guard run a program outside the sandbox (filters), or give the agent
//! files from outside the repository (by a `.git` file that points to another repository, by alternates, by files that
//! guard copies). guard cannot distinguish such a repository from one that the user made. Therefore guard collects
//! everything suspicious (the "doubts"), and refuses a repository with doubts unless the user gives
//! `--trust-repository`.

mod layout;
mod paths;
mod settings;

use super::WorkspaceError;
use crate::git::plumbing::config::Settings;
use crate::git::plumbing::repository::Repository;
use paths::printable_path;

/// Maximum number of doubts (reasons to distrust a repository) in an error message.
const MAX_REPORTED: usize = 5;

/// Fails if the repository's settings or layout need the user's trust, and the user has not given
/// `--trust-repository`. Runs no program from the repository, and creates nothing.
pub(crate) fn check(repository: &Repository, settings: &Settings) -> Result<(), WorkspaceError> {
    if repository.trusted {
        return Ok(());
    }
    let mut doubts = Vec::new();
    layout::check_pointer(repository, settings, &mut doubts);
    layout::check_parts(repository, &mut doubts);
    settings::check_all(repository, settings, &mut doubts);
    // guard's later git calls use the common directory, which may have settings that do not apply in this worktree.
    let beside = repository.common_dir.join("config.worktree");
    if repository.is_linked() && beside.symlink_metadata().is_ok() {
        let call = Settings::list_call(repository)?.git_dir(&repository.common_dir);
        settings::check_all(repository, &Settings::parse(&call.run()?), &mut doubts);
    }
    let hint = "check these settings and files; if they are yours, give --trust-repository, or --in-place to work without a worktree";
    refuse_if_doubtful(repository, doubts, hint)
}

/// Fails if the repository's settings choose programs that a push starts, or servers that receive the user's
/// credentials, unless the user trusts the repository.
pub(crate) fn check_push(repository: &Repository, settings: &Settings) -> Result<(), WorkspaceError> {
    let mut doubts = Vec::new();
    settings::check_push(settings, &mut doubts);
    let hint = "check these settings and files; if they are yours, give --trust-repository, or push the branch yourself";
    if repository.trusted { Ok(()) } else { refuse_if_doubtful(repository, doubts, hint) }
}

fn refuse_if_doubtful(
    repository: &Repository,
    mut doubts: Vec<String>,
    hint: &str,
) -> Result<(), WorkspaceError> {
    doubts.dedup();
    if doubts.is_empty() {
        return Ok(());
    }
    let more = doubts.len().saturating_sub(MAX_REPORTED);
    doubts.truncate(MAX_REPORTED);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    Err(WorkspaceError::refused(
        format!(
            "the repository {} has settings or files that an agent could have planted: {}{more}",
            printable_path(&repository.common_dir),
            doubts.join("; ")
        ),
        hint,
    ))
}
