//! Writes the `.git` file of a worktree. While an agent works in the worktree without a mount namespace, the file
//! points to the quarantine repository. Otherwise it points to the worktree's git directory in the user's repository.
//!
//! The agent can write to the directory that contains the `.git` file. If guard finds an unexpected file or directory
//! in place of the `.git` file (a "foreign" one), guard moves it to the run's directory, and never follows or deletes
//! it.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::sys::copy_tree::{CopyBudget, copy_path};
use crate::sys::fs::{Durability, Links, read_regular_file, replace_file};
use crate::sys::remove_tree::remove_tree;

/// The name of the subdirectory of the run's directory to which guard moves foreign files, that is, files that it did
/// not expect.
const FOREIGN: &str = "foreign";

/// Returns the content of a `.git` file that points to the git directory `target`.
pub(crate) fn content(target: &Path) -> Vec<u8> {
    [b"gitdir: ", target.as_os_str().as_bytes(), b"\n"].concat()
}

/// Makes the worktree's `.git` file point to the git directory `target`. If there is a `.git` with any other content,
/// moves it to the run's directory and returns its new path. Overwrites a `.git` file that points to the run's
/// quarantine repository, because guard wrote it, and then returns `None`.
pub(crate) fn point_at(worktree: &Path, target: &Path, run_folder: &Path) -> io::Result<Option<PathBuf>> {
    restore_dir_access(worktree)?;
    let wanted = content(target);
    if has_content(&worktree.join(".git"), &wanted) {
        return Ok(None);
    }
    write_git_file(worktree, &wanted, run_folder)
}

/// Replaces the worktree's `.git` by a regular file with the content `wanted`. Moves the old `.git` to the run's
/// directory and returns its new path. Overwrites a `.git` file that points to the run's quarantine repository,
/// because guard wrote it, and then returns `None`, as it does if there was no `.git`.
pub(crate) fn write_git_file(
    worktree: &Path,
    wanted: &[u8],
    run_folder: &Path,
) -> io::Result<Option<PathBuf>> {
    let file = worktree.join(".git");
    restore_dir_access(worktree)?;
    let moved = match file.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
        // guard wrote this `.git` file itself, so it can be overwritten.
        Ok(_) if names_quarantine(&file, run_folder) => None,
        Ok(_) => Some(move_foreign(&file, run_folder)?),
    };
    replace_file(&file, wanted, 0o644, Durability::Unsynced)?;
    Ok(moved)
}

/// True if `file` is a regular file with exactly the content `wanted`.
pub(crate) fn has_content(file: &Path, wanted: &[u8]) -> bool {
    read_small(file, wanted.len()).is_ok_and(|found| found == wanted)
}

fn names_quarantine(file: &Path, run_folder: &Path) -> bool {
    has_content(file, &content(&run_folder.join("git")))
}

/// Reads a regular file of at most `max` bytes. Follows no symbolic link, and does not block on a FIFO.
pub(crate) fn read_small(file: &Path, max: usize) -> io::Result<Vec<u8>> {
    Ok(read_regular_file(file, max as u64, Links::Refuse)?)
}

/// Reads a regular file of at most `max` bytes. Follows symbolic links, and does not block on a FIFO.
pub(crate) fn read_following_links(file: &Path, max: usize) -> io::Result<Vec<u8>> {
    Ok(read_regular_file(file, max as u64, Links::Follow)?)
}

/// Returns the directory in a run's directory to which [`move_foreign`] moves files of the worktree.
pub fn moved_files(run_folder: &Path) -> PathBuf {
    run_folder.join(FOREIGN)
}

