//! What a repository says that guard does not follow unasked.
//!
//! The directory somebody starts a run in may have been written by an agent before: an earlier run without a repository, a
//! repository planted in a subdirectory. What is found there as "the user's repository" may be the agent's, made to have
//! guard run a program outside the sandbox (filters), or to have it hand out something else than this directory (a `.git`
//! that leads to another repository, borrowed objects, copied files). Nothing distinguishes it from the user's own but
//! what it asks for; so whoever asks for such things must be trusted by name.

mod layout;
mod settings;

use std::path::Path;

use super::WorkspaceError;
use super::git::config::Settings;
use super::git::repository::Repository;
use crate::terminal_text;

/// Doubts that are told; more are as bad.
const MOST_TOLD: usize = 5;

/// Refuses a repository that asks for more than guard gives unasked. Nothing of it has run, and nothing has been made.
pub(crate) fn check(repository: &Repository, settings: &Settings) -> Result<(), WorkspaceError> {
    if repository.trusted {
        return Ok(());
    }
    let mut doubts = Vec::new();
    layout::pointer(repository, settings, &mut doubts);
    layout::parts(repository, &mut doubts);
    layout::hooks(repository, settings, &mut doubts);
    settings::all(repository, settings, &mut doubts);
    // Later calls name the directory that all worktrees share, which may have settings that this worktree does not see.
    let beside = repository.common_dir.join("config.worktree");
    if repository.is_linked() && beside.symlink_metadata().is_ok() {
        let call = Settings::call(repository)?.dir(&repository.common_dir);
        settings::all(repository, &Settings::understand(&call.run()?), &mut doubts);
    }
    let hint = "look at them; if they are yours, give --trust-repository, or --in-place to leave the repository alone";
    told(repository, doubts, hint)
}

/// Refuses to push from a repository whose own settings say what a push starts, or whom it shows the user's credentials.
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

/// Below the working tree, the main one, or the git directory. What is not there is nowhere.
fn inside(path: &Path, repository: &Repository) -> bool {
    let Ok(real) = path.canonicalize() else { return false };
    let place = repository.place();
    let roots = repository.toplevel.iter().chain([&repository.common_dir, &place]);
    roots.filter_map(|root| root.canonicalize().ok()).any(|root| real.starts_with(root))
}

fn same(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// A value for a message: one line, of a bounded length, with nothing that moves a cursor.
fn shown(value: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(value).chars().take(120).collect();
    terminal_text::replace(&text)
}

fn shown_path(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    // The end says more than the beginning.
    let bytes = path.as_os_str().as_bytes();
    let cut = bytes.len().saturating_sub(400);
    let text = terminal_text::replace(&String::from_utf8_lossy(&bytes[cut..]));
    if cut > 0 { format!("…{text}") } else { text }
}
