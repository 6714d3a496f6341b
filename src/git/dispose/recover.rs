//! Removes the lock files and temporary objects that killed git processes left in the user's repository.
//!
//! guard removes only locks that its own git calls for this workspace could have created, and only while it holds the
//! workspace's lock.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::git::workspace::create::Workspace;
use crate::git::workspace::run_record::State;

/// A lock on a single ref or index is stale from this age on: a running git holds such a lock for milliseconds.
const OWN_LOCK_AGE: Duration = Duration::from_secs(2);
/// The lock on `packed-refs` is stale from this age on. Other processes use that file too, and may hold its lock
/// longer than other locks.
const SHARED_LOCK_AGE: Duration = Duration::from_secs(10);

impl Workspace {
    /// Removes lock files that a killed guard or its git processes left behind. If a receive was interrupted, also
    /// removes the objects that git had not accepted yet.
    pub(crate) fn remove_stale_locks(&self) {
        let record = &self.record;
        let lock = |dir: &Path, name: &str| dir.join(format!("{name}.lock"));
        let mut own = vec![lock(&record.common_dir, &record.branch)];
        for name in ["tip", "work", "head", "incoming"] {
            own.push(lock(&record.common_dir, &format!("{}/{name}", self.saved_refs_prefix())));
        }
        if !record.here && !record.admin_dir.as_os_str().is_empty() {
            own.extend(["index", "HEAD"].map(|name| lock(&record.admin_dir, name)));
        }
        own.iter().for_each(|file| remove_when_old(file, OWN_LOCK_AGE));
        if record.state == State::Receiving {
            remove_abandoned_objects(&record.common_dir);
        }
        // git takes the lock on `packed-refs` whenever it deletes a ref. If guard was receiving the branch or removing
        // the worktree, the lock is probably guard's own. In other states another git may hold the lock, so guard
        // removes it only if no git process runs in the repository.
        let is_likely_ours = matches!(record.state, State::Receiving | State::Removing);
        let of_all = record.common_dir.join("packed-refs.lock");
        let around = record.common_dir.parent().unwrap_or(&record.common_dir);
        if of_all.exists() && (is_likely_ours || !is_git_running_in(around)) {
            remove_when_old(&of_all, SHARED_LOCK_AGE);
        }
    }
}

/// Removes objects that a killed `git receive-pack` stored but did not accept. Waits while a git process runs in the
/// repository, because that process may still use the objects; gives up after ten seconds.
fn remove_abandoned_objects(common_dir: &Path) {
    let Ok(common_dir) = common_dir.canonicalize() else { return };
    let found = || -> Vec<PathBuf> {
        let entries = fs::read_dir(common_dir.join("objects")).into_iter().flatten().flatten();
        let is_one =
            |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("tmp_objdir-incoming-");
        entries.filter(is_one).map(|entry| entry.path()).collect()
    };
    let deadline = Instant::now() + SHARED_LOCK_AGE;
    loop {
        // List the directories before looking for processes: a process that created one of them is then either found
        // or dead.
        let dirs = found();
        if dirs.is_empty() || Instant::now() > deadline {
            return;
        }
        if !is_git_running_in(&common_dir) {
            for dir in dirs {
                let _ = fs::remove_dir_all(dir);
            }
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// True if a git process has `dir`, or a directory below it, as its working directory. `git receive-pack` changes to
/// the directory of its repository.
fn is_git_running_in(dir: &Path) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
        .any(|entry| {
            let is_there = fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
            is_there
                && fs::read_to_string(entry.path().join("comm")).is_ok_and(|name| name.starts_with("git"))
        })
}

/// Waits until the lock file disappears. Removes the file once it is older than `age`, or once guard has waited one
/// second longer than `age`.
fn remove_when_old(file: &PathBuf, age: Duration) {
    let deadline = Instant::now() + age + Duration::from_secs(1);
    while let Ok(data) = file.symlink_metadata() {
        let is_old = data.modified().is_ok_and(|time| time.elapsed().is_ok_and(|elapsed| elapsed > age));
        if is_old || Instant::now() > deadline {
            let _ = fs::remove_file(file);
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
