//! Handles `execve` and `execveat`: reads the request, judges it, and verifies the result.
//!
//! Input is a seccomp notification. Output is a reply, a transcript event and, for an allowed exec, an [`Expected`]
//! that [`verify`] compares with the started program. The supervisor denies a request that it cannot read or judge.

mod cache;
pub(crate) mod executable_identity;
pub(crate) mod process_memory;
mod request;
pub(crate) mod stderr_notice;
pub(crate) mod verify;

use std::collections::HashSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::SupervisorConfig;
use super::event_loop::{
    Ask, AsyncReply, AsyncResult, CANARY_PROGRAM, Choice, LazyResource, Supervisor, cwd_of,
};
use super::shim::protocol;
use super::shim::protocol::{Answer, Question};
use crate::command::{Access, Analysis, Context, Cwd, Request};
use crate::decide::Verdict;
use crate::policy::Action;
use crate::sys::ptrace;
use crate::sys::seccomp::{Notification, Reply};
use crate::transcript::{EventType, Prepared};
pub(crate) use cache::Cache;
use executable_identity::{Executable, is_loader};
use process_memory::Arguments;
use request::{ExecRequest, line, text};
use verify::Expected;

const LONGEST_PATH: usize = 4096;

/// How many leading arguments may name the program that really runs: `node …/npm-cli.js`, `python3 -m pip`.
const MAX_NAMING_ARGUMENTS: usize = 3;

/// An exec that waits for the user's answer.
pub(crate) struct Pending {
    notification: Notification,
    exec_request: ExecRequest,
    verdict: Verdict,
}

/// The environments that programs may see. If a variable occurs twice, most programs use its first value, others the
/// last.
fn possible_environments(environment: &[(Vec<u8>, Vec<u8>)]) -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = HashSet::new();
    let has_duplicates = !environment.iter().all(|(name, _)| names.insert(name));
    let mut readings = vec![environment.to_vec()];
    if has_duplicates {
        readings.push(environment.iter().rev().cloned().collect());
    }
    readings
}

impl Supervisor {
    /// Handles an exec notification. Returns `None` if the reply follows later or is no longer needed.
    pub(crate) fn exec(&mut self, notification: &Notification) -> Option<Reply> {
        self.note_activity();
        let exec_request = match self.read_exec_request(notification) {
            Ok(exec_request) => exec_request,
            // The caller was killed meanwhile. This is not a denial.
            Err(_) if !self.is_waiting(notification) => return None,
            // The kernel would fail the same way: no such file, a directory, a symlink loop, too many arguments.
            Err(error) => return Some(self.exec_error_reply(notification, &error)),
        };
        let span =
            tracing::debug_span!("exec", pid = notification.tid, program = %exec_request.program_path());
        let _span = span.entered();
        if !self.is_waiting(notification) {
            return None;
        }
        if !self.sandbox_holds() {
            return Some(Reply::Error(libc::EPERM));
        }
        if self.must_wait_for_resource(&exec_request) {
            self.execs_waiting_for_resource.push(*notification);
            return None;
        }
        if is_check(notification) {
            return Some(self.handle_exec_check(notification, &exec_request));
        }
        if exec_request.chain.first().is_some_and(|file| Some(file.identity) == self.shim) {
            // The shim will exec the real program, and that exec is judged.
            return self.allow_exec(notification, &exec_request);
        }
        let key = self.cache.key(&exec_request);
        if self.cache.contains(key) {
            return self.allow_exec(notification, &exec_request);
        }
        let (verdict, depends_on_repository) = self.judge_exec(&exec_request);
        match verdict.action() {
            // Not cached: the same arguments may refer to another repository next time. It is also verified at the
            // exec stop.
            Action::Allow if depends_on_repository => {
                self.allow_exec_and_verify(notification, &exec_request, true)
            }
            Action::Allow => {
                self.cache.insert(key);
                self.allow_exec(notification, &exec_request)
            }
            Action::Deny => Some(self.deny_exec(notification, &exec_request, &verdict)),
            Action::Ask if self.always_allowed_rules.contains(&verdict.cause.rule) => {
                self.allow_exec(notification, &exec_request)
            }
            // After a denial a shell tries the next PATH directory: do not ask the user again.
            Action::Ask
                if self
                    .last_user_denial
                    .as_ref()
                    .is_some_and(|(tid, argv)| *tid == notification.tid && *argv == exec_request.argv) =>
            {
                Some(self.deny_exec(notification, &exec_request, &verdict))
            }
            Action::Ask => self.ask(Pending { notification: *notification, exec_request, verdict }),
        }
    }

