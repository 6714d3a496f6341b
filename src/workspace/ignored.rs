//! What git ignores in the user's worktree: installed dependencies, which a task's builds and tests need, and the rest, which a
//! task does without.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::WorkspaceError;
use super::git::Running;
use super::repository::Repository;

/// A worktree that takes git longer to look through goes without its dependencies.
const LONGEST_LOOK: Duration = Duration::from_secs(20);
/// Bytes of names; a worktree with more goes without, too.
const MOST_NAMES: usize = 4 << 20;
/// Directories of dependencies that are carried.
const MOST_DEPENDENCIES: usize = 64;

/// Paths that git ignores, relative to the top of the worktree. A directory stands for everything in it.
#[derive(Debug, Clone, Default)]
pub(super) struct Ignored {
    /// Installed dependencies and build directories.
    pub(super) dependencies: Vec<PathBuf>,
    /// Everything else.
    pub(super) others: Vec<PathBuf>,
}

/// Begins to list what git ignores in a worktree. It does not look into directories that are ignored as a whole.
pub(super) fn start(repository: &Repository, top: &Path) -> Result<Running, WorkspaceError> {
    let list = ["--others", "--ignored", "--exclude-standard", "--directory", "--no-empty-directory", "-z"];
    let call = repository.git("ls-files")?.worktree(top).within(top).limit(LONGEST_LOOK).most(MOST_NAMES);
    Ok(call.args(list).start()?)
}

/// What was listed. What cannot be listed is nothing.
pub(super) fn finish(listing: Running, top: &Path) -> Ignored {
    let mut ignored = Ignored::default();
    let names = listing.succeed().unwrap_or_default();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let path = PathBuf::from(OsStr::from_bytes(name.strip_suffix(b"/").unwrap_or(name)));
        let is_carried = ignored.dependencies.len() < MOST_DEPENDENCIES && is_dependency(top, &path);
        let list = if is_carried { &mut ignored.dependencies } else { &mut ignored.others };
        list.push(path);
    }
    ignored
}

/// Whether a package manager or a build made a directory: known by its name, and by what lies in it or beside it.
fn is_dependency(top: &Path, path: &Path) -> bool {
    let directory = top.join(path);
    if !directory.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return false;
    }
    let beside = |names: &[&str]| names.iter().any(|name| directory.with_file_name(name).is_file());
    let inside = |names: &[&str]| names.iter().any(|name| directory.join(name).is_file());
    match path.file_name().map(OsStr::as_bytes) {
        Some(b"node_modules") => true,
        Some(b"vendor") => beside(&["composer.json", "go.mod", "Gemfile", "Cargo.toml"]),
        Some(b"target") => beside(&["Cargo.toml"]) && inside(&["CACHEDIR.TAG", ".rustc_info.json"]),
        // A virtual environment of Python has any name.
        _ => inside(&["pyvenv.cfg"]),
    }
}
