//! The JSON response to a submission and to every poll of a batch.
//!
//! The doc comments of the public types become the descriptions in the published JSON schema.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::model::TaskState;
use super::queue::{BatchRow, Queue, QueueError, TaskRow};

/// The suggested time between polls, in seconds, while no attempt has ended and guard therefore does not know how long
/// tasks take.
const DEFAULT_INTERVAL: u64 = 5;
/// The longest suggested time between polls, in seconds.
const LONGEST_INTERVAL: u64 = 60;

/// The status of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum BatchStatus {
    /// At least one task has not ended.
    Pending,
    /// All tasks have ended, and at least one succeeded. A batch without tasks is also completed.
    Completed,
    /// All tasks have failed.
    Failed,
}

/// The status of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TaskStatus {
    /// The task has not ended.
    Pending,
    /// The task succeeded.
    Completed,
    /// The task failed; `error` says why.
    Failed,
}

/// The result of one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct TaskResult {
    /// The id of the task, which the caller chose in the submission.
    pub task_id: String,
    /// The status of the task.
    pub status: TaskStatus,
    /// The output of the task, in the format of its task type; an empty object if the task is not completed.
    #[schema(value_type = Object)]
    pub output: Map<String, Value>,
    /// Why the task failed; null if it did not fail.
    pub error: Option<String>,
    /// The kind of failure: `unknown_type`, `invalid_parameters`, `missing_input`, `run_failed`, `invalid_answer`,
    /// `timed_out`, `cancelled`, `expired`, `dependency_failed`, `worker_lost`, `internal`. Later versions of guard may
    /// add kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<String>,
    /// Details of the failure, such as the id of the failed run and its kind of error.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub error_detail: Value,
    /// The number of times that a worker has started the task.
    #[serde(default)]
    pub attempts: u32,
}

/// The number of tasks of a batch with each status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct Counts {
    /// The number of all tasks.
    pub total: u64,
    /// The number of tasks that have not ended.
    pub pending: u64,
    /// The number of pending tasks that workers are working on now.
    pub running: u64,
    /// The number of tasks that succeeded.
    pub completed: u64,
    /// The number of tasks that failed.
    pub failed: u64,
}

/// The answer to a submission and to a poll.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct BatchResponse {
    /// The id of the batch, with which the caller polls.
    pub response_id: String,
    /// The status of the whole batch.
    pub status: BatchStatus,
    /// The results of all tasks, or of those on the requested page, in the order of the submission.
    pub results: Vec<TaskResult>,
    /// The suggested time until the next poll, in seconds; 0 if all tasks have ended.
    pub next_poll_interval_seconds: u64,
    /// The number of tasks with each status.
    pub counts: Counts,
    /// The value of `after` with which the caller gets the next page; absent if this page has fewer results than the
    /// caller asked for, because no more follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<i64>,
}

/// Selects the tasks of a batch that a response contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// The position after which the page begins; -1 for the first page.
    pub after: i64,
    pub limit: usize,
}

impl Page {
    pub const ALL: Self = Self { after: -1, limit: usize::MAX >> 1 };
    /// Selects no tasks: the response has only the status and the counts.
    pub const SUMMARY: Self = Self { after: -1, limit: 0 };
}

impl From<TaskRow> for TaskResult {
    fn from(row: TaskRow) -> Self {
        let status = match row.state {
            TaskState::Completed => TaskStatus::Completed,
            TaskState::Failed => TaskStatus::Failed,
            TaskState::Blocked | TaskState::Queued | TaskState::Waiting | TaskState::Running => {
                TaskStatus::Pending
            }
        };
        Self {
            task_id: row.task_id,
            status,
            output: row.output,
            error: row.error,
            error_kind: row.error_kind,
            error_detail: row.error_detail,
            attempts: row.attempts,
        }
    }
}

impl From<&BatchRow> for Counts {
    fn from(row: &BatchRow) -> Self {
        Self {
            total: row.total(),
            pending: row.open(),
            running: row.count(TaskState::Running),
            completed: row.count(TaskState::Completed),
            failed: row.count(TaskState::Failed),
        }
    }
}