    /// Handles `AT_EXECVE_CHECK`, with which a program asks whether it could execute a file. Nothing starts, so no exec
    /// is recorded. An `ask` verdict is a denial here.
    fn handle_exec_check(&mut self, notification: &Notification, exec_request: &ExecRequest) -> Reply {
        let (verdict, _) = self.judge_exec(exec_request);
        match verdict.action() {
            // Safe to continue: the flag is in a register of the blocked caller, so the check cannot turn into an
            // exec.
            Action::Allow => Reply::Continue,
            Action::Ask | Action::Deny => self.deny_exec(notification, exec_request, &verdict),
        }
    }

    /// Whether an exec must wait for a lazy resource that is not ready. Starts the creation of a resource at the first
    /// exec that needs it.
    fn must_wait_for_resource(&mut self, exec_request: &ExecRequest) -> bool {
        if self.config.lazy_resources.is_empty() {
            return false;
        }
        let files = exec_request.chain.iter().map(|file| file.path.as_slice());
        let words = exec_request.argv.iter().take(MAX_NAMING_ARGUMENTS).map(Vec::as_slice);
        let names = files.chain(words).map(|path| path.rsplit(|&byte| byte == b'/').next().unwrap_or(path));
        let is_used = |resource: &LazyResource| {
            names.clone().any(|name| resource.users.iter().any(|user| name.starts_with(user.as_bytes())))
        };
        let used: Vec<usize> = (0..self.config.lazy_resources.len())
            .filter(|&index| is_used(&self.config.lazy_resources[index]))
            .collect();
        for &index in &used {
            let Some(make) = self.config.lazy_resources[index].make.take() else { continue };
            let (sender, wake) = self.async_reply_sender();
            let work = move || {
                make();
                let _ = sender.send(AsyncReply { id: 0, result: AsyncResult::ResourceReady(index) });
                let _ = wake.write(1);
            };
            // If no thread can be created, the resource is never made and programs run without it.
            if std::thread::Builder::new().name("caches".to_string()).spawn(work).is_ok() {
                self.resources_in_progress.push(index);
            }
        }
        used.iter().any(|index| self.resources_in_progress.contains(index))
    }

