//! The tools `guard_batch_submit`, `guard_batch_poll` and `guard_batch_cancel`: queue tasks, poll for their results,
//! and cancel them.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::parameters::Parameters;
use crate::run::outcome::ErrorKind;
use crate::work::batch::queue::NewBatch;
use crate::work::batch::{
    BatchResponse, BatchStatus, Counts, InputError, OpenQueue, Page, Queue, QueueError, TaskResult,
    TaskTypes, parse_client_tasks, respond,
};
use crate::work::roots::{DirectoryError, Roots};

/// The longest time that a poll may wait, in seconds.
const LONGEST_WAIT: u64 = 60;
/// The maximum number of results in an answer if the client does not set `limit`.
const DEFAULT_LIMIT: usize = 100;
const MOST_RESULTS: usize = 1000;
/// The size of an answer, in bytes, from which guard adds no further results to it, because a model must read the
/// answer.
const LARGE: usize = 1 << 20;
/// The maximum number of results that guard reads from the queue at once.
const PAGE: usize = 16;

/// How the server reaches the queue of batches.
#[derive(Clone)]
pub struct BatchAccess {
    pub open_queue: OpenQueue,
    /// The types of tasks that workers can execute.
    pub types: Arc<TaskTypes>,
    /// Starts a worker in the background if none is running.
    pub start_worker: Arc<dyn Fn() -> io::Result<()> + Send + Sync>,
}

impl fmt::Debug for BatchAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchAccess").finish_non_exhaustive()
    }
}

/// Queue tasks. Workers run them in the background.
#[derive(Debug, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "only for the schema: the parameters are parsed by name")]
pub(super) struct Submit {
    /// The tasks: objects with `task_id` (unique), `type` and `parameters`, and optionally `priority`, `depends_on`,
    /// `idempotency_key`, `expires_after`, `timeout`, `max_retries`, `policy`, `directory`, `agent`.
    tasks: Vec<Map<String, Value>>,
    /// The directory in which a task works if it does not set its own `directory`, as an absolute path. It must be
    /// inside one of the server's root directories. Default: the first root directory.
    #[serde(default)]
    #[schemars(with = "String")]
    directory: Option<String>,
    /// A key of your choice. If an earlier submission had the same key and the same tasks, guard queues nothing and
    /// returns the response to the earlier submission.
    #[serde(default)]
    #[schemars(with = "String")]
    idempotency_key: Option<String>,
}

/// Ask for the status and the results of a batch.
#[derive(Debug, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "only for the schema: the parameters are parsed by name")]
pub(super) struct Poll {
    /// The `response_id` of the submission.
    response_id: String,
    /// The maximum number of seconds to wait for the batch, or the task, to end. Default: 0.
    #[serde(default)]
    #[schemars(range(max = 60))]
    wait: u64,
    /// The id of a task, to get only the result of this task.
    #[serde(default)]
    #[schemars(with = "String")]
    task: Option<String>,
    /// The maximum number of results; with 0, the answer has only the status and the counts. Default: 100.
    #[serde(default)]
    #[schemars(range(max = 1000), with = "u64")]
    limit: Option<usize>,
    /// Return only results after this position in the batch. To get more results, use `next_after` of the previous
    /// answer.
    #[serde(default)]
    #[schemars(with = "i64")]
    after: Option<i64>,
}

/// Cancel the tasks of a batch that have not ended.
#[derive(Debug, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "only for the schema: the parameters are parsed by name")]
pub(super) struct Cancel {
    /// The `response_id` of the submission.
    response_id: String,
    /// The id of a task, to cancel only this task. The tasks that depend on it fail.
    #[serde(default)]
    #[schemars(with = "String")]
    task: Option<String>,
}

/// The status and the results of a batch.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct BatchAnswer {
    /// Whether the request was valid and the queue could be used. `status` and `results` say how the tasks ended.
    success: bool,
    /// The id of the batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    response_id: Option<String>,
    /// The status of the batch: `pending` (not all tasks have ended), `completed`, or `failed` (all tasks have failed).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<BatchStatus>,
    /// The results of the tasks, in the order of the submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    results: Option<Vec<TaskResult>>,
    /// The suggested time until the next poll, in seconds; 0 if all tasks have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_poll_interval_seconds: Option<u64>,
    /// The number of tasks with each status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    counts: Option<Counts>,
    /// The value of `after` with which a poll returns further results; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_after: Option<i64>,
    /// The number of tasks that ended because of the cancellation, including the tasks that depend on a cancelled task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cancelled: Option<u64>,
    /// The error message, if the request is invalid or the queue cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The kind of error: `invalid_input` or `internal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error_kind: Option<ErrorKind>,
}

/// Why a call of a batch tool failed: the kind of error, and the message.
struct Failure(ErrorKind, String);

impl From<DirectoryError> for Failure {
    fn from(error: DirectoryError) -> Self {
        Self(ErrorKind::InvalidInput, error.to_string())
    }
}

impl From<String> for Failure {
    fn from(problem: String) -> Self {
        Self(ErrorKind::InvalidInput, problem)
    }
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Self {
        Self(ErrorKind::InvalidInput, format!("the parameter `tasks`: {error}"))
    }
}

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        let kind = match &error {
            QueueError::KeyReused(_) => ErrorKind::InvalidInput,
            _ => ErrorKind::Internal,
        };
        Self(kind, error.to_string())
    }
}

impl From<Result<Self, Failure>> for BatchAnswer {
    fn from(done: Result<Self, Failure>) -> Self {
        done.unwrap_or_else(|Failure(kind, problem)| Self {
            error: Some(problem),
            error_kind: Some(kind),
            ..Self::default()
        })
    }
}

