//! Signals that end a command, heard by a thread of their own.

use std::io;

use crate::sys::signals;

/// Does this at every signal that is to end the program. Must be called before there is a second thread.
pub(super) fn on_each(work: impl Fn() + Send + 'static) -> io::Result<()> {
    let signals = signals::ending();
    signals.thread_block()?;
    let listen = move || {
        while signals.wait().is_ok() {
            work();
        }
    };
    std::thread::Builder::new().name("signals".to_string()).spawn(listen).map(drop)
}
