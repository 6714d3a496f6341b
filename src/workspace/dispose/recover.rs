//! Removes stale lock files and temporary objects after an interruption.
//!
//! git removes its locks unless it is killed. Guard removes only locks that its own calls for this workspace
//! could have made, and only while this process holds the workspace's lock.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::workspace::run::create::Workspace;
use crate::workspace::run::run_record::State;

/// A git process that updates one ref or one index holds its lock for milliseconds.
const OWN: Duration = Duration::from_secs(2);
/// Other processes lock `packed-refs` too, and may hold it longer.
const SHARED: Duration = Duration::from_secs(10);

impl Workspace {
    /// Removes locks that an interrupted guard or its git left behind.
    pub(crate) fn remove_stale_locks(&self) {
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
        if record.state == State::Receiving {
            remove_abandoned_objects(&record.common_dir);
        }
        // Every deletion of a ref takes this lock, also when guard undoes an `open`. In other states it may
        // belong to another process that is still working.
        let is_likely_ours = matches!(record.state, State::Receiving | State::Removing);
        let of_all = record.common_dir.join("packed-refs.lock");
        let around = record.common_dir.parent().unwrap_or(&record.common_dir);
        if of_all.exists() && (is_likely_ours || !is_git_at_work(around)) {
            remove_when_old(&of_all, SHARED);
        }
    }
}

/// Removes objects that an interrupted receive stored but did not accept. git does so itself, except when a
/// signal kills it, as happens when the sender dies. A receive of another process is still running, so it is
/// recognisable.
fn remove_abandoned_objects(common_dir: &Path) {
    let Ok(common_dir) = common_dir.canonicalize() else { return };
    let found = || -> Vec<PathBuf> {
        let entries = fs::read_dir(common_dir.join("objects")).into_iter().flatten().flatten();
        let is_one =
            |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("tmp_objdir-incoming-");
        entries.filter(is_one).map(|entry| entry.path()).collect()
    };
    let patience = Instant::now() + SHARED;
    loop {
        // List first, then look for processes: whoever created these directories is either running now or
        // gone.
        let folders = found();
        if folders.is_empty() || Instant::now() > patience {
            return;
        }
        if !is_git_at_work(&common_dir) {
            for folder in folders {
                let _ = fs::remove_dir_all(folder);
            }
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// True if a git process has its working directory here, as a receiving git does.
fn is_git_at_work(folder: &Path) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
        .any(|entry| {
            let is_there = fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder));
            is_there
                && fs::read_to_string(entry.path().join("comm")).is_ok_and(|name| name.starts_with("git"))
        })
}

/// Waits until a lock disappears or is older than `age`, then removes it.
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
