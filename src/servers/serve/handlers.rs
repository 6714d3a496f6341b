//! The handlers of the server's HTTP endpoints. Their doc comments and attributes become the OpenAPI document.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::Shared;
use super::error::{ApiError, ErrorBody};
use super::events;
use super::events::LastSeen;
use super::parameters::{Ids, ListQuery, NoQuery, PollQuery, Query, SubmitQuery, WaitQuery, header};
use super::result_stream::{all_results, batch_response};
use super::{body, document};
use crate::work::batch::queue::{BatchRow, NewBatch};
use crate::work::batch::{
    BatchResponse, BatchStatus, Counts, InputError, NewTask, Page, TaskResult, TaskType, parse_client_tasks,
};

/// The extractor with which every handler gets the server's shared state.
pub(super) type App = State<Arc<Shared>>;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// A task of a batch.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "task_id": "task_1", "type": "echo", "parameters": { "text": "hello" } }))]
#[allow(dead_code, reason = "describes what `parse_client_tasks` reads")]
pub(super) struct Task {
    /// An id of your choice. It must be unique in the batch and have no control characters.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    task_id: String,
    /// The name of the task type. `GET /v1/task-types` lists the types.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    r#type: String,
    /// The arguments of the task. `GET /v1/task-types` returns a JSON schema of them for each task type.
    #[schema(value_type = Object)]
    parameters: Value,
    /// The priority of the task: workers start tasks with higher numbers first. Default: 0.
    #[schema(minimum = -1000, maximum = 1000)]
    priority: Option<i32>,
    /// The ids of tasks in the same batch that must complete before this task starts. If one of them fails, this task
    /// fails too.
    depends_on: Option<Vec<String>>,
    /// A key of your choice. If an earlier task had the same key and did not fail, guard does not run this task but
    /// gives it the result of the earlier one. The two tasks must be the same.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    idempotency_key: Option<String>,
    /// The task fails if no worker is running it when this many seconds have passed since the submission.
    #[schema(exclusive_minimum = 0, maximum = 2_592_000)]
    expires_after: Option<f64>,
    /// The maximum duration of one attempt, in seconds.
    #[schema(exclusive_minimum = 0, maximum = 2_592_000)]
    timeout: Option<f64>,
    /// How often the task is retried after a temporary failure. Default: 2.
    #[schema(minimum = 0, maximum = 10)]
    max_retries: Option<u32>,
    /// The name of the policy under which the task runs. Default: the policy of the task type.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    policy: Option<String>,
    /// The directory in which the task works, below a root of the server. A relative path is relative to the query
    /// parameter `directory`. Default: the query parameter `directory`.
    #[schema(min_length = 1, max_length = 256)]
    directory: Option<String>,
    /// The agent that works on the task. Default: `gemini`.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    agent: Option<String>,
}

/// A batch in a list.
#[derive(Serialize, ToSchema)]
pub(super) struct ListedBatch {
    /// The id of the batch, with which clients poll.
    response_id: String,
    /// When the batch was submitted (RFC 3339, UTC).
    #[schema(format = DateTime)]
    created: String,
    /// The status of the batch.
    status: BatchStatus,
    /// The number of tasks with each status.
    counts: Counts,
}

/// A list of batches.
#[derive(Serialize, ToSchema)]
pub(super) struct BatchList {
    /// The batches, newest first.
    batches: Vec<ListedBatch>,
}

/// The result of a cancellation.
#[derive(Serialize, ToSchema)]
pub(super) struct Cancelled {
    /// The id of the batch.
    response_id: String,
    /// The number of tasks that ended because of the cancellation, including the tasks that depend on a cancelled task.
    cancelled: u64,
}

/// The result of a retry.
#[derive(Serialize, ToSchema)]
pub(super) struct Retried {
    /// The id of the batch.
    response_id: String,
    /// The number of failed tasks that guard queued again.
    queued: u64,
}

