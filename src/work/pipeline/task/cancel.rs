//! Cancels a task: ends the process that works on it, and records that the task is given up.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::journal::TaskRow;
use super::state::Status;
use super::task_lock::TaskStore;
use crate::work::pipeline::error::PipelineError;

/// How long the process that works on the task may take to end after SIGTERM.
const WORKER_GRACE: Duration = Duration::from_secs(60);
/// The time between two checks whether the process has ended.
const CHECK_EVERY: Duration = Duration::from_millis(50);

impl TaskStore {
    /// Cancels the task with this id: ends the process that works on it, and records the new status. Returns the task's
    /// row as it was before the new status. Fails if the task has succeeded, or if the process does not end in time.
    pub fn cancel(&self, id: &str) -> Result<TaskRow, PipelineError> {
        let mut journal = self.journal()?;
        self.end_worker(id)?;
        let task = journal.task(id)?.ok_or_else(|| PipelineError::Unknown(id.to_string()))?;
        if Status::parse(&task.status) == Some(Status::Succeeded) {
            return Err(PipelineError::AlreadySucceeded(task.id));
        }
        journal.advance(&task.id, Status::Cancelled.name(), "the user cancelled the task", &task.state)?;
        Ok(task)
    }

    /// Asks the process that works on the task to end, and waits until it has ended, at most for `WORKER_GRACE`.
    fn end_worker(&self, id: &str) -> Result<(), PipelineError> {
        let deadline = Instant::now() + WORKER_GRACE;
        let mut signalled = None;
        while let Some(worker) = self.worker(id) {
            // Send the signal only to a process that is verified to hold the task's lock, and only once to each. A
            // process that has just taken the lock cannot be verified yet; the next iteration tries again.
            if let Some(process) = worker.process.filter(|process| signalled != Some(*process)) {
                let _ = kill(Pid::from_raw(process), Signal::SIGTERM);
                signalled = Some(process);
            }
            if Instant::now() > deadline {
                return Err(PipelineError::WorkerStays { process: signalled });
            }
            std::thread::sleep(CHECK_EVERY);
        }
        Ok(())
    }
}
