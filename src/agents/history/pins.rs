//! Facts that must survive compaction word for word: the user's constraints, and the paths, names and numbers of the
//! conversation. guard copies them, because a model that summarises tends to lose exactly these.

use std::collections::HashMap;

use super::constraints::{constraints, lines_outside_code};
use super::message::{Message, Role};
use super::tokens::Size;

/// Maximum number of different facts of one kind, so that a message with a very long list of paths cannot fill
/// the memory.
const MOST: usize = 2_000;
/// Maximum length of a path or name, in bytes. A longer one is not treated as a fact.
const LONGEST: usize = 160;

/// All facts of some messages, the most important first: constraints in the order in which the user stated them, so
/// that a later one never displaces an earlier one, then paths, names and numbers, the most frequent first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    constraints: Vec<String>,
    others: Vec<String>,
}

impl Facts {
    pub(super) fn of(messages: &[Message]) -> Self {
        let mut stated = Counted::default();
        let (mut paths, mut names, mut numbers) =
            (Counted::default(), Counted::default(), Counted::default());
        for message in messages {
            if message.role == Role::User {
                constraints(&message.content).for_each(|sentence| stated.add(&sentence));
            }
            for line in message.content.lines() {
                words(line).filter(|word| is_path(word)).for_each(|word| paths.add(word));
            }
            for line in lines_outside_code(&message.content) {
                names_of(line).for_each(|name| names.add(name));
                numbers_of(line, |phrase| numbers.add(phrase));
            }
        }
        let others = [paths, names, numbers].into_iter().flat_map(Counted::most_frequent_first).collect();
        Self { constraints: stated.in_order(), others }
    }

    /// Returns the facts that fit into `room` as list items, the most important first. Skips a fact that does not fit,
    /// and a path, name or number that `text` or a fact chosen before already contains.
    pub(super) fn chosen(&self, text: &str, mut room: Size) -> Vec<String> {
        let mut chosen: Vec<String> = Vec::new();
        let mut choose = |fact: &str, chosen: &mut Vec<String>| {
            let size = Size::of(fact).plus(Size::of("\n- \\"));
            if size <= room {
                room = room.minus(size);
                chosen.push(fact.to_string());
            }
        };
        for sentence in &self.constraints {
            choose(sentence, &mut chosen);
        }
        for fact in &self.others {
            if !text.contains(fact.as_str()) && !chosen.iter().any(|other| other.contains(fact.as_str())) {
                choose(fact, &mut chosen);
            }
        }
        chosen
    }

    /// Returns the facts that none of these texts contains.
    pub(super) fn missing_in(&self, texts: &[&str]) -> Vec<String> {
        let all = self.constraints.iter().chain(&self.others);
        all.filter(|fact| !texts.iter().any(|text| text.contains(fact.as_str()))).cloned().collect()
    }
}

/// Different texts, and for each text how often it occurred and when it was first found.
#[derive(Debug, Default)]
struct Counted {
    /// For each text, the number of its occurrences, and its position in the order in which texts were first
    /// found.
    found: HashMap<String, (usize, usize)>,
}

impl Counted {
    fn add(&mut self, text: &str) {
        if let Some((count, _)) = self.found.get_mut(text) {
            *count += 1;
        } else if self.found.len() < MOST {
            self.found.insert(text.to_string(), (1, self.found.len()));
        }
    }

    fn in_order(self) -> Vec<String> {
        let mut all: Vec<_> = self.found.into_iter().collect();
        all.sort_by_key(|(_, (_, place))| *place);
        all.into_iter().map(|(text, _)| text).collect()
    }

    fn most_frequent_first(self) -> Vec<String> {
        let mut all: Vec<_> = self.found.into_iter().collect();
        all.sort_by_key(|(_, (count, place))| (std::cmp::Reverse(*count), *place));
        all.into_iter().map(|(text, _)| text).collect()
    }
}

/// Splits a line into words, at spaces, quotes, brackets, commas and similar signs, and at characters of scripts
/// without spaces. Removes punctuation from the end of a word, and skips words that are longer than `LONGEST`.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let separates = |character: char| {
        character.is_whitespace()
            || matches!(
                character,
                '`' | '\'' | '"' | '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' | ',' | ';' | '|' | '='
            )
            || matches!(character, '“' | '”' | '‘' | '’' | '«' | '»')
            || is_of_script_without_spaces(character)
    };
    line.split(separates)
        .map(|word| word.trim_end_matches(['.', ':', '!', '?', '*']).trim_start_matches('*'))
        .filter(|word| !word.is_empty() && word.len() <= LONGEST)
}

