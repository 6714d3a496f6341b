//! Handles termination signals to guard. guard blocks these signals while it creates files and processes for a run.
//! Then the main loop of the run or a dedicated thread receives them. No code here runs in a signal handler.

use std::io;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};

use super::caller_output::give_up_output;
use crate::sys::{process, signals};

/// How long guard waits for a slow reader of its output after a signal or a limit has ended the run.
const READER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long guard may continue to clean up after a second signal, before it exits at once.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the signals that the main loop of a run waits for: termination signals, and SIGWINCH, which reports a
/// change of the terminal's size.
pub(crate) fn awaited_signals() -> SigSet {
    let mut signals = signals::end_signals();
    signals.add(Signal::SIGWINCH);
    signals
}

/// Blocks signals, so that none interrupts guard while it creates or removes files. Blocked signals stay pending
/// until the main loop of the run receives them.
pub(crate) fn block_signals() -> io::Result<()> {
    let mut signals = awaited_signals();
    signals.add(Signal::SIGCHLD);
    // Block SIGXFSZ, which would kill guard at a write beyond the file size limit. The write then fails instead, and
    // guard reports that.
    signals.add(Signal::SIGXFSZ);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), None)?;
    Ok(())
}

/// Blocks the termination signals, and starts a thread that calls `work` for every one of them. The program must call
/// this before it starts any other thread, because threads inherit the set of blocked signals.
pub fn on_signals(work: impl Fn() + Send + 'static) -> io::Result<()> {
    let signals = signals::end_signals();
    signals.thread_block()?;
    let listen = move || {
        while signals.wait().is_ok() {
            work();
        }
    };
    std::thread::Builder::new().name("signals".to_string()).spawn(listen).map(drop)
}

/// Starts a thread that receives signals while guard cleans up a run whose processes are all dead or dying.
///
/// The first signal makes guard stop waiting for slow readers of its output. If `was_stopped` is true, a signal or a
/// limit has ended the run and counts as the first signal; guard then stops waiting after [`READER_TIMEOUT`]. The next
/// signal ends guard, whatever it is doing, after a few seconds to complete the current step. `guard worktree clean`
/// can finish the cleanup later, as after `kill -9`.
pub(crate) fn watch_for_second_signal(was_stopped: bool) {
    let mut was_stopped = was_stopped;
    let work = move || loop {
        let patience = was_stopped.then_some(READER_TIMEOUT);
        let Some(signal) = signals::wait_for(&signals::end_signals(), patience) else {
            give_up_output();
            continue;
        };
        give_up_output();
        if std::mem::replace(&mut was_stopped, true) {
            std::thread::sleep(CLEANUP_TIMEOUT);
            process::exit_now(128 + signal as i32);
        }
    };
    // If the thread cannot start, guard still ends, but only when the readers of its output have read everything.
    let _ = std::thread::Builder::new().name("signals".to_string()).spawn(work);
}
