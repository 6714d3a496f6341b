//! The words of a refusal, written where the refused process looks.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::sys::process;

/// A reader that does not read keeps its thread; more than this and nothing is written any more.
const MOST_THREADS: usize = 16;
/// The errno does not wait longer than this for the words.
const PATIENCE: Duration = Duration::from_millis(50);

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Writes a line to a thread's standard error. Its descriptor is the agent's own: whatever it is, the agent could have
/// written there itself. Nobody reading it must not stop the supervisor, so a thread of its own writes.
pub(crate) fn tell(thread: &OwnedFd, line: &str) {
    let Ok(stderr) = process::descriptor_of(thread.as_fd(), 2) else { return };
    if THREADS.fetch_add(1, Ordering::AcqRel) >= MOST_THREADS {
        THREADS.fetch_sub(1, Ordering::AcqRel);
        return;
    }
    let line = format!("{line}\n");
    let (done, wait) = channel();
    let work = move || {
        let _ = std::fs::File::from(stderr).write_all(line.as_bytes());
        THREADS.fetch_sub(1, Ordering::AcqRel);
        let _ = done.send(());
    };
    if std::thread::Builder::new().name("explain".to_string()).spawn(work).is_err() {
        THREADS.fetch_sub(1, Ordering::AcqRel);
        return;
    }
    let _ = wait.recv_timeout(PATIENCE);
}
