//! What all handlers of system calls share: the notification descriptor, the memory and files of the caller, and the
//! record of decisions.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::Serialize;

use super::background::BackgroundSender;
use super::exec::executable_identity::Identities;
use super::exec::process_memory::ProcessMemory;
use crate::judge::decide::refusal_line;
use crate::run::egress::PeerRegistry;
use crate::run::transcript::{EventType, Prepared, Recorder};
use crate::sys::process;
use crate::sys::process::ThreadFd;
use crate::sys::seccomp;
use crate::sys::seccomp::{Notification, Reply};

/// Totals for the final report about a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of programs that started.
    pub starts: u64,
    pub refusals: u64,
}

/// Why the sandbox denies a call: the rule's id, the reason, what the agent should do instead, and the options of `guard
/// run` that would allow the call, if there are any.
#[derive(Debug, Clone)]
pub(crate) struct SandboxDenial<'d> {
    pub(crate) rule: &'static str,
    pub(crate) reason: &'d str,
    pub(crate) instead: &'d str,
    pub(crate) allow_with: Option<String>,
}

pub(crate) struct CallContext {
    listener: OwnedFd,
    has_sync_wake_up: bool,
    /// A pidfd of the thread whose descriptor the supervisor duplicated last, for reuse.
    last_thread: Option<(i32, Arc<OwnedFd>)>,
    process_memory: ProcessMemory,
    identities: Identities,
    background: BackgroundSender,
    recorder: Recorder,
    counts: Counts,
    peer_registry: Arc<PeerRegistry>,
}

impl CallContext {
    pub(crate) fn new(
        listener: OwnedFd,
        identities: Identities,
        background: BackgroundSender,
        recorder: Recorder,
        peer_registry: Arc<PeerRegistry>,
    ) -> Self {
        Self {
            listener,
            has_sync_wake_up: false,
            last_thread: None,
            process_memory: ProcessMemory::default(),
            identities,
            background,
            recorder,
            counts: Counts::default(),
            peer_registry,
        }
    }

    /// Returns the seccomp descriptor on which notifications arrive.
    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Sets whether the next notifications wake the supervisor synchronously: the kernel then runs the supervisor on
    /// the caller's CPU.
    pub(crate) fn set_sync_wake_up(&mut self, on: bool) {
        if self.has_sync_wake_up != on {
            self.has_sync_wake_up = on;
            seccomp::set_sync_wake_up(self.listener.as_fd(), on);
        }
    }

    /// Returns true if the calling thread is still blocked. If so, its thread id was not reused, and everything read by
    /// that id came from the caller.
    pub(crate) fn is_waiting(&self, notification: &Notification) -> bool {
        seccomp::is_waiting(self.listener.as_fd(), notification.id)
    }

    pub(crate) fn reply(&self, id: u64, reply: Reply) {
        let _ = seccomp::reply(self.listener.as_fd(), id, reply);
    }

    /// Returns a pidfd for the blocked thread whose descriptor the supervisor has just duplicated. `None` if there is
    /// none and the thread id may have been reused.
    pub(crate) fn shared_pidfd(&self, notification: &Notification) -> Option<Arc<OwnedFd>> {
        match &self.last_thread {
            Some((tid, thread)) if *tid == notification.tid => Some(thread.clone()),
            _ => self.thread_pidfd(notification).ok().map(Arc::new),
        }
    }

    /// Returns a pidfd for the blocked thread. Fails if the thread id may have been reused.
    pub(crate) fn thread_pidfd(&self, notification: &Notification) -> io::Result<OwnedFd> {
        self.open_thread(notification).map(ThreadFd::into_fd)
    }

    fn open_thread(&self, notification: &Notification) -> io::Result<ThreadFd> {
        let thread = process::thread_fd(notification.tid)?;
        if self.is_waiting(notification) {
            Ok(thread)
        } else {
            Err(io::Error::from_raw_os_error(libc::ESRCH))
        }
    }

