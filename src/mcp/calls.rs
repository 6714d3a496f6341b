//! The running calls of this server: one thread each. Stores their results and cancels them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use rmcp::model::RequestId;
use serde_json::Value;
use tokio::sync::{oneshot, watch};

use super::result_store::{OpenCall, Record, ResultStore, bounded};
use crate::agent::AgentEvent;
use crate::agent_exec::{Cancel, ExecRequest, ExecResult, Executor};
use crate::outcome::ErrorKind;

/// Identifies a call's origin: the connection or session, and the request in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallerId {
    pub(super) client: u64,
    pub(super) request: RequestId,
}

struct Running {
    cancel: Cancel,
    since: Instant,
    message: String,
    asker: CallerId,
}

/// All running calls of this server.
pub(super) struct Calls {
    executor: Executor,
    pub(super) kept: ResultStore,
    most: usize,
    log: fn(&str),
    state: Mutex<Calling>,
    /// Changes whenever a call ends.
    ends: watch::Sender<u64>,
}

#[derive(Default)]
struct Calling {
    running: HashMap<String, Running>,
    is_closing: bool,
}

/// Removes a call from the list however its thread ends.
struct Ending {
    calls: Arc<Calls>,
    id: String,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.calls.with(|calling| calling.running.remove(&self.id));
        self.calls.ends.send_modify(|count| *count += 1);
    }
}

impl Calls {
    pub(super) fn new(executor: Executor, kept: ResultStore, most: usize, log: fn(&str)) -> Self {
        let (state, ends) = (Mutex::default(), watch::Sender::new(0));
        Self { executor, kept, most, log, state, ends }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Calling) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts a call. Returns its id and a receiver for its result, or the kind of problem and a message.
    pub(super) fn begin(
        self: &Arc<Self>,
        request: ExecRequest,
        asker: CallerId,
        finish: impl FnOnce(&str, ExecResult) -> Value + Send + 'static,
    ) -> Result<(String, oneshot::Receiver<Value>), (ErrorKind, String)> {
        let id = uuid::Uuid::now_v7().to_string();
        let cancel = Cancel::default();
        let running =
            Running { cancel: cancel.clone(), since: Instant::now(), message: "starting".to_string(), asker };
        self.with(|calling| {
            if calling.is_closing {
                return Err((ErrorKind::Cancelled, "the server is ending".to_string()));
            }
            if calling.running.len() >= self.most {
                let problem = format!(
                    "{} calls are running, and no more are made at once; wait for one, or end one with guard_cancel",
                    self.most
                );
                return Err((ErrorKind::Busy, problem));
            }
            calling.running.insert(id.clone(), running);
            Ok(())
        })?;
        let ending = Ending { calls: self.clone(), id: id.clone() };
        let (sender, receiver) = oneshot::channel();
        let work = move || {
            let (calls, id) = (ending.calls.clone(), ending.id.clone());
            let open = calls.open(&id, &request);
            let result = calls.executor.execute(&request, &cancel, &mut |event| calls.hear(&id, &event));
            let value = bounded(finish(&id, result));
            if let Some(Err(error)) = open.map(|open| open.finish(value.clone())) {
                (calls.log)(&format!("guard: the result of the call {id} cannot be kept: {error}"));
            }
            drop(ending);
            let _ = sender.send(value);
        };
        let thread = std::thread::Builder::new().name("call".to_string()).spawn(work);
        thread.map_err(|error| (ErrorKind::Internal, format!("cannot start a thread: {error}")))?;
        Ok((id, receiver))
    }

    /// Creates the stored record of a call. A call runs even if its result cannot be stored.
    fn open(&self, id: &str, request: &ExecRequest) -> Option<OpenCall> {
        let began = Timestamp::try_from(SystemTime::now()).map(|now| now.to_string()).unwrap_or_default();
        let record = Record { call_id: id.to_string(), cd: request.cd.clone(), began, result: None };
        self.kept
            .begin(record)
            .inspect_err(|error| {
                let folder = self.kept.folder.display();
                (self.log)(&format!(
                    "guard: the result of the call {id} will not be kept in {folder}: {error}"
                ));
            })
            .ok()
    }

    /// Remembers what the agent does, for progress reports.
    fn hear(&self, id: &str, event: &AgentEvent) {
        if !event.event_type.starts_with("agent.") {
            return;
        }
        let said: String = format!("{}: {}", event.event_type, event.message).chars().take(200).collect();
        self.with(|calling| {
            if let Some(running) = calling.running.get_mut(id) {
                running.message = said;
            }
        });
    }

    /// The last message of a running call, and how long the call has run.
    pub(super) fn progress(&self, id: &str) -> Option<(String, Duration)> {
        self.with(|calling| {
            calling.running.get(id).map(|running| (running.message.clone(), running.since.elapsed()))
        })
    }

    /// Cancels a running call of this server. Returns whether there was one.
    pub(super) fn cancel(&self, id: &str) -> bool {
        self.with(|calling| calling.running.get(id).map(|running| running.cancel.set())).is_some()
    }

    /// Cancels the call that this client started by this request. If the client used the request id twice,
    /// cancels the newest.
    pub(super) fn cancel_asked(&self, asker: &CallerId) {
        self.with(|calling| {
            let asked = calling.running.values().filter(|running| running.asker == *asker);
            if let Some(running) = asked.max_by_key(|running| running.since) {
                running.cancel.set();
            }
        });
    }

    /// Cancels all calls and accepts no more.
    pub(super) fn close(&self) {
        self.with(|calling| {
            calling.is_closing = true;
            for running in calling.running.values() {
                running.cancel.set();
            }
        });
    }

    /// Waits until a call has ended, up to a time limit. Returns whether it has.
    pub(super) async fn has_ended(&self, id: &str, within: Duration) -> bool {
        self.wait(within, |calling| !calling.running.contains_key(id)).await
    }

    /// Waits until all calls have ended, up to a time limit. Returns whether they have.
    pub(super) async fn have_ended(&self, within: Duration) -> bool {
        self.wait(within, |calling| calling.running.is_empty()).await
    }

    async fn wait(&self, within: Duration, is_so: impl Fn(&Calling) -> bool) -> bool {
        let mut ends = self.ends.subscribe();
        let waiting = async {
            while !self.with(|calling| is_so(calling)) {
                if ends.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(within, waiting).await.is_ok()
    }
}
