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
mod cancel;
mod installed;
mod listen;
mod request;
mod result;
mod running;
mod session;

pub use cancel::Cancel;
pub use request::{ExecRequest, Sandbox};
pub use result::{Attempt, EventCounts, ExecResult};
pub use running::{DROPPED, EventStream, RESULT, Running};

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::agent::{self, Adapter, AgentEvent, Ask};
use attempt::Tried;
use result::Failure;
use session::{Session, Store};

/// What a retry waits for, at most.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// What the first one waits for.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// Runs requests.
#[derive(Debug, Clone)]
pub struct Executor {
    /// The program that does: guard itself.
    pub guard: PathBuf,
    /// Where sessions are kept.
    pub sessions: PathBuf,
}

/// What a request means, looked up.
struct Prepared {
    adapter: Option<Adapter>,
    program: Vec<String>,
    ask: Ask,
    session: Option<Session>,
    resumes: bool,
}

impl Prepared {
    /// Writes down in the session what was tried. That this fails is no reason to lose the result.
    fn note(&mut self, tried: &Tried) {
        if let Some(session) = &mut self.session {
            let _ = session.note(&tried.result);
        }
    }

    /// A session that failed before it was one is forgotten.
    fn close(self, is_success: bool) {
        if let Some(session) = self.session.filter(|_| !self.resumes && !is_success) {
            session.forget();
        }
    }
}

impl Executor {
    /// Sees a request through. `see` gets events as they come; it may take its time, and then everything waits for it
    /// ([`Executor::start`] is for those who would rather miss some). Blocks, and needs no runtime.
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
        let mut attempts: Vec<Attempt> = Vec::new();
        let mut wait = FIRST_WAIT;
        loop {
            let mut told = 0;
            let mut tell = |event: AgentEvent| {
                told += 1;
                see(event);
            };
            let tried = attempt::run(self, request, &mut prepared, cancel, &mut tell);
            attempts.push(tried.attempt());
            prepared.note(&tried);
            let next = next_step(request, &tried, attempts.len() as u32, cancel);
            if let Some(event) = next.event(&tried, attempts.len(), wait) {
                tell(event);
            }
            events.add(told, &tried);
            if next != Next::Again || cancel.wait(wait) {
                let result = ExecResult::of(request, &prepared, tried, attempts, events, began.elapsed());
                prepared.close(result.run.success);
                return result;
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    fn prepare(&self, request: &ExecRequest, cancel: &Cancel) -> Result<Prepared, Failure> {
        request.check()?;
        if cancel.is_set() {
            return Err(Failure::new("cancelled", "cancelled before anything ran"));
        }
        let adapter = match (&request.agent, request.command.first()) {
            (Some(name), _) if name != "generic" => Some(agent::named(name).ok_or_else(|| {
                let known: Vec<&str> = agent::AGENTS.iter().map(|(name, _)| *name).collect();
                Failure::new(
                    "invalid_input",
                    format!("there is no agent `{name}`; there are {}, generic", known.join(", ")),
                )
            })?),
            (None, None) => agent::named("gemini"),
            _ => None,
        };
        let Some(adapter) = adapter else {
            let program = request.command.clone();
            return Ok(Prepared {
                adapter: None,
                program,
                ask: Ask::default(),
                session: None,
                resumes: false,
            });
        };
        let longest = adapter.longest_prompt();
        if request.prompt.len() > longest {
            let message = format!(
                "the prompt has {} bytes, and {} takes {longest}; put the rest into a file of the folder",
                request.prompt.len(),
                adapter.name
            );
            return Err(Failure::new("invalid_input", message));
        }
        let program = request
            .command
            .first()
            .cloned()
            .or_else(|| adapter.programs.first().cloned())
            .unwrap_or_default();
        installed::check(&adapter, &program)?;
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
        };
        Ok(Prepared { adapter: Some(adapter), program: vec![program], ask, session, resumes })
    }
}

/// Kinds of failure that may be gone the next time. What was asked wrongly stays wrong.
fn may_pass(kind: &str) -> bool {
    matches!(kind, "idle_timeout" | "timeout" | "upstream_error" | "rate_limited")
}

/// What follows an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Nothing,
    Again,
    /// It could be tried again, but it left work behind, which a second attempt could undo or double.
    LeftWork,
}

fn next_step(request: &ExecRequest, tried: &Tried, attempts: u32, cancel: &Cancel) -> Next {
    if !tried.error_kind().is_some_and(may_pass) || attempts > request.max_retries || cancel.is_set() {
        Next::Nothing
    } else if tried.left_work() {
        Next::LeftWork
    } else {
        Next::Again
    }
}

impl Next {
    /// What is told about it.
    fn event(self, tried: &Tried, attempt: usize, wait: Duration) -> Option<AgentEvent> {
        let kind = tried.error_kind().unwrap_or_default();
        let mut data = json!({ "attempt": attempt, "run_id": tried.result.run_id, "error_kind": kind });
        match self {
            Self::Nothing => None,
            Self::Again => {
                data["wait_ms"] = json!(wait.as_millis() as u64);
                Some(AgentEvent::new("exec.retry", format!("{kind}: trying again"), data))
            }
            Self::LeftWork => {
                let message = format!("{kind}: not tried again, because this attempt left work behind");
                Some(AgentEvent::new("exec.not_retried", message, data))
            }
        }
    }
}
