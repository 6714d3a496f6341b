//! Handles `execve` and `execveat`: reads the request, judges it, and verifies the result.
//!
//! In goes a seccomp notification. Out goes a reply, a transcript event, and for an allowed exec an [`Expected`] that
//! [`verify`] compares with the started program. A request that cannot be read or judged is denied.
pub(crate) mod executable_identity;
pub(crate) mod process_memory;
pub(crate) mod stderr_notice;
pub(crate) mod verify;

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::SupervisorConfig;
use super::event_loop::{
    Ask, AsyncReply, AsyncResult, CANARY_PROGRAM, Choice, LazyResource, Supervisor, folder_of, parent_of,
};
use super::shim::protocol;
use super::shim::protocol::{Answer, Question};
use crate::command::{Access, Analysis, Context, Cwd, Request};
use crate::decide::Verdict;
use crate::policy::Action;
use crate::sys::ptrace;
use crate::sys::seccomp::{Notification, Reply};
use crate::transcript::{EventType, Prepared};
use executable_identity::{Executable, Identity, Kind, is_loader};
use process_memory::Arguments;
use verify::Expected;

const LONGEST_PATH: usize = 4096;

/// How many leading arguments may name a program: `node …/npm-cli.js`, `python3 -m pip`.
const WORDS_WITH_NAMES: usize = 3;

/// An exec request as the process made it.
#[derive(Debug, Clone)]
pub(crate) struct ExecRequest {
    /// The path as the process passed it.
    pub(crate) path: Vec<u8>,
    pub(crate) argv: Vec<Vec<u8>>,
    pub(crate) environment: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) folder: PathBuf,
    /// The file, followed by its interpreters.
    pub(crate) chain: Vec<Executable>,
    /// If the program is the dynamic loader: arguments that are copies of known programs (index, original path).
    pub(crate) loaded: Vec<(usize, Vec<u8>)>,
}

/// An exec that waits for the user's answer.
pub(crate) struct Pending {
    notification: Notification,
    start: ExecRequest,
    verdict: Verdict,
}

/// Execs allowed before. The same files, arguments, directory and environment need no second judgement.
#[derive(Default)]
pub(crate) struct Cache {
    allowed: HashSet<u64>,
    keys: RandomState,
}

/// The cache is cleared when it reaches this size.
const MOST_CACHED: usize = 50_000;

impl Cache {
    fn key(&self, start: &ExecRequest) -> u64 {
        let mut hasher = self.keys.build_hasher();
        start.path.hash(&mut hasher);
        start.argv.hash(&mut hasher);
        start.environment.hash(&mut hasher);
        start.folder.hash(&mut hasher);
        for file in &start.chain {
            file.judged_path().hash(&mut hasher);
            file.kind.hash(&mut hasher);
        }
        start.loaded.hash(&mut hasher);
        hasher.finish()
    }
}

#[derive(Serialize)]
pub(crate) struct ExecData<'a> {
    pid: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<i32>,
    path: Cow<'a, str>,
    argv: Vec<Cow<'a, str>>,
    /// The git verb, if it may lie in a part of the arguments that is not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    git: Option<String>,
    folder: Cow<'a, str>,
    /// The denied command.
    #[serde(skip_serializing_if = "Option::is_none")]
    what: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interpreter: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    copy_of: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instead: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ancestors: Vec<String>,
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

