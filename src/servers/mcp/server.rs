//! The MCP handler for one client: lists the tools and runs the client's tool calls.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelledNotificationParam,
    GetPromptRequestParams, GetPromptResponse, Implementation, JsonObject, ListPromptsResult,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion, ServerCapabilities,
    ServerConfig,
};
use rmcp::service::{NotificationContext, RequestContext, RoleServer};
use rmcp::{ErrorData, ServerHandler};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::batches;
use super::batches::BatchAccess;
use super::calls::{CallerId, Calls};
use super::tool_agent;
use super::tool_agent::{Gemini, Limits};
use super::{check, control, prompt, report, tools};
use crate::agents::adapter::RULES;
use crate::run::outcome::ErrorKind;
use crate::work::commands::WorkStores;
use crate::work::roots::Roots;

/// How often the server reports the progress of a running call to the client.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// How long a client may take to accept a progress message before the server drops the message.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of simultaneous tool calls that read transcripts or policies.
const MOST_READING: usize = 4;
/// The maximum number of simultaneous tool calls that use the queue of batches or send commands. Some of these calls
/// wait for up to a minute.
const MOST_USING_QUEUE: usize = 16;

/// What the handlers of all clients share.
pub(super) struct Shared {
    pub(super) calls: Arc<Calls>,
    pub(super) roots: Roots,
    pub(super) log: fn(&str),
    batches: BatchAccess,
    work: WorkStores,
    reading: Semaphore,
    using_queue: Semaphore,
}

impl Shared {
    pub(super) fn new(
        calls: Arc<Calls>,
        batches: BatchAccess,
        work: WorkStores,
        roots: Roots,
        log: fn(&str),
    ) -> Self {
        let (reading, using_queue) = (Semaphore::new(MOST_READING), Semaphore::new(MOST_USING_QUEUE));
        Self { calls, roots, log, batches, work, reading, using_queue }
    }
}

/// The MCP handler for one client.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) shared: Arc<Shared>,
    /// A number that identifies the client among all clients of this server.
    pub(super) client: u64,
    /// True if the client's calls end when the client disconnects. False over HTTP, where a client may reconnect.
    pub(super) ends_with_client: bool,
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let mut info =
            ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_prompts().build());
        info.server_info = Implementation::new("guard", env!("CARGO_PKG_VERSION"));
        let instructions = "gemini asks a sandboxed coding agent for advice (sandbox read-only) or for work (workspace-write; in a git repository the agent \
             works on a new branch). Keep SESSION_ID to continue a conversation. If success is false, check error_kind. A call continues when you stop \
             waiting for it: guard_report returns its result by its id, guard_cancel cancels it. guard_batch_submit queues many tasks at once, \
             guard_batch_poll returns their results. guard_control pauses, resumes, adjusts or cancels other work. guard_check asks a policy about a command. The prompt \
             gemini_request is a template for PROMPT. A lost session cannot be continued: start a new one, and repeat the context and the contract.";
        info.instructions = Some(format!("{instructions} {RULES}"));
        info
    }

    /// Returns the protocol versions that the server offers. Over HTTP, the newest version can cancel a request only by
    /// closing the connection, and offers no way to reconnect. The server does not offer it there, because a lost
    /// connection must not cancel a call.
    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(if self.ends_with_client {
            ProtocolVersion::KNOWN_VERSIONS
        } else {
            ProtocolVersion::known_up_to(&ProtocolVersion::V_2025_11_25)
        })
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all()))
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(ListPromptsResult::with_all_items(prompt::all()))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        prompt::get(&request.name, request.arguments.unwrap_or_default()).map(Into::into)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let given = request.arguments.unwrap_or_default();
        let calls = self.shared.calls.clone();
        let result = match &*request.name {
            tool_agent::NAME => self.gemini(given, context).await,
            "guard_check" => self.block(&self.shared.reading, move || check::check(given)).await?,
            "guard_report" => self.block(&self.shared.reading, move || report::report(&calls, given)).await?,
            "guard_batch_submit" => {
                let (access, roots) = (self.shared.batches.clone(), self.shared.roots.clone());
                self.block(&self.shared.using_queue, move || batches::submit(&access, &roots, given)).await?
            }
            "guard_batch_poll" => {
                let access = self.shared.batches.clone();
                self.block(&self.shared.using_queue, move || batches::poll(&access, given)).await?
            }
            "guard_batch_cancel" => {
                let access = self.shared.batches.clone();
                self.block(&self.shared.using_queue, move || batches::cancel(&access, given)).await?
            }
            "guard_control" => {
                let (work, roots) = (self.shared.work.clone(), self.shared.roots.clone());
                self.block(&self.shared.using_queue, move || control::control(&work, &roots, given)).await?
            }
            "guard_cancel" => serde_json::to_value(report::cancel(&calls, given).await).unwrap_or_default(),
            other => {
                let other: String = other.chars().take(80).collect();
                return Err(ErrorData::invalid_params(format!("unknown tool `{other}`"), None));
            }
        };
        let is_error = result["success"] != true;
        Ok(if is_error {
            CallToolResult::structured_error(result)
        } else {
            CallToolResult::structured(result)
        }
        .into())
    }

    async fn on_cancelled(&self, cancelled: CancelledNotificationParam, _: NotificationContext<RoleServer>) {
        if let Some(request) = cancelled.request_id {
            self.shared.calls.cancel_by_caller(&CallerId { client: self.client, request });
        }
    }
}

