//! The supervisor thread, which answers every seccomp notification of a run.
//!
//! ```text
//!   kernel ──notification──► receive ─► exec / connect / bind / listen / metadata ─► judge ─► record ─► reply
//!                                        │ an allowed exec that must be verified
//!                                        └─► trace, reply "continue", and check again at the ptrace exec stop
//! ```
//!
//! One thread and no locks: the reply to one process does not wait for another process. Operations that may block (a
//! connect, a question to the user) run on separate threads and return their result through a queue. Every error
//! becomes a denial.

use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::exec::executable_identity::Identities;
use super::exec::process_memory::ProcessMemory;
use super::exec::verify::Expected;
use super::inotify::Readable;
use super::process_limit::Forks;
use super::repo_scope::Repositories;
use super::sockets::BoundSockets;
use crate::command::Context;
use crate::decide::{NetworkRules, Verdict};
use crate::egress::PeerRegistry;
use crate::policy::Policy;
use crate::sys::seccomp::{self, Notification, Reply};
use crate::sys::{process, ptrace, syscall_numbers};
use crate::transcript::{EventType, Recorder};

/// A path whose exec the supervisor always denies. A process that gets a different result is not supervised.
pub const CANARY_PROGRAM: &str = "/guard-canary";

/// The user's answer to an `ask` verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Allow this exec only.
    Once,
    /// Allow every exec that the same rule asks about, for the rest of the run.
    Always,
    /// Like `Always`, and save a rule that allows it in the user's policy when the run has ended.
    Save,
    /// Deny.
    Deny,
}

/// Asks the user about an exec, for example on the terminal.
pub trait Ask: Send {
    /// Blocks until the user answers. No answer means [`Choice::Deny`].
    fn ask(&mut self, verdict: &Verdict) -> Choice;
}

/// Configuration of the supervisor for one run.
pub struct SupervisorConfig {
    /// The policy that judges every request.
    pub policy: Arc<Policy>,
    /// What the judgement of every command needs to know about the run: working tree, home directory.
    pub context: Context,
    /// Receives an event for every decision.
    pub recorder: Recorder,
    /// Directories the run may write below.
    pub writable: Vec<PathBuf>,
    /// Paths the run was granted read access to.
    pub readable: Vec<PathBuf>,
    /// Object directories of the user's repository, which the run can only read.
    pub objects: Vec<PathBuf>,
    /// Finds out whether a git command uses the task's repository or another one.
    pub repositories: Arc<Repositories>,
    /// Whether the run has its own mount namespace.
    pub has_mount_namespace: bool,
    /// Whether to check every program a second time at its ptrace exec stop.
    pub verify: bool,
    /// Whether programs of the run may listen on any loopback port and connect to each other there.
    pub loopback: bool,
    /// Loopback ports that programs of the run may listen on even without `loopback`.
    pub listen: Vec<u16>,
    /// The egress listeners, and the connections that the supervisor has announced to them.
    pub peer_registry: Arc<PeerRegistry>,
    /// Network rules for programs without proxy support.
    pub rules: Arc<NetworkRules>,
    /// Path of the control socket that shims connect to.
    pub control: PathBuf,
    /// The shim executable; `None` if the run has no shims.
    pub shim: Option<PathBuf>,
    /// Process id of the run's init process.
    pub init_pid: i32,
    /// Loopback port to which the canary tries to connect before the agent starts. The connect must be denied.
    pub canary_port: u16,
    /// Asks the user about `ask` verdicts; without it they are denials.
    pub asker: Option<Box<dyn Ask>>,
    /// Incremented at every exec, so that guard does not end a busy run as idle.
    pub activity: Arc<AtomicU64>,
    /// Resources that are created when a program first needs them.
    pub lazy_resources: Vec<LazyResource>,
    /// Checks from outside, at the first exec, that the sandbox works. If it returns false, every exec is denied.
    pub proof: Option<Box<dyn FnOnce() -> bool + Send>>,
    /// Limit on processes and threads, if neither a cgroup nor an rlimit enforces it.
    pub process_limit: Option<u64>,
}

/// A resource of the run that is slow to create and that few programs use.
pub struct LazyResource {
    /// Name prefixes of the programs that use the resource. Their execs wait until it is ready.
    pub users: &'static [&'static str],
    /// Creates the resource. Runs on a separate thread at the first such exec.
    pub make: Option<Box<dyn FnOnce() + Send>>,
}

