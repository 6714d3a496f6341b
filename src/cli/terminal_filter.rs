//! Filters recorded terminal output, so that only text and sequences that draw pass.
//!
//! A recording holds bytes that an agent chose. Printed as they are, they could set the clipboard, make the terminal
//! send replies that end up as input of the user's shell, or leave the mouse captured. Text, colours, cursor movement
//! and screen changes pass. Nothing else may.

/// The longest control sequence that passes, in bytes. Drawing sequences are much shorter.
const LONGEST: usize = 64;

/// Private modes that make the terminal send input, or that leave it in a bad state if the recording is incomplete.
const INPUT_MODES: &[&str] = &[
    "9", "1000", "1001", "1002", "1003", "1004", "1005", "1006", "1007", "1015", "1016", "2004", "2031",
    "2048",
];

#[derive(Default)]
enum Place {
    #[default]
    Text,
    /// Inside an escape sequence, after ESC; `sequence` holds the bytes that followed.
    Escape,
    /// Inside a control sequence, after ESC [.
    Control,
    /// Inside a string sequence, which ends with BEL or ESC \.
    String,
    /// Inside a string sequence, after an ESC that may end it.
    StringEscape,
    /// After 0xC2, which with the next byte may be an eight-bit control character.
    Latin,
}

/// The filter, with the state that it keeps between two pieces of output.
#[derive(Default)]
pub(super) struct Screen {
    place: Place,
    sequence: Vec<u8>,
}

impl Screen {
    /// The sequence that restores a terminal: default colours, visible cursor, main screen.
    pub(super) const RESTORE: &'static [u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

    /// Filters a piece of output, and returns the bytes that may be printed.
    pub(super) fn drawn(&mut self, bytes: &[u8]) -> Vec<u8> {
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
                // ENQ asks for a reply; DEL and NUL draw nothing.
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
            // The choice of a character set has one more byte.
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
        // Byte by byte, so that the test covers sequences that are split.
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
