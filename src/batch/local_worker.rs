//! Starts a background worker when a user submits a batch and no worker of the user is running.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::fcntl::{Flock, FlockArg};

use crate::sys::pre_exec::start_session;

/// The lock of the background worker: at most one runs for each queue.
pub struct WorkerLock(#[allow(dead_code, reason = "the lock lasts as long as the file is open")] Flock<File>);

impl WorkerLock {
    /// Takes the lock in the directory of the queue; `None` if another process holds it.
    pub fn take(directory: &Path) -> io::Result<Option<Self>> {
        DirBuilder::new().mode(0o700).recursive(true).create(directory)?;
        let path = directory.join("worker.lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(Self(lock))),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, error)) => Err(error.into()),
        }
    }
}

/// Starts a background worker that exits when the queue is empty, unless a worker is running. The worker outlives the
/// calling process.
pub fn start_local_worker(guard: &Path, directory: &Path, store: Option<&str>) -> io::Result<()> {
    // The lock is free again when the new worker asks for it; if two start at once, the second one ends at once.
    if WorkerLock::take(directory)?.is_none() {
        return Ok(());
    }
    let mut command = Command::new(guard);
    command.args(["worker", "--until-idle", "--local"]);
    // The address may contain a password, and other users can see command-line arguments, so guard passes it in the
    // environment.
    match store {
        Some(address) => command.env("GUARD_STORE", address),
        None => command.env_remove("GUARD_STORE"),
    };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    start_session(&mut command);
    command.spawn().map(drop)
}