/// Totals for the result of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Programs that started.
    pub starts: u64,
    /// Requests that were denied.
    pub refusals: u64,
}

/// A handle to the running supervisor thread.
pub struct Handle {
    counts: Receiver<Counts>,
    ending: Arc<AtomicBool>,
    wake: Arc<EventFd>,
    panicked: Arc<AtomicBool>,
}

impl Handle {
    /// Whether the thread has panicked. The kernel then refuses every call that the supervisor would have judged, but the
    /// run must still be ended: nothing records it any more.
    pub fn has_panicked(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }

    /// Stops the thread, unless it has already ended because no process of the run is left. When this returns,
    /// everything is recorded; the thread may still be freeing resources.
    pub fn finish(self) -> Counts {
        self.ending.store(true, Ordering::Release);
        let _ = self.wake.write(1);
        self.counts.recv().unwrap_or_default()
    }
}

/// Starts the supervisor thread. It calls `listener`, which blocks until the supervised process has sent its seccomp
/// descriptor, and then answers notifications. SIGCHLD must be blocked in every thread of this process: the supervisor
/// reads it through a signalfd to learn about exec stops.
pub fn supervise(
    config: SupervisorConfig,
    listener: impl FnOnce() -> Option<OwnedFd> + Send + 'static,
) -> std::io::Result<Handle> {
    let wake = Arc::new(EventFd::from_value_and_flags(0, nix::sys::eventfd::EfdFlags::EFD_CLOEXEC)?);
    let ending = Arc::new(AtomicBool::new(false));
    let (thread_wake, thread_ending) = (wake.clone(), ending.clone());
    let (counts_sender, counts) = channel();
    let panicked = Arc::new(AtomicBool::new(false));
    let panic_flag = SetOnPanic(panicked.clone());
    let work = move || {
        let _panic_flag = panic_flag;
        let Some(mut supervisor) = Supervisor::new(config, listener, thread_wake, thread_ending) else {
            return;
        };
        supervisor.run();
        supervisor.record_unfinished_execs();
        // Send the counts before dropping the supervisor, so that the caller need not wait for that.
        let _ = counts_sender.send(supervisor.counts);
    };
    std::thread::Builder::new().name("supervisor".to_string()).spawn(work)?;
    Ok(Handle { counts, ending, wake, panicked })
}

/// Sets its flag if it is dropped by a panic.
struct SetOnPanic(Arc<AtomicBool>);

impl Drop for SetOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Release);
        }
    }
}

/// A result from a thread that did blocking work.
pub(crate) struct AsyncReply {
    pub(crate) id: u64,
    pub(crate) result: AsyncResult,
}

pub(crate) enum AsyncResult {
    Reply(Reply),
    /// The user's answer about an exec.
    UserAnswered(Box<super::exec::Pending>, Choice, Option<Box<dyn Ask>>),
    /// The lazy resource with this index is ready.
    ResourceReady(usize),
}

pub(crate) struct Supervisor {
    pub(crate) config: SupervisorConfig,
    pub(crate) listener: OwnedFd,
    wake: Arc<EventFd>,
    ending: Arc<AtomicBool>,
    pub(crate) process_memory: ProcessMemory,
    pub(crate) identities: Identities,
    /// Threads in the middle of an allowed exec, with the program they are expected to become.
    pub(crate) expected: Vec<(i32, Expected)>,
    pub(crate) bound_sockets: BoundSockets,
    pub(crate) counts: Counts,
    pub(crate) cache: super::exec::Cache,
    /// Rules for which the user chose [`Choice::Always`].
    pub(crate) always_allowed_rules: Vec<String>,
    pub(crate) execs_waiting_for_user: Vec<super::exec::Pending>,
    /// The last denial written to a thread's standard error: thread id and text.
    pub(crate) last_notice: Option<(i32, String)>,
    /// The last exec that the user denied: thread id and argv.
    pub(crate) last_user_denial: Option<(i32, Vec<Vec<u8>>)>,
    /// Whether a question to the user is open.
    pub(crate) is_asking: bool,
    pub(crate) shim: Option<super::exec::executable_identity::Identity>,
    async_replies: (Sender<AsyncReply>, Receiver<AsyncReply>),
    /// Execs that wait for a lazy resource.
    pub(crate) execs_waiting_for_resource: Vec<Notification>,
    /// Indices of the lazy resources that are being created.
    pub(crate) resources_in_progress: Vec<usize>,
    pub(crate) numbers: NotifiedSyscalls,
    forks: Forks,
    pub(crate) readable: Readable,
    /// Whether `proof` has succeeded.
    sandbox_verified: bool,
    has_sync_wake_up: bool,
    /// The thread whose descriptor was duplicated last, with its pidfd.
    last_thread: Option<(i32, OwnedFd)>,
}

