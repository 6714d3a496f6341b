//! The queue of all batches: what a store must do, whichever database holds it.
//!
//! Every method is one transaction, on disk when it returns. Time is the store's own: leases are compared by one clock,
//! never by the clocks of two machines.
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

/// Why the queue cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The file of the queue, or its directory, cannot be created or opened.
    #[error("cannot open the queue {path}: {source}")]
    Io {
        /// The file of the queue.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// SQLite failed.
    #[error("cannot use the queue {path}: {source}")]
    Sqlite {
        /// The file of the queue.
        path: String,
        /// The error of SQLite.
        source: rusqlite::Error,
    },
    /// PostgreSQL failed. The address has no password.
    #[error("cannot use the queue at {address}: {message}")]
    Postgres {
        /// The address of the database, without its password.
        address: String,
        /// The error of the database or of the connection.
        message: String,
    },
    /// A stored value cannot be parsed.
    #[error("the task queue contains a value that guard cannot parse: {0}")]
    Strange(String),
    /// A task has a value that no store can hold.
    #[error("cannot store the task {task:?}: {reason}")]
    Unstorable {
        /// The id of the task.
        task: String,
        /// Which value cannot be stored.
        reason: String,
    },
    /// The idempotency key was already used for other tasks.
    #[error("the idempotency key {0:?} was used before for other tasks; use a new key")]
    KeyReused(String),
}

/// A batch to add to the queue.
#[derive(Debug, Clone)]
pub struct NewBatch {
    /// The response id of the new batch.
    pub id: String,
    /// The tasks, in the order of the caller.
    pub tasks: Vec<NewTask>,
    /// A key by which a repeated submission is recognised.
    pub idempotency_key: Option<String>,
}

impl NewBatch {
    /// Returns a batch with a new response id.
    pub fn new(tasks: Vec<NewTask>, idempotency_key: Option<String>) -> Self {
        Self { id: format!("batch_{}", uuid::Uuid::now_v7().simple()), tasks, idempotency_key }
    }
}

/// The permission to work on one task: valid until the lease expires or the task passes to another worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The response id of the batch.
    pub batch: String,
    /// The position of the task in its batch.
    pub position: i64,
    /// The fencing token: every claim of a task has a higher one.
    pub token: i64,
}

/// A task that a worker has claimed.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The permission to work on the task.
    pub lease: Lease,
    /// The id that the caller chose.
    pub task_id: String,
    /// The name of the task type.
    pub task_type: String,
    /// The arguments of the task.
    pub parameters: Map<String, Value>,
    /// Where and how the task runs.
    pub options: BatchOptions,
    /// The number of this attempt, from 1.
    pub attempt: u32,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// The task succeeded with this output.
    Completed(Map<String, Value>),
    /// The attempt failed; the task is retried after the given time, or has failed for good.
    Failed(TaskFailure, Option<Duration>),
}

/// What limits the claims of all workers together.
#[derive(Debug, Clone, Copy)]
pub struct ClaimLimits {
    /// The maximum number of tasks to claim now.
    pub most: usize,
    /// The maximum number of running tasks in the whole queue.
    pub global: usize,
    /// The maximum number of running tasks in one repository.
    pub per_repository: usize,
    /// How long the claims are valid without a heartbeat.
    pub lease: Duration,
}

/// A task as a poll sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRow {
    /// The position of the task in its batch.
    pub position: i64,
    /// The id that the caller chose.
    pub task_id: String,
    /// The state of the task.
    pub state: TaskState,
    /// The output of a completed task.
    pub output: Map<String, Value>,
    /// The message of a failed task.
    pub error: Option<String>,
    /// The kind of the failure of a failed task.
    pub error_kind: Option<String>,
    /// Details of the failure; `Value::Null` if there are none.
    pub error_detail: Value,
    /// The number of attempts so far.
    pub attempts: u32,
}

/// A task that has ended, and when.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedTask {
    /// The number of this ending: the tasks of a batch that end are numbered from 1, in the order in which they end. A
    /// task that is retried and ends again has a new number.
    pub ending: i64,
    /// When the task ended, in milliseconds since 1970.
    pub ended_ms: i64,
    /// The task.
    pub row: TaskRow,
}

/// A batch as a list shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRow {
    /// The response id.
    pub id: String,
    /// When the batch was submitted, in milliseconds since 1970.
    pub created_ms: i64,
    /// The number of tasks in each state, in the order of `TaskState::ALL`.
    pub counts: [u64; 6],
    /// The mean duration of the attempts that have ended, in milliseconds; `None` if none has.
    pub mean_ms: Option<u64>,
    /// When the last task ended, in milliseconds since 1970; `None` if none has.
    pub changed_ms: Option<i64>,
}