impl Server {
    /// Runs a tool call on a thread that may block, as soon as one of the permits is free.
    async fn block<T: Serialize + Send + 'static>(
        &self,
        permits: &Semaphore,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Value, ErrorData> {
        let broken = |error: &dyn std::fmt::Display| ErrorData::internal_error(error.to_string(), None);
        let _permit = permits.acquire().await.map_err(|error| broken(&error))?;
        let answer = tokio::task::spawn_blocking(work).await.map_err(|error| broken(&error))?;
        serde_json::to_value(answer).map_err(|error| broken(&error))
    }

    async fn gemini(&self, given: JsonObject, context: RequestContext<RoleServer>) -> Value {
        let caller = CallerId { client: self.client, request: context.id.clone() };
        let limits = Limits::of(&given);
        let (id, mut answer) = match self.begin(given, caller) {
            Ok(begun) => begun,
            Err((kind, problem)) => return tool_agent::refused(kind, &problem, limits),
        };
        let problem = "the call ended without a result";
        let broken_off = || tool_agent::refused(ErrorKind::Internal, problem, limits);
        let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
        let mut count = 0.0;
        loop {
            tokio::select! {
                result = &mut answer => return result.unwrap_or_else(|_| broken_off()),
                () = context.ct.cancelled() => {
                    if !self.ends_with_client {
                        // The client no longer waits for this answer, but has not asked to cancel the call, so
                        // the call continues.
                        return broken_off();
                    }
                    self.shared.calls.cancel(&id);
                    // Still wait for the result, so that no process of the run is left when the request ends.
                    return (&mut answer).await.unwrap_or_else(|_| broken_off());
                }
                _ = ticks.tick() => {
                    count += 1.0;
                    let report = self.report_progress(&id, count, &context);
                    let _ = tokio::time::timeout(PROGRESS_TIMEOUT, report).await;
                }
            }
        }
    }

    fn begin(
        &self,
        given: JsonObject,
        caller: CallerId,
    ) -> Result<(String, tokio::sync::oneshot::Receiver<Value>), (ErrorKind, String)> {
        let asked = Gemini::read(given).map_err(|problem| (ErrorKind::InvalidInput, problem))?;
        let cd = self
            .shared
            .roots
            .find("cd", asked.cd())
            .map_err(|error| (ErrorKind::InvalidInput, error.to_string()))?;
        let log = asked.log_metrics().then_some(self.shared.log);
        let (request, given) = asked.request(cd);
        self.shared.calls.begin(request, given, caller, move |id, result| {
            if let Some(log) = log {
                let metrics =
                    json!({ "call": id, "usage": result.run.usage, "duration_ms": result.run.duration_ms });
                log(&format!("guard: metrics: {metrics}"));
            }
            tool_agent::answer(id, result)
        })
    }

    /// Sends the client a progress message, if the client asked for progress and the call is still running.
    async fn report_progress(&self, id: &str, count: f64, context: &RequestContext<RoleServer>) {
        let (Some(token), Some((message, since))) =
            (context.meta.get_progress_token(), self.shared.calls.progress(id))
        else {
            return;
        };
        let mut progress = ProgressNotificationParam::new(token, count);
        progress.message = Some(format!("after {} s: {message} (call {id})", since.as_secs()));
        let _ = context.peer.notify_progress(progress).await;
    }
}
