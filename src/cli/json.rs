//! Prints the JSON output of commands that the user started with `--json`.
//!
//! The values contain texts that an agent chose, and the output may go to a terminal. Therefore control characters,
//! bidirectional and invisible characters are written as escapes, which do not change the value.

use std::io::Write;

use serde::Serialize;
use serde_json::Value;

use super::Failure;
use crate::terminal_text::is_unsafe;

/// Prints a value as indented JSON, which people can also read.
pub(super) fn print_json(value: &Value, out: &mut dyn Write) -> Result<(), Failure> {
    to_writer_pretty(&mut *out, value).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Writes a value as JSON on one line, without a line end.
pub(super) fn to_writer<T: Serialize + ?Sized>(mut out: impl Write, value: &T) -> serde_json::Result<()> {
    let text = serde_json::to_string(value)?;
    out.write_all(escaped(&text).as_bytes()).map_err(serde_json::Error::io)
}

/// Writes a value as indented JSON, without a line end.
pub(super) fn to_writer_pretty<T: Serialize + ?Sized>(
    mut out: impl Write,
    value: &T,
) -> serde_json::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    out.write_all(escaped(&text).as_bytes()).map_err(serde_json::Error::io)
}

/// Replaces unsafe characters by escapes. In JSON text they occur only in strings, except for the line ends of indented
/// JSON.
fn escaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for one in text.chars() {
        if is_unsafe(one) && one != '\n' {
            for unit in one.encode_utf16(&mut [0; 2]) {
                plain.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            plain.push(one);
        }
    }
    plain
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends where something goes wrong")]
mod tests {
    use super::*;

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
