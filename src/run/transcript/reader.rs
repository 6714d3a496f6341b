//! Reads the events of a transcript file one at a time, in bounded memory.
//!
//! The file may still grow: after the end, the reader can be called again. An incomplete last line counts as
//! the end, not as an error. The reader does not check the content of events; `verify` does.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use memchr::memmem::Finder;

use super::event::Event;
use crate::sys::fs::{Links, open_regular_file};

/// Maximum length of a line. The writer never makes longer lines, and the reader skips them.
pub const LONGEST_LINE: usize = 16 << 20;

/// The result of one call of [`Reader::step`].
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    Event(Box<Event>),
    /// A line that is not an event; the text says why.
    Bad(String),
    /// The end of the file. The file may end with an incomplete line.
    End {
        /// The number of bytes after the last newline, that is, of the incomplete line.
        partial: usize,
    },
}

/// Reads one transcript from its beginning.
pub struct Reader<R = File> {
    input: BufReader<R>,
    line: Vec<u8>,
    /// True if the caller has already received the line in `line`.
    given: bool,
    /// True if the current line is too long, so that the reader skips the rest of it.
    skipping: bool,
}

impl Reader<File> {
    /// Opens a transcript. Fails at once if the path is a pipe or a device, which could block.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::new(open_file(path)?))
    }
}

/// Opens a regular file. Fails for anything else, which could block or never end.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    Ok(open_regular_file(path, u64::MAX, Links::Follow)?)
}

impl<R: Read> Reader<R> {
    pub fn new(input: R) -> Self {
        let input = BufReader::with_capacity(64 << 10, input);
        Self { input, line: Vec::new(), given: true, skipping: false }
    }

    /// Returns the bytes of the line that [`Self::step`] returned last, without the newline.
    pub fn line(&self) -> &[u8] {
        self.line.strip_suffix(b"\n").unwrap_or(&self.line)
    }

    /// Reads the next line. After [`Step::End`], it can be called again to read what was added to the file.
    pub fn step(&mut self) -> io::Result<Step> {
        if !self.fill()? {
            return Ok(Step::End { partial: self.line.len() });
        }
        Ok(self.parse())
    }

    /// Reads up to the next line that contains `text`, and skips all others without parsing them, which takes a tenth of
    /// the time. The writer escapes only quotes, backslashes and control characters, so every event whose type begins with
    /// `x` contains the text `"x`.
    pub fn step_to(&mut self, text: &Finder<'_>) -> io::Result<Step> {
        while self.fill()? {
            if self.skipping || text.find(&self.line).is_some() {
                return Ok(self.parse());
            }
            self.given = true;
        }
        Ok(Step::End { partial: self.line.len() })
    }

    /// Parses the complete line that [`Self::fill`] has read.
    fn parse(&mut self) -> Step {
        self.given = true;
        if std::mem::take(&mut self.skipping) {
            return Step::Bad(format!("the line is longer than {} MiB", LONGEST_LINE >> 20));
        }
        // Without this check serde would also accept an array of the field values.
        if !self.line.starts_with(b"{") {
            return Step::Bad("the line is not a JSON object".to_string());
        }
        match serde_json::from_slice::<Event>(self.line()) {
            Ok(event) => Step::Event(Box::new(event)),
            Err(error) => Step::Bad(format!("the line is not an event: {error}")),
        }
    }

    /// Reads up to the end of the current line, or of the next one if the caller has received the current one. Returns
    /// false if the input ends before the line does.
    fn fill(&mut self) -> io::Result<bool> {
        if std::mem::take(&mut self.given) {
            self.line.clear();
        }
        loop {
            let room = (LONGEST_LINE + 1 - self.line.len()) as u64;
            (&mut self.input).take(room).read_until(b'\n', &mut self.line)?;
            if self.line.ends_with(b"\n") {
                return Ok(true);
            }
            if self.line.len() <= LONGEST_LINE {
                return Ok(false);
            }
            self.skipping = true;
            self.line.clear();
        }
    }
}
