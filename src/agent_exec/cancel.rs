//! Cancellation of a request from any thread.
//!
//! [`Cancel`] signals the attempt's process. It must never signal a process id that has already been reaped.

use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long to wait for a run that is still being set up before signalling it anyway. A signal during setup
/// would leave an incomplete worktree behind.
const PATIENCE: Duration = Duration::from_secs(10);

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

/// The process to signal.
#[derive(Debug, Clone, Copy)]
struct Process {
    id: i32,
    /// Whether its run has begun, so that it handles a signal in an orderly way.
    has_begun: bool,
}

impl Process {
    fn tell(self) {
        let _ = kill(Pid::from_raw(self.id), Signal::SIGTERM);
    }
}

impl Cancel {
    /// Cancels the request: asks its run to end, and kills the run with all its processes if it does not. May
    /// be called more than once; the second call skips the grace period.
    pub fn set(&self) {
        let mut state = self.lock();
        let is_first = !std::mem::replace(&mut state.is_set, true);
        match state.process {
            Some(process) if process.has_begun => process.tell(),
            Some(process) if is_first => self.insist(process),
            _ => {}
        }
        self.shared.1.notify_all();
    }

    /// Whether the request was cancelled.
    pub fn is_set(&self) -> bool {
        self.lock().is_set
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for this long, or until cancellation. Returns whether the request was cancelled.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let waited = self.shared.1.wait_timeout_while(self.lock(), time, |state| !state.is_set);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_set
    }

    /// Sets the process to signal on cancellation.
    pub(super) fn watch(&self, child: &Child) {
        let mut state = self.lock();
        let id = i32::try_from(child.id()).ok();
        state.process = id.map(|id| Process { id, has_begun: false });
        if let Some(process) = state.process.filter(|_| state.is_set) {
            self.insist(process);
        }
    }

    /// Records that the process has begun its run, and so handles signals in an orderly way.
    pub(super) fn begun(&self) {
        let mut state = self.lock();
        let is_set = state.is_set;
        if let Some(process) = &mut state.process {
            process.has_begun = true;
            if is_set {
                process.tell();
            }
        }
        self.shared.1.notify_all();
    }

    /// Must be called before the process is reaped: afterwards its id may belong to another process.
    pub(super) fn forget(&self) {
        self.lock().process = None;
        self.shared.1.notify_all();
    }

    /// Signals a process that has not begun its run within [`PATIENCE`].
    fn insist(&self, process: Process) {
        let cancel = self.clone();
        let is_waited_for =
            move |state: &mut State| state.process.is_some_and(|now| now.id == process.id && !now.has_begun);
        let work = move || {
            let waited = cancel.shared.1.wait_timeout_while(cancel.lock(), PATIENCE, is_waited_for);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if is_waited_for(&mut state) {
                process.tell();
            }
        };
        if std::thread::Builder::new().name("cancel".to_string()).spawn(work).is_err() {
            process.tell();
        }
    }
}