impl ExecRequest {
    /// The path of the executed file.
    fn program_path(&self) -> Cow<'_, str> {
        text(self.chain.first().map_or(&self.path, |file| &file.path))
    }

    pub(crate) fn data(&self, pid: i32, verdict: Option<&Verdict>) -> ExecData<'_> {
        ExecData {
            pid,
            parent: parent_of(pid),
            path: self.program_path(),
            argv: super::recorded_words(&self.argv, super::RECORDED),
            git: self.hidden_git_verb(),
            what: None,
            folder: text(self.folder.as_os_str().as_bytes()),
            interpreter: self.chain.get(1).map(|file| text(&file.path)),
            copy_of: self.chain.iter().find_map(|file| file.copy_of.as_deref()).map(text),
            rule: None,
            reason: None,
            instead: None,
            ancestors: verdict.map(|_| ancestors(pid)).unwrap_or_default(),
        }
    }

    /// The verb of a git command whose arguments are too long to be recorded in full.
    fn hidden_git_verb(&self) -> Option<String> {
        if super::length_of(&self.argv) <= super::RECORDED {
            return None;
        }
        let (argv, resolved) = self.readings().into_iter().last()?;
        let context = Context {
            folder: Cwd::from_absolute(self.folder.as_os_str().as_bytes()),
            environment: self.environment.clone(),
            resolved: Some(resolved),
            ..Context::default()
        };
        let analysis = crate::command::analyze(&Request::Argv(argv), &context);
        Some(analysis.intents.first()?.git.as_ref()?.name())
    }

    /// The command as one line for the transcript.
    fn line(&self) -> String {
        match self.hidden_git_verb() {
            Some(verb) => format!("git {verb}: {}", line(&self.argv)),
            None => line(&self.argv),
        }
    }

    /// What the kernel executes: the last interpreter's file, with the arguments that `#!` lines add.
    pub(crate) fn becomes(&self) -> (Identity, Vec<Vec<u8>>) {
        let mut argv = if self.argv.is_empty() { vec![Vec::new()] } else { self.argv.clone() };
        let mut name = self.path.clone();
        let mut identity = Identity { device: 0, inode: 0 };
        for file in &self.chain {
            identity = file.identity;
            if let Kind::Script(interpreter, argument) = &file.kind {
                let mut words = vec![interpreter.clone()];
                words.extend(argument.clone());
                words.push(name.clone());
                words.extend(argv.drain(..).skip(1));
                argv = words;
                name.clone_from(interpreter);
            }
        }
        (identity, argv)
    }

    /// Every command this exec can be read as: the file as called, and each interpreter with its script. All must be
    /// allowed.
    fn readings(&self) -> Vec<(Vec<Vec<u8>>, Vec<u8>)> {
        let mut readings = Vec::new();
        let mut argv = if self.argv.is_empty() { vec![self.path.clone()] } else { self.argv.clone() };
        let mut name = self.path.clone();
        readings.extend(self.loaded.iter().map(|(at, program)| (argv[*at..].to_vec(), program.clone())));
        for file in &self.chain {
            if argv.first().is_none_or(Vec::is_empty) {
                argv[0].clone_from(&name);
            }
            match &file.kind {
                Kind::Program => readings.push((argv.clone(), file.judged_path().to_vec())),
                Kind::Script(interpreter, argument) => {
                    // A script never sees the argv[0] it was called with: the kernel passes its path instead.
                    argv[0].clone_from(&name);
                    readings.push((argv.clone(), file.judged_path().to_vec()));
                    let mut words = vec![interpreter.clone()];
                    words.extend(argument.clone());
                    words.append(&mut argv);
                    argv = words;
                    name.clone_from(interpreter);
                }
            }
        }
        readings
    }
}

/// Every way to read an environment. If a variable occurs twice, most programs use the first, others the last.
fn readings_of_environment(environment: &[(Vec<u8>, Vec<u8>)]) -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = HashSet::new();
    let has_duplicates = !environment.iter().all(|(name, _)| names.insert(name));
    let mut readings = vec![environment.to_vec()];
    if has_duplicates {
        readings.push(environment.iter().rev().cloned().collect());
    }
    readings
}

/// Names of a process's ancestors, nearest first.
fn ancestors(pid: i32) -> Vec<String> {
    let mut names = Vec::new();
    let mut next = parent_of(pid);
    while let Some(parent) = next.filter(|&parent| parent > 1 && names.len() < 16) {
        let Ok(name) = std::fs::read(format!("/proc/{parent}/comm")) else { break };
        names.push(format!("{} ({parent})", text(name.trim_ascii_end())));
        next = parent_of(parent);
    }
    names
}

