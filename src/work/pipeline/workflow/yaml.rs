//! Parses YAML (and JSON, which is a subset of it) into a tree with source positions.
//!
//! The tree is built from the events of a YAML parser, so that guard itself limits depth and size. Aliases are refused,
//! because they let a small file expand to a huge tree.

use std::ops::Range;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use crate::judge::policy::{Diagnostic, Severity, Source};

/// Maximum size of a workflow file, in bytes.
pub(crate) const LARGEST: usize = 1 << 20;
/// Maximum nesting depth of lists and maps.
const DEEPEST: usize = 32;

/// A YAML value and its position in the file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    /// The byte range of the value in the file.
    pub(crate) span: Range<usize>,
    pub(crate) value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    /// The entries of a map in the order of the file: key, position of the key, and value.
    Map(Vec<(String, Range<usize>, Node)>),
}

impl Node {
    /// Returns the type of the value, for error messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text(_) => "a string",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}

/// A list or map whose end has not been reached yet. A map may hold a key whose value is still missing.
enum Open {
    List(Range<usize>, Vec<Node>),
    Map(Range<usize>, Vec<(String, Range<usize>, Node)>, Option<(String, Range<usize>)>),
}

/// Parses a file that contains one YAML document.
pub(crate) fn parse(source: &Source) -> Result<Node, Box<Diagnostic>> {
    if source.text.len() > LARGEST {
        return Err(problem(source, 0..0, format!("the file has more than {LARGEST} bytes"), ""));
    }
    Builder::new(source).build()
}

fn problem(source: &Source, span: Range<usize>, message: String, label: &str) -> Box<Diagnostic> {
    Box::new(Diagnostic {
        severity: Severity::Error,
        message,
        source: source.clone(),
        span,
        label: label.to_string(),
        help: None,
    })
}

struct Builder<'s> {
    source: &'s Source,
    /// The byte offset of each character of the source, because the YAML parser reports positions in characters.
    offsets: Vec<usize>,
    open: Vec<Open>,
    root: Option<Node>,
}

impl<'s> Builder<'s> {
    fn new(source: &'s Source) -> Self {
        let mut offsets: Vec<usize> = source.text.char_indices().map(|(at, _)| at).collect();
        offsets.push(source.text.len());
        Self { source, offsets, open: Vec::new(), root: None }
    }

    fn bytes(&self, span: &Span) -> Range<usize> {
        let at = |index: usize| self.offsets.get(index).copied().unwrap_or(self.source.text.len());
        let (start, end) = (at(span.start.index()), at(span.end.index()));
        start..end.max(start)
    }

    fn build(mut self) -> Result<Node, Box<Diagnostic>> {
        let source = self.source;
        for event in Parser::new_from_str(&source.text) {
            let (event, span) = event.map_err(|error| {
                let at = self.offsets.get(error.marker().index()).copied().unwrap_or(source.text.len());
                problem(source, at..at, format!("invalid YAML: {}", error.info()), "here")
            })?;
            let place = self.bytes(&span);
            let refuse = |what: &str| Err(problem(source, place.clone(), what.to_string(), "here"));
            match event {
                Event::DocumentStart(_) if self.root.is_some() => {
                    return refuse("the file must contain only one document");
                }
                Event::Alias(_) => return refuse("aliases (`*name`) are not supported; repeat the value"),
                Event::Scalar(_, _, _, Some(_))
                | Event::SequenceStart(_, Some(_))
                | Event::MappingStart(_, Some(_)) => return refuse("tags (`!name`) are not supported"),
                Event::Scalar(text, style, _, None) => self.scalar(&text, style, place)?,
                Event::SequenceStart(..) | Event::MappingStart(..) if self.open.len() >= DEEPEST => {
                    return refuse(&format!(
                        "lists and maps are nested too deeply; the maximum is {DEEPEST} levels"
                    ));
                }
                Event::SequenceStart(..) => self.open.push(Open::List(place, Vec::new())),
                Event::MappingStart(..) => self.open.push(Open::Map(place, Vec::new(), None)),
                Event::SequenceEnd | Event::MappingEnd => self.close(&place)?,
                _ => {}
            }
        }
        self.root.ok_or_else(|| problem(source, 0..0, "the file is empty".to_string(), "here"))
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, place: Range<usize>) -> Result<(), Box<Diagnostic>> {
        if let Some(Open::Map(_, entries, key @ None)) = self.open.last_mut() {
            if entries.iter().any(|(known, _, _)| known == text) {
                return Err(problem(self.source, place, format!("duplicate key `{text}`"), "again here"));
            }
            *key = Some((text.to_string(), place));
            return Ok(());
        }
        let value = if style == ScalarStyle::Plain { plain(text) } else { Value::Text(text.to_string()) };
        self.put(Node { span: place, value })
    }

