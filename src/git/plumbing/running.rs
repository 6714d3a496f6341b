//! A running git call: writes git's input, reads its output, and ends git at the call's deadline.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::outcome::{GitError, GitOutput};
use crate::sys::pre_exec::GIT_END_SIGNAL;
use crate::sys::process::wait_until;
use crate::sys::signals;

/// How often guard checks, while it waits for git to exit, whether it must end the git call.
const INTERRUPT_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// How long a call that is not interruptible may continue after guard received a termination signal.
const GRACE: Duration = Duration::from_secs(10);
/// The minimum time that guard gives a git call that starts after guard received a termination signal.
const LATE_CALL_GRACE: Duration = Duration::from_secs(2);
const MAX_STDERR_BYTES: u64 = 8 << 10;

/// How often guard checks for pending signals while it reads the output of an interruptible git call. In other calls
/// guard checks ten times less often.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(super) fn memory_file() -> io::Result<File> {
    let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
    Ok(nix::sys::memfd::memfd_create(c"git", flags)?.into())
}

/// A git process that guard has started.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(super) errors: File,
    pub(crate) verb: String,
    pub(super) input: Vec<u8>,
    pub(super) started: Instant,
    pub(super) deadline: Instant,
    pub(super) limit: Duration,
    pub(super) max_output: usize,
    pub(super) is_session_leader: bool,
    pub(super) is_interruptible: bool,
}

/// Returns the first termination signal that guard noticed during a git call, and when it noticed the signal; `None` if
/// there is none. guard looks for a signal only while it blocks signals.
fn first_termination_signal() -> Option<(Instant, Signal)> {
    static SINCE: OnceLock<(Instant, Signal)> = OnceLock::new();
    if SINCE.get().is_none()
        && signals::are_blocked()
        && let Some(signal) = signals::pending_end_signal()
    {
        let _ = SINCE.set((Instant::now(), signal));
    }
    SINCE.get().copied()
}

impl Running {
    /// Writes git's input, reads its output, and waits until it exits.
    pub(crate) fn finish(mut self) -> Result<GitOutput, GitError> {
        let input = std::mem::take(&mut self.input);
        let feed =
            |mut pipe: std::process::ChildStdin| std::thread::spawn(move || drop(pipe.write_all(&input)));
        let feeder = self.child.stdin.take().map(feed);
        let mut output = Vec::new();
        if let Err(error) = self.read(&mut output) {
            self.terminate();
            return Err(error);
        }
        let status = self.wait()?;
        if let Some(feeder) = feeder {
            let _ = feeder.join();
        }
        Ok(GitOutput { status, output, message: self.message() })
    }

