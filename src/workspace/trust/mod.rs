//! Decides whether guard may follow what a repository's configuration and layout ask for.
//!
//! An agent may have written the directory in which a run is started: an earlier run without a repository, or
//! a repository planted in a subdirectory. What looks like the user's repository may then be made to have
//! guard run a program outside the sandbox (filters), or hand out something other than this directory (a
//! `.git` that names another repository, borrowed objects, copied files). Nothing but its requests
//! distinguishes it from the user's own repository. Therefore the user must explicitly trust a repository
//! that makes such requests.

mod layout;
mod settings;

use std::path::Path;

use super::WorkspaceError;
use super::git::config::Settings;
use super::git::repository::Repository;
use crate::terminal_text;

/// Maximum number of doubts to report.
const MOST_TOLD: usize = 5;

/// Refuses a repository that asks for more than guard grants by default. Nothing of it has run, and nothing
/// has been created.
pub(crate) fn check(repository: &Repository, settings: &Settings) -> Result<(), WorkspaceError> {
    if repository.trusted {
        return Ok(());
    }
    let mut doubts = Vec::new();
    layout::pointer(repository, settings, &mut doubts);
    layout::parts(repository, &mut doubts);
    layout::hooks(repository, settings, &mut doubts);
    settings::all(repository, settings, &mut doubts);
    // Later calls use the common directory, which may have settings that this worktree does not see.
    let beside = repository.common_dir.join("config.worktree");
    if repository.is_linked() && beside.symlink_metadata().is_ok() {
        let call = Settings::call(repository)?.dir(&repository.common_dir);
        settings::all(repository, &Settings::understand(&call.run()?), &mut doubts);
    }
    let hint = "look at them; if they are yours, give --trust-repository, or --in-place to leave the repository alone";
    told(repository, doubts, hint)
}

/// Refuses to push from a repository whose own settings choose what a push starts, or who receives the user's
/// credentials.
pub(crate) fn check_push(repository: &Repository, settings: &Settings) -> Result<(), WorkspaceError> {
    let mut doubts = Vec::new();
    settings::of_push(settings, &mut doubts);
    let hint = "look at them; if they are yours, give --trust-repository, or push the branch yourself";
    if repository.trusted { Ok(()) } else { told(repository, doubts, hint) }
}

fn told(repository: &Repository, mut doubts: Vec<String>, hint: &str) -> Result<(), WorkspaceError> {
    doubts.dedup();
    if doubts.is_empty() {
        return Ok(());
    }
    let more = doubts.len().saturating_sub(MOST_TOLD);
    doubts.truncate(MOST_TOLD);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    Err(WorkspaceError::refused(
        format!(
            "the repository {} asks for things that an agent could have planted: {}{more}",
            shown_path(&repository.common_dir),
            doubts.join("; ")
        ),
        hint,
    ))
}

/// True if the path lies below the working tree, the main one, or the git directory. False if it does not
/// exist.
fn inside(path: &Path, repository: &Repository) -> bool {
    let Ok(real) = path.canonicalize() else { return false };
    let place = repository.place();
    let roots = repository.toplevel.iter().chain([&repository.common_dir, &place]);
    roots.filter_map(|root| root.canonicalize().ok()).any(|root| real.starts_with(root))
}

fn same(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// A value for a message: one line, truncated, without terminal control characters.
fn shown(value: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(value).chars().take(120).collect();
    terminal_text::replace(&text)
}

fn shown_path(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    // The end of a path is more informative than its beginning.
    let bytes = path.as_os_str().as_bytes();
    let cut = bytes.len().saturating_sub(400);
    let text = terminal_text::replace(&String::from_utf8_lossy(&bytes[cut..]));
    if cut > 0 { format!("…{text}") } else { text }
}