impl Supervisor {
    /// Handles an exec notification; `None` if the reply follows later or is no longer needed.
    pub(crate) fn exec(&mut self, notification: &Notification) -> Option<Reply> {
        self.busy();
        let start = match self.read_start(notification) {
            Ok(start) => start,
            // The caller was killed meanwhile. This is not a denial.
            Err(_) if !self.is_waiting(notification) => return None,
            // The kernel would fail the same way: no such file, a directory, a symlink loop, too many arguments.
            Err(error) => return Some(self.failed_start(notification, &error)),
        };
        let span = tracing::debug_span!("exec", pid = notification.tid, program = %start.program_path());
        let _span = span.entered();
        if !self.is_waiting(notification) {
            return None;
        }
        if !self.holds() {
            return Some(Reply::Error(libc::EPERM));
        }
        if self.is_too_early(&start) {
            self.waiting_starts.push(*notification);
            return None;
        }
        if is_check(notification) {
            return Some(self.check_start(notification, &start));
        }
        if start.chain.first().is_some_and(|file| Some(file.identity) == self.shim) {
            // The shim's own exec of the real program is judged next.
            return self.admit(notification, &start);
        }
        let key = self.cache.key(&start);
        if self.cache.allowed.contains(&key) {
            return self.admit(notification, &start);
        }
        let (verdict, depends_on_repository) = self.judge_start(&start);
        match verdict.action() {
            // Not cached: the same arguments may refer to another repository next time. It is also verified at the
            // exec stop.
            Action::Allow if depends_on_repository => self.admit_checked(notification, &start, true),
            Action::Allow => {
                if self.cache.allowed.len() >= MOST_CACHED {
                    self.cache.allowed.clear();
                }
                self.cache.allowed.insert(key);
                self.admit(notification, &start)
            }
            Action::Deny => Some(self.deny_start(notification, &start, &verdict)),
            Action::Ask if self.always.contains(&verdict.cause.rule) => self.admit(notification, &start),
            // After a denial a shell tries the next PATH directory: do not ask the user again.
            Action::Ask
                if self
                    .last_no
                    .as_ref()
                    .is_some_and(|(tid, argv)| *tid == notification.tid && *argv == start.argv) =>
            {
                Some(self.deny_start(notification, &start, &verdict))
            }
            Action::Ask => self.ask(Pending { notification: *notification, start, verdict }),
        }
    }

    /// Handles `AT_EXECVE_CHECK`, which asks whether a file could be executed. Nothing starts, so no exec is
    /// recorded. A verdict of `ask` is a denial here.
    fn check_start(&mut self, notification: &Notification, start: &ExecRequest) -> Reply {
        let (verdict, _) = self.judge_start(start);
        match verdict.action() {
            // Safe to continue: the flag is in a register of the blocked caller, so the check cannot turn into an
            // exec.
            Action::Allow => Reply::Continue,
            Action::Ask | Action::Deny => self.deny_start(notification, start, &verdict),
        }
    }

    /// Whether an exec needs a lazy resource that is not ready. The first program that uses one triggers its
    /// creation.
    fn is_too_early(&mut self, start: &ExecRequest) -> bool {
        if self.setting.belated.is_empty() {
            return false;
        }
        let files = start.chain.iter().map(|file| file.path.as_slice());
        let words = start.argv.iter().take(WORDS_WITH_NAMES).map(Vec::as_slice);
        let names = files.chain(words).map(|path| path.rsplit(|&byte| byte == b'/').next().unwrap_or(path));
        let is_used = |belated: &LazyResource| {
            names.clone().any(|name| belated.users.iter().any(|user| name.starts_with(user.as_bytes())))
        };
        let used: Vec<usize> =
            (0..self.setting.belated.len()).filter(|&index| is_used(&self.setting.belated[index])).collect();
        for &index in &used {
            let Some(make) = self.setting.belated[index].make.take() else { continue };
            let (sender, wake) = self.later();
            let work = move || {
                make();
                let _ = sender.send(AsyncReply { id: 0, result: AsyncResult::Made(index) });
                let _ = wake.write(1);
            };
            // If no thread can be created, the resource is never made and programs run without it.
            if std::thread::Builder::new().name("caches".to_string()).spawn(work).is_ok() {
                self.making.push(index);
            }
        }
        used.iter().any(|index| self.making.contains(index))
    }

