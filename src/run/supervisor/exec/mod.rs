//! Handles `execve` and `execveat`: reads the request, judges it, and verifies the result.
//!
//! Input is a seccomp notification. Output is a reply, a transcript event and, for an allowed exec, an [`Expected`]
//! that [`verify`] compares with the started program. The supervisor denies a request that it cannot read or judge.

mod cache;
mod denial_notices;
pub(crate) mod executable_identity;
pub(crate) mod judge;
pub(crate) mod process_memory;
pub(crate) mod request;
mod verify;

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::call_context::CallContext;
use super::lazy_resources::LazyResources;
use super::process_info::cwd_of;
use super::prompt::{Asked, PromptQueue};
use super::question::{Choice, PendingExec, UserAnswer};
use super::shim::protocol;
use crate::judge::decide::Verdict;
use crate::judge::policy::Action;
use crate::run::transcript::{EventType, Prepared};
use crate::sys::ptrace;
use crate::sys::seccomp::{Notification, Reply};
use cache::Cache;
pub(crate) use denial_notices::DenialNotices;
use executable_identity::Identity;
use judge::ExecJudge;
use process_memory::Arguments;
use request::{ExecRequest, line};
use verify::{ExecVerifier, Expected};

const LONGEST_PATH: usize = 4096;

/// A path whose exec the supervisor always denies with EACCES. A process that gets a different result is not
/// supervised.
pub const CANARY_PROGRAM: &str = "/guard-canary";

/// A check from outside the sandbox that the sandbox works. The supervisor makes the check at the first exec and
/// remembers the result.
pub(crate) struct SandboxProof {
    prove: Option<Box<dyn FnOnce() -> bool + Send>>,
    holds: bool,
}

impl SandboxProof {
    /// Creates the proof from a check. If there is no check, the sandbox counts as working.
    pub(crate) fn new(prove: Option<Box<dyn FnOnce() -> bool + Send>>) -> Self {
        Self { holds: prove.is_none(), prove }
    }

    fn holds(&mut self) -> bool {
        if let Some(prove) = self.prove.take() {
            self.holds = prove();
        }
        self.holds
    }
}

pub(crate) struct ExecHandler {
    judge: ExecJudge,
    /// Whether to check every program a second time at its ptrace exec stop.
    verify: bool,
    verifier: ExecVerifier,
    cache: Cache,
    prompts: PromptQueue,
    lazy_resources: LazyResources,
    notices: DenialNotices,
    shim: Option<Identity>,
    sandbox_proof: SandboxProof,
    /// A counter that the supervisor increments at every exec, so that guard does not end a run as idle while it starts
    /// programs.
    activity: Arc<AtomicU64>,
}

impl ExecHandler {
    pub(crate) fn new(
        judge: ExecJudge,
        notices: DenialNotices,
        verify: bool,
        shim: Option<&Path>,
        sandbox_proof: SandboxProof,
        prompts: PromptQueue,
        lazy_resources: LazyResources,
    ) -> Self {
        Self {
            judge,
            verify,
            verifier: ExecVerifier::default(),
            cache: Cache::default(),
            prompts,
            lazy_resources,
            notices,
            shim: shim.and_then(executable_identity::identity_of),
            sandbox_proof,
            activity: Arc::default(),
        }
    }

    /// Makes the supervisor increment this counter at every exec.
    pub(crate) fn counting_execs(self, activity: Arc<AtomicU64>) -> Self {
        Self { activity, ..self }
    }

