//! Interprets the optional field `feedback` of an agent's answer, which may be a text, a list or an object.
//!
//! guard uses the feedback in two ways: as a remark to triage, and to check whether it contradicts a success that the
//! agent claims.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::work::pipeline::workflow::model::{Field, FieldType};

const KEY: &str = "feedback";
/// Words that negate what follows them.
const NEGATIONS: [&str; 11] =
    ["no", "not", "never", "without", "nor", "neither", "none", "nothing", "zero", "0", "cannot"];
/// Words that may stand between a negation and what it negates.
const FILLERS: [&str; 21] = [
    "a",
    "an",
    "any",
    "the",
    "single",
    "more",
    "further",
    "other",
    "new",
    "longer",
    "such",
    "known",
    "unexpected",
    "or",
    "and",
    "ever",
    "saw",
    "see",
    "seen",
    "observed",
    "had",
];

/// True if `feedback` is a required part of this answer, for example the reason for a rejection.
fn is_result(answer: &Map<String, Value>, fields: &BTreeMap<String, Field>) -> bool {
    fields.get(KEY).is_some_and(|field| field.is_required(answer))
}

/// Returns the feedback to triage: a remark that the agent made in addition to its required result. `None` if there is
/// no feedback, if it contains no statement, or if it is itself the required result.
pub(crate) fn remark(answer: &Map<String, Value>, fields: &BTreeMap<String, Field>) -> Option<String> {
    let feedback = answer.get(KEY).filter(|_| !is_result(answer, fields))?;
    let text = shown(feedback);
    (!text.is_empty()).then_some(text)
}

/// Formats a JSON value as text. The text is empty if the value contains no statement, such as a lone number.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.trim().to_string(),
        Value::Array(items) => {
            let lines = items.iter().map(shown).filter(|line| !line.is_empty());
            lines.map(|line| format!("- {line}")).collect::<Vec<_>>().join("\n")
        }
        Value::Object(all) => match all.get("message").and_then(Value::as_str) {
            Some(message) if all.len() == 1 => message.trim().to_string(),
            _ if all.values().all(is_nothing) => String::new(),
            _ => value.to_string(),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) => String::new(),
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.iter().all(is_nothing),
        Value::Object(all) => all.values().all(is_nothing),
    }
}

/// If the answer claims success, returns the first of `words` that its feedback reports as having happened. `None` if
/// there is no such word, or if the feedback is a required part of the answer.
pub(crate) fn contradiction(
    answer: &Map<String, Value>,
    fields: &BTreeMap<String, Field>,
    words: &[String],
) -> Option<String> {
    if is_result(answer, fields) || !claims_success(answer, fields) {
        return None;
    }
    let mut statements = Vec::new();
    gather(answer.get(KEY)?, &mut statements);
    statements.iter().find_map(|statement| reported(statement, words))
}

/// True if the answer's verdict is the approval (the first word that the field accepts), or if it has no verdict.
fn claims_success(answer: &Map<String, Value>, fields: &BTreeMap<String, Field>) -> bool {
    let verdict = fields.iter().find_map(|(name, field)| match &field.is {
        FieldType::OneOf(words) if words.len() > 1 => Some((name, words.first())),
        _ => None,
    });
    verdict.is_none_or(|(name, yes)| answer.get(name).and_then(Value::as_str) == yes.map(String::as_str))
}

