//! Removes directory trees made by an agent: of any depth and width, including directories without permissions.
//!
//! The standard library's version holds a descriptor per level and recurses; a chain of ten thousand directories,
//! which is quick to create, breaks it. This one goes up through `..`, so two descriptors are enough.

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

/// How many names of one directory are held at a time.
const BATCH: usize = 1 << 16;
/// How long to retry while another process still adds files.
const PATIENCE: Duration = Duration::from_secs(3);

/// Removes a file, a symlink, or a directory with its contents. Does not follow symlinks; a missing path is no error.
/// No other process may rename directories in the tree meanwhile.
pub fn remove_tree(tree: &Path) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match remove(tree) {
            // An orphan of an interrupted process may still write there for a moment.
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
    gone(unlinkat(AT_FDCWD, tree, UnlinkatFlags::RemoveDir))
}

fn gone(result: Result<(), Errno>) -> Result<(), Errno> {
    if matches!(result, Err(Errno::ENOENT)) { Ok(()) } else { result }
}

/// A directory on the way down.
struct Level {
    /// Its name in the parent directory.
    name: CString,
    /// What is left to remove in the parent directory.
    above: Contents,
}

/// The non-empty subdirectories of a directory.
struct Contents {
    folders: Vec<CString>,
    is_all: bool,
}

fn clear(top: OwnedFd) -> Result<(), Errno> {
    let mut at = top;
    let mut contents = scan(&at)?;
    let mut way: Vec<Level> = Vec::new();
    loop {
        if let Some(name) = contents.folders.pop() {
            match enter(at.as_fd(), name.as_c_str()) {
                Err(Errno::ENOENT) => continue,
                folder => at = folder?,
            }
            let inner = scan(&at)?;
            way.push(Level { name, above: std::mem::replace(&mut contents, inner) });
        } else if !contents.is_all {
            contents = scan(&at)?;
        } else if let Some(level) = way.pop() {
            at = openat(at.as_fd(), c"..", FOLDER, Mode::empty())?;
            gone(unlinkat(at.as_fd(), level.name.as_c_str(), UnlinkatFlags::RemoveDir))?;
            contents = level.above;
        } else {
            return Ok(());
        }
    }
}

const FOLDER: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Opens a directory, after giving its owner access if necessary.
fn enter<P: NixPath + ?Sized>(above: BorrowedFd<'_>, name: &P) -> Result<OwnedFd, Errno> {
    let folder = match openat(above, name, FOLDER, Mode::empty()) {
        Err(Errno::EACCES) => {
            fchmodat(above, name, Mode::S_IRWXU, FchmodatFlags::FollowSymlink)?;
            openat(above, name, FOLDER, Mode::empty())?
        }
        opened => opened?,
    };
    let mode = Mode::from_bits_truncate(fstat(&folder)?.st_mode);
    if !mode.contains(Mode::S_IRWXU) {
        fchmod(&folder, mode | Mode::S_IRWXU)?;
    }
    Ok(folder)
}

/// Removes everything that can be removed at once. What is left are non-empty directories.
fn scan(folder: &OwnedFd) -> Result<Contents, Errno> {
    let mut names: Vec<CString> = Vec::new();
    let mut is_all = true;
    // Read through a separate descriptor, which has its own read position.
    for entry in Dir::from_fd(openat(folder.as_fd(), c".", FOLDER, Mode::empty())?)?.iter() {
        if names.len() >= BATCH {
            is_all = false;
            break;
        }
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    let mut folders = Vec::new();
    for name in names {
        if !remove_at(folder.as_fd(), name.as_c_str())? {
            folders.push(name);
        }
    }
    Ok(Contents { folders, is_all })
}

/// Returns true if the entry is gone, false for a non-empty directory.
fn remove_at<P: NixPath + ?Sized>(folder: BorrowedFd<'_>, name: &P) -> Result<bool, Errno> {
    match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::EISDIR | Errno::EPERM) => {}
        other => return gone(other).map(|()| true),
    }
    match unlinkat(folder, name, UnlinkatFlags::RemoveDir) {
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(false),
        other => gone(other).map(|()| true),
    }
}
