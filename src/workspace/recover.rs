//! After an interruption: lock files that nobody holds any more.
//!
//! git removes its locks when it ends, unless it was killed in the middle. Only those are looked at that a call of guard's
//! for this workspace could have made, and only while this process holds the workspace.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::open::Workspace;
use super::record::State;

/// A git that works on one ref or one index holds its lock for milliseconds.
const OWN: Duration = Duration::from_secs(2);
/// The lock of all packed refs is others' too, and they may take longer.
const SHARED: Duration = Duration::from_secs(10);

impl Workspace {
    /// Removes locks that an interrupted guard, or a git of its, left behind.
    pub(super) fn remove_stale_locks(&self) {
        let record = &self.record;
        let lock = |folder: &Path, name: &str| folder.join(format!("{name}.lock"));
        let mut own = vec![lock(&record.common_dir, &record.branch)];
        for name in ["tip", "work", "incoming"] {
            own.push(lock(&record.common_dir, &format!("{}/{name}", self.kept_under())));
        }
        if !record.here && !record.admin_dir.as_os_str().is_empty() {
            own.extend(["index", "HEAD"].map(|name| lock(&record.admin_dir, name)));
        }
        own.iter().for_each(|file| remove_when_old(file, OWN));
        if matches!(record.state, State::Receiving | State::Removing) {
            remove_when_old(&record.common_dir.join("packed-refs.lock"), SHARED);
        }
    }
}

/// Waits until a lock goes or is too old to be held by anybody.
fn remove_when_old(file: &PathBuf, age: Duration) {
    let patience = Instant::now() + age + Duration::from_secs(1);
    while let Ok(data) = file.symlink_metadata() {
        let is_old = data.modified().is_ok_and(|time| time.elapsed().is_ok_and(|elapsed| elapsed > age));
        if is_old || Instant::now() > patience {
            let _ = fs::remove_file(file);
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
