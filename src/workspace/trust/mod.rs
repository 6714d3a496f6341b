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
mod settings;

use std::path::Path;

use super::WorkspaceError;
use super::git::config::Settings;
use super::git::repository::Repository;
use crate::terminal_text;

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
    layout::check_hooks(repository, settings, &mut doubts);
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

/// True if the path exists and resolves to a path inside the working tree, the main working tree, or the git
/// directory.
fn is_inside_repository(path: &Path, repository: &Repository) -> bool {
    let Ok(real) = path.canonicalize() else { return false };
    let place = repository.place();
    let roots = repository.toplevel.iter().chain([&repository.common_dir, &place]);
    roots.filter_map(|root| root.canonicalize().ok()).any(|root| real.starts_with(root))
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Formats a value for an error message: on one line, truncated, without terminal control characters.
fn printable(value: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(value).chars().take(120).collect();
    terminal_text::replace(&text)
}

fn printable_path(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    // Keep the end of a long path, because it is more informative than the beginning.
    let bytes = path.as_os_str().as_bytes();
    let cut = bytes.len().saturating_sub(400);
    let text = terminal_text::replace(&String::from_utf8_lossy(&bytes[cut..]));
    if cut > 0 { format!("…{text}") } else { text }
}
