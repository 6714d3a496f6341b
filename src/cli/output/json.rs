//! Prints the JSON output of commands that the user started with `--json`.
//!
//! The values contain texts that an agent chose, and the output may go to a terminal. Therefore control characters,
//! bidirectional and invisible characters are written as escapes, which do not change the value.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;

use crate::cli::Failure;
use crate::text::terminal_text::is_unsafe;

/// Prints a value as indented JSON, which people can also read.
pub(in crate::cli) fn print_json(value: &Value, out: &mut dyn Write) -> Result<(), Failure> {
    to_writer_pretty(&mut *out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Writes a value as JSON on one line, without a line end.
pub(in crate::cli) fn to_writer<T: Serialize + ?Sized>(out: impl Write, value: &T) -> serde_json::Result<()> {
    serde_json::to_writer(EscapingWriter { out }, value)
}

/// Writes a value as indented JSON, without a line end.
pub(in crate::cli) fn to_writer_pretty<T: Serialize + ?Sized>(
    out: impl Write,
    value: &T,
) -> serde_json::Result<()> {
    serde_json::to_writer_pretty(EscapingWriter { out }, value)
}

/// Writes JSON text that guard has stored, such as a line of a transcript. Replaces what is not UTF-8 by U+FFFD.
pub(in crate::cli) fn write_stored(out: impl Write, json: &[u8]) -> io::Result<()> {
    EscapingWriter { out }.write_all(String::from_utf8_lossy(json).as_bytes())
}

/// Writes JSON text with escapes in place of unsafe characters. In JSON text these occur only in strings, except for the
/// line ends of indented JSON.
struct EscapingWriter<W> {
    out: W,
}

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // serde_json splits strings only at ASCII characters.
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        let mut rest = text;
        while let Some((at, one)) = rest.char_indices().find(|(_, one)| is_unsafe(*one) && *one != '\n') {
            self.out.write_all(&rest.as_bytes()[..at])?;
            for unit in one.encode_utf16(&mut [0; 2]) {
                write!(self.out, "\\u{unit:04x}")?;
            }
            rest = &rest[at + one.len_utf8()..];
        }
        self.out.write_all(rest.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends where something goes wrong")]
mod tests {
    use super::*;

    #[test]
    fn stored_json_keeps_its_value() {
        let value = serde_json::json!({ "a\u{9b}b": "c\u{202e}d\u{e0041}e\nf\u{7f}g" });
        let mut out = Vec::new();
        write_stored(&mut out, value.to_string().as_bytes()).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(!text.chars().any(is_unsafe), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn unsafe_characters_are_escaped_and_values_are_the_same() {
        let value = serde_json::json!({ "a\u{9b}b": "c\u{202e}d\u{e0041}e\nf\u{7f}g", "h": ["ä€😀"] });
        let (mut line, mut indented): (Vec<u8>, Vec<u8>) = Default::default();
        to_writer(&mut line, &value).unwrap();
        to_writer_pretty(&mut indented, &value).unwrap();
        for out in [line, indented] {
            let text = String::from_utf8(out).unwrap();
            assert!(!text.chars().any(|one| is_unsafe(one) && one != '\n'), "{text:?}");
            assert!(text.contains("ä€😀"));
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
    }
}
