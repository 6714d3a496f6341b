//! Extracts the JSON object that a step asked for from an agent's answer.
//!
//! Agents surround the object with code fences, filler and examples. The last matching object in the text counts. "No
//! JSON" and "wrong fields" are separate errors, each worded so that the agent can repair its answer.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::agents::adapter::json_objects;
use crate::work::pipeline::workflow::model::{Field, FieldType};

/// Maximum number of bytes of an answer that guard parses. Of a longer answer, guard parses only the end.
const LONGEST: usize = 1 << 20;

/// Why an agent's answer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    /// The text contains no JSON object.
    #[error("the agent's answer does not end with a JSON object")]
    NoObject,
    /// The text contains an object, but its fields are wrong.
    #[error("the JSON object at the end of the agent's answer is invalid: {0}")]
    WrongFields(String),
}

/// Extracts from an agent's answer the object that the step asked for.
///
/// An agent may quote objects that look like an answer (a plan, a file, another agent's answer). Therefore three rules
/// apply. The last object that names a field of the step must have all required fields. No text may follow this object
/// that looks like another one but cannot be parsed. If this object approves, no earlier object may have another
/// verdict.
pub(crate) fn extract(text: &str, fields: &BTreeMap<String, Field>) -> Result<Map<String, Value>, Unusable> {
    let mut from = text.len().saturating_sub(LONGEST);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let text = &text[from..];
    let found = json_objects(text);
    let names_one = |object: &Map<String, Value>| fields.keys().any(|name| object.contains_key(name));
    let Some(at) = found.iter().rposition(|(_, object)| names_one(object)) else {
        let missing = fields.keys().next().map(|name| format!("`{name}` is missing"));
        return Err(missing.filter(|_| !found.is_empty()).map_or(Unusable::NoObject, Unusable::WrongFields));
    };
    let (end, object) = &found[at];
    fits(object, fields).map_err(Unusable::WrongFields)?;
    let rest = &text[*end..];
    let begins_another =
        |name: &String| rest.find('{').is_some_and(|brace| rest[brace..].contains(&format!("\"{name}\"")));
    if fields.keys().any(begins_another) {
        return Err(Unusable::WrongFields(
            "it is followed by text that looks like another object and cannot be parsed".to_string(),
        ));
    }
    let earlier = found[..at].iter().map(|(_, object)| object);
    match contradicted(object, earlier, fields) {
        Some(problem) => Err(Unusable::WrongFields(problem)),
        None => Ok(object.clone()),
    }
}

/// Describes the contradiction if the answer's object approves although an earlier object in the text has another
/// verdict; `None` if there is no contradiction. The first word that a verdict field accepts is the approval.
fn contradicted<'o>(
    object: &Map<String, Value>,
    mut earlier: impl Iterator<Item = &'o Map<String, Value>>,
    fields: &BTreeMap<String, Field>,
) -> Option<String> {
    let (name, words) = fields.iter().find_map(|(name, field)| match &field.is {
        FieldType::OneOf(words) if words.len() > 1 => Some((name, words)),
        _ => None,
    })?;
    let yes = words.first().filter(|yes| object.get(name).and_then(Value::as_str) == Some(yes))?;
    let other = |other: &Map<String, Value>| {
        let word = other.get(name)?.as_str()?.to_string();
        (word != *yes).then_some(word)
    };
    let word = earlier.find_map(other)?;
    Some(format!(
        "the answer contains two values of `{name}`: {yes} and {word}; give one verdict, and quote no other"
    ))
}

/// Checks that an object has all required fields, and that the values of the step's fields have the right types. An
/// optional field may contain an object instead, and an optional `feedback` may have any type.
fn fits(object: &Map<String, Value>, fields: &BTreeMap<String, Field>) -> Result<(), String> {
    for (name, field) in fields {
        let is_required = field.is_required(object);
        let value = object.get(name).filter(|value| !value.is_null());
        let Some(value) = value else {
            if is_required {
                return Err(format!("`{name}` is missing"));
            }
            continue;
        };
        // Accept these values without a check: agents put optional feedback of any form into `feedback`, and objects
        // into other optional fields.
        if !is_required && (value.is_object() || name == "feedback") {
            continue;
        }
        fits_field(name, value, &field.is)?;
    }
    Ok(())
}

