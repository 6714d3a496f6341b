//! Serializes events as lines, each of which contains the SHA-256 hash of the line before.

use std::ops::Range;

use sha2::{Digest, Sha256};

use super::event::Clock;

/// The value of `prev` in the first line of a transcript, which has no line before it.
pub(super) const BEGINNING: [u8; 64] = [b'0'; 64];

/// Returns the SHA-256 hash of a line without its newline, in hexadecimal: the value of `prev` in the next line.
pub(super) fn hash(line: &[u8]) -> [u8; 64] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 64];
    for (pair, byte) in text.chunks_exact_mut(2).zip(Sha256::digest(line)) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    text
}

pub(super) fn text(hash: &[u8; 64]) -> String {
    String::from_utf8_lossy(hash).into_owned()
}

/// The state that is needed to append a line to a transcript, mainly the number and the hash of the last line.
pub(super) struct Chain {
    run_id: Vec<u8>,
    clock: Clock,
    pub(super) seq: u64,
    pub(super) last: [u8; 64],
}

impl Chain {
    pub(super) fn new(run_id: &str) -> Self {
        Self { run_id: quoted(run_id), clock: Clock::default(), seq: 0, last: BEGINNING }
    }

    /// Returns an upper bound for the length of a line, including its newline. It exceeds the real length by less than
    /// 70 bytes.
    pub(super) fn length_of(&self, event_type: &str, message: &str, data: &[u8]) -> usize {
        /// An upper bound for the total length of a line's field names, time, sequence number and hash.
        const FIXED: usize = 240;
        FIXED + event_type.len() + quoted_length(message) + data.len() + self.run_id.len()
    }

    /// Appends a line and its newline to `out`; `data` is JSON. Returns the range of the line in `out`, without the
    /// newline.
    pub(super) fn append(
        &mut self,
        event_type: &str,
        message: &str,
        micros: i64,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Range<usize> {
        let start = out.len();
        out.extend_from_slice(b"{\"event_type\":");
        quote(event_type, out);
        out.extend_from_slice(b",\"message\":");
        quote(message, out);
        out.extend_from_slice(b",\"timestamp\":\"");
        self.clock.write(micros, out);
        out.extend_from_slice(b"\",\"data\":");
        out.extend_from_slice(data);
        out.extend_from_slice(b",\"run_id\":");
        out.extend_from_slice(&self.run_id);
        out.extend_from_slice(b",\"seq\":");
        self.seq += 1;
        number(self.seq, out);
        out.extend_from_slice(b",\"prev\":\"");
        out.extend_from_slice(&self.last);
        out.extend_from_slice(b"\"}");
        let line = start..out.len();
        self.last = hash(&out[line.clone()]);
        out.push(b'\n');
        line
    }
}

/// Appends `text` as a JSON string, with quotes and escapes, to `out`.
pub(super) fn quote(text: &str, out: &mut Vec<u8>) {
    // Writing to a `Vec` and serializing a string cannot fail.
    let _ = serde_json::to_writer(out, text);
}

/// Returns the length of a text as a JSON string, including its quotes.
fn quoted_length(text: &str) -> usize {
    let extra = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 1,
        0..0x20 => 5,
        _ => 0,
    };
    2 + text.len() + text.bytes().map(extra).sum::<usize>()
}

fn quoted(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    quote(text, &mut out);
    out
}

fn number(number: u64, out: &mut Vec<u8>) {
    let _ = serde_json::to_writer(out, &number);
}
