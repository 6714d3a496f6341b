//! Finds the sentences in which a user demands or forbids something: "never push", "the port must be 8080", "不要改".

/// Maximum length of a constraint, in characters. A longer sentence is cut.
const LONGEST: usize = 300;

/// Words that mark a sentence as a constraint by themselves.
const WORDS: &[&str] = &[
    "never",
    "must",
    "mustn't",
    "always",
    "don't",
    "dont",
    "shouldn't",
    "forbidden",
    "niemals",
    "immer",
    "muss",
    "müssen",
    "jamais",
    "toujours",
    "nunca",
    "siempre",
];

/// Pairs of adjacent words that mark a sentence as a constraint.
const PAIRS: &[(&str, &str)] = &[
    ("do", "not"),
    ("should", "not"),
    ("may", "not"),
    ("not", "allowed"),
    ("make", "sure"),
    ("only", "use"),
    ("use", "only"),
    ("darf", "nicht"),
    ("dürfen", "nicht"),
];

/// Character sequences that mark a sentence as a constraint in Chinese, Japanese and Korean, where words cannot be
/// separated at spaces reliably.
const PARTS: &[&str] = &[
    "不要",
    "必须",
    "必須",
    "必需",
    "禁止",
    "切勿",
    "不得",
    "不能",
    "不可",
    "务必",
    "務必",
    "始终",
    "始終",
    "总是",
    "總是",
    "一定要",
    "绝不",
    "絕不",
    "别再",
    "只能",
    "必ず",
    "しないで",
    "してはいけない",
    "絶対に",
    "반드시",
    "하지 마",
];

/// Returns the sentences of a text that state a constraint, in order. Skips fenced code blocks, because code
/// and logs often contain "must" and "never" although the user demands nothing.
pub(super) fn constraints(text: &str) -> impl Iterator<Item = String> {
    let sentences = lines_outside_code(text).flat_map(sentences);
    sentences.filter(|sentence| states_constraint(sentence)).map(shortened)
}

/// Returns the lines of a text that are not part of a fenced code block.
pub(super) fn lines_outside_code(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```") || line.trim_start().starts_with("~~~");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Splits a line into sentences, and removes the marks of a list item or a quotation from its beginning.
fn sentences(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line.trim_start_matches(|first: char| first.is_whitespace() || "-*•>".contains(first));
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut characters = rest.char_indices().peekable();
        let mut end = rest.len();
        while let Some((at, character)) = characters.next() {
            let is_last_of_word = characters.peek().is_none_or(|(_, next)| next.is_whitespace());
            let may_end = matches!(character, '.' | '!' | '?' | ';') && is_last_of_word;
            if may_end || matches!(character, '。' | '！' | '？' | '；') {
                end = at + character.len_utf8();
                break;
            }
        }
        let (sentence, after) = rest.split_at(end);
        rest = after;
        Some(sentence.trim())
    })
}

fn states_constraint(sentence: &str) -> bool {
    if !sentence.is_ascii() && PARTS.iter().any(|part| sentence.contains(part)) {
        return true;
    }
    let lower = sentence.to_lowercase().replace('’', "'");
    let mut previous = "";
    lower.split(|character: char| !character.is_alphanumeric() && character != '\'').any(|word| {
        let found = WORDS.contains(&word) || PAIRS.contains(&(previous, word));
        previous = word;
        found
    })
}

fn shortened(sentence: &str) -> String {
    match sentence.char_indices().nth(LONGEST) {
        None => sentence.to_string(),
        Some((end, _)) => format!("{} [...]", sentence[..end].trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        constraints(text).collect()
    }

    #[test]
    fn sentences_that_demand_or_forbid_are_found() {
        for (text, wanted) in [
            ("Fix the parser. Never push to main! Thanks.", vec!["Never push to main!"]),
            ("- The port MUST be 8080.\n- be quick", vec!["The port MUST be 8080."]),
            ("Please don’t touch v1.2.3 of it", vec!["Please don’t touch v1.2.3 of it"]),
            ("do not use unsafe; always run the tests", vec!["do not use unsafe;", "always run the tests"]),
            ("请修复。不要改 README。谢谢", vec!["不要改 README。"]),
            ("必须使用 SQLite", vec!["必须使用 SQLite"]),
            ("Der Port muss 8080 sein.", vec!["Der Port muss 8080 sein."]),
            ("What is 2+2? Nevertheless, mustard.", vec![]),
            ("It works, do it. Not now.", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(found(text), wanted, "{text}");
        }
    }

    #[test]
    fn code_blocks_are_skipped() {
        assert_eq!(found("```\n// must never happen\n```\nalways ask"), ["always ask"]);
        assert_eq!(found("~~~ text\nmust\n"), Vec::<String>::new());
    }

    #[test]
    fn a_long_sentence_is_cut_at_a_character() {
        let one = found(&format!("never {}", "你".repeat(400)));
        assert_eq!(one.len(), 1);
        assert_eq!(one[0].chars().count(), LONGEST + " [...]".len());
    }
}
