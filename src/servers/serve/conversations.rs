//! Conversations over HTTP: clients start, list and read them, and send messages. A client gets the result of a turn
//! in one long response, or as a stream of events. If the client disconnects, the server cancels the turn.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc, oneshot};
use utoipa::ToSchema;

use super::Shared;
use super::body;
use super::error::{ApiError, ErrorBody};
use super::handlers::{App, check_content_type};
use super::parameters::{Ids, NoQuery, Query};
use crate::agents::adapter::AgentEvent;
use crate::agents::conversation::{
    Conversation, ConversationError, ConversationLine, Conversations, Mode, NewConversation, Record, Turn,
    TurnOptions, TurnResult,
};
use crate::agents::exec::{Cancel, Executor, RESULT, Sandbox};

/// The maximum number of turns that the server runs at the same time.
const MOST_TURNS: usize = 8;
/// How long the stopping server waits for the turns that it cancelled. guard gives each run a grace period before it
/// kills the run, and then records the turn.
const TURNS_END: Duration = Duration::from_secs(12);
/// The maximum number of events that wait to be sent to one client. A client that reads too slowly misses events, but
/// always gets the result.
const EVENTS: usize = 256;
/// The size of the largest event that the server sends, in bytes. It leaves larger events out.
const LARGEST_EVENT: usize = 64 << 10;

/// Where the server stores conversations, and what runs their agents.
#[derive(Debug, Clone)]
pub struct ConversationService {
    pub conversations: Conversations,
    pub executor: Executor,
}

/// The conversation service, with the semaphore that limits how many turns run at the same time.
pub(super) struct Service {
    setup: ConversationService,
    turns: Arc<Semaphore>,
}

impl Service {
    pub(super) fn new(setup: ConversationService) -> Self {
        Self { setup, turns: Arc::new(Semaphore::new(MOST_TURNS)) }
    }

    /// Waits until no turn is running, at most for `TURNS_END`.
    pub(super) async fn wait_for_turns(&self) {
        let all = self.turns.acquire_many(MOST_TURNS as u32);
        let _ = tokio::time::timeout(TURNS_END, all).await;
    }
}

/// The settings of a new conversation.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "cd": "/home/me/work/app", "agent": "gemini" }))]
pub(super) struct StartConversation {
    /// The directory in which the agent works: an absolute path below a root of the server. Default: the first root.
    cd: Option<String>,
    /// The agent: `gemini`, `claude`, `codex` or `agy`. Default: `gemini`.
    agent: Option<String>,
    /// The model that the agent uses. Default: the agent's default model.
    model: Option<String>,
    /// How the agent learns the earlier turns of the conversation: `auto`, `native` or `own-history`. Default: `auto`.
    mode: Option<Mode>,
    /// Which files the agent may write: `read-only` or `workspace-write`. Default: `workspace-write`.
    sandbox: Option<Sandbox>,
    /// The title of the conversation. Default: the beginning of the first message.
    title: Option<String>,
}

/// A message to the agent.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "message": "add a dark mode toggle" }))]
pub(super) struct SendMessage {
    /// The text of the message, at most 1 MiB.
    message: String,
    /// The idle limit in seconds: guard ends a run that for this long prints nothing, starts no program and uses no
    /// CPU. Default: 120.
    #[schema(minimum = 1, maximum = 604_800)]
    timeout: Option<u64>,
    /// The limit on the total duration of one attempt, in seconds. Default: 1800.
    #[schema(minimum = 1, maximum = 604_800)]
    max_duration: Option<u64>,
    /// The model for this turn only. Default: the conversation's model.
    model: Option<String>,
}

/// A list of conversations.
#[derive(Serialize, ToSchema)]
pub(super) struct ConversationList {
    /// The conversations whose agents work below one of the directories that the server was given with `--root`. The
    /// one with the newest turn comes first.
    conversations: Vec<ConversationLine>,
}