/// A server-sent event: a task or the whole batch has ended.
#[derive(ToSchema)]
#[allow(dead_code, reason = "describes what `events` sends")]
pub(super) struct SentEvent {
    /// The id of the event, for the header `Last-Event-ID`: a number that grows with every task of the batch that ends.
    /// The event for the whole batch has the last number followed by `-end`.
    #[schema(pattern = "^[0-9]+(-end)?$")]
    id: String,
    /// The type of the event: `task.completed`, `task.failed`, `batch.completed`, `batch.failed`. Later versions of
    /// guard may add types.
    event: String,
    /// A JSON object with `event_type`, `message`, `timestamp` and `data`. Its `data` is the `TaskResult` of the task,
    /// or the `BatchResponse` without results.
    #[schema(content_media_type = "application/json")]
    data: String,
}

/// A type of task, and what tasks of this type get and return.
#[derive(Serialize, ToSchema)]
pub(super) struct TaskTypeInfo {
    /// The name of the type, for the field `type` of a task.
    r#type: String,
    /// What tasks of this type do.
    description: String,
    /// The JSON schema of the `parameters` of a task of this type.
    #[schema(value_type = Object)]
    parameters: Value,
    /// The JSON schema of the `output` of a task of this type.
    #[schema(value_type = Object)]
    output: Value,
}

/// The task types that the server accepts.
#[derive(Serialize, ToSchema)]
pub(super) struct TaskTypeList {
    /// The task types, sorted by name.
    types: Vec<TaskTypeInfo>,
}

/// The answer of a server that can serve requests.
#[derive(Serialize, ToSchema)]
pub(super) struct Health {
    /// Always `ok`.
    status: &'static str,
}

/// Submit a batch
///
/// The body is a JSON array of tasks, or one task per line (`application/x-ndjson`). The server queues either all tasks
/// or none. Use the `response_id` in the answer to poll for the results.
#[utoipa::path(
    post,
    path = "/v1/batches",
    tag = "batches",
    params(
        SubmitQuery,
        (
            "Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 256, pattern = "^[!-~]+$",
            description = "If an earlier submission had the same key and the same tasks, the server queues nothing and returns the response to the earlier submission."
        ),
    ),
    request_body(content = Vec<Task>, content_type = "application/json"),
    responses(
        (status = 202, description = "The tasks are queued.", body = BatchResponse),
        (status = 408, description = "The body did not arrive in time.", body = ErrorBody),
        (status = 409, description = "An idempotency key belongs to other tasks.", body = ErrorBody),
        (status = 413, description = "The body is larger than 64 MiB, or has more than 2,000,000 JSON values.", body = ErrorBody),
        (status = 415, description = "The Content-Type header does not name JSON.", body = ErrorBody),
        (status = 422, description = "The submission has mistakes; `problems` lists them.", body = ErrorBody),
    ),
)]
pub(super) async fn submit(
    State(shared): App,
    Query(query): Query<SubmitQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    check_content_type(&headers)?;
    let key = header(&headers, &IDEMPOTENCY_KEY)?.map(str::to_string);
    let (text, permit) = body::read(&shared, &headers, body, body::LARGEST).await?;
    let parser = shared.clone();
    // Use another thread, because parsing a large submission and resolving its directories takes a while.
    let parsed = tokio::task::spawn_blocking(move || {
        let tasks = parse(&parser, &query, &text);
        drop((text, permit));
        tasks
    });
    let tasks = parsed.await.map_err(|error| ApiError::internal(error.to_string()))??;
    let batch = NewBatch::new(tasks, key);
    let id = shared.queues.run(move |queue| queue.submit(&batch)).await?;
    batch_response(&shared, &id, Page::ALL, StatusCode::ACCEPTED).await
}

/// List batches
///
/// Lists the newest batches, newest first.
#[utoipa::path(
    get,
    path = "/v1/batches",
    tag = "batches",
    params(ListQuery),
    responses((status = 200, description = "The batches.", body = BatchList)),
)]
pub(super) async fn list(
    State(shared): App,
    Query(query): Query<ListQuery>,
) -> Result<Json<BatchList>, ApiError> {
    let limit = query.limit()?;
    let rows = shared.queues.run(move |queue| queue.batches(limit)).await?;
    let listed = |row: BatchRow| ListedBatch {
        created: Timestamp::from_millisecond(row.created_ms).map(|time| time.to_string()).unwrap_or_default(),
        status: BatchStatus::of(&row),
        counts: Counts::from(&row),
        response_id: row.id,
    };
    Ok(Json(BatchList { batches: rows.into_iter().map(listed).collect() }))
}

