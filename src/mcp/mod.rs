//! Agents and judgements as tools of the Model Context Protocol: `guard mcp`, over standard input and output.
//!
//! A call of `gemini` is a request to the executor, in a thread of its own; it tells its progress, ends when the client
//! cancels it, and its result can be asked for again by its id. When the client goes away everything ends.
#![forbid(unsafe_code)]

mod tools;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ServerConfig,
};
use rmcp::service::{RequestContext, RoleServer, ServiceExt};
use rmcp::{ErrorData, ServerHandler};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::executor::{Cancel, ExecRequest, Executor};
use tools::{Check, Gemini, Report};

/// How often a call says that it is still at work.
const PROGRESS: Duration = Duration::from_secs(10);
/// Results that can be asked for again.
const MOST_KEPT: usize = 256;

/// What the server is to be.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Runs requests.
    pub executor: Executor,
    /// Folders below which agents may work; others are refused.
    pub roots: Vec<PathBuf>,
    /// Metrics of a call are told on standard error by this.
    pub log: fn(&str),
}

#[derive(Clone)]
struct Server {
    setting: Arc<Setting>,
    calls: Arc<Calls>,
}

/// The calls of this server: running, and done.
#[derive(Default)]
struct Calls {
    known: Mutex<HashMap<String, Call>>,
    running: AtomicU64,
}

enum Call {
    Running { cancel: Cancel, since: std::time::Instant, message: String },
    Done(Value),
}

impl Calls {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<String, Call>) -> T) -> T {
        work(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn done(&self, id: &str, result: Value) {
        self.with(|known| {
            if known.len() > MOST_KEPT {
                // Which of the old ones goes first matters to nobody.
                let old =
                    known.iter().find(|(_, call)| matches!(call, Call::Done(_))).map(|(id, _)| id.clone());
                old.map(|id| known.remove(&id));
            }
            known.insert(id.to_string(), Call::Done(result));
        });
        self.running.fetch_sub(1, Ordering::AcqRel);
    }

    fn cancel_all(&self) {
        self.with(|known| {
            for call in known.values() {
                if let Call::Running { cancel, .. } = call {
                    cancel.set();
                }
            }
        });
    }
}

/// Serves until the client goes away, and ends what is still at work.
pub fn serve(setting: Setting) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let calls = Arc::new(Calls::default());
    let server = Server { setting: Arc::new(setting), calls: calls.clone() };
    let ended = runtime.block_on(async move {
        let service = server.serve(rmcp::transport::stdio()).await.map_err(std::io::Error::other)?;
        service.waiting().await.map_err(std::io::Error::other)
    });
    calls.cancel_all();
    // A run that is asked to end has its grace; then it is killed.
    for _ in 0..1000 {
        if calls.running.load(Ordering::Acquire) == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    runtime.shutdown_background();
    match ended {
        Ok(_) => Ok(()),
        // A client that went away before it said hello is no failure of ours.
        Err(error) if error.to_string().contains("connection closed") => Ok(()),
        Err(error) => Err(error),
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let mut info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        info.server_info = Implementation::new("guard", env!("CARGO_PKG_VERSION"));
        info.instructions = Some(
            "gemini asks a sandboxed coding agent for advice (sandbox read-only) or work (workspace-write; in a repository on a branch of its \
             own). Keep SESSION_ID to go on with a conversation; look at error_kind when success is false. guard_check asks a policy about a \
             command, guard_report gives the result of an earlier call or run."
                .to_string(),
        );
        info
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let read =
            |error: serde_json::Error| ErrorData::invalid_params(format!("{}: {error}", request.name), None);
        let result = match &*request.name {
            "gemini" => {
                let asked: Gemini = serde_json::from_value(arguments).map_err(read)?;
                self.gemini(asked, context).await
            }
            "guard_check" => {
                let asked: Check = serde_json::from_value(arguments).map_err(read)?;
                tools::check(&asked).map_err(|problem| ErrorData::invalid_params(problem, None))?
            }
            "guard_report" => {
                let asked: Report = serde_json::from_value(arguments).map_err(read)?;
                self.report(&asked)
            }
            other => return Err(ErrorData::invalid_params(format!("there is no tool `{other}`"), None)),
        };
        let is_error = result["success"] == false;
        let answer = if is_error {
            CallToolResult::structured_error(result)
        } else {
            CallToolResult::structured(result)
        };
        Ok(answer.into())
    }
}

impl Server {
    async fn gemini(&self, asked: Gemini, context: RequestContext<RoleServer>) -> Value {
        let id = uuid::Uuid::now_v7().to_string();
        let log_metrics = asked.log_metrics;
        let request = asked.request();
        if !self.is_inside(&request) {
            let roots: Vec<String> =
                self.setting.roots.iter().map(|root| root.display().to_string()).collect();
            let error =
                format!("cd must lie in {}, and {} does not", roots.join(" or "), request.cd.display());
            return json!({
                "success": false, "tool": "gemini", "error": error, "error_kind": "invalid_input",
                "error_detail": { "message": error, "exit_code": null, "last_lines": [], "idle_timeout_s": request.timeout,
                    "max_duration_s": request.max_duration, "retries": 0 },
                "duration": "0m0s",
            });
        }
        let mut answer = self.start(&id, request, log_metrics);
        let token = context.meta.get_progress_token();
        let mut ticks = tokio::time::interval(PROGRESS);
        let mut count = 0.0;
        loop {
            tokio::select! {
                result = &mut answer => {
                    return result.unwrap_or_else(|_| json!({
                        "success": false, "tool": "gemini", "error": "the request broke off", "error_kind": "internal", "duration": "0m0s",
                    }));
                }
                () = context.ct.cancelled() => {
                    self.cancel(&id);
                    // The result is still waited for: nothing of the run is left when the call ends.
                    if let Ok(result) = (&mut answer).await {
                        return result;
                    }
                }
                _ = ticks.tick() => {
                    let Some(token) = token.clone() else { continue };
                    count += 1.0;
                    let message = format!("{} (call {id})", self.message(&id));
                    let mut progress = ProgressNotificationParam::new(token, count);
                    progress.message = Some(message);
                    let _ = context.peer.notify_progress(progress).await;
                }
            }
        }
    }

