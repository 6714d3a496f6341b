//! Lists everything below a directory with its metadata, without following links and without reading any file.

use std::collections::{BTreeMap, HashSet};
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use serde::{Deserialize, Serialize};

use super::manifest::{Content, Items};
use crate::git::snapshot::{Name, OpenDirectory};
use crate::sys::fs::chmod;
use crate::sys::signals;

/// Maximum number of entries to list.
const MAX_ENTRIES: usize = 250_000;
/// Maximum depth of directories. One directory per level is open at a time.
const MAX_DEPTH: usize = 100;
/// After how many directories guard looks for a signal that ends it.
const DIRECTORIES_PER_CHECK: usize = 64;
/// Timeout for listing a tree.
const MAX_TIME: Duration = Duration::from_secs(20);

/// The metadata of a file, directory or link. No program can change a file's content and keep this metadata, because
/// no program can set the ctime (`changed`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileState {
    #[serde(rename = "m")]
    pub(super) mode: u32,
    #[serde(rename = "u")]
    pub(super) uid: u32,
    #[serde(rename = "g")]
    pub(super) gid: u32,
    /// The number of hard links.
    #[serde(rename = "n")]
    pub(super) links: u64,
    #[serde(rename = "s")]
    pub(super) size: u64,
    #[serde(rename = "i")]
    pub(super) inode: u64,
    #[serde(rename = "t")]
    pub(super) modified: i64,
    #[serde(rename = "c")]
    pub(super) changed: i64,
}

impl FileState {
    pub(super) fn of(found: &FileStat) -> Self {
        let nanoseconds =
            |seconds: i64, part: i64| seconds.saturating_mul(1_000_000_000).saturating_add(part);
        Self {
            mode: found.st_mode,
            uid: found.st_uid,
            gid: found.st_gid,
            links: found.st_nlink,
            size: u64::try_from(found.st_size).unwrap_or(0),
            inode: found.st_ino,
            modified: nanoseconds(found.st_mtime, found.st_mtime_nsec),
            changed: nanoseconds(found.st_ctime, found.st_ctime_nsec),
        }
    }

    pub(super) fn kind(&self) -> SFlag {
        SFlag::from_bits_truncate(self.mode) & SFlag::S_IFMT
    }

    pub(super) fn is_file(&self) -> bool {
        self.kind() == SFlag::S_IFREG
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind() == SFlag::S_IFDIR
    }

    pub(super) fn is_link(&self) -> bool {
        self.kind() == SFlag::S_IFLNK
    }

    /// Returns the permission bits, including the setuid, setgid and sticky bits.
    pub(super) fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }

    /// True if `other` is the same state of the same file. Directories are the same if their owner and mode are, because
    /// the times of a directory only show that its entries changed.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let owner_and_mode = |state: &Self| (state.mode, state.uid, state.gid);
        self == other
            || self.is_directory() && other.is_directory() && owner_and_mode(self) == owner_and_mode(other)
    }

    /// True if `now` is this state, apart from what guard itself may have changed when it undid changes of other paths:
    /// the number of hard links, and the user's permissions on a directory.
    pub(super) fn is_same_after_undo(&self, now: &Self) -> bool {
        // The creation and the removal of a hard link change the ctime of all others.
        let relinked = Self { links: now.links, changed: now.changed, ..self.clone() };
        let opened = Self { mode: self.mode | 0o700, ..self.clone() };
        self.is_same(now)
            || self.links != now.links && relinked == *now
            || self.is_directory() && opened.is_same(now)
    }
}

/// An entry of a tree.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) state: FileState,
    /// The disk space that the file occupies, in bytes. Much less than the size for a sparse file.
    pub(super) allocated: u64,
    /// The target of a symbolic link.
    pub(super) target: Option<Name>,
}