/// Poll a batch
///
/// Returns the status of the batch and the results so far. With `wait`, the server answers when the batch has ended or
/// the given time has passed.
#[utoipa::path(
    get,
    path = "/v1/batches/{id}",
    tag = "batches",
    params(("id" = String, Path, description = "The `response_id` of the submission."), PollQuery),
    responses(
        (status = 200, description = "The status and the results.", body = BatchResponse),
        (status = 404, description = "There is no such batch.", body = ErrorBody),
    ),
)]
pub(super) async fn poll(
    State(shared): App,
    Ids(id): Ids<String>,
    Query(query): Query<PollQuery>,
) -> Result<Response, ApiError> {
    let page = query.page()?;
    wait_for_end(&shared, &id, None, query.wait()?).await?;
    batch_response(&shared, &id, page, StatusCode::OK).await
}

/// Cancel a batch
///
/// Cancels the tasks that have not ended. They fail with the `error_kind` `cancelled`.
#[utoipa::path(
    delete,
    path = "/v1/batches/{id}",
    tag = "batches",
    params(("id" = String, Path, description = "The `response_id` of the submission.")),
    responses(
        (status = 200, description = "The tasks are cancelled.", body = Cancelled),
        (status = 404, description = "There is no such batch.", body = ErrorBody),
    ),
)]
pub(super) async fn cancel(
    State(shared): App,
    Ids(id): Ids<String>,
    _: Query<NoQuery>,
) -> Result<Json<Cancelled>, ApiError> {
    known_batch(&shared, &id).await?;
    let batch = id.clone();
    let cancelled = shared.queues.run(move |queue| queue.cancel(&batch, None)).await?;
    Ok(Json(Cancelled { response_id: id, cancelled }))
}

/// Get one task
///
/// Returns the result of one task. With `wait`, the server answers when the task has ended or the given time has
/// passed.
#[utoipa::path(
    get,
    path = "/v1/batches/{id}/tasks/{task_id}",
    tag = "batches",
    params(
        ("id" = String, Path, description = "The `response_id` of the submission."),
        ("task_id" = String, Path, description = "The id of the task."),
        WaitQuery,
    ),
    responses(
        (status = 200, description = "The result of the task.", body = TaskResult),
        (status = 404, description = "There is no such batch or task.", body = ErrorBody),
    ),
)]
pub(super) async fn task(
    State(shared): App,
    Ids((id, task)): Ids<(String, String)>,
    Query(query): Query<WaitQuery>,
) -> Result<Json<TaskResult>, ApiError> {
    wait_for_end(&shared, &id, Some(&task), query.wait()?).await?;
    let (batch, wanted) = (id.clone(), task.clone());
    let row = shared.queues.run(move |queue| queue.task(&batch, &wanted)).await?;
    let row = row.ok_or_else(|| ApiError::unknown_task(&id, &task))?;
    Ok(Json(TaskResult::from(row)))
}

/// Cancel one task
///
/// Cancels the task if it has not ended. The tasks that depend on it fail with the `error_kind` `dependency_failed`.
#[utoipa::path(
    delete,
    path = "/v1/batches/{id}/tasks/{task_id}",
    tag = "batches",
    params(
        ("id" = String, Path, description = "The `response_id` of the submission."),
        ("task_id" = String, Path, description = "The id of the task."),
    ),
    responses(
        (status = 200, description = "The task is cancelled.", body = Cancelled),
        (status = 404, description = "There is no such batch or task.", body = ErrorBody),
    ),
)]
pub(super) async fn cancel_task(
    State(shared): App,
    Ids((id, task)): Ids<(String, String)>,
    _: Query<NoQuery>,
) -> Result<Json<Cancelled>, ApiError> {
    let (batch, wanted) = (id.clone(), task.clone());
    let cancelled = shared.queues.run(move |queue| {
        let is_known = queue.task(&batch, &wanted)?.is_some();
        if is_known { queue.cancel(&batch, Some(&wanted)).map(Some) } else { Ok(None) }
    });
    let cancelled = cancelled.await?.ok_or_else(|| ApiError::unknown_task(&id, &task))?;
    Ok(Json(Cancelled { response_id: id, cancelled }))
}