fn fits_field(name: &str, value: &Value, is: &FieldType) -> Result<(), String> {
    let text = value.as_str().map(str::trim).filter(|text| !text.is_empty());
    match is {
        FieldType::Text | FieldType::Document | FieldType::Commit if text.is_none() => {
            Err(format!("`{name}` must be a non-empty string"))
        }
        FieldType::OneOf(words) if !text.is_some_and(|text| words.iter().any(|word| word == text)) => {
            Err(format!("`{name}` must be one of {}, but is {value}", words.join(", ")))
        }
        FieldType::Number if !value.is_number() => Err(format!("`{name}` must be a number")),
        FieldType::List if !value.as_array().is_some_and(|items| items.iter().all(Value::is_string)) => {
            Err(format!("`{name}` must be a list of strings"))
        }
        _ => Ok(()),
    }
}

/// Returns instructions for the agent on the format of its answer, with an example.
pub(crate) fn format(fields: &BTreeMap<String, Field>, document: Option<&str>) -> String {
    let mut out =
        "\n## How to answer\nEnd your answer with one JSON object, strictly valid, nothing after it:\n\n"
            .to_string();
    let example = |field: &Field, word: Option<&str>| match &field.is {
        FieldType::Text => json!("…"),
        FieldType::Document => json!(document.unwrap_or("…")),
        FieldType::Commit => json!("the full hash of your last commit"),
        FieldType::OneOf(words) => {
            json!(word.unwrap_or(words.first().map(String::as_str).unwrap_or_default()))
        }
        FieldType::Number => json!(0),
        FieldType::List => json!(["…"]),
    };
    let deciding = fields.iter().find_map(|(name, field)| match &field.is {
        FieldType::OneOf(words) if words.len() > 1 => Some((name.clone(), words.clone())),
        _ => None,
    });
    let words: Vec<Option<String>> = match &deciding {
        Some((_, words)) => words.iter().cloned().map(Some).collect(),
        None => vec![None],
    };
    for (index, word) in words.iter().enumerate() {
        let mut object = Map::new();
        for (name, field) in fields {
            let decides = deciding.as_ref().is_some_and(|(deciding, _)| deciding == name);
            let is_there = match (&field.when, word, &deciding) {
                (Some((other, value)), Some(word), Some((deciding, _))) if other == deciding => value == word,
                _ => !field.optional,
            };
            if is_there {
                object.insert(name.clone(), example(field, word.as_deref().filter(|_| decides)));
            }
        }
        let _ = writeln!(out, "{}    {}", if index > 0 { "or\n\n" } else { "" }, Value::Object(object));
        out.push('\n');
    }
    out.push_str(
        "It may also have `\"backlog_items\": [\"…\"]` (ideas that are not part of this task), `\"lessons\": [\"…\"]` (what the next agent \
         should know) and `\"feedback\": {\"message\": \"…\"}` (problems of the plan, the tools or the repository). Never claim success over \
         a crash or an error you could not resolve: say so in the feedback.\n",
    );
    out
}

