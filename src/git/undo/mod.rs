//! Snapshots of a directory that a run gets itself (`--in-place`, `--here`, outside a repository), and their undo.
//!
//! ```text
//!   before the run   DirectorySnapshot::take    list the tree; copy what neither the last snapshot nor git's objects have
//!   after it         DirectorySnapshot::finish  list the tree again; record what the run changed
//!   guard undo       Undo::plan, Undo::apply    compare three states of each path: before, after, now
//! ```
//!
//! Everything is below guard's state directory, which no run may write, and which no run may read. The copies have no
//! executable bits; the modes are in the list. A snapshot is valid when its last file, `info`, exists.
//!
//! This module must never follow a symbolic link in the directory, run a filter or a hook of a repository, or overwrite
//! what somebody changed after the run unless the user demands it.

mod compare;
mod content;
mod git_index;
mod list;
mod manifest;
mod objects;
mod plan;
mod restore;
mod store;
mod take;
mod tree;

pub(super) use git_index::gitlinks as index_gitlinks;
pub(super) use git_index::parse_for_fuzzing as index_entries;
pub(super) use list::parse_for_fuzzing as snapshot_items;
pub use manifest::{NotCovered, SnapshotKind};
pub use plan::{Selection, SkipReason, StepKind, Undo, UndoPlan, UndoStep};
pub use restore::UndoReport;
pub use store::{
    SavedSnapshot, SnapshotLimits, expire_snapshots, saved_snapshots, snapshots_directory, snapshots_disk_use,
};
pub use take::{DirectorySnapshot, SnapshotRequest, TreeChanges};
