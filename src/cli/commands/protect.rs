//! Makes sure that no other user can read guard's state, or change guard's state or configuration: whoever can write there
//! decides what runs may do. guard creates these directories for the user alone, but an earlier version, or another program
//! with an open umask, may have created them before.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::cli::{Failure, note};
use crate::run::transcript::runs_dir;
use crate::session::user_directories::config_dir;
use crate::sys::fs::chmod;

/// How many levels of directories guard repairs. Other users cannot reach the levels below.
const LEVELS: usize = 2;
/// The maximum number of entries that guard repairs in one directory.
const MOST_ENTRIES: usize = 10_000;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const ACCESSIBLE_FOR_OTHERS: u32 = 0o077;

/// Repairs the modes of the directories of the user's state and configuration, if they exist. Fails if guard cannot repair
/// one, or if another user has put something there.
pub(in crate::cli) fn protect_directories() -> Result<(), Failure> {
    if let Some(state) = runs_dir().ok().as_deref().and_then(Path::parent) {
        protect(state, ACCESSIBLE_FOR_OTHERS)?;
    }
    config_dir().map_or(Ok(()), |config| protect(&config, WRITABLE_BY_OTHERS))
}

fn protect(directory: &Path, forbidden: u32) -> Result<(), Failure> {
    let Ok(found) = directory.metadata() else { return Ok(()) };
    if !found.is_dir() || found.mode() & forbidden == 0 {
        return Ok(());
    }
    let owners = [found.uid(), nix::unistd::geteuid().as_raw(), 0];
    let repaired =
        check_owners(directory, &owners, LEVELS).and_then(|()| restrict(directory, forbidden, LEVELS));
    repaired.map_err(|error| {
        Failure::usage(
            format!(
                "other users can write to {}, or could read it, and guard cannot correct that: {error}",
                directory.display()
            ),
            "check who has put files there, then give the directory to yourself alone: chown and chmod -R go-rwx",
        )
    })?;
    let is_restricted = directory.metadata().is_ok_and(|found| found.mode() & forbidden == 0);
    if !is_restricted {
        return Err(Failure::usage(
            format!("{} is open to other users, and its file system ignores chmod", directory.display()),
            "set XDG_STATE_HOME and XDG_CONFIG_HOME to directories on a file system with access modes",
        ));
    }
    if found.mode() & WRITABLE_BY_OTHERS != 0 {
        note(&format!(
            "guard: other users could write to {}; guard has restricted it to you",
            directory.display()
        ));
    }
    Ok(())
}

/// Fails if anything in the directory belongs to another user than `owners`.
fn check_owners(directory: &Path, owners: &[u32], levels: usize) -> io::Result<()> {
    for entry in fs::read_dir(directory)?.take(MOST_ENTRIES) {
        let entry = entry?;
        let found = entry.metadata()?;
        if !owners.contains(&found.uid()) {
            let message = format!("{} belongs to the user {}", entry.path().display(), found.uid());
            return Err(io::Error::other(message));
        }
        if found.is_dir() && levels > 1 {
            check_owners(&entry.path(), owners, levels - 1)?;
        }
    }
    Ok(())
}

/// Takes the `forbidden` bits from the modes of a directory and its files. Does the directory first, so that other users
/// cannot add anything meanwhile. Follows no link below the directory.
fn restrict(directory: &Path, forbidden: u32, levels: usize) -> io::Result<()> {
    restrict_one(&OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(directory)?, forbidden)?;
    for entry in fs::read_dir(directory)?.take(MOST_ENTRIES) {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && levels > 1 {
            restrict(&entry.path(), forbidden, levels - 1)?;
        } else if kind.is_file() || kind.is_dir() {
            let flags = libc::O_PATH | libc::O_NOFOLLOW;
            restrict_one(&OpenOptions::new().read(true).custom_flags(flags).open(entry.path())?, forbidden)?;
        }
    }
    Ok(())
}

fn restrict_one(file: &File, forbidden: u32) -> io::Result<()> {
    let found = file.metadata()?;
    match found.mode() & forbidden {
        0 => Ok(()),
        _ if found.is_symlink() => Ok(()),
        _ => chmod(file.as_fd(), found.mode() & 0o7777 & !forbidden),
    }
}
