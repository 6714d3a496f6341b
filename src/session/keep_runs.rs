//! Deletes old runs and snapshots after a run, as the section `[state]` of the user's configuration specifies. After guard has
//! deleted all of them, it waits at least an hour before it looks again. It never deletes a run that has not finished
//! or whose work exists nowhere else.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use jiff::{SignedDuration, Timestamp};

use crate::git;
use crate::git::{Record, SnapshotLimits, State, moved_files};
use crate::judge::policy::StateConfig;
use crate::run::transcript::{Run, RunState, Store};

/// The name of a file in the directory of runs. Its modification time says when guard last deleted all old runs.
const MARKER: &str = ".last-cleanup";
const INTERVAL: Duration = Duration::from_secs(60 * 60);
/// The maximum number of runs that guard deletes after one run, so that the caller does not have to wait long. If there
/// are more old runs, guard deletes more after the next run, without waiting for `INTERVAL`.
const MOST_DELETED: usize = 100;
/// The maximum number of files and directories of one run that guard counts for its size. A run in progress can have
/// very many files.
const MOST_COUNTED_FILES: usize = 2_000;

/// Deletes the old runs that exceed the configured limits, but not the run that has just finished. Does nothing if guard
/// deleted all old runs less than an hour ago. Only logs failures, because they do not concern the finished run.
pub(crate) fn delete_old_runs(limits: &StateConfig, finished_run: &str) {
    let longest = limits.keep.filter(|keep| keep.0 > 0);
    let longest = longest.map(|keep| SignedDuration::from_secs(keep.0.try_into().unwrap_or(i64::MAX)));
    let most_bytes = limits.keep_mib.filter(|mib| *mib > 0).map(|mib| mib.saturating_mul(1 << 20));
    if longest.is_none() && most_bytes.is_none() {
        return;
    }
    let Ok(store) = Store::open() else { return };
    let marker = store.folder().join(MARKER);
    if !is_due(&marker) {
        return;
    }
    let runs = match store.list() {
        Ok(runs) => runs,
        Err(error) => {
            return tracing::warn!(%error, "cannot delete old runs, because the list of runs cannot be read");
        }
    };
    let now = Timestamp::now();
    let (mut kept_bytes, mut is_full, mut unwanted) = (0u64, false, Vec::new());
    // The newest run comes first. Once a run and the newer runs together exceed the size limit, guard deletes that run
    // and all older runs, except those that it must keep.
    for run in runs {
        let bytes = disk_use(&run.folder);
        let is_old = longest
            .is_some_and(|longest| run.finished().is_some_and(|end| now.duration_since(end) > longest));
        is_full |= most_bytes.is_some_and(|most| kept_bytes.saturating_add(bytes) > most);
        let may_go = run.state == RunState::Finished && run.id != finished_run && !holds_work(&run);
        if may_go && (is_old || is_full) {
            unwanted.push(run);
        } else {
            kept_bytes = kept_bytes.saturating_add(bytes);
        }
    }
    for run in unwanted.iter().rev().take(MOST_DELETED) {
        match store.delete(run) {
            Ok(()) => tracing::info!(run = %run.id, "deleted an old run"),
            Err(error) => tracing::warn!(run = %run.id, %error, "cannot delete an old run"),
        }
    }
    if unwanted.len() > MOST_DELETED {
        return;
    }
    let opened = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&marker);
    let touched = opened.and_then(|file| file.set_modified(SystemTime::now()));
    if let Err(error) = touched {
        tracing::warn!(%error, "cannot record that old runs were deleted");
    }
}

/// Deletes the snapshots that exceed the configured limits, but not that of the run that has just finished.
pub(crate) fn delete_old_snapshots(config: &StateConfig, finished_run: &str) {
    let Ok(store) = Store::open() else { return };
    for snapshot in git::expire_snapshots(store.folder(), snapshot_limits(config), Some(finished_run)) {
        tracing::info!(run = %snapshot.id(), "deleted an old snapshot");
    }
}

/// Returns the configured limits on the age and size of snapshots.
pub(crate) fn snapshot_limits(config: &StateConfig) -> SnapshotLimits {
    let (seconds, bytes) = config.kept_snapshots();
    SnapshotLimits { age: Duration::from_secs(seconds), bytes }
}

fn is_due(marker: &Path) -> bool {
    let age = marker.metadata().and_then(|data| data.modified()).map(|time| time.elapsed());
    // If the time is in the future, the clock was set back, so a deletion is due.
    !matches!(age, Ok(Ok(age)) if age < INTERVAL)
}

/// Returns true if a run's worktree still exists, or if the run's directory may have commits or files that exist
/// nowhere else. The user needs the run's record to find them. Also returns true if guard cannot read the record.
pub(crate) fn holds_work(run: &Run) -> bool {
    if !Record::exists(&run.folder) {
        return false;
    }
    let is_open = |record: Record| record.state != State::Removed && record.worktree.exists();
    run.folder.join("git").exists()
        || moved_files(&run.folder).exists()
        || Record::read(&run.folder).map_or(true, is_open)
}

/// Returns the total size of a run's files in bytes. Stops after [`MOST_COUNTED_FILES`] files and directories, so the
/// result may be too small. Ignores what it cannot read.
pub(crate) fn disk_use(folder: &Path) -> u64 {
    let (mut bytes, mut counted) = (0, 0);
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(data) if data.is_dir() => folders.push(entry.path()),
                Ok(data) => bytes += data.len(),
                Err(_) => {}
            }
            counted += 1;
            if counted == MOST_COUNTED_FILES {
                return bytes;
            }
        }
    }
    bytes
}
