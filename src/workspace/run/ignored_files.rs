//! Finds files of the user's worktree that git does not put into a new worktree. Builds and tests need installed
//! dependencies and submodule files, so guard gives them to the run; the run does not get other ignored files.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::extra_files::{has_plain_parents, is_inside};
use crate::sys::remove_tree::remove_tree;
use crate::workspace::WorkspaceError;
use crate::workspace::git::command::Running;
use crate::workspace::git::gitfile::{CopyBudget, copy_tree};
use crate::workspace::git::repository::Repository;

/// Timeout for git to list the ignored files. If git exceeds it, the run gets no dependencies.
const LIST_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of the list of ignored files, in bytes. If the list is larger, the run gets no dependencies.
const MAX_LISTED_BYTES: usize = 4 << 20;
/// Maximum number of dependency directories that a run gets.
const MAX_DEPENDENCIES: usize = 64;

/// Paths that git ignores, relative to the top of the user's worktree. An ignored directory is listed without its
/// contents.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ignored {
    /// Directories with installed dependencies or build output, which guard gives to the run.
    pub(crate) dependencies: Vec<PathBuf>,
    /// All ignored paths that are not in `dependencies`.
    pub(crate) others: Vec<PathBuf>,
}

/// Starts the git call that lists the ignored paths of the worktree `top`. git lists a directory that is ignored as a
/// whole as one path.
pub(crate) fn start_listing(repository: &Repository, top: &Path) -> Result<Running, WorkspaceError> {
    let list = ["--others", "--ignored", "--exclude-standard", "--directory", "--no-empty-directory", "-z"];
    let call = repository.git("ls-files")?.worktree(top).current_dir(top);
    let call = call.timeout(LIST_TIMEOUT).max_output(MAX_LISTED_BYTES);
    Ok(call.args(list).start()?)
}

/// Waits for the git call from [`start_listing`], and parses its output. Puts the dependency directories after the
/// first 64 into `others`. If git failed, the result is empty.
pub(crate) fn finish_listing(listing: Running, top: &Path) -> Ignored {
    let mut ignored = Ignored::default();
    let names = listing.expect_success().unwrap_or_default();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let path = PathBuf::from(OsStr::from_bytes(name.strip_suffix(b"/").unwrap_or(name)));
        let is_carried = ignored.dependencies.len() < MAX_DEPENDENCIES && is_dependency(top, &path);
        let list = if is_carried { &mut ignored.dependencies } else { &mut ignored.others };
        list.push(path);
    }
    ignored
}

/// Maximum number of files and directories in a submodule. guard does not copy larger submodules.
const MAX_SUBMODULE_ENTRIES: usize = 20_000;

/// Copies the files of initialised submodules into a new worktree, where git leaves the directories of submodules
/// empty. Does not copy git directories, so the run gets the files without their history. Returns the paths of the
/// submodules that it could not copy completely, and leaves their directories empty.
pub(crate) fn copy_submodules(
    repository: &Repository,
    top: &Path,
    worktree: &Path,
) -> Result<Vec<PathBuf>, WorkspaceError> {
    if !worktree.join(".gitmodules").is_file() {
        return Ok(Vec::new());
    }
    let call = repository.git("config")?.worktree(top).current_dir(top);
    let list = ["--file", ".gitmodules", "-z", "--get-regexp", r"^submodule\..*\.path$"];
    let names = call.args(list).run().unwrap_or_default();
    let mut left_behind = Vec::new();
    for entry in names.split(|&byte| byte == 0) {
        let Some(at) = entry.iter().position(|&byte| byte == b'\n') else { continue };
        let path = Path::new(OsStr::from_bytes(&entry[at + 1..]));
        let (from, to) = (top.join(path), worktree.join(path));
        let is_initialised = from.join(".git").exists();
        let is_empty = std::fs::read_dir(&to).is_ok_and(|mut entries| entries.next().is_none());
        if !is_inside(path) || !is_initialised || !is_empty || !has_plain_parents(worktree, path) {
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
    let mut budget = CopyBudget { entries: MAX_SUBMODULE_ENTRIES, ..CopyBudget::default() };
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_name() != ".git" {
            copy_tree(&entry.path(), &to.join(entry.file_name()), &mut budget)?;
        }
    }
    Ok(())
}

/// True if a package manager or a build created the directory `path`, according to its name and the files in it or
/// beside it.
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
