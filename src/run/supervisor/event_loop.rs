//! The supervisor thread, which answers every seccomp notification of a run.
//!
//! ```text
//!   kernel ──notification──► receive ─► exec / connect / bind / listen / metadata ─► judge ─► record ─► reply
//!                                        │ an allowed exec that must be verified
//!                                        └─► trace, reply "continue", and check again at the ptrace exec stop
//! ```
//!
//! There is one thread and no locks: the reply to one process does not wait for another process. Operations that may
//! block (a connect, a question to the user) run on separate threads and return their result through a queue. Every
//! error becomes a denial.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::background::{BackgroundResult, BackgroundSender};
use super::call_context::{CallContext, Counts};
use super::config::SupervisorConfig;
use super::exec::executable_identity::Identities;
use super::exec::judge::ExecJudge;
use super::exec::{DenialNotices, ExecHandler, SandboxProof};
use super::inotify::WatchHandler;
use super::lazy_resources::LazyResources;
use super::metadata::MetadataHandler;
use super::processes::ProcessHandler;
use super::prompt::PromptQueue;
use super::sockets::SocketHandler;
use crate::run::transcript::EventType;
use crate::sys::seccomp;
use crate::sys::seccomp::{Notification, Reply};
use crate::sys::{process, syscall_numbers};

/// A handle to the running supervisor thread.
pub struct Handle {
    counts: Receiver<Counts>,
    ending: Arc<AtomicBool>,
    wake: Arc<EventFd>,
    failed: Arc<AtomicBool>,
}

impl Handle {
    /// Returns true if the supervisor thread has ended early, by a panic or an error. The kernel then refuses every
    /// call that the supervisor would have judged. guard must still end the run, because nothing records any longer
    /// what the run does.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Stops the supervisor thread, unless it has already ended because no process of the run is left. Returns the
    /// counts of the run; zeros if the thread panicked. When this function returns, the supervisor has recorded
    /// everything; the thread may still be freeing resources.
    pub fn finish(self) -> Counts {
        self.ending.store(true, Ordering::Release);
        let _ = self.wake.write(1);
        self.counts.recv().unwrap_or_default()
    }
}

/// Starts the supervisor thread. The thread calls `listener`, which blocks until the supervised process has sent its
/// seccomp descriptor, and then answers notifications. SIGCHLD must be blocked in every thread of this process: the
/// supervisor reads it through a signalfd to learn about exec stops.
pub fn supervise(
    config: SupervisorConfig,
    listener: impl FnOnce() -> Option<OwnedFd> + Send + 'static,
) -> std::io::Result<Handle> {
    let wake = Arc::new(EventFd::from_value_and_flags(0, nix::sys::eventfd::EfdFlags::EFD_CLOEXEC)?);
    let ending = Arc::new(AtomicBool::new(false));
    let (thread_wake, thread_ending) = (wake.clone(), ending.clone());
    let (counts_sender, counts) = channel();
    let failed = Arc::new(AtomicBool::new(false));
    let failure_flag = FailureFlag(Some(failed.clone()));
    let work = move || {
        let Some(listener) = listener() else {
            // The run did not start. The caller of `supervise` learns that in another way, so this is no failure of the
            // supervisor.
            failure_flag.discard();
            return;
        };
        let mut supervisor = Supervisor::new(config, listener, thread_wake.clone());
        // Declare the flag after `supervisor`, so that it is dropped, and thereby set, before `supervisor` closes the
        // listener. Once the listener is closed, the kernel refuses forks and the agent may end at once.
        let failure_flag = failure_flag;
        match supervisor.run(&thread_wake, &thread_ending) {
            Ok(()) => failure_flag.discard(),
            Err(error) => tracing::error!("the supervisor cannot continue: {error}"),
        }
        supervisor.execs.record_unfinished(&supervisor.context);
        // Send the counts before dropping the supervisor, so that the caller need not wait for that.
        let _ = counts_sender.send(supervisor.context.counts());
    };
    std::thread::Builder::new().name("supervisor".to_string()).spawn(work)?;
    Ok(Handle { counts, ending, wake, failed })
}

