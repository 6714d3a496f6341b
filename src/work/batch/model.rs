//! The data types of tasks: a submitted task and its options, the states of a task, and the reasons for failures.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::run::outcome::ErrorKind;
use crate::text::string_enum::string_enum;

string_enum! {
    /// The state of a task in the queue. Responses to callers contain only pending, completed and failed.
    pub enum TaskState {
        /// The task waits for other tasks on which it depends.
        Blocked = "blocked",
        /// The task is ready. A worker may claim it unless its batch is paused.
        Queued = "queued",
        /// The last attempt failed temporarily, and the time of the next attempt has not come.
        Waiting = "waiting",
        /// A worker has claimed the task.
        Running = "running",
        /// The task succeeded, and has an output.
        Completed = "completed",
        /// The task failed, and guard does not retry it.
        Failed = "failed",
    }
}

impl TaskState {
    /// True if the task has ended. Its result then does not change unless the caller retries the task.
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
        /// The agent's answer or the output of the command does not match the output schema of the task type.
        InvalidAnswer = "invalid_answer",
        /// The task took longer than its `timeout`.
        TimedOut = "timed_out",
        /// The caller cancelled the batch or the task.
        Cancelled = "cancelled",
        /// The task's `expires_after` passed while no worker was running the task.
        Expired = "expired",
        /// Another task, on which this task depends, failed.
        DependencyFailed = "dependency_failed",
        /// Workers died while they ran the task, more often than the queue permits.
        WorkerLost = "worker_lost",
        /// guard itself failed, for example because of a bug.
        Internal = "internal",
    }
}

/// The options that a task of any type may have. The caller may leave out each of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchOptions {
    /// The directory in which the task works.
    pub directory: PathBuf,
    /// The policy of the task's run; `None` means the default of the task type.
    pub policy: Option<String>,
    /// The agent that works on the task; `None` means the default agent.
    pub agent: Option<String>,
    /// The maximum duration of one attempt; `None` if the task does not set one.
    pub timeout: Option<Duration>,
    /// The maximum number of times that the queue retries the task after a temporary failure.
    pub max_retries: u32,
}

/// A task of a batch, checked and ready to be queued.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// The id that the caller chose, unique in the batch.
    pub task_id: String,
    pub task_type: String,
    pub parameters: Map<String, Value>,
    /// The priority of the task: workers start tasks with higher numbers first.
    pub priority: i32,
    /// The ids of tasks of the same batch that must complete first.
    pub depends_on: Vec<String>,
    /// A key that identifies the task across batches. A task with the key of an earlier task gets that task's result,
    /// unless the earlier task has already failed. The queue refuses the batch if the earlier task has another id, type
    /// or options, or other parameters.
    pub idempotency_key: Option<String>,
    /// The root of the repository in which the task works, or its directory if that is outside a repository. Workers
    /// limit how many tasks run in one repository at once.
    pub repository: String,
    /// How long after submission the task may still start; `None` means that it never expires.
    pub expires_after: Option<Duration>,
    pub options: BatchOptions,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TaskFailure {
    pub kind: TaskKind,
    pub message: String,
    /// Further details for programs; `Value::Null` if there are none.
    pub detail: Value,
    /// True if another attempt may succeed.
    pub is_temporary: bool,
}

impl TaskFailure {
    /// Returns a failure after which another attempt would fail in the same way.
    pub fn permanent(kind: TaskKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), detail: Value::Null, is_temporary: false }
    }

    /// Returns the failure of a task because its run, or its research, failed with `error`.
    pub(super) fn of_run(error: Option<ErrorKind>, message: String, detail: Value) -> Self {
        let kind = match error {
            Some(ErrorKind::Timeout | ErrorKind::IdleTimeout) => TaskKind::TimedOut,
            Some(ErrorKind::Cancelled) => TaskKind::Cancelled,
            _ => TaskKind::RunFailed,
        };
        let is_temporary =
            matches!(error, Some(ErrorKind::RateLimited | ErrorKind::UpstreamError | ErrorKind::Busy));
        Self { kind, message, detail, is_temporary }
    }
}

/// Returns the members of a JSON object, or none if `value` is not an object.
pub(super) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}
