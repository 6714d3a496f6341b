//! One attempt: guard itself as a process, its events read line by line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::result::{Attempt, was_cut};
use super::session::Session;
use super::{ExecRequest, Executor, Prepared};
use crate::agent::{AgentEvent, Conclusion, Ending, Reading, Wait};
use crate::outcome::{ErrorDetail, RunResult};
use crate::sys::confine::ends_with_parent;
use crate::transcript::{Event, Stream};

/// What is kept of what the agent prints beside its stream.
const KEPT: usize = 64 << 10;
/// Messages that a result may carry, and how much they may be together.
const MOST_MESSAGES: usize = 10_000;
const LARGEST_MESSAGES: usize = 64 << 20;

/// The way to end a request from outside.
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug, Default)]
struct State {
    is_set: bool,
    /// The process to be told.
    process: Option<i32>,
}

impl Cancel {
    /// Ends the request: its run is asked to end, then ended. Safe to call more than once.
    pub fn set(&self) {
        let mut state = self.lock();
        state.is_set = true;
        if let Some(process) = state.process {
            let _ = kill(Pid::from_raw(process), Signal::SIGTERM);
        }
        self.shared.1.notify_all();
    }

    /// Whether it was.
    pub fn is_set(&self) -> bool {
        self.lock().is_set
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits; whether it was set meanwhile.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let state = self.lock();
        let (state, _) = self
            .shared
            .1
            .wait_timeout_while(state, time, |state| !state.is_set)
            .unwrap_or_else(PoisonError::into_inner);
        state.is_set
    }

    fn watch(&self, child: &Child) {
        let mut state = self.lock();
        state.process = i32::try_from(child.id()).ok();
        if let Some(process) = state.process.filter(|_| state.is_set) {
            let _ = kill(Pid::from_raw(process), Signal::SIGTERM);
        }
    }

    /// Before the process is waited for: its number may be another's afterwards.
    fn forget(&self) {
        self.lock().process = None;
    }
}

/// What an attempt came to.
pub(super) struct Tried {
    pub(super) result: RunResult,
    pub(super) conclusion: Option<Conclusion>,
    pub(super) messages: Vec<Value>,
    /// The end of what it printed beside its stream.
    pub(super) stderr: String,
    /// Where it worked.
    pub(super) work: Option<PathBuf>,
}

impl Tried {
    /// What went wrong.
    pub(super) fn error_kind(&self) -> Option<&str> {
        let own = self.result.error_kind.as_deref();
        let agents =
            self.conclusion.as_ref().and_then(|end| end.error.as_ref()).map(|(kind, _)| kind.as_str());
        if was_cut(&self.result) { own } else { agents.or(own) }
    }

