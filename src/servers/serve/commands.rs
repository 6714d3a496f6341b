//! The HTTP endpoints that send commands (`cancel`, `pause`, `resume`, `adjust_config`) to batches, conversations,
//! tasks and research runs.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Shared;
use super::body::LARGEST_COMMAND;
use super::conversations::{blocking, parsed};
use super::error::{ApiError, ErrorBody};
use super::handlers::App;
use super::parameters::{Ids, NoQuery, Query};
use crate::agents::control::{AgentAck, AgentCommand, check_command};
use crate::work::batch::command_batch;
use crate::work::commands::{Work, WorkError};

/// How long the server waits for the process that does the work to acknowledge a command.
const PATIENCE: Duration = Duration::from_secs(10);

/// A command to a batch, a conversation, a task or a research run in progress.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "command_type": "pause", "command_id": "c-17" }))]
pub(super) struct SendCommand {
    /// What to do: `cancel`, `pause`, `resume` or `adjust_config`. guard rejects other types.
    command_type: String,
    /// An id of your choice. If several commands to the same batch, conversation, task or research run have the same
    /// id, guard carries out only the first one.
    #[schema(min_length = 1, max_length = 128, pattern = r"^[A-Za-z0-9._-]+$")]
    command_id: String,
    /// The data of the command: for `adjust_config`, an object with the settings to change. Other commands need no
    /// data.
    #[serde(default)]
    #[schema(value_type = Object)]
    data: Option<Value>,
}

/// What happened to a command.
#[derive(Serialize, ToSchema)]
pub(super) struct Acknowledgement {
    /// The id of the command.
    command_id: String,
    /// What happened to the command: `accepted` (guard has read it and acts on it), `rejected` (guard does not act on
    /// it) or `completed` (guard has carried it out).
    status: String,
    /// Details. If the command was rejected, the field `reason` says why.
    #[schema(value_type = Object)]
    data: Value,
}

impl From<AgentAck> for Acknowledgement {
    fn from(ack: AgentAck) -> Self {
        let data = if ack.data.is_object() { ack.data } else { Value::Object(Default::default()) };
        Self { command_id: ack.command_id, status: ack.status.to_string(), data }
    }
}

fn command(asked: SendCommand) -> Result<AgentCommand, ApiError> {
    let command = AgentCommand {
        command_type: asked.command_type,
        command_id: asked.command_id,
        data: asked.data.unwrap_or_default(),
    };
    check_command(&command).map_err(|error| ApiError::bad_request(error.to_string()))?;
    Ok(command)
}

