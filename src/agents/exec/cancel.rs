//! Cancellation of a request from any thread.
//!
//! [`Cancel`] signals the attempt's process. It must never signal a process id that has already been reaped.

use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long [`Cancel`] waits for a run that is still being set up before it signals the run anyway. A signal during
/// setup can leave an incomplete worktree behind.
const SETUP_GRACE: Duration = Duration::from_secs(10);

/// A handle that cancels a request from any thread.
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug, Default)]
struct State {
    is_set: bool,
    process: Option<Process>,
}

/// The `guard run` process that is signalled on cancellation.
#[derive(Debug, Clone, Copy)]
struct Process {
    id: i32,
    /// Whether the process has set up its run. From then on, a signal makes it end the run and clean up.
    has_begun: bool,
}

impl Process {
    fn send_sigterm(self) {
        let _ = kill(Pid::from_raw(self.id), Signal::SIGTERM);
    }
}

impl Cancel {
    /// Cancels the request: sends SIGTERM to its `guard run` process, which asks the agent to end and kills it with all
    /// its processes after a grace period. A second call sends SIGTERM again, and `guard run` then kills the agent at
    /// once. While `guard run` sets up the run, no signal is sent, for at most `SETUP_GRACE`.
    pub fn set(&self) {
        let mut state = self.lock();
        let is_first = !std::mem::replace(&mut state.is_set, true);
        match state.process {
            Some(process) if process.has_begun => process.send_sigterm(),
            Some(process) if is_first => self.signal_after_grace(process),
            _ => {}
        }
        self.shared.1.notify_all();
    }

    pub fn is_set(&self) -> bool {
        self.lock().is_set
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the given time, or until the request is cancelled. Returns whether it was cancelled.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let waited = self.shared.1.wait_timeout_while(self.lock(), time, |state| !state.is_set);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_set
    }

    pub(super) fn set_process(&self, child: &Child) {
        let mut state = self.lock();
        let id = i32::try_from(child.id()).ok();
        state.process = id.map(|id| Process { id, has_begun: false });
        if let Some(process) = state.process.filter(|_| state.is_set) {
            self.signal_after_grace(process);
        }
    }

    /// Records that the process has set up its run, so that a signal now makes it end the run and clean up.
    pub(super) fn set_begun(&self) {
        let mut state = self.lock();
        let is_set = state.is_set;
        if let Some(process) = &mut state.process {
            process.has_begun = true;
            if is_set {
                process.send_sigterm();
            }
        }
        self.shared.1.notify_all();
    }

    /// Stops signalling the process. Must be called before the process is reaped: afterwards its id may belong to
    /// another process.
    pub(super) fn clear_process(&self) {
        self.lock().process = None;
        self.shared.1.notify_all();
    }

    /// Starts a thread that signals the process if it has not begun its run within [`SETUP_GRACE`].
    fn signal_after_grace(&self, process: Process) {
        let cancel = self.clone();
        let is_being_set_up =
            move |state: &mut State| state.process.is_some_and(|now| now.id == process.id && !now.has_begun);
        let work = move || {
            let waited = cancel.shared.1.wait_timeout_while(cancel.lock(), SETUP_GRACE, is_being_set_up);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if is_being_set_up(&mut state) {
                process.send_sigterm();
            }
        };
        if std::thread::Builder::new().name("cancel".to_string()).spawn(work).is_err() {
            process.send_sigterm();
        }
    }
}
