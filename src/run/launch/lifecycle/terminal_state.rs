//! Follows what the agent's output changes in the user's terminal, so that guard's own lines are shown as text.
//!
//! An agent can end, or be killed, in the middle of a control sequence. The terminal would take guard's next line for
//! the rest of the sequence, and not show it. In the same way an agent can leave invisible colours, another character
//! set or the alternate screen behind.
//!
//! Terminals differ in what they understand. If in doubt, this module assumes that a byte had an effect: sequences that
//! end or reset something have no effect on a terminal where there is nothing to end or reset.

/// The private modes that an agent may leave changed: the number, and whether the mode is usually set.
const MODES: [(u16, bool); 23] = [
    (1, false),    // cursor keys send other sequences
    (5, false),    // inverted screen
    (6, false),    // cursor positions relative to the scroll region
    (7, true),     // lines wrap
    (9, false),    // the mouse is reported
    (25, true),    // the cursor is visible
    (66, false),   // the keypad sends other sequences
    (1000, false), // the mouse is reported
    (1001, false),
    (1002, false),
    (1003, false),
    (1004, false), // the focus is reported
    (1005, false),
    (1006, false),
    (1007, false),
    (1015, false),
    (1016, false),
    (2004, false), // pasted text is marked
    (2026, false), // the screen is not updated
    (2031, false), // the colour scheme is reported
    (2048, false), // the size is reported
    (47, false),   // the alternate screen
    (1047, false),
];
/// The mode of the alternate screen that also saves the cursor. Resetting it moves the cursor, so guard resets it only
/// if it is set.
const ALTERNATE_SCREEN: u16 = 1049;

/// Ends an unfinished control sequence or string: CAN, ST.
const END_SEQUENCE: &str = "\x18\x1b\\";
/// Plain colours, ASCII, and characters that do not overwrite by shifting the others.
const PLAIN_TEXT: &str = "\x1b[0m\x1b(B\x0f\x1b[4l";
/// The whole screen scrolls. This sequence moves the cursor, so guard saves and restores its position.
const WHOLE_SCREEN: &str = "\x1b7\x1b[r\x1b8";
/// The usual palette, text colour, background and cursor colour.
const USUAL_COLOURS: &str = "\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b]112\x1b\\";

/// The maximum number of parameter bytes of a sequence that this module reads. Longer sequences do not occur.
const LONGEST: usize = 256;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Text,
    Escape,
    EscapeIntermediate,
    /// In a control sequence, which began with ESC [.
    Control,
    /// In an operating system command, which began with ESC ].
    Command,
    /// After 0xC2, which may begin the UTF-8 encoding of an eight-bit control character.
    Latin,
}

/// The effects of the agent's output on the terminal that outlast it.
#[derive(Debug, Default)]
pub(crate) struct TerminalState {
    place: Place,
    parameters: Vec<u8>,
    /// True if there was a byte other than ASCII text, tabs and line ends.
    has_controls: bool,
    /// True if the last byte ended a line, so that the cursor is probably in the first column.
    has_line_end: bool,
    /// The private modes that are not as usual.
    changed_modes: Vec<u16>,
    has_scroll_region: bool,
    has_other_colours: bool,
}

impl TerminalState {
    pub(crate) fn follow(&mut self, bytes: &[u8]) {
        self.has_line_end = bytes.last().map_or(self.has_line_end, |byte| *byte == b'\n');
        for &byte in bytes {
            self.step(byte);
        }
    }

    /// Returns the bytes that end what the output may have left unfinished, so that the terminal shows the next byte as
    /// text, in the first column. They change nothing else.
    pub(crate) fn begin_line(&self) -> String {
        let sequence = if self.has_controls { END_SEQUENCE } else { "" };
        let line_end = if self.has_line_end { "" } else { "\r\n" };
        format!("{sequence}{line_end}")
    }

    /// Returns the bytes that give the terminal back as it usually is: empty if the output was plain text. Forgets what
    /// the output did.
    pub(crate) fn restore(&mut self) -> String {
        let state = std::mem::take(self);
        if !state.has_controls {
            return String::new();
        }
        let mut text = format!("{END_SEQUENCE}{PLAIN_TEXT}");
        if state.has_other_colours {
            text.push_str(USUAL_COLOURS);
        }
        if state.has_scroll_region {
            text.push_str(WHOLE_SCREEN);
        }
        for (mode, is_usual) in MODES {
            if state.changed_modes.contains(&mode) {
                text.push_str(&format!("\x1b[?{mode}{}", if is_usual { 'h' } else { 'l' }));
            }
        }
        if state.changed_modes.contains(&ALTERNATE_SCREEN) {
            text.push_str(&format!("\x1b[?{ALTERNATE_SCREEN}l"));
            // The sequences before may have reached only the alternate screen.
            text.push_str(PLAIN_TEXT);
        }
        text
    }

    fn step(&mut self, byte: u8) {
        if !matches!(byte, b' '..=b'~' | b'\t' | b'\n' | b'\r') {
            self.has_controls = true;
        }
        self.place = match (self.place, byte) {
            // ESC, CAN and SUB end every sequence and string.
            (_, 0x1b) => Place::Escape,
            (_, 0x18 | 0x1a) => Place::Text,
            (Place::Text, 0xc2) => Place::Latin,
            // The eight-bit controls, as UTF-8 or as a single byte. They stand for ESC and a byte of 0x40 to 0x5f.
            (Place::Latin | Place::Text, 0x80..=0x9f) => self.escape(byte - 0x40),
            (Place::Text | Place::Latin, _) => Place::Text,
            (Place::Escape, _) => self.escape(byte),
            (Place::EscapeIntermediate, _) => Place::Text,
            (Place::Control, _) => self.control(byte),
            (Place::Command, _) => self.command(byte),
        };
    }