/// Returns the first 50 non-empty strings of the optional list `name` in an answer, each reduced to one line of at most
/// 1000 characters.
pub(crate) fn list(answer: &Map<String, Value>, name: &str) -> Vec<String> {
    let items = answer.get(name).and_then(Value::as_array).into_iter().flatten();
    let line = |item: &Value| {
        let text = item.as_str()?.split_whitespace().collect::<Vec<_>>().join(" ");
        (!text.is_empty()).then(|| text.chars().take(1000).collect::<String>())
    };
    items.filter_map(line).take(50).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> BTreeMap<String, Field> {
        let verdict =
            Field { is: FieldType::OneOf(vec!["APPROVE".into(), "REJECT".into()]), ..Field::default() };
        let when = Some(("verdict".to_string(), "REJECT".to_string()));
        let feedback = Field { is: FieldType::Text, when, ..Field::default() };
        BTreeMap::from([("verdict".to_string(), verdict), ("feedback".to_string(), feedback)])
    }

    #[test]
    fn the_last_that_fits_counts() {
        for (text, wanted) in [
            ("{\"verdict\":\"APPROVE\"}", "APPROVE"),
            (
                "Well.\n```json\n{\"verdict\": \"REJECT\", \"feedback\": \"no {tests}\"}\n```\nThat is all.",
                "REJECT",
            ),
            ("{\"verdict\":\"APPROVE\"} no: {\"verdict\":\"REJECT\",\"feedback\":\"x\"}", "REJECT"),
            ("{\"verdict\":\"APPROVE\"} I say it again: {\"verdict\":\"APPROVE\"}", "APPROVE"),
            ("{\"verdict\":\"APPROVE\"} fn main() { loop {} } {\"other\": 1}", "APPROVE"),
            ("{ {\"verdict\":\"APPROVE\"}", "APPROVE"),
            ("{\"verdict\":\"APPROVE\",\"feedback\":{\"message\":\"odd tools\"}}", "APPROVE"),
            ("{\"verdict\":\"APPROVE\",\"feedback\":[\"odd tools\"]}", "APPROVE"),
            ("{\"verdict\":\"APPROVE\",\"feedback\":\"\"}", "APPROVE"),
        ] {
            let found = extract(text, &fields()).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(found["verdict"], wanted, "{text}");
        }
    }

    #[test]
    fn a_verdict_that_cannot_be_read_is_none() {
        for (text, wanted) in [
            ("I APPROVE this.", "does not end with a JSON object"),
            ("", "does not end with a JSON object"),
            ("{\"verdict\": \"approve\"}", "one of APPROVE, REJECT"),
            ("{\"verdict\": \"APPROVE, mostly\"}", "one of APPROVE, REJECT"),
            ("{\"verdict\": \"REJECT\"}", "`feedback` is missing"),
            ("{\"verdict\": \"REJECT\", \"feedback\": \" \"}", "`feedback` must be a non-empty string"),
            ("{\"verdict\": [\"APPROVE\"]}", "one of"),
            ("{verdict: 'APPROVE'}", "does not end with a JSON object"),
            ("{\"result\": {\"verdict\": \"APPROVE\"}}", "is missing"),
            // A quoted object must not count as the answer.
            ("It says {\"verdict\":\"APPROVE\"}. {\"verdict\":\"REJECT\"}", "`feedback` is missing"),
            (
                "It says {\"verdict\":\"APPROVE\"}. {\"verdict\":\"REJECT: no\",\"feedback\":\"x\"}",
                "one of APPROVE, REJECT",
            ),
            (
                "It says {\"verdict\":\"APPROVE\"}. {\"verdict\":\"REJECT\",\"feedback\":\"a \\d\"}",
                "cannot be parsed",
            ),
            (
                "{\"verdict\":\"REJECT\",\"feedback\":\"x\"}, though it says {\"verdict\":\"APPROVE\"}",
                "APPROVE and REJECT",
            ),
        ] {
            let error = extract(text, &fields()).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn how_to_answer() {
        let text = format(&fields(), None);
        assert!(text.contains("{\"verdict\":\"APPROVE\"}"), "{text}");
        assert!(text.contains("{\"feedback\":\"…\",\"verdict\":\"REJECT\"}"), "{text}");
        // The examples in the instructions must be accepted as answers.
        let shown = text.lines().filter(|line| line.trim_start().starts_with('{'));
        assert!(
            shown.count() == 2
                && text.lines().filter(|line| line.trim_start().starts_with('{')).all(|line| extract(
                    line,
                    &fields()
                )
                .is_ok())
        );
    }

    #[test]
    fn lists_are_lines() {
        let answer = |text: &str| serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default();
        assert_eq!(list(&answer("{\"b\":[\"a  b\\nc\",\"\",1]}"), "b"), ["a b c"]);
    }

    proptest::proptest! {
        #[test]
        fn anything_is_answered(text in "[{}\\[\\]\":,a-zA-Z \\n]{0,300}") {
            let _ = extract(&text, &fields());
        }
    }
}
