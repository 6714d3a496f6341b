//! Reads any bytes as a transcript, whole and in pieces. For each complete line the reader must return exactly one
//! event or error, and both ways must return the same.
#![no_main]

use guard::run::transcript::{Reader, Step};
use libfuzzer_sys::fuzz_target;

/// A reader that returns a few bytes at a time, like a file that is still growing.
struct Slow<'a>(&'a [u8]);

impl std::io::Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = buffer.len().min(self.0.len()).min(3);
        buffer[..length].copy_from_slice(&self.0[..length]);
        self.0 = &self.0[length..];
        Ok(length)
    }
}

fn lines<R: std::io::Read>(mut reader: Reader<R>) -> (Vec<String>, usize) {
    let mut found = Vec::new();
    loop {
        match reader.step().expect("memory can be read") {
            Step::Event(event) => {
                let _ = (event.output(), event.time(), event.is_denial());
                found.push(format!("{event:?}"));
            }
            Step::Bad(why) => found.push(why),
            Step::End { partial } => return (found, partial),
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let whole = lines(Reader::new(bytes));
    assert_eq!(whole.0.len(), bytes.iter().filter(|byte| **byte == b'\n').count());
    assert_eq!(whole, lines(Reader::new(Slow(bytes))));
});