impl BatchRow {
    /// Returns the number of tasks in one state.
    pub fn count(&self, state: TaskState) -> u64 {
        let at = TaskState::ALL.iter().position(|one| *one == state);
        at.map_or(0, |at| self.counts[at])
    }

    /// Returns the number of all tasks.
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
    /// Lets workers claim no further task. Running tasks go on.
    Pause,
    /// Ends a pause.
    Resume,
    /// Gives all tasks this priority.
    Priority(i32),
}

/// What a command to a batch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// The number of tasks that were cancelled.
    pub cancelled: u64,
    /// True if the command id was known, so that nothing was done now.
    pub is_repeated: bool,
}

/// A durable queue of batches. One value belongs to one thread; several processes may use the same queue.
pub trait Queue: Send {
    /// Adds a batch and returns its response id. If a batch with the same idempotency key and the same tasks exists,
    /// adds nothing and returns the id of that batch.
    fn submit(&mut self, batch: &NewBatch) -> Result<String, QueueError>;

    /// Claims tasks for a worker. First makes available what has become due: tasks whose lease expired, retries whose
    /// time has come; and fails tasks that expired.
    fn claim(&mut self, worker: &str, limits: ClaimLimits) -> Result<Vec<Claim>, QueueError>;

    /// Extends leases. Returns those that are no longer valid: the task was cancelled or passed to another worker.
    fn heartbeat(&mut self, leases: &[Lease], lease: Duration) -> Result<Vec<Lease>, QueueError>;

    /// Records how attempts ended. Returns for each whether it counted: false if the lease was no longer valid.
    fn finish(&mut self, endings: &[(Lease, Ending)]) -> Result<Vec<bool>, QueueError>;

    /// Cancels the open tasks of a batch, or one of its tasks. Returns the number of tasks that were cancelled.
    fn cancel(&mut self, batch: &str, task: Option<&str>) -> Result<u64, QueueError>;

    /// Changes a batch once for each command id, and records the id in the same transaction. `None` if there is no such
    /// batch.
    fn change(
        &mut self,
        batch: &str,
        command_id: &str,
        change: BatchChange,
    ) -> Result<Option<Changed>, QueueError>;

    /// Queues the failed tasks of a batch again, with new attempts. Returns their number.
    fn retry_failed(&mut self, batch: &str) -> Result<u64, QueueError>;

    /// Returns the summary of one batch; `None` if there is no such batch.
    fn batch(&mut self, id: &str) -> Result<Option<BatchRow>, QueueError>;

    /// Returns the newest batches, newest first.
    fn batches(&mut self, most: usize) -> Result<Vec<BatchRow>, QueueError>;

    /// Tasks of a batch in order, those behind the position `after`, at most `most`.
    fn tasks(&mut self, batch: &str, after: i64, most: usize) -> Result<Vec<TaskRow>, QueueError>;

    /// Tasks of a batch that have ended, in the order in which they ended, those behind the ending `after`, at most `most`.
    fn ended_tasks(&mut self, batch: &str, after: i64, most: usize) -> Result<Vec<EndedTask>, QueueError>;

    /// One task of a batch; `None` if there is no such task.
    fn task(&mut self, batch: &str, task_id: &str) -> Result<Option<TaskRow>, QueueError>;

    /// Waits until the queue may have changed, at most for the given time.
    fn wait(&mut self, most: Duration) -> Result<(), QueueError>;

    /// True if a task is running or waiting, or is queued or blocked in a batch that is not paused.
    fn has_open_tasks(&mut self) -> Result<bool, QueueError>;

    /// Deletes batches all of whose tasks ended at least `age` ago. Returns their number.
    fn remove_ended(&mut self, age: Duration) -> Result<u64, QueueError>;
}

/// Opens a connection to a queue, for what needs several.
pub type OpenQueue = Arc<dyn Fn() -> Result<Box<dyn Queue>, QueueError> + Send + Sync>;

/// How often a task passes to another worker when its worker dies. After that it fails: it may be what kills workers.
pub const MOST_TAKEOVERS: i64 = 3;

/// Opens the queue: a PostgreSQL database if `address` begins with `postgres://` or `postgresql://`, else the SQLite
/// file `file`.
pub fn open_queue(address: Option<&str>, file: &Path) -> Result<Box<dyn Queue>, QueueError> {
    match address {
        Some(address) => Ok(Box::new(postgres::PostgresQueue::connect(address)?)),
        None => Ok(Box::new(sqlite::SqliteQueue::open(file)?)),
    }
}