/// Collects every statement in a feedback value, in lower case: all strings, and the keys of objects unless their value
/// is empty, false, zero or begins with a negation.
fn gather(value: &Value, statements: &mut Vec<String>) {
    match value {
        Value::String(text) => statements.push(text.to_lowercase()),
        Value::Array(items) => items.iter().for_each(|item| gather(item, statements)),
        Value::Object(all) => {
            for (name, value) in all.iter().filter(|(_, value)| !is_nothing(value)) {
                let denies = value.as_str().is_some_and(|text| {
                    let text = text.to_lowercase();
                    text.split_whitespace().next().is_some_and(is_negation)
                });
                if !denies {
                    statements.push(name.to_lowercase().replace(['_', '-'], " "));
                }
                gather(value, statements);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn is_negation(word: &str) -> bool {
    let word = word.trim_matches(|c: char| !c.is_alphanumeric() && c != '\'' && c != '’');
    NEGATIONS.contains(&word) || word.ends_with("n't") || word.ends_with("n’t")
}

/// Returns the first of `words` that begins a word of the statement and is not negated there.
fn reported(statement: &str, words: &[String]) -> Option<String> {
    let begins_word = |at: usize| !statement[..at].ends_with(char::is_alphanumeric);
    let happened = |word: &str| {
        let mut places = statement.match_indices(word).map(|(at, _)| at).filter(|at| begins_word(*at));
        places.any(|at| !is_denied(&statement[..at], words))
    };
    words.iter().find(|word| !word.is_empty() && happened(word)).cloned()
}

/// True if the text `before` a word negates the word, as in `no `, `without a single ` or `no crashes or `.
fn is_denied(before: &str, words: &[String]) -> bool {
    // A negation does not extend beyond its clause.
    let clause = before.rsplit(['.', '!', '?', ';', ',', '\n']).next().unwrap_or_default();
    for word in clause.split_whitespace().rev() {
        if is_negation(word) {
            return true;
        }
        let plain = word.trim_matches(|c: char| !c.is_alphanumeric());
        if !FILLERS.contains(&plain) && !words.iter().any(|known| plain.starts_with(known.as_str())) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn gate() -> BTreeMap<String, Field> {
        let verdict =
            Field { is: FieldType::OneOf(vec!["APPROVE".into(), "REJECT".into()]), ..Field::default() };
        let when = Some(("verdict".to_string(), "REJECT".to_string()));
        BTreeMap::from([
            ("verdict".to_string(), verdict),
            ("feedback".to_string(), Field { is: FieldType::Text, when, ..Field::default() }),
        ])
    }

    #[test]
    fn remarks_are_read_in_every_form() {
        for (text, wanted) in [
            (
                r#"{"feedback":"The plan was ambiguous; I assumed JWT."}"#,
                Some("The plan was ambiguous; I assumed JWT."),
            ),
            (r#"{"feedback":["odd tools","  "," no docs"]}"#, Some("- odd tools\n- no docs")),
            (r#"{"feedback":{"message":" x "}}"#, Some("x")),
            (r#"{"feedback":{"area":"plan","note":"vague"}}"#, Some(r#"{"area":"plan","note":"vague"}"#)),
            (r#"{"feedback":[{"message":"a"},"b"]}"#, Some("- a\n- b")),
            (r#"{"feedback":""}"#, None),
            (r#"{"feedback":[]}"#, None),
            (r#"{"feedback":{}}"#, None),
            (r#"{"feedback":{"message":""}}"#, None),
            (r#"{"feedback":null}"#, None),
            (r#"{"feedback":false}"#, None),
            (r#"{"status":"success"}"#, None),
        ] {
            assert_eq!(remark(&answer(text), &BTreeMap::new()).as_deref(), wanted, "{text}");
        }
    }

    #[test]
    fn the_reason_of_a_rejection_is_no_remark() {
        assert_eq!(remark(&answer(r#"{"verdict":"REJECT","feedback":"more tests"}"#), &gate()), None);
        let beside = answer(r#"{"verdict":"APPROVE","feedback":"the tools are odd"}"#);
        assert_eq!(remark(&beside, &gate()).as_deref(), Some("the tools are odd"));
    }

    #[test]
    fn what_is_denied_has_not_happened() {
        let words: Vec<String> =
            ["crash", "segfault", "could not be resolved", "tests fail", "does not compile"]
                .map(str::to_string)
                .into();
        let found = |feedback: Value| {
            let answer = Map::from_iter([("feedback".to_string(), feedback)]);
            contradiction(&answer, &BTreeMap::new(), &words)
        };
        for said in [
            "no crash happened",
            "There were no crashes or segfaults.",
            "It did not crash.",
            "It didn't crash, and it ran without a single segfault.",
            "No tests fail. Nothing crashed.",
            "It no longer crashes.",
            "I never saw any further crash",
            "The backlash was large.",
        ] {
            assert_eq!(found(said.into()), None, "{said}");
        }
        for said in [
            "The parser crashed twice.",
            "no problem, but it crashes on empty input",
            "I do not know why it crashed",
            "Not sure. Crash in main.",
            "no docs; tests fail",
            "It does not compile",
            "One conflict could not be resolved.",
        ] {
            assert!(found(said.into()).is_some(), "{said}");
        }
        assert!(found(serde_json::json!(["fine", "tests fail"])).is_some());
        assert!(found(serde_json::json!({ "message": "it crashed" })).is_some());
        assert!(found(serde_json::json!({ "crashes": 2 })).is_some());
        assert!(found(serde_json::json!({ "tests_fail": true })).is_some());
        assert_eq!(found(serde_json::json!({ "crashes": 0, "crash": "none", "segfault": false })), None);
    }

    #[test]
    fn a_rejection_may_report_a_crash() {
        let words = ["crash".to_string()];
        let said = |verdict: &str, feedback: Value| {
            let all = serde_json::json!({ "verdict": verdict, "feedback": feedback });
            contradiction(all.as_object().unwrap_or(&Map::new()), &gate(), &words)
        };
        assert!(said("APPROVE", "it crashes".into()).is_some());
        assert_eq!(said("REJECT", "it crashes".into()), None);
    }

    proptest::proptest! {
        #[test]
        fn anything_is_answered(text in "[a-z ,.'’ä]{0,80}") {
            let answer = Map::from_iter([("feedback".to_string(), Value::String(text))]);
            let _ = contradiction(&answer, &BTreeMap::new(), &["crash".to_string(), "ä".to_string()]);
        }
    }
}
