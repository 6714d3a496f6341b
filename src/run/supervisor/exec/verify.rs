//! Checks a program a second time, at its ptrace exec stop: after the exec and before its first instruction.
//!
//! The supervisor compares the stopped process with what it allowed ([`Expected`]). If they differ, it judges the
//! program that actually started. So the supervisor notices if an agent changed the program, its arguments or its
//! directory after the first check. None of them can change after the exec stop: an exec ends all other threads, and a
//! seccomp filter denies processes that share a directory (`clone` with `CLONE_FS`). The supervisor kills a process
//! that is not allowed or that it cannot inspect.

use std::io;
use std::path::{Path, PathBuf};

use super::executable_identity::{Executable, Identities, Identity};
use super::judge::ExecJudge;
use super::process_memory::Arguments;
use super::record_denied_exec;
use super::request::{ExecRequest, line};
use crate::judge::policy::Action;
use crate::run::supervisor::call_context::CallContext;
use crate::run::supervisor::process_info::cwd_of;
use crate::run::supervisor::shim::protocol;
use crate::run::transcript::{EventType, Prepared};
use crate::sys::ptrace;
use crate::sys::ptrace::Change;

/// Largest errno value. The kernel returns errors as `-MOST_ERRNO..0`.
const MOST_ERRNO: i64 = 4095;

/// The program that guard expects a thread to run after its exec.
#[derive(Debug)]
pub(crate) struct Expected {
    identity: Identity,
    copy_of: Option<Vec<u8>>,
    /// The expected program, if the agent cannot write to its file.
    foreign: Option<Executable>,
    arguments: Arguments,
    cwd: PathBuf,
    /// Whether to judge the exec again at the exec stop, because the verdict depends on the state of a repository.
    judge_again: bool,
    /// The event to record once the program has started.
    record: Prepared,
}

impl Expected {
    pub(crate) fn of(
        exec_request: &ExecRequest,
        identities: &Identities,
        judge_again: bool,
        record: Prepared,
    ) -> Self {
        let (identity, argv) = exec_request.expected_program();
        let program = exec_request.chain.last();
        let is_foreign = |program: &&Executable| !identities.is_agent_writable(&program.path);
        Self {
            identity,
            copy_of: program.and_then(|file| file.copy_of.clone()),
            foreign: program.filter(is_foreign).cloned(),
            arguments: Arguments { argv, environment: exec_request.environment.clone() },
            cwd: exec_request.cwd.clone(),
            judge_again,
            record,
        }
    }
}

/// The program that a thread actually runs after its exec.
struct Actual {
    program: Executable,
    arguments: Arguments,
    cwd: PathBuf,
}

/// Compares started programs with those that the supervisor allowed.
#[derive(Debug, Default)]
pub(crate) struct ExecVerifier {
    /// Threads in the middle of an allowed exec, by thread id, and the program that guard expects each to run.
    expected: Vec<(i32, Expected)>,
}

impl ExecVerifier {
    pub(crate) fn expect(&mut self, tid: i32, expected: Expected) {
        self.expected.push((tid, expected));
    }

    pub(crate) fn forget(&mut self, tid: i32) {
        self.expected.retain(|(known, _)| *known != tid);
    }

    /// Returns true if another thread of the same process is in the middle of an allowed exec.
    pub(crate) fn is_in_exec(&self, tid: i32) -> bool {
        let is_same_process =
            |other: i32| Path::new("/proc").join(format!("{tid}/task/{other}")).symlink_metadata().is_ok();
        self.expected.iter().any(|(other, _)| *other != tid && is_same_process(*other))
    }

    pub(crate) fn has_unfinished(&self) -> bool {
        !self.expected.is_empty()
    }

    pub(crate) fn handle_ptrace_events(&mut self, context: &mut CallContext, judge: &ExecJudge) {
        let only = |expected: &[(i32, Expected)]| match expected {
            [(tid, _)] => Some(*tid),
            _ => None,
        };
        while let Ok(Some((pid, change))) = ptrace::next_change(only(&self.expected)) {
            self.handle_ptrace_event(context, judge, pid, change);
        }
    }

