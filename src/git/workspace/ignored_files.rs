//! Finds files of the user's worktree that git does not put into a new worktree. Builds and tests need installed
//! dependencies and submodule files, so guard gives them to the run; the run does not get other ignored files.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::checkout_files::{CheckoutFiles, open_plain_directory};
use super::extra_files::{has_plain_parents, is_inside};
use crate::git::plumbing::command::Running;
use crate::git::plumbing::gitfile::read_small;
use crate::git::plumbing::repository::Repository;
use crate::git::{WorkspaceError, at};
use crate::sys::copy_tree::{CopyBudget, Entry, copy_path, names, open_directory, open_entry};
use crate::sys::remove_tree::remove_tree;

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
/// first 64 into `others`. If git failed, the result is empty, and `files` gets a note.
pub(crate) fn finish_listing(listing: Running, top: &Path, files: &mut CheckoutFiles) -> Ignored {
    let mut ignored = Ignored::default();
    let names = listing.expect_success().unwrap_or_else(|error| {
        let fifo = "a FIFO in place of a `.gitignore` would block git (`find . -name .gitignore -type p`)";
        files.note("installed dependencies", &format!("git cannot list the ignored files: {error}; {fifo}"));
        Vec::new()
    });
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

/// Maximum size of `.gitmodules`, in bytes.
const MAX_GITMODULES: usize = 1 << 20;

/// Copies the files of initialised submodules into a new worktree, where git leaves the directories of submodules
/// empty. Does not copy git directories, so the run gets the files without their history. Returns the paths of the
/// submodules that it could not copy completely, and leaves their directories empty.
///
/// `.gitmodules` is a file of the commit, so an agent may have written it. guard copies a directory only if it is the
/// working tree of a submodule of this repository: its `.git` file names a git directory below `modules` of the
/// repository. Any other repository in the user's checkout may be private.
pub(crate) fn copy_submodules(
    repository: &Repository,
    top: &Path,
    worktree: &Path,
    files: &mut CheckoutFiles,
) -> Result<Vec<PathBuf>, WorkspaceError> {
    let Ok(listed) = read_small(&worktree.join(".gitmodules"), MAX_GITMODULES) else { return Ok(Vec::new()) };
    let call = repository.git("config")?.input(listed);
    let list = ["--file", "-", "--no-includes", "-z", "--get-regexp", r"^submodule\..*\.path$"];
    let paths = call.args(list).run().unwrap_or_default();
    let real_top = at("open", top, top.canonicalize().and_then(|top| open_directory(&top)))?;
    let mut left_behind = Vec::new();
    for entry in paths.split(|&byte| byte == 0) {
        let Some(end) = entry.iter().position(|&byte| byte == b'\n') else { continue };
        let path = Path::new(OsStr::from_bytes(&entry[end + 1..]));
        let to = worktree.join(path);
        let is_empty = to.symlink_metadata().is_ok_and(|data| data.is_dir())
            && std::fs::read_dir(&to).is_ok_and(|mut entries| entries.next().is_none());
        if !is_inside(path) || !is_empty || !has_plain_parents(worktree, path) {
            continue;
        }
        let from = match open_plain_directory(&real_top, path) {
            Ok(from) => from,
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                let why = format!("a symbolic link is in the path {}", top.join(path).display());
                files.note(&submodule(path), &why);
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                let why = format!("{} is not a directory", top.join(path).display());
                files.note(&submodule(path), &why);
                continue;
            }
            Err(_) => continue,
        };
        match own_git_directory(repository, &from, &top.join(path)) {
            GitDirectory::None => continue,
            GitDirectory::Submodule => {}
            GitDirectory::Other => {
                let why = format!(
                    "{} is another repository; if it is a submodule, `git submodule absorbgitdirs` registers it",
                    top.join(path).display()
                );
                files.note(&submodule(path), &why);
                continue;
            }
        }
        if copy_without_git(&from, &to).is_err() {
            for entry in std::fs::read_dir(&to).into_iter().flatten().flatten() {
                at("empty", &to, remove_tree(&entry.path()))?;
            }
            left_behind.push(path.to_path_buf());
        }
    }
    Ok(left_behind)
}

fn submodule(path: &Path) -> String {
    format!("the submodule {}", path.display())
}

/// The kinds of a directory in the user's checkout at the path of a submodule.
enum GitDirectory {
    /// It has no `.git`: the submodule is not initialised.
    None,
    /// It is the working tree of a submodule of the repository.
    Submodule,
    /// Its `.git` is a directory, or names another repository.
    Other,
}

/// Returns whether an open directory, with this path, is the working tree of a submodule of the repository.
fn own_git_directory(repository: &Repository, directory: &File, path: &Path) -> GitDirectory {
    let text = match open_entry(directory.as_fd(), Path::new(".git")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return GitDirectory::None,
        Ok(Entry::Opened(file)) if file.metadata().is_ok_and(|data| data.is_file()) => {
            let mut text = Vec::new();
            match file.take(MAX_GIT_FILE).read_to_end(&mut text) {
                Ok(_) => text,
                Err(_) => return GitDirectory::Other,
            }
        }
        _ => return GitDirectory::Other,
    };
    let named = text.strip_prefix(b"gitdir: ").map(<[u8]>::trim_ascii_end);
    let real = named.and_then(|named| path.join(OsStr::from_bytes(named)).canonicalize().ok());
    let modules = [&repository.git_dir, &repository.common_dir].map(|dir| dir.join("modules"));
    let is_below = |modules: &PathBuf| {
        let modules = modules.canonicalize().ok()?;
        real.as_ref().map(|real| real.starts_with(modules))
    };
    if modules.iter().any(|modules| is_below(modules) == Some(true)) {
        GitDirectory::Submodule
    } else {
        GitDirectory::Other
    }
}

/// Maximum size of a `.git` file, in bytes.
const MAX_GIT_FILE: u64 = 8192;

fn copy_without_git(from: &File, to: &Path) -> io::Result<()> {
    let mut budget = CopyBudget { entries: MAX_SUBMODULE_ENTRIES, ..CopyBudget::default() };
    for name in names(from)?.into_iter().filter(|name| name != ".git") {
        copy_path(from.as_fd(), Path::new(&name), &to.join(&name), &mut budget)?;
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
        // A Python virtual environment can have any name. A run may have put such a file into any directory.
        _ => inside(&["pyvenv.cfg"]) && contains_only(&directory, &VIRTUAL_ENVIRONMENT),
    }
}

/// What tools create at the top of a Python virtual environment.
const VIRTUAL_ENVIRONMENT: [&str; 13] = [
    "pyvenv.cfg",
    "bin",
    "lib",
    "lib64",
    "include",
    "share",
    "etc",
    "man",
    "src",
    ".gitignore",
    ".lock",
    ".hash",
    "CACHEDIR.TAG",
];

fn contains_only(directory: &Path, names: &[&str]) -> bool {
    let Ok(mut entries) = std::fs::read_dir(directory) else { return false };
    entries.all(|entry| entry.is_ok_and(|entry| names.iter().any(|name| entry.file_name() == *name)))
}
