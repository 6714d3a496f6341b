//! Problems of a policy file, each with its place, shown with a caret.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// A policy text and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// What people call it: `policies/strict.toml` or the path it was read from.
    pub name: String,
    /// Its text.
    pub text: Arc<str>,
    /// Embedded in the binary rather than read from a file.
    pub built_in: bool,
}

/// A place in a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The source's name.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl fmt::Display for Location {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}:{}", self.file, self.line, self.column)
    }
}

impl Source {
    /// The line and column of a byte offset.
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

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The policy cannot be used.
    Error,
    /// It can, but says something its author may not mean.
    Warning,
    /// Worth knowing: an override that is in force.
    Note,
}

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub message: String,
    /// The file it is in.
    pub source: Source,
    /// The bytes it is about.
    pub span: Range<usize>,
    /// Words under the caret.
    pub label: String,
    /// What to do about it.
    pub help: Option<String>,
}

impl Diagnostic {
    /// Where it is.
    pub fn location(&self) -> Location {
        self.source.locate(self.span.start)
    }

    /// The problem with its line and caret, as text.
    pub fn render(&self, colour: bool) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
            Severity::Note => Level::NOTE,
        };
        let text = &*self.source.text;
        let start = floor(text, self.span.start);
        let end = floor(text, self.span.end).max(start);
        // A span over many lines is shown by its first.
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let annotation = AnnotationKind::Primary.span(start..end.min(line_end)).label(self.label.as_str());
        let snippet = Snippet::source(text).path(self.source.name.as_str()).fold(true).annotation(annotation);
        let mut group = level.primary_title(self.message.as_str()).element(snippet);
        if let Some(help) = &self.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        renderer.render(&[group])
    }
}

/// The nearest character boundary at or before an offset.
fn floor(text: &str, offset: usize) -> usize {
    let offset = offset.min(text.len());
    (0..=offset).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}
