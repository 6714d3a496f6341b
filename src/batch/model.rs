//! The data that the parts of a batch exchange: tasks as submitted, as claimed, and as finished.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::string_enum::string_enum;

string_enum! {
    /// The state of a task in the queue. Callers see only pending, completed and failed.
    pub enum TaskState {
        /// The task waits for tasks that it depends on.
        Blocked = "blocked",
        /// A worker may claim the task now.
        Queued = "queued",
        /// The task failed and is retried later.
        Waiting = "waiting",
        /// A worker holds the task.
        Running = "running",
        /// The task succeeded.
        Completed = "completed",
        /// The task failed for good.
        Failed = "failed",
    }
}

impl TaskState {
    /// True if the task has ended and its result does not change any more.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }
}

string_enum! {
    /// Why a task failed, for programs.
    pub enum TaskKind {
        /// No task type has this name.
        UnknownType = "unknown_type",
        /// The parameters do not match the schema of the task type.
        InvalidParameters = "invalid_parameters",
        /// A file that the task needs is missing or cannot be read.
        MissingInput = "missing_input",
        /// The run of the command or the agent failed; `error_detail` has the run's own error kind.
        RunFailed = "run_failed",
        /// The agent's answer does not match the output schema of the task type.
        InvalidAnswer = "invalid_answer",
        /// The task took longer than its `timeout`.
        TimedOut = "timed_out",
        /// The caller cancelled the batch or the task.
        Cancelled = "cancelled",
        /// The task did not start before its `expires_after`.
        Expired = "expired",
        /// A task that this one depends on failed.
        DependencyFailed = "dependency_failed",
        /// The workers that held the task died, again and again.
        WorkerLost = "worker_lost",
        /// guard itself failed.
        Internal = "internal",
    }
}

/// The options of a task that every task type has. None is required.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchOptions {
    /// The directory that the task works in.
    pub directory: PathBuf,
    /// The policy of the task's run; `None` means the default of the task type.
    pub policy: Option<String>,
    /// The agent that works on the task; `None` means the default agent.
    pub agent: Option<String>,
    /// The maximum duration of one attempt.
    pub timeout: Option<Duration>,
    /// How often the task is retried after a temporary failure.
    pub max_retries: u32,
}

/// A task of a batch, checked and ready to be queued.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// The id that the caller chose, unique in the batch.
    pub task_id: String,
    /// The name of the task type.
    pub task_type: String,
    /// The arguments of the task.
    pub parameters: Map<String, Value>,
    /// Higher numbers run first.
    pub priority: i32,
    /// The ids of tasks of the same batch that must complete first.
    pub depends_on: Vec<String>,
    /// A key by which a repeated task is recognised, in whichever batch: it gets the result of the first one.
    pub idempotency_key: Option<String>,
    /// The repository that the task works in, or its directory outside a repository. Limits how many run at once.
    pub repository: String,
    /// How long after submission the task may still start.
    pub expires_after: Option<Duration>,
    /// Where and how the task runs.
    pub options: BatchOptions,
}

/// Why an attempt at a task failed.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskFailure {
    /// The kind of failure.
    pub kind: TaskKind,
    /// What happened, for people.
    pub message: String,
    /// Further details for programs; `Value::Null` if there are none.
    pub detail: Value,
    /// True if another attempt may succeed.
    pub is_temporary: bool,
}

impl TaskFailure {
    /// Returns a failure that another attempt would repeat.
    pub fn permanent(kind: TaskKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), detail: Value::Null, is_temporary: false }
    }
}
