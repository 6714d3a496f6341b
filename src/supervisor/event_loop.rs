//! The thread that answers every notification of a run.
//!
//! ```text
//!   kernel ──notification──► receive ─► exec / connect / bind / listen / metadata ─► judge ─► record ─► reply
//!                                        │ allowed, and to be verified
//!                                        └─► seize, reply "continue", and look again at the exec stop
//! ```
//!
//! One thread, no locks: the answer to one process never waits for another's. What may block (a connect, a question to
//! a person) goes to threads of its own and comes back through a queue. Every error on the way is an answer: *no*.

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
use super::exec::process_memory::Remote;
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

/// An exec of this path is always refused: a process that gets another answer is not supervised.
pub const CANARY_PROGRAM: &str = "/guard-canary";

/// What a person may answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// This once.
    Once,
    /// Whenever the same rule asks again in this run.
    Always,
    /// No.
    Deny,
}

/// Somebody who can be asked.
pub trait Ask: Send {
    /// Blocks until there is an answer; no answer is a no.
    fn ask(&mut self, verdict: &Verdict) -> Choice;
}

/// What a supervisor needs to know of its run.
pub struct SupervisorConfig {
    /// The policy.
    pub policy: Arc<Policy>,
    /// What surrounds every command: working tree, home.
    pub context: Context,
    /// Where everything is written down.
    pub recorder: Recorder,
    /// Roots below which the run may write.
    pub writable: Vec<PathBuf>,
    /// What the run may read, as it was granted.
    pub readable: Vec<PathBuf>,
    /// Directories with the objects of the real repository, which can only be read.
    pub objects: Vec<PathBuf>,
    /// Tells the task's repository from others.
    pub repositories: Arc<Repositories>,
    /// The run has mounts of its own.
    pub has_view: bool,
    /// Look at programs again when they have started.
    pub verify: bool,
    /// Own servers on loopback may be reached.
    pub loopback: bool,
    /// Ports on loopback that own servers may listen on, also without `loopback`.
    pub listen: Vec<u16>,
    /// The ports that lead to the network.
    pub doors: Arc<PeerRegistry>,
    /// Which hosts may be reached by programs that know no proxy.
    pub rules: Arc<NetworkRules>,
    /// The socket the shims ask on.
    pub control: PathBuf,
    /// The file the shims lead to.
    pub shim: Option<PathBuf>,
    /// Init of the run.
    pub first_process: i32,
    /// The port that is tried before the agent starts, to see that it cannot be reached.
    pub canary_port: u16,
    /// Somebody who can be asked.
    pub asker: Option<Box<dyn Ask>>,
    /// Counts up with every program start: what is busy is not idle.
    pub activity: Arc<AtomicU64>,
    /// What is made when a program needs it.
    pub belated: Vec<LazyResource>,
    /// Looks from outside whether the sandbox holds, before the first program starts; if it does not, none does.
    pub proof: Option<Box<dyn FnOnce() -> bool + Send>>,
    /// Processes and threads the run may have at once, where nothing but the supervisor holds it to that.
    pub process_limit: Option<u64>,
}

/// Something of the run's that takes time to be made, and that few of its programs use.
pub struct LazyResource {
    /// How the names of those begin that use it: they wait until it is there.
    pub users: &'static [&'static str],
    /// Makes it, in a thread of its own, when the first of them starts.
    pub make: Option<Box<dyn FnOnce() + Send>>,
}

/// Counts for the result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Programs that started.
    pub starts: u64,
    /// Calls that were refused.
    pub refusals: u64,
}

/// The way to end the thread.
pub struct Handle {
    counts: Receiver<Counts>,
    ending: Arc<AtomicBool>,
    wake: Arc<EventFd>,
}

impl Handle {
    /// Ends the thread, unless it has ended by itself because nothing of the run is left. It has recorded everything, but
    /// may still be tidying up.
    pub fn finish(self) -> Counts {
        self.ending.store(true, Ordering::Release);
        let _ = self.wake.write(1);
        self.counts.recv().unwrap_or_default()
    }
}