    /// True if git writes anything to standard output before its timeout. Then kills git without reading the rest of
    /// the output. Returns false if guard cannot read the output, or if it must end the call.
    pub(crate) fn has_output(mut self) -> bool {
        let said = self.child.stdout.take().is_some_and(|mut pipe| {
            loop {
                let Ok(timeout) = self.poll_timeout() else { return false };
                match poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], timeout) {
                    Ok(0) | Err(nix::errno::Errno::EINTR) => {}
                    Ok(_) => return pipe.read(&mut [0u8; 1]).is_ok_and(|count| count > 0),
                    Err(_) => return false,
                }
            }
        });
        let _ = self.child.kill();
        let _ = self.child.wait();
        said
    }

    /// Writes git's input, reads its output, and waits until it exits. Returns the standard output; an exit code
    /// other than 0 is an error.
    pub(crate) fn expect_success(self) -> Result<Vec<u8>, GitError> {
        let verb = self.verb.clone();
        let answer = self.finish()?;
        if answer.status.success() {
            return Ok(answer.output);
        }
        Err(GitError::Failed { verb, code: answer.code(), message: answer.message })
    }

    fn timed_out(&self) -> GitError {
        GitError::TimedOut { verb: self.verb.clone(), limit: self.limit }
    }

    fn failed(&self, source: io::Error) -> GitError {
        GitError::Io { verb: self.verb.clone(), source }
    }

    fn check_interrupted(&self) -> Result<(), GitError> {
        let signal = if self.is_interruptible {
            signals::pending_end_signal()
        } else {
            let is_over =
                |since: Instant| Instant::now() > (since + GRACE).max(self.started + LATE_CALL_GRACE);
            first_termination_signal().filter(|(since, _)| is_over(*since)).map(|(_, signal)| signal)
        };
        match signal {
            Some(signal) => Err(GitError::Interrupted { verb: self.verb.clone(), signal }),
            None => Ok(()),
        }
    }

    /// Returns the timeout for the next `poll`. Fails if the call's deadline has passed or guard must end the call.
    pub(crate) fn poll_timeout(&self) -> Result<PollTimeout, GitError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.timed_out());
        }
        self.check_interrupted()?;
        let look = if self.is_interruptible { SIGNAL_POLL_INTERVAL } else { SIGNAL_POLL_INTERVAL * 10 };
        let left = left.min(look);
        let milliseconds = i32::try_from(left.as_millis()).unwrap_or(i32::MAX).max(1);
        Ok(PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX))
    }

    /// Reads as much output as the size limit and the timeout allow, and ends git if there is more. Returns the output,
    /// and true if it is complete. Fails if git exits with an error after complete output, if guard cannot read the
    /// output, or if a termination signal ends the call.
    pub(crate) fn read_partial(mut self) -> Result<(Vec<u8>, bool), GitError> {
        let mut output = Vec::new();
        match self.read(&mut output) {
            Ok(()) => {}
            Err(GitError::TimedOut { .. } | GitError::TooMuch { .. }) => {
                self.terminate();
                return Ok((output, false));
            }
            Err(error) => {
                self.terminate();
                return Err(error);
            }
        }
        let status = self.wait()?;
        if status.success() {
            return Ok((output, true));
        }
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        Err(GitError::Failed { verb: self.verb.clone(), code, message: self.message() })
    }

    fn read(&mut self, output: &mut Vec<u8>) -> Result<(), GitError> {
        let Some(mut pipe) = self.child.stdout.take() else { return Ok(()) };
        let mut buffer = vec![0u8; 64 << 10];
        loop {
            let timeout = self.poll_timeout()?;
            let mut wanted = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
            match poll(&mut wanted, timeout) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(self.failed(error.into())),
            }
            match pipe.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) if output.len() + count > self.max_output => {
                    return Err(GitError::TooMuch { verb: self.verb.clone(), limit: self.max_output });
                }
                Ok(count) => output.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// Waits until git exits. Ends git if the deadline passes or guard must end the call.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus, GitError> {
        loop {
            let next_check = self.deadline.min(Instant::now() + INTERRUPT_CHECK_INTERVAL);
            let status = wait_until(&mut self.child, next_check).map_err(|error| self.failed(error))?;
            if let Some(status) = status {
                return Ok(status);
            }
            if Instant::now() >= self.deadline {
                self.terminate();
                return Err(self.timed_out());
            }
            if let Err(interrupted) = self.check_interrupted() {
                self.terminate();
                return Err(interrupted);
            }
        }
    }

    /// Ends git. First sends a signal that git can handle, so that git removes its temporary files. Kills git if it is
    /// still running two seconds later.
    pub(crate) fn terminate(&mut self) {
        let pid = self.child.id() as i32;
        // If git leads a session, signal its whole process group: otherwise git's children would keep the output pipe
        // open.
        let pid = nix::unistd::Pid::from_raw(if self.is_session_leader { -pid } else { pid });
        let _ = nix::sys::signal::kill(pid, GIT_END_SIGNAL);
        let deadline = Instant::now() + Duration::from_secs(2);
        if matches!(wait_until(&mut self.child, deadline), Ok(Some(_))) {
            return;
        }
        let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
        let _ = self.child.wait();
    }

    /// Returns the first 8 KiB that git printed to standard error, without control characters and with `; ` between
    /// the lines.
    pub(crate) fn message(&mut self) -> String {
        let mut bytes = Vec::new();
        let _ = self.errors.seek(SeekFrom::Start(0));
        let _ = (&mut self.errors).take(MAX_STDERR_BYTES).read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let plain = |line: &str| -> String {
            line.chars().filter(|c| !crate::text::terminal_text::is_unsafe(*c)).collect()
        };
        let lines: Vec<String> =
            text.lines().map(|line| plain(line.trim())).filter(|line| !line.is_empty()).collect();
        lines.join("; ")
    }
}

impl Drop for Running {
    /// Ends git if it is still running, because the caller abandoned the call.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.terminate();
        }
    }
}
