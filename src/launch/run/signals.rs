//! Signals that end a command: held back while something is made for a run, heard where a run is waited for, or by a thread of
//! their own.

use std::io;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};

use super::caller_output::give_up_output;
use crate::sys::{process, signals};

/// After a signal or a limit has ended a run: how long whoever reads its output is waited for.
const PATIENCE_WITH_READERS: Duration = Duration::from_secs(5);
/// After a second signal: how long guard may take to put the run away.
const LONGEST_GOODBYE: Duration = Duration::from_secs(5);

/// Signals come as messages, not as interruptions.
pub(crate) fn own_signals() -> SigSet {
    let mut signals = signals::ending();
    signals.add(Signal::SIGWINCH);
    signals
}

/// Signals wait from here on: what is being made for a run is finished or undone, and the run is the one to hear of them.
pub(crate) fn hold_signals() -> io::Result<()> {
    let mut signals = own_signals();
    signals.add(Signal::SIGCHLD);
    // A limit on the size of files is an error of the write, which is told, and no reason to die.
    signals.add(Signal::SIGXFSZ);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), None)?;
    Ok(())
}

/// Does this at every signal that is to end the program, in a thread of its own. Must be called before there is another.
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

/// Listens for signals, in a thread of its own, while guard puts away a run whose processes are all dead or dying.
///
/// The first one (unless the run was ended by one, or by a limit) stops guard from waiting for readers of its output. The
/// next one ends guard whatever it is doing, after a few seconds for what is under way; `guard worktree clean` finishes what
/// is left then, as it does after `kill -9`.
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
    // Without the thread guard still ends, but waits for its readers.
    let _ = std::thread::Builder::new().name("signals".to_string()).spawn(work);
}
