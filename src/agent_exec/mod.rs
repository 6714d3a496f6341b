//! Runs a request to an agent: events while it runs, and one result at the end whatever the CLI does.
//!
//! ```text
//!   request ─► adapter, session ─► attempt: `guard run --stream-json …` (a process of its own) ─► agent's lines ─► events
//!                     ▲                                  │ failed in a way that may pass
//!                     └──────── wait 0.5 s, 1 s, 2 s ◄───┘
//! ```
//!
//! Every attempt is a separate process, because a run forks and therefore needs a process with one thread.
//! Many attempts can run at once beside any async runtime. This module starts no program other than guard
//! itself.
#![forbid(unsafe_code)]

mod attempt;
mod cancel;
mod cli_version;
mod event_reader;
mod handle;
mod request;
mod result;
mod retry;
mod session;

pub use cancel::Cancel;
pub use cli_version::{OutdatedAgent, check_version};
pub use handle::{DROPPED, EventStream, RESULT, Running};
pub use request::{ExecRequest, RequestError, Sandbox};
pub use result::{Attempt, EventCounts, ExecResult, apply_conclusion, ending};

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::agent::{Adapter, AgentEvent, Ask};
use crate::outcome::ErrorKind;
use crate::transcript::EventType;
use attempt::AttemptOutcome;
use result::Failure;
use retry::Next;
use session::{Session, Store};

/// Executes requests to agents.
#[derive(Debug, Clone)]
pub struct Executor {
    /// The path of the guard executable that runs the attempts.
    pub guard: PathBuf,
    /// The directory where sessions are stored.
    pub sessions: PathBuf,
    /// Variables (`GUARD_LOG`, `GUARD_LOG_FILE`) that make the attempts log to a file. Without them attempts
    /// do not log.
    pub log: Vec<(OsString, OsString)>,
}

/// A request with its adapter, program and session resolved.
#[derive(Default)]
struct Prepared {
    adapter: Option<Adapter>,
    program: Vec<String>,
    ask: Ask,
    session: Option<Session>,
    resumes: bool,
    /// Notes for the caller that are known before the first attempt.
    notes: Vec<String>,
}

impl Prepared {
    /// Records an attempt in the session. A failure to do so must not lose the result.
    fn note(&mut self, tried: &AttemptOutcome) {
        let Some(session) = &mut self.session else { return };
        let agents_id = tried.conclusion.as_ref().and_then(|end| end.session.as_deref());
        if let Some(id) = agents_id
            .filter(|_| !self.resumes && self.adapter.as_ref().is_some_and(Adapter::chooses_session_ids))
        {
            session.set_agents_id(id);
        }
        let _ = session.note(&tried.result);
    }

    /// Removes a new session whose request failed before any work began.
    fn close(self, is_success: bool) {
        if let Some(session) = self.session.filter(|_| !self.resumes && !is_success) {
            session.forget();
        }
    }
}

impl Executor {
    /// Executes a request and blocks until it ends; no async runtime is needed. `see` receives the events.
    /// The request waits while `see` runs; [`Executor::start`] drops events instead of waiting for a slow
    /// reader.
    pub fn execute(
        &self,
        request: &ExecRequest,
        cancel: &Cancel,
        see: &mut dyn FnMut(AgentEvent),
    ) -> ExecResult {
        let began = Instant::now();
        let mut prepared = match self.prepare(request, cancel) {
            Ok(prepared) => prepared,
            Err(failure) => return ExecResult::failed(request, &failure, began.elapsed()),
        };
        let mut events = EventCounts::default();
        let mut told = 0;
        let mut tell = |event: AgentEvent| {
            told += 1;
            see(event);
        };
        for note in &prepared.notes {
            tell(AgentEvent::new(EventType::ExecNote, note.clone(), json!({})));
        }
        let mut attempts: Vec<Attempt> = Vec::new();
        let (tried, why_not) = loop {
            let tried = attempt::run(self, request, &mut prepared, cancel, &mut tell);
            prepared.note(&tried);
            let next = retry::next(&tried, attempts.len() as u32, request.max_retries);
            attempts.push(tried.attempt());
            match next {
                Next::Again(_) if cancel.is_set() => break (tried, None),
                Next::Again(wait) => {
                    tell(retry_event(&tried, attempts.len(), wait));
                    if cancel.wait(wait) {
                        break (tried, None);
                    }
                    events.add_read(&tried);
                }
                Next::Stop(why_not) => {
                    if let Some(why_not) = &why_not {
                        tell(not_retried_event(&tried, attempts.len(), why_not));
                    }
                    break (tried, why_not);
                }
            }
        };
        events.add_read(&tried);
        events.told = told;
        let mut result = ExecResult::of(request, &prepared, tried, attempts, events, began.elapsed());
        if let Some(detail) = &mut result.run.error_detail {
            detail.not_retried = why_not;
        }
        prepared.close(result.run.success);
        result
    }

    fn prepare(&self, request: &ExecRequest, cancel: &Cancel) -> Result<Prepared, Failure> {
        request.check()?;
        if cancel.is_set() {
            return Err(Failure::new(ErrorKind::Cancelled, "cancelled before anything ran"));
        }
        let Some(adapter) = request.adapter()? else {
            return Ok(Prepared { program: request.command.clone(), ..Prepared::default() });
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
        let store = Store { folder: self.sessions.join(&adapter.name) };
        let (session, resumes) = match (&request.session_id, adapter.has_sessions()) {
            (Some(id), true) => (Some(store.resume(id, &request.cd)?), true),
            (Some(id), false) => {
                let message = format!("{} has no sessions that could go on, and {id} is one", adapter.name);
                return Err(Failure::new(ErrorKind::SessionLost, message));
            }
            (None, true) => (Some(store.begin(&request.cd)?), false),
            (None, false) => (None, false),
        };
        // The id by which the agent knows the session.
        let agents_id = match &session {
            Some(session) if resumes && adapter.chooses_session_ids() => {
                let lost = || {
                    let message = format!(
                        "{} never said what it calls the session {}; begin a new one, with all of its context",
                        adapter.name, session.id
                    );
                    Failure::new(ErrorKind::SessionLost, message)
                };
                Some(session.agents_id().ok_or_else(lost)?.to_string())
            }
            session => session.as_ref().map(|session| session.id.clone()),
        };
        let ask = Ask {
            prompt: request.prompt.clone(),
            model: request.model.clone(),
            yolo: request.yolo,
            session: agents_id.map(|id| (id, resumes)),
            format: request.output_format,
        };
        Ok(Prepared { adapter: Some(adapter), program, ask, session, resumes, notes })
    }
}

fn about(tried: &AttemptOutcome, attempt: usize) -> serde_json::Value {
    let kind = tried.error_kind().map_or("", ErrorKind::as_str);
    json!({ "attempt": attempt, "run_id": tried.result.run_id, "error_kind": kind })
}

fn retry_event(tried: &AttemptOutcome, attempt: usize, wait: Duration) -> AgentEvent {
    let mut data = about(tried, attempt);
    data["wait_ms"] = json!(wait.as_millis() as u64);
    let message = format!("{}: trying again", tried.error_kind().map_or("", ErrorKind::as_str));
    AgentEvent::new(EventType::ExecRetry, message, data)
}

fn not_retried_event(tried: &AttemptOutcome, attempt: usize, why_not: &str) -> AgentEvent {
    let message = format!("{}: {why_not}", tried.error_kind().map_or("", ErrorKind::as_str));
    AgentEvent::new(EventType::ExecNotRetried, message, about(tried, attempt))
}
