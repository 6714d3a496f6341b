//! Where snapshots are: `snapshots/DIRECTORY/RUN/` in guard's state directory, readable only for the user. DIRECTORY is
//! a hash of the directory's path. Finds snapshots, and deletes old ones.
//!
//! A snapshot may use copies in earlier snapshots of the same directory. So deleting a snapshot deletes its copies only
//! when no other snapshot uses them. A process that adds or reads snapshots holds a shared lock of the directory's
//! snapshots, and one that deletes some holds an exclusive lock.

use std::collections::HashSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::manifest::{AFTER, INFO, ITEMS, Info, SnapshotKind};
use crate::sys::fs::{Durability, Links, read_regular_file, replace_file};
use crate::sys::remove_tree::remove_tree;

/// The file that contains the path of the directory.
const DIRECTORY: &str = "directory";
const LOCK: &str = "lock";
/// A file that exists if a run had the directory when it was in no git repository. Then an agent may have made the
/// repository that is there now.
const PLAIN: &str = "plain";

/// Returns the directory of all snapshots, given the directory of all runs.
pub fn snapshots_directory(runs: &Path) -> PathBuf {
    runs.with_file_name("snapshots")
}

/// The snapshots of one directory.
#[derive(Debug, Clone)]
pub(super) struct Store {
    pub(super) folder: PathBuf,
}

/// A lock of the snapshots of one directory. Dropping it releases the lock.
#[derive(Debug)]
pub(super) struct Lock {
    _file: Flock<File>,
}

#[derive(Debug, Clone)]
pub struct SavedSnapshot {
    pub(super) folder: PathBuf,
    pub(super) info: Info,
}

impl SavedSnapshot {
    /// Returns the id of the run, or of the undo, before which guard took the snapshot.
    pub fn id(&self) -> &str {
        &self.info.id
    }

    pub fn kind(&self) -> SnapshotKind {
        self.info.kind
    }

    pub fn directory(&self) -> PathBuf {
        self.info.directory.path()
    }

    pub fn taken(&self) -> SystemTime {
        let since = Duration::from_nanos(u64::try_from(self.info.taken).unwrap_or(0));
        SystemTime::UNIX_EPOCH + since
    }

    pub fn command(&self) -> &[String] {
        &self.info.command
    }

    pub fn files(&self) -> usize {
        self.info.files
    }

    /// Returns the disk space of the copies that guard made for this snapshot, in bytes.
    pub fn disk_use(&self) -> u64 {
        disk_use(&self.folder)
    }

    /// Returns whether guard recorded the state of the directory after the run.
    pub fn is_finished(&self) -> bool {
        self.folder.join(AFTER).exists()
    }
}

impl Store {
    pub(super) fn of(snapshots: &Path, directory: &Path) -> Self {
        use sha2::{Digest, Sha256};
        let hash = crate::text::hex::encode(Sha256::digest(directory.as_os_str().as_bytes()));
        Self { folder: snapshots.join(&hash[..32]) }
    }

    /// Creates the directory for the snapshots of `directory`.
    pub(super) fn create(&self, directory: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).recursive(true).create(&self.folder)?;
        let file = self.folder.join(DIRECTORY);
        if !file.exists() {
            replace_file(&file, directory.as_os_str().as_bytes(), 0o600, Durability::Unsynced)?;
        }
        Ok(())
    }

    /// Locks the snapshots. Waits for other processes if `how` is `LockShared`; a non-blocking lock returns `None` if
    /// another process uses the snapshots.
    pub(super) fn lock(&self, how: FlockArg) -> io::Result<Option<Lock>> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).mode(0o600).open(self.folder.join(LOCK))?;
        match Flock::lock(file, how) {
            Ok(file) => Ok(Some(Lock { _file: file })),
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, error)) => Err(error.into()),
        }
    }

    /// Records that a run gets the directory while it is in no git repository.
    pub(super) fn mark_plain(&self) -> io::Result<()> {
        replace_file(&self.folder.join(PLAIN), b"", 0o600, Durability::Unsynced)
    }

    pub(super) fn is_marked_plain(&self) -> bool {
        self.folder.join(PLAIN).exists()
    }

    /// Returns the names of all snapshots, also of incomplete ones.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        directories.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Returns the snapshot with this name; `None` if it is incomplete.
    fn read(&self, name: &str) -> Option<SavedSnapshot> {
        let folder = self.folder.join(name);
        let info = Info::read(&folder).filter(|info| info.id == name)?;
        Some(SavedSnapshot { folder, info })
    }

    /// Returns the complete snapshots, the newest first.
    pub(super) fn list(&self) -> Vec<SavedSnapshot> {
        let mut all: Vec<SavedSnapshot> = self.names().iter().filter_map(|name| self.read(name)).collect();
        all.sort_by(|a, b| (b.info.taken, &b.info.id).cmp(&(a.info.taken, &a.info.id)));
        all
    }

    /// Returns the newest complete snapshot, except the one with the id `except`. Reads no other, because there may be
    /// hundreds. Ids are UUIDs of version 7, which sort by time.
    pub(super) fn newest(&self, except: &str) -> Option<SavedSnapshot> {
        let mut names = self.names();
        names.sort_unstable();
        names.into_iter().rev().filter(|name| name != except).find_map(|name| self.read(&name))
    }

    /// Deletes a snapshot, but not its copies. The caller holds the exclusive lock.
    fn remove(&self, saved: &SavedSnapshot) -> io::Result<()> {
        // Without this file the rest is no snapshot any more.
        std::fs::remove_file(saved.folder.join(INFO))
    }

    /// Deletes what no snapshot uses. The caller holds the exclusive lock.
    fn remove_unused(&self) {
        let kept = self.list();
        let valid: HashSet<&str> = kept.iter().map(|saved| saved.info.id.as_str()).collect();
        let used: HashSet<&str> =
            kept.iter().flat_map(|saved| &saved.info.sources).map(String::as_str).collect();
        for name in self.names() {
            let folder = self.folder.join(&name);
            let removed = match (valid.contains(name.as_str()), used.contains(name.as_str())) {
                (false, false) => remove_tree(&folder),
                (false, true) => {
                    let files = [ITEMS, AFTER].map(|file| remove_tree(&folder.join(file)));
                    files.into_iter().collect()
                }
                (true, _) => Ok(()),
            };
            if let Err(error) = removed {
                tracing::warn!(%error, "cannot delete an old snapshot");
            }
        }
    }

    fn disk_use(&self) -> u64 {
        self.names().iter().map(|name| disk_use(&self.folder.join(name))).sum()
    }
}

