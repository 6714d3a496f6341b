//! Templates for prompts: `{{name}}` inserts a value, `{{#name}}…{{/name}}` is a section that appears only if the value
//! is not empty.
//!
//! Inserted values are never parsed as templates, so a request that contains `{{…}}` is inserted unchanged.

use std::collections::BTreeMap;
use std::ops::Range;

/// A template parsed into text, placeholders and sections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template<'t> {
    parts: Vec<Part<'t>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part<'t> {
    Text(&'t str),
    Value(&'t str),
    Section(&'t str, Vec<Part<'t>>),
}

/// An error in a template, and its byte range in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TemplateError {
    pub(crate) at: Range<usize>,
    pub(crate) message: String,
}

impl<'t> Template<'t> {
    /// Parses a template. Fails if a tag or a section is not closed, or if a closing tag does not match the open
    /// section.
    pub(crate) fn read(text: &'t str) -> Result<Self, TemplateError> {
        let mut open: Vec<(&'t str, Range<usize>, Vec<Part<'t>>)> = Vec::new();
        let mut parts: Vec<Part<'t>> = Vec::new();
        let mut at = 0;
        while let Some(begin) = text[at..].find("{{").map(|found| at + found) {
            let Some(end) = text[begin..].find("}}").map(|found| begin + found + 2) else {
                return Err(TemplateError { at: begin..begin + 2, message: "`{{` without `}}`".to_string() });
            };
            if begin > at {
                parts.push(Part::Text(&text[at..begin]));
            }
            at = end;
            let name = text[begin + 2..end - 2].trim();
            let place = begin..end;
            match name.as_bytes().first() {
                Some(b'#') => {
                    open.push((name[1..].trim(), place, std::mem::take(&mut parts)));
                    at = past_line_end(text, begin, at);
                }
                Some(b'/') => {
                    let name = name[1..].trim();
                    let Some((opened, _, before)) = open.pop().filter(|(opened, _, _)| *opened == name)
                    else {
                        let message = format!("`{{{{/{name}}}}}` has no matching `{{{{#{name}}}}}`");
                        return Err(TemplateError { at: place, message });
                    };
                    let inside = std::mem::replace(&mut parts, before);
                    parts.push(Part::Section(opened, inside));
                    at = past_line_end(text, begin, at);
                }
                _ => parts.push(Part::Value(name)),
            }
        }
        if let Some((name, place, _)) = open.pop() {
            return Err(TemplateError { at: place, message: format!("the section `{name}` is not closed") });
        }
        parts.push(Part::Text(&text[at..]));
        Ok(Self { parts })
    }

    /// Returns the names of all values and sections in the template, in order. A name that occurs twice is listed
    /// twice.
    pub(crate) fn names(&self) -> Vec<&'t str> {
        fn gather<'t>(parts: &[Part<'t>], names: &mut Vec<&'t str>) {
            for part in parts {
                match part {
                    Part::Text(_) => {}
                    Part::Value(name) => names.push(name),
                    Part::Section(name, inside) => {
                        names.push(name);
                        gather(inside, names);
                    }
                }
            }
        }
        let mut names = Vec::new();
        gather(&self.parts, &mut names);
        names
    }

    /// Renders the template with these values. A missing value counts as empty.
    pub(crate) fn fill(&self, values: &BTreeMap<String, String>) -> String {
        fn put(parts: &[Part<'_>], values: &BTreeMap<String, String>, out: &mut String) {
            let value = |name: &str| values.get(name).map(String::as_str).unwrap_or_default();
            for part in parts {
                match part {
                    Part::Text(text) => out.push_str(text),
                    Part::Value(name) => out.push_str(value(name)),
                    Part::Section(name, inside) if !value(name).is_empty() => put(inside, values, out),
                    Part::Section(..) => {}
                }
            }
        }
        let mut out = String::new();
        put(&self.parts, values, &mut out);
        out
    }
}

/// Returns the position after a section tag. Skips the newline if the tag stands alone on its line, so that the tag
/// leaves no empty line.
fn past_line_end(text: &str, begin: usize, end: usize) -> usize {
    let is_alone = begin == 0 || text[..begin].ends_with('\n');
    if is_alone && text[end..].starts_with('\n') { end + 1 } else { end }
}

/// Replaces the `{name}` placeholders in a step's message with the first lines of values, each cut to 300 characters.
/// Leaves a placeholder without a value unchanged.
pub(crate) fn fill_message(text: &str, values: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find('{') {
        out.push_str(&rest[..begin]);
        let Some(end) = rest[begin..].find('}').map(|found| begin + found) else {
            return out + &rest[begin..];
        };
        match values.get(&rest[begin + 1..end]) {
            // Insert only the first line, because an agent's text may have many lines.
            Some(value) => out.extend(value.lines().next().unwrap_or_default().chars().take(300)),
            None => out.push_str(&rest[begin..=end]),
        }
        rest = &rest[end + 1..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect()
    }

    fn filled(text: &str, pairs: &[(&str, &str)]) -> String {
        Template::read(text).unwrap_or_else(|wrong| panic!("{}", wrong.message)).fill(&values(pairs))
    }

    #[test]
    fn values_and_sections() {
        assert_eq!(filled("a {{x}} b", &[("x", "{{y}}"), ("y", "no")]), "a {{y}} b");
        assert_eq!(filled("a\n{{#x}}\nhas {{x}}\n{{/x}}\nb", &[("x", "1")]), "a\nhas 1\nb");
        assert_eq!(filled("a\n{{#x}}\nhas {{x}}\n{{/x}}\nb", &[]), "a\nb");
        assert_eq!(filled("{{#x}}{{#y}}both{{/y}}{{/x}}.", &[("x", "1"), ("y", "2")]), "both.");
        for (text, wanted) in [
            ("{{#x}} a", "not closed"),
            ("{{/x}}", "`{{/x}}` has no matching `{{#x}}`"),
            ("{{x", "without"),
            ("{{#x}}{{/y}}", "no matching"),
        ] {
            assert!(Template::read(text).is_err_and(|wrong| wrong.message.contains(wanted)), "{text}");
        }
        let read = Template::read("{{a}}{{#b}}{{c}}{{/b}}").unwrap_or_else(|wrong| panic!("{wrong:?}"));
        assert_eq!(read.names(), ["a", "b", "c"]);
    }

    #[test]
    fn sentences() {
        assert_eq!(
            fill_message("Plan at '{plan}'. {odd", &values(&[("plan", "p.md\nx")])),
            "Plan at 'p.md'. {odd"
        );
        assert_eq!(fill_message("{unknown}!", &values(&[])), "{unknown}!");
    }

    proptest::proptest! {
        #[test]
        fn anything_is_answered(text in "[a-z{}#/\\n ä]{0,80}", value in "[a-z{}]{0,10}") {
            if let Ok(template) = Template::read(&text) {
                template.fill(&values(&[("a", &value)]));
            }
            fill_message(&text, &values(&[("a", &value)]));
        }
    }
}
