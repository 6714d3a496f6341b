//! Executes a request to an agent: reports events while the agent works, and always returns one result, whatever
//! the agent's CLI does.
//!
//! ```text
//!   request ─► adapter, session ─► attempt: `guard run --request-fd N` (a child process) ─► agent's lines ─► events
//!                     ▲                                  │ temporary failure
//!                     └──────── wait 0.5 s, 1 s, 2 s ◄───┘
//! ```
//!
//! Every attempt is a separate process, because a run forks and therefore needs a process with one thread.
//! Many attempts can run at once, under any async runtime. This module starts no program other than guard itself.
#![forbid(unsafe_code)]

mod attempt;
mod attempt_outcome;
mod cancel;
mod cli_version;
mod event_reader;
mod failure;
mod handle;
mod request;
mod result;
mod retry;
mod session;

pub use attempt_outcome::Attempt;
pub use cancel::Cancel;
pub use cli_version::{OutdatedAgent, check_version};
pub use handle::{DROPPED, EventStream, RESULT, Running};
pub use request::{ExecRequest, READ_ONLY_POLICY, RequestError, Sandbox, check_limits, check_model};
pub use result::{EventCounts, ExecResult, apply_conclusion, ending};

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::agents::adapter::{Adapter, AgentEvent, InvocationSpec};
use crate::run::outcome::ErrorKind;
use crate::run::transcript::EventType;
use attempt_outcome::AttemptOutcome;
use failure::Failure;
use retry::Next;
use session::{Session, Store};

/// Executes requests to agents by starting `guard run` for each attempt.
#[derive(Debug, Clone)]
pub struct Executor {
    /// The path of the guard executable that runs the attempts.
    pub guard: PathBuf,
    pub sessions: PathBuf,
    /// Environment variables (`GUARD_LOG`, `GUARD_LOG_FILE`) that make the attempts log to a file. If empty, the
    /// attempts do not log.
    pub log: Vec<(OsString, OsString)>,
}

/// A validated request, with the adapter, program and session that its attempts use.
#[derive(Default)]
struct Prepared {
    adapter: Option<Adapter>,
    program: Vec<String>,
    spec: InvocationSpec,
    session: Option<Session>,
    resumes: bool,
    /// Remarks that are known before the first attempt, which become part of the result's `notes`.
    notes: Vec<String>,
}

impl Prepared {
    /// Records the outcome of an attempt in the session. A failure to record it is ignored, so that the result is not
    /// lost.
    fn record_attempt(&mut self, outcome: &AttemptOutcome) {
        let Some(session) = &mut self.session else { return };
        let agents_id = outcome.conclusion.as_ref().and_then(|end| end.session.as_deref());
        if let Some(id) = agents_id
            .filter(|_| !self.resumes && self.adapter.as_ref().is_some_and(Adapter::chooses_session_ids))
        {
            session.set_agents_id(id);
        }
        let _ = session.record_run(&outcome.result);
    }

    /// Removes a newly created session if its request failed before the agent did any work.
    fn remove_unused_session(self, is_success: bool) {
        if let Some(session) = self.session.filter(|_| !self.resumes && !is_success) {
            session.remove_if_unused();
        }
    }
}

impl Executor {
    /// Executes a request and blocks until it ends; no async runtime is needed. `on_event` receives the events.
    /// Reading the agent's output pauses while `on_event` runs; [`Executor::start`] drops events instead of waiting
    /// for a slow reader.
    pub fn execute(
        &self,
        request: &ExecRequest,
        cancel: &Cancel,
        on_event: &mut dyn FnMut(AgentEvent),
    ) -> ExecResult {
        let began = Instant::now();
        let mut prepared = match self.prepare(request, cancel) {
            Ok(prepared) => prepared,
            Err(failure) => return ExecResult::failed(request, &failure, began.elapsed()),
        };
        let mut events = EventCounts::default();
        let mut reported = 0;
        let mut report = |event: AgentEvent| {
            reported += 1;
            on_event(event);
        };
        for note in &prepared.notes {
            report(AgentEvent::new(EventType::ExecNote, note.clone(), json!({})));
        }
        let mut attempts: Vec<Attempt> = Vec::new();
        let (outcome, why_not) = loop {
            let outcome = attempt::run(self, request, &mut prepared, cancel, &mut report);
            prepared.record_attempt(&outcome);
            let next = retry::next(&outcome, attempts.len() as u32, request);
            attempts.push(outcome.attempt());
            match next {
                Next::Again(_) if cancel.is_set() => break (outcome, None),
                Next::Again(wait) => {
                    report(retry_event(&outcome, attempts.len(), wait));
                    if cancel.wait(wait) {
                        break (outcome, None);
                    }
                    events.add_read(&outcome);
                }
                Next::Stop(why_not) => {
                    if let Some(why_not) = &why_not {
                        report(not_retried_event(&outcome, attempts.len(), why_not));
                    }
                    break (outcome, why_not);
                }
            }
        };
        events.add_read(&outcome);
        events.told = reported;
        let took = began.elapsed();
        let mut result = ExecResult::from_attempts(request, &prepared, outcome, attempts, events, took);
        if let Some(detail) = &mut result.run.error_detail {
            detail.not_retried = why_not;
        }
        prepared.remove_unused_session(result.run.success);
        result
    }

