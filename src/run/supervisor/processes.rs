//! Handles calls that create processes, or that change the limits or the priority of another process.

use super::call_context::CallContext;
use super::process_info::is_descendant;
use super::process_limit::Forks;
use crate::run::transcript::EventType;
use crate::sys::seccomp::{Notification, Reply};

pub(crate) struct ProcessHandler {
    init_pid: i32,
    /// The maximum number of processes and threads; `None` if the supervisor need not enforce it.
    limit: Option<u64>,
    forks: Forks,
}

impl ProcessHandler {
    pub(crate) fn new(init_pid: i32, limit: Option<u64>) -> Self {
        Self { init_pid, limit, forks: Forks::default() }
    }

    /// Handles fork and clone: allows the call unless the run is at its process limit. The filter sends these calls
    /// only if the supervisor enforces that limit; otherwise this function denies them. Their arguments are in
    /// registers, so the caller cannot change them after the check.
    pub(crate) fn fork(&mut self) -> Reply {
        let Some(limit) = self.limit else { return Reply::Error(libc::EPERM) };
        match self.forks.may_fork(limit, self.init_pid) {
            true => Reply::Continue,
            // The kernel returns the same errno when a process reaches the kernel's own limit.
            false => Reply::Error(libc::EAGAIN),
        }
    }

    /// Handles a change of the limits or priority of another process. Allows it for a single process of the run other
    /// than init, and denies everything else.
    pub(crate) fn change_process(
        &self,
        context: &mut CallContext,
        notification: &Notification,
        name: &str,
    ) -> Reply {
        let [first, second, ..] = notification.arguments;
        let (kind, target) = match name {
            "setpriority" => (first as i32, second as i32),
            // `ioprio_set` numbers a single process as 1 (`IOPRIO_WHO_PROCESS`), the other calls as 0.
            "ioprio_set" => (first as i32 - 1, second as i32),
            _ => (0, first as i32),
        };
        // Exclude init itself: it is part of guard, and a limit could kill it.
        let allowed = kind == 0 && target != self.init_pid && is_descendant(target, self.init_pid);
        if allowed {
            return Reply::Continue;
        }
        context.record_denial_by_sandbox(
            EventType::DenyProcess,
            notification.tid,
            &format!("{name} of process {target}"),
            "sandbox.processes",
            "A process may change the limits and priority only of a single process of its own run.",
        );
        Reply::Error(libc::EPERM)
    }
}
