//! Agents as well-behaved functions: one request in, events while it runs, one honest result, whatever the CLI does.
//!
//! ```text
//!   request ─► adapter, session ─► attempt: `guard run --stream-json …` (a process of its own) ─► agent's lines ─► events
//!                     ▲                                  │ failed in a way that may pass
//!                     └──────── wait 0.5 s, 1 s, 2 s ◄───┘
//! ```
//!
//! An attempt is a process, because a run begins with a fork of a process that has one thread; so many can go on at once
//! beside any runtime. This room starts nothing but guard itself.
#![forbid(unsafe_code)]

mod attempt;
mod installed;
mod request;
mod result;
mod retry;
mod session;

pub use attempt::Cancel;
pub use request::{ExecRequest, Sandbox};
pub use result::{Attempt, ExecResult};

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::agent::{Adapter, AgentEvent, Ask};
use attempt::Tried;
use result::Failure;
use retry::Next;
use session::{Session, Store};

/// Runs requests.
#[derive(Debug, Clone)]
pub struct Executor {
    /// The program that does: guard itself.
    pub guard: PathBuf,
    /// Where sessions are kept.
    pub sessions: PathBuf,
}

/// What a request means, looked up.
#[derive(Default)]
struct Prepared {
    adapter: Option<Adapter>,
    program: Vec<String>,
    ask: Ask,
    session: Option<Session>,
    resumes: bool,
    /// What the caller should know beforehand.
    notes: Vec<String>,
}

impl Prepared {
    /// Writes down in the session what was tried. That this fails is no reason to lose the result.
    fn note(&mut self, tried: &Tried) {
        if let Some(session) = &mut self.session {
            let _ = session.note(&tried.result.run_id, tried.work.clone());
        }
    }
}

impl Executor {
    /// Sees a request through. `see` gets events as they come; it may take its time, and then everything waits for it.
    pub fn execute(
        &self,
        request: &ExecRequest,
        cancel: &Cancel,
        see: &mut dyn FnMut(AgentEvent),
    ) -> ExecResult {
        let began = Instant::now();
        let mut prepared = match self.prepare(request) {
            Ok(prepared) => prepared,
            Err(failure) => return ExecResult::failed(request, &failure, began.elapsed()),
        };
        for note in &prepared.notes {
            see(AgentEvent { event_type: "exec.note".to_string(), message: note.clone(), data: json!({}) });
        }
        let mut attempts: Vec<Attempt> = Vec::new();
        loop {
            let tried = attempt::run(self, request, &prepared, cancel, see);
            prepared.note(&tried);
            let next = retry::next(&tried, attempts.len() as u32, request.max_retries);
            attempts.push(tried.attempt());
            let why_not = match next {
                Next::Again(_) if cancel.is_set() => None,
                Next::Again(wait) => {
                    see(retry_event(&tried, wait));
                    if !cancel.wait(wait) {
                        continue;
                    }
                    None
                }
                Next::Stop(why_not) => why_not,
            };
            let mut result = ExecResult::of(request, &prepared, tried, attempts, began.elapsed());
            if let Some(detail) = &mut result.run.error_detail {
                detail.not_retried = why_not;
            }
            if let Some(session) =
                prepared.session.take().filter(|_| !prepared.resumes && !result.run.success)
            {
                session.forget();
            }
            return result;
        }
    }

    fn prepare(&self, request: &ExecRequest) -> Result<Prepared, Failure> {
        request.check()?;
        let Some(adapter) = request.adapter()? else {
            return Ok(Prepared { program: request.command.clone(), ..Prepared::default() });
        };
        let mut program = request.command.clone();
        if program.is_empty() {
            program.extend(adapter.programs.first().cloned());
        }
        let notes = installed::check(&adapter, &program)?;
        let store = Store { folder: self.sessions.join(&adapter.name) };
        let (session, resumes) = match (&request.session_id, adapter.has_sessions()) {
            (Some(id), true) => (Some(store.resume(id, &request.cd)?), true),
            (Some(id), false) => {
                let message = format!("{} has no sessions that could go on, and {id} is one", adapter.name);
                return Err(Failure::new("session_lost", message));
            }
            (None, true) => (Some(store.begin(&request.cd)?), false),
            (None, false) => (None, false),
        };
        let ask = Ask {
            prompt: request.prompt.clone(),
            model: request.model.clone(),
            yolo: request.yolo,
            session: session.as_ref().map(|session| (session.id.clone(), resumes)),
            format: request.output_format,
        };
        Ok(Prepared { adapter: Some(adapter), program, ask, session, resumes, notes })
    }
}

fn retry_event(tried: &Tried, wait: Duration) -> AgentEvent {
    let kind = tried.error_kind().unwrap_or_default();
    let data = json!({ "error_kind": kind, "wait_ms": wait.as_millis() as u64 });
    AgentEvent { event_type: "exec.retry".to_string(), message: format!("{kind}: trying again"), data }
}