    fn failed_start(&mut self, notification: &Notification, error: &io::Error) -> Reply {
        let errno = error.raw_os_error().unwrap_or(libc::EACCES);
        // If the process itself cannot be read, the request cannot be judged. The same holds for links through
        // `/proc` (ELOOP, EXDEV), whose meaning depends on the process that follows them.
        if matches!(errno, libc::EPERM | libc::ESRCH | libc::EFAULT | libc::ELOOP | libc::EXDEV) {
            self.refuse(
                EventType::DenyExec,
                notification.tid,
                "a program start that cannot be read",
                "sandbox.unreadable",
                "What cannot be looked at is not started.",
            );
            return Reply::Error(libc::EACCES);
        }
        Reply::Error(errno)
    }

    fn read_start(&mut self, notification: &Notification) -> io::Result<ExecRequest> {
        let tid = notification.tid;
        let [a, b, c, d, e, _] = notification.arguments;
        let is_at = i64::from(notification.number) == libc::SYS_execveat;
        let (path, argv, environment) = if is_at { (b, c, d) } else { (a, b, c) };
        self.remote.attach(tid);
        self.setting.repositories.meet(tid);
        let limit = self.setting.policy.command_limits().bytes;
        // Fetch all three pages in one call, then what they point to.
        self.remote.fetch([path, argv, environment].into_iter().filter(|&address| address != 0))?;
        let path = self.remote.string(path, LONGEST_PATH)?;
        let Arguments { argv, environment } =
            self.remote.arguments(argv, environment, limit, protocol::is_relevant)?;
        if path == CANARY_PROGRAM.as_bytes() {
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        let folder = folder_of(tid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        let chain = if is_at && path.is_empty() && e as i32 & libc::AT_EMPTY_PATH != 0 {
            self.identities.executed_descriptor(tid, &folder, a as i32)?
        } else if is_at && a as i32 != libc::AT_FDCWD && path.first() != Some(&b'/') {
            let base = std::fs::read_link(format!("/proc/{tid}/fd/{}", a as i32))?;
            self.identities.executed(tid, &base, &path)?
        } else {
            self.identities.executed(tid, &folder, &path)?
        };
        let loaded = self.loaded(tid, &folder, &chain, &argv);
        Ok(ExecRequest { path, argv, environment, folder, chain, loaded })
    }

    /// The dynamic loader runs any file it is given. Returns which of its arguments are copies of known programs.
    pub(crate) fn loaded(
        &mut self,
        tid: i32,
        folder: &Path,
        chain: &[Executable],
        argv: &[Vec<u8>],
    ) -> Vec<(usize, Vec<u8>)> {
        /// The loader's options precede the program, so only this many arguments are checked.
        const MOST_WORDS: usize = 32;
        if !matches!(chain, [file] if is_loader(file.judged_path())) {
            return Vec::new();
        }
        let words = argv.iter().enumerate().skip(1).take(MOST_WORDS);
        words.filter_map(|(at, word)| Some((at, self.identities.copied(tid, folder, word)?))).collect()
    }

    /// Judges an exec. The flag says whether the verdict depends on the current state of a repository.
    pub(crate) fn judge_start(&self, start: &ExecRequest) -> (Verdict, bool) {
        let mut worst: Option<Verdict> = None;
        let mut depends_on_repository = false;
        for (argv, resolved) in start.readings() {
            for environment in readings_of_environment(&start.environment) {
                let context = Context {
                    folder: Cwd::from_absolute(start.folder.as_os_str().as_bytes()),
                    environment,
                    resolved: Some(resolved.clone()),
                    ..self.setting.context.clone()
                };
                let request = Request::Argv(argv.clone());
                let judged = self.setting.repositories.judge(&self.setting.policy, &request, &context);
                depends_on_repository |= judged.depends_on_repository;
                let verdict = self.with_place_hint(judged.verdict, &judged.analysis);
                if worst.as_ref().is_none_or(|known| verdict.action() > known.action()) {
                    worst = Some(verdict);
                }
            }
        }
        (worst.unwrap_or_else(|| Verdict::bad_question("no program")), depends_on_repository)
    }

    /// Without its own mounts a run cannot write to `/tmp`: deny such a command early, with a hint.
    fn with_place_hint(&self, verdict: Verdict, analysis: &Analysis) -> Verdict {
        if self.setting.has_view || verdict.action() != Action::Allow {
            return verdict;
        }
        let usual = [Path::new("/tmp"), Path::new("/var/tmp"), Path::new("/dev/shm")];
        let is_foreign = |path: &Path| {
            usual.iter().any(|place| path.starts_with(place))
                && !super::event_loop::is_below(path, &self.setting.writable)
        };
        let writes = analysis.intents.iter().enumerate().find_map(|(index, intent)| {
            let path = intent.paths.iter().find(|used| {
                used.access == Access::Write && is_foreign(Path::new(std::ffi::OsStr::from_bytes(&used.path)))
            })?;
            Some((index, path))
        });
        match writes {
            None => verdict,
            Some((index, path)) => Verdict::outside_temporary_folder(analysis, index, &text(&path.path)),
        }
    }

    /// Allows an exec and watches it until its exec stop.
    fn admit(&mut self, notification: &Notification, start: &ExecRequest) -> Option<Reply> {
        self.admit_checked(notification, start, false)
    }

    /// Like [`Self::admit`]. With `judge_again` the verdict is repeated at the exec stop even if nothing changed.
    fn admit_checked(
        &mut self,
        notification: &Notification,
        start: &ExecRequest,
        judge_again: bool,
    ) -> Option<Reply> {
        tracing::debug!("allowed");
        if self.setting.verify {
            if ptrace::watch_exec(notification.tid).is_err() {
                if !self.is_waiting(notification) {
                    return None;
                }
                self.refuse(
                    EventType::DenyExec,
                    notification.tid,
                    "a program start that cannot be verified",
                    "sandbox.unverified",
                    "What cannot be watched is not started.",
                );
                return Some(Reply::Error(libc::EACCES));
            }
            self.expected.retain(|(tid, _)| *tid != notification.tid);
            // The thread stops when the exec succeeds or fails, and continues only after this thread has checked it.
            // Prepare the record now; write it once the outcome is known.
            self.reply(notification.id, Reply::Continue);
            let record = Prepared::new(start.line(), &start.data(notification.tid, None));
            self.expected
                .push((notification.tid, Expected::of(start, &self.identities, judge_again, record)));
            return None;
        }
        self.counts.starts += 1;
        // Without the exec stop it is unknown whether the program really starts.
        self.setting.recorder.record(
            EventType::ExecAllowed,
            &line(&start.argv),
            &start.data(notification.tid, None),
        );
        Some(Reply::Continue)
    }

    fn deny_start(&mut self, notification: &Notification, start: &ExecRequest, verdict: &Verdict) -> Reply {
        self.record_denial(notification.tid, start, verdict);
        // Write the reason to stderr before returning the errno. Write it once, although a shell tries several PATH
        // directories.
        let told = (notification.tid, verdict.refusal_line());
        if self.last_told.as_ref() != Some(&told) && !self.asks_itself(notification.tid, start) {
            if let Ok(thread) = self.thread(notification) {
                stderr_notice::tell(&thread, &told.1);
            }
            self.last_told = Some(told);
        }
        Reply::Error(libc::EACCES)
    }

    /// Whether a thread is a shim that will ask for the reason itself and get one.
    fn asks_itself(&self, tid: i32, start: &ExecRequest) -> bool {
        let is_shim = || executable_identity::of_file(Path::new(&format!("/proc/{tid}/exe"))) == self.shim;
        if self.shim.is_none() || !is_shim() {
            return false;
        }
        let question = Question {
            argv: start.argv.clone(),
            folder: start.folder.as_os_str().as_bytes().to_vec(),
            environment: start.environment.clone(),
        };
        let SupervisorConfig { policy, context, repositories, .. } = &self.setting;
        matches!(super::answer(policy, context, Some(repositories), &question), Answer::Deny(_))
    }

    pub(crate) fn record_denial(&mut self, pid: i32, start: &ExecRequest, verdict: &Verdict) {
        tracing::debug!(rule = %verdict.cause.rule, "refused");
        self.counts.refusals += 1;
        let data = ExecData {
            what: Some(verdict.shown_part()),
            rule: Some(&verdict.cause.rule),
            reason: Some(&verdict.cause.reason),
            instead: Some(&verdict.cause.instead),
            ..start.data(pid, Some(verdict))
        };
        self.setting.recorder.record(EventType::DenyExec, &verdict.refusal_line(), &data);
    }

    /// Asks the user on a separate thread, one question at a time.
    fn ask(&mut self, pending: Pending) -> Option<Reply> {
        let Some(mut asker) = self.setting.asker.take() else {
            if self.is_asking() {
                self.waiting_asks.push(pending);
                return None;
            }
            let Pending { notification, start, verdict } = pending;
            return Some(self.deny_start(&notification, &start, &verdict));
        };
        self.asking = true;
        let (sender, wake) = self.later();
        let work = move || {
            let choice = asker.ask(&pending.verdict);
            let id = pending.notification.id;
            let result = AsyncResult::Chosen(Box::new(pending), choice, Some(asker));
            let _ = sender.send(AsyncReply { id, result });
            let _ = wake.write(1);
        };
        if std::thread::Builder::new().name("ask".to_string()).spawn(work).is_err() {
            self.asking = false;
        }
        None
    }

    fn is_asking(&self) -> bool {
        self.asking
    }

    /// Handles the user's answer.
    pub(crate) fn chosen(&mut self, pending: Pending, choice: Choice, asker: Option<Box<dyn Ask>>) {
        self.setting.asker = asker;
        self.asking = false;
        let Pending { notification, start, verdict } = pending;
        let said = match choice {
            Choice::Once => "once",
            Choice::Always => "always",
            Choice::Deny => "no",
        };
        let data = serde_json::json!({ "answer": said, "rule": verdict.cause.rule });
        self.setting.recorder.record(
            EventType::Answer,
            &format!("a person said {said}: {}", line(&start.argv)),
            &data,
        );
        let reply = match choice {
            Choice::Deny => {
                self.last_no = Some((notification.tid, start.argv.clone()));
                Some(self.deny_start(&notification, &start, &verdict))
            }
            Choice::Always => {
                self.always.push(verdict.cause.rule.clone());
                self.admit(&notification, &start)
            }
            Choice::Once => self.admit(&notification, &start),
        };
        if let Some(reply) = reply {
            self.reply(notification.id, reply);
        }
        for waiting in std::mem::take(&mut self.waiting_asks) {
            let id = waiting.notification.id;
            let reply = if self.always.contains(&waiting.verdict.cause.rule) {
                self.admit(&waiting.notification, &waiting.start)
            } else {
                self.ask(waiting)
            };
            if let Some(reply) = reply {
                self.reply(id, reply);
            }
        }
    }
}

/// Whether an exec only checks if a file could be executed.
fn is_check(notification: &Notification) -> bool {
    /// Added in Linux 6.14; older kernels reject it.
    const AT_EXECVE_CHECK: i32 = 0x10000;
    let [.., flags, _] = notification.arguments;
    i64::from(notification.number) == libc::SYS_execveat && flags as i32 & AT_EXECVE_CHECK != 0
}

/// A command as one line. Of a very long one, only the beginning and the end.
pub(crate) fn line(argv: &[Vec<u8>]) -> String {
    const LONGEST: usize = 400;
    let mut line = String::new();
    for word in super::recorded_words(argv, LONGEST) {
        if !line.is_empty() {
            line.push(' ');
        }
        if word.is_empty()
            || word.contains(|c: char| c.is_whitespace() || c.is_control() || "'\"\\$`".contains(c))
        {
            line.push_str(&format!("{word:?}"));
        } else {
            line.push_str(&word);
        }
    }
    line
}
