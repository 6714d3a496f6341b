//! `guard exec`: takes one request for an agent, from another program or a user, and prints one result. The caller gets
//! a result even for a bad request.

use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::args::Exec;
use super::exec_args::Asked;
use super::exit_code::Exit;
use super::{Failure, note};
use crate::agent::{AgentEvent, RequestText};
use crate::agent_exec::{Cancel, ExecRequest, ExecResult, Executor};
use crate::launch;
use crate::outcome::ErrorKind;
use crate::transcript::state_folder;

/// A larger request, in bytes, is rejected.
const LARGEST: u64 = 16 << 20;

pub(super) fn run(args: &Exec, out: &mut dyn Write) -> Result<Exit, Failure> {
    if let Some(language) = args.template {
        write!(out, "{}", RequestText::default().written_in(language.into()))?;
        return Ok(Exit::Success);
    }
    let request = match request(args) {
        Ok(request) => request,
        Err((problem, hint)) => {
            note(&format!("guard: {problem}\n  hint: {hint}"));
            // Programs always get a result, whatever they sent.
            return finish(&ExecResult::refused(ErrorKind::InvalidInput, &problem), out);
        }
    };
    let executor = executor()?;
    let cancel = Cancel::default();
    cancel_on_signals(&cancel)?;
    cancel_without_reader(&cancel)?;
    let mut broken = None;
    let result = executor.execute(&request, &cancel, &mut |event| {
        if args.stream_json && broken.is_none() {
            broken = print(&event, out).err();
        }
        // If the reader is gone, nobody wants the rest.
        if broken.is_some() && !cancel.is_set() {
            cancel.set();
        }
    });
    match broken {
        Some(error) => Err(error.into()),
        None => finish(&result, out),
    }
}

fn finish(result: &ExecResult, out: &mut dyn Write) -> Result<Exit, Failure> {
    serde_json::to_writer(&mut *out, result).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(exit(result))
}

/// The executor for this user.
pub(super) fn executor() -> Result<Executor, Failure> {
    let runs = state_folder().map_err(|error| {
        Failure::usage(error.to_string(), "set XDG_STATE_HOME or HOME to an absolute path")
    })?;
    Ok(Executor {
        guard: std::env::current_exe()?,
        sessions: runs.with_file_name("sessions"),
        log: super::logging::for_children(),
    })
}

/// What is wrong with a request, and a hint.
type Wrong = (String, &'static str);

const SHAPE: &str = "a request is JSON: {\"prompt\": \"…\", \"cd\": \"/absolute/folder\"}; see schemas/exec-request.schema.json";
const WAYS: &str =
    "guard exec 'PROMPT', or a request in JSON on standard input; `guard exec --help` shows both";

/// Reads the request from options, a file or standard input.
fn request(args: &Exec) -> Result<ExecRequest, Wrong> {
    if args.asked.is_given() {
        return by_options(&args.asked);
    }
    if let Some(option) = args.asked.stray_option() {
        return Err((format!("{option} needs a PROMPT; a request in JSON has fields of its own"), WAYS));
    }
    let path = args.request.as_ref().filter(|path| path.as_os_str() != "-");
    if path.is_none() && io::stdin().is_terminal() {
        return Err(("nothing is asked".to_string(), WAYS));
    }
    let name = path.map_or_else(|| "standard input".to_string(), |path| path.display().to_string());
    let mut bytes = Vec::new();
    let read = match path {
        Some(path) => {
            std::fs::File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes))
        }
        None => io::stdin().lock().take(LARGEST + 1).read_to_end(&mut bytes),
    };
    let wrong = |problem: String| (format!("the request in {name} cannot be used: {problem}"), SHAPE);
    read.map_err(|error| wrong(error.to_string()))?;
    if bytes.len() as u64 > LARGEST {
        return Err(wrong(format!("it has more than {} MiB", LARGEST >> 20)));
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong("it is not UTF-8".to_string()))?;
    ExecRequest::from_json(&text).map_err(|error| wrong(error.to_string()))
}

fn by_options(asked: &Asked) -> Result<ExecRequest, Wrong> {
    let cd = match &asked.cd {
        Some(cd) => std::path::absolute(cd),
        None => std::env::current_dir(),
    };
    let cd = cd.map_err(|error| (format!("the directory cannot be used: {error}"), "give --cd DIR"))?;
    let usual = ExecRequest::new(asked.prompt.clone().unwrap_or_default(), cd);
    Ok(ExecRequest {
        command: asked.command.clone(),
        agent: asked.agent.clone(),
        sandbox: asked.sandbox.map(Into::into).unwrap_or_default(),
        policy: asked.policy.clone(),
        yolo: !asked.no_yolo,
        session_id: asked.session.clone(),
        model: asked.model.clone(),
        timeout: asked.timeout.unwrap_or(usual.timeout),
        max_duration: asked.max_duration.unwrap_or(usual.max_duration),
        max_retries: asked.max_retries.unwrap_or(usual.max_retries),
        in_place: asked.in_place,
        here: asked.here,
        max_tokens: asked.max_tokens,
        max_requests: asked.max_requests,
        return_all_messages: asked.all_messages,
        return_metrics: asked.metrics,
        ..usual
    })
}

/// Prints one event as a line of JSON.
pub(super) fn print(event: &AgentEvent, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, event)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Cancels at the first signal. The run is asked to end, and its result is still printed.
pub(super) fn cancel_on_signals(cancel: &Cancel) -> io::Result<()> {
    let cancel = cancel.clone();
    launch::on_signals(move || cancel.set())
}

/// Starts a thread that cancels when the reader of the result is gone. Without it, guard would notice that only at the
/// next event, and the agent may be silent for long.
fn cancel_without_reader(cancel: &Cancel) -> io::Result<()> {
    let out = io::stdout().as_fd().try_clone_to_owned()?;
    let cancel = cancel.clone();
    let work = move || {
        loop {
            // No events requested: the kernel always reports errors and a closed peer.
            let mut fds = [PollFd::new(out.as_fd(), PollFlags::empty())];
            match poll(&mut fds, PollTimeout::NONE) {
                Err(nix::errno::Errno::EINTR) => {}
                Ok(1) if fds[0].any() == Some(true) => return cancel.set(),
                _ => return,
            }
        }
    };
    std::thread::Builder::new().name("reader".to_string()).spawn(work).map(drop)
}

fn exit(result: &ExecResult) -> Exit {
    match result.run.error_kind {
        None => Exit::Success,
        Some(ErrorKind::InvalidInput | ErrorKind::SessionLost | ErrorKind::SessionBusy) => Exit::Usage,
        Some(
            ErrorKind::IdleTimeout | ErrorKind::Timeout | ErrorKind::BudgetExhausted | ErrorKind::RecordFull,
        ) => Exit::TimedOut,
        Some(ErrorKind::CommandNotFound) => Exit::CommandNotFound,
        Some(ErrorKind::Internal | ErrorKind::SandboxUnavailable | ErrorKind::ConfigError) => {
            Exit::OwnFailure
        }
        Some(_) => Exit::Problem,
    }
}
