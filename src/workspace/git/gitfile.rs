//! Manages the worktree's `.git` file: it names the quarantine while an agent works, and the real git
//! directory otherwise.
//!
//! The file lies in a directory that the agent can write. Anything unexpected found there is foreign: guard
//! moves it to the run's directory, reads it only to compare, never follows it, and never deletes it.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::sys::remove_tree::remove_tree;

/// The subdirectory of the run's directory for foreign files.
const FOREIGN: &str = "foreign";

/// The content of a `.git` file with this target.
pub(crate) fn content(target: &Path) -> Vec<u8> {
    [b"gitdir: ", target.as_os_str().as_bytes(), b"\n"].concat()
}

/// Makes the worktree's `.git` name `target`. Returns where anything foreign was moved to.
pub(crate) fn point(worktree: &Path, target: &Path, run_folder: &Path) -> io::Result<Option<PathBuf>> {
    open_folder(worktree)?;
    let wanted = content(target);
    if holds(&worktree.join(".git"), &wanted) {
        return Ok(None);
    }
    put_git_file(worktree, &wanted, run_folder)
}

/// Makes the worktree's `.git` a regular file with this content. Returns where anything foreign was moved to.
pub(crate) fn put_git_file(worktree: &Path, wanted: &[u8], run_folder: &Path) -> io::Result<Option<PathBuf>> {
    let file = worktree.join(".git");
    open_folder(worktree)?;
    let moved = match file.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
        // One of guard's own two pointers: it can be overwritten.
        Ok(_) if is_known(&file, run_folder) => None,
        Ok(_) => Some(take_away(&file, run_folder)?),
    };
    // Create a new file and rename it, so that the change is atomic. The name is random, so nobody can have
    // put something there.
    let new = worktree.join(format!(".git.guard-{}", uuid::Uuid::now_v7()));
    let mut made = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new)?;
    made.write_all(wanted)?;
    fs::rename(&new, &file)?;
    Ok(moved)
}

/// True for a regular file with exactly this content.
pub(crate) fn holds(file: &Path, wanted: &[u8]) -> bool {
    read_small(file, wanted.len()).is_ok_and(|found| found == wanted)
}

fn is_known(file: &Path, run_folder: &Path) -> bool {
    holds(file, &content(&run_folder.join("git")))
}

/// Reads a small regular file. Follows no symbolic link, and does not block on a FIFO.
pub(crate) fn read_small(file: &Path, most: usize) -> io::Result<Vec<u8>> {
    read_with(file, most, libc::O_NOFOLLOW)
}

/// Like `read_small`, but follows symbolic links.
pub(crate) fn read_linked(file: &Path, most: usize) -> io::Result<Vec<u8>> {
    read_with(file, most, 0)
}

fn read_with(file: &Path, most: usize, flags: i32) -> io::Result<Vec<u8>> {
    let flags = flags | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(file)?;
    let data = opened.metadata()?;
    if !data.is_file() || data.len() > most as u64 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut found = Vec::new();
    opened.take(most as u64 + 1).read_to_end(&mut found)?;
    Ok(found)
}

/// Moves a foreign file or directory to the run's directory, under a unique name.
pub(crate) fn take_away(thing: &Path, run_folder: &Path) -> io::Result<PathBuf> {
    // A directory can only be moved if its owner may write to it.
    open_folder(thing)?;
    let folder = run_folder.join(FOREIGN);
    fs::DirBuilder::new().mode(0o700).recursive(true).create(&folder)?;
    let name = thing.file_name().unwrap_or(OsStr::new("thing")).to_string_lossy().into_owned();
    let name = name.trim_start_matches('.').to_string();
    for count in 0u32.. {
        let place = folder.join(format!("{name}-{count}"));
        if place.symlink_metadata().is_ok() {
            continue;
        }
        match fs::rename(thing, &place) {
            Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {}
            renamed => return renamed.map(|()| place),
        }
        if copy_tree(thing, &place, &mut Budget::default()).is_ok() {
            remove_tree(thing)?;
            return Ok(place);
        }
        // It is too deep, too large, or not readable. Leave it on its own file system, under a name that git
        // does not look for.
        remove_tree(&place)?;
        let beside = thing.with_file_name(format!("foreign-{name}-{}", uuid::Uuid::now_v7()));
        return fs::rename(thing, &beside).map(|()| beside);
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The limits of a copy.
pub(crate) struct Budget {
    pub(crate) entries: usize,
    pub(crate) depth: usize,
    /// Per file: a sparse file can have any size, and a copy would fill it.
    pub(crate) bytes: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { entries: 1_000_000, depth: 256, bytes: 1 << 30 }
    }
}

/// Copies files, directories and symbolic links unchanged. Skips FIFOs, sockets and devices.
pub(crate) fn copy_tree(from: &Path, to: &Path, budget: &mut Budget) -> io::Result<()> {
    if budget.entries == 0 || budget.depth == 0 {
        return Err(io::Error::other("more entries, or deeper, than can be copied"));
    }
    budget.entries -= 1;
    let data = from.symlink_metadata()?;
    if data.is_file() && data.len() > budget.bytes {
        return Err(io::Error::other("larger than can be copied"));
    }
    if data.is_symlink() {
        symlink(fs::read_link(from)?, to)
    } else if data.is_dir() {
        fs::DirBuilder::new().mode(0o700).create(to)?;
        budget.depth -= 1;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy_tree(&entry.path(), &to.join(entry.file_name()), budget)?;
        }
        budget.depth += 1;
        fs::set_permissions(to, data.permissions())
    } else if data.is_file() {
        fs::copy(from, to).map(drop)
    } else {
        Ok(())
    }
}

/// Restores the owner's access to a directory that an agent closed.
fn open_folder(folder: &Path) -> io::Result<()> {
    let data = folder.symlink_metadata();
    match data {
        Ok(data) if data.is_dir() && data.permissions().mode() & 0o700 != 0o700 => {
            let mode = data.permissions().mode() & 0o7777 | 0o700;
            fs::set_permissions(folder, fs::Permissions::from_mode(mode))
        }
        _ => Ok(()),
    }
}

/// Restores the owner's access to everything below a directory, as far as path lengths allow: git goes no
/// further either.
pub(crate) fn open_up(folder: &Path) {
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let _ = open_folder(&folder);
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => {
                    let _ = open_file(&entry);
                }
                _ => {}
            }
        }
    }
}

fn open_file(entry: &fs::DirEntry) -> io::Result<()> {
    let mode = entry.metadata()?.permissions().mode() & 0o7777;
    if mode & 0o400 != 0 {
        return Ok(());
    }
    fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode | 0o400))
}