    fn exec_error_reply(&mut self, notification: &Notification, error: &io::Error) -> Reply {
        let errno = error.raw_os_error().unwrap_or(libc::EACCES);
        // If the process itself cannot be read, the request cannot be judged. The same holds for links through
        // `/proc` (ELOOP, EXDEV), whose meaning depends on the process that follows them.
        if matches!(errno, libc::EPERM | libc::ESRCH | libc::EFAULT | libc::ELOOP | libc::EXDEV) {
            self.record_denial_by_sandbox(
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

    fn read_exec_request(&mut self, notification: &Notification) -> io::Result<ExecRequest> {
        let tid = notification.tid;
        let [a, b, c, d, e, _] = notification.arguments;
        let is_at = i64::from(notification.number) == libc::SYS_execveat;
        let (path, argv, environment) = if is_at { (b, c, d) } else { (a, b, c) };
        self.process_memory.attach(tid);
        self.config.repositories.set_root_from(tid);
        let limit = self.config.policy.command_limits().bytes;
        // Fetch all three pages in one call, then what they point to.
        self.process_memory.fetch([path, argv, environment].into_iter().filter(|&address| address != 0))?;
        let path = self.process_memory.string(path, LONGEST_PATH)?;
        let Arguments { argv, environment } =
            self.process_memory.arguments(argv, environment, limit, protocol::is_relevant)?;
        // For the test of what happens then; not in a released guard.
        #[cfg(debug_assertions)]
        if std::env::var_os("GUARD_TEST_PANIC_AT").is_some_and(|program| program.as_bytes() == path) {
            panic!("the test asks for it");
        }
        if path == CANARY_PROGRAM.as_bytes() {
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        let cwd = cwd_of(tid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        let chain = if is_at && path.is_empty() && e as i32 & libc::AT_EMPTY_PATH != 0 {
            self.identities.resolve_exec_descriptor(tid, &cwd, a as i32)?
        } else if is_at && a as i32 != libc::AT_FDCWD && path.first() != Some(&b'/') {
            let base = std::fs::read_link(format!("/proc/{tid}/fd/{}", a as i32))?;
            self.identities.resolve_exec(tid, &base, &path)?
        } else {
            self.identities.resolve_exec(tid, &cwd, &path)?
        };
        let loaded = self.loaded(tid, &cwd, &chain, &argv);
        Ok(ExecRequest { path, argv, environment, cwd, chain, loaded })
    }

    /// The dynamic loader runs any file it is given. If the program is the loader, returns which of its arguments are
    /// copies of known programs, as (index, path of the original).
    pub(crate) fn loaded(
        &mut self,
        tid: i32,
        cwd: &Path,
        chain: &[Executable],
        argv: &[Vec<u8>],
    ) -> Vec<(usize, Vec<u8>)> {
        /// The loader's options precede the program, so only this many arguments are checked.
        const MOST_WORDS: usize = 32;
        if !matches!(chain, [file] if is_loader(file.judged_path())) {
            return Vec::new();
        }
        let words = argv.iter().enumerate().skip(1).take(MOST_WORDS);
        words.filter_map(|(at, word)| Some((at, self.identities.original_of_copy(tid, cwd, word)?))).collect()
    }

    /// Judges an exec. The flag in the result says whether the verdict depends on the current state of a repository.
    pub(crate) fn judge_exec(&self, exec_request: &ExecRequest) -> (Verdict, bool) {
        let mut worst: Option<Verdict> = None;
        let mut depends_on_repository = false;
        for (argv, resolved) in exec_request.readings() {
            for environment in possible_environments(&exec_request.environment) {
                let context = Context {
                    cwd: Cwd::from_absolute(exec_request.cwd.as_os_str().as_bytes()),
                    environment,
                    resolved: Some(resolved.clone()),
                    ..self.config.context.clone()
                };
                let request = Request::Argv(argv.clone());
                let judged = self.config.repositories.judge(&self.config.policy, &request, &context);
                depends_on_repository |= judged.depends_on_repository;
                let verdict = self.with_temporary_directory_hint(judged.verdict, &judged.analysis);
                if worst.as_ref().is_none_or(|known| verdict.action() > known.action()) {
                    worst = Some(verdict);
                }
            }
        }
        (worst.unwrap_or_else(|| Verdict::invalid_request("no program")), depends_on_repository)
    }

    /// A run without a mount namespace cannot write to `/tmp`. Replaces the verdict of a command that would try by a
    /// denial with a hint.
    fn with_temporary_directory_hint(&self, verdict: Verdict, analysis: &Analysis) -> Verdict {
        if self.config.has_mount_namespace || verdict.action() != Action::Allow {
            return verdict;
        }
        let usual = [Path::new("/tmp"), Path::new("/var/tmp"), Path::new("/dev/shm")];
        let is_foreign = |path: &Path| {
            usual.iter().any(|place| path.starts_with(place))
                && !super::event_loop::is_below(path, &self.config.writable)
        };
        let writes = analysis.intents.iter().enumerate().find_map(|(index, intent)| {
            let path = intent.paths.iter().find(|used| {
                used.access == Access::Write && is_foreign(Path::new(std::ffi::OsStr::from_bytes(&used.path)))
            })?;
            Some((index, path))
        });
        match writes {
            None => verdict,
            Some((index, path)) => Verdict::denied_shared_tmp_write(analysis, index, &text(&path.path)),
        }
    }

    /// Allows an exec, and traces it until its exec stop if execs are verified.
    fn allow_exec(&mut self, notification: &Notification, exec_request: &ExecRequest) -> Option<Reply> {
        self.allow_exec_and_verify(notification, exec_request, false)
    }

    /// Like [`Self::allow_exec`]. With `judge_again` the exec is judged again at the exec stop even if nothing changed.
    fn allow_exec_and_verify(
        &mut self,
        notification: &Notification,
        exec_request: &ExecRequest,
        judge_again: bool,
    ) -> Option<Reply> {
        tracing::debug!("allowed");
        if self.config.verify {
            if ptrace::watch_exec(notification.tid).is_err() {
                if !self.is_waiting(notification) {
                    return None;
                }
                self.record_denial_by_sandbox(
                    EventType::DenyExec,
                    notification.tid,
                    "exec that cannot be verified",
                    "sandbox.unverified",
                    "guard cannot trace the process (ptrace), so it cannot verify which program starts.",
                );
                return Some(Reply::Error(libc::EACCES));
            }
            self.expected.retain(|(tid, _)| *tid != notification.tid);
            // The thread stops when the exec succeeds or fails, and continues only after this thread has checked it.
            // Prepare the record now; write it once the outcome is known.
            self.reply(notification.id, Reply::Continue);
            let record = Prepared::new(exec_request.line(), &exec_request.data(notification.tid));
            self.expected
                .push((notification.tid, Expected::of(exec_request, &self.identities, judge_again, record)));
            return None;
        }
        self.counts.starts += 1;
        // Without the exec stop it is unknown whether the program really starts.
        self.config.recorder.record(
            EventType::ExecAllowed,
            &line(&exec_request.argv),
            &exec_request.data(notification.tid),
        );
        Some(Reply::Continue)
    }

    fn deny_exec(
        &mut self,
        notification: &Notification,
        exec_request: &ExecRequest,
        verdict: &Verdict,
    ) -> Reply {
        self.record_denial(notification.tid, exec_request, verdict);
        // Write the reason to stderr before returning the errno. Write it once, although a shell tries several PATH
        // directories.
        let notice = (notification.tid, verdict.refusal_line());
        if self.last_notice.as_ref() != Some(&notice)
            && !self.is_shim_asking_for_reason(notification.tid, exec_request)
        {
            if let Ok(thread) = self.thread_pidfd(notification) {
                stderr_notice::write_notice(&thread, &notice.1);
            }
            self.last_notice = Some(notice);
        }
        Reply::Error(libc::EACCES)
    }

    /// Whether a thread runs a shim, which will ask for the reason itself, and whether the answer will be a denial.
    fn is_shim_asking_for_reason(&self, tid: i32, exec_request: &ExecRequest) -> bool {
        let is_shim =
            || executable_identity::identity_of(Path::new(&format!("/proc/{tid}/exe"))) == self.shim;
        if self.shim.is_none() || !is_shim() {
            return false;
        }
        let question = Question {
            argv: exec_request.argv.clone(),
            directory: exec_request.cwd.as_os_str().as_bytes().to_vec(),
            environment: exec_request.environment.clone(),
        };
        let SupervisorConfig { policy, context, repositories, .. } = &self.config;
        matches!(super::answer(policy, context, Some(repositories), &question), Answer::Deny(_))
    }

    pub(crate) fn record_denial(&mut self, pid: i32, exec_request: &ExecRequest, verdict: &Verdict) {
        tracing::debug!(rule = %verdict.cause.rule, "refused");
        self.counts.refusals += 1;
        let data = exec_request.denial_data(pid, verdict);
        self.config.recorder.record(EventType::DenyExec, &verdict.refusal_line(), &data);
    }

    /// Asks the user on a separate thread, one question at a time.
    fn ask(&mut self, pending: Pending) -> Option<Reply> {
        let Some(mut asker) = self.config.asker.take() else {
            if self.is_asking {
                self.execs_waiting_for_user.push(pending);
                return None;
            }
            let Pending { notification, exec_request, verdict } = pending;
            return Some(self.deny_exec(&notification, &exec_request, &verdict));
        };
        self.is_asking = true;
        let (sender, wake) = self.async_reply_sender();
        let work = move || {
            let choice = asker.ask(&pending.verdict);
            let id = pending.notification.id;
            let result = AsyncResult::UserAnswered(Box::new(pending), choice, Some(asker));
            let _ = sender.send(AsyncReply { id, result });
            let _ = wake.write(1);
        };
        if std::thread::Builder::new().name("ask".to_string()).spawn(work).is_err() {
            self.is_asking = false;
        }
        None
    }

    /// Handles the user's answer about an exec, and then the execs that waited for it.
    pub(crate) fn handle_user_answer(
        &mut self,
        pending: Pending,
        choice: Choice,
        asker: Option<Box<dyn Ask>>,
    ) {
        self.config.asker = asker;
        self.is_asking = false;
        let Pending { notification, exec_request, verdict } = pending;
        let answer = match choice {
            Choice::Once => "once",
            Choice::Always => "always",
            Choice::Save => "save",
            Choice::Deny => "no",
        };
        let data = serde_json::json!({
            "answer": answer, "rule": verdict.cause.rule, "allow_with": verdict.allow_with,
        });
        self.config.recorder.record(
            EventType::Answer,
            &format!("the user answered {answer}: {}", line(&exec_request.argv)),
            &data,
        );
        let reply = match choice {
            Choice::Deny => {
                self.last_user_denial = Some((notification.tid, exec_request.argv.clone()));
                Some(self.deny_exec(&notification, &exec_request, &verdict))
            }
            Choice::Always | Choice::Save => {
                self.always_allowed_rules.push(verdict.cause.rule.clone());
                self.allow_exec(&notification, &exec_request)
            }
            Choice::Once => self.allow_exec(&notification, &exec_request),
        };
        if let Some(reply) = reply {
            self.reply(notification.id, reply);
        }
        for waiting in std::mem::take(&mut self.execs_waiting_for_user) {
            let id = waiting.notification.id;
            let reply = if self.always_allowed_rules.contains(&waiting.verdict.cause.rule) {
                self.allow_exec(&waiting.notification, &waiting.exec_request)
            } else {
                self.ask(waiting)
            };
            if let Some(reply) = reply {
                self.reply(id, reply);
            }
        }
    }
}

/// Whether an exec is an `AT_EXECVE_CHECK`, which starts nothing.
fn is_check(notification: &Notification) -> bool {
    /// Added in Linux 6.14; older kernels reject it.
    const AT_EXECVE_CHECK: i32 = 0x10000;
    let [.., flags, _] = notification.arguments;
    i64::from(notification.number) == libc::SYS_execveat && flags as i32 & AT_EXECVE_CHECK != 0
}