/// Sets the flag when it is dropped, unless the thread that owns it has discarded it.
struct FailureFlag(Option<Arc<AtomicBool>>);

impl FailureFlag {
    fn discard(mut self) {
        self.0 = None;
    }
}

impl Drop for FailureFlag {
    fn drop(&mut self) {
        if let Some(flag) = &self.0 {
            flag.store(true, Ordering::Release);
        }
    }
}

struct Supervisor {
    context: CallContext,
    syscalls: NotifiedSyscalls,
    execs: ExecHandler,
    sockets: SocketHandler,
    metadata: MetadataHandler,
    watches: WatchHandler,
    processes: ProcessHandler,
    background_results: Receiver<BackgroundResult>,
}

/// Numbers of the system calls that change metadata, change another process or create a process, and for which the
/// seccomp filter notifies the supervisor. They depend on the architecture.
struct NotifiedSyscalls {
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

    fn metadata(&self, number: i64) -> Option<&'static str> {
        self.metadata.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
    }

    fn on_process(&self, number: i64) -> Option<&'static str> {
        self.on_processes.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
    }
}

impl Supervisor {
    fn new(config: SupervisorConfig, listener: OwnedFd, wake: Arc<EventFd>) -> Self {
        let SupervisorConfig {
            policy,
            context,
            recorder,
            writable,
            readable,
            objects,
            repositories,
            has_mount_namespace,
            verify,
            loopback,
            listen,
            peer_registry,
            rules,
            control,
            shim,
            init_pid,
            canary_port,
            asker,
            activity,
            lazy_resources,
            proof,
            process_limit,
        } = config;
        let identities = Identities::new(policy.clone(), writable.clone(), has_mount_namespace);
        let (background, background_results) = BackgroundSender::new(wake);
        let judge = ExecJudge::new(policy, context, repositories, writable, has_mount_namespace);
        Self {
            context: CallContext::new(listener, identities, background, recorder, peer_registry.clone()),
            syscalls: NotifiedSyscalls::new(),
            execs: ExecHandler::new(
                judge,
                DenialNotices::new(init_pid, peer_registry.notices().agent_stderr()),
                verify,
                shim.as_deref(),
                SandboxProof::new(proof),
                PromptQueue::new(asker),
                LazyResources::new(lazy_resources),
            )
            .counting_execs(activity),
            sockets: SocketHandler::new(peer_registry, rules, control, canary_port, loopback, listen),
            metadata: MetadataHandler::new(objects),
            watches: WatchHandler::new(readable, has_mount_namespace),
            processes: ProcessHandler::new(init_pid, process_limit),
            background_results,
        }
    }

    /// Answers notifications until no process of the run is left or `ending` is true. Fails if it can no longer receive
    /// them.
    fn run(&mut self, wake: &EventFd, ending: &AtomicBool) -> std::io::Result<()> {
        // The supervisor acts for the agent, so it keeps no more rights than the agent, even if root started guard.
        let _ = process::drop_effective_capabilities();
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        let stops = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        self.context.set_sync_wake_up(true);
        // Whether all processes under the filter are gone.
        let mut is_over = false;
        loop {
            let mut fds = [
                PollFd::new(stops.as_fd(), PollFlags::POLLIN),
                PollFd::new(wake.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.context.listener(), PollFlags::POLLIN),
            ];
            // Do not poll the listener after all processes are gone: it reports a hang-up at every poll.
            let polled = if is_over { &mut fds[..2] } else { &mut fds[..] };
            if poll(polled, PollTimeout::NONE).is_err() {
                continue;
            }
            let ready = |index: usize| fds[index].revents().unwrap_or(PollFlags::empty());
            let (stopped, woken, listener) = (ready(0), ready(1), ready(2));
            if woken.contains(PollFlags::POLLIN) {
                let _ = wake.read();
                self.handle_background_results();
            }
            let is_ending = ending.load(Ordering::Acquire);
            if stopped.contains(PollFlags::POLLIN) {
                // The kernel merges signals: one pending SIGCHLD may report the changes of many children.
                let _ = stops.read_signal();
                self.execs.handle_ptrace_events(&mut self.context);
            }
            if listener.contains(PollFlags::POLLIN) {
                if let Some(notification) = seccomp::receive(self.context.listener())? {
                    // The next notification is likely to be of the same kind as this one. A sync wake-up halves the
                    // latency of a connect. An exec gains nothing by it, because its parent needs the CPU.
                    self.context.set_sync_wake_up(!is_exec(&notification));
                    self.handle(&notification);
                }
            } else if listener.contains(PollFlags::POLLHUP) {
                is_over = true;
            }
            // The supervisor must still reap a traced thread that was killed during its exec; until then its parent
            // waits for it.
            let is_done = is_over && !self.execs.has_unfinished();
            if is_done || (is_ending && !listener.contains(PollFlags::POLLIN)) {
                return Ok(());
            }
        }
    }

