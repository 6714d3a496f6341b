//! Renders an agent's Markdown for a terminal as the text arrives: headings, emphasis, code, lists and quotes.
//!
//! The text is untrusted. Every character goes through [`terminal_text::push_escaped`], and the only control
//! sequences in the output are the styles below. Each line resets its styles.
//!
//! The renderer never erases what it has printed. If the meaning of text depends on what follows, as after `**`, the
//! renderer holds the text back until its end has arrived, but at most [`WINDOW`] characters. The output depends only
//! on the text, never on how it was split into pieces. Without styles, the renderer only escapes unsafe characters and
//! converts line ends.

use crate::text::terminal_text;

const RESET: &str = "\x1b[m";
const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const ITALIC: &str = "\x1b[3m";
const CODE: &str = "\x1b[36m";

/// The maximum number of characters that the renderer holds back while it waits for the end of an emphasis, a code
/// span or a fence line. If the end has not arrived by then, the renderer prints the text as it is.
const WINDOW: usize = 240;
/// The maximum indentation of a line that may begin with a marker, in bytes.
const DEEPEST: usize = 24;
/// The minimum length of the fence (` ``` ` or `~~~`) that begins and ends a code block.
const SHORTEST_FENCE: usize = 3;

/// Whether the next character is at the beginning of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    LineStart,
    InLine,
}

/// The fence that began the current code block.
#[derive(Debug, Clone, Copy)]
struct Fence {
    mark: char,
    length: usize,
}

/// What the marks at the beginning of a text mean.
#[derive(Debug, PartialEq, Eq)]
enum Span {
    /// The meaning depends on text that has not arrived.
    Unknown,
    /// The marks have no meaning. The number is their length in bytes.
    Plain(usize),
    /// The marks begin a span such as bold text. `marks` is the length of the marks at each end, `content` the length
    /// of the text between them, in bytes.
    Marked { marks: usize, content: usize },
}

/// Renders Markdown incrementally, and keeps the text that it has not printed yet.
pub(super) struct Markdown {
    has_styles: bool,
    place: Place,
    fence: Option<Fence>,
    /// The active styles, outermost first.
    styles: Vec<&'static str>,
    /// The previous character in the same line.
    before: Option<char>,
    pending: String,
    out: String,
}

impl Markdown {
    pub(super) fn new(has_styles: bool) -> Self {
        Self {
            has_styles,
            place: Place::LineStart,
            fence: None,
            styles: Vec::new(),
            before: None,
            pending: String::new(),
            out: String::new(),
        }
    }

    /// Adds the next piece of text, and returns the output that is complete.
    pub(super) fn push(&mut self, piece: &str) -> String {
        self.pending.push_str(piece);
        self.render(false);
        std::mem::take(&mut self.out)
    }

    /// Ends the text: returns the rest of the output, with a newline if its last line has none, and resets the
    /// renderer.
    pub(super) fn finish(&mut self) -> String {
        self.render(true);
        if self.place == Place::InLine {
            self.end_line();
        }
        self.fence = None;
        std::mem::take(&mut self.out)
    }

    fn render(&mut self, is_end: bool) {
        let pending = std::mem::take(&mut self.pending);
        let mut at = 0;
        while at < pending.len() {
            let rest = &pending[at..];
            let taken = match (self.place, self.fence) {
                _ if !self.has_styles => self.plain(rest, is_end),
                (Place::LineStart, None) => self.line_start(rest, is_end),
                (Place::LineStart, Some(fence)) => self.code_line_start(rest, fence, is_end),
                (Place::InLine, None) => self.in_line(rest, is_end),
                (Place::InLine, Some(_)) => self.plain(rest, is_end),
            };
            match taken {
                Some(bytes) => at += bytes,
                None => break,
            }
        }
        self.pending = pending[at..].to_string();
    }

    // Methods for the beginning of a line.

    /// Handles the Markdown marker at the beginning of a line. Returns the number of bytes consumed, or `None` if it
    /// needs more text.
    fn line_start(&mut self, rest: &str, is_end: bool) -> Option<usize> {
        let indent = rest.len() - rest.trim_start_matches([' ', '\t']).len();
        let body = &rest[indent..];
        let Some(first) = body.chars().next().filter(|_| indent <= DEEPEST) else {
            let is_known = is_end || indent > DEEPEST;
            return is_known.then(|| self.begin_line(&rest[..indent], indent));
        };
        let run = run_length(body, first);
        let after = body[run..].chars().next();
        if after.is_none() && !is_end && run <= WINDOW && "#`~-*+>".contains(first) {
            return None;
        }
        let is_blank = matches!(after, Some(' ' | '\t'));
        match first {
            '#' if run <= 6 && is_blank => {
                self.begin_line(&rest[..indent], indent);
                self.enter(BOLD);
                Some(indent + run + 1)
            }
            '-' | '*' | '+' if run == 1 && is_blank => {
                self.begin_line(&rest[..indent], indent);
                self.text("• ");
                Some(indent + 2)
            }
            '>' => {
                self.begin_line(&rest[..indent], indent);
                self.enter(DIM);
                self.text("│ ");
                self.leave();
                Some(indent + 1 + usize::from(body[1..].starts_with(' ')))
            }
            '`' | '~' if run >= SHORTEST_FENCE => match fence_line(body, run, first, is_end)? {
                Some(length) => {
                    self.begin_line(&rest[..indent], indent);
                    self.enter(DIM);
                    self.text(&body[..length]);
                    self.fence = Some(Fence { mark: first, length: run });
                    Some(indent + length)
                }
                None => Some(self.begin_line(&rest[..indent], indent)),
            },
            _ => Some(self.begin_line(&rest[..indent], indent)),
        }
    }

