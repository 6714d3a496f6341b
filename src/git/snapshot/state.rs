//! The recorded state of one file, and functions that read files without blocking while other processes change them.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Name;

/// The metadata that identifies a file and its last change. A program can set the mtime (`modified`), but not the
/// ctime (`changed`), so a program cannot write, replace or touch a file without changing this value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stat {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) mode: u32,
    pub(crate) size: u64,
    pub(crate) modified: i64,
    pub(crate) changed: i64,
}

impl Stat {
    pub(crate) fn of(found: &FileStat) -> Self {
        let nanoseconds =
            |seconds: i64, part: i64| seconds.saturating_mul(1_000_000_000).saturating_add(part);
        Self {
            device: found.st_dev,
            inode: found.st_ino,
            mode: found.st_mode,
            size: u64::try_from(found.st_size).unwrap_or(0),
            modified: nanoseconds(found.st_mtime, found.st_mtime_nsec),
            changed: nanoseconds(found.st_ctime, found.st_ctime_nsec),
        }
    }

    pub(crate) fn kind(&self) -> SFlag {
        SFlag::from_bits_truncate(self.mode) & SFlag::S_IFMT
    }

    pub(crate) fn is_file(&self) -> bool {
        self.kind() == SFlag::S_IFREG
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == SFlag::S_IFDIR
    }

    pub(crate) fn is_link(&self) -> bool {
        self.kind() == SFlag::S_IFLNK
    }

    /// True if the file last changed more than two seconds before the time `looked`, in nanoseconds since 1970.
    /// Otherwise guard must read the content again: a file that changed just before guard recorded it can change again
    /// with the same time stamps, because the clocks of file systems tick in milliseconds, some in seconds.
    pub(crate) fn is_settled(&self, looked: i64) -> bool {
        self.changed < looked.saturating_sub(CLOCK_TICK) && self.modified < looked.saturating_sub(CLOCK_TICK)
    }

    /// True if `self` and `other` describe the same state of the same file. Compares the device number only if
    /// `with_device` is true, because a reboot may change it.
    pub(crate) fn same(&self, other: &Self, with_device: bool) -> bool {
        let other = if with_device { *other } else { Self { device: self.device, ..*other } };
        *self == other
    }
}

/// The interval of the slowest relevant file system clock (FAT, some network file systems), in nanoseconds.
const CLOCK_TICK: i64 = 2_000_000_000;

/// What guard recorded about the content of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Content {
    /// The SHA-256 of the whole content.
    Hash(String),
    /// The file is a symbolic link: the link's target, and the hash of the target's content. The hash is `None` if
    /// the target is not a file, or if guard did not read it for one of the reasons in [`Self::Unread`].
    Link(Name, Option<String>),
    /// guard did not read the file, because it is too large, unreadable, or beyond a limit. Only a change of its
    /// `Stat` shows that the file changed.
    Unread,
}

/// What a fingerprint records about a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) stat: Stat,
    pub(crate) content: Content,
    /// The file's path with all symbolic links resolved; `None` if its path contains none, or if they cannot be
    /// resolved. The agent may be able to write at the resolved path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) real: Option<Name>,
}

impl State {
    /// True if the file has the same state in `other`. A rewrite with the same content and mode is not a change. If
    /// guard did not read the content for one of the states, compares only the metadata, as [`Stat::same`] does.
    pub(crate) fn same(&self, other: &Self, with_device: bool) -> bool {
        match (&self.content, &other.content) {
            (Content::Unread, _) | (_, Content::Unread) => self.stat.same(&other.stat, with_device),
            _ => {
                self.content == other.content && self.stat.mode == other.stat.mode && self.real == other.real
            }
        }
    }
}

/// An open directory. Its methods open files relative to its descriptor, so they reach the same directory even if
/// another process renames it or puts another one in its place.
#[derive(Debug)]
pub(crate) struct OpenDirectory(OwnedFd);

pub(crate) struct Entry {
    pub(crate) name: CString,
    /// True for a directory, false for a regular file; `None` for symbolic links, special files and unknown types.
    pub(crate) is_dir: Option<bool>,
}

/// Maximum size of a file to hash, in bytes. guard compares larger files only by their `Stat`.
pub(crate) const MAX_HASHED_BYTES: u64 = 1 << 20;

