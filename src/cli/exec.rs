//! `guard exec`: a request for an agent in, one result out; for other programs.

use std::io::{self, Read, Write};
use std::time::SystemTime;

use jiff::Timestamp;
use nix::sys::signal::{SigSet, Signal};
use serde_json::json;

use super::Failure;
use super::args::Exec;
use super::exit::Exit;
use crate::agent::AgentEvent;
use crate::executor::{Cancel, ExecRequest, ExecResult, Executor};
use crate::transcript::state_folder;

/// A larger request is a mistake.
const LARGEST: u64 = 16 << 20;

pub(super) fn run(args: &Exec, out: &mut dyn Write) -> Result<Exit, Failure> {
    let request = read(args)?;
    let executor = executor()?;
    let cancel = Cancel::default();
    cancel_on_signals(&cancel)?;
    let mut broken = None;
    let result = executor.execute(&request, &cancel, &mut |event| {
        if args.stream_json && broken.is_none() {
            broken = print(&event, out).err();
        }
        // A reader that went away wants nothing more.
        if broken.is_some() {
            cancel.set();
        }
    });
    serde_json::to_writer(&mut *out, &result).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(exit(&result))
}

/// The executor of this user.
pub(super) fn executor() -> Result<Executor, Failure> {
    let runs = state_folder().map_err(|error| {
        Failure::usage(error.to_string(), "set XDG_STATE_HOME or HOME to an absolute path")
    })?;
    Ok(Executor { guard: std::env::current_exe()?, sessions: runs.with_file_name("sessions") })
}

fn read(args: &Exec) -> Result<ExecRequest, Failure> {
    let bad = |problem: String| {
        Failure::usage(
            problem,
            "a request is JSON: {\"prompt\": \"…\", \"cd\": \"/absolute/folder\"}; see schemas/exec-request.schema.json",
        )
    };
    let mut text = String::new();
    let (name, read) = match &args.request {
        Some(path) if path.as_os_str() != "-" => {
            let open =
                std::fs::File::open(path).and_then(|file| file.take(LARGEST).read_to_string(&mut text));
            (path.display().to_string(), open)
        }
        _ => ("standard input".to_string(), io::stdin().lock().take(LARGEST).read_to_string(&mut text)),
    };
    read.map_err(|error| bad(format!("cannot read the request from {name}: {error}")))?;
    serde_json::from_str(&text)
        .map_err(|error| bad(format!("the request in {name} cannot be understood: {error}")))
}

/// One event on a line.
pub(super) fn print(event: &AgentEvent, out: &mut dyn Write) -> io::Result<()> {
    let now = Timestamp::try_from(SystemTime::now()).map(|now| now.to_string()).unwrap_or_default();
    let line = json!({ "event_type": event.event_type, "message": event.message, "timestamp": now, "data": event.data });
    serde_json::to_writer(&mut *out, &line)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// The first signal cancels; the run is asked to end, and its result still comes.
pub(super) fn cancel_on_signals(cancel: &Cancel) -> io::Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    let cancel = cancel.clone();
    let work = move || {
        while signals.wait().is_ok() {
            cancel.set();
        }
    };
    std::thread::Builder::new().name("signals".to_string()).spawn(work).map(drop)
}

fn exit(result: &ExecResult) -> Exit {
    match result.run.error_kind.as_deref() {
        None => Exit::Success,
        Some("invalid_input" | "session_lost" | "session_busy") => Exit::Usage,
        Some("idle_timeout" | "timeout" | "budget_exhausted") => Exit::TimedOut,
        Some("command_not_found") => Exit::CommandNotFound,
        Some("internal" | "sandbox_unavailable" | "config_error") => Exit::OwnFailure,
        Some(_) => Exit::Problem,
    }
}
