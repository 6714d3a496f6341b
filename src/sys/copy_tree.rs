//! Copies files and directory trees that an agent may have written, or may be writing.
//!
//! Every entry is opened by its name in the descriptor of its directory, without following a link. So the copy contains
//! only what is in the tree, even if another process replaces directories by links meanwhile.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

use super::fs::{Walk, c_path, open_with_flags};

/// The permission bits that a copy gets from its original.
const COPIED_BITS: u32 = 0o777;

/// How much [`copy_opened`] and [`copy_path`] may still copy.
#[derive(Debug, Clone)]
pub struct CopyBudget {
    /// How many files, links and directories may be copied.
    pub entries: usize,
    /// How deep the directories may be nested.
    pub depth: usize,
    /// Maximum size of each file in bytes: a sparse file can have any size, and a copy of it would fill the disk.
    pub bytes: u64,
}

impl Default for CopyBudget {
    fn default() -> Self {
        Self { entries: 1_000_000, depth: 256, bytes: 1 << 30 }
    }
}

/// What [`open_entry`] finds.
#[derive(Debug)]
pub enum Entry {
    /// A regular file or a directory, open for reading.
    Opened(File),
    /// A symbolic link with this target.
    Link(OsString),
    /// A FIFO, a socket or a device.
    Special,
}

/// Opens a file or directory below a directory for reading. Fails at a symbolic link on the way. Does not follow a link
/// at the end of the path, and opens no FIFO, socket or device.
pub fn open_entry(directory: BorrowedFd<'_>, path: &Path) -> io::Result<Entry> {
    let name = c_path(path)?;
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let found = open_with_flags(directory, &name, flags, Walk::NoLinks)?;
    reopen(found)
}

/// Opens the file or directory that an `O_PATH` descriptor refers to for reading.
pub fn reopen(found: OwnedFd) -> io::Result<Entry> {
    let found = File::from(found);
    let kind = found.metadata()?.file_type();
    if kind.is_symlink() {
        return Ok(Entry::Link(nix::fcntl::readlinkat(&found, c"")?));
    }
    if !kind.is_file() && !kind.is_dir() {
        return Ok(Entry::Special);
    }
    // A path below `/proc/self/fd` leads to exactly this file. Its type cannot change.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(by_descriptor(found.as_fd()))?;
    Ok(Entry::Opened(opened))
}

