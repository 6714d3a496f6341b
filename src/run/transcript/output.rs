//! Converts one output stream, which arrives in pieces, to the `data` of output events: redacted, and as text
//! if it is valid UTF-8.

use super::base64;
use super::chain::quote;
use super::event::Stream;
use super::redact::{Redactor, StreamRedactor};

/// The state of one output stream between two pieces of output.
pub(super) struct Output {
    stream: Stream,
    redactor: StreamRedactor,
    /// Redacted bytes that are not emitted yet. After each call, only the beginning of an incomplete character
    /// remains.
    bytes: Vec<u8>,
    /// When the last piece of the stream arrived, in microseconds since 1970.
    pub(super) since: i64,
}

impl Output {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, redactor: StreamRedactor::default(), bytes: Vec::new(), since: 0 }
    }

    /// Processes a piece of the stream. Returns true if `data` now contains the JSON of an output event.
    pub(super) fn push(&mut self, redactor: &Redactor, piece: &[u8], last: bool, data: &mut Vec<u8>) -> bool {
        self.redactor.push(redactor, piece, last, &mut self.bytes);
        self.write(last, data)
    }

    /// Writes the bytes to `data` that are held back as the possible beginning of a secret. The caller calls this when
    /// no more output has followed for a while. Returns true if `data` now contains the JSON of an output event.
    pub(super) fn show(&mut self, data: &mut Vec<u8>) -> bool {
        self.redactor.show(&mut self.bytes);
        self.write(false, data)
    }

    /// True if bytes are held back that [`Self::show`] may emit.
    pub(super) fn waits(&self) -> bool {
        self.redactor.waits()
    }

    fn write(&mut self, last: bool, data: &mut Vec<u8>) -> bool {
        let whole = std::str::from_utf8(&self.bytes);
        let complete = match whole {
            Err(error) if !last && error.error_len().is_none() => error.valid_up_to(),
            _ => self.bytes.len(),
        };
        if complete == 0 {
            return false;
        }
        data.clear();
        data.extend_from_slice(b"{\"stream\":\"");
        data.extend_from_slice(self.stream.name().as_bytes());
        // Validate a second time only if a character is incomplete: this code handles every byte of output.
        match whole.or_else(|_| std::str::from_utf8(&self.bytes[..complete])) {
            Ok(text) => {
                data.extend_from_slice(b"\",\"text\":");
                quote(text, data);
            }
            Err(_) => {
                data.extend_from_slice(b"\",\"base64\":\"");
                data.extend_from_slice(base64(&self.bytes[..complete]).as_bytes());
                data.push(b'"');
            }
        }
        data.push(b'}');
        self.bytes.drain(..complete);
        true
    }
}