/// Everything below a directory, by path relative to it, except what is in entries named `.git` of the user.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) entries: BTreeMap<Name, Found>,
    /// The directories, except the top one, that contain an entry `.git`.
    pub(super) repositories: Vec<Name>,
    /// Why the list is incomplete; `None` if it is complete.
    pub(super) unseen: Option<String>,
}

impl Tree {
    /// Returns true if there is a FIFO in place of a file that git reads: git would wait for a writer.
    pub(super) fn blocks_git(&self) -> bool {
        let is_fifo = |found: &Found| found.state.kind() == SFlag::S_IFIFO;
        let is_read =
            |name: &Name| name.bytes().ends_with(b".gitattributes") || name.bytes().ends_with(b".gitignore");
        self.entries.iter().any(|(name, found)| is_fifo(found) && is_read(name))
    }
}

/// What to do with directories of the user on which the user has no permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    /// Leave out what is in them.
    LeaveOut,
    /// Give the user the permissions while guard lists what is in them. A run must not be able to hide its changes.
    Open,
}

/// The entries `.git` that belong to the user, so that guard neither looks into them nor removes them.
pub(super) enum UsersRepositories {
    /// All: no run has begun.
    All,
    /// Those that existed before a run, by path, and by inode in case that the run moved them.
    Existing { paths: HashSet<Name>, inodes: HashSet<u64> },
}

impl UsersRepositories {
    /// Returns those that existed before a run, given all paths that existed.
    pub(super) fn before(items: &Items) -> Self {
        let all = || items.iter().filter(|(_, item)| item.content == Content::Repository);
        let directories = all().filter(|(_, item)| item.state.is_directory());
        Self::Existing {
            paths: all().map(|(path, _)| path.clone()).collect(),
            inodes: directories.map(|(_, item)| item.state.inode).collect(),
        }
    }

    /// True for an entry `.git` of the user in its place.
    pub(super) fn contains(&self, path: &Name) -> bool {
        match self {
            Self::All => path.bytes() == b".git" || path.bytes().ends_with(b"/.git"),
            Self::Existing { paths, .. } => paths.contains(path),
        }
    }

    /// True for a `.git` directory of the user in another place.
    pub(super) fn is_moved(&self, path: &Name, state: &FileState) -> bool {
        match self {
            Self::All => false,
            Self::Existing { inodes, .. } => {
                !self.contains(path) && state.is_directory() && inodes.contains(&state.inode)
            }
        }
    }
}

/// Lists everything below the directory `top`, except what is in the user's entries `.git`.
pub(super) fn list(top: &OpenDirectory, closed: Closed, users: &UsersRepositories) -> std::io::Result<Tree> {
    let (tree, deadline) = (Tree::default(), Instant::now() + MAX_TIME);
    let mut listing = Listing { tree, deadline, path: Vec::new(), closed, directories: 0, users };
    // An error here, unlike one further down, means that nothing can be listed.
    top.stat()?;
    listing.add(top, 0);
    Ok(listing.tree)
}

struct Listing<'u> {
    tree: Tree,
    deadline: Instant,
    /// The path of the current directory, with a slash at its end unless it is empty.
    path: Vec<u8>,
    closed: Closed,
    /// The number of directories that guard has begun to list.
    directories: usize,
    users: &'u UsersRepositories,
}

