//! The recorded state of one file, and how to read it without blocking and without being misled by a
//! concurrent change.

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

/// Identifies a file and its last change. Only the kernel sets the ctime, so a file that was written,
/// replaced or touched differs here, whatever times a program gave it.
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

    pub(crate) fn is_folder(&self) -> bool {
        self.kind() == SFlag::S_IFDIR
    }

    pub(crate) fn is_link(&self) -> bool {
        self.kind() == SFlag::S_IFLNK
    }

    /// File system clocks tick in milliseconds, some in seconds. A file that changed just before it was
    /// recorded can change again with the same times, so its content must be read again.
    pub(crate) fn is_settled(&self, looked: i64) -> bool {
        self.changed < looked.saturating_sub(TICK) && self.modified < looked.saturating_sub(TICK)
    }

    /// Compares, without the device number unless `with_device`: it may change with a reboot.
    pub(crate) fn same(&self, other: &Self, with_device: bool) -> bool {
        let other = if with_device { *other } else { Self { device: self.device, ..*other } };
        *self == other
    }
}

/// The coarsest relevant file system clock (FAT, some network file systems), in nanoseconds.
const TICK: i64 = 2_000_000_000;

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Content {
    /// The SHA-256 of the whole content.
    Hash(String),
    /// A symbolic link: its target, and the hash of the target's content if that is a file.
    Link(Name, Option<String>),
    /// Too large, unreadable, or of no interest: only `Stat` shows changes.
    Unread,
}

/// The recorded state of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) stat: Stat,
    pub(crate) content: Content,
    /// The file's real path, if symbolic links lead there: it may be a place that the agent can write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) real: Option<Name>,
}

impl State {
    /// True if the file is unchanged. Rewriting it with the same content and mode is no change.
    pub(crate) fn same(&self, other: &Self, with_device: bool) -> bool {
        match (&self.content, &other.content) {
            (Content::Unread, _) | (_, Content::Unread) => self.stat.same(&other.stat, with_device),
            _ => {
                self.content == other.content && self.stat.mode == other.stat.mode && self.real == other.real
            }
        }
    }
}

/// An open directory.
pub(crate) struct DirectoryState(OwnedFd);

/// An entry of a directory.
pub(crate) struct Entry {
    pub(crate) name: CString,
    pub(crate) is_folder: Option<bool>,
}

/// Maximum size of a file to hash; larger ones are compared by `Stat` alone.
pub(crate) const MOST_HASHED: u64 = 1 << 20;

impl DirectoryState {
    pub(crate) fn open(path: &std::path::Path) -> io::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self(nix::fcntl::open(path, flags, Mode::empty())?))
    }

    /// Opens the directory at `path` relative to this one; `None` if it does not exist.
    pub(crate) fn below(&self, path: &[u8]) -> io::Result<Option<Self>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(there(openat(&self.0, path, flags, Mode::empty()))?.map(Self))
    }

    /// Opens a direct subdirectory, which must not be a symbolic link; `None` if there is none.
    pub(crate) fn inside(&self, name: &CStr) -> io::Result<Option<Self>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(there(openat(&self.0, name, flags, Mode::empty()))?.map(Self))
    }

    pub(crate) fn stat(&self) -> io::Result<Stat> {
        Ok(Stat::of(&fstat(&self.0)?))
    }

    /// The metadata of an entry itself, even if it is a symbolic link; `None` if it is gone.
    pub(crate) fn stat_of(&self, name: &CStr) -> io::Result<Option<Stat>> {
        Ok(there(fstatat(&self.0, name, AtFlags::AT_SYMLINK_NOFOLLOW))?.map(|found| Stat::of(&found)))
    }

    /// The metadata of an entry's target, behind all symbolic links.
    pub(crate) fn stat_behind(&self, name: &CStr) -> io::Result<Option<Stat>> {
        Ok(there(fstatat(&self.0, name, AtFlags::empty()))?.map(|found| Stat::of(&found)))
    }

    pub(crate) fn link(&self, name: &CStr) -> Option<Name> {
        use std::os::unix::ffi::OsStrExt;
        readlinkat(&self.0, name).ok().map(|target| Name::from(target.as_bytes()))
    }

    /// Opens a file for reading. Does not block on a FIFO.
    pub(crate) fn file(&self, name: &CStr, follow: bool) -> io::Result<Option<(File, Stat)>> {
        let nofollow = if follow { OFlag::empty() } else { OFlag::O_NOFOLLOW };
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | nofollow;
        let Some(fd) = there(openat(&self.0, name, flags, Mode::empty()))? else { return Ok(None) };
        let stat = Stat::of(&fstat(&fd)?);
        Ok(Some((File::from(fd), stat)))
    }

    /// All entries except `.` and `..`, sorted by name, which makes later lookups local.
    ///
    /// On some file systems, a file that is replaced during the listing is not seen at all. So the directory
    /// is read again if it changed meanwhile, and the names of all listings count. Names that are gone by
    /// then are noticed later.
    pub(crate) fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut before = self.stat()?;
        let mut entries = self.entries_up_to(MOST_AT_ONCE)?;
        for _ in 0..MOST_READINGS {
            let after = self.stat()?;
            if after == before {
                break;
            }
            before = after;
            entries.append(&mut self.entries_up_to(MOST_AT_ONCE)?);
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        entries.dedup_by(|a, b| a.name == b.name);
        Ok(entries)
    }

    /// The first `most` entries, and one more if there are more, in a single listing.
    pub(crate) fn entries_up_to(&self, most: usize) -> io::Result<Vec<Entry>> {
        // Open the directory again: the listing position belongs to the open file description.
        let Some(fd) = there(openat(
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
                let is_folder = match entry.file_type() {
                    Some(Type::Directory) => Some(true),
                    Some(Type::File) => Some(false),
                    _ => None,
                };
                entries.push(Entry { name: name.to_owned(), is_folder });
                if entries.len() > most {
                    break;
                }
            }
        }
        Ok(entries)
    }
}

impl AsFd for DirectoryState {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

const MOST_READINGS: usize = 4;
/// Maximum number of entries of one directory in memory. A caller that counts entries notices if there are more.
const MOST_AT_ONCE: usize = 2_000_000;

/// Something that disappears or changes its type between two calls is no error: others work here too.
fn there<T>(result: Result<T, Errno>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ENAMETOOLONG | Errno::ENXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads a whole file; `None` if it is larger than `most`.
pub(crate) fn whole(file: &mut File, expected: u64, most: u64) -> io::Result<Option<Vec<u8>>> {
    if expected > most {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0) + 1);
    file.take(most + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

/// The SHA-256 in hexadecimal.
pub(crate) fn hash(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
