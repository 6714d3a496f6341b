//! Removes directory trees that an agent made: of any depth and width, including directories without permissions.
//!
//! The standard library's version recurses and keeps a descriptor open per level, so a chain of ten thousand
//! directories, which is quick to create, makes it fail. This version returns to the parent through `..`, so two
//! descriptors are enough.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::NixPath;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmod, fchmodat, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// The maximum number of names of one directory that are in memory at a time.
const BATCH: usize = 1 << 16;
/// How long [`remove_tree`] tries again while another process still adds files to the tree.
const PATIENCE: Duration = Duration::from_secs(3);

/// Removes a file, a symlink, or a directory with its contents. Does not follow symlinks. Succeeds if the path does not
/// exist. No other process may rename directories in the tree meanwhile.
pub fn remove_tree(tree: &Path) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match remove(tree) {
            // A process that outlived an interrupted run may still write to the tree for a moment.
            Err(Errno::ENOTEMPTY | Errno::EEXIST) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            removed => return Ok(removed?),
        }
    }
}

fn remove(tree: &Path) -> Result<(), Errno> {
    if remove_at(AT_FDCWD, tree)? {
        return Ok(());
    }
    clear(enter(AT_FDCWD, tree)?)?;
    ignore_missing(unlinkat(AT_FDCWD, tree, UnlinkatFlags::RemoveDir))
}

fn ignore_missing(result: Result<(), Errno>) -> Result<(), Errno> {
    if matches!(result, Err(Errno::ENOENT)) { Ok(()) } else { result }
}

/// A directory on the path from the top of the tree to the directory that is being emptied.
struct Level {
    /// The name of this directory in its parent directory.
    name: CString,
    /// The entries of the parent directory that must still be removed.
    above: Contents,
}

/// The entries that [`scan`] could not remove from a directory: its non-empty subdirectories.
struct Contents {
    directories: Vec<CString>,
    /// True if `scan` read the whole directory, and not only one batch of names.
    is_all: bool,
}

fn clear(top: OwnedFd) -> Result<(), Errno> {
    let mut at = top;
    let mut contents = scan(&at)?;
    let mut path: Vec<Level> = Vec::new();
    loop {
        if let Some(name) = contents.directories.pop() {
            match enter(at.as_fd(), name.as_c_str()) {
                Err(Errno::ENOENT) => continue,
                directory => at = directory?,
            }
            let inner = scan(&at)?;
            path.push(Level { name, above: std::mem::replace(&mut contents, inner) });
        } else if !contents.is_all {
            contents = scan(&at)?;
        } else if let Some(level) = path.pop() {
            at = openat(at.as_fd(), c"..", DIRECTORY_FLAGS, Mode::empty())?;
            ignore_missing(unlinkat(at.as_fd(), level.name.as_c_str(), UnlinkatFlags::RemoveDir))?;
            contents = level.above;
        } else {
            return Ok(());
        }
    }
}

const DIRECTORY_FLAGS: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Opens a directory. If the owner lacks permissions on it, adds them first.
fn enter<P: NixPath + ?Sized>(above: BorrowedFd<'_>, name: &P) -> Result<OwnedFd, Errno> {
    let directory = match openat(above, name, DIRECTORY_FLAGS, Mode::empty()) {
        Err(Errno::EACCES) => {
            fchmodat(above, name, Mode::S_IRWXU, FchmodatFlags::FollowSymlink)?;
            openat(above, name, DIRECTORY_FLAGS, Mode::empty())?
        }
        opened => opened?,
    };
    let mode = Mode::from_bits_truncate(fstat(&directory)?.st_mode);
    if !mode.contains(Mode::S_IRWXU) {
        fchmod(&directory, mode | Mode::S_IRWXU)?;
    }
    Ok(directory)
}

/// Removes all entries of a directory except non-empty subdirectories, which it returns.
fn scan(directory: &OwnedFd) -> Result<Contents, Errno> {
    let mut names: Vec<CString> = Vec::new();
    let mut is_all = true;
    // Read the entries through a separate descriptor, which has its own read position.
    for entry in Dir::from_fd(openat(directory.as_fd(), c".", DIRECTORY_FLAGS, Mode::empty())?)?.iter() {
        if names.len() >= BATCH {
            is_all = false;
            break;
        }
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    let mut directories = Vec::new();
    for name in names {
        if !remove_at(directory.as_fd(), name.as_c_str())? {
            directories.push(name);
        }
    }
    Ok(Contents { directories, is_all })
}

/// Removes a file or an empty directory. Returns false if it is a non-empty directory.
fn remove_at<P: NixPath + ?Sized>(directory: BorrowedFd<'_>, name: &P) -> Result<bool, Errno> {
    match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::EISDIR | Errno::EPERM) => {}
        other => return ignore_missing(other).map(|()| true),
    }
    match unlinkat(directory, name, UnlinkatFlags::RemoveDir) {
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(false),
        other => ignore_missing(other).map(|()| true),
    }
}