impl Listing<'_> {
    fn unseen(&mut self, why: impl FnOnce(&Path) -> String) {
        if self.tree.unseen.is_none() {
            let shown = Path::new(std::ffi::OsStr::from_bytes(&self.path));
            self.tree.unseen = Some(why(shown));
        }
    }

    fn is_exhausted(&mut self) -> bool {
        if self.tree.entries.len() >= MAX_ENTRIES {
            self.unseen(|_| format!("it has more than {MAX_ENTRIES} entries"));
            return true;
        }
        if Instant::now() > self.deadline {
            self.unseen(|_| format!("reading it takes longer than {} s", MAX_TIME.as_secs()));
            return true;
        }
        // This takes several system calls.
        self.directories += 1;
        self.directories.is_multiple_of(DIRECTORIES_PER_CHECK)
            && signals::are_blocked()
            && signals::pending_end_signal().is_some()
    }

    fn add(&mut self, directory: &OpenDirectory, depth: usize) {
        let left = MAX_ENTRIES.saturating_sub(self.tree.entries.len());
        let entries = match directory.entries_up_to(left) {
            Ok(entries) => entries,
            Err(error) => return self.unseen(|path| format!("cannot read {}: {error}", path.display())),
        };
        let length = self.path.len();
        let mut directories = Vec::new();
        for entry in entries {
            if entry.name.as_c_str() == c".git" && length > 0 {
                self.tree.repositories.push(Name::from(&self.path[..length - 1]));
            }
            if self.tree.entries.len() >= MAX_ENTRIES {
                self.unseen(|_| format!("it has more than {MAX_ENTRIES} entries"));
                break;
            }
            let Some(found) = self.examine(directory, &entry.name) else { continue };
            self.path.extend_from_slice(entry.name.to_bytes());
            let path = Name::from(&self.path);
            let is_entered = found.state.is_directory()
                && !self.users.contains(&path)
                && !self.users.is_moved(&path, &found.state);
            let directory_mode = is_entered.then_some(found.state.mode);
            self.tree.entries.insert(path, found);
            self.path.truncate(length);
            if let Some(mode) = directory_mode {
                directories.push((entry.name, mode));
            }
        }
        for (name, mode) in directories {
            if self.is_exhausted() {
                return;
            }
            self.path.extend_from_slice(name.to_bytes());
            self.path.push(b'/');
            if depth >= MAX_DEPTH {
                self.unseen(|_| format!("it is more than {MAX_DEPTH} levels deep"));
            } else {
                let opened = match self.closed {
                    Closed::Open if mode & 0o500 != 0o500 => OpenedDirectory::open(directory, &name),
                    Closed::LeaveOut | Closed::Open => None,
                };
                match directory.open_subdir(&name) {
                    Ok(Some(inner)) => self.add(&inner, depth + 1),
                    Ok(None) => {}
                    Err(error) => self.unseen(|path| format!("cannot read {}: {error}", path.display())),
                }
                drop(opened);
            }
            self.path.truncate(length);
        }
    }

    /// Returns the metadata of an entry; `None` if it no longer exists.
    fn examine(&mut self, directory: &OpenDirectory, name: &CStr) -> Option<Found> {
        match fstatat(directory.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                let state = FileState::of(&stat);
                let target = state.is_link().then(|| readlinkat(directory.as_fd(), name).ok()).flatten();
                Some(Found {
                    allocated: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512),
                    target: target.map(|target| Name::from(target.as_bytes())),
                    state,
                })
            }
            Err(nix::errno::Errno::ENOENT) => None,
            Err(error) => {
                self.unseen(|path| format!("cannot read an entry of {}: {error}", path.display()));
                None
            }
        }
    }
}

/// A directory on which the user has permissions only until this value is dropped.
struct OpenedDirectory {
    directory: OwnedFd,
    mode: u32,
}

impl OpenedDirectory {
    /// Gives the user permissions on a directory; `None` if it is not theirs, or if that fails.
    fn open(above: &OpenDirectory, name: &CStr) -> Option<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let directory = openat(above.as_fd(), name, flags, Mode::empty()).ok()?;
        let found = fstat(&directory).ok()?;
        let mode = found.st_mode & 0o7777;
        if found.st_uid != nix::unistd::geteuid().as_raw() {
            return None;
        }
        chmod(directory.as_fd(), mode | 0o700).ok()?;
        Some(Self { directory, mode })
    }
}

impl Drop for OpenedDirectory {
    fn drop(&mut self) {
        // If this fails, the user has more permissions on their own directory.
        let _ = chmod(self.directory.as_fd(), self.mode);
    }
}