    /// Handles a ptrace event: a traced thread has executed a program, has stopped because its exec failed, or has
    /// exited.
    fn handle_ptrace_event(
        &mut self,
        context: &mut CallContext,
        judge: &ExecJudge,
        pid: i32,
        change: Change,
    ) {
        match change {
            Change::Exec(former) => {
                let at = self.expected.iter().position(|(tid, _)| *tid == former);
                let expected = at.map(|at| self.expected.swap_remove(at).1);
                if is_as_expected(context, judge, pid, expected.as_ref()) {
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
                self.record_failed_exec(context, pid, errno.map(|result| -result as i32));
                let _ = ptrace::detach(pid, signal);
            }
            Change::Exit => self.record_failed_exec(context, pid, None),
        }
    }

    /// Records that an allowed exec did not happen: it failed with `errno`, or, if `errno` is `None`, the
    /// thread was killed before the exec completed.
    fn record_failed_exec(&mut self, context: &CallContext, tid: i32, errno: Option<i32>) {
        let Some(at) = self.expected.iter().position(|(known, _)| *known == tid) else { return };
        let (_, expected) = self.expected.swap_remove(at);
        let why = match errno {
            Some(errno) => io::Error::from_raw_os_error(errno).to_string(),
            None => "the process was killed".to_string(),
        };
        let mut data = expected.record.data();
        if let Some(data) = data.as_object_mut() {
            data.insert("errno".to_string(), errno.into());
        }
        let message = expected.record.prefixed(&format!("did not start ({why}): "));
        context.record(EventType::ExecFailed, &message, &data);
    }

    /// Records every exec that was still in progress when the run ended.
    pub(crate) fn record_unfinished(&mut self, context: &CallContext) {
        while let Some((tid, _)) = self.expected.first() {
            self.record_failed_exec(context, *tid, None);
        }
    }
}

fn read_started_program(
    context: &mut CallContext,
    pid: i32,
    expected: Option<&Expected>,
) -> io::Result<Actual> {
    let no_process = || io::Error::from_raw_os_error(libc::ESRCH);
    let stack = ptrace::stack_pointer(pid)?;
    Ok(Actual {
        arguments: context.memory_of(pid).started_with(stack, protocol::is_relevant)?,
        program: context
            .identities()
            .running_program(pid, expected.and_then(|known| known.foreign.as_ref()))?,
        cwd: cwd_of(pid).ok_or_else(no_process)?,
    })
}

/// Records that guard denies a started program because it cannot determine what runs.
fn record_unreadable(context: &mut CallContext, pid: i32) {
    context.record_denial_by_sandbox(
        EventType::DenyExec,
        pid,
        "a started program that guard cannot inspect",
        "sandbox.unreadable",
        "guard cannot read the memory or the file of the started program, so it killed the process.",
    );
}

/// Returns true if a started program is the one that the supervisor allowed, or a different one that the policy allows
/// too. Records the start or the denial. Returns false without a record if the process was killed meanwhile.
fn is_as_expected(
    context: &mut CallContext,
    judge: &ExecJudge,
    pid: i32,
    expected: Option<&Expected>,
) -> bool {
    let Actual { program, arguments, cwd } = match read_started_program(context, pid, expected) {
        Ok(actual) => actual,
        // The process was killed and has left its exec stop. This is not a denial.
        Err(_)
            if ptrace::stack_pointer(pid).is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH)) =>
        {
            return false;
        }
        Err(_) => {
            record_unreadable(context, pid);
            return false;
        }
    };
    let is_unchanged = expected.is_some_and(|expected| {
        expected.identity == program.identity
            && expected.copy_of == program.copy_of
            && expected.arguments == arguments
            && expected.cwd == cwd
    });
    if is_unchanged
        && let Some(expected) = expected
        && !expected.judge_again
    {
        context.record_prepared_start(EventType::Exec, &expected.record);
        return true;
    }
    let Arguments { argv, environment } = arguments;
    let path = program.path.clone();
    let mut exec_request =
        ExecRequest { path, environment, cwd, chain: vec![program], argv, loaded: Vec::new() };
    if exec_request.find_loaded_programs(context.identities(), pid).is_err() {
        record_unreadable(context, pid);
        return false;
    }
    let (verdict, _) = judge.judge(&exec_request);
    if verdict.action() == Action::Allow
        && is_unchanged
        && let Some(expected) = expected
    {
        context.record_prepared_start(EventType::Exec, &expected.record);
        return true;
    }
    if verdict.action() == Action::Allow {
        let requested =
            expected.map(|expected| expected.record.prefixed(", requested: ")).unwrap_or_default();
        context.record_start(
            EventType::ExecChanged,
            &format!(
                "the process started a different program than it requested: {}{requested}",
                line(&exec_request.argv)
            ),
            &exec_request.data(pid),
        );
        return true;
    }
    record_denied_exec(context, pid, &exec_request, &verdict);
    false
}
