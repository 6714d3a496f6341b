//! What a new worktree lacks beside the user's: installed dependencies, which git ignores, and the files of submodules, both of
//! which a task's builds and tests need; and the rest of what git ignores, which a task does without.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::extra_files::{is_inside, is_way_plain};
use crate::sys::remove_tree::remove_tree;
use crate::workspace::WorkspaceError;
use crate::workspace::git::command::Running;
use crate::workspace::git::gitfile::{Budget, copy_tree};
use crate::workspace::git::repository::Repository;

/// A worktree that takes git longer to look through goes without its dependencies.
const LONGEST_LOOK: Duration = Duration::from_secs(20);
/// Bytes of names; a worktree with more goes without, too.
const MOST_NAMES: usize = 4 << 20;
/// Directories of dependencies that are carried.
const MOST_DEPENDENCIES: usize = 64;

/// Paths that git ignores, relative to the top of the worktree. A directory stands for everything in it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ignored {
    /// Installed dependencies and build directories.
    pub(crate) dependencies: Vec<PathBuf>,
    /// Everything else.
    pub(crate) others: Vec<PathBuf>,
}

/// Begins to list what git ignores in a worktree. It does not look into directories that are ignored as a whole.
pub(crate) fn start(repository: &Repository, top: &Path) -> Result<Running, WorkspaceError> {
    let list = ["--others", "--ignored", "--exclude-standard", "--directory", "--no-empty-directory", "-z"];
    let call = repository.git("ls-files")?.worktree(top).within(top).limit(LONGEST_LOOK).most(MOST_NAMES);
    Ok(call.args(list).start()?)
}

/// What was listed. What cannot be listed is nothing.
pub(crate) fn finish(listing: Running, top: &Path) -> Ignored {
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

/// Files and directories of one submodule that are copied; a larger one stays behind.
const MOST_OF_SUBMODULE: usize = 20_000;

/// Copies the files of initialised submodules into a new worktree, where git leaves their directories empty. Their git
/// directories stay the user's: inside the run they are files without a history. Those that stay behind.
pub(crate) fn copy_submodules(
    repository: &Repository,
    top: &Path,
    worktree: &Path,
) -> Result<Vec<PathBuf>, WorkspaceError> {
    if !worktree.join(".gitmodules").is_file() {
        return Ok(Vec::new());
    }
    let call = repository.git("config")?.worktree(top).within(top);
    let list = ["--file", ".gitmodules", "-z", "--get-regexp", r"^submodule\..*\.path$"];
    let names = call.args(list).run().unwrap_or_default();
    let mut left_behind = Vec::new();
    for entry in names.split(|&byte| byte == 0) {
        let Some(at) = entry.iter().position(|&byte| byte == b'\n') else { continue };
        let path = Path::new(OsStr::from_bytes(&entry[at + 1..]));
        let (from, to) = (top.join(path), worktree.join(path));
        let is_initialised = from.join(".git").exists();
        let is_empty = std::fs::read_dir(&to).is_ok_and(|mut entries| entries.next().is_none());
        if !is_inside(path) || !is_initialised || !is_empty || !is_way_plain(worktree, path) {
            continue;
        }
        if copy_without_git(&from, &to).is_err() {
            for entry in std::fs::read_dir(&to).into_iter().flatten().flatten() {
                crate::workspace::at("empty", &to, remove_tree(&entry.path()))?;
            }
            left_behind.push(path.to_path_buf());
        }
    }
    Ok(left_behind)
}

fn copy_without_git(from: &Path, to: &Path) -> io::Result<()> {
    let mut budget = Budget { entries: MOST_OF_SUBMODULE, ..Budget::default() };
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_name() != ".git" {
            copy_tree(&entry.path(), &to.join(entry.file_name()), &mut budget)?;
        }
    }
    Ok(())
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
