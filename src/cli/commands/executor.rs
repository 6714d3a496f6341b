//! What every command that asks an agent needs: the executor of requests, ways to cancel a request, and functions that
//! print an event and return the exit code for a result.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::agents::adapter::AgentEvent;
use crate::agents::exec::{Cancel, ExecResult, Executor};
use crate::cli::Failure;
use crate::cli::output::exit_code::Exit;
use crate::run::launch;
use crate::run::outcome::ErrorKind;
use crate::run::transcript::runs_dir;

/// Creates the executor. To run an agent, the executor starts another process of this guard binary. It stores sessions
/// in the current user's state directory.
pub(in crate::cli) fn executor() -> Result<Executor, Failure> {
    let runs = runs_dir().map_err(|error| {
        Failure::usage(error.to_string(), "set XDG_STATE_HOME or HOME to an absolute path")
    })?;
    Ok(Executor {
        guard: std::env::current_exe()?,
        sessions: runs.with_file_name("sessions"),
        log: crate::cli::output::logging::for_children(),
    })
}

/// Cancels the run at the first signal, such as Ctrl-C. guard then asks the run to end, and still prints its result. The
/// second signal ends the run at once.
pub(in crate::cli) fn cancel_on_signals(cancel: &Cancel) -> io::Result<()> {
    let cancel = cancel.clone();
    launch::on_signals(move || {
        say_what_follows(&cancel);
        cancel.set();
    })
}

/// What the first Ctrl-C has done to an agent, and what the second one does.
pub(in crate::cli) const AFTER_INTERRUPT: &str =
    "the agent has been asked to end and has 5 seconds; Ctrl-C again ends it at once";

/// Says on the terminal what the first signal does, and what the next one does.
fn say_what_follows(cancel: &Cancel) {
    if !cancel.is_set() && io::stderr().is_terminal() {
        // The line takes the place of a progress line.
        let _ = writeln!(io::stderr(), "\r\x1b[Kguard: {AFTER_INTERRUPT}");
    }
}

/// Sets both flags at the first signal: `run` cancels the run, and `wait` ends the wait for the summary of older
/// messages after the run.
pub(in crate::cli) fn cancel_both_on_signals(run: &Cancel, wait: &Cancel) -> io::Result<()> {
    let (run, wait) = (run.clone(), wait.clone());
    launch::on_signals(move || {
        say_what_follows(&run);
        run.set();
        wait.set();
    })
}

/// Starts a thread that cancels the run when the reader closes standard output. Without this thread, guard would
/// notice that only at the next event, and an agent may be silent for a long time.
pub(in crate::cli) fn cancel_without_reader(cancel: &Cancel) -> io::Result<()> {
    let out = io::stdout().as_fd().try_clone_to_owned()?;
    let cancel = cancel.clone();
    let work = move || {
        loop {
            // Request no events: the kernel reports errors and a closed reading end even if they are not requested.
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

/// Prints one event as a line of JSON.
pub(in crate::cli) fn print_event(event: &AgentEvent, out: &mut dyn Write) -> io::Result<()> {
    crate::cli::output::json::to_writer(&mut *out, event)?;
    out.write_all(b"\n")?;
    out.flush()
}

pub(in crate::cli) fn exit(result: &ExecResult) -> Exit {
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
