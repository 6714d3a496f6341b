//! `guard run --detach`: the run continues in a forked background process with a session of its own. The caller waits
//! until the run's command has started or the run has failed. Must be called while guard has a single thread.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::json;

use super::exit_code::Exit;
use super::log::store;
use super::policy::print_json;
use super::run_reference::short_ids;
use super::{Failure, note};
use crate::sys::process;
use crate::transcript::{EventType, Line, Observer};

/// The result of the fork, in each of the two processes.
pub(super) enum Side {
    Caller(Background),
    Run(StartNotifier),
}

/// The background process of a run, as the caller sees it.
pub(super) struct Background {
    pid: Pid,
    /// The read end of a pipe. It delivers the run's id when the command has started, and ends without an id if the run
    /// fails.
    started: File,
    /// What the background process prints before its command has started. A file instead of a pipe, because nobody
    /// reads while the process writes.
    output: File,
    error: File,
}

/// Tells the caller that the command has started. Used in the background process of the run.
pub(super) struct StartNotifier {
    started: File,
}

/// Forks the background process of the run. That process has no terminal, and its output goes to files in memory until
/// its command has started.
pub(super) fn fork() -> io::Result<Side> {
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
    pub(super) fn observer(self, run_id: &str) -> Observer {
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
            // A caller that is gone is no reason to end the run.
            let _ = caller.write_all(format!("{run_id}\n").as_bytes());
        })
    }
}

/// Waits until the run's command has started, and prints the run's id. If the run has failed instead, prints the output
/// of its process and returns its exit code.
pub(super) fn await_start(background: Background, json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let Background { pid, started, output, error } = background;
    let mut run_id = String::new();
    // Not to the end: the run's init process has a copy of the pipe until the run ends.
    BufReader::new(started).read_line(&mut run_id)?;
    let run_id = run_id.trim_end().to_string();
    if run_id.is_empty() {
        // First, because the run prints its summary just before it ends.
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
    let transcript = store()?.folder().join(&run_id).join(crate::transcript::FILE);
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
    note(&format!("guard: started in the background\n  next: guard attach {short}; guard stop {short}"));
    Ok(Exit::Success)
}

fn content(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}