    fn handle_background_results(&mut self) {
        while let Ok(result) = self.background_results.try_recv() {
            match result {
                BackgroundResult::Reply(id, reply) => self.context.reply(id, reply),
                BackgroundResult::UserAnswered(answer) => {
                    self.execs.handle_user_answer(&mut self.context, answer);
                }
                BackgroundResult::ResourceReady(index) => {
                    for notification in self.execs.set_resource_ready(index) {
                        // Skip callers that are gone.
                        if self.context.is_waiting(&notification) {
                            self.handle(&notification);
                        }
                    }
                }
            }
        }
    }

    fn handle(&mut self, notification: &Notification) {
        if let Some(reply) = self.reply_to(notification) {
            self.context.reply(notification.id, reply);
        }
    }

    /// Dispatches a notification to its handler. Returns `None` if the supervisor replies later, has already replied,
    /// or need not reply.
    fn reply_to(&mut self, notification: &Notification) -> Option<Reply> {
        let context = &mut self.context;
        // The transcript is full and the run is about to end. Nothing unrecorded may happen.
        if context.is_transcript_full() {
            context.record_denial_by_sandbox(
                EventType::DenyRecord,
                notification.tid,
                "a system call after the transcript is full",
                "sandbox.record",
                "The transcript of the run has reached its size limit. guard runs nothing that it cannot record, \
                 so it ends the run.",
            );
            return Some(Reply::Error(libc::EPERM));
        }
        let number = i64::from(notification.number);
        match number {
            libc::SYS_execve | libc::SYS_execveat => self.execs.exec(context, notification),
            libc::SYS_connect => self.sockets.connect(context, notification),
            libc::SYS_bind => Some(self.sockets.bind(context, notification)),
            libc::SYS_listen => Some(self.sockets.listen(context, notification)),
            libc::SYS_inotify_add_watch => Some(self.watches.add_watch(context, notification)),
            _ if self.syscalls.forks.contains(&number) => Some(self.processes.fork()),
            _ => Some(match (self.syscalls.metadata(number), self.syscalls.on_process(number)) {
                (Some(name), _) => self.metadata.change_metadata(context, notification, name),
                (None, Some(name)) => self.processes.change_process(context, notification, name),
                (None, None) => Reply::Error(libc::EPERM),
            }),
        }
    }
}

fn is_exec(notification: &Notification) -> bool {
    matches!(i64::from(notification.number), libc::SYS_execve | libc::SYS_execveat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thread_that_ends_early_sets_the_failure_flag() {
        let flags = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        let failure_flags = flags.clone().map(|flag| FailureFlag(Some(flag)));
        let [finished, failed, panicked] = failure_flags;
        assert!(std::thread::spawn(move || finished.discard()).join().is_ok());
        assert!(std::thread::spawn(move || drop(failed)).join().is_ok());
        let panics = move || {
            let _panicked = panicked;
            std::panic::resume_unwind(Box::new(()));
        };
        assert!(std::thread::spawn(panics).join().is_err());
        assert_eq!(flags.map(|flag| flag.load(Ordering::Acquire)), [false, true, true]);
    }
}
