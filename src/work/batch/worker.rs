//! A worker: claims tasks from the queue, works on several at once, and reports how they ended.
//!
//! One thread uses the queue; each task runs in its own thread. The worker sends heartbeats for its tasks. It stops
//! working on a task whose lease is no longer valid, because the task has ended or the queue has taken it back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::model::{TaskFailure, TaskKind};
use super::queue::{Claim, ClaimLimits, Ending, Lease, Queue, QueueError};
use super::run_task::TaskContext;
use crate::agents::exec::Cancel;

/// How long a claim of a task stays valid after the worker's last heartbeat. After that, another worker may claim the
/// task.
const LEASE: Duration = Duration::from_secs(15);
/// The time between two heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(4);
/// The longest time between two checks of the queue.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The wait before the first retry of a task. It doubles with every further retry.
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LONGEST_RETRY: Duration = Duration::from_secs(300);
/// The first wait after the queue failed, for example because the database restarts. The wait doubles with every
/// further failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long a stopping worker waits for its tasks to end after it has cancelled them.
pub(super) const STOP_GRACE: Duration = Duration::from_secs(20);

/// The limits of a worker.
#[derive(Debug, Clone, Copy)]
pub struct WorkerOptions {
    /// The maximum number of tasks that the worker works on at once.
    pub concurrency: usize,
    /// The maximum number of running tasks of all workers together.
    pub global: usize,
    /// The maximum number of running tasks of all workers in one repository.
    pub per_repository: usize,
    /// How long the worker must have had no task before it exits. It exits only if the queue has no open tasks, apart
    /// from those of paused batches. `None` means that it works until it is stopped.
    pub idle_exit: Option<Duration>,
}

/// A flag with which another thread tells a worker to stop.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Asks the worker to stop: it claims no further tasks, ends its tasks, and makes them available to other
    /// workers.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerEnd {
    /// The worker had no task for the duration of `idle_exit`, and the queue had no open tasks, apart from those of
    /// paused batches.
    Idle,
    /// Another thread asked the worker to stop.
    Stopped,
}

/// A claimed task and the result of the attempt, which the task's thread sends to the worker.
type Finished = (Claim, Result<serde_json::Map<String, serde_json::Value>, TaskFailure>);

/// A worker and the tasks that it has claimed.
pub struct Worker {
    name: String,
    queue: Box<dyn Queue>,
    context: Arc<TaskContext>,
    options: WorkerOptions,
    running: HashMap<Lease, Cancel>,
    /// Endings that the worker has not been able to record in the queue yet.
    unrecorded: Vec<(Lease, Ending)>,
    sender: Sender<Finished>,
    receiver: Receiver<Finished>,
}

impl Worker {
    /// Creates a worker. The worker records its name in the queue, so that people can tell workers apart.
    pub fn new(queue: Box<dyn Queue>, context: TaskContext, options: WorkerOptions) -> Self {
        let (sender, receiver) = channel();
        let host =
            nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Self {
            name: format!("{host}:{}", std::process::id()),
            queue,
            context: Arc::new(context),
            options,
            running: HashMap::new(),
            unrecorded: Vec::new(),
            sender,
            receiver,
        }
    }

    /// Works until `stop` is set, or until the worker has had no task for `idle_exit` and the queue has no open tasks,
    /// apart from those of paused batches. If the queue fails, the worker tries again, and its running tasks continue.
    pub fn work(&mut self, stop: &StopFlag) -> WorkerEnd {
        let mut last_heartbeat = Instant::now();
        let mut idle_since = Instant::now();
        let mut pause = FIRST_PAUSE;
        while !stop.is_set() {
            let turn = self.turn(&mut last_heartbeat);
            match turn {
                Ok(()) => pause = FIRST_PAUSE,
                Err(error) => {
                    tracing::warn!(%error, "guard cannot use the task queue, and tries again");
                    self.wait_for_endings(pause);
                    pause = (2 * pause).min(LONGEST_PAUSE);
                    continue;
                }
            }
            let is_idle = self.running.is_empty() && self.unrecorded.is_empty();
            if !is_idle {
                idle_since = Instant::now();
            }
            let is_over = self.options.idle_exit.is_some_and(|time| idle_since.elapsed() >= time);
            if is_idle && is_over && matches!(self.queue.has_open_tasks(), Ok(false)) {
                return WorkerEnd::Idle;
            }
        }
        self.give_back();
        WorkerEnd::Stopped
    }

    /// Records the tasks that have ended, extends the leases of the others, claims new tasks, and waits for the next
    /// event.
    fn turn(&mut self, last_heartbeat: &mut Instant) -> Result<(), QueueError> {
        self.record_endings()?;
        if last_heartbeat.elapsed() >= HEARTBEAT {
            self.send_heartbeats()?;
            *last_heartbeat = Instant::now();
        }
        let free = self.options.concurrency.saturating_sub(self.running.len());
        let claims = if free == 0 { Vec::new() } else { self.claim(free)? };
        let claimed = claims.len();
        for claim in claims {
            self.begin(claim);
        }
        if self.running.is_empty() {
            if claimed == 0 {
                self.queue.wait(LOOK_EVERY)?;
            }
        } else {
            // With room for more tasks, check the queue often. Without room, only a task that ends makes room.
            let has_room = self.running.len() < self.options.concurrency;
            self.wait_for_endings(if has_room { LOOK_EVERY / 10 } else { LOOK_EVERY });
        }
        Ok(())
    }

    fn claim(&mut self, most: usize) -> Result<Vec<Claim>, QueueError> {
        let limits = ClaimLimits {
            most,
            global: self.options.global,
            per_repository: self.options.per_repository,
            lease: LEASE,
        };
        self.queue.claim(&self.name, limits)
    }

