//! Finds what a new worktree lacks compared to the user's: installed dependencies and submodule files, which
//! builds and tests need, and the other ignored files, which the run does not get.

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

/// Timeout of the listing. On timeout the run gets no dependencies.
const LONGEST_LOOK: Duration = Duration::from_secs(20);
/// Maximum size of the listed names. Above that the run gets no dependencies.
const MOST_NAMES: usize = 4 << 20;
/// Maximum number of dependency directories.
const MOST_DEPENDENCIES: usize = 64;

/// Paths that git ignores, relative to the top of the worktree. A directory stands for everything in it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ignored {
    /// Installed dependencies and build directories.
    pub(crate) dependencies: Vec<PathBuf>,
    /// Everything else.
    pub(crate) others: Vec<PathBuf>,
}

/// Starts listing what git ignores in a worktree. git does not enter directories that are ignored as a whole.
pub(crate) fn start(repository: &Repository, top: &Path) -> Result<Running, WorkspaceError> {
    let list = ["--others", "--ignored", "--exclude-standard", "--directory", "--no-empty-directory", "-z"];
    let call = repository.git("ls-files")?.worktree(top).within(top).limit(LONGEST_LOOK).most(MOST_NAMES);
    Ok(call.args(list).start()?)
}

/// Parses the listing. If it failed, the result is empty.
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

/// Maximum number of files and directories of one submodule; a larger one is not copied.
const MOST_OF_SUBMODULE: usize = 20_000;

/// Copies the files of initialised submodules into a new worktree, where git leaves their directories empty.
/// Their git directories are not copied, so the run sees files without history. Returns the submodules that
/// were not copied.
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

/// True for a directory that a package manager or a build created, judged by its name and by what lies in it
/// or beside it.
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
        // A Python virtual environment can have any name.
        _ => inside(&["pyvenv.cfg"]),
    }
}