/// Get all results
///
/// Returns one result per line, in the order of the submission. Tasks that have not ended are included, with the status
/// `pending`. The server streams the results, so that the batch can have any size.
#[utoipa::path(
    get,
    path = "/v1/batches/{id}/results",
    tag = "batches",
    params(("id" = String, Path, description = "The `response_id` of the submission.")),
    responses(
        (
            status = 200, body = String, content_type = "application/x-ndjson",
            description = "One JSON object per line, in the shape of `TaskResult`."
        ),
        (status = 404, description = "There is no such batch.", body = ErrorBody),
    ),
)]
pub(super) async fn results(
    State(shared): App,
    Ids(id): Ids<String>,
    _: Query<NoQuery>,
) -> Result<Response, ApiError> {
    known_batch(&shared, &id).await?;
    let permit = waiting_permit(&shared)?;
    all_results(&shared, &id, permit).await
}

/// Retry failed tasks
///
/// Queues the failed tasks of the batch again, and counts their attempts from zero.
#[utoipa::path(
    post,
    path = "/v1/batches/{id}/retry-failed",
    tag = "batches",
    params(("id" = String, Path, description = "The `response_id` of the submission.")),
    responses(
        (status = 200, description = "The tasks are queued again.", body = Retried),
        (status = 404, description = "There is no such batch.", body = ErrorBody),
    ),
)]
pub(super) async fn retry_failed(
    State(shared): App,
    Ids(id): Ids<String>,
    _: Query<NoQuery>,
) -> Result<Json<Retried>, ApiError> {
    known_batch(&shared, &id).await?;
    let batch = id.clone();
    let queued = shared.queues.run(move |queue| queue.retry_failed(&batch)).await?;
    Ok(Json(Retried { response_id: id, queued }))
}

/// Follow a batch
///
/// The server sends an event `task.completed` or `task.failed` for each task that ends, in the order in which the tasks
/// end. When all tasks have ended, it sends `batch.completed` or `batch.failed`, and ends the stream. The `data` of an
/// event is an object with `event_type`, `message`, `timestamp` and `data`; the inner `data` is the `TaskResult` of the
/// task, or the `BatchResponse` without results. Ignore event types and fields that you do not know. A client that
/// reconnects after the last event gets the status 204.
#[utoipa::path(
    get,
    path = "/v1/batches/{id}/events",
    tag = "batches",
    params(
        ("id" = String, Path, description = "The `response_id` of the submission."),
        (
            "Last-Event-ID" = Option<String>, Header, pattern = "^[0-9]{1,18}(-end)?$",
            description = "Only events after the one with this id."
        ),
    ),
    responses(
        (status = 200, description = "The events.", body = SentEvent, content_type = "text/event-stream"),
        (status = 204, description = "The batch has ended, and the client has seen all events."),
        (status = 404, description = "There is no such batch.", body = ErrorBody),
    ),
)]
pub(super) async fn follow(
    State(shared): App,
    Ids(id): Ids<String>,
    _: Query<NoQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let seen = header(&headers, &LAST_EVENT_ID)?.map(LastSeen::parse).transpose()?.unwrap_or_default();
    let permit = waiting_permit(&shared)?;
    events::stream(&shared, &id, seen, permit).await
}

/// List task types
///
/// Lists the task types that the server accepts, with the JSON schemas of their parameters and outputs.
#[utoipa::path(
    get,
    path = "/v1/task-types",
    tag = "server",
    responses((status = 200, description = "The task types.", body = TaskTypeList)),
)]
pub(super) async fn task_types(State(shared): App, _: Query<NoQuery>) -> Json<TaskTypeList> {
    let info = |one: &TaskType| TaskTypeInfo {
        r#type: one.name.clone(),
        description: one.description.clone(),
        parameters: one.parameters.clone(),
        output: one.output.clone(),
    };
    let types = shared.types.iter().filter(|one| accepts(&shared, &one.name)).map(info).collect();
    Json(TaskTypeList { types })
}

/// Get this document
#[utoipa::path(
    get,
    path = "/v1/openapi.json",
    tag = "server",
    security(()),
    responses((status = 200, description = "The OpenAPI document.", body = Object)),
)]
pub(super) async fn openapi(_: Query<NoQuery>) -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(CONTENT_TYPE, json)], Bytes::from_static(document::text().as_bytes())).into_response()
}

