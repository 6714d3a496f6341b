//! `guard run --detach`: the run continues in a forked background process in its own session. The calling process
//! waits until the run's command has started or the run has failed. `fork` must be called while guard has a single
//! thread.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::json;

use crate::cli::output::exit_code::Exit;
use crate::cli::output::json::print_json;
use crate::cli::{Failure, note};
use crate::run::transcript::{EventType, Line, Observer};
use crate::session::run_reference::short_ids;
use crate::session::run_reference::store;
use crate::sys::process;

/// Says which of the two processes the caller of [`fork`] is now, and contains the files through which it
/// communicates with the other process.
pub(in crate::cli) enum Side {
    Caller(Background),
    Run(StartNotifier),
}

/// What the calling process needs to wait for the background process of a run.
pub(in crate::cli) struct Background {
    pid: Pid,
    /// The read end of a pipe. The background process writes the run's id to it when the command has started, and
    /// closes it without an id if the run fails.
    started: File,
    /// A file in memory for what the background process prints to standard output before its command has started. It is
    /// not a pipe, because a pipe could fill up while the calling process does not read it.
    output: File,
    /// A file in memory for what the background process prints to standard error before its command has started.
    error: File,
}

/// The background process's end of the pipe through which it tells the calling process that the command has started.
pub(in crate::cli) struct StartNotifier {
    started: File,
}

/// Forks the background process of the run. That process has no terminal, and its output goes to files in memory until
/// its command has started.
pub(in crate::cli) fn fork() -> io::Result<Side> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    let in_memory = |name: &str| -> io::Result<OwnedFd> { Ok(memfd_create(name, MFdFlags::MFD_CLOEXEC)?) };
    let (output, error) = (in_memory("guard-output")?, in_memory("guard-error")?);
    let pid = process::fork(0)?;
    if pid != 0 {
        let (output, error) = (output.into(), error.into());
        return Ok(Side::Caller(Background { pid: Pid::from_raw(pid), started: read.into(), output, error }));
    }
    nix::unistd::setsid()?;
    process::replace_descriptor(null.as_raw_fd(), 0)?;
    process::replace_descriptor(output.as_raw_fd(), 1)?;
    process::replace_descriptor(error.as_raw_fd(), 2)?;
    Ok(Side::Run(StartNotifier { started: write.into() }))
}

impl StartNotifier {
    /// Returns an observer of the run's events that tells the caller when the first program starts. From then on, guard
    /// prints nothing: the transcript contains everything.
    pub(in crate::cli) fn observer(self, run_id: &str) -> Observer {
        let mut waiting = Some((self.started, run_id.to_string()));
        Box::new(move |line: &Line<'_>| {
            if line.event_type != EventType::Exec {
                return;
            }
            let Some((mut caller, run_id)) = waiting.take() else { return };
            if let Ok(null) = File::options().write(true).open("/dev/null") {
                let _ = process::replace_descriptor(null.as_raw_fd(), 1);
                let _ = process::replace_descriptor(null.as_raw_fd(), 2);
            }
            // The run continues even if the calling process has ended.
            let _ = caller.write_all(format!("{run_id}\n").as_bytes());
        })
    }
}

/// Waits until the run's command has started, and prints the run's id. If the run has failed instead, prints the output
/// of its process and returns its exit code.
pub(in crate::cli) fn await_start(
    background: Background,
    json: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let Background { pid, started, output, error } = background;
    let mut run_id = String::new();
    // Read one line only: the run's init process has a copy of the pipe until the run ends, so the pipe stays open.
    BufReader::new(started).read_line(&mut run_id)?;
    let run_id = run_id.trim_end().to_string();
    if run_id.is_empty() {
        // Wait for the process to end before reading its output, because it prints a summary just before it ends.
        let ended = waitpid(pid, None);
        io::stderr().write_all(&content(error)?)?;
        out.write_all(&content(output)?)?;
        return Ok(match ended {
            Ok(WaitStatus::Exited(_, code)) => Exit::Code(u8::try_from(code).unwrap_or(125)),
            Ok(WaitStatus::Signaled(_, signal, _)) => Exit::Code(128 + signal as u8),
            _ => Exit::OwnFailure,
        });
    }
    io::stderr().write_all(&content(error)?)?;
    let transcript = store()?.folder().join(&run_id).join(crate::run::transcript::FILE);
    if json {
        print_json(
            &json!({ "run_id": run_id, "pid": pid.as_raw(), "transcript": transcript.to_string_lossy() }),
            out,
        )?;
        return Ok(Exit::Success);
    }
    writeln!(out, "{run_id}")?;
    out.flush()?;
    let ids = store()?.ids()?;
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let short = short_ids(&ids).get(run_id.as_str()).copied().unwrap_or(&run_id).to_string();
    note(&format!(
        "guard: started the run in the background\n  next: guard attach {short}, or to end the run: guard stop {short}"
    ));
    Ok(Exit::Success)
}

fn content(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}
