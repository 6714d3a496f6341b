//! The way to end a request from outside.

use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long a run that is just being made is waited for before it is told to end all the same: one that is told in the
/// middle would leave half a worktree behind.
const PATIENCE: Duration = Duration::from_secs(10);

/// Ends a request from outside, from any thread.
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug, Default)]
struct State {
    is_set: bool,
    process: Option<Process>,
}

/// The process to be told.
#[derive(Debug, Clone, Copy)]
struct Process {
    id: i32,
    /// It has begun its run, and ends in an orderly way.
    has_begun: bool,
}

impl Process {
    fn tell(self) {
        let _ = kill(Pid::from_raw(self.id), Signal::SIGTERM);
    }
}

impl Cancel {
    /// Ends the request: its run is asked to end, and killed with all it started when it does not. Safe to call more than
    /// once; the second time there is no more grace.
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

    /// Whether it was.
    pub fn is_set(&self) -> bool {
        self.lock().is_set
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits; whether it was set meanwhile.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let waited = self.shared.1.wait_timeout_while(self.lock(), time, |state| !state.is_set);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_set
    }

    /// This process is the one to be told from now on.
    pub(super) fn watch(&self, child: &Child) {
        let mut state = self.lock();
        let id = i32::try_from(child.id()).ok();
        state.process = id.map(|id| Process { id, has_begun: false });
        if let Some(process) = state.process.filter(|_| state.is_set) {
            self.insist(process);
        }
    }

    /// Its run has begun.
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

    /// Before the process is waited for: its number may be another's afterwards.
    pub(super) fn forget(&self) {
        self.lock().process = None;
        self.shared.1.notify_all();
    }

    /// Tells a process that has not begun its run when it has had the time to.
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