    /// Handles the beginning of a line in a code block, which is either the closing fence or code.
    fn code_line_start(&mut self, rest: &str, fence: Fence, is_end: bool) -> Option<usize> {
        let indent = rest.len() - rest.trim_start_matches([' ', '\t']).len();
        let run = run_length(&rest[indent..], fence.mark);
        let blank = rest[indent + run..].len() - rest[indent + run..].trim_start_matches([' ', '\t']).len();
        let length = indent + run + blank;
        let is_whole = rest.len() > length || is_end;
        if !is_whole && length <= WINDOW {
            return None;
        }
        let ends_line = rest[length..].is_empty() || rest[length..].starts_with(['\n', '\r']);
        self.place = Place::InLine;
        if run >= fence.length && indent <= DEEPEST && length <= WINDOW && ends_line {
            self.fence = None;
            self.enter(DIM);
            self.text(&rest[..length]);
            return Some(length);
        }
        self.enter(CODE);
        Some(0)
    }

    /// Prints the indentation, and continues inside the line. Returns `taken`, the number of bytes consumed.
    fn begin_line(&mut self, indentation: &str, taken: usize) -> usize {
        self.place = Place::InLine;
        self.text(indentation);
        taken
    }

    // Methods for text inside a line.

    fn in_line(&mut self, rest: &str, is_end: bool) -> Option<usize> {
        let first = rest.chars().next()?;
        match first {
            '*' | '_' | '`' => match span(rest, self.before, is_end) {
                Span::Unknown => None,
                Span::Plain(length) => {
                    self.text(&rest[..length]);
                    Some(length)
                }
                Span::Marked { marks, content } => {
                    self.marked(first, marks, &rest[marks..marks + content]);
                    Some(marks + content + marks)
                }
            },
            '\\' => {
                let after = rest[1..].chars().next();
                if after.is_none() && !is_end {
                    return None;
                }
                let is_escape = after.is_some_and(|after| after.is_ascii_punctuation());
                self.text(if is_escape { &rest[1..2] } else { "\\" });
                Some(if is_escape { 2 } else { 1 })
            }
            _ => self.plain(rest, is_end),
        }
    }

    /// Prints plain text up to the next character that may have a special meaning, or ends the line at a line end.
    /// Returns the number of bytes consumed, or `None` if it needs more text.
    fn plain(&mut self, rest: &str, is_end: bool) -> Option<usize> {
        let is_special = |one: char| {
            matches!(one, '\n' | '\r')
                || (self.has_styles && self.fence.is_none() && matches!(one, '*' | '_' | '`' | '\\'))
        };
        let length = rest.find(is_special).unwrap_or(rest.len());
        if length > 0 {
            self.place = Place::InLine;
            self.text(&rest[..length]);
            return Some(length);
        }
        if rest.starts_with('\n') {
            self.end_line();
            return Some(1);
        }
        // A carriage return is part of a line end, or else a control character to escape.
        match rest.as_bytes().get(1) {
            None if !is_end => None,
            Some(b'\n') => {
                self.end_line();
                Some(2)
            }
            _ => {
                self.place = Place::InLine;
                self.text("\r");
                Some(1)
            }
        }
    }

    /// Prints `content` in the style of its Markdown marks: backticks mean code; one, two or three `*` or `_` mean
    /// italic, bold, or both.
    fn marked(&mut self, mark: char, marks: usize, content: &str) {
        let styles: &[&'static str] = match (mark, marks) {
            ('`', _) => &[CODE],
            (_, 1) => &[ITALIC],
            (_, 2) => &[BOLD],
            _ => &[BOLD, ITALIC],
        };
        for style in styles {
            self.enter(style);
        }
        if mark == '`' {
            let inner = content.strip_prefix(' ').and_then(|inner| inner.strip_suffix(' '));
            self.text(inner.filter(|inner| !inner.trim().is_empty()).unwrap_or(content));
        } else {
            self.before = Some(mark);
            let mut at = 0;
            while at < content.len() {
                at += self.in_line(&content[at..], true).unwrap_or(content.len() - at);
            }
        }
        for _ in styles {
            self.leave();
        }
        self.before = Some(mark);
    }

    // Methods that write output.

    fn text(&mut self, text: &str) {
        for character in text.chars() {
            terminal_text::push_escaped(&mut self.out, character);
        }
        self.before = text.chars().next_back().or(self.before);
    }