/// Begins to answer, as soon as `listener` has got where the questions arrive: the thread is ready before the process it
/// asks for is. SIGCHLD must be blocked in every thread of this process: it tells of processes at their exec.
pub fn supervise(
    setting: SupervisorConfig,
    listener: impl FnOnce() -> Option<OwnedFd> + Send + 'static,
) -> std::io::Result<Handle> {
    let wake = Arc::new(EventFd::from_value_and_flags(0, nix::sys::eventfd::EfdFlags::EFD_CLOEXEC)?);
    let ending = Arc::new(AtomicBool::new(false));
    let (their_wake, their_ending) = (wake.clone(), ending.clone());
    let (told, counts) = channel();
    let work = move || {
        let Some(mut supervisor) = Supervisor::new(setting, listener, their_wake, their_ending) else {
            return;
        };
        supervisor.run();
        supervisor.give_up();
        // Nobody has to wait until everything is taken apart.
        let _ = told.send(supervisor.counts);
    };
    std::thread::Builder::new().name("supervisor".to_string()).spawn(work)?;
    Ok(Handle { counts, ending, wake })
}

/// An answer that a thread of its own has found.
pub(crate) struct AsyncReply {
    pub(crate) id: u64,
    pub(crate) result: AsyncResult,
}

pub(crate) enum AsyncResult {
    Reply(Reply),
    /// What a person said to a program start.
    Chosen(Box<super::exec::Pending>, Choice, Option<Box<dyn Ask>>),
    /// This of what was belated is there.
    Made(usize),
}

pub(crate) struct Supervisor {
    pub(crate) setting: SupervisorConfig,
    pub(crate) listener: OwnedFd,
    wake: Arc<EventFd>,
    ending: Arc<AtomicBool>,
    pub(crate) remote: Remote,
    pub(crate) identities: Identities,
    /// Threads that are on their way through an exec, with what they should become.
    pub(crate) expected: Vec<(i32, Expected)>,
    pub(crate) servers: BoundSockets,
    pub(crate) counts: Counts,
    pub(crate) cache: super::exec::Cache,
    /// Rules a person has said "always" to.
    pub(crate) always: Vec<String>,
    pub(crate) waiting_asks: Vec<super::exec::Pending>,
    /// The last refusal that was explained, and to whom.
    pub(crate) last_told: Option<(i32, String)>,
    /// The last start a person said no to.
    pub(crate) last_no: Option<(i32, Vec<Vec<u8>>)>,
    /// A person is being asked.
    pub(crate) asking: bool,
    pub(crate) shim: Option<super::exec::executable_identity::Identity>,
    later: (Sender<AsyncReply>, Receiver<AsyncReply>),
    /// Program starts that wait for what is belated.
    pub(crate) waiting_starts: Vec<Notification>,
    /// Which of it is being made.
    pub(crate) making: Vec<usize>,
    pub(crate) numbers: NotifiedSyscalls,
    forks: Forks,
    pub(crate) readable: Readable,
    /// The proof was given.
    proven: bool,
    has_sync_wake_up: bool,
    /// The thread a descriptor was asked of last.
    last_thread: Option<(i32, OwnedFd)>,
}