    /// Handles the byte after ESC.
    fn escape(&mut self, byte: u8) -> Place {
        self.parameters.clear();
        match byte {
            b'[' => Place::Control,
            b']' => Place::Command,
            b' '..=b'/' => Place::EscapeIntermediate,
            b'c' => {
                // A full reset.
                *self = Self { has_controls: true, ..Self::default() };
                Place::Text
            }
            _ => Place::Text,
        }
    }

    fn control(&mut self, byte: u8) -> Place {
        if !(0x40..=0x7e).contains(&byte) {
            return self.parameter(byte, Place::Control);
        }
        let parameters = std::mem::take(&mut self.parameters);
        match (byte, parameters.strip_prefix(b"?")) {
            (b'h' | b'l', Some(modes)) => {
                for mode in modes.split(|byte| matches!(byte, b';' | b':')) {
                    self.set_mode(mode, byte == b'h');
                }
            }
            (b'r', None) => self.has_scroll_region = true,
            _ => {}
        }
        Place::Text
    }

    fn set_mode(&mut self, mode: &[u8], is_set: bool) {
        let Some(mode) = std::str::from_utf8(mode).ok().and_then(|text| text.parse().ok()) else { return };
        let usual = MODES.iter().find(|(known, _)| *known == mode).map(|(_, is_usual)| *is_usual);
        let usual = usual.or((mode == ALTERNATE_SCREEN).then_some(false));
        self.changed_modes.retain(|known| *known != mode);
        if usual.is_some_and(|usual| usual != is_set) {
            self.changed_modes.push(mode);
        }
    }

    /// Handles a byte of an operating system command. The numbers 4 and 10 to 19 change colours.
    fn command(&mut self, byte: u8) -> Place {
        match byte {
            0x07 => Place::Text,
            b'0'..=b'9' => self.parameter(byte, Place::Command),
            _ => {
                self.has_other_colours |= matches!(self.parameters.as_slice(), b"4" | [b'1', b'0'..=b'9']);
                // The rest of the command is text, which begins no sequence.
                self.parameters = vec![b';'];
                Place::Command
            }
        }
    }

    fn parameter(&mut self, byte: u8, place: Place) -> Place {
        if self.parameters.len() < LONGEST {
            self.parameters.push(byte);
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn state(text: impl AsRef<[u8]>) -> TerminalState {
        let mut state = TerminalState::default();
        state.follow(text.as_ref());
        state
    }

    #[test]
    fn plain_text_needs_nothing() {
        for text in ["", "plain\r\n\ttext\n", "no newline"] {
            assert_eq!(state(text).restore(), "", "{text:?}");
            assert!(!state(text).begin_line().contains(END_SEQUENCE), "{text:?}");
        }
    }

    #[test]
    fn a_line_begins_in_the_first_column() {
        assert_eq!(state("text").begin_line(), "\r\n");
        assert_eq!(state("text\r\n").begin_line(), "");
        assert_eq!(state("").begin_line(), "\r\n", "the terminal may have shown ^C");
    }

    #[test]
    fn what_is_left_open_is_ended_first() {
        for text in
            ["\x1b", "\x1b[1", "\x1b]0;title", "\x1bP", "\u{9b}", "\u{90}", "é", "\x1b[1mbold", "\x0e"]
        {
            assert_eq!(state(text).begin_line(), format!("{END_SEQUENCE}\r\n"), "{text:?}");
            assert!(state(text).restore().starts_with(END_SEQUENCE), "{text:?}");
        }
        assert!(state([0xe6, 0xbc]).restore().starts_with(END_SEQUENCE), "half a character");
    }

    #[test]
    fn only_what_the_output_changed_is_restored() {
        for (text, expected) in [
            ("\x1b[?1049h", "\x1b[?1049l"),
            ("\x1b[?25l\x1b[?2004;1006h", "\x1b[?25h\x1b[?1006l\x1b[?2004l"),
            ("\x1b]0;title\x1b[?47h", "\x1b[?47l"),
            ("\u{9b}?2026h", "\x1b[?2026l"),
            ("\x1b[2;5r", WHOLE_SCREEN),
            ("\x1b]11;#000000\x07", USUAL_COLOURS),
            ("\x1b]4;1;red\x1b\\", USUAL_COLOURS),
        ] {
            let restored = state(text).restore();
            assert_eq!(restored.replace(PLAIN_TEXT, ""), format!("{END_SEQUENCE}{expected}"), "{text:?}");
        }
        for text in ["\x1b[?1049h\x1b[?1049l", "\x1b[?25l\x1b[?25h", "\x1b[?1049h\x1bc", "\x1b]52;c;4\x07"] {
            assert_eq!(state(text).restore(), format!("{END_SEQUENCE}{PLAIN_TEXT}"), "{text:?}");
        }
    }

    proptest! {
        /// After any output, the text that follows begins outside of every sequence, and the state is as at the start.
        #[test]
        fn any_output_is_ended(bytes in proptest::collection::vec(any::<u8>(), 0..200), rest in "[\\x1b\\[\\]?;0-9hlPr]{0,40}") {
            let mut state = state(&bytes);
            state.follow(rest.as_bytes());
            prop_assert!(state.parameters.len() <= LONGEST);
            let restored = state.restore();
            prop_assert!(restored.is_empty() == (bytes.iter().chain(rest.as_bytes()).all(|byte| matches!(byte, b' '..=b'~' | b'\t' | b'\n' | b'\r'))));
            let mut after = TerminalState::default();
            after.follow(&bytes);
            after.follow(rest.as_bytes());
            after.follow(restored.as_bytes());
            prop_assert_eq!(after.place, Place::Text);
            prop_assert!(after.changed_modes.is_empty());
        }
    }
}