    /// Begins a request in a thread of its own.
    fn start(&self, id: &str, request: ExecRequest, log_metrics: bool) -> oneshot::Receiver<Value> {
        let (sender, receiver) = oneshot::channel();
        let cancel = Cancel::default();
        let running = Call::Running {
            cancel: cancel.clone(),
            since: std::time::Instant::now(),
            message: "starting".to_string(),
        };
        self.calls.with(|known| known.insert(id.to_string(), running));
        self.calls.running.fetch_add(1, Ordering::AcqRel);
        let (calls, setting, id) = (self.calls.clone(), self.setting.clone(), id.to_string());
        let work = move || {
            let result = setting.executor.execute(&request, &cancel, &mut |event| {
                if event.event_type.starts_with("agent.") {
                    let said: String =
                        format!("{}: {}", event.event_type, event.message).chars().take(200).collect();
                    calls.with(|known| {
                        if let Some(Call::Running { message, .. }) = known.get_mut(&id) {
                            *message = said;
                        }
                    });
                }
            });
            if log_metrics {
                (setting.log)(&format!(
                    "guard: metrics: {}",
                    json!({ "call": id, "usage": result.run.usage, "duration_ms": result.run.duration_ms })
                ));
            }
            let mut value = serde_json::to_value(&result).unwrap_or_default();
            value["call_id"] = json!(id);
            calls.done(&id, value.clone());
            let _ = sender.send(value);
        };
        if std::thread::Builder::new().name("call".to_string()).spawn(work).is_err() {
            self.calls.running.fetch_sub(1, Ordering::AcqRel);
        }
        receiver
    }

    fn is_inside(&self, request: &ExecRequest) -> bool {
        let Ok(real) = request.cd.canonicalize() else { return true };
        self.setting
            .roots
            .iter()
            .filter_map(|root| root.canonicalize().ok())
            .any(|root| real.starts_with(root))
    }

    fn cancel(&self, id: &str) {
        self.calls.with(|known| {
            if let Some(Call::Running { cancel, .. }) = known.get(id) {
                cancel.set();
            }
        });
    }

    fn message(&self, id: &str) -> String {
        self.calls.with(|known| match known.get(id) {
            Some(Call::Running { since, message, .. }) => {
                format!("{message} after {} s", since.elapsed().as_secs())
            }
            _ => "done".to_string(),
        })
    }

    /// The result of an earlier call, or of any run.
    fn report(&self, asked: &Report) -> Value {
        let known = self.calls.with(|known| match known.get(&asked.id) {
            Some(Call::Done(result)) => Some(result.clone()),
            Some(Call::Running { since, message, .. }) => {
                Some(json!({ "status": "running", "message": message, "seconds": since.elapsed().as_secs() }))
            }
            None => None,
        });
        known.unwrap_or_else(|| tools::result_of_run(&asked.id))
    }
}
