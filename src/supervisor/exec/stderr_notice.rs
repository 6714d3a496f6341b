//! Writes the reason for a denied exec to the standard error of the denied process.
//!
//! The agent controls the file behind that descriptor, so a write may block forever. Each write therefore has a thread
//! of its own, and the supervisor waits for the thread only briefly.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::sys::process;

/// The maximum number of writer threads. A pipe that nobody reads blocks its thread; the supervisor drops further
/// notices.
const MOST_THREADS: usize = 16;
/// The maximum time by which the supervisor delays its reply to the denied call, so that the thread writes the notice
/// before the call returns.
const MAX_DELAY: Duration = Duration::from_millis(50);

/// Remembers the last denial that the supervisor explained. A shell repeats an exec in several PATH directories, but
/// the supervisor should write the reason only once.
#[derive(Debug, Default)]
pub(crate) struct DenialNotices {
    /// The last denial: the id of the denied thread, and the text.
    last: Option<(i32, String)>,
}

impl DenialNotices {
    pub(crate) fn is_last(&self, tid: i32, line: &str) -> bool {
        self.last.as_ref().is_some_and(|(known, text)| *known == tid && text == line)
    }

    /// Writes the reason for a denial to the standard error of a thread, and remembers the reason. `thread` is the
    /// thread's pidfd; if it is `None`, only remembers the reason.
    pub(crate) fn write(&mut self, tid: i32, line: String, thread: Option<OwnedFd>) {
        if let Some(thread) = thread {
            write_notice(&thread, &line);
        }
        self.last = Some((tid, line));
    }
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Writes a line to the standard error of a thread of the run. Drops the line if guard cannot duplicate the descriptor
/// or start a writer thread. Returns after [`MAX_DELAY`] even if the write still blocks.
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