/// Moves a foreign file or directory (one that guard did not expect) to the run's directory, under a unique name. If
/// the run's directory is on another file system and guard cannot copy everything to it, leaves the file or directory
/// where it is, and renames it to `foreign-NAME-ID`. Returns the new path.
pub(crate) fn move_foreign(thing: &Path, run_folder: &Path) -> io::Result<PathBuf> {
    // The kernel moves a directory to another parent only if the caller may write to the moved directory itself.
    restore_dir_access(thing)?;
    let dir = moved_files(run_folder);
    fs::DirBuilder::new().mode(0o700).recursive(true).create(&dir)?;
    let name = thing.file_name().unwrap_or(OsStr::new("thing")).to_string_lossy().into_owned();
    let name = name.trim_start_matches('.').to_string();
    for count in 0u32.. {
        // The readable names suffice for a few files. An agent can make guard move thousands.
        let place = match count {
            0..10 => dir.join(format!("{name}-{count}")),
            _ => dir.join(format!("{name}-{}", uuid::Uuid::now_v7())),
        };
        if place.symlink_metadata().is_ok() {
            continue;
        }
        match fs::rename(thing, &place) {
            Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {}
            renamed => return renamed.map(|()| place),
        }
        if copy_foreign(thing, &place).is_ok() {
            remove_tree(thing)?;
            return Ok(place);
        }
        // The directory is too deep, too large, or not readable. Leave it on its file system, under a name that git
        // does not look for.
        remove_tree(&place)?;
        let beside = thing.with_file_name(format!("foreign-{name}-{}", uuid::Uuid::now_v7()));
        return fs::rename(thing, &beside).map(|()| beside);
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn copy_foreign(thing: &Path, to: &Path) -> io::Result<()> {
    let (Some(above), Some(name)) = (thing.parent(), thing.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let above = fs::File::open(above)?;
    copy_path(above.as_fd(), Path::new(name), to, &mut CopyBudget::default())
}

/// Copies a git index file with its modification time. git compares the contents of all files that are not older than
/// the index, because such a file may have changed without a new time stamp. A copy with a newer time would hide such
/// changes.
pub(crate) fn copy_index(from: &Path, to: &Path) -> io::Result<()> {
    let modified = from.metadata()?.modified()?;
    fs::copy(from, to)?;
    OpenOptions::new().write(true).open(to)?.set_modified(modified)
}

/// Gives the owner full access to the directory `dir`, because an agent may have removed the permissions. Does nothing
/// if `dir` is not a directory or does not exist.
fn restore_dir_access(dir: &Path) -> io::Result<()> {
    let data = dir.symlink_metadata();
    match data {
        Ok(data) if data.is_dir() && data.permissions().mode() & 0o700 != 0o700 => {
            set_mode(dir, data.permissions().mode() & 0o7777 | 0o700)
        }
        _ => Ok(()),
    }
}

/// Gives the owner full access to the directory `root` and to each directory on the way to `path`, which is relative to
/// it. Stops at a symbolic link, and where the path does not exist.
pub(crate) fn restore_path_access(root: &Path, path: &Path) -> io::Result<()> {
    let mut dir = root.to_path_buf();
    restore_dir_access(&dir)?;
    for part in path {
        dir.push(part);
        if !dir.symlink_metadata().is_ok_and(|data| data.is_dir()) {
            break;
        }
        restore_dir_access(&dir)?;
    }
    Ok(())
}

/// Gives the owner full access to a directory and all directories below it, and read access to the regular files in
/// them. Ignores errors, such as for a path that is too long for the kernel, because git cannot read such a file
/// either.
pub(crate) fn restore_access(dir: &Path) {
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        let _ = restore_dir_access(&dir);
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                Ok(kind) if kind.is_file() => {
                    let _ = restore_file_access(&entry);
                }
                _ => {}
            }
        }
    }
}

fn restore_file_access(entry: &fs::DirEntry) -> io::Result<()> {
    let mode = entry.metadata()?.permissions().mode() & 0o7777;
    if mode & 0o400 != 0 {
        return Ok(());
    }
    set_mode(&entry.path(), mode | 0o400)
}

/// Changes the mode of a file or directory. Follows no symbolic link, even if another process puts one there.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if opened.metadata()?.is_symlink() {
        return Err(io::Error::from_raw_os_error(libc::ELOOP));
    }
    crate::sys::fs::chmod(opened.as_fd(), mode)
}
