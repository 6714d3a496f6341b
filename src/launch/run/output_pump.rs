//! What the agent prints, on its way to the user and into the transcript.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;

use super::OutputReader;
use super::caller_output::{is_output_given_up, write_to_caller};
use super::terminal::Screen;
use crate::transcript::{EventType, Recorder, Stream};

/// The end of what was printed, for the result.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tail {
    bytes: Arc<Mutex<(VecDeque<u8>, bool)>>,
}

/// Kept of each stream.
const KEPT: usize = 1 << 20;

impl Tail {
    fn push(&self, bytes: &[u8]) {
        let mut kept = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        kept.0.extend(bytes);
        if kept.0.len() > KEPT {
            let excess = kept.0.len() - KEPT;
            kept.0.drain(..excess);
            kept.1 = true;
        }
    }

    /// The text, and whether its beginning is missing.
    pub(crate) fn text(&self) -> (String, bool) {
        let mut kept = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = kept.0.make_contiguous();
        (String::from_utf8_lossy(bytes).into_owned(), kept.1)
    }
}

/// The most that is read of a stream after everything in the run is dead: as much as its pipe can hold. More can only come
/// from somebody outside whom the agent has handed its output to.
const MOST_AFTER_THE_END: usize = 1 << 20;

/// One stream of the agent's.
pub(crate) struct Pump {
    /// The agent's end comes out here.
    pub(crate) from: OwnedFd,
    /// Where it goes; `None` when only the transcript gets it.
    pub(crate) to: Option<OwnedFd>,
    /// The user's terminal, where that is what it goes to.
    pub(crate) screen: Option<Screen>,
    pub(crate) stream: Stream,
    pub(crate) recorder: Recorder,
    pub(crate) tail: Tail,
    /// Counts up with every piece: what prints is not idle.
    pub(crate) activity: Arc<AtomicU64>,
    /// Becomes readable when everything in the run is dead: what is in the stream then is all of it. Its end cannot be
    /// waited for, because the agent may have handed the descriptor to somebody who lives on.
    pub(crate) all_dead: Arc<EventFd>,
    /// Reads along.
    pub(crate) reader: Option<SharedReader>,
}

/// What understands the program's output; it is asked for the result when all pumps are done.
pub(crate) type SharedReader = Arc<Mutex<Box<dyn OutputReader>>>;

impl Pump {
    /// Begins, in a thread that ends when nothing holds the other end any more, or when everything in the run is dead. It
    /// closes `done` then.
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
        while self.has_more(&mut is_over) && after_the_end < MOST_AFTER_THE_END {
            // A terminal whose other side is closed gives EIO; that is its way to end.
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
                    // The transcript gets what is left of it.
                    "output was not delivered: whoever reads it did not take it before guard was to end"
                } else {
                    "the reader of the output went away"
                };
                self.recorder.record(EventType::Note, note, &serde_json::json!({}));
                self.to = None;
                if !is_output_given_up() {
                    // Closing this end tells the agent, as it would have been told without us.
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

    /// Waits until there is something to read. Not when everything in the run is dead and nothing is left.
    fn has_more(&self, is_over: &mut bool) -> bool {
        loop {
            let mut fds = [
                PollFd::new(self.from.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.all_dead.as_fd(), PollFlags::POLLIN),
            ];
            let patience = if *is_over { PollTimeout::ZERO } else { PollTimeout::NONE };
            match poll(&mut fds, patience) {
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
        // While a person is asked something, the screen is not the agent's.
        let _turn = self.screen.as_ref().map(Screen::take);
        write_to_caller(to, bytes)
    }
}