/// Numbers of the system calls that the filter sends to the supervisor.
pub(crate) struct NotifiedSyscalls {
    metadata: Vec<(i64, &'static str)>,
    on_processes: Vec<(i64, &'static str)>,
    forks: Vec<i64>,
}

impl NotifiedSyscalls {
    fn new() -> Self {
        let metadata =
            crate::sandbox::METADATA.iter().filter_map(|name| Some((syscall_numbers::number(name)?, *name)));
        let on_processes = crate::sandbox::ON_PROCESSES
            .iter()
            .filter_map(|(name, _)| Some((syscall_numbers::number(name)?, *name)));
        let forks = crate::sandbox::FORKS.iter().filter_map(|name| syscall_numbers::number(name)).collect();
        Self { metadata: metadata.collect(), on_processes: on_processes.collect(), forks }
    }
}

impl Supervisor {
    fn new(
        config: SupervisorConfig,
        listener: impl FnOnce() -> Option<OwnedFd>,
        wake: Arc<EventFd>,
        ending: Arc<AtomicBool>,
    ) -> Option<Self> {
        let (policy, writable) = (config.policy.clone(), config.writable.clone());
        let identities = Identities::new(policy, writable, config.has_mount_namespace);
        let shim = config.shim.as_deref().and_then(super::exec::executable_identity::identity_of);
        let numbers = NotifiedSyscalls::new();
        Some(Self {
            identities,
            shim,
            listener: listener()?,
            wake,
            ending,
            process_memory: ProcessMemory::default(),
            expected: Vec::new(),
            bound_sockets: BoundSockets::default(),
            counts: Counts::default(),
            cache: super::exec::Cache::default(),
            always_allowed_rules: Vec::new(),
            execs_waiting_for_user: Vec::new(),
            last_notice: None,
            last_user_denial: None,
            is_asking: false,
            async_replies: channel(),
            execs_waiting_for_resource: Vec::new(),
            resources_in_progress: Vec::new(),
            numbers,
            forks: Forks::default(),
            readable: Readable::default(),
            sandbox_verified: config.proof.is_none(),
            has_sync_wake_up: false,
            last_thread: None,
            config,
        })
    }

    fn run(&mut self) {
        // The supervisor acts for the agent, so it keeps no more rights than the agent, even if root started guard.
        let _ = process::drop_effective_capabilities();
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        let Ok(stops) = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC) else {
            return;
        };
        self.set_sync_wake_up(true);
        // Whether all processes under the filter are gone.
        let mut is_over = false;
        loop {
            let mut fds = [
                PollFd::new(stops.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
            ];
            // A listener that has hung up would wake every poll.
            let polled = if is_over { &mut fds[..2] } else { &mut fds[..] };
            if poll(polled, PollTimeout::NONE).is_err() {
                continue;
            }
            let ready = |index: usize| fds[index].revents().unwrap_or(PollFlags::empty());
            let (stopped, woken, listener) = (ready(0), ready(1), ready(2));
            if woken.contains(PollFlags::POLLIN) {
                let _ = self.wake.read();
                self.handle_async_replies();
            }
            let is_ending = self.ending.load(Ordering::Acquire);
            if stopped.contains(PollFlags::POLLIN) {
                // One pending SIGCHLD may stand for many changes.
                let _ = stops.read_signal();
                self.handle_ptrace_events();
            }
            if listener.contains(PollFlags::POLLIN) {
                match seccomp::receive(self.listener.as_fd()) {
                    Ok(Some(notification)) => {
                        self.set_sync_wake_up_for_next(&notification);
                        self.handle(&notification);
                    }
                    Ok(None) => {}
                    Err(_) => return,
                }
            } else if listener.contains(PollFlags::POLLHUP) {
                is_over = true;
            }
            // A traced thread that was killed during its exec must still be reaped here; until then its parent waits
            // for it.
            let is_done = is_over && self.expected.is_empty();
            if is_done || (is_ending && !listener.contains(PollFlags::POLLIN)) {
                return;
            }
        }
    }

    /// Sets the wake-up mode for the next notification, which is likely to be of the same kind as this one. A sync
    /// wake-up runs the supervisor on the caller's CPU, which halves the latency of a connect. An exec gains nothing by
    /// it, because its parent needs the CPU.
    fn set_sync_wake_up_for_next(&mut self, notification: &Notification) {
        self.set_sync_wake_up(!is_exec(notification));
    }

    fn set_sync_wake_up(&mut self, on: bool) {
        if self.has_sync_wake_up != on {
            self.has_sync_wake_up = on;
            seccomp::set_sync_wake_up(self.listener.as_fd(), on);
        }
    }

    /// Whether the sandbox works. Checked once, at the first exec.
    pub(crate) fn sandbox_holds(&mut self) -> bool {
        if let Some(proof) = self.config.proof.take() {
            self.sandbox_verified = proof();
        }
        self.sandbox_verified
    }

    /// Handles the results of threads that did blocking work.
    fn handle_async_replies(&mut self) {
        while let Ok(done) = self.async_replies.1.try_recv() {
            match done.result {
                AsyncResult::Reply(reply) => self.reply(done.id, reply),
                AsyncResult::UserAnswered(pending, choice, asker) => {
                    self.handle_user_answer(*pending, choice, asker);
                }
                AsyncResult::ResourceReady(index) => {
                    self.resources_in_progress.retain(|known| *known != index);
                    // Skip callers that are gone.
                    for notification in std::mem::take(&mut self.execs_waiting_for_resource) {
                        if self.is_waiting(&notification) {
                            self.handle(&notification);
                        }
                    }
                }
            }
        }
    }

    /// The queue and wake-up descriptor for a thread that does blocking work.
    pub(crate) fn async_reply_sender(&self) -> (Sender<AsyncReply>, Arc<EventFd>) {
        (self.async_replies.0.clone(), self.wake.clone())
    }

    /// Whether the caller is still blocked. If so, its thread id was not reused, and everything read by that id came
    /// from the caller.
    pub(crate) fn is_waiting(&self, notification: &Notification) -> bool {
        seccomp::is_waiting(self.listener.as_fd(), notification.id)
    }

    /// A pidfd for the blocked thread. Fails if the thread id may have been reused.
    pub(crate) fn thread_pidfd(&self, notification: &Notification) -> std::io::Result<OwnedFd> {
        let thread = process::thread_fd(notification.tid)?;
        if self.is_waiting(notification) {
            Ok(thread)
        } else {
            Err(std::io::Error::from_raw_os_error(libc::ESRCH))
        }
    }

    /// Duplicates a descriptor of the blocked thread. Success also proves that earlier reads by thread id came from
    /// that thread, or from its process: another thread of the process may have executed a program and taken over the
    /// id, with the same rights.
    pub(crate) fn duplicate_descriptor(
        &mut self,
        notification: &Notification,
        number: i32,
    ) -> std::io::Result<OwnedFd> {
        // A thread id is not reused while its thread exists.
        if let Some((tid, thread)) = &self.last_thread
            && *tid == notification.tid
        {
            match process::descriptor_of(thread.as_fd(), number) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                descriptor => return descriptor,
            }
        }
        let thread = self.thread_pidfd(notification)?;
        let descriptor = process::descriptor_of(thread.as_fd(), number);
        self.last_thread = Some((notification.tid, thread));
        descriptor
    }

    pub(crate) fn reply(&self, id: u64, reply: Reply) {
        let _ = seccomp::reply(self.listener.as_fd(), id, reply);
    }

    fn handle(&mut self, notification: &Notification) {
        // The record is full and the run is about to end. Nothing unrecorded may happen.
        if self.config.recorder.full_at().is_some() {
            self.record_denial_by_sandbox(
                EventType::DenyRecord,
                notification.tid,
                "a system call after the transcript is full",
                "sandbox.record",
                "The transcript of the run has reached its size limit. Nothing happens unrecorded, so the run ends.",
            );
            return self.reply(notification.id, Reply::Error(libc::EPERM));
        }
        let number = i64::from(notification.number);
        let reply = match number {
            libc::SYS_execve | libc::SYS_execveat => self.exec(notification),
            libc::SYS_connect => self.connect(notification),
            libc::SYS_bind => self.bind(notification),
            libc::SYS_listen => self.listen(notification),
            libc::SYS_inotify_add_watch => Some(self.add_watch(notification)),
            _ if self.numbers.forks.contains(&number) => Some(self.fork()),
            _ => {
                let metadata =
                    self.numbers.metadata.iter().find(|(known, _)| *known == number).map(|(_, name)| *name);
                let on_process = self
                    .numbers
                    .on_processes
                    .iter()
                    .find(|(known, _)| *known == number)
                    .map(|(_, name)| *name);
                match (metadata, on_process) {
                    (Some(name), _) => Some(self.change_metadata(notification, name)),
                    (None, Some(name)) => Some(self.change_process(notification, name)),
                    (None, None) => Some(Reply::Error(libc::EPERM)),
                }
            }
        };
        if let Some(reply) = reply {
            self.reply(notification.id, reply);
        }
    }

    fn handle_ptrace_events(&mut self) {
        let only = |expected: &[(i32, Expected)]| match expected {
            [(tid, _)] => Some(*tid),
            _ => None,
        };
        while let Ok(Some((pid, change))) = ptrace::next_change(only(&self.expected)) {
            self.handle_ptrace_event(pid, change);
        }
    }

    pub(crate) fn note_activity(&self) {
        self.config.activity.fetch_add(1, Ordering::Relaxed);
    }

    /// Handles fork and clone if the supervisor enforces the process limit. Their arguments are in registers, so the
    /// caller cannot change them after the check.
    fn fork(&mut self) -> Reply {
        let Some(limit) = self.config.process_limit else { return Reply::Error(libc::EPERM) };
        match self.forks.may_fork(limit, self.config.init_pid) {
            true => Reply::Continue,
            // The errno of the kernel's own limit.
            false => Reply::Error(libc::EAGAIN),
        }
    }

    /// Handles a change of another process's limits or priority. The other process must belong to the run.
    fn change_process(&mut self, notification: &Notification, name: &str) -> Reply {
        let [first, second, ..] = notification.arguments;
        let (kind, target) = match name {
            "setpriority" => (first as i32, second as i32),
            // `IOPRIO_WHO_PROCESS` is 1.
            "ioprio_set" => (first as i32 - 1, second as i32),
            _ => (0, first as i32),
        };
        // Init itself is excluded: it is part of guard, and a limit could kill it.
        let init = self.config.init_pid;
        let allowed = kind == 0 && target != init && is_descendant(target, init);
        if allowed {
            return Reply::Continue;
        }
        self.record_denial_by_sandbox(
            EventType::DenyProcess,
            notification.tid,
            &format!("{name} of process {target}"),
            "sandbox.processes",
            "The process does not belong to the run.",
        );
        Reply::Error(libc::EPERM)
    }

    /// Counts and records a denial by the sandbox itself, not by a rule of the policy.
    pub(crate) fn record_denial_by_sandbox(
        &mut self,
        event_type: EventType,
        tid: i32,
        what: &str,
        rule: &str,
        reason: &str,
    ) {
        self.counts.refusals += 1;
        let data = serde_json::json!({ "pid": tid, "what": what, "rule": rule, "reason": reason });
        self.config.recorder.record(event_type, &format!("{what}: {reason}"), &data);
    }
}

/// Whether a notification is an exec.
fn is_exec(notification: &Notification) -> bool {
    matches!(i64::from(notification.number), libc::SYS_execve | libc::SYS_execveat)
}

/// Whether a process is a descendant of another, or the same process.
fn is_descendant(pid: i32, ancestor: i32) -> bool {
    let mut next = pid;
    for _ in 0..4096 {
        if next == ancestor {
            return true;
        }
        match parent_of(next) {
            Some(parent) if parent > 1 => next = parent,
            _ => return false,
        }
    }
    false
}

/// The parent of a process (or of a thread's process).
pub(crate) fn parent_of(pid: i32) -> Option<i32> {
    // The parent comes early in the line, so one small read is enough. This runs for every recorded exec.
    let mut text = [0; 256];
    let mut file = std::fs::File::open(format!("/proc/{pid}/stat")).ok()?;
    let length = file.read(&mut text).ok()?;
    // The name in parentheses may contain anything, parentheses and spaces included.
    let rest = &text[text[..length].iter().rposition(|&byte| byte == b')')? + 1..length];
    let mut fields = rest.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    std::str::from_utf8(fields.nth(1)?).ok()?.parse().ok()
}

/// The current directory of a thread.
pub(crate) fn cwd_of(tid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{tid}/cwd")).ok()
}

/// Whether a path is at or below one of these directories.
pub(crate) fn is_below(path: &Path, roots: &[PathBuf]) -> bool {
    roots.iter().any(|root| path.starts_with(root))
}
