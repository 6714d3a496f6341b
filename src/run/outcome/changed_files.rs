//! Lists the files in a directory that were created or changed since a given time. Compares the inode change time
//! (ctime), which a process in the sandbox cannot set.

use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A file that the run created, changed or deleted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// The file's path, relative to the working directory.
    pub path: String,
    /// Whether the run created, changed or deleted the file.
    pub change: ChangeKind,
}

/// How the run changed a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// The file did not exist before the run.
    Created,
    /// The file's content or metadata changed.
    Modified,
    /// The file existed before the run and does not exist any more. Not reported outside a worktree if guard took no
    /// snapshot before the run.
    Deleted,
}

/// The maximum number of directory entries that [`changes`] examines. To examine more would take too long.
const MOST_ENTRIES: usize = 50_000;
/// The maximum number of changed files that a result lists.
pub const MOST_CHANGES: usize = 1_000;

/// Returns the files below a directory that changed since a given time, and whether the list is complete. The list is
/// incomplete if a directory is unreadable, or if a limit on entries or changes is reached. Skips `.git` and does not
/// follow symbolic links. `is_new` is true if guard itself created the directory and its files just before `since`.
/// Then a file that is even slightly older than `since` is not a change of the run.
pub fn changes(directory: &Path, since: SystemTime, is_new: bool) -> (Vec<Change>, bool) {
    let mut found = Vec::new();
    let mut left = MOST_ENTRIES;
    // File system timestamps are coarse: a file can appear older than it is, but never newer.
    let tick = if is_new { Duration::ZERO } else { Duration::from_millis(10) };
    let since = since.checked_sub(tick).unwrap_or(since);
    let complete = scan(directory, since, &mut left, &mut found);
    found.sort();
    (found, complete)
}

/// Adds the changed files below `root` to `found`, after examining at most `left` entries. Returns false if the list
/// is incomplete.
fn scan(root: &Path, since: SystemTime, left: &mut usize, found: &mut Vec<Change>) -> bool {
    let mut complete = true;
    // Search breadth first, so that only one directory is open at a time, and entries near the top come first.
    let mut directories = VecDeque::from([root.to_path_buf()]);
    while let Some(directory) = directories.pop_front() {
        let Ok(entries) = std::fs::read_dir(&directory) else {
            complete = false;
            continue;
        };
        for entry in entries.flatten() {
            if *left == 0 || found.len() >= MOST_CHANGES {
                return false;
            }
            *left -= 1;
            // `.git` is either a directory or a file that points to one.
            if entry.file_name() == ".git" {
                continue;
            }
            let Ok(metadata) = entry.metadata() else {
                complete = false;
                continue;
            };
            if metadata.is_dir() {
                directories.push_back(entry.path());
                continue;
            }
            let changed = Duration::new(metadata.ctime().max(0) as u64, metadata.ctime_nsec() as u32);
            if SystemTime::UNIX_EPOCH + changed < since {
                continue;
            }
            let is_new = metadata.created().is_ok_and(|created| created >= since);
            let path = entry.path();
            let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            let change = if is_new { ChangeKind::Created } else { ChangeKind::Modified };
            found.push(Change { path: relative, change });
        }
    }
    complete
}