impl From<BatchResponse> for BatchAnswer {
    fn from(response: BatchResponse) -> Self {
        Self {
            success: true,
            response_id: Some(response.response_id),
            status: Some(response.status),
            results: Some(response.results),
            next_poll_interval_seconds: Some(response.next_poll_interval_seconds),
            counts: Some(response.counts),
            next_after: response.next_after,
            ..Self::default()
        }
    }
}

/// Handles a call of the tool `guard_batch_submit`.
pub(super) fn submit(access: &BatchAccess, roots: &Roots, given: JsonObject) -> BatchAnswer {
    let submit = || -> Result<BatchAnswer, Failure> {
        let mut given = Parameters::new(given);
        let tasks: Vec<Value> = given.required("tasks")?;
        let directory: Option<String> = given.optional("directory")?;
        let key = given.optional("idempotency_key")?;
        given.reject_unknown()?;
        let directory = match (directory, roots.first()) {
            (Some(directory), _) => roots.find("directory", &directory)?,
            (None, Some(first)) => first.to_path_buf(),
            (None, None) => return Err("the parameter `directory` is missing".to_string().into()),
        };
        let tasks = parse_client_tasks(&Value::Array(tasks).to_string(), &directory, &access.types, roots)?;
        let mut queue = (access.open_queue)()?;
        let id = queue.submit(&NewBatch::new(tasks, key))?;
        (access.start_worker)().map_err(|error| {
            Failure(
                ErrorKind::Internal,
                format!("the batch {id} is queued, but guard cannot start a worker ({error}); start one with `guard worker`"),
            )
        })?;
        answer(&mut *queue, &id, Page { after: -1, limit: DEFAULT_LIMIT })
    };
    submit().into()
}

/// Handles a call of the tool `guard_batch_poll`.
pub(super) fn poll(access: &BatchAccess, given: JsonObject) -> BatchAnswer {
    let poll = || -> Result<BatchAnswer, Failure> {
        let mut given = Parameters::new(given);
        let id: String = given.required("response_id")?;
        let wait: u64 = given.optional("wait")?.unwrap_or(0);
        let task: Option<String> = given.optional("task")?;
        let limit: usize = given.optional("limit")?.unwrap_or(DEFAULT_LIMIT);
        let after: i64 = given.optional("after")?.unwrap_or(-1);
        given.reject_unknown()?;
        if wait > LONGEST_WAIT {
            return Err(format!("the parameter `wait` must be at most {LONGEST_WAIT}").into());
        }
        if limit > MOST_RESULTS {
            return Err(format!("the parameter `limit` must be at most {MOST_RESULTS}").into());
        }
        let mut queue = (access.open_queue)()?;
        let deadline = Instant::now() + Duration::from_secs(wait);
        let result = loop {
            let (has_ended, result) = look(&mut *queue, &id, task.as_deref())?;
            let rest = deadline.saturating_duration_since(Instant::now());
            if has_ended || rest.is_zero() {
                break result;
            }
            queue.wait(rest)?;
        };
        match result {
            Some(result) => {
                let summary = answer(&mut *queue, &id, Page::SUMMARY)?;
                Ok(BatchAnswer { results: Some(vec![result]), ..summary })
            }
            None => answer(&mut *queue, &id, Page { after, limit }),
        }
    };
    poll().into()
}

/// Handles a call of the tool `guard_batch_cancel`.
pub(super) fn cancel(access: &BatchAccess, given: JsonObject) -> BatchAnswer {
    let cancel = || -> Result<BatchAnswer, Failure> {
        let mut given = Parameters::new(given);
        let id: String = given.required("response_id")?;
        let task: Option<String> = given.optional("task")?;
        given.reject_unknown()?;
        let mut queue = (access.open_queue)()?;
        look(&mut *queue, &id, task.as_deref())?;
        let cancelled = queue.cancel(&id, task.as_deref())?;
        let summary = answer(&mut *queue, &id, Page::SUMMARY)?;
        Ok(BatchAnswer { cancelled: Some(cancelled), ..summary })
    };
    cancel().into()
}

/// Returns whether a batch, or the named task of it, has ended, and the result of that task. Fails if there is no such
/// batch or task.
fn look(queue: &mut dyn Queue, id: &str, task: Option<&str>) -> Result<(bool, Option<TaskResult>), Failure> {
    let batch = queue.batch(id)?;
    let batch = batch.ok_or_else(|| format!("the parameter `response_id`: there is no batch {id:?}"))?;
    let Some(task) = task else { return Ok((batch.open() == 0, None)) };
    let row = queue.task(id, task)?;
    let row = row.ok_or_else(|| format!("the parameter `task`: the batch has no task {task:?}"))?;
    Ok((row.state.is_terminal(), Some(TaskResult::from(row))))
}

/// Returns the status of a batch and a page of its results. The page ends early when its size reaches `LARGE`;
/// `next_after` then says where the next page begins.
fn answer(queue: &mut dyn Queue, id: &str, page: Page) -> Result<BatchAnswer, Failure> {
    let summary = respond(queue, id, Page::SUMMARY)?;
    let mut response =
        summary.ok_or_else(|| format!("the parameter `response_id`: there is no batch {id:?}"))?;
    let last = i64::try_from(response.counts.total).unwrap_or(i64::MAX) - 1;
    let (mut after, mut size) = (page.after, 0);
    while response.results.len() < page.limit && size < LARGE {
        let rows = queue.tasks(id, after, PAGE.min(page.limit - response.results.len()))?;
        let Some(position) = rows.last().map(|row| row.position) else { break };
        after = position;
        let results: Vec<TaskResult> = rows.into_iter().map(TaskResult::from).collect();
        size += serde_json::to_string(&results).map_or(0, |text| text.len());
        response.results.extend(results);
    }
    response.next_after = (page.limit > 0 && after < last).then_some(after);
    Ok(response.into())
}
