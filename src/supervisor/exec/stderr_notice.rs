//! Writes the reason for a denied exec to the standard error of the denied process.
//!
//! The agent controls the file behind that descriptor, so a write may block forever. Each write runs on its own
//! thread, and the supervisor waits for it only briefly.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::sys::process;

/// Limit on writer threads: a pipe that nobody reads blocks its thread. Notices beyond this limit are dropped.
const MOST_THREADS: usize = 16;
/// How long the supervisor delays its reply to the denied call, so that the notice is written before the call returns.
const MAX_DELAY: Duration = Duration::from_millis(50);

/// Remembers the last denial that was written. A shell repeats an exec in several PATH directories, but the reason
/// should be written only once.
#[derive(Debug, Default)]
pub(crate) struct DenialNotices {
    /// The last denial: the id of the denied thread, and the text.
    last: Option<(i32, String)>,
}

impl DenialNotices {
    pub(crate) fn is_last(&self, tid: i32, line: &str) -> bool {
        self.last.as_ref().is_some_and(|(known, text)| *known == tid && text == line)
    }

    /// Writes the reason for a denial to a thread's standard error. If `thread` is `None`, only remembers the reason.
    pub(crate) fn write(&mut self, tid: i32, line: String, thread: Option<OwnedFd>) {
        if let Some(thread) = thread {
            write_notice(&thread, &line);
        }
        self.last = Some((tid, line));
    }
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Writes a line to the standard error of a thread of the run.
fn write_notice(thread: &OwnedFd, line: &str) {
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
    let _ = wait.recv_timeout(MAX_DELAY);
}
