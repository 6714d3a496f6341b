//! Starts a background worker when a user submits a batch and no worker of the user is running.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

use crate::sys::pre_exec::start_session;

/// The lock that a worker holds, so that guard starts no further worker for the same queue in the background. Clones of
/// a value share one lock.
#[derive(Debug, Clone)]
pub struct WorkerLock {
    path: PathBuf,
    held: Arc<Mutex<Option<Flock<File>>>>,
}

impl WorkerLock {
    /// Takes the lock for the queue in the directory, or for the queue in the PostgreSQL database `store`; `None` if
    /// another process holds it.
    pub fn take(directory: &Path, store: Option<&str>) -> io::Result<Option<Self>> {
        DirBuilder::new().mode(0o700).recursive(true).create(directory)?;
        let path = directory.join(match store {
            Some(address) => format!("worker-{:.16}.lock", crate::text::hex::encode(Sha256::digest(address))),
            None => "worker.lock".to_string(),
        });
        let lock = Self { path, held: Arc::default() };
        Ok(lock.take_again()?.then_some(lock))
    }

    /// Takes the lock again after [`Self::release`]. Returns false if another process holds it.
    pub fn take_again(&self) -> io::Result<bool> {
        let open = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&self.path);
        match Flock::lock(open?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(lock),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => return Ok(false),
            Err((_, error)) => return Err(error.into()),
        }
        Ok(true)
    }

    /// Releases the lock, so that the next process that submits tasks starts a new worker.
    pub fn release(&self) {
        drop(self.held.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// Starts a background worker that exits when the queue is empty, unless another process holds the [`WorkerLock`] of
/// the queue. The worker outlives the calling process.
pub fn start_local_worker(guard: &Path, directory: &Path, store: Option<&str>) -> io::Result<()> {
    // This check releases the lock again at once, so that the new worker can take it. If two processes start a worker
    // at the same time, the worker that does not get the lock exits at once.
    if WorkerLock::take(directory, store)?.is_none() {
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
    let mut worker = command.spawn()?;
    // If this process lives longer than the worker, it must wait for the worker. Otherwise the worker would stay in the
    // process table as a zombie.
    let wait = move || drop(worker.wait());
    std::thread::Builder::new().name("local worker".to_string()).spawn(wait).map(drop)
}
