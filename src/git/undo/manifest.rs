//! The files that describe a snapshot: `info` (what the snapshot is, written last), `items` (the state of each path
//! before the run) and `after` (what the run changed).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::tree::FileState;
use crate::git::snapshot::Name;
use crate::sys::fs::{Durability, Links, read_regular_file, replace_file};

pub(super) const INFO: &str = "info";
pub(super) const ITEMS: &str = "items";
pub(super) const AFTER: &str = "after";
/// The version of the format.
const VERSION: u32 = 2;
/// The maximum number of paths without a copy that a snapshot lists by name.
pub(super) const MAX_EXAMPLES: usize = 20;

/// What a snapshot was taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotKind {
    /// A run that works in the directory itself.
    Run,
    /// `guard undo`, so that the undo can be undone.
    Undo,
}

/// The files of which a snapshot has no copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotCovered {
    pub files: usize,
    /// Their size together, in bytes.
    pub bytes: u64,
    /// The paths of the first of them, relative to the directory.
    pub examples: Vec<Name>,
}

impl NotCovered {
    pub(super) fn add(&mut self, path: &Name, bytes: u64) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.examples.len() < MAX_EXAMPLES {
            self.examples.push(path.clone());
        }
    }
}

/// What a snapshot is, without the state of its files.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Info {
    version: u32,
    pub(super) id: String,
    pub(super) kind: SnapshotKind,
    pub(super) directory: Name,
    /// The permission bits of the directory itself.
    pub(super) mode: u32,
    /// When guard took the snapshot, in nanoseconds since 1970.
    pub(super) taken: i64,
    pub(super) command: Vec<String>,
    /// The git directory whose objects are the copies of unchanged tracked files.
    pub(super) objects: Option<Name>,
    /// Where the repository is and the state of its index; `None` without `objects`.
    pub(super) index: Option<IndexPlace>,
    /// The snapshots whose files contain the copies to which the items refer, by index.
    pub(super) sources: Vec<String>,
    pub(super) files: usize,
    /// The number of bytes that this snapshot copied itself.
    pub(super) copied_bytes: u64,
    pub(super) too_large: NotCovered,
    pub(super) too_large_ignored: NotCovered,
    pub(super) unreadable: NotCovered,
    /// Why the list of files is incomplete; `None` if it is complete.
    pub(super) unseen: Option<String>,
}

impl Info {
    pub(super) fn new(
        id: &str,
        kind: SnapshotKind,
        directory: &Path,
        command: &[String],
        taken: i64,
    ) -> Self {
        use std::os::unix::ffi::OsStrExt;
        Self {
            version: VERSION,
            id: id.to_string(),
            kind,
            directory: Name::from(directory.as_os_str().as_bytes()),
            mode: 0o700,
            taken,
            command: command.to_vec(),
            objects: None,
            index: None,
            sources: Vec::new(),
            files: 0,
            copied_bytes: 0,
            too_large: NotCovered::default(),
            too_large_ignored: NotCovered::default(),
            unreadable: NotCovered::default(),
            unseen: None,
        }
    }

    /// Reads the description of the snapshot in `folder`; `None` if there is no complete snapshot of a known version.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        let bytes = read_regular_file(&folder.join(INFO), 1 << 20, Links::Refuse).ok()?;
        let info: Self = serde_json::from_slice(&bytes).ok()?;
        (info.version == VERSION).then_some(info)
    }

    /// Writes the description, which makes the snapshot in `folder` valid.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let bytes = serde_json::to_vec(self).map_err(io::Error::from)?;
        replace_file(&folder.join(INFO), &bytes, 0o600, Durability::Unsynced)
    }
}

/// Where the index of a directory's repository is. As long as nothing of this changes, the index names the same blobs for
/// the same files, and guard need not ask git where the repository is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IndexPlace {
    /// The nearest entry `.git` at or above the directory.
    pub(super) dot_git: Name,
    /// Its state. Of a directory, only what is not about its entries.
    pub(super) dot_git_state: FileState,
    pub(super) index: Name,
    pub(super) index_state: FileState,
}

/// Where the copy of a file's content is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// There is none: a directory, a FIFO, a socket or a device.
    None,
    /// The target of a symbolic link.
    Link(Name),
    /// There is none: an entry `.git`, which guard never restores.
    Repository,
    /// A blob in the repository's object database.
    Blob(String),
    /// In the file `pack` of the snapshot with this index in [`Info::sources`], at this offset.
    Packed(u32, u64),
    /// The file with this number of the snapshot with this index in [`Info::sources`].
    File(u32, u64),
    /// guard made no copy, because the file is too large or unreadable.
    Missing,
}

/// The state of a path before the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) state: FileState,
    pub(super) content: Content,
}

/// The state of a path after the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    State(FileState),
    Deleted,
    /// guard could not find out.
    Unknown,
}

pub(super) type Items = BTreeMap<Name, Item>;
/// The paths that the run changed, with their state after the run. All other paths have the state of before.
pub(super) type After = BTreeMap<Name, Outcome>;

/// Returns the file that contains the copies of small files.
pub(super) fn pack_of(folder: &Path) -> PathBuf {
    folder.join("pack")
}

/// Returns the file that contains the copy of a large file.
pub(super) fn copy_of(folder: &Path, number: u64) -> PathBuf {
    folder.join("files").join(number.to_string())
}
