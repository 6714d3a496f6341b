//! Copies one output stream of the agent to the caller and into the transcript, and stores the last part of it for the
//! result. The transcript gets all of the output, even if the caller does not read it. If the caller has closed its
//! stream, guard closes the agent's stream as well.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;

use super::caller_output::{is_output_given_up, write_to_caller};
use super::terminal::Screen;
use crate::run::launch::streams::OutputReader;
use crate::run::transcript::{EventType, Recorder, Stream};

/// The last part of an output stream, for the run's result.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tail {
    /// The last bytes of the stream, and true if earlier bytes were dropped.
    bytes: Arc<Mutex<(VecDeque<u8>, bool)>>,
}

/// The maximum number of bytes of each stream that a [`Tail`] stores.
const TAIL_BYTES: usize = 1 << 20;

impl Tail {
    fn push(&self, bytes: &[u8]) {
        let mut kept = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        kept.0.extend(bytes);
        if kept.0.len() > TAIL_BYTES {
            let excess = kept.0.len() - TAIL_BYTES;
            kept.0.drain(..excess);
            kept.1 = true;
        }
    }

    /// Returns the last part of the output as text, and true if an earlier part is missing.
    pub(crate) fn text(&self) -> (String, bool) {
        let mut kept = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = kept.0.make_contiguous();
        (String::from_utf8_lossy(bytes).into_owned(), kept.1)
    }
}

/// The maximum number of bytes that a pump reads after every process of the run is dead. No stream holds as many: a
/// pipe has a capacity of 1 MiB, and the kernel doubles the 1 MiB that guard asks for a sealed stream. More bytes can
/// only come from a process outside the run to which the agent has passed the descriptor.
const MAX_BYTES_AFTER_END: usize = 4 << 20;

/// Copies one output stream of the agent to the caller and into the transcript.
pub(crate) struct Pump {
    /// guard's end of the agent's output stream.
    pub(crate) from: OwnedFd,
    /// The caller's stream, which gets a copy of the output; `None` if only the transcript gets the output.
    pub(crate) to: Option<OwnedFd>,
    /// The lock on the user's terminal, if the output goes there.
    pub(crate) screen: Option<Screen>,
    pub(crate) stream: Stream,
    pub(crate) recorder: Recorder,
    pub(crate) tail: Tail,
    /// The run's activity counter. The pump increments it with every read, because a run with output is not idle.
    pub(crate) activity: Arc<AtomicU64>,
    /// An eventfd that becomes readable when every process of the run is dead. The pump then copies the rest of the
    /// stream. It does not wait for end of file, because the agent may have passed the descriptor to a process
    /// outside the run.
    pub(crate) all_dead: Arc<EventFd>,
    /// The parser of the agent's output, if this stream is standard output and guard knows the agent's program.
    pub(crate) reader: Option<SharedReader>,
}

/// The parser of the agent's output, shared by the pump and by the code that builds the result.
pub(crate) type SharedReader = Arc<Mutex<Box<dyn OutputReader>>>;

impl Pump {
    /// Starts the pump's thread, which drops `done` when it ends. It ends at end of file, when every process of the run
    /// is dead, or when the caller has closed its stream.
    pub(crate) fn start(self, done: Option<Sender<()>>) -> io::Result<()> {
        let work = move || {
            self.run();
            drop(done);
        };
        std::thread::Builder::new().name("output".to_string()).spawn(work).map(drop)
    }

    fn run(mut self) {
        let mut buffer = vec![0u8; 64 << 10];
        let mut after_the_end = 0;
        let mut is_over = false;
        while self.has_more(&mut is_over) && after_the_end < MAX_BYTES_AFTER_END {
            // Reading from a terminal fails with EIO when its other end is closed.
            let got = match nix::unistd::read(&self.from, &mut buffer) {
                Ok(0) => break,
                Ok(got) => got,
                Err(nix::errno::Errno::EINTR) => continue,
                Err(_) => break,
            };
            if is_over {
                after_the_end += got;
            }
            self.activity.fetch_add(1, Ordering::Relaxed);
            let bytes = &buffer[..got];
            if self.deliver(bytes).is_err() {
                let note = if is_output_given_up() {
                    // The transcript still gets the rest of the output.
                    "guard had to end before the reader of its output had read everything; the transcript has the rest"
                } else {
                    "the program that reads guard's output has closed its end, so guard closes the agent's output too"
                };
                self.recorder.record(EventType::Note, note, &serde_json::json!({}));
                self.to = None;
                if !is_output_given_up() {
                    // Dropping the pump closes guard's end, so the agent gets SIGPIPE or EPIPE as it would without
                    // guard.
                    return;
                }
            }
            if let Some(reader) = &self.reader {
                reader.lock().unwrap_or_else(PoisonError::into_inner).read(bytes);
            }
            self.recorder.output(self.stream, bytes);
            self.tail.push(bytes);
        }
    }

    /// Waits for output of the agent. Returns false when every process of the run is dead and all output has been read,
    /// or if waiting fails. Sets `is_over` when every process of the run is dead.
    fn has_more(&self, is_over: &mut bool) -> bool {
        loop {
            let mut fds = [
                PollFd::new(self.from.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.all_dead.as_fd(), PollFlags::POLLIN),
            ];
            let timeout = if *is_over { PollTimeout::ZERO } else { PollTimeout::NONE };
            match poll(&mut fds, timeout) {
                Err(nix::errno::Errno::EINTR) => continue,
                Err(_) => return false,
                Ok(_) => {}
            }
            if fds[0].any() == Some(true) {
                *is_over |= fds[1].any() == Some(true);
                return true;
            }
            if std::mem::replace(is_over, true) {
                return false;
            }
        }
    }

    fn deliver(&self, bytes: &[u8]) -> io::Result<()> {
        let Some(to) = &self.to else { return Ok(()) };
        // The lock prevents output of the agent on the terminal while guard asks a question.
        let mut state = self.screen.as_ref().map(Screen::lock);
        if let Some(state) = &mut state {
            state.follow(bytes);
        }
        write_to_caller(to, bytes)
    }
}
