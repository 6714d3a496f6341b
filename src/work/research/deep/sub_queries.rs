//! Parses the list of sub-queries in a model's answer, and merges sub-queries that ask for the same thing.

use std::collections::BTreeSet;

use serde_json::Value;

/// The maximum number of positions in a text at which the parser tries to read an array.
const MOST_TRIED: usize = 2000;
/// The maximum length of a sub-query, in characters. A longer one is cut.
const LONGEST_QUERY: usize = 500;
/// The minimum fraction of common words with which two sub-queries count as the same.
const SAME: f64 = 0.75;

/// Words that do not matter for the meaning of a question.
const FILLER: &[&str] = &[
    "a", "about", "an", "and", "are", "as", "at", "be", "been", "by", "can", "current", "did", "do", "does",
    "for", "from", "has", "have", "how", "in", "is", "it", "its", "latest", "of", "on", "or", "recent", "s",
    "should", "that", "the", "their", "there", "these", "this", "to", "was", "were", "what", "when", "where",
    "which", "who", "why", "will", "with",
];

/// Returns the first JSON array of strings in a text, whatever surrounds it. If there is none, the error says what is
/// wrong with the first text in brackets, or that the text contains no array.
pub(super) fn parse(text: &str) -> Result<Vec<String>, String> {
    let mut problem = None;
    let positions = text.match_indices('[').map(|(position, _)| position);
    let mut end = 0;
    for begin in positions.take(MOST_TRIED) {
        // Skip arrays that are nested in an array that was already read.
        if begin < end {
            continue;
        }
        let mut stream = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Value>();
        match stream.next() {
            Some(Ok(Value::Array(items))) => {
                end = begin + stream.byte_offset();
                match strings(items) {
                    Ok(queries) => return Ok(queries),
                    Err(found) => problem = problem.or(Some(found)),
                }
            }
            Some(Err(error)) => problem = problem.or(Some(error.to_string())),
            _ => {}
        }
    }
    Err(problem.unwrap_or_else(|| "the answer contains no JSON array".to_string()))
}

fn strings(items: Vec<Value>) -> Result<Vec<String>, String> {
    let mut queries = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        let Value::String(query) = item else {
            return Err(format!("item {} of the array is not a string", index + 1));
        };
        queries.push(query);
    }
    Ok(queries)
}

/// Returns the significant words of a question, in lower case and without a plural `s`. In a word with Chinese,
/// Japanese or Korean characters, every character counts as a word.
fn words(query: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for word in query.to_lowercase().split(|c: char| !c.is_alphanumeric()) {
        if word.is_empty() || FILLER.contains(&word) {
            continue;
        }
        if word
            .chars()
            .any(|c| ('\u{2e80}'..='\u{9fff}').contains(&c) || ('\u{ac00}'..='\u{d7af}').contains(&c))
        {
            found.extend(word.chars().map(String::from));
            continue;
        }
        let stem = word.strip_suffix('s').filter(|stem| stem.len() > 3 && !stem.ends_with('s'));
        found.insert(stem.unwrap_or(word).to_string());
    }
    found
}

/// Returns the fraction of the significant words of two texts that occur in both, from 0 to 1; 1 if neither text has
/// such words.
pub(super) fn similarity(one: &str, other: &str) -> f64 {
    let (one, other) = (words(one), words(other));
    let all = one.union(&other).count();
    if all == 0 { 1.0 } else { one.intersection(&other).count() as f64 / all as f64 }
}

/// True if two sub-queries are equal except for letter case, or if at least the fraction `SAME` of their significant
/// words occurs in both.
fn is_same(one: &str, other: &str) -> bool {
    let is_equal = one.trim().eq_ignore_ascii_case(other.trim());
    is_equal || (!words(one).is_empty() && !words(other).is_empty() && similarity(one, other) >= SAME)
}

/// A list of sub-queries that is ready to run, with notes for the user about changes to the list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Prepared {
    pub(super) queries: Vec<String>,
    pub(super) notes: Vec<String>,
}

