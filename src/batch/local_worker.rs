//! Starts a worker in the background when a batch is submitted and no worker is running for this user.

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

/// Starts a worker that ends when the queue is empty, unless one is running. It outlives the caller.
pub fn start_local_worker(guard: &Path, directory: &Path, store: Option<&str>) -> io::Result<()> {
    // The lock is free again when the new worker asks for it; if two start at once, the second one ends at once.
    if WorkerLock::take(directory)?.is_none() {
        return Ok(());
    }
    let mut command = Command::new(guard);
    command.args(["worker", "--until-idle", "--local"]);
    // Not as an argument: other users can see arguments, and the address may contain a password.
    match store {
        Some(address) => command.env("GUARD_STORE", address),
        None => command.env_remove("GUARD_STORE"),
    };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    start_session(&mut command);
    command.spawn().map(drop)
}