/// The numbers of the calls that are notified.
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
        setting: SupervisorConfig,
        listener: impl FnOnce() -> Option<OwnedFd>,
        wake: Arc<EventFd>,
        ending: Arc<AtomicBool>,
    ) -> Option<Self> {
        let identities = Identities::new(setting.policy.clone(), setting.writable.clone(), setting.has_view);
        let shim = setting.shim.as_deref().and_then(super::exec::executable_identity::of_file);
        let numbers = NotifiedSyscalls::new();
        Some(Self {
            identities,
            shim,
            listener: listener()?,
            wake,
            ending,
            remote: Remote::default(),
            expected: Vec::new(),
            servers: BoundSockets::default(),
            counts: Counts::default(),
            cache: super::exec::Cache::default(),
            always: Vec::new(),
            waiting_asks: Vec::new(),
            last_told: None,
            last_no: None,
            asking: false,
            later: channel(),
            waiting_starts: Vec::new(),
            making: Vec::new(),
            numbers,
            forks: Forks::default(),
            readable: Readable::default(),
            proven: setting.proof.is_none(),
            has_sync_wake_up: false,
            last_thread: None,
            setting,
        })
    }

    fn run(&mut self) {
        // What is done here for the agent is done with the agent's rights, also when root started all this.
        let _ = process::drop_effective_capabilities();
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        let Ok(stops) = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC) else {
            return;
        };
        self.set_sync_wake_up(true);
        // Nothing is left that could ask.
        let mut is_over = false;
        loop {
            let mut fds = [
                PollFd::new(stops.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
            ];
            // One that has hung up would be told of every time.
            let asked = if is_over { &mut fds[..2] } else { &mut fds[..] };
            if poll(asked, PollTimeout::NONE).is_err() {
                continue;
            }
            let ready = |index: usize| fds[index].revents().unwrap_or(PollFlags::empty());
            let (stopped, woken, listener) = (ready(0), ready(1), ready(2));
            if woken.contains(PollFlags::POLLIN) {
                let _ = self.wake.read();
                self.answer_later();
            }
            let is_ending = self.ending.load(Ordering::Acquire);
            if stopped.contains(PollFlags::POLLIN) {
                // However many changes there were, the signal waits once.
                let _ = stops.read_signal();
                self.look_at_changes();
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
            // What was killed on its way through an exec is still waited for: until it is taken here, its parent waits for it.
            let is_done = is_over && self.expected.is_empty();
            if is_done || (is_ending && !listener.contains(PollFlags::POLLIN)) {
                return;
            }
        }
    }

    /// Expects the next call to be like this one. A sync wake-up halves the latency of a connect, because the caller
    /// blocks anyway and its CPU answers at once. An exec gains nothing by it: the caller and its parent have other work.
    fn set_sync_wake_up_for_next(&mut self, notification: &Notification) {
        self.set_sync_wake_up(!is_start(notification));
    }

    fn set_sync_wake_up(&mut self, on: bool) {
        if self.has_sync_wake_up != on {
            self.has_sync_wake_up = on;
            seccomp::set_sync_wake_up(self.listener.as_fd(), on);
        }
    }

    /// Whether the sandbox holds, which is looked at once, when the first program is about to start.
    pub(crate) fn holds(&mut self) -> bool {
        if let Some(proof) = self.setting.proof.take() {
            self.proven = proof();
        }
        self.proven
    }

    /// Answers what threads of their own have found out.
    fn answer_later(&mut self) {
        while let Ok(later) = self.later.1.try_recv() {
            match later.result {
                AsyncResult::Reply(reply) => self.reply(later.id, reply),
                AsyncResult::Chosen(pending, choice, asker) => self.chosen(*pending, choice, asker),
                AsyncResult::Made(index) => {
                    self.making.retain(|making| *making != index);
                    // Whoever has gone meanwhile needs no answer.
                    for notification in std::mem::take(&mut self.waiting_starts) {
                        if self.is_waiting(&notification) {
                            self.handle(&notification);
                        }
                    }
                }
            }
        }
    }

    /// The sending end for a thread of its own.
    pub(crate) fn later(&self) -> (Sender<AsyncReply>, Arc<EventFd>) {
        (self.later.0.clone(), self.wake.clone())
    }

    /// Whether the caller still waits: what was read by its number was read from the right process.
    pub(crate) fn is_waiting(&self, notification: &Notification) -> bool {
        seccomp::is_waiting(self.listener.as_fd(), notification.id)
    }

    /// A descriptor for the thread that waits, and no other that got its number since.
    pub(crate) fn thread(&self, notification: &Notification) -> std::io::Result<OwnedFd> {
        let thread = process::thread_fd(notification.tid)?;
        if self.is_waiting(notification) {
            Ok(thread)
        } else {
            Err(std::io::Error::from_raw_os_error(libc::ESRCH))
        }
    }

    /// A duplicate of a descriptor of the thread that waits. That it could be had also shows that whatever was read by the
    /// thread's number before was that thread's; or its process's, when another of its threads has just executed a program and
    /// taken the number over, with the same rights.
    pub(crate) fn descriptor(
        &mut self,
        notification: &Notification,
        number: i32,
    ) -> std::io::Result<OwnedFd> {
        // While whom a number was given to is there, nobody else has it.
        if let Some((tid, thread)) = &self.last_thread
            && *tid == notification.tid
        {
            match process::descriptor_of(thread.as_fd(), number) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                descriptor => return descriptor,
            }
        }
        let thread = self.thread(notification)?;
        let descriptor = process::descriptor_of(thread.as_fd(), number);
        self.last_thread = Some((notification.tid, thread));
        descriptor
    }

    pub(crate) fn reply(&self, id: u64, reply: Reply) {
        let _ = seccomp::reply(self.listener.as_fd(), id, reply);
    }

    fn handle(&mut self, notification: &Notification) {
        // Its record is full, and the run is about to end: what is not recorded does not happen.
        if self.setting.recorder.full_at().is_some() {
            self.refuse(
                EventType::DenyRecord,
                notification.tid,
                "a call of a run that has filled its record",
                "sandbox.record",
                "What is not recorded does not happen; the run ends.",
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
                    (Some(name), _) => Some(self.metadata(notification, name)),
                    (None, Some(name)) => Some(self.on_process(notification, name)),
                    (None, None) => Some(Reply::Error(libc::EPERM)),
                }
            }
        };
        if let Some(reply) = reply {
            self.reply(notification.id, reply);
        }
    }

    fn look_at_changes(&mut self) {
        let only = |expected: &[(i32, Expected)]| match expected {
            [(tid, _)] => Some(*tid),
            _ => None,
        };
        while let Ok(Some((pid, change))) = ptrace::next_change(only(&self.expected)) {
            self.changed(pid, change);
        }
    }

    pub(crate) fn busy(&self) {
        self.setting.activity.fetch_add(1, Ordering::Relaxed);
    }

    /// A new process or thread, where only the supervisor counts them. Its arguments are in registers: they cannot change.
    fn fork(&mut self) -> Reply {
        let Some(limit) = self.setting.process_limit else { return Reply::Error(libc::EPERM) };
        match self.forks.may_fork(limit, self.setting.first_process) {
            true => Reply::Continue,
            // What the kernel says at a limit of its own.
            false => Reply::Error(libc::EAGAIN),
        }
    }

    /// A limit or priority of another process: only of the run's own.
    fn on_process(&mut self, notification: &Notification, name: &str) -> Reply {
        let [first, second, ..] = notification.arguments;
        let (kind, target) = match name {
            "setpriority" => (first as i32, second as i32),
            // IOPRIO_WHO_PROCESS is 1.
            "ioprio_set" => (first as i32 - 1, second as i32),
            _ => (0, first as i32),
        };
        // Below init, which is guard's own: a limit could end it.
        let first = self.setting.first_process;
        let allowed = kind == 0 && target != first && is_descendant(target, first);
        if allowed {
            return Reply::Continue;
        }
        self.refuse(
            EventType::DenyProcess,
            notification.tid,
            &format!("{name} of process {target}"),
            "sandbox.processes",
            "Other processes are not the task's.",
        );
        Reply::Error(libc::EPERM)
    }

    /// Records a refusal by the sandbox itself.
    pub(crate) fn refuse(&mut self, event_type: EventType, tid: i32, what: &str, rule: &str, reason: &str) {
        self.counts.refusals += 1;
        let data = serde_json::json!({ "pid": tid, "what": what, "rule": rule, "reason": reason });
        self.setting.recorder.record(event_type, &format!("{what}: {reason}"), &data);
    }
}

/// Whether it is about a program start.
fn is_start(notification: &Notification) -> bool {
    matches!(i64::from(notification.number), libc::SYS_execve | libc::SYS_execveat)
}

/// Whether a process lies below another, or is it.
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
    // What matters comes first: with one look, because every program start is told with its parent.
    let mut text = [0; 256];
    let mut file = std::fs::File::open(format!("/proc/{pid}/stat")).ok()?;
    let length = file.read(&mut text).ok()?;
    // The name in brackets may contain anything, brackets and blanks too.
    let rest = &text[text[..length].iter().rposition(|&byte| byte == b')')? + 1..length];
    let mut words = rest.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    std::str::from_utf8(words.nth(1)?).ok()?.parse().ok()
}

/// The directory a thread works in.
pub(crate) fn folder_of(tid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{tid}/cwd")).ok()
}

/// Whether a path lies at or below one of these.
pub(crate) fn is_below(path: &Path, roots: &[PathBuf]) -> bool {
    roots.iter().any(|root| path.starts_with(root))
}