/// A conversation with its turns.
#[derive(Serialize, ToSchema)]
pub(super) struct ShownConversation {
    /// The id of the conversation.
    #[serde(rename = "SESSION_ID")]
    session_id: String,
    /// The title of the conversation.
    title: String,
    /// The agent's name.
    agent: String,
    /// The model that the agent uses; null if it is not known.
    model: Option<String>,
    /// The directory in which the agent works.
    cd: String,
    /// Whether a process of guard has the conversation open, for example for another client. New messages are then
    /// refused.
    is_open: bool,
    /// The turns that were neither cleared nor undone, oldest first.
    turns: Vec<Turn>,
}

impl From<&Record> for ShownConversation {
    fn from(record: &Record) -> Self {
        Self {
            session_id: record.settings.id.clone(),
            title: record.title(),
            agent: record.settings.agent.clone(),
            model: record.settings.model_in_use(),
            cd: record.settings.cd.to_string_lossy().into_owned(),
            is_open: record.is_open,
            turns: record.active_turns().cloned().collect(),
        }
    }
}

impl From<ConversationError> for ApiError {
    fn from(error: ConversationError) -> Self {
        let text = format!("{error}; {}", error.hint());
        match &error {
            ConversationError::Unknown(_) | ConversationError::None | ConversationError::Ambiguous { .. } => {
                Self::not_found(text)
            }
            ConversationError::Busy(_) => Self::busy(text),
            ConversationError::Io { .. } | ConversationError::Damaged { .. } => Self::internal(text),
            _ => Self::bad_request(text),
        }
    }
}

fn service(shared: &Shared) -> Result<&Service, ApiError> {
    shared.conversations.as_ref().ok_or_else(|| ApiError::not_found("this server offers no conversations"))
}

/// Runs blocking file operations in another thread, so that the server can answer other requests.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| ApiError::internal(error.to_string()))?
}

pub(super) async fn parsed<T: DeserializeOwned>(
    shared: &Shared,
    headers: &HeaderMap,
    body: Body,
    largest: usize,
) -> Result<T, ApiError> {
    check_content_type(headers)?;
    let (text, _permit) = body::read(shared, headers, body, largest).await?;
    serde_json::from_slice(&text)
        .map_err(|error| ApiError::bad_request(format!("the body of the request is invalid: {error}")))
}

/// Fails unless the agent of the conversation works below a root of the server. The error is the same as for a
/// conversation that does not exist, so that clients cannot learn about other conversations.
fn check_place(shared: &Shared, record: &Record) -> Result<(), ApiError> {
    let place = record.settings.cd.to_string_lossy();
    shared.roots.find("cd", &place).map(drop).map_err(|_| unknown(&record.settings.id))
}

fn unknown(id: &str) -> ApiError {
    ApiError::not_found(format!("there is no conversation {id:?}"))
}

/// Reads a conversation. `id` must be its complete id, not only the end of the id.
fn read(shared: &Shared, id: &str) -> Result<Record, ApiError> {
    let conversations = &service(shared)?.setup.conversations;
    if !conversations.contains(id) {
        return Err(unknown(id));
    }
    let record = conversations.read(id)?;
    check_place(shared, &record).map(|()| record)
}