fn is_of_script_without_spaces(character: char) -> bool {
    matches!(character, '\u{2e80}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}' | '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{3ffff}')
}

/// File name extensions: a word without a slash that ends with one of these is a path.
const ENDINGS: &[&str] = &[
    "rs", "toml", "md", "json", "yaml", "yml", "py", "js", "ts", "tsx", "jsx", "go", "c", "h", "cpp", "hpp",
    "java", "kt", "sh", "txt", "html", "css", "sql", "lock", "xml", "csv", "proto", "ini", "cfg", "conf",
    "env", "log", "rb", "php", "swift",
];

/// Words with a slash that are not paths.
const NO_PATHS: &[&str] = &[
    "and/or",
    "he/she",
    "his/her",
    "n/a",
    "w/o",
    "i/o",
    "yes/no",
    "true/false",
    "tcp/ip",
    "read/write",
    "client/server",
    "input/output",
    "on/off",
    "either/or",
];

fn is_path(word: &str) -> bool {
    let has_letter = |text: &str| text.chars().any(char::is_alphabetic);
    if word.contains('/') {
        let is_address = word.contains("://");
        let parts = || word.split('/').filter(|part| !part.is_empty());
        let is_short = parts().count() < 2 && !word.starts_with(['/', '.', '~']) && !word.ends_with('/');
        let is_comment = word.starts_with("//") || word.starts_with("/*");
        let is_known = NO_PATHS.contains(&word.to_lowercase().as_str());
        return has_letter(word) && (is_address || !(is_short || is_comment || is_known));
    }
    if word.get(1..3) == Some(":\\") {
        return true;
    }
    // In `main.rs:120`, the part after the colon is a line number.
    let file = word.split(':').next().unwrap_or(word);
    let Some((stem, ending)) = file.rsplit_once('.') else { return false };
    ENDINGS.contains(&ending) && (has_letter(stem) || stem.is_empty())
}

/// Returns the names in a line: code spans, identifiers, and capitalised words that do not begin a sentence.
fn names_of(line: &str) -> impl Iterator<Item = &str> {
    let spans = line.split('`').skip(1).step_by(2).map(str::trim);
    let spans = spans.filter(|span| span.chars().count() > 1 && span.len() <= LONGEST && !is_path(span));
    let mut begins_sentence = true;
    let single = line.split_whitespace().flat_map(move |chunk| {
        let is_first = std::mem::replace(&mut begins_sentence, chunk.ends_with(['.', '!', '?', ':', '。']));
        words(chunk).filter(move |word| is_identifier(word) || (!is_first && is_proper_name(word)))
    });
    spans.chain(single)
}

fn is_identifier(word: &str) -> bool {
    let is_code = |character: char| character.is_alphanumeric() || matches!(character, '_' | ':' | '.' | '-');
    if !word.chars().all(is_code) || !word.chars().any(char::is_alphabetic) || is_path(word) {
        return false;
    }
    let has_capital_inside = word
        .chars()
        .zip(word.chars().skip(1))
        .any(|(left, right)| left.is_lowercase() && right.is_uppercase());
    word.contains("::") || word.trim_matches('_').contains('_') || has_capital_inside
}

fn is_proper_name(word: &str) -> bool {
    let mut letters = word.chars();
    let begins_large = letters.next().is_some_and(char::is_uppercase);
    begins_large
        && word.chars().count() >= 3
        && word.chars().all(char::is_alphabetic)
        && letters.any(char::is_lowercase)
}

/// Units of measure. A unit after a number becomes part of the fact.
const UNITS: &[&str] = &[
    "%", "s", "ms", "seconds", "minutes", "hours", "days", "bytes", "kb", "mb", "gb", "kib", "mib", "gib",
    "tokens", "lines", "messages", "files", "users", "requests", "percent", "usd", "eur", "cores", "threads",
];

/// Finds the numbers in a line, each with the word before it and its unit, because a number alone has no meaning. Skips
/// a number of one digit without a unit.
fn numbers_of(line: &str, mut found: impl FnMut(&str)) {
    let mut all = words(line).peekable();
    let mut previous = "";
    while let Some(word) = all.next() {
        if is_number(word) {
            let is_word = !previous.is_empty() && previous.chars().all(char::is_alphabetic);
            let unit = all.peek().filter(|next| UNITS.contains(&next.to_lowercase().as_str()));
            if word.chars().filter(char::is_ascii_digit).count() > 1 || unit.is_some() {
                let phrase = [is_word.then_some(previous), Some(word), unit.copied()];
                found(&phrase.into_iter().flatten().collect::<Vec<_>>().join(" "));
            }
        }
        previous = word;
    }
}