    fn enter(&mut self, style: &'static str) {
        self.styles.push(style);
        self.out.push_str(style);
    }

    /// Ends the innermost style, and restores the styles around it.
    fn leave(&mut self) {
        if self.styles.pop().is_some() {
            self.out.push_str(RESET);
            self.out.extend(self.styles.iter().copied());
        }
    }

    fn end_line(&mut self) {
        if !self.styles.is_empty() {
            self.styles.clear();
            self.out.push_str(RESET);
        }
        self.out.push('\n');
        self.place = Place::LineStart;
        self.before = None;
    }
}

/// Returns how often an ASCII character is repeated at the beginning of a text.
fn run_length(text: &str, mark: char) -> usize {
    text.len() - text.trim_start_matches(mark).len()
}

/// Why the part of the text that the renderer examines ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edge {
    /// More text may follow.
    Open,
    /// The part has [`WINDOW`] characters, the maximum.
    Full,
    /// The line or the text ends.
    LineEnd,
}

/// Returns the part of a text that the renderer examines at once: at most [`WINDOW`] characters of one line.
fn window(text: &str, is_end: bool) -> (&str, Edge) {
    let limit = text.char_indices().nth(WINDOW).map(|(at, _)| at);
    let visible = &text[..limit.unwrap_or(text.len())];
    match (visible.find('\n'), limit) {
        (Some(line_end), _) => (&visible[..line_end], Edge::LineEnd),
        (None, Some(_)) => (visible, Edge::Full),
        (None, None) => (visible, if is_end { Edge::LineEnd } else { Edge::Open }),
    }
}

/// Checks whether a line that begins with at least three marks begins a code block. If it does, returns
/// `Some(Some(length))` with the length of the line; otherwise `Some(None)`. Returns `None` if the end of the line has
/// not arrived yet.
fn fence_line(body: &str, run: usize, mark: char, is_end: bool) -> Option<Option<usize>> {
    let (line, edge) = window(body, is_end);
    let is_fence = match edge {
        Edge::Open => return None,
        Edge::Full => false,
        Edge::LineEnd => mark != '`' || !line[run..].contains('`'),
    };
    Some(is_fence.then(|| line.trim_end_matches('\r').len()))
}

/// Determines whether the marks at the beginning of a text begin a span or are plain text.
fn span(text: &str, before: Option<char>, is_end: bool) -> Span {
    let (line, edge) = window(text, is_end);
    let Some(mark) = line.chars().next() else { return Span::Unknown };
    let marks = run_length(line, mark);
    let after = line[marks..].chars().next();
    let is_inside_word = mark == '_' && before.is_some_and(char::is_alphanumeric);
    let is_plain = mark != '`' && (marks > 3 || is_inside_word || after.is_some_and(char::is_whitespace));
    match closing_run(line, marks, mark, edge) {
        _ if is_plain && after.is_some() => Span::Plain(marks),
        Closing::After(content) => Span::Marked { marks, content },
        Closing::Missing => Span::Plain(marks),
        Closing::Unknown => Span::Unknown,
    }
}

/// The position of the marks that end a span.
enum Closing {
    /// The marks follow after this many bytes of content.
    After(usize),
    Missing,
    /// The position depends on text that has not arrived.
    Unknown,
}

/// Finds the marks that end the span at the beginning of `line`.
fn closing_run(line: &str, marks: usize, mark: char, edge: Edge) -> Closing {
    let mut at = marks;
    while let Some(next) = line[at..].chars().next() {
        let rest = &line[at..];
        let is_escape = next == '\\' && rest[1..].starts_with(|after: char| after.is_ascii_punctuation());
        at += match next {
            _ if next == mark => {
                let run = run_length(rest, mark);
                let after = rest[run..].chars().next();
                if run == marks && may_close(mark, line[..at].chars().next_back(), after) {
                    return match edge {
                        // More marks may follow beyond the examined text.
                        Edge::Open if after.is_none() => Closing::Unknown,
                        Edge::Full if after.is_none() => Closing::Missing,
                        _ => Closing::After(at - marks),
                    };
                }
                run
            }
            '`' if mark != '`' => {
                let run = run_length(rest, '`');
                match closing_run(rest, run, '`', edge) {
                    Closing::After(content) => run + content + run,
                    Closing::Missing => run,
                    Closing::Unknown => return Closing::Unknown,
                }
            }
            _ if mark != '`' && is_escape => 2,
            _ => next.len_utf8(),
        };
    }
    if edge == Edge::Open { Closing::Unknown } else { Closing::Missing }
}

/// Returns true if marks between these two characters may end a span.
fn may_close(mark: char, before: Option<char>, after: Option<char>) -> bool {
    let is_after_text = before.is_some_and(|one| !one.is_whitespace());
    let is_inside_word = mark == '_' && after.is_some_and(char::is_alphanumeric);
    mark == '`' || (is_after_text && !is_inside_word)
}

#[cfg(test)]
#[path = "markdown_tests.rs"]
mod tests;