impl OpenDirectory {
    pub(crate) fn open(path: &std::path::Path) -> io::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self(nix::fcntl::open(path, flags, Mode::empty())?))
    }

    /// Opens the directory at `path` relative to this one; `None` if `path` does not exist or is not a directory.
    pub(crate) fn open_below(&self, path: &[u8]) -> io::Result<Option<Self>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(if_exists(openat(&self.0, path, flags, Mode::empty()))?.map(Self))
    }

    /// Opens a direct subdirectory; `None` if the entry does not exist, is no directory, or is a symbolic link.
    pub(crate) fn open_subdir(&self, name: &CStr) -> io::Result<Option<Self>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(if_exists(openat(&self.0, name, flags, Mode::empty()))?.map(Self))
    }

    pub(crate) fn stat(&self) -> io::Result<Stat> {
        Ok(Stat::of(&fstat(&self.0)?))
    }

    /// Returns the metadata of an entry (of a symbolic link itself, not of its target); `None` if the entry does not
    /// exist.
    pub(crate) fn stat_of(&self, name: &CStr) -> io::Result<Option<Stat>> {
        Ok(if_exists(fstatat(&self.0, name, AtFlags::AT_SYMLINK_NOFOLLOW))?.map(|found| Stat::of(&found)))
    }

    /// Returns the metadata of the file that an entry resolves to through symbolic links; `None` if that file does
    /// not exist.
    pub(crate) fn stat_target(&self, name: &CStr) -> io::Result<Option<Stat>> {
        Ok(if_exists(fstatat(&self.0, name, AtFlags::empty()))?.map(|found| Stat::of(&found)))
    }

    /// Returns the target of a symbolic link; `None` if the entry is not a symbolic link, or if reading it fails.
    pub(crate) fn link(&self, name: &CStr) -> Option<Name> {
        use std::os::unix::ffi::OsStrExt;
        readlinkat(&self.0, name).ok().map(|target| Name::from(target.as_bytes()))
    }

    /// Opens a file for reading, without blocking on a FIFO; `None` if the file does not exist, if it is a socket, or
    /// if it is a symbolic link and `follow` is false.
    pub(crate) fn file(&self, name: &CStr, follow: bool) -> io::Result<Option<(File, Stat)>> {
        let nofollow = if follow { OFlag::empty() } else { OFlag::O_NOFOLLOW };
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | nofollow;
        let Some(fd) = if_exists(openat(&self.0, name, flags, Mode::empty()))? else { return Ok(None) };
        let stat = Stat::of(&fstat(&fd)?);
        Ok(Some((File::from(fd), stat)))
    }

    /// Returns the entries of the directory except `.` and `..`, sorted by name; at most about two million from each
    /// listing.
    ///
    /// On some file systems, a listing misses a file that another process replaces meanwhile. Therefore guard lists
    /// the directory again, up to four times, if it changed during a listing, and returns the names from all listings.
    /// Some of these files may no longer exist.
    pub(crate) fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut before = self.stat()?;
        let mut entries = self.entries_up_to(MAX_ENTRIES)?;
        for _ in 0..MAX_RELISTINGS {
            let after = self.stat()?;
            if after == before {
                break;
            }
            before = after;
            entries.append(&mut self.entries_up_to(MAX_ENTRIES)?);
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        entries.dedup_by(|a, b| a.name == b.name);
        Ok(entries)
    }

    /// Lists the directory once. Returns at most `max` + 1 entries: the additional one shows that there are more than
    /// `max`. Returns no entries if the directory no longer exists.
    pub(crate) fn entries_up_to(&self, max: usize) -> io::Result<Vec<Entry>> {
        // Open the directory again, because a second listing on the same open file description would not start at the
        // beginning.
        let Some(fd) = if_exists(openat(
            &self.0,
            c".",
            OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        ))?
        else {
            return Ok(Vec::new());
        };
        let mut entries = Vec::new();
        for entry in Dir::from_fd(fd)?.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                use nix::dir::Type;
                let is_dir = match entry.file_type() {
                    Some(Type::Directory) => Some(true),
                    Some(Type::File) => Some(false),
                    _ => None,
                };
                entries.push(Entry { name: name.to_owned(), is_dir });
                if entries.len() > max {
                    break;
                }
            }
        }
        Ok(entries)
    }
}

impl From<OwnedFd> for OpenDirectory {
    fn from(directory: OwnedFd) -> Self {
        Self(directory)
    }
}

impl AsFd for OpenDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Maximum number of times that guard lists a directory again because it changed.
const MAX_RELISTINGS: usize = 4;
/// Maximum number of entries of one directory to read.
const MAX_ENTRIES: usize = 2_000_000;

/// Converts errors that mean "does not exist, or has another type by now" to `None`: other processes may change the
/// directory between two calls.
fn if_exists<T>(result: Result<T, Errno>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ENAMETOOLONG | Errno::ENXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads a whole file; `None` if it is larger than `max` bytes. `expected` is the size according to the file's
/// metadata.
pub(crate) fn read_whole(file: &mut File, expected: u64, max: u64) -> io::Result<Option<Vec<u8>>> {
    if expected > max {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0) + 1);
    file.take(max + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= max).then_some(bytes))
}

/// Returns the SHA-256 of the bytes, in hexadecimal.
pub(crate) fn hash(bytes: &[u8]) -> String {
    crate::text::hex::encode(Sha256::digest(bytes))
}