    fn close(&mut self, end: &Range<usize>) -> Result<(), Box<Diagnostic>> {
        let node = match self.open.pop() {
            Some(Open::List(start, items)) => {
                Node { span: start.start..end.end.max(start.start), value: Value::List(items) }
            }
            Some(Open::Map(start, entries, _)) => {
                Node { span: start.start..end.end.max(start.start), value: Value::Map(entries) }
            }
            None => return Ok(()),
        };
        self.put(node)
    }

    fn put(&mut self, node: Node) -> Result<(), Box<Diagnostic>> {
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List(_, items)) => items.push(node),
            Some(Open::Map(_, entries, key)) => {
                let Some((name, place)) = key.take() else {
                    return Err(problem(
                        self.source,
                        node.span,
                        "a key must be a string".to_string(),
                        "not a string",
                    ));
                };
                entries.push((name, place, node));
            }
        }
        Ok(())
    }
}

/// Interprets an unquoted scalar as null, a boolean, a number or text.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => {
            let begins = text.trim_start_matches(['-', '+']).starts_with(|c: char| c.is_ascii_digit());
            let number =
                begins.then(|| text.parse::<f64>().ok()).flatten().filter(|number| number.is_finite());
            number.map_or_else(|| Value::Text(text.to_string()), Value::Number)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source { name: "test.yaml".to_string(), text: text.into(), built_in: false }
    }

    #[test]
    fn places_are_bytes() {
        let text = "ä: [1, \"x\"]\nnext: {deep: true}\n";
        let node = parse(&source(text)).unwrap_or_else(|problem| panic!("{}", problem.render(false)));
        let Value::Map(entries) = node.value else { panic!("a map") };
        assert_eq!(&text[entries[1].1.clone()], "next");
        let Value::List(items) = &entries[0].2.value else { panic!("a list") };
        assert_eq!((&items[0].value, &items[1].value), (&Value::Number(1.0), &Value::Text("x".to_string())));
        assert_eq!(&text[items[1].span.clone()], "\"x\"");
    }

    #[test]
    fn what_is_not_taken() {
        for (text, wanted) in [
            ("", "empty"),
            ("a: &x 1\nb: *x\n", "aliases"),
            ("a: !!int 1\n", "tags"),
            ("a: 1\na: 2\n", "duplicate key"),
            ("---\na: 1\n---\nb: 1\n", "one document"),
            ("a: [1\n", "invalid YAML"),
            ("? [1]\n: 2\n", "a string"),
            (&"[".repeat(100), "deeply"),
        ] {
            let found = parse(&source(text)).err().map(|problem| problem.message).unwrap_or_default();
            assert!(found.contains(wanted), "{text:?}: {found}");
        }
    }

    #[test]
    fn json_is_yaml() {
        let node = parse(&source("{\"a\": [true, null, 1.5, \"b\\n\"]}"))
            .unwrap_or_else(|p| panic!("{}", p.message));
        let Value::Map(entries) = node.value else { panic!("a map") };
        let Value::List(items) = &entries[0].2.value else { panic!("a list") };
        assert_eq!(items[3].value, Value::Text("b\n".to_string()));
    }

    proptest::proptest! {
        #[test]
        fn anything_is_answered(text in "[ -~\\n\\t{}\\[\\]:,&*!'\"ä]{0,200}") {
            let _ = parse(&source(&text));
        }
    }
}