impl BatchStatus {
    /// Determines the status of a batch from the states of its tasks.
    pub fn of(row: &BatchRow) -> Self {
        match (row.open(), row.count(TaskState::Failed)) {
            (0, failed) if failed == row.total() && failed > 0 => Self::Failed,
            (0, _) => Self::Completed,
            _ => Self::Pending,
        }
    }
}

/// Suggests after how many seconds to poll again: when the next task is expected to end, or after a tenth of the time
/// that the batch still needs, whichever is later, but between 1 and `LONGEST_INTERVAL`. Returns 0 if all tasks have
/// ended, and `DEFAULT_INTERVAL` if no attempt has ended.
fn poll_interval(row: &BatchRow) -> u64 {
    let open = row.open();
    if open == 0 {
        return 0;
    }
    let Some(mean_ms) = row.mean_ms else { return DEFAULT_INTERVAL };
    let at_once = row.count(TaskState::Running).max(1);
    let rest_ms = mean_ms.saturating_mul(open.div_ceil(at_once));
    let next_ms = (mean_ms / at_once).max(rest_ms / 10).min(rest_ms);
    next_ms.div_ceil(1000).clamp(1, LONGEST_INTERVAL)
}

/// Builds the response for a batch; `None` if there is no such batch.
pub fn respond(queue: &mut dyn Queue, id: &str, page: Page) -> Result<Option<BatchResponse>, QueueError> {
    // Read the counts before the results. A task that ends between the two reads is then pending in the counts and
    // completed in the results, and the caller polls again. In the opposite order, the response for a finished batch
    // could lack a result.
    let Some(row) = queue.batch(id)? else { return Ok(None) };
    let rows = if page.limit == 0 { Vec::new() } else { queue.tasks(id, page.after, page.limit)? };
    let last = rows.last().map(|row| row.position);
    let has_more = page.limit > 0 && rows.len() == page.limit;
    Ok(Some(BatchResponse {
        response_id: row.id.clone(),
        status: BatchStatus::of(&row),
        results: rows.into_iter().map(TaskResult::from).collect(),
        next_poll_interval_seconds: poll_interval(&row),
        counts: Counts::from(&row),
        next_after: last.filter(|_| has_more),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(counts: [u64; 6], mean_ms: Option<u64>) -> BatchRow {
        BatchRow { id: String::new(), created_ms: 0, counts, mean_ms, changed_ms: None }
    }

    #[test]
    fn a_batch_has_the_status_of_its_tasks() {
        for (counts, status) in [
            ([0, 0, 0, 0, 0, 0], BatchStatus::Completed),
            ([0, 1, 0, 0, 3, 1], BatchStatus::Pending),
            ([0, 0, 0, 1, 0, 9], BatchStatus::Pending),
            ([0, 0, 0, 0, 1, 9], BatchStatus::Completed),
            ([0, 0, 0, 0, 0, 9], BatchStatus::Failed),
        ] {
            assert_eq!(BatchStatus::of(&row(counts, None)), status, "{counts:?}");
        }
    }

    #[test]
    fn the_interval_follows_what_is_known() {
        assert_eq!(poll_interval(&row([0, 4, 0, 0, 0, 0], None)), 5);
        assert_eq!(poll_interval(&row([0, 0, 0, 0, 4, 0], Some(9000))), 0);
        // Tasks take 20 ms, so the caller should poll again soon.
        assert_eq!(poll_interval(&row([0, 10, 0, 2, 4, 0], Some(20))), 1);
        // 100 tasks take a minute each, four at a time: poll about when the next one ends, but after a minute at the
        // latest.
        assert_eq!(poll_interval(&row([0, 96, 0, 4, 0, 0], Some(60_000))), 60);
        // One running task takes 8 s.
        assert_eq!(poll_interval(&row([0, 0, 0, 1, 0, 0], Some(8000))), 8);
    }
}
