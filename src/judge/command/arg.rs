//! One argument of a command, with the part of it that is known before the command runs.

use std::borrow::Cow;

use crate::text::terminal_text;

/// The bytes of an argument, and whether they are complete.
///
/// Every argument of a real argv is exact. In shell text, an expansion makes the rest of the argument unknown, and
/// only the bytes before the expansion are known. An unquoted expansion may turn the argument into several, or into
/// none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Arg {
    bytes: Vec<u8>,
    hole: Option<Hole>,
}

/// Describes the part of an argument that is not known before the command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hole {
    /// The whole argument as written in the shell text, for messages.
    written: Box<[u8]>,
    splits: bool,
    /// Whether the unknown part is a placeholder (`{}`), which appears in `written` as an ordinary word.
    placeholder: bool,
}

impl Arg {
    /// Returns an argument that is fully known.
    pub fn exact(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), hole: None }
    }

    /// Returns an argument of which only `prefix` is known; `written` is its source text. `splits` is true if the
    /// argument may become several arguments, or none, at run time.
    pub fn partial(prefix: impl Into<Vec<u8>>, written: &[u8], splits: bool) -> Self {
        Self {
            bytes: prefix.into(),
            hole: Some(Hole { written: written.into(), splits, placeholder: false }),
        }
    }

    /// Returns an argument with a placeholder that a wrapper (`xargs -I{}`, `find -exec`) replaces at run time.
    pub(crate) fn template(prefix: impl Into<Vec<u8>>, written: &[u8]) -> Self {
        Self {
            bytes: prefix.into(),
            hole: Some(Hole { written: written.into(), splits: false, placeholder: true }),
        }
    }

    /// Returns the argument as shell text, in which a placeholder such as `{}` stays as it is written. `None` if any
    /// other part of the argument is unknown.
    pub(crate) fn as_text(&self) -> Option<&[u8]> {
        match &self.hole {
            None => Some(&self.bytes),
            Some(hole) => hole.placeholder.then_some(&hole.written),
        }
    }

    /// Returns the argument's bytes; `None` if only some of them are known.
    pub fn known(&self) -> Option<&[u8]> {
        self.hole.is_none().then_some(self.bytes.as_slice())
    }

    /// Returns the known bytes of the argument: all of them, or those before the first expansion.
    pub fn prefix(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns true if every byte of the argument is known.
    pub fn is_exact(&self) -> bool {
        self.hole.is_none()
    }

    /// Returns true if the argument may become several arguments, or none, at run time.
    pub fn splits(&self) -> bool {
        self.hole.as_ref().is_some_and(|hole| hole.splits)
    }

    /// Returns the argument for messages: its bytes, quoted for a shell if necessary, or its source text if it is not
    /// fully known.
    pub fn display(&self) -> Cow<'_, str> {
        match &self.hole {
            None => match String::from_utf8_lossy(&self.bytes) {
                Cow::Borrowed(text) => shell_words::quote(text),
                Cow::Owned(text) => Cow::Owned(shell_words::quote(&text).into_owned()),
            },
            Some(hole) => String::from_utf8_lossy(&hole.written),
        }
    }

    /// Returns the same argument without its first `count` bytes, which must be known.
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

/// Formats arguments as one line of about `most` bytes. A longer line is shortened to its beginning and end, with the
/// number of omitted bytes and the text `note` between them.
pub(crate) fn display_line_within<'a>(
    args: impl IntoIterator<Item = &'a Arg>,
    most: usize,
    note: &str,
) -> String {
    let args: Vec<&Arg> = args.into_iter().collect();
    let (head_room, tail_room) = (most - most / 3, most / 3);
    // Shorten arguments before quoting, so that one line does not need a copy of a megabyte of text. Quoting only
    // makes text longer, so the omitted text would not have been shown anyway.
    let head_of = |arg: &&Arg| match arg.prefix() {
        long if long.len() > most => Arg::exact(&long[..most]).display().into_owned(),
        _ => arg.display().into_owned(),
    };
    let tail_of = |arg: &&Arg| match arg.prefix() {
        long if long.len() > most => Arg::exact(&long[long.len() - most..]).display().into_owned(),
        _ => arg.display().into_owned(),
    };
    let (mut head, mut shown) = (String::new(), 0);
    for arg in &args {
        if head.len() > most {
            break;
        }
        if shown > 0 {
            head.push(' ');
        }
        head.push_str(&head_of(arg));
        shown += 1;
    }
    let is_whole = shown == args.len() && args.iter().all(|arg| arg.prefix().len() <= most);
    if is_whole && head.len() <= most {
        return terminal_text::replace(&head);
    }
    let mut words: Vec<String> = Vec::new();
    let mut length = 0;
    for arg in args.iter().rev() {
        if length > tail_room {
            break;
        }
        let word = tail_of(arg);
        length += word.len() + 1;
        words.push(word);
    }
    words.reverse();
    let tail = words.join(" ");
    let (head, tail) = (terminal_text::before(&head, head_room), terminal_text::after(&tail, tail_room));
    let total = args.iter().map(|arg| arg.prefix().len() + 1).sum::<usize>().saturating_sub(1);
    let left_out = total.saturating_sub(head.len() + tail.len()).max(1);
    // The text must not contain escape sequences that move the reader's cursor.
    let (head, tail) = (terminal_text::replace(head), terminal_text::replace(tail));
    format!("{head}… ({left_out} bytes {note}) …{tail}")
}
