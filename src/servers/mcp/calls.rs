//! The running calls of this server, each in its own thread. Stores the results of calls and cancels calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use rmcp::model::RequestId;
use serde_json::Value;
use tokio::sync::{oneshot, watch};

use super::result_store::{OpenCall, Record, ResultStore, bounded};
use crate::agents::adapter::AgentEvent;
use crate::agents::conversation::{Conversations, GivenOptions};
use crate::agents::exec::{Cancel, ExecRequest, ExecResult, Executor};
use crate::run::outcome::ErrorKind;

/// Identifies where a call came from: the client's connection or session, and the request's id in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallerId {
    pub(super) client: u64,
    pub(super) request: RequestId,
}

struct Running {
    cancel: Cancel,
    since: Instant,
    message: String,
    caller: CallerId,
}

/// All running calls of this server, and the store for their results.
pub(super) struct Calls {
    executor: Executor,
    conversations: Conversations,
    pub(super) results: ResultStore,
    max_calls: usize,
    log: fn(&str),
    state: Mutex<CallTable>,
    /// A counter that is incremented whenever a call ends, so that asynchronous code can wait for the end of a call.
    ends: watch::Sender<u64>,
}

#[derive(Default)]
struct CallTable {
    running: HashMap<String, Running>,
    is_closing: bool,
}

/// Removes a call from the list of running calls when this value is dropped, even if the call's thread panics.
struct Ending {
    calls: Arc<Calls>,
    id: String,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.calls.with(|table| table.running.remove(&self.id));
        self.calls.ends.send_modify(|count| *count += 1);
    }
}

impl Calls {
    pub(super) fn new(
        executor: Executor,
        conversations: Conversations,
        results: ResultStore,
        max_calls: usize,
        log: fn(&str),
    ) -> Self {
        let (state, ends) = (Mutex::default(), watch::Sender::new(0));
        Self { executor, conversations, results, max_calls, log, state, ends }
    }

    fn with<T>(&self, work: impl FnOnce(&mut CallTable) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts a call in its own thread; `given` are the options of the request that the client has set. Returns the
    /// call's id and a receiver for its result. Fails, with the kind of error and a message, if too many calls are
    /// running, the server is shutting down, or the thread cannot be started.
    pub(super) fn begin(
        self: &Arc<Self>,
        request: ExecRequest,
        given: GivenOptions,
        caller: CallerId,
        finish: impl FnOnce(&str, ExecResult) -> Value + Send + 'static,
    ) -> Result<(String, oneshot::Receiver<Value>), (ErrorKind, String)> {
        let id = uuid::Uuid::now_v7().to_string();
        let cancel = Cancel::default();
        let message = "starting".to_string();
        let running = Running { cancel: cancel.clone(), since: Instant::now(), message, caller };
        self.with(|table| {
            if table.is_closing {
                return Err((ErrorKind::Cancelled, "the server is shutting down".to_string()));
            }
            if table.running.len() >= self.max_calls {
                let problem = format!(
                    "{} calls are already running, which is the maximum; wait until one has ended, or cancel \
                     one with guard_cancel",
                    self.max_calls
                );
                return Err((ErrorKind::Busy, problem));
            }
            table.running.insert(id.clone(), running);
            Ok(())
        })?;
        let ending = Ending { calls: self.clone(), id: id.clone() };
        let (sender, receiver) = oneshot::channel();
        let work = move || {
            let (calls, id) = (ending.calls.clone(), ending.id.clone());
            let open = calls.open(&id, &request);
            let on_event = &mut |event: AgentEvent| calls.record_progress(&id, &event);
            let (result, conversation) =
                calls.conversations.execute(&request, &given, &calls.executor, &cancel, on_event);
            if let Some(mut conversation) = conversation {
                conversation.detach_compaction();
            }
            let value = bounded(finish(&id, result));
            if let Some(Err(error)) = open.map(|open| open.finish(value.clone())) {
                (calls.log)(&format!("guard: cannot store the result of the call {id}: {error}"));
            }
            drop(ending);
            let _ = sender.send(value);
        };
        let thread = std::thread::Builder::new().name("call".to_string()).spawn(work);
        thread
            .map_err(|error| (ErrorKind::Internal, format!("cannot start a thread for a call: {error}")))?;
        Ok((id, receiver))
    }

    /// Creates the stored record of a call. Returns `None` if that fails: a call runs even if its result cannot be
    /// stored.
    fn open(&self, id: &str, request: &ExecRequest) -> Option<OpenCall> {
        let began = Timestamp::try_from(SystemTime::now()).map(|now| now.to_string()).unwrap_or_default();
        let record = Record { call_id: id.to_string(), cd: request.cd.clone(), began, result: None };
        self.results
            .begin(record)
            .inspect_err(|error| {
                let directory = self.results.directory.display();
                (self.log)(&format!(
                    "guard: cannot create the record of the call {id} in {directory}, so its result will not \
                     be stored: {error}"
                ));
            })
            .ok()
    }

    /// Stores the beginning of an event's message as the call's progress message, if the event comes from the agent.
    fn record_progress(&self, id: &str, event: &AgentEvent) {
        if !event.event_type.starts_with("agent.") {
            return;
        }
        let message: String = format!("{}: {}", event.event_type, event.message).chars().take(200).collect();
        self.with(|table| {
            if let Some(running) = table.running.get_mut(id) {
                running.message = message;
            }
        });
    }

    /// Returns the latest progress message of a running call, and how long the call has run; `None` if no call with
    /// this id is running.
    pub(super) fn progress(&self, id: &str) -> Option<(String, Duration)> {
        self.with(|table| {
            table.running.get(id).map(|running| (running.message.clone(), running.since.elapsed()))
        })
    }

    /// Cancels a running call of this server. Returns whether there was a running call with this id.
    pub(super) fn cancel(&self, id: &str) -> bool {
        self.with(|table| table.running.get(id).map(|running| running.cancel.set())).is_some()
    }

    /// Cancels the call that a client started with a certain request. If the client used the request id twice, cancels
    /// the newest call.
    pub(super) fn cancel_by_caller(&self, caller: &CallerId) {
        self.with(|table| {
            let started = table.running.values().filter(|running| running.caller == *caller);
            if let Some(running) = started.max_by_key(|running| running.since) {
                running.cancel.set();
            }
        });
    }

    /// Cancels all calls and makes the server accept no new ones.
    pub(super) fn close(&self) {
        self.with(|table| {
            table.is_closing = true;
            for running in table.running.values() {
                running.cancel.set();
            }
        });
    }

    /// Waits until a call has ended, but no longer than `within`. Returns whether the call has ended.
    pub(super) async fn wait_for_call(&self, id: &str, within: Duration) -> bool {
        self.wait(within, |table| !table.running.contains_key(id)).await
    }

    /// Waits until all calls have ended, but no longer than `within`. Returns whether all calls have ended.
    pub(super) async fn wait_for_all(&self, within: Duration) -> bool {
        self.wait(within, |table| table.running.is_empty()).await
    }

    async fn wait(&self, within: Duration, is_so: impl Fn(&CallTable) -> bool) -> bool {
        let mut ends = self.ends.subscribe();
        let waiting = async {
            while !self.with(|table| is_so(table)) {
                if ends.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(within, waiting).await.is_ok()
    }
}