/// Returns the names of the entries of an open directory, sorted.
pub fn names(directory: &File) -> io::Result<Vec<OsString>> {
    let entries = fs::read_dir(by_descriptor(directory.as_fd()))?;
    let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn by_descriptor(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Copies the path `from` below an open directory to the path `to`: a file, a symbolic link as a link, or a directory
/// with all of its contents. Skips FIFOs, sockets and devices. Fails at a symbolic link on the way to the last component.
/// Also fails if `budget` does not suffice, and then leaves an incomplete copy behind.
pub fn copy_path(
    directory: BorrowedFd<'_>,
    from: &Path,
    to: &Path,
    budget: &mut CopyBudget,
) -> io::Result<()> {
    match open_entry(directory, from)? {
        Entry::Opened(file) => copy_opened(&file, to, budget),
        Entry::Link(target) => {
            budget.spend()?;
            symlink(target, to)
        }
        Entry::Special => budget.spend(),
    }
}

/// Copies an open file, or an open directory with all of its contents, as [`copy_path`] does.
pub fn copy_opened(from: &File, to: &Path, budget: &mut CopyBudget) -> io::Result<()> {
    budget.spend()?;
    let data = from.metadata()?;
    let mode = Permissions::from_mode(data.mode() & COPIED_BITS);
    if data.is_file() {
        if data.len() > budget.bytes {
            return Err(io::Error::other("the file is too large to be copied"));
        }
        let mut copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
        // The file may grow meanwhile.
        io::copy(&mut io::Read::take(from, budget.bytes), &mut copy)?;
        return copy.set_permissions(mode);
    }
    DirBuilder::new().mode(0o700).create(to)?;
    budget.depth -= 1;
    for name in names(from)? {
        copy_path(from.as_fd(), Path::new(&name), &to.join(&name), budget)?;
    }
    budget.depth += 1;
    fs::set_permissions(to, mode)
}

impl CopyBudget {
    /// Subtracts one entry. Fails if the budget is used up.
    fn spend(&mut self) -> io::Result<()> {
        if self.entries == 0 || self.depth == 0 {
            let problem = "the directory has too many entries or is too deep to be copied";
            return Err(io::Error::other(problem));
        }
        self.entries -= 1;
        Ok(())
    }
}

/// Opens a directory by its path. Fails if a component of the path is a symbolic link.
pub fn open_directory(path: &Path) -> io::Result<File> {
    let root = File::open("/")?;
    let name = c_path(path)?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    open_with_flags(root.as_fd(), &name, flags, Walk::NoLinks).map(File::from)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends where something goes wrong")]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("guard-copy-tree-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        root.canonicalize().unwrap()
    }

    #[test]
    fn files_links_and_directories_are_copied_and_pipes_are_not() {
        let root = scratch("kinds");
        fs::create_dir_all(root.join("from/deep")).unwrap();
        fs::write(root.join("from/deep/script"), "text").unwrap();
        fs::set_permissions(root.join("from/deep/script"), Permissions::from_mode(0o4755)).unwrap();
        symlink("/etc", root.join("from/link")).unwrap();
        nix::unistd::mkfifo(&root.join("from/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let directory = open_directory(&root).unwrap();
        let copy = |to: &str, budget: &mut CopyBudget| {
            copy_path(directory.as_fd(), Path::new("from"), &root.join(to), budget)
        };
        copy("to", &mut CopyBudget::default()).unwrap();
        assert_eq!(fs::read_to_string(root.join("to/deep/script")).unwrap(), "text");
        let mode = root.join("to/deep/script").metadata().unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o755, "a copy has no set-user-ID bit");
        assert_eq!(fs::read_link(root.join("to/link")).unwrap(), Path::new("/etc"));
        assert!(root.join("to/pipe").symlink_metadata().is_err());
        for (name, budget) in [
            ("entries", CopyBudget { entries: 3, ..CopyBudget::default() }),
            ("depth", CopyBudget { depth: 2, ..CopyBudget::default() }),
            ("bytes", CopyBudget { bytes: 3, ..CopyBudget::default() }),
        ] {
            assert!(copy(name, &mut budget.clone()).is_err(), "{name}");
        }
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_directory_that_is_replaced_by_a_link_is_not_copied() {
        let root = scratch("race");
        let (own, away, foreign) = (root.join("from/sub"), root.join("away"), root.join("foreign"));
        fs::create_dir_all(&own).unwrap();
        fs::create_dir(&foreign).unwrap();
        fs::write(own.join("letter"), "own").unwrap();
        fs::write(foreign.join("letter"), "foreign").unwrap();
        let from = open_directory(&root.join("from")).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    fs::rename(&own, &away).unwrap();
                    symlink(&foreign, &own).unwrap();
                    fs::remove_file(&own).unwrap();
                    fs::rename(&away, &own).unwrap();
                }
            });
            let mut copied = 0;
            for round in 0..2_000 {
                let to = root.join(format!("to-{round}"));
                let _ = copy_opened(&from, &to, &mut CopyBudget::default());
                // The copy may contain the link itself.
                let is_directory = to.join("sub").symlink_metadata().is_ok_and(|data| data.is_dir());
                if let Some(text) =
                    is_directory.then(|| fs::read_to_string(to.join("sub/letter")).ok()).flatten()
                {
                    assert_eq!(text, "own");
                    copied += 1;
                }
            }
            is_over.store(true, Ordering::Relaxed);
            assert!(copied > 0);
        });
        fs::remove_dir_all(root).unwrap();
    }
}