    /// Duplicates a descriptor of the blocked thread. Success also proves that earlier reads by thread id came from
    /// that thread or its process: another thread of that process may have executed a program and taken over the id,
    /// but it has the same rights.
    pub(crate) fn duplicate_descriptor(
        &mut self,
        notification: &Notification,
        number: i32,
    ) -> io::Result<OwnedFd> {
        // A thread id is not reused while its thread exists.
        if let Some((tid, thread)) = &self.last_thread
            && *tid == notification.tid
        {
            match process::descriptor_of(thread.as_fd(), number) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                descriptor => return descriptor,
            }
        }
        match self.open_thread(notification)? {
            ThreadFd::Thread(thread) => {
                let descriptor = process::descriptor_of(thread.as_fd(), number);
                self.last_thread = Some((notification.tid, Arc::new(thread)));
                descriptor
            }
            // Do not store this pidfd for reuse: it would outlive the thread, whose id could then be reused.
            ThreadFd::Process(process) => process::descriptor_of(process.as_fd(), number),
        }
    }

    /// Returns a reader for the memory of the process that a thread belongs to.
    pub(crate) fn memory_of(&mut self, tid: i32) -> &mut ProcessMemory {
        self.process_memory.attach(tid);
        &mut self.process_memory
    }

    /// Returns the [`Identities`], which resolve paths as the run's processes would and identify files.
    pub(crate) fn identities(&mut self) -> &mut Identities {
        &mut self.identities
    }

    /// Returns the queue through which a thread that does blocking work returns its result.
    pub(crate) fn background(&self) -> &BackgroundSender {
        &self.background
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn is_transcript_full(&self) -> bool {
        self.recorder.full_at().is_some()
    }

    pub(crate) fn record(&self, event_type: EventType, message: &str, data: &impl Serialize) {
        self.recorder.record(event_type, message, data);
    }

    /// Counts and records the start of a program.
    pub(crate) fn record_start(&mut self, event_type: EventType, message: &str, data: &impl Serialize) {
        self.counts.starts += 1;
        self.recorder.record(event_type, message, data);
    }

    /// Counts the start of a program, and records it as an event whose data was serialized in advance.
    pub(crate) fn record_prepared_start(&mut self, event_type: EventType, prepared: &Prepared) {
        self.counts.starts += 1;
        self.recorder.record_prepared(event_type, prepared);
    }

    /// Counts and records the denial of a request.
    pub(crate) fn record_denial(&mut self, event_type: EventType, message: &str, data: &impl Serialize) {
        self.counts.refusals += 1;
        self.recorder.record(event_type, message, data);
    }

    /// Counts and records a denial that comes from the sandbox itself, not from a rule of the policy. `what` describes
    /// the denied action.
    pub(crate) fn record_denial_by_sandbox(
        &mut self,
        event_type: EventType,
        tid: i32,
        what: &str,
        rule: &str,
        reason: &str,
    ) {
        let data = serde_json::json!({ "pid": tid, "what": what, "rule": rule, "reason": reason });
        self.record_denial(event_type, &format!("{what}: {reason}"), &data);
    }

    /// Counts and records a denial that comes from the sandbox itself, and tells the calling process about it on its
    /// standard error. `subject` is what the process is told about only once.
    pub(crate) fn deny_and_explain(
        &mut self,
        event_type: EventType,
        notification: &Notification,
        subject: &str,
        what: &str,
        denial: &SandboxDenial<'_>,
    ) {
        let SandboxDenial { rule, reason, instead, allow_with } = denial;
        let mut data = serde_json::json!({
            "pid": notification.tid, "what": what, "rule": rule, "reason": reason, "instead": instead,
        });
        if let Some(options) = allow_with {
            data["allow_with"] = options.as_str().into();
        }
        self.record_denial(event_type, &format!("{what}: {reason}"), &data);
        self.explain(notification, subject, &refusal_line(what, rule, reason, instead));
    }

    /// Writes a line about a denial to the standard error of the calling process, unless guard has told this process
    /// about the same subject already.
    pub(crate) fn explain(&self, notification: &Notification, subject: &str, line: &str) {
        let Ok(thread) = self.thread_pidfd(notification) else { return };
        let stderr = self.peer_registry.notices().stderr_for(notification.tid, thread.as_fd(), subject);
        if let Some(stderr) = stderr {
            stderr.write(line);
        }
    }
}