    /// Handles an exec notification. Returns `None` if the supervisor replies later, has already replied, or need not
    /// reply because the caller is gone.
    pub(crate) fn exec(&mut self, context: &mut CallContext, notification: &Notification) -> Option<Reply> {
        self.activity.fetch_add(1, Ordering::Relaxed);
        let exec_request = match self.read_exec_request(context, notification) {
            Ok(exec_request) => exec_request,
            // The caller was killed meanwhile. This is not a denial.
            Err(_) if !context.is_waiting(notification) => return None,
            // The exec cannot be judged. In most cases the kernel would fail with the same error, such as a missing
            // file.
            Err(error) => return Some(exec_error_reply(context, notification, &error)),
        };
        let span =
            tracing::debug_span!("exec", pid = notification.tid, program = %exec_request.program_path());
        let _span = span.entered();
        if !context.is_waiting(notification) {
            return None;
        }
        if !self.sandbox_proof.holds() {
            return Some(Reply::Error(libc::EPERM));
        }
        if self.lazy_resources.wait_if_needed(notification, &exec_request, context.background()) {
            return None;
        }
        if is_check(notification) {
            return Some(self.handle_exec_check(context, notification, &exec_request));
        }
        if exec_request.chain.first().is_some_and(|file| Some(file.identity) == self.shim) {
            // The shim will execute the real program, and the supervisor judges that exec.
            return self.allow_exec(context, notification, &exec_request);
        }
        let key = self.cache.key(&exec_request);
        if self.cache.contains(key) {
            return self.allow_exec(context, notification, &exec_request);
        }
        let (verdict, depends_on_repository) = self.judge.judge(&exec_request);
        match verdict.action() {
            // Do not cache this verdict: the same arguments may refer to another repository next time. The supervisor
            // judges this exec again at the exec stop.
            Action::Allow if depends_on_repository => {
                self.allow_exec_and_verify(context, notification, &exec_request, true)
            }
            Action::Allow => {
                self.cache.insert(key);
                self.allow_exec(context, notification, &exec_request)
            }
            Action::Deny => Some(self.deny_exec(context, notification, &exec_request, &verdict)),
            Action::Ask if self.prompts.is_always_allowed(&verdict) => {
                self.allow_exec(context, notification, &exec_request)
            }
            Action::Ask if self.prompts.is_last_denial(notification.tid, &exec_request.argv) => {
                Some(self.deny_exec(context, notification, &exec_request, &verdict))
            }
            Action::Ask => {
                self.ask(context, PendingExec { notification: *notification, exec_request, verdict })
            }
        }
    }

    /// Handles `AT_EXECVE_CHECK`, with which a program asks whether it could execute a file. No program starts, so the
    /// supervisor records only a denial. It denies an `ask` verdict without asking the user.
    fn handle_exec_check(
        &mut self,
        context: &mut CallContext,
        notification: &Notification,
        exec_request: &ExecRequest,
    ) -> Reply {
        let (verdict, _) = self.judge.judge(exec_request);
        match verdict.action() {
            // Safe to continue: the flag is in a register of the blocked caller, so the check cannot turn into an
            // exec.
            Action::Allow => Reply::Continue,
            Action::Ask | Action::Deny => self.deny_exec(context, notification, exec_request, &verdict),
        }
    }