/// Leaves out empty sub-queries, and those that repeat an earlier one of the list or one of `known`. Returns the first
/// `most` of the others, each cut to `LONGEST_QUERY` characters. Considers only the first `10 * most` sub-queries of
/// the list, or the first 100 if that is more.
pub(super) fn prepare(queries: Vec<String>, known: &[String], most: usize) -> Prepared {
    let mut prepared = Prepared::default();
    let mut merged = 0;
    // Comparing all pairs of a long list would take too long, and only the first few sub-queries run.
    for query in queries.into_iter().take(most.saturating_mul(10).max(100)) {
        let query: String =
            query.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(LONGEST_QUERY).collect();
        if query.is_empty() {
            continue;
        }
        if known.iter().chain(&prepared.queries).any(|other| is_same(other, &query)) {
            merged += 1;
            continue;
        }
        prepared.queries.push(query);
    }
    if merged > 0 {
        let what = if merged == 1 {
            "1 sub-query that repeats another".to_string()
        } else {
            format!("{merged} sub-queries that repeat others")
        };
        prepared.notes.push(format!("guard left out {what}"));
    }
    if prepared.queries.len() > most {
        prepared.queries.truncate(most);
        prepared.notes.push(format!(
            "the model proposed more than {most} sub-queries; guard runs the first {most} (see --max-queries)"
        ));
    }
    prepared
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(all: &[&str]) -> Vec<String> {
        all.iter().map(|one| (*one).to_string()).collect()
    }

    #[test]
    fn an_array_is_found_with_anything_around_it() {
        for text in [
            r#"["Q1", "Q2"]"#,
            "Sure! Here you go [1]:\n```json\n[\"Q1\",\n \"Q2\"]\n```\nAnything else?",
            r#"I thought about it [as asked]. ["Q1", "Q2"] ["Q3"]"#,
            r#"{"sub_queries": ["Q1", "Q2"]}"#,
        ] {
            assert_eq!(parse(text), Ok(list(&["Q1", "Q2"])), "{text}");
        }
        assert_eq!(parse("[]"), Ok(Vec::new()));
    }

    #[test]
    fn what_is_wrong_is_said_exactly() {
        for (text, expected) in [
            ("", "the answer contains no JSON array"),
            ("I cannot do that.", "the answer contains no JSON array"),
            ("[\"Q1\", \"Q2\"", "EOF while parsing a list at line 1 column 11"),
            ("[1, 2]", "item 1 of the array is not a string"),
            ("[\"Q1\", {\"q\": 5}]", "item 2 of the array is not a string"),
        ] {
            assert_eq!(parse(text), Err(expected.to_string()), "{text}");
        }
    }

    #[test]
    fn sub_queries_that_ask_the_same_are_merged() {
        for (one, other) in [
            (
                "What are recent advances in quantum hardware?",
                "what are the latest advances in Quantum Hardware",
            ),
            ("Quantum error correction techniques", "Techniques of quantum error correction"),
            ("量子计算的硬件进展", "量子计算的硬件进展?"),
        ] {
            assert!(is_same(one, other), "{one} | {other}");
        }
        for (one, other) in [
            ("Quantum hardware advances", "Quantum software advances"),
            ("Pros of Rust", "Cons of Rust"),
            ("Q1", "Q2"),
            ("What is it?", "Who was there?"),
        ] {
            assert!(!is_same(one, other), "{one} | {other}");
        }
    }

    #[test]
    fn the_list_is_cut_with_a_note() {
        let many: Vec<String> = (0..50).map(|number| format!("topic{number}")).collect();
        let prepared = prepare(many, &[], 5);
        assert_eq!(prepared.queries, list(&["topic0", "topic1", "topic2", "topic3", "topic4"]));
        assert_eq!(
            prepared.notes,
            ["the model proposed more than 5 sub-queries; guard runs the first 5 (see --max-queries)"]
        );
        let merged = prepare(list(&["Same thing", "", " same  thing ", "Other"]), &list(&["other"]), 5);
        assert_eq!(merged.queries, list(&["Same thing"]));
        assert_eq!(merged.notes, ["guard left out 2 sub-queries that repeat others"]);
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_parser(text in "\\PC{0,60}|[\\[\\]\"{},a1 ]{0,60}") {
            let _ = parse(&text);
        }

        #[test]
        fn a_prepared_list_is_short_and_has_no_duplicates(queries in proptest::collection::vec("[a-d ]{0,6}", 0..20), most in 1usize..8) {
            let prepared = prepare(queries, &[], most);
            prop_assert!(prepared.queries.len() <= most);
            for (index, one) in prepared.queries.iter().enumerate() {
                prop_assert!(!one.trim().is_empty());
                prop_assert!(!prepared.queries[..index].iter().any(|other| is_same(one, other)));
            }
        }
    }
}
