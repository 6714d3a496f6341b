//! Makes untrusted text, such as an agent's file names, safe to show on a terminal or in a report.
//!
//! Control characters move the cursor, bidirectional controls change the order in which other characters are drawn, and
//! invisible characters make two different texts look alike. All code in guard that shows untrusted text uses these
//! functions, so that there is one set of unsafe characters. Visible characters pass unchanged, including letters that
//! look like other letters.

use std::borrow::Cow;

/// Returns true if a character is not drawn, or changes how other characters are drawn: `Default_Ignorable_Code_Point`
/// and `Bidi_Control` of Unicode 16, line and paragraph separators, interlinear annotations.
pub(crate) fn is_invisible(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns true if a character must be replaced or escaped before it reaches a terminal or a line of a report.
pub(crate) fn is_unsafe(character: char) -> bool {
    let number = u32::from(character);
    // Unicode reserves the last two code points of every plane, and 32 more, as noncharacters.
    let is_noncharacter = number & 0xfffe == 0xfffe || (0xfdd0..=0xfdef).contains(&number);
    character.is_control() || is_invisible(character) || is_noncharacter
}

/// Replaces every unsafe character, including line ends, with U+FFFD.
pub(crate) fn replace(text: &str) -> String {
    text.chars().map(|one| if is_unsafe(one) { '\u{fffd}' } else { one }).collect()
}

/// Turns the text into one line: tabs and line ends become spaces, other unsafe characters become U+FFFD.
pub(crate) fn one_line(text: &str) -> String {
    let shown = |one: char| match one {
        '\t' | '\n' | '\r' => ' ',
        one if is_unsafe(one) => '\u{fffd}',
        one => one,
    };
    text.chars().map(shown).collect()
}

/// Escapes every unsafe character except tabs, for example as `\u{202e}` or `\n`.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for one in text.chars() {
        push_escaped(&mut out, one);
    }
    out.into()
}

/// Appends a character to a text. Escapes it if it is unsafe and not a tab.
pub(crate) fn push_escaped(out: &mut String, character: char) {
    match character {
        '\t' => out.push('\t'),
        one if is_unsafe(one) => out.extend(one.escape_default()),
        one => out.push(one),
    }
}

/// Shortens a text of more than `most` bytes to its beginning and end, which have at most `most` bytes together, with
/// the number of omitted bytes between them.
pub(crate) fn shorten(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return text.into();
    }
    let (head, tail) = (before(text, most - most / 3), after(text, most / 3));
    let left_out = text.len() - head.len() - tail.len();
    format!("{head}… ({left_out} bytes not shown) …{tail}").into()
}

/// Returns the beginning of a text: at most `most` bytes, cut at a character boundary.
pub(crate) fn before(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

/// Returns the end of a text: at most `most` bytes, cut at a character boundary.
pub(crate) fn after(text: &str, most: usize) -> &str {
    let start = (text.len().saturating_sub(most)..=text.len()).find(|&at| text.is_char_boundary(at));
    &text[start.unwrap_or(0)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranges of characters that the Unicode Character Database 16.0 lists as `Default_Ignorable_Code_Point`.
    const DEFAULT_IGNORABLE: [(u32, u32); 17] = [
        (0xad, 0xad),
        (0x34f, 0x34f),
        (0x61c, 0x61c),
        (0x115f, 0x1160),
        (0x17b4, 0x17b5),
        (0x180b, 0x180f),
        (0x200b, 0x200f),
        (0x202a, 0x202e),
        (0x2060, 0x206f),
        (0x3164, 0x3164),
        (0xfe00, 0xfe0f),
        (0xfeff, 0xfeff),
        (0xffa0, 0xffa0),
        (0xfff0, 0xfff8),
        (0x1bca0, 0x1bca3),
        (0x1d173, 0x1d17a),
        (0xe0000, 0xe0fff),
    ];
    const BIDI_CONTROL: [(u32, u32); 4] =
        [(0x61c, 0x61c), (0x200e, 0x200f), (0x202a, 0x202e), (0x2066, 0x2069)];
    const OTHERS: [(u32, u32); 6] =
        [(0, 0x1f), (0x7f, 0x9f), (0x2028, 0x2029), (0xfff9, 0xfffb), (0xfdd0, 0xfdef), (0xfffe, 0xffff)];

    /// The characters in the lists, and the last two of each Unicode plane, must be unsafe, and no others.
    #[test]
    fn the_set_is_the_one_of_the_lists() {
        let lists = || DEFAULT_IGNORABLE.iter().chain(&BIDI_CONTROL).chain(&OTHERS);
        for one in '\0'..=char::MAX {
            let number = u32::from(one);
            let is_listed = lists().any(|&(from, to)| (from..=to).contains(&number));
            let is_last_of_plane = number & 0xffff >= 0xfffe;
            assert_eq!(is_unsafe(one), is_listed || is_last_of_plane, "U+{number:04X}");
        }
    }

    #[test]
    fn nothing_unsafe_is_left() {
        let all: String = ('\0'..=char::MAX).filter(|one| is_unsafe(*one)).collect();
        assert!(!replace(&all).chars().any(is_unsafe));
        assert!(!one_line(&all).chars().any(is_unsafe));
        assert!(!escape(&all).chars().any(|one| one != '\t' && is_unsafe(one)));
        assert_eq!(escape("plain ö 漢字 🙂"), "plain ö 漢字 🙂");
        assert_eq!(escape("a\u{200b}b\u{2028}c\td\n"), "a\\u{200b}b\\u{2028}c\td\\n");
        assert_eq!(one_line("a\nb\u{202e}"), "a b\u{fffd}");
    }

    #[test]
    fn both_ends_of_a_long_text_are_shown() {
        assert_eq!(shorten("short", 5), "short");
        let long = format!("{}{}", "ä".repeat(500), "end");
        let short = shorten(&long, 90);
        assert!(
            short.starts_with("ää") && short.ends_with("end") && short.contains("bytes not shown"),
            "{short}"
        );
        assert!(short.len() < 130);
    }
}