/// Returns the disk space of the files directly in a directory and in its directory `files`.
fn disk_use(folder: &Path) -> u64 {
    let of = |folder: &Path| -> u64 {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let files = entries.filter_map(|entry| entry.metadata().ok()).filter(|found| found.is_file());
        // Snapshots of an unchanged directory share files.
        files.map(|found| found.blocks() * 512 / found.nlink().max(1)).sum()
    };
    of(folder) + of(&folder.join("files"))
}

/// Returns the snapshots of all directories, the newest first.
pub fn saved_snapshots(runs: &Path) -> Vec<SavedSnapshot> {
    let mut all: Vec<SavedSnapshot> = stores(runs).iter().flat_map(Store::list).collect();
    all.sort_by(|a, b| (b.info.taken, &b.info.id).cmp(&(a.info.taken, &a.info.id)));
    all
}

/// Returns the disk space of all snapshots, in bytes.
pub fn snapshots_disk_use(runs: &Path) -> u64 {
    stores(runs).iter().map(Store::disk_use).sum()
}

fn stores(runs: &Path) -> Vec<Store> {
    let entries = std::fs::read_dir(snapshots_directory(runs)).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| Store { folder: entry.path() }).collect()
}

/// True if a run had `directory`, or a directory above it, while that was in no git repository.
pub(super) fn was_plain(snapshots: &Path, directory: &Path) -> bool {
    directory.ancestors().any(|level| Store::of(snapshots, level).is_marked_plain())
}

/// Which snapshots to keep. 0 means no limit.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotLimits {
    pub age: Duration,
    /// The maximum disk space of all snapshots together, in bytes.
    pub bytes: u64,
}

/// Deletes the snapshots that exceed the limits, the oldest first, except the one with the id `except`. Also deletes
/// what killed guard processes left. Leaves out directories whose snapshots another process uses. Returns the deleted
/// snapshots.
pub fn expire_snapshots(runs: &Path, limits: SnapshotLimits, except: Option<&str>) -> Vec<SavedSnapshot> {
    let now = SystemTime::now();
    let mut locked: Vec<(Store, Lock)> = Vec::new();
    let mut total = 0;
    for store in stores(runs) {
        match store.lock(FlockArg::LockExclusiveNonblock) {
            Ok(Some(lock)) => locked.push((store, lock)),
            Ok(None) | Err(_) => total += store.disk_use(),
        }
    }
    let mut deleted = Vec::new();
    let mut delete = |store: &Store, saved: SavedSnapshot| match store.remove(&saved) {
        Ok(()) => deleted.push(saved),
        Err(error) => tracing::warn!(%error, "cannot delete an old snapshot"),
    };
    let mut kept: Vec<(usize, SavedSnapshot)> = Vec::new();
    for (index, (store, _)) in locked.iter().enumerate() {
        for saved in store.list() {
            let age = now.duration_since(saved.taken()).unwrap_or_default();
            if !limits.age.is_zero() && age > limits.age && Some(saved.id()) != except {
                delete(store, saved);
            } else {
                kept.push((index, saved));
            }
        }
        store.remove_unused();
        total += store.disk_use();
    }
    kept.sort_by_key(|(_, saved)| saved.info.taken);
    for (index, saved) in kept {
        if limits.bytes == 0 || total <= limits.bytes {
            break;
        }
        if Some(saved.id()) == except {
            continue;
        }
        let store = &locked[index].0;
        let before = store.disk_use();
        delete(store, saved);
        store.remove_unused();
        total -= before.saturating_sub(store.disk_use()).min(total);
    }
    for (store, _) in &locked {
        remove_if_unneeded(store);
    }
    deleted
}

/// Removes the directory of a store without snapshots whose directory no longer exists.
fn remove_if_unneeded(store: &Store) {
    let path = read_regular_file(&store.folder.join(DIRECTORY), 1 << 16, Links::Refuse);
    let is_gone = path.is_ok_and(|path| !Path::new(std::ffi::OsStr::from_bytes(&path)).exists());
    if is_gone && store.names().is_empty() {
        // If this fails, the next call tries again.
        let _ = remove_tree(&store.folder);
    }
}
