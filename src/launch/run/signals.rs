//! Handling of signals that ask guard to end. They are blocked while something is created for a run, and then received
//! by the main loop of the run or by a dedicated thread. Nothing here runs in a signal handler.

use std::io;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};

use super::caller_output::give_up_output;
use crate::sys::{process, signals};

/// How long guard waits for readers of the output after a signal or a limit has ended the run.
const PATIENCE_WITH_READERS: Duration = Duration::from_secs(5);
/// How long guard may take to clean up after a second signal.
const LONGEST_GOODBYE: Duration = Duration::from_secs(5);

/// The signals that guard receives by reading instead of by a handler.
pub(crate) fn own_signals() -> SigSet {
    let mut signals = signals::ending();
    signals.add(Signal::SIGWINCH);
    signals
}

/// Blocks signals from here on, so that guard finishes or undoes what it is creating. The run receives them later.
pub(crate) fn hold_signals() -> io::Result<()> {
    let mut signals = own_signals();
    signals.add(Signal::SIGCHLD);
    // Without this, exceeding the file size limit would kill guard. Blocked, the write fails and guard reports it.
    signals.add(Signal::SIGXFSZ);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), None)?;
    Ok(())
}

/// Calls `work` for every signal that asks the program to end, in a thread. Must be called before any other thread
/// starts.
pub fn on_signals(work: impl Fn() + Send + 'static) -> io::Result<()> {
    let signals = signals::ending();
    signals.thread_block()?;
    let listen = move || {
        while signals.wait().is_ok() {
            work();
        }
    };
    std::thread::Builder::new().name("signals".to_string()).spawn(listen).map(drop)
}

/// Listens for signals in a thread while guard cleans up a run whose processes are all dead or dying.
///
/// The first signal makes guard stop waiting for readers of its output. It counts as received already if a signal or a
/// limit has ended the run. The next one ends guard whatever it is doing, after a few seconds for what is under way.
/// `guard worktree clean` finishes the rest, as it does after `kill -9`.
pub(crate) fn watch_for_second_signal(is_to_end: bool) {
    let mut is_to_end = is_to_end;
    let work = move || loop {
        let patience = is_to_end.then_some(PATIENCE_WITH_READERS);
        let Some(signal) = signals::wait_for(&signals::ending(), patience) else {
            give_up_output();
            continue;
        };
        give_up_output();
        if std::mem::replace(&mut is_to_end, true) {
            std::thread::sleep(LONGEST_GOODBYE);
            process::exit_now(128 + signal as i32);
        }
    };
    // Without the thread guard still ends, but it waits for its readers.
    let _ = std::thread::Builder::new().name("signals".to_string()).spawn(work);
}
