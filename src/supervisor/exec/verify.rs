//! Checks a program a second time, at its ptrace exec stop: after the exec and before its first instruction.
//!
//! In goes what the supervisor allowed ([`Expected`]); the process must now be exactly that, or the new state must be
//! allowed too. At this point the program, its arguments and its directory cannot change any more, so a race against
//! the first check fails here. A process that differs and is not allowed, or that cannot be inspected, is killed.

use std::io;
use std::path::PathBuf;

use super::executable_identity::{Executable, Identities, Identity};
use super::process_memory::Arguments;
use super::{ExecRequest, line};
use crate::policy::Action;
use crate::supervisor::event_loop::{Supervisor, folder_of};
use crate::supervisor::shim::protocol;
use crate::sys::ptrace::{self, Change};
use crate::transcript::{EventType, Prepared};

/// Largest errno value. The kernel returns errors as `-MOST_ERRNO..0`.
const MOST_ERRNO: i64 = 4095;

/// What a thread must have become when its exec is done.
#[derive(Debug)]
pub(crate) struct Expected {
    identity: Identity,
    copy_of: Option<Vec<u8>>,
    /// The program, if it lies where the agent cannot write.
    foreign: Option<Executable>,
    arguments: Arguments,
    folder: PathBuf,
    /// The verdict depends on the state of a repository, so the supervisor repeats it at the exec stop.
    judge_again: bool,
    /// The event to record once the program has started.
    record: Prepared,
}

impl Expected {
    pub(crate) fn of(
        start: &ExecRequest,
        identities: &Identities,
        judge_again: bool,
        record: Prepared,
    ) -> Self {
        let (identity, argv) = start.becomes();
        let program = start.chain.last();
        let is_foreign = |program: &&Executable| !identities.may_be_copy(&program.path);
        Self {
            identity,
            copy_of: program.and_then(|file| file.copy_of.clone()),
            foreign: program.filter(is_foreign).cloned(),
            arguments: Arguments { argv, environment: start.environment.clone() },
            folder: start.folder.clone(),
            judge_again,
            record,
        }
    }
}

/// What a thread has actually become when its exec is done.
struct Actual {
    program: Executable,
    arguments: Arguments,
    folder: PathBuf,
}

impl Supervisor {
    /// Handles a ptrace event: a watched thread has stopped or exited.
    pub(crate) fn changed(&mut self, pid: i32, change: Change) {
        match change {
            Change::Exec(former) => {
                let at = self.expected.iter().position(|(tid, _)| *tid == former);
                let expected = at.map(|at| self.expected.swap_remove(at).1);
                if self.is_as_expected(pid, expected.as_ref()) {
                    let _ = ptrace::detach(pid, 0);
                } else {
                    let _ = nix::sys::signal::kill(
                        nix::unistd::Pid::from_raw(pid),
                        nix::sys::signal::Signal::SIGKILL,
                    );
                    let _ = ptrace::detach(pid, 0);
                }
            }
            Change::Stop(signal) => {
                // The exec failed in the kernel. The errno is in the thread's return register.
                let errno = ptrace::call_result(pid).ok().filter(|result| (-MOST_ERRNO..0).contains(result));
                self.failed(pid, errno.map(|result| -result as i32));
                let _ = ptrace::detach(pid, signal);
            }
            Change::Exit => self.failed(pid, None),
        }
    }

    /// Records that an allowed exec did not happen. No `errno` means that the thread was killed first.
    fn failed(&mut self, tid: i32, errno: Option<i32>) {
        let Some(at) = self.expected.iter().position(|(known, _)| *known == tid) else { return };
        let (_, expected) = self.expected.swap_remove(at);
        let why = match errno {
            Some(errno) => io::Error::from_raw_os_error(errno).to_string(),
            None => "it was killed".to_string(),
        };
        let mut data = expected.record.data();
        if let Some(data) = data.as_object_mut() {
            data.insert("errno".to_string(), errno.into());
        }
        let message = expected.record.prefixed(&format!("did not start ({why}): "));
        self.setting.recorder.record(EventType::ExecFailed, &message, &data);
    }

    /// Records every exec that was still in progress when the run ended.
    pub(crate) fn give_up(&mut self) {
        while let Some((tid, _)) = self.expected.first() {
            self.failed(*tid, None);
        }
    }

    /// Records a program that has started, before its first instruction.
    fn started(&mut self, expected: &Expected) {
        self.counts.starts += 1;
        self.setting.recorder.record_prepared(EventType::Exec, &expected.record);
    }

    fn look_again(&mut self, pid: i32, expected: Option<&Expected>) -> io::Result<Actual> {
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        let stack = ptrace::stack_pointer(pid)?;
        self.remote.attach(pid);
        Ok(Actual {
            arguments: self.remote.started_with(stack, protocol::is_relevant)?,
            program: self.identities.running(pid, expected.and_then(|expected| expected.foreign.as_ref()))?,
            folder: folder_of(pid).ok_or_else(gone)?,
        })
    }

    /// Whether a started program is what was allowed, or something else that the policy allows too.
    fn is_as_expected(&mut self, pid: i32, expected: Option<&Expected>) -> bool {
        let Actual { program, arguments, folder } = match self.look_again(pid, expected) {
            Ok(actual) => actual,
            // The process was killed and has left its exec stop. This is not a denial.
            Err(_)
                if ptrace::stack_pointer(pid)
                    .is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH)) =>
            {
                return false;
            }
            Err(_) => {
                self.refuse(
                    EventType::DenyExec,
                    pid,
                    "a program that cannot be looked at",
                    "sandbox.unreadable",
                    "What cannot be looked at does not run.",
                );
                return false;
            }
        };
        let is_unchanged = expected.is_some_and(|expected| {
            expected.identity == program.identity
                && expected.copy_of == program.copy_of
                && expected.arguments == arguments
                && expected.folder == folder
        });
        if is_unchanged
            && let Some(expected) = expected
            && !expected.judge_again
        {
            self.started(expected);
            return true;
        }
        let Arguments { argv, environment } = arguments;
        let loaded = self.loaded(pid, &folder, std::slice::from_ref(&program), &argv);
        let path = program.path.clone();
        let start = ExecRequest { path, environment, folder, chain: vec![program], argv, loaded };
        let (verdict, _) = self.judge_start(&start);
        if verdict.action() == Action::Allow
            && is_unchanged
            && let Some(expected) = expected
        {
            self.started(expected);
            return true;
        }
        if verdict.action() == Action::Allow {
            self.counts.starts += 1;
            let asked =
                expected.map(|expected| expected.record.prefixed(", asked for: ")).unwrap_or_default();
            self.setting.recorder.record(
                EventType::ExecChanged,
                &format!("became something else than it asked for: {}{asked}", line(&start.argv)),
                &start.data(pid, None),
            );
            return true;
        }
        self.record_denial(pid, &start, &verdict);
        false
    }
}
