//! Filters recorded terminal output, so that only text and drawing sequences reach the terminal.
//!
//! A recording contains bytes that an agent chose. If guard printed them unchanged, they could set the clipboard,
//! make the terminal send replies that the user's shell reads as input, or leave the mouse captured. The filter
//! passes text, colours, cursor movement and screen changes, and nothing else.

/// The maximum length of a control sequence that the filter passes, in bytes. Drawing sequences are much shorter.
const LONGEST: usize = 64;

/// The private modes of terminals that the filter does not pass. They make the terminal send input, or leave it in a
/// bad state if the recording is incomplete.
const INPUT_MODES: &[&str] = &[
    "9", "1000", "1001", "1002", "1003", "1004", "1005", "1006", "1007", "1015", "1016", "2004", "2031",
    "2048",
];

#[derive(Default)]
enum Place {
    #[default]
    Text,
    /// The next byte belongs to an escape sequence: ESC has been read, and `sequence` contains the bytes after it.
    Escape,
    /// The next byte belongs to a control sequence, which begins with ESC [.
    Control,
    /// The next byte belongs to a string sequence, which ends with BEL or ESC \.
    String,
    /// The last byte was an ESC in a string sequence, which the next byte may end.
    StringEscape,
    /// The last byte was 0xC2, which may begin the UTF-8 encoding of an eight-bit control character.
    Latin,
}

/// The filter, with its state between two pieces of output.
#[derive(Default)]
pub(in crate::cli) struct Screen {
    place: Place,
    sequence: Vec<u8>,
}

impl Screen {
    /// The sequence that resets a terminal: default colours, visible cursor, main screen.
    pub(in crate::cli) const RESTORE: &'static [u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

    /// Filters a piece of output, and returns the bytes that may be printed.
    pub(in crate::cli) fn drawn(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            self.step(byte, &mut out);
        }
        out
    }

    fn step(&mut self, byte: u8, out: &mut Vec<u8>) {
        self.place = match (&self.place, byte) {
            (Place::String, 0x1b) => Place::StringEscape,
            (Place::String, 0x07) | (Place::StringEscape, b'\\') => Place::Text,
            (Place::String, _) => Place::String,
            (Place::StringEscape, _) => Place::String,
            (_, 0x1b) => {
                self.sequence.clear();
                Place::Escape
            }
            (Place::Text, 0xc2) => Place::Latin,
            (Place::Text, _) => {
                // ENQ makes the terminal send a reply; DEL and NUL draw nothing.
                if !matches!(byte, 0x00 | 0x05 | 0x7f) {
                    out.push(byte);
                }
                Place::Text
            }
            (Place::Latin, 0x80..=0x9f) => Place::Text,
            (Place::Latin, _) => {
                out.extend([0xc2, byte]);
                Place::Text
            }
            (Place::Escape, _) => self.escape(byte, out),
            (Place::Control, _) => self.control(byte, out),
        };
    }

    fn escape(&mut self, byte: u8, out: &mut Vec<u8>) -> Place {
        match byte {
            b'[' => return Place::Control,
            b']' | b'P' | b'X' | b'^' | b'_' => return Place::String,
            // A sequence that selects a character set has one more byte.
            b'(' | b')' if self.sequence.is_empty() => {
                self.sequence.push(byte);
                return Place::Escape;
            }
            b'0' | b'B' if !self.sequence.is_empty() => out.extend([0x1b, self.sequence[0], byte]),
            b'7' | b'8' | b'D' | b'E' | b'M' | b'=' | b'>' | b'c' if self.sequence.is_empty() => {
                out.extend([0x1b, byte]);
            }
            _ => {}
        }
        Place::Text
    }

    fn control(&mut self, byte: u8, out: &mut Vec<u8>) -> Place {
        if !(0x40..=0x7e).contains(&byte) {
            self.sequence.push(byte);
            return if self.sequence.len() > LONGEST { Place::Text } else { Place::Control };
        }
        let parameters = String::from_utf8_lossy(&self.sequence);
        let plain = parameters.bytes().all(|byte| byte.is_ascii_digit() || b";:".contains(&byte));
        let private = parameters.strip_prefix('?').is_some_and(|modes| {
            matches!(byte, b'h' | b'l' | b'J' | b'K')
                && modes.split(';').all(|mode| !INPUT_MODES.contains(&mode))
        });
        if (plain && b"@ABCDEFGHIJKLMPSTXZ`abdefghlmrsu".contains(&byte)) || private {
            out.extend_from_slice(b"\x1b[");
            out.extend_from_slice(&self.sequence);
            out.push(byte);
        }
        Place::Text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(text: &str) -> String {
        // Pass the input byte by byte, so that the test covers split sequences.
        let mut screen = Screen::default();
        let bytes: Vec<u8> = text.bytes().flat_map(|byte| screen.drawn(&[byte])).collect();
        let whole = Screen::default().drawn(text.as_bytes());
        assert_eq!(bytes, whole);
        String::from_utf8(bytes).expect("text stays text")
    }

    #[test]
    fn drawing_passes() {
        for text in [
            "plain, é, 漢字\r\n\ttab \u{a0} nbsp",
            "\x1b[1;32mgreen\x1b[0m \x1b[38:2::1:2:3mtrue\x1b[m",
            "\x1b[2J\x1b[H\x1b[?25l\x1b[10;3Hx\x1b[K\x1b[?1049h\x1b(0qqq\x1b(B\x1b7\x1b8",
        ] {
            assert_eq!(drawn(text), text);
        }
    }

    #[test]
    fn what_does_more_than_draw_is_left_out() {
        for (text, left) in [
            ("a\x1b]52;c;aGk=\x07b", "ab"),
            ("a\x1b]0;title\x1b\\b", "ab"),
            ("a\x1bP$qm\x1b\\b", "ab"),
            ("a\x1b[6nb\x1b[cb\x1b[>qb\x1b[18tb\x1b[?2026$pb", "abbbbb"),
            ("a\x1b[?1000hb\x1b[?2004hc\x1b[?1049;1006hd", "abcd"),
            ("a\x05b\x1bZc\u{9b}6nd", "abc6nd"),
            ("a\x1b_Gi=1\x1b\\b", "ab"),
        ] {
            assert_eq!(drawn(text), left, "{text:?}");
        }
    }
}