    /// Starts a thread that works on a task. If the thread cannot be started, the attempt counts as failed.
    fn begin(&mut self, claim: Claim) {
        let cancel = Cancel::default();
        self.running.insert(claim.lease.clone(), cancel.clone());
        let (context, sender, lease) = (self.context.clone(), self.sender.clone(), claim.lease.clone());
        let (attempt, max_retries) = (claim.attempt, claim.options.max_retries);
        let work = move || {
            let done =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| context.run(&claim, &cancel)));
            let done = done.unwrap_or_else(|_| {
                Err(TaskFailure::permanent(TaskKind::Internal, "guard panicked while it worked on the task"))
            });
            let _ = sender.send((claim, done));
        };
        if let Err(error) = std::thread::Builder::new().name("task".to_string()).spawn(work) {
            self.running.remove(&lease);
            let message = format!("cannot start a thread for the task: {error}");
            let failure =
                TaskFailure { is_temporary: true, ..TaskFailure::permanent(TaskKind::Internal, message) };
            self.unrecorded.push((lease, failed(failure, attempt, max_retries)));
        }
    }

    /// Waits until a task ends, at most for the given time, and collects all tasks that have ended.
    fn wait_for_endings(&mut self, most: Duration) {
        match self.receiver.recv_timeout(most) {
            Ok(first) => {
                self.collect(first);
                while let Ok(next) = self.receiver.try_recv() {
                    self.collect(next);
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }

    fn collect(&mut self, (claim, done): Finished) {
        let is_ours = self.running.remove(&claim.lease).is_some();
        if !is_ours {
            return;
        }
        let ending = match done {
            Ok(output) => Ending::Completed(output),
            Err(failure) => failed(failure, claim.attempt, claim.options.max_retries),
        };
        self.unrecorded.push((claim.lease, ending));
    }

    /// Records the endings of tasks in one transaction. If that fails, the worker keeps them and records them later.
    fn record_endings(&mut self) -> Result<(), QueueError> {
        while let Ok(next) = self.receiver.try_recv() {
            self.collect(next);
        }
        if self.unrecorded.is_empty() {
            return Ok(());
        }
        let counted = self.queue.finish(&self.unrecorded)?;
        for ((lease, _), _) in self.unrecorded.iter().zip(counted).filter(|(_, counted)| !counted) {
            tracing::warn!(
                batch = lease.batch,
                position = lease.position,
                "the queue refused the result of a task, because the task had ended or its lease had expired"
            );
        }
        self.unrecorded.clear();
        Ok(())
    }

    /// Extends the leases of the running tasks, and stops the work on tasks whose leases are no longer valid.
    fn send_heartbeats(&mut self) -> Result<(), QueueError> {
        let leases: Vec<Lease> =
            self.running.keys().chain(self.unrecorded.iter().map(|(lease, _)| lease)).cloned().collect();
        if leases.is_empty() {
            return Ok(());
        }
        for lease in self.queue.heartbeat(&leases, LEASE)? {
            if let Some(cancel) = self.running.remove(&lease) {
                cancel.set();
            }
        }
        Ok(())
    }

    /// Cancels the running tasks, waits at most `STOP_GRACE` for them to end, and returns those that have ended to the
    /// queue, so that another worker need not wait until their leases expire.
    fn give_back(&mut self) {
        let leases: Vec<Lease> = self.running.keys().cloned().collect();
        for cancel in self.running.values() {
            cancel.set();
        }
        let deadline = Instant::now() + STOP_GRACE;
        let mut last_heartbeat = Instant::now();
        while !self.running.is_empty() && Instant::now() < deadline {
            self.wait_for_endings(Duration::from_millis(50));
            // Without heartbeats, another worker could take over a task that still runs here. If one fails, the work
            // here ends all the same.
            if last_heartbeat.elapsed() >= HEARTBEAT {
                let _ = self.send_heartbeats();
                last_heartbeat = Instant::now();
            }
        }
        let was_cancelled = |lease: &Lease| leases.contains(lease);
        for (lease, ending) in &mut self.unrecorded {
            if let Ending::Failed(failure, wait) = ending
                && was_cancelled(lease)
                && failure.kind == TaskKind::Cancelled
            {
                *wait = Some(Duration::ZERO);
            }
        }
        if let Err(error) = self.record_endings() {
            tracing::warn!(%error, "guard cannot give its tasks back to the queue; other workers get them when their leases expire");
        }
    }
}

/// Returns the ending of a failed attempt. The queue retries the task if the failure is temporary and retries are left.
fn failed(failure: TaskFailure, attempt: u32, max_retries: u32) -> Ending {
    let may_retry = failure.is_temporary && attempt <= max_retries;
    Ending::Failed(failure, may_retry.then(|| retry_wait(attempt)))
}

/// Returns how long to wait before the next attempt. The wait doubles with every attempt, up to `LONGEST_RETRY`.
fn retry_wait(attempt: u32) -> Duration {
    FIRST_RETRY.saturating_mul(1 << attempt.saturating_sub(1).min(16)).min(LONGEST_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_temporary_failures_are_retried_and_only_as_often_as_allowed() {
        let permanent = TaskFailure::permanent(TaskKind::Internal, "x");
        let temporary = TaskFailure { is_temporary: true, ..permanent.clone() };
        let is_retried = |failure: &TaskFailure, attempt| {
            matches!(failed(failure.clone(), attempt, 1), Ending::Failed(_, Some(_)))
        };
        assert!(is_retried(&temporary, 1));
        assert!(!is_retried(&temporary, 2) && !is_retried(&permanent, 1));
    }
}
