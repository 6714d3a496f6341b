//! Problems in a policy file, each with its location, rendered with a caret under the offending text.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// The text of a policy file, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The name to show: the path the policy was read from, or `builtin:NAME.toml`.
    pub name: String,
    pub text: Arc<str>,
    /// Whether the text is embedded in the binary rather than read from a file.
    pub built_in: bool,
}

/// A line and column in a policy file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The name of the source that contains the position.
    pub file: String,
    /// The line number, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

impl fmt::Display for Location {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}:{}", self.file, self.line, self.column)
    }
}

impl Source {
    /// Converts a byte offset to a line and column. An offset that is not at the start of a character counts as the end
    /// of the text.
    pub fn locate(&self, offset: usize) -> Location {
        let before = self.text.get(..offset).unwrap_or(&self.text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Location {
            file: self.name.clone(),
            line: before.bytes().filter(|&byte| byte == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The policy cannot be used.
    Error,
    /// The policy can be used, but probably does not do what its author intended.
    Warning,
    /// The diagnostic is information, such as an override that is in force.
    Note,
}

/// One problem in a policy file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: Severity,
    /// What is wrong, in one sentence.
    pub message: String,
    /// The file that contains the problem.
    pub source: Source,
    /// The byte range of the offending text.
    pub span: Range<usize>,
    /// The short text that is printed beside the caret.
    pub label: String,
    /// How to fix the problem, if guard has a suggestion.
    pub help: Option<String>,
}

impl Diagnostic {
    pub fn location(&self) -> Location {
        self.source.locate(self.span.start)
    }

    /// Renders the problem as text, with its source line and a caret; with terminal colours if `colour` is true.
    pub fn render(&self, colour: bool) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
            Severity::Note => Level::NOTE,
        };
        let text = &*self.source.text;
        let start = floor(text, self.span.start);
        let end = floor(text, self.span.end).max(start);
        // If the span covers several lines, show only the first.
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        // Render only this line: the renderer takes time and memory for every line of its source, for each problem.
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let number = text[..line_start].bytes().filter(|&byte| byte == b'\n').count() + 1;
        let span = start - line_start..end.min(line_end) - line_start;
        let annotation = AnnotationKind::Primary.span(span).label(self.label.as_str());
        let snippet = Snippet::source(&text[line_start..line_end])
            .line_start(number)
            .path(self.source.name.as_str())
            .fold(true)
            .annotation(annotation);
        let mut group = level.primary_title(self.message.as_str()).element(snippet);
        if let Some(help) = &self.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        renderer.render(&[group])
    }
}

/// Returns the nearest character boundary at or before an offset.
fn floor(text: &str, offset: usize) -> usize {
    let offset = offset.min(text.len());
    (0..=offset).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}
