//! The second look at a program, when it has started and not yet run: what it is now cannot change any more.

use std::io;
use std::path::PathBuf;

use super::exec::{Start, line};
use super::identity::{Executable, Identities, Identity};
use super::remote::Arguments;
use super::supervisor::{Supervisor, folder_of};
use super::wire;
use crate::policy::Action;
use crate::sys::ptrace::{self, Change};

/// What a thread should be when its exec is done.
#[derive(Debug)]
pub(super) struct Expected {
    identity: Identity,
    copy_of: Option<Vec<u8>>,
    /// The program, when no agent could have put it where it lies.
    foreign: Option<Executable>,
    arguments: Arguments,
    folder: PathBuf,
}

impl Expected {
    pub(super) fn of(start: &Start, identities: &Identities) -> Self {
        let (identity, argv) = start.becomes();
        let program = start.chain.last();
        let is_foreign = |program: &&Executable| !identities.may_be_copy(&program.path);
        Self {
            identity,
            copy_of: program.and_then(|file| file.copy_of.clone()),
            foreign: program.filter(is_foreign).cloned(),
            arguments: Arguments { argv, environment: start.environment.clone() },
            folder: start.folder.clone(),
        }
    }
}

/// What a thread really is when its exec is done.
struct Actual {
    program: Executable,
    arguments: Arguments,
    folder: PathBuf,
}

impl Supervisor {
    /// A watched thread has stopped or ended.
    pub(super) fn changed(&mut self, pid: i32, change: Change) {
        match change {
            Change::Exec(former) => {
                let at = self.expected.iter().position(|(tid, _)| *tid == former);
                let expected = at.map(|at| self.expected.swap_remove(at).1);
                if let Some(settled) = self.setting.settled.take() {
                    settled();
                }
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
                // The exec failed, or a signal came first.
                self.expected.retain(|(tid, _)| *tid != pid);
                let _ = ptrace::detach(pid, signal);
            }
            Change::Exit => self.expected.retain(|(tid, _)| *tid != pid),
        }
    }

    fn look_again(&mut self, pid: i32, expected: Option<&Expected>) -> io::Result<Actual> {
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        let stack = ptrace::stack_pointer(pid)?;
        self.remote.attach(pid);
        Ok(Actual {
            arguments: self.remote.started_with(stack, wire::is_relevant)?,
            program: self.identities.running(pid, expected.and_then(|expected| expected.foreign.as_ref()))?,
            folder: folder_of(pid).ok_or_else(gone)?,
        })
    }

    /// Whether a program that has started is what was allowed, or something else that is.
    fn is_as_expected(&mut self, pid: i32, expected: Option<&Expected>) -> bool {
        let Actual { program, arguments, folder } = match self.look_again(pid, expected) {
            Ok(actual) => actual,
            // Killed meanwhile, and so no longer where it stopped: it was not refused.
            Err(_)
                if ptrace::stack_pointer(pid)
                    .is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH)) =>
            {
                return false;
            }
            Err(_) => {
                self.refuse(
                    "deny.exec",
                    pid,
                    "a program that cannot be looked at",
                    "sandbox.unreadable",
                    "What cannot be looked at does not run.",
                );
                return false;
            }
        };
        if let Some(expected) = expected
            && expected.identity == program.identity
            && expected.copy_of == program.copy_of
            && expected.arguments == arguments
            && expected.folder == folder
        {
            return true;
        }
        let Arguments { argv, environment } = arguments;
        let loaded = self.loaded(pid, &folder, std::slice::from_ref(&program), &argv);
        let path = program.path.clone();
        let start = Start { path, environment, folder, chain: vec![program], argv, loaded };
        let verdict = self.judge_start(&start);
        if verdict.action() == Action::Allow {
            self.setting.recorder.record(
                "exec.changed",
                &format!("became something else than it asked for: {}", line(&start.argv)),
                &start.data(pid, None),
            );
            return true;
        }
        self.record_denial(pid, &start, &verdict);
        false
    }
}