    fn read_exec_request(
        &self,
        context: &mut CallContext,
        notification: &Notification,
    ) -> io::Result<ExecRequest> {
        let tid = notification.tid;
        let [a, b, c, d, e, _] = notification.arguments;
        let is_at = i64::from(notification.number) == libc::SYS_execveat;
        let (path, argv, environment) = if is_at { (b, c, d) } else { (a, b, c) };
        self.judge.set_root_from(tid);
        let limit = self.judge.longest_command();
        let memory = context.memory_of(tid);
        // Fetch the pages at all three addresses in one system call, then the strings that the arrays point to.
        memory.fetch([path, argv, environment].into_iter().filter(|&address| address != 0))?;
        let path = memory.string(path, LONGEST_PATH)?;
        let Arguments { argv, environment } =
            memory.arguments(argv, environment, limit, protocol::is_relevant)?;
        // In debug builds, a test can make the supervisor panic at the program that this variable names.
        #[cfg(debug_assertions)]
        if std::env::var_os("GUARD_TEST_PANIC_AT").is_some_and(|program| program.as_encoded_bytes() == path) {
            panic!("the test asks for it");
        }
        if path == CANARY_PROGRAM.as_bytes() {
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        let cwd = cwd_of(tid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        let identities = context.identities();
        let chain = if is_at && path.is_empty() && e as i32 & libc::AT_EMPTY_PATH != 0 {
            identities.resolve_exec_descriptor(tid, &cwd, a as i32)?
        } else if is_at && a as i32 != libc::AT_FDCWD && path.first() != Some(&b'/') {
            let base = std::fs::read_link(format!("/proc/{tid}/fd/{}", a as i32))?;
            identities.resolve_exec(tid, &base, &path)?
        } else {
            identities.resolve_exec(tid, &cwd, &path)?
        };
        let mut exec_request = ExecRequest { path, argv, environment, cwd, chain, loaded: Vec::new() };
        exec_request.find_loaded_programs(identities, tid)?;
        Ok(exec_request)
    }

    /// Allows an exec. If guard verifies execs, also traces the thread until its exec stop. Returns `None` if the
    /// supervisor has already replied or the caller is gone.
    fn allow_exec(
        &mut self,
        context: &mut CallContext,
        notification: &Notification,
        exec_request: &ExecRequest,
    ) -> Option<Reply> {
        self.allow_exec_and_verify(context, notification, exec_request, false)
    }

    /// Allows an exec as [`ExecHandler::allow_exec`] does. With `judge_again`, guard judges the exec again at its exec
    /// stop even if nothing has changed. Denies the exec if guard cannot trace the thread.
    fn allow_exec_and_verify(
        &mut self,
        context: &mut CallContext,
        notification: &Notification,
        exec_request: &ExecRequest,
        judge_again: bool,
    ) -> Option<Reply> {
        tracing::debug!("allowed");
        if self.verify {
            // The kernel lets only one thread of a process execute a program at a time. Tracing a second thread could
            // block the supervisor thread, while the first thread waits for the supervisor.
            if self.verifier.is_in_exec(notification.tid) {
                context.record_denial_by_sandbox(
                    EventType::DenyExec,
                    notification.tid,
                    "exec that guard cannot verify",
                    "sandbox.unverified",
                    "Another thread of the process is already starting a program, so guard cannot verify this one.",
                );
                return Some(Reply::Error(libc::EAGAIN));
            }
            if ptrace::watch_exec(notification.tid).is_err() {
                if !context.is_waiting(notification) {
                    return None;
                }
                context.record_denial_by_sandbox(
                    EventType::DenyExec,
                    notification.tid,
                    "exec that guard cannot verify",
                    "sandbox.unverified",
                    "guard cannot trace the process (ptrace), so it cannot verify which program starts.",
                );
                return Some(Reply::Error(libc::EACCES));
            }
            self.verifier.forget(notification.tid);
            // The thread stops when the exec succeeds or fails, and continues only after the supervisor thread
            // has checked it. Prepare the record now; write it once the outcome is known.
            context.reply(notification.id, Reply::Continue);
            let record = Prepared::new(exec_request.line(), &exec_request.data(notification.tid));
            let expected = Expected::of(exec_request, context.identities(), judge_again, record);
            self.verifier.expect(notification.tid, expected);
            return None;
        }
        // Without the exec stop guard does not learn whether the program starts, so record only that guard allowed the
        // exec.
        context.record_start(
            EventType::ExecAllowed,
            &line(&exec_request.argv),
            &exec_request.data(notification.tid),
        );
        Some(Reply::Continue)
    }

    fn deny_exec(
        &mut self,
        context: &mut CallContext,
        notification: &Notification,
        exec_request: &ExecRequest,
        verdict: &Verdict,
    ) -> Reply {
        let tid = notification.tid;
        let line = verdict.refusal_line();
        if self.notices.continues_search(tid, exec_request, &line) {
            return Reply::Error(libc::EACCES);
        }
        record_denied_exec(context, tid, exec_request, verdict);
        // Write the reason before the call returns, so that it precedes the message that the process prints about the
        // error.
        if !self.is_shim_asking_for_reason(tid, exec_request)
            && let Ok(thread) = context.thread_pidfd(notification)
        {
            self.notices.write(tid, &line, thread.as_fd(), || context.is_waiting(notification));
        }
        Reply::Error(libc::EACCES)
    }

    /// Returns true if a thread runs a shim that will itself ask why the exec was denied, and will get a denial with a
    /// reason.
    fn is_shim_asking_for_reason(&self, tid: i32, exec_request: &ExecRequest) -> bool {
        let is_shim =
            || executable_identity::identity_of(Path::new(&format!("/proc/{tid}/exe"))) == self.shim;
        self.shim.is_some() && is_shim() && self.judge.denies_to_shim(exec_request)
    }

    fn ask(&mut self, context: &mut CallContext, pending: PendingExec) -> Option<Reply> {
        match self.prompts.ask(pending, context.background().clone()) {
            Asked::Waits => None,
            Asked::CannotAsk(pending) => {
                let PendingExec { notification, exec_request, verdict } = *pending;
                Some(self.deny_exec(context, &notification, &exec_request, &verdict))
            }
        }
    }

    /// Handles the user's answer about an exec, and then the execs that had to wait while the question was open.
    pub(crate) fn handle_user_answer(&mut self, context: &mut CallContext, answer: UserAnswer) {
        let (PendingExec { notification, exec_request, verdict }, choice) = self.prompts.close(answer);
        let answer = match choice {
            Choice::Once => "once",
            Choice::Always => "always",
            Choice::Save => "save",
            Choice::Deny => "no",
        };
        let data = serde_json::json!({
            "answer": answer, "rule": verdict.cause.rule, "allow_with": verdict.allow_with,
        });
        let message = format!("the user answered {answer}: {}", line(&exec_request.argv));
        context.record(EventType::Answer, &message, &data);
        let reply = match choice {
            Choice::Deny => Some(self.deny_exec(context, &notification, &exec_request, &verdict)),
            Choice::Once | Choice::Always | Choice::Save => {
                self.allow_exec(context, &notification, &exec_request)
            }
        };
        if let Some(reply) = reply {
            context.reply(notification.id, reply);
        }
        for waiting in self.prompts.take_waiting() {
            let id = waiting.notification.id;
            let reply = if self.prompts.is_always_allowed(&waiting.verdict) {
                self.allow_exec(context, &waiting.notification, &waiting.exec_request)
            } else {
                self.ask(context, waiting)
            };
            if let Some(reply) = reply {
                context.reply(id, reply);
            }
        }
    }

    /// Marks a lazy resource (which guard creates when a program first needs it) as ready. Returns all execs that wait
    /// for any resource; the caller must handle them again.
    pub(crate) fn set_resource_ready(&mut self, index: usize) -> Vec<Notification> {
        self.lazy_resources.set_ready(index)
    }

    pub(crate) fn handle_ptrace_events(&mut self, context: &mut CallContext) {
        self.verifier.handle_ptrace_events(context, &self.judge);
    }

    /// Returns true if any thread is in the middle of an allowed exec.
    pub(crate) fn has_unfinished(&self) -> bool {
        self.verifier.has_unfinished()
    }

    /// Records every exec that was still in progress when the run ended.
    pub(crate) fn record_unfinished(&mut self, context: &CallContext) {
        self.verifier.record_unfinished(context);
    }
}

fn exec_error_reply(context: &mut CallContext, notification: &Notification, error: &io::Error) -> Reply {
    let errno = error.raw_os_error().unwrap_or(libc::EACCES);
    // If guard cannot read the process itself, it cannot judge the request. The same holds for a path through links of
    // `/proc` (ELOOP, EXDEV), whose meaning depends on the process that follows them.
    if matches!(errno, libc::EPERM | libc::ESRCH | libc::EFAULT | libc::ELOOP | libc::EXDEV) {
        context.record_denial_by_sandbox(
            EventType::DenyExec,
            notification.tid,
            "exec with unreadable arguments",
            "sandbox.unreadable",
            "guard cannot read the arguments or the path of this exec, so it cannot judge the program.",
        );
        return Reply::Error(libc::EACCES);
    }
    Reply::Error(errno)
}

/// Counts and records an exec that the policy denies.
fn record_denied_exec(context: &mut CallContext, pid: i32, exec_request: &ExecRequest, verdict: &Verdict) {
    tracing::debug!(rule = %verdict.cause.rule, "refused");
    let data = exec_request.denial_data(pid, verdict);
    context.record_denial(EventType::DenyExec, &verdict.refusal_line(), &data);
}

/// Returns true if an exec is only a check (`AT_EXECVE_CHECK`), which starts no program.
fn is_check(notification: &Notification) -> bool {
    /// Linux 6.14 added this flag; older kernels reject it.
    const AT_EXECVE_CHECK: i32 = 0x10000;
    let [.., flags, _] = notification.arguments;
    i64::from(notification.number) == libc::SYS_execveat && flags as i32 & AT_EXECVE_CHECK != 0
}
