//! Signals that end a command: held back while something is made for a run, heard where a run is waited for, or by a thread of
//! their own.

use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};

use crate::sys::signals;

/// Signals come as messages, not as interruptions.
pub(super) fn own_signals() -> SigSet {
    let mut signals = signals::ending();
    signals.add(Signal::SIGWINCH);
    signals
}

/// Signals wait from here on: what is being made for a run is finished or undone, and the run is the one to hear of them.
pub fn hold_signals() -> io::Result<()> {
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
