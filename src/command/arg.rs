//! One argument of a command, as far as it is known before the command runs.

use std::borrow::Cow;

/// An argument's bytes, and whether they are all of it.
///
/// From a real argv every argument is exact. In shell text an expansion makes a hole: then only the bytes before it
/// are known, and if the expansion is unquoted the argument may turn into several, or none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Arg {
    bytes: Vec<u8>,
    hole: Option<Hole>,
}

/// The unknown rest of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hole {
    /// The whole word as it was written, for messages.
    written: Box<[u8]>,
    splits: bool,
    /// The hole is a placeholder (`{}`) that stands in `written` as an ordinary word.
    placeholder: bool,
}

impl Arg {
    /// An argument that is fully known.
    pub fn exact(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), hole: None }
    }

    /// An argument of which only `prefix` is known; `written` is its source text.
    pub fn partial(prefix: impl Into<Vec<u8>>, written: &[u8], splits: bool) -> Self {
        Self {
            bytes: prefix.into(),
            hole: Some(Hole { written: written.into(), splits, placeholder: false }),
        }
    }

    /// An argument with a placeholder that a wrapper (`xargs -I{}`, `find -exec`) replaces when it runs.
    pub(crate) fn template(prefix: impl Into<Vec<u8>>, written: &[u8]) -> Self {
        Self {
            bytes: prefix.into(),
            hole: Some(Hole { written: written.into(), splits: false, placeholder: true }),
        }
    }

    /// The argument as text for a shell: known, or with the placeholder standing for whatever comes there.
    pub(crate) fn as_text(&self) -> Option<&[u8]> {
        match &self.hole {
            None => Some(&self.bytes),
            Some(hole) => hole.placeholder.then_some(&hole.written),
        }
    }

    /// The argument's bytes, if all of them are known.
    pub fn known(&self) -> Option<&[u8]> {
        self.hole.is_none().then_some(self.bytes.as_slice())
    }

    /// The bytes that are known: all, or those before the first expansion.
    pub fn prefix(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether every byte is known.
    pub fn is_exact(&self) -> bool {
        self.hole.is_none()
    }

    /// Whether it may become several arguments, or none, when the command runs.
    pub fn splits(&self) -> bool {
        self.hole.as_ref().is_some_and(|hole| hole.splits)
    }

    /// The argument for messages: its text, or the source it was written as; shell-quoted where that is needed.
    pub fn display(&self) -> Cow<'_, str> {
        match &self.hole {
            None => match String::from_utf8_lossy(&self.bytes) {
                Cow::Borrowed(text) => shell_words::quote(text),
                Cow::Owned(text) => Cow::Owned(shell_words::quote(&text).into_owned()),
            },
            Some(hole) => String::from_utf8_lossy(&hole.written),
        }
    }

    /// The same argument without its first `count` bytes (which must be known).
    pub(crate) fn skip(&self, count: usize) -> Self {
        let bytes = self.bytes.get(count..).unwrap_or_default().to_vec();
        Self { bytes, hole: self.hole.clone() }
    }
}

impl From<&str> for Arg {
    fn from(text: &str) -> Self {
        Self::exact(text)
    }
}

/// Arguments as one line for messages, cut where it gets long.
pub fn display_line<'a>(args: impl IntoIterator<Item = &'a Arg>) -> String {
    const MOST: usize = 200;
    let mut line = String::new();
    for arg in args {
        if !line.is_empty() {
            line.push(' ');
        }
        if arg.prefix().len() > MOST {
            // Cut before it is quoted: a megabyte of message is not copied to show a line of it.
            line.push_str(&Arg::exact(&arg.prefix()[..MOST + 1]).display());
        } else {
            line.push_str(&arg.display());
        }
        if line.contains(|c: char| c.is_control()) {
            // Nothing that a command contains may move a reader's cursor.
            line = line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        }
        if line.len() > MOST {
            let end = (0..=MOST).rev().find(|&at| line.is_char_boundary(at)).unwrap_or(0);
            line.truncate(end);
            line.push('…');
            break;
        }
    }
    line
}
