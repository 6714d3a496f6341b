//! Batches: a program submits a JSON array of tasks, gets a response id at once, and polls for the results.
//!
//! ```text
//!   submit ─► input (checked as a whole) ─► queue ◄── claim, heartbeat, finish ── worker ─► task type ─► executor
//!   poll   ◄─ response (summary, page) ◄─── queue
//! ```
//!
//! The queue is durable: SQLite on one machine, PostgreSQL for several. A worker claims a task with a lease and a
//! fencing token, and the queue refuses the result of a worker whose task another worker has claimed meanwhile. Task
//! types are data files (`policies/task-types/`). This module starts no program other than guard itself.
#![forbid(unsafe_code)]

mod control;
pub mod coverage;
mod input;
mod local_worker;
mod memory;
mod model;
pub mod queue;
mod research_task;
mod response;
mod run_task;
mod task_type;
mod worker;

pub use control::command_batch;
pub use input::{InputError, LARGEST_INPUT, MOST_TASKS, MOST_VALUES, parse_client_tasks, parse_tasks};
pub use local_worker::{WorkerLock, start_local_worker};
pub use model::{BatchOptions, NewTask, TaskFailure, TaskKind, TaskState};
pub use queue::{BatchChange, Changed, OpenQueue, Queue, QueueError, open_queue};
pub use response::{BatchResponse, BatchStatus, Counts, Page, TaskResult, TaskStatus, respond};
pub use run_task::TaskContext;
pub use task_type::{TaskType, TaskTypeError, TaskTypes};
pub use worker::{StopFlag, Worker, WorkerEnd, WorkerOptions};