/// Start a conversation
///
/// The server starts the agent when a client sends the first message with `POST /v1/conversations/{id}/turns`.
#[utoipa::path(
    post,
    path = "/v1/conversations",
    tag = "conversations",
    request_body(content = StartConversation, content_type = "application/json"),
    responses(
        (status = 201, description = "The conversation was created.", body = ShownConversation),
        (status = 408, description = "The body did not arrive in time.", body = ErrorBody),
        (status = 413, description = "The body is larger than 7 MiB.", body = ErrorBody),
        (status = 415, description = "The Content-Type header does not name JSON.", body = ErrorBody),
    ),
)]
pub(super) async fn start_conversation(
    State(shared): App,
    _: Query<NoQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let asked: StartConversation = parsed(&shared, &headers, body, body::LARGEST_MESSAGE).await?;
    let shown = blocking(move || {
        let cd = match (&asked.cd, shared.roots.first()) {
            (Some(cd), _) => shared.roots.find("cd", cd)?,
            (None, Some(first)) => first.to_path_buf(),
            (None, None) => {
                return Err(ApiError::bad_request(
                    "`cd` is missing; give the directory in which the agent works",
                ));
            }
        };
        let conversation = service(&shared)?.setup.conversations.create(NewConversation {
            agent: asked.agent,
            command: Vec::new(),
            model: asked.model,
            cd,
            sandbox: asked.sandbox.unwrap_or_default(),
            title: asked.title,
            mode: asked.mode.unwrap_or_default(),
        })?;
        Ok(ShownConversation::from(conversation.record()))
    })
    .await?;
    Ok((StatusCode::CREATED, Json(shown)).into_response())
}

/// List conversations
#[utoipa::path(
    get,
    path = "/v1/conversations",
    tag = "conversations",
    responses((status = 200, description = "The conversations.", body = ConversationList)),
)]
pub(super) async fn list_conversations(
    State(shared): App,
    _: Query<NoQuery>,
) -> Result<Json<ConversationList>, ApiError> {
    blocking(move || {
        let mut conversations = service(&shared)?.setup.conversations.list()?;
        conversations.retain(|line| shared.roots.find("cd", &line.cd.to_string_lossy()).is_ok());
        Ok(Json(ConversationList { conversations }))
    })
    .await
}

/// Read a conversation
#[utoipa::path(
    get,
    path = "/v1/conversations/{id}",
    tag = "conversations",
    params(("id" = String, Path, description = "The `SESSION_ID` of the conversation.")),
    responses(
        (status = 200, description = "The conversation with its turns.", body = ShownConversation),
        (status = 404, description = "There is no such conversation.", body = ErrorBody),
    ),
)]
pub(super) async fn show_conversation(
    State(shared): App,
    Ids(id): Ids<String>,
    _: Query<NoQuery>,
) -> Result<Json<ShownConversation>, ApiError> {
    blocking(move || Ok(Json(ShownConversation::from(&read(&shared, &id)?)))).await
}

/// Send a message
///
/// The server answers when the turn has ended, whether the agent succeeded or failed. The answer is a JSON object with
/// `success`, `result`, `turn` and all other fields of the result of `guard exec`. With `Accept: text/event-stream`,
/// the server sends the events of the agent first; the last event, `exec.result`, has the object as its `data`. If the
/// client disconnects, the server cancels the turn.
#[utoipa::path(
    post,
    path = "/v1/conversations/{id}/turns",
    tag = "conversations",
    params(("id" = String, Path, description = "The `SESSION_ID` of the conversation.")),
    request_body(content = SendMessage, content_type = "application/json"),
    responses(
        (status = 200, description = "The turn has ended.", content(
            (Object = "application/json"), (String = "text/event-stream"),
        )),
        (status = 404, description = "There is no such conversation.", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time.", body = ErrorBody),
        (status = 409, description = "Another client uses the conversation.", body = ErrorBody),
        (status = 413, description = "The body is larger than 7 MiB.", body = ErrorBody),
        (status = 415, description = "The Content-Type header does not name JSON.", body = ErrorBody),
    ),
)]
pub(super) async fn send_message(
    State(shared): App,
    Ids(id): Ids<String>,
    _: Query<NoQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let asked: SendMessage = parsed(&shared, &headers, body, body::LARGEST_MESSAGE).await?;
    crate::agents::conversation::check_message(&asked.message)?;
    let turns = service(&shared)?.turns.clone();
    let permit = turns.try_acquire_owned().map_err(|_| {
        ApiError::overloaded(
            "the server has reached its maximum number of simultaneous turns; try again when one has ended",
        )
    })?;
    let opener = shared.clone();
    let conversation = blocking(move || {
        let record = read(&opener, &id)?;
        Ok(service(&opener)?.setup.conversations.open(&record.settings.id)?)
    })
    .await?;
    let is_stream = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.contains("text/event-stream"));
    let executor = service(&shared)?.setup.executor.clone();
    let running = RunningTurn::start(conversation, asked, executor, permit)?;
    if is_stream { Ok(running.stream(shared)) } else { running.finish(&shared).await }
}

