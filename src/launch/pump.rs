//! What the agent prints, on its way to the user and into the transcript.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::transcript::{Recorder, Stream};

/// The end of what was printed, for the result.
#[derive(Debug, Clone, Default)]
pub(super) struct Tail {
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
    pub(super) fn text(&self) -> (String, bool) {
        let mut kept = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = kept.0.make_contiguous();
        (String::from_utf8_lossy(bytes).into_owned(), kept.1)
    }
}

/// One stream of the agent's.
pub(super) struct Pump {
    /// The agent's end comes out here.
    pub(super) from: OwnedFd,
    /// Where it goes; `None` when only the transcript gets it.
    pub(super) to: Option<OwnedFd>,
    pub(super) stream: Stream,
    pub(super) recorder: Recorder,
    pub(super) tail: Tail,
    /// Counts up with every piece: what prints is not idle.
    pub(super) activity: Arc<AtomicU64>,
}

impl Pump {
    /// Begins. The thread ends when nothing holds the other end any more.
    pub(super) fn start(self) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("output".to_string()).spawn(move || self.run())
    }

    fn run(self) {
        let mut from = File::from(self.from);
        let mut to = self.to.map(File::from);
        let mut buffer = vec![0u8; 64 << 10];
        loop {
            // A terminal whose other side is closed gives EIO; that is its way to end.
            let got = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(got) => got,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            self.activity.fetch_add(1, Ordering::Relaxed);
            let bytes = &buffer[..got];
            if let Some(out) = &mut to
                && out.write_all(bytes).and_then(|()| out.flush()).is_err()
            {
                // Nobody reads any more. Closing this end tells the agent, as it would have been told without us.
                self.recorder.record("note", "the reader of the output went away", &serde_json::json!({}));
                return;
            }
            self.recorder.output(self.stream, bytes);
            self.tail.push(bytes);
        }
    }
}
