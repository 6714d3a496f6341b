//! The queue of all batches: the operations that every store, SQLite or PostgreSQL, implements.
//!
//! A method that changes the queue runs one transaction, whose changes are on disk when the method returns. The store's
//! clock measures all times, so that leases never depend on the clocks of two machines.
//!
//! ```text
//!             submit                 claim                 finish: completed, or failed for good
//!   (blocked) ──────► queued ───────────────► running ────────────────────────────────────────────► terminal
//!       │ dependencies  ▲  ▲                     │ │ finish: a temporary failure
//!       └───────────────┘  │ the lease expired   │ └────► waiting ──── its time has come ──► queued
//!                          └─────────────────────┘
//! ```

mod postgres;
mod sqlite;
mod stored;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::model::{BatchOptions, NewTask, TaskFailure, TaskState};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The file of the queue, or its directory, cannot be created or opened.
    #[error("cannot open the queue {path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("cannot use the queue {path}: {source}")]
    Sqlite { path: String, source: rusqlite::Error },
    /// PostgreSQL or the connection to it failed.
    #[error("cannot use the queue at {address}: {message}")]
    Postgres {
        /// The address of the database, without its password.
        address: String,
        message: String,
    },
    /// guard cannot parse a stored value.
    #[error("the task queue contains a value that guard cannot parse: {0}")]
    Strange(String),
    /// A task has a value that neither SQLite nor PostgreSQL can store.
    #[error("cannot store the task {task:?}: {reason}")]
    Unstorable {
        /// The id of the task.
        task: String,
        /// Which value cannot be stored, and why.
        reason: String,
    },
    /// The idempotency key belongs to other tasks, of an earlier batch or of the same batch.
    #[error(
        "the idempotency key {0:?} belongs to other tasks, in this batch or an earlier one; use a new key"
    )]
    KeyReused(String),
}

/// A batch to add to the queue.
#[derive(Debug, Clone)]
pub struct NewBatch {
    /// The response id of the new batch.
    pub id: String,
    /// The tasks, in the order in which the caller submitted them.
    pub tasks: Vec<NewTask>,
    /// A key that the caller chose. A second submission with the same key and the same tasks adds no batch.
    pub idempotency_key: Option<String>,
}

impl NewBatch {
    /// Returns a batch with a new response id.
    pub fn new(tasks: Vec<NewTask>, idempotency_key: Option<String>) -> Self {
        Self { id: format!("batch_{}", uuid::Uuid::now_v7().simple()), tasks, idempotency_key }
    }
}

/// A worker's permission to work on one task. It is valid until the task ends, or until the queue takes the task back
/// because the worker sent no heartbeat in time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The response id of the task's batch.
    pub batch: String,
    pub position: i64,
    /// The fencing token. Every claim of a task has a higher token than the claims before it.
    pub token: i64,
}

/// A task that a worker has claimed.
#[derive(Debug, Clone)]
pub struct Claim {
    pub lease: Lease,
    /// The id that the caller chose for the task.
    pub task_id: String,
    pub task_type: String,
    pub parameters: Map<String, Value>,
    pub options: BatchOptions,
    /// The number of this attempt, counted from 1.
    pub attempt: u32,
}

/// How an attempt at a task ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// The task succeeded with this output.
    Completed(Map<String, Value>),
    /// The attempt failed. The queue retries the task after the given time; with `None` the task has failed for good.
    Failed(TaskFailure, Option<Duration>),
}

/// The limits that a worker gives for one claim. The running tasks of all workers count towards `global` and
/// `per_repository`.
#[derive(Debug, Clone, Copy)]
pub struct ClaimLimits {
    /// The maximum number of tasks that this claim takes.
    pub most: usize,
    /// The maximum number of running tasks in the whole queue.
    pub global: usize,
    /// The maximum number of running tasks in one repository.
    pub per_repository: usize,
    /// How long the leases are valid without a heartbeat.
    pub lease: Duration,
}

/// A task as the queue returns it to polls.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRow {
    pub position: i64,
    /// The id that the caller chose.
    pub task_id: String,
    pub state: TaskState,
    /// The output of a completed task.
    pub output: Map<String, Value>,
    /// Why the task failed; `None` if it did not fail.
    pub error: Option<String>,
    /// The kind of the failure, for programs; `None` if the task did not fail.
    pub error_kind: Option<String>,
    /// Details of the failure; `Value::Null` if there are none.
    pub error_detail: Value,
    /// The number of attempts that workers have begun.
    pub attempts: u32,
}

/// A task that has ended, with the time at which it ended and its place in the order in which the batch's tasks ended.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedTask {
    /// The task's place in the order of ends: within a batch, tasks that ended later have higher numbers. The numbers
    /// have gaps. A task that is retried and ends again gets a new number.
    pub ending: i64,
    /// When the task ended, in milliseconds since 1970.
    pub ended_ms: i64,
    pub row: TaskRow,
}

/// The summary of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRow {
    /// The response id of the batch.
    pub id: String,
    /// When the batch was submitted, in milliseconds since 1970.
    pub created_ms: i64,
    /// The number of tasks in each state, in the order of `TaskState::ALL`.
    pub counts: [u64; 6],
    /// The mean duration of the attempts that have ended, in milliseconds; `None` if no attempt has ended.
    pub mean_ms: Option<u64>,
    /// When a task of the batch last ended, in milliseconds since 1970; `None` if no task has ended.
    pub changed_ms: Option<i64>,
}