/// A turn that runs in its own thread. Dropping this value cancels the turn.
struct RunningTurn {
    cancel: Cancel,
    events: mpsc::Receiver<AgentEvent>,
    result: oneshot::Receiver<TurnResult>,
}

impl Drop for RunningTurn {
    fn drop(&mut self) {
        self.cancel.set();
    }
}

impl RunningTurn {
    fn start(
        mut conversation: Conversation,
        asked: SendMessage,
        executor: Executor,
        permit: tokio::sync::OwnedSemaphorePermit,
    ) -> Result<Self, ApiError> {
        let (event_sender, events) = mpsc::channel(EVENTS);
        let (result_sender, result) = oneshot::channel();
        let cancel = Cancel::default();
        let of_thread = cancel.clone();
        let work = move || {
            let defaults = TurnOptions::default();
            let options = TurnOptions {
                timeout: asked.timeout.unwrap_or(defaults.timeout),
                max_duration: asked.max_duration.unwrap_or(defaults.max_duration),
                model: asked.model,
                ..defaults
            };
            let on_event = &mut |event: &AgentEvent| {
                // A client that reads slowly must not make the server buffer large events. The transcript contains
                // them.
                let is_small = serde_json::to_vec(event).is_ok_and(|json| json.len() <= LARGEST_EVENT);
                if is_small {
                    let _ = event_sender.try_send(event.clone());
                }
            };
            let result = conversation.run_turn(&asked.message, &options, &executor, &of_thread, on_event);
            conversation.detach_compaction();
            // Release the conversation and the permit before sending the result, so that the client can start the next
            // turn as soon as it has the result.
            drop((conversation, permit));
            let _ = result_sender.send(result);
        };
        let thread = std::thread::Builder::new().name("turn".to_string()).spawn(work);
        thread.map_err(|error| ApiError::internal(format!("cannot start a thread for the turn: {error}")))?;
        Ok(Self { cancel, events, result })
    }

    /// Waits for the end of the turn, and answers with its result.
    async fn finish(mut self, shared: &Shared) -> Result<Response, ApiError> {
        // This response contains no events, so the turn's thread need not send them.
        self.events.close();
        tokio::select! {
            result = &mut self.result => match result {
                Ok(result) => Ok(Json(result).into_response()),
                Err(_) => Err(ApiError::internal("the turn ended without a result")),
            },
            () = shared.stop.wait() => Err(ApiError::overloaded("the server is stopping, so it cancelled the turn")),
        }
    }

    /// Answers with a stream of the turn's events, and with the result as the last event.
    fn stream(mut self, shared: Arc<Shared>) -> Response {
        let (sender, body) = body::streamed();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    event = self.events.recv() => match event {
                        Some(event) => if !sender.send(written(&event)).await { return },
                        None => break,
                    },
                    () = sender.closed() => return,
                    () = shared.stop.wait() => return,
                }
            }
            if let Ok(result) = (&mut self.result).await {
                let data = serde_json::to_value(&result).unwrap_or_default();
                sender.send(written(&AgentEvent::new(RESULT, "the turn has ended", data))).await;
                sender.end().await;
            }
        });
        let headers = [
            (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
            (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        ];
        (headers, body).into_response()
    }
}

/// Formats an event as a server-sent event. JSON text contains no line breaks, so one `data` line is enough.
fn written(event: &AgentEvent) -> String {
    let data = serde_json::to_string(event).unwrap_or_default();
    format!("event: {}\ndata: {data}\n\n", event.event_type)
}