/// True for numbers, versions, dates and amounts: `8080`, `16_000`, `1.2.3`, `v2`, `#41`, `120ms`, `50%`,
/// `2026-11-17`.
fn is_number(word: &str) -> bool {
    let digits = word.trim_start_matches(['#', 'v', '$', '€', '~', '+', '-']);
    let ends = |character: char| character.is_ascii_alphabetic() || character == '%';
    let body = digits.trim_end_matches(ends);
    body.starts_with(|first: char| first.is_ascii_digit())
        && body.ends_with(|last: char| last.is_ascii_digit())
        && digits.len() - body.len() <= 3
        && body
            .chars()
            .all(|character| character.is_ascii_digit() || matches!(character, '_' | '.' | '-' | ':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str) -> Message {
        Message::new(Role::User, text)
    }

    fn chosen(text: &str) -> Vec<String> {
        Facts::of(&[user(text)]).chosen("", Size::of_tokens(1_000))
    }

    #[test]
    fn constraints_come_before_paths_names_and_numbers() {
        let text = "Ask Alice about port 8080. Use `HistoryConfig` in src/agents/history/mod.rs. Never push to main.";
        assert_eq!(
            chosen(text),
            ["Never push to main.", "src/agents/history/mod.rs", "HistoryConfig", "Alice", "port 8080"]
        );
    }

    #[test]
    fn paths_are_recognised_also_between_chinese_characters() {
        for path in [
            "/etc/passwd",
            "./a",
            "~/x",
            "src/lib.rs",
            "docs/internals",
            "README.md",
            "main.rs:120",
            "https://a.example/b",
            "C:\\temp",
        ] {
            assert!(is_path(path), "{path}");
        }
        for word in ["and/or", "I/O", "1/2", "//", "// todo", "e.g", "self.config", "3.5", "/", "a."] {
            assert!(!is_path(word), "{word}");
        }
        assert_eq!(chosen("修改src/main.rs文件，端口8080"), ["src/main.rs", "8080"]);
    }

    #[test]
    fn numbers_carry_their_word_and_unit() {
        assert_eq!(
            chosen("a timeout of 120 s and version v1.2.3, or 2 times"),
            ["of 120 s", "version v1.2.3"]
        );
        assert_eq!(chosen("abc1 x2y 1-2-x"), Vec::<String>::new());
    }

    #[test]
    fn only_the_user_states_constraints() {
        let message = Message::new(Role::Assistant, "You must pay 500 USD. Never mind.");
        assert_eq!(Facts::of(&[message]).chosen("", Size::of_tokens(100)), ["pay 500 USD"]);
    }

    #[test]
    fn the_most_important_facts_get_the_room() {
        let messages = [user("Never push to main. Look at src/a.rs and src/b.rs and src/b.rs.")];
        let facts = Facts::of(&messages);
        assert_eq!(facts.chosen("", Size::of_tokens(10)), ["Never push to main.", "src/b.rs"]);
        assert_eq!(facts.chosen("", Size::of_tokens(4)), ["src/b.rs"], "what does not fit is skipped");
        assert_eq!(facts.chosen("see src/b.rs", Size::of_tokens(100)), ["Never push to main.", "src/a.rs"]);
        assert_eq!(facts.missing_in(&["src/a.rs, src/b.rs"]), ["Never push to main."]);
    }

    #[test]
    fn a_message_full_of_paths_is_bounded() {
        let text: String = (0..5_000).map(|index| format!("src/file{index}.rs ")).collect();
        assert_eq!(Facts::of(&[user(&text)]).others.len(), MOST);
    }

    proptest::proptest! {
        #[test]
        fn any_text_has_facts_that_fit(text in "(\\PC|\\n|`|/|must |[0-9]){0,200}", tokens in 0_usize..50) {
            let room = Size::of_tokens(tokens);
            let facts = Facts::of(&[user(&text)]).chosen("", room);
            let size: Size = facts.iter().map(|fact| Size::of(fact).plus(Size::of("\n- "))).sum();
            proptest::prop_assert!(size <= room);
        }
    }
}