/// Check that the server works
///
/// The server answers with the status 503 if it cannot use the queue.
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "server",
    security(()),
    responses((status = 200, description = "The server works.", body = Health)),
)]
pub(super) async fn health(State(shared): App, _: Query<NoQuery>) -> Result<Json<Health>, ApiError> {
    shared.queues.run(|queue| queue.batch("").map(drop)).await?;
    Ok(Json(Health { status: "ok" }))
}

pub(super) async fn unknown_path() -> ApiError {
    ApiError::not_found("nothing is served at this path; GET /v1/openapi.json describes the server")
}

pub(super) async fn unknown_method() -> ApiError {
    ApiError::method_not_allowed()
}

pub(super) fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let essence = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let known = ["application/json", "application/x-ndjson", "application/jsonl", "application/json-lines"];
    let is_known = known.iter().any(|known| known.eq_ignore_ascii_case(essence));
    if is_known { Ok(()) } else { Err(ApiError::unsupported_media_type()) }
}

fn accepts(shared: &Shared, task_type: &str) -> bool {
    shared.accepted_types.as_ref().is_none_or(|accepted| accepted.contains(task_type))
}

/// Parses and checks a submission: its directories must be below the roots, and the server must accept its task
/// types.
fn parse(shared: &Shared, query: &SubmitQuery, body: &[u8]) -> Result<Vec<NewTask>, ApiError> {
    let directory = match (&query.directory, shared.roots.first()) {
        (Some(directory), _) => shared.roots.find("directory", directory)?,
        (None, Some(first)) => first.to_path_buf(),
        (None, None) => {
            return Err(ApiError::bad_request(
                "`directory` is missing; give the directory in which the tasks work",
            ));
        }
    };
    let text = std::str::from_utf8(body).map_err(|error| InputError::NotJson(error.to_string()))?;
    let tasks = parse_client_tasks(text, &directory, &shared.types, &shared.roots)?;
    let refused = |(index, task): (usize, &NewTask)| {
        let is_refused = !accepts(shared, &task.task_type);
        is_refused
            .then(|| format!("task {}: the server does not accept the type {:?}", index + 1, task.task_type))
    };
    let problems: Vec<String> = tasks.iter().enumerate().filter_map(refused).collect();
    if problems.is_empty() { Ok(tasks) } else { Err(InputError::of_tasks(problems).into()) }
}

async fn known_batch(shared: &Shared, id: &str) -> Result<BatchRow, ApiError> {
    let batch = id.to_string();
    let row = shared.queues.run(move |queue| queue.batch(&batch)).await?;
    row.ok_or_else(|| ApiError::unknown_batch(id))
}

/// Waits until a batch, or one of its tasks, has ended, at most for the given number of seconds or until the server
/// stops. Fails if there is no such batch or task, unless `seconds` is 0.
async fn wait_for_end(shared: &Shared, id: &str, task: Option<&str>, seconds: u64) -> Result<(), ApiError> {
    if seconds == 0 {
        return Ok(());
    }
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut waiter = shared.changes.subscribe();
    let mut permit = None;
    while !has_ended(shared, id, task).await? {
        if permit.is_none() {
            permit = Some(waiting_permit(shared)?);
        }
        if !waiter.wait(deadline, &shared.stop).await {
            break;
        }
    }
    Ok(())
}

async fn has_ended(shared: &Shared, id: &str, task: Option<&str>) -> Result<bool, ApiError> {
    let Some(task) = task else { return Ok(known_batch(shared, id).await?.open() == 0) };
    let (batch, wanted) = (id.to_string(), task.to_string());
    let row = shared.queues.run(move |queue| queue.task(&batch, &wanted)).await?;
    let row = row.ok_or_else(|| ApiError::unknown_task(id, task))?;
    Ok(row.state.is_terminal())
}

/// Returns a permit for a request that waits or streams; an error if too many requests do so already.
fn waiting_permit(shared: &Shared) -> Result<OwnedSemaphorePermit, ApiError> {
    shared.waiting.clone().try_acquire_owned().map_err(|_| {
        ApiError::overloaded(
            "the maximum number of waiting and streaming requests is reached; try again, or poll without `wait`",
        )
    })
}