    /// What it changed that is still there, for people.
    pub(super) fn left_work(&self) -> Option<String> {
        let uncommitted = self.result.worktree.as_ref().map_or(0, |tree| tree.uncommitted.len());
        let count = |number: usize, one: &str| match number {
            0 => None,
            1 => Some(format!("1 {one}")),
            more => Some(format!("{more} {one}s")),
        };
        let parts = [
            count(self.result.commits.len(), "commit"),
            count(self.result.files_changed.len().max(uncommitted), "changed file"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// When it is worth another try, where it was said.
    pub(super) fn wait(&self) -> Option<&Wait> {
        self.conclusion.as_ref().and_then(|end| end.wait.as_ref())
    }

    pub(super) fn attempt(&self) -> Attempt {
        Attempt {
            run_id: self.result.run_id.clone(),
            error_kind: self.error_kind().map(str::to_string),
            duration_ms: self.result.duration_ms,
        }
    }

    fn broken(message: String) -> Self {
        let detail = ErrorDetail { message: message.clone(), ..ErrorDetail::default() };
        let result = RunResult {
            error: Some(message),
            error_kind: Some("internal".to_string()),
            error_detail: Some(detail),
            ..RunResult::default()
        };
        Self { result, conclusion: None, messages: Vec::new(), stderr: String::new(), work: None }
    }
}

/// A folder with the adapter's own files for the private home; gone with it.
struct Furniture(PathBuf);

impl Furniture {
    fn make(files: &[(String, String)]) -> std::io::Result<Self> {
        let folder = Self(std::env::temp_dir().join(format!("guard-exec-{}", uuid::Uuid::now_v7())));
        std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&folder.0)?;
        for (path, text) in files {
            let place = folder.0.join(path);
            place.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::write(place, text)?;
        }
        Ok(folder)
    }
}

impl Drop for Furniture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Where the agent works: in the folder, or in a worktree that is the same for every turn of a conversation.
fn place(command: &mut Command, request: &ExecRequest, prepared: &Prepared) {
    for path in &request.write {
        command.arg("--write").arg(path);
    }
    if request.here {
        command.arg("--dir").arg(&request.cd).arg("--here");
        return;
    }
    let is_in_repository = request.cd.ancestors().any(|folder| folder.join(".git").exists());
    if request.in_place || request.sandbox == super::Sandbox::ReadOnly || !is_in_repository {
        command.arg("--dir").arg(&request.cd).arg("--in-place");
        return;
    }
    match prepared.session.as_ref().map(|session| (session, session.work())) {
        Some((_, Some(work))) => command.arg("--dir").arg(work).arg("--here"),
        Some((session, None)) => command.arg("--dir").arg(&request.cd).args(["--name", &session.task()]),
        None => command.arg("--dir").arg(&request.cd),
    };
}

/// The process of an attempt.
fn command(
    executor: &Executor,
    request: &ExecRequest,
    prepared: &Prepared,
) -> Result<(Command, Option<Furniture>, Option<String>), String> {
    let mut command = Command::new(&executor.guard);
    command.args(["run", "--stream-json", "--policy", request.policy()]);
    command.args([
        "--timeout",
        &request.timeout.to_string(),
        "--max-duration",
        &request.max_duration.to_string(),
    ]);
    for (option, bound) in [("--max-tokens", request.max_tokens), ("--max-requests", request.max_requests)] {
        if let Some(bound) = bound {
            command.args([option, &bound.to_string()]);
        }
    }
    place(&mut command, request, prepared);
    let (mut furniture, mut input) = (None, None);
    let mut words = prepared.program.clone();
    if let Some(adapter) = &prepared.adapter {
        let invocation = adapter.invocation(&prepared.ask);
        for (name, value) in &invocation.environment {
            command.arg("--env").arg(format!("{name}={value}"));
        }
        for preset in &invocation.presets {
            command.args(["--preset", preset]);
        }
        let made = Furniture::make(&invocation.home_files)
            .map_err(|error| format!("cannot furnish the home: {error}"))?;
        // What the agent has kept of its own comes first: our files replace it.
        if let Some(home) = prepared
            .session
            .as_ref()
            .filter(|_| prepared.resumes)
            .map(Session::home)
            .filter(|home| home.exists())
        {
            command.arg("--home-from").arg(home);
        }
        command.arg("--home-from").arg(&made.0);
        furniture = Some(made);
        if let Some(session) = prepared.session.as_ref().filter(|_| !invocation.keep.is_empty()) {
            command.arg("--home-to").arg(session.home());
            for path in &invocation.keep {
                command.arg("--home-keep").arg(path);
            }
        }
        words.extend(invocation.arguments);
        input = invocation.input;
    }
    command.arg("--").args(words);
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok((command, furniture, input))
}

/// Runs one attempt to its end.
pub(super) fn run(
    executor: &Executor,
    request: &ExecRequest,
    prepared: &Prepared,
    cancel: &Cancel,
    see: &mut dyn FnMut(AgentEvent),
) -> Tried {
    let began = Instant::now();
    let (mut command, _furniture, input) = match command(executor, request, prepared) {
        Ok(made) => made,
        Err(problem) => return Tried::broken(problem),
    };
    // A Ctrl-C is ours to hand on; and whoever ends us ends the run.
    command.process_group(0);
    ends_with_parent(&mut command);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Tried::broken(format!("cannot start {}: {error}", executor.guard.display())),
    };
    cancel.watch(&child);
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        // An agent that does not read it ends the writing with its own end.
        std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    }
    let errors = child.stderr.take().map(|stderr| {
        std::thread::spawn(move || {
            let mut text = String::new();
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                keep(&mut text, &format!("{line}\n"));
            }
            text
        })
    });
    let mut listener = Listener::new(request, prepared, see);
    if let Some(stdout) = child.stdout.take() {
        listener.read(BufReader::with_capacity(256 << 10, stdout));
    }
    cancel.forget();
    let status = child.wait();
    let guards_words = errors.and_then(|thread| thread.join().ok()).unwrap_or_default();
    let Listener { reading, result, messages, stderr, work, .. } = listener;
    let Some(result) = result else {
        let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        let mut tried =
            Tried::broken(format!("guard ended without a result ({how}): {}", guards_words.trim()));
        tried.result.duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        return tried;
    };
    let ending = match (result.exit_code, result.signal) {
        _ if was_cut(&result) => Ending::Cut,
        (_, Some(signal)) => Ending::Signal(signal),
        (Some(code), None) => Ending::Code(code),
        (None, None) => Ending::Cut,
    };
    let asked = prepared.session.as_ref().filter(|_| prepared.resumes).map(|session| session.id.as_str());
    let conclusion = reading.map(|reading| reading.conclude(ending, asked, &stderr));
    Tried { result, conclusion, messages, stderr, work }
}