/// Send a command to a batch
///
/// With `pause`, workers start no further tasks of the batch until `resume`. `cancel` cancels the tasks that have not
/// ended. `adjust_config` with `{"priority": N}` changes the priority of all tasks.
#[utoipa::path(
    post,
    path = "/v1/batches/{id}/commands",
    tag = "batches",
    params(("id" = String, Path, description = "The `response_id` of the submission.")),
    request_body(content = SendCommand, content_type = "application/json"),
    responses(
        (status = 200, description = "The command was carried out or rejected.", body = Acknowledgement),
        (status = 404, description = "There is no such batch.", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time.", body = ErrorBody),
        (status = 413, description = "The body is larger than 448 KiB.", body = ErrorBody),
        (status = 415, description = "The Content-Type header does not name JSON.", body = ErrorBody),
    ),
)]
pub(super) async fn command_to_batch(
    State(shared): App,
    Ids(id): Ids<String>,
    _: Query<NoQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Acknowledgement>, ApiError> {
    let command = command(parsed(&shared, &headers, body, LARGEST_COMMAND).await?)?;
    let batch = id.clone();
    let ack = shared.queues.run(move |queue| command_batch(queue, &batch, &command)).await?;
    ack.map(|ack| Json(ack.into())).ok_or_else(|| ApiError::unknown_batch(&id))
}

/// Send a command to a conversation
///
/// With `pause`, guard refuses further turns until `resume`. `cancel` cancels the turn in progress. `adjust_config`
/// with `{"model": NAME}` changes the model.
#[utoipa::path(
    post,
    path = "/v1/conversations/{id}/commands",
    tag = "conversations",
    params(("id" = String, Path, description = "The `SESSION_ID` of the conversation.")),
    request_body(content = SendCommand, content_type = "application/json"),
    responses(
        (status = 200, description = "The command was carried out or rejected.", body = Acknowledgement),
        (status = 404, description = "There is no such conversation.", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time.", body = ErrorBody),
        (status = 413, description = "The body is larger than 448 KiB.", body = ErrorBody),
        (status = 415, description = "The Content-Type header does not name JSON.", body = ErrorBody),
    ),
)]
pub(super) async fn command_to_conversation(
    State(shared): App,
    Ids(id): Ids<String>,
    _: Query<NoQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Acknowledgement>, ApiError> {
    let command = command(parsed(&shared, &headers, body, LARGEST_COMMAND).await?)?;
    send(shared, id, "conversation", command, |work| matches!(work, Work::Conversation { .. })).await
}

/// Send a command to a task
///
/// `cancel` ends the task, `pause` stops it after the current step until `resume`, and `adjust_config` raises its
/// limits. The repository of the task must be below a root of the server.
#[utoipa::path(
    post,
    path = "/v1/tasks/{id}/commands",
    tag = "tasks",
    params(("id" = String, Path, description = "The `task_id` of the task.")),
    request_body(content = SendCommand, content_type = "application/json"),
    responses(
        (status = 200, description = "The command was carried out or rejected.", body = Acknowledgement),
        (status = 404, description = "There is no such task.", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time.", body = ErrorBody),
        (status = 413, description = "The body is larger than 448 KiB.", body = ErrorBody),
        (status = 415, description = "The Content-Type header does not name JSON.", body = ErrorBody),
    ),
)]
pub(super) async fn command_to_task(
    State(shared): App,
    Ids(id): Ids<String>,
    _: Query<NoQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Acknowledgement>, ApiError> {
    let command = command(parsed(&shared, &headers, body, LARGEST_COMMAND).await?)?;
    send(shared, id, "task", command, |work| matches!(work, Work::Task(_))).await
}

/// Send a command to a research run
///
/// `cancel` ends the run. With `pause`, the run starts no further request until `resume`. `adjust_config` with
/// `{"max_tokens": N}` changes the budget. If the run works in a directory, the directory must be below a root of the
/// server.
#[utoipa::path(
    post,
    path = "/v1/research/{id}/commands",
    tag = "research",
    params(("id" = String, Path, description = "The `research_id` of the run.")),
    request_body(content = SendCommand, content_type = "application/json"),
    responses(
        (status = 200, description = "The command was carried out or rejected.", body = Acknowledgement),
        (status = 404, description = "There is no such research run.", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time.", body = ErrorBody),
        (status = 413, description = "The body is larger than 448 KiB.", body = ErrorBody),
        (status = 415, description = "The Content-Type header does not name JSON.", body = ErrorBody),
    ),
)]
pub(super) async fn command_to_research(
    State(shared): App,
    Ids(id): Ids<String>,
    _: Query<NoQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Acknowledgement>, ApiError> {
    let command = command(parsed(&shared, &headers, body, LARGEST_COMMAND).await?)?;
    send(shared, id, "research run", command, |work| matches!(work, Work::Research { .. })).await
}

/// Sends a command to the work with this id, and waits for the acknowledgement. Answers 404 unless the work is of the
/// wanted kind and the clients of this server may control it, and 503 if no acknowledgement comes within `PATIENCE`.
async fn send(
    shared: Arc<Shared>,
    id: String,
    kind: &'static str,
    command: AgentCommand,
    is_wanted: fn(&Work) -> bool,
) -> Result<Json<Acknowledgement>, ApiError> {
    blocking(move || {
        let failed = |error: WorkError| ApiError::internal(error.to_string());
        let work = shared.work.find(&id).map_err(failed)?;
        let work = work.filter(|work| is_wanted(work) && work.is_open_to(&shared.roots, &id));
        let work = work.ok_or_else(|| ApiError::not_found(format!("there is no {kind} {id:?}")))?;
        let ack = shared.work.send(&work, &command, PATIENCE).map_err(failed)?;
        ack.map(|ack| Json(ack.into())).ok_or_else(|| {
            ApiError::overloaded(format!(
                "the process that works on the {kind} has not read the command yet; if you send it again, use the same command_id"
            ))
        })
    })
    .await
}