impl BatchRow {
    pub fn count(&self, state: TaskState) -> u64 {
        let at = TaskState::ALL.iter().position(|one| *one == state);
        at.map_or(0, |at| self.counts[at])
    }

    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the number of tasks that have not ended.
    pub fn open(&self) -> u64 {
        self.total() - self.count(TaskState::Completed) - self.count(TaskState::Failed)
    }
}

/// A change to a batch in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchChange {
    /// Cancels the tasks that have not ended.
    Cancel,
    /// Keeps workers from claiming further tasks of the batch. Running tasks continue.
    Pause,
    /// Lets workers claim tasks of a paused batch again.
    Resume,
    /// Gives all tasks of the batch this priority.
    Priority(i32),
}

/// What a command to a batch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// The number of tasks that ended because of the command, including the tasks that depend on a cancelled task. For
    /// a repeated command, this is the number that the first command reported.
    pub cancelled: u64,
    /// True if a command with the same id was carried out before. The later command then changed nothing.
    pub is_repeated: bool,
}

/// A durable queue of batches. One thread uses each value; several processes may use the same queue.
pub trait Queue: Send {
    /// Adds a batch and returns its response id. If a batch with the same idempotency key exists, adds nothing: returns
    /// the id of that batch if it has the same tasks, and otherwise fails.
    fn submit(&mut self, batch: &NewBatch) -> Result<String, QueueError>;

    /// Claims tasks for a worker. First queues tasks whose lease has expired and retries whose time has come, and fails
    /// tasks that have expired or whose workers died too often.
    fn claim(&mut self, worker: &str, limits: ClaimLimits) -> Result<Vec<Claim>, QueueError>;

    /// Extends leases: each is then valid for the duration `lease`, counted from now. Returns the leases that are no
    /// longer valid, because the task has ended or the queue has taken it back.
    fn heartbeat(&mut self, leases: &[Lease], lease: Duration) -> Result<Vec<Lease>, QueueError>;

    /// Records how attempts ended. Returns, for each attempt, true if the queue recorded it and false if its lease
    /// was no longer valid.
    fn finish(&mut self, endings: &[(Lease, Ending)]) -> Result<Vec<bool>, QueueError>;

    /// Cancels the task with the id `task`, or all tasks of the batch if `task` is `None`. A task that has already
    /// ended keeps its result. Returns the number of tasks that ended because of the cancellation, including the tasks
    /// that depend on a cancelled task.
    fn cancel(&mut self, batch: &str, task: Option<&str>) -> Result<u64, QueueError>;

    /// Changes a batch, unless a command with the same id changed it before, and records the id in the same
    /// transaction. Returns `None` if there is no such batch.
    fn change(
        &mut self,
        batch: &str,
        command_id: &str,
        change: BatchChange,
    ) -> Result<Option<Changed>, QueueError>;

    /// Makes the failed tasks of a batch run again, with their attempts counted from zero and without an expiry time. A
    /// task whose dependencies have not completed waits for them. Returns the number of the failed tasks.
    fn retry_failed(&mut self, batch: &str) -> Result<u64, QueueError>;

    fn batch(&mut self, id: &str) -> Result<Option<BatchRow>, QueueError>;

    /// Returns at most `most` batches, newest first.
    fn batches(&mut self, most: usize) -> Result<Vec<BatchRow>, QueueError>;

    /// Returns at most `most` tasks of a batch, in the order of their positions, beginning after the position
    /// `after`.
    fn tasks(&mut self, batch: &str, after: i64, most: usize) -> Result<Vec<TaskRow>, QueueError>;

    /// Returns at most `most` tasks of a batch that have ended, in the order in which they ended, beginning after the
    /// ending number `after`.
    fn ended_tasks(&mut self, batch: &str, after: i64, most: usize) -> Result<Vec<EndedTask>, QueueError>;

    fn task(&mut self, batch: &str, task_id: &str) -> Result<Option<TaskRow>, QueueError>;

    /// Waits until the queue may have changed, at most for the given time. May return although nothing has changed.
    fn wait(&mut self, most: Duration) -> Result<(), QueueError>;

    /// True if a task is running or waiting, or is queued or blocked in a batch that is not paused.
    fn has_open_tasks(&mut self) -> Result<bool, QueueError>;

    /// Deletes batches all of whose tasks ended at least `age` ago. Returns their number.
    fn remove_ended(&mut self, age: Duration) -> Result<u64, QueueError>;
}

/// A function that opens a new connection to a queue, for callers that use the queue in several threads.
pub type OpenQueue = Arc<dyn Fn() -> Result<Box<dyn Queue>, QueueError> + Send + Sync>;

/// The maximum number of times that the queue gives a task to another worker because the previous worker died. After
/// that, the task fails, because the task itself may crash workers.
pub const MOST_TAKEOVERS: i64 = 3;

/// Opens the queue in the PostgreSQL database at `address`, or in the SQLite file `file` if `address` is `None`.
/// Creates the queue if it is missing.
pub fn open_queue(address: Option<&str>, file: &Path) -> Result<Box<dyn Queue>, QueueError> {
    match address {
        Some(address) => Ok(Box::new(postgres::PostgresQueue::connect(address)?)),
        None => Ok(Box::new(sqlite::SqliteQueue::open(file)?)),
    }
}