/// The last so many bytes of a text.
fn keep(text: &mut String, more: &str) {
    text.push_str(more);
    if text.len() > 2 * KEPT {
        let mut from = text.len() - KEPT;
        while !text.is_char_boundary(from) {
            from += 1;
        }
        text.drain(..from);
    }
}

/// Hears what an attempt says.
struct Listener<'l> {
    reading: Option<Reading>,
    result: Option<RunResult>,
    messages: Vec<Value>,
    kept_bytes: usize,
    keeps_messages: bool,
    stderr: String,
    work: Option<PathBuf>,
    see: &'l mut dyn FnMut(AgentEvent),
}

impl<'l> Listener<'l> {
    fn new(request: &ExecRequest, prepared: &Prepared, see: &'l mut dyn FnMut(AgentEvent)) -> Self {
        Self {
            reading: prepared.adapter.clone().map(|adapter| Reading::new(adapter, prepared.ask.format)),
            result: None,
            messages: Vec::new(),
            kept_bytes: 0,
            keeps_messages: request.return_all_messages,
            stderr: String::new(),
            work: None,
            see,
        }
    }

    fn read(&mut self, mut input: impl BufRead) {
        let mut line = Vec::new();
        loop {
            line.clear();
            match input.read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => self.line(&line),
            }
        }
        if let Some(mut reading) = self.reading.take() {
            reading.finish(|event| self.agent_says(event));
            self.reading = Some(reading);
        }
    }

    /// Hands on what the agent said, and keeps it where that was asked for.
    fn agent_says(&mut self, event: AgentEvent) {
        if self.keeps_messages && self.messages.len() < MOST_MESSAGES {
            let size = event.data.to_string().len();
            if self.kept_bytes + size <= LARGEST_MESSAGES {
                self.kept_bytes += size;
                self.messages.push(event.data.clone());
            }
        }
        (self.see)(event);
    }

    fn line(&mut self, line: &[u8]) {
        // The last line is the result; it has no type.
        let Ok(event) = serde_json::from_slice::<Event>(line) else { return };
        if event.event_type.is_empty() {
            self.result = serde_json::from_slice(line).ok().or(self.result.take());
            return;
        }
        if event.event_type == crate::transcript::STARTED {
            self.work = event.data.get("folder").and_then(Value::as_str).map(PathBuf::from);
        }
        let Some((stream, bytes)) = event.output() else {
            if event.event_type != crate::transcript::FINISHED {
                (self.see)(AgentEvent {
                    event_type: event.event_type,
                    message: event.message,
                    data: event.data,
                });
            }
            return;
        };
        match (self.reading.take(), stream) {
            (Some(mut reading), Stream::Stdout | Stream::Terminal) => {
                reading.feed(&bytes, |event| self.agent_says(event));
                self.reading = Some(reading);
            }
            (reading, stream) => {
                self.reading = reading;
                let text = String::from_utf8_lossy(&bytes);
                if stream == Stream::Stderr {
                    keep(&mut self.stderr, &text);
                }
                let data =
                    serde_json::json!({ "stream": format!("{stream:?}").to_lowercase(), "text": text });
                (self.see)(AgentEvent { event_type: "output".to_string(), message: text.into_owned(), data });
            }
        }
    }
}