    fn store(&self, agent: &str) -> Store {
        Store { directory: self.sessions.join(agent) }
    }

    fn prepare(&self, request: &ExecRequest, cancel: &Cancel) -> Result<Prepared, Failure> {
        request.check()?;
        if cancel.is_set() {
            return Err(Failure::new(ErrorKind::Cancelled, "the request was cancelled before it started"));
        }
        let Some(adapter) = request.adapter()? else {
            let session = match &request.session_id {
                Some(id) if request.fresh_agent => {
                    Some(self.store("generic").open_or_create(id, &request.cd)?)
                }
                _ => None,
            };
            return Ok(Prepared { program: request.command.clone(), session, ..Prepared::default() });
        };
        let adapter = adapter
            .configured_by_user()
            .map_err(|error| Failure::new(ErrorKind::ConfigError, error.to_string()))?;
        let mut program = request.command.clone();
        if program.is_empty() {
            program.extend(adapter.programs.first().cloned());
        }
        let notes = check_version(&adapter, &program)
            .map_err(|problem| Failure::new(ErrorKind::ConfigError, problem.to_string()))?;
        let store = self.store(&adapter.name);
        let (session, resumes) = match (&request.session_id, adapter.has_sessions()) {
            (Some(id), _) if request.fresh_agent => (Some(store.open_or_create(id, &request.cd)?), false),
            (None, _) if request.fresh_agent => (None, false),
            (Some(id), true) => (Some(store.resume(id, &request.cd)?), true),
            (Some(id), false) => {
                let message = format!(
                    "cannot continue the session {id}: the agent {} does not support sessions; send a request without a session, and repeat the context in its prompt",
                    adapter.name
                );
                return Err(Failure::new(ErrorKind::SessionLost, message));
            }
            (None, true) => (Some(store.create(&request.cd)?), false),
            (None, false) => (None, false),
        };
        // The agent's own id of the session, which can differ from guard's id.
        let agents_id = match &session {
            Some(session) if resumes && adapter.chooses_session_ids() => {
                let lost = || {
                    let message = format!(
                        "{} did not report an id for the session {}, so guard cannot continue it; start a new session and repeat the context in its prompt",
                        adapter.name, session.id
                    );
                    Failure::new(ErrorKind::SessionLost, message)
                };
                Some(session.agents_id().ok_or_else(lost)?.to_string())
            }
            session => session.as_ref().map(|session| session.id.clone()),
        };
        let spec = InvocationSpec {
            prompt: request.prompt.clone(),
            model: request.model.clone(),
            yolo: request.yolo,
            session: agents_id.filter(|_| adapter.has_sessions()).map(|id| (id, resumes)),
            format: request.output_format,
        };
        Ok(Prepared { adapter: Some(adapter), program, spec, session, resumes, notes })
    }
}

/// Returns the data of an event about a failed attempt.
fn attempt_data(outcome: &AttemptOutcome, attempt: usize) -> serde_json::Value {
    let kind = outcome.error_kind().map_or("", ErrorKind::as_str);
    json!({ "attempt": attempt, "run_id": outcome.result.run_id, "error_kind": kind })
}

fn retry_event(outcome: &AttemptOutcome, attempt: usize, wait: Duration) -> AgentEvent {
    let mut data = attempt_data(outcome, attempt);
    data["wait_ms"] = json!(wait.as_millis() as u64);
    let kind = outcome.error_kind().map_or("", ErrorKind::as_str);
    let message =
        format!("attempt {attempt} failed ({kind}); guard starts the next one in {} ms", wait.as_millis());
    AgentEvent::new(EventType::ExecRetry, message, data)
}

fn not_retried_event(outcome: &AttemptOutcome, attempt: usize, why_not: &str) -> AgentEvent {
    let message = format!("{}: {why_not}", outcome.error_kind().map_or("", ErrorKind::as_str));
    AgentEvent::new(EventType::ExecNotRetried, message, attempt_data(outcome, attempt))
}
