//! Records what sub-queries retrieved, as guard observed it, and checks the citations in an answer.
//!
//! A model's statements about its sources are not evidence. Evidence is what a run's proxy or gateway recorded,
//! and what the agent's search tools returned. guard removes a citation without evidence from the answer and
//! reports it.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::markdown_code;
use super::markdown_code::Part;

/// How guard observed that a sub-query retrieved something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Evidence {
    /// A plain HTTP request for this address went through guard's proxy.
    Request,
    /// A connection to the host went through guard's proxy, and a tool of the agent named this address.
    Connection,
    /// The model's API searched the web and named this page in an answer that passed through guard's gateway.
    Search,
    /// A search tool of the agent returned a text with this address.
    ToolResult,
}

impl Evidence {
    /// Returns a description of the evidence, for reports.
    pub fn explain(self) -> &'static str {
        match self {
            Self::Request => "request seen by guard's proxy",
            Self::Connection => "connection seen by guard's proxy",
            Self::Search => "web search seen by guard's gateway",
            Self::ToolResult => "result of a search tool of the agent",
        }
    }
}

/// One observation by guard about what a request to a model retrieved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Retrieval {
    /// The proxy forwarded a plain HTTP request for this address, and the server answered with success.
    Request(String),
    /// The proxy opened a connection to this host.
    Host(String),
    /// The agent called one of its tools with this address.
    ToolCall(String),
    /// An answer of the model's API, which passed through guard's gateway, lists this page as the result of a
    /// web search.
    Search(String),
    /// A search tool of the agent returned a text with this address. The results of other tools do not count,
    /// because a page can mention any address.
    ToolResult(String),
}

/// A page that the answer cites.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Source {
    /// The number of the source in the answer, from 1.
    pub number: usize,
    /// The URL of the source.
    pub url: String,
    /// How guard observed that a sub-query retrieved the source.
    pub evidence: Evidence,
    /// The ids of the sub-queries that retrieved the source.
    pub sub_queries: Vec<usize>,
}

#[cfg(test)]
impl Source {
    pub(super) fn example() -> Self {
        let (url, evidence) = ("https://a.org/x".to_string(), Evidence::Request);
        Self { number: 1, url, evidence, sub_queries: vec![0] }
    }
}

/// The maximum length of a recorded address, in bytes.
const LONGEST_URL: usize = 2048;
/// The maximum number of addresses that guard takes from one text, and of retrievals that it records for one request.
pub(super) const MOST_URLS: usize = 1000;

/// Returns the addresses in a text that can be evidence, in order: at most `MOST_URLS`, without overlong ones.
fn urls(text: &str) -> impl Iterator<Item = &str> {
    all_urls(text).map(|(_, url)| url).filter(|url| url.len() <= LONGEST_URL).take(MOST_URLS)
}

/// Returns all addresses with the scheme `http` or `https` in a text, in order, each with its byte range.
fn all_urls(text: &str) -> impl Iterator<Item = (std::ops::Range<usize>, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let is_http = |bytes: &[u8]| bytes.eq_ignore_ascii_case(b"http");
            let begin = at + text.as_bytes().get(at..)?.windows(4).position(is_http)?;
            let rest = &text[begin..];
            let begins = |scheme: &&str| {
                rest.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
            };
            let Some(scheme) = ["https://", "http://"].into_iter().find(begins) else {
                at = begin + 4;
                continue;
            };
            let end = end_of_url(rest);
            at = begin + end.max(scheme.len());
            if end > scheme.len() {
                return Some((begin..begin + end, &rest[..end]));
            }
        }
    })
}

/// Returns the length of the address at the beginning of a text. A closing parenthesis is part of the address
/// only if the address has an opening one; punctuation at the end is never part of it.
fn end_of_url(text: &str) -> usize {
    let is_end = |c: char| {
        c.is_whitespace()
            || c.is_control()
            || matches!(c, '<' | '>' | '"' | '`' | '\\' | '^' | '{' | '}' | '|' | '[' | ']')
    };
    let mut open = 0usize;
    let mut end = text.len();
    for (position, c) in text.char_indices() {
        match c {
            '(' => open += 1,
            ')' if open == 0 => {
                end = position;
                break;
            }
            ')' => open -= 1,
            c if is_end(c) => {
                end = position;
                break;
            }
            _ => {}
        }
    }
    text[..end].trim_end_matches(['.', ',', ';', ':', '!', '?', '\'', '*', '_', '(']).len()
}

/// Returns a normal form of an address, for comparisons: without scheme, user name, fragment, default port and final
/// slashes, and with the host in lower case.
pub(super) fn canonical(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split('#').next().unwrap_or_default();
    let (authority, path) = match rest.find(['/', '?']) {
        Some(position) => rest.split_at(position),
        None => (rest, ""),
    };
    let authority = authority.rsplit('@').next().unwrap_or_default().to_ascii_lowercase();
    let host = authority.strip_suffix(":80").or_else(|| authority.strip_suffix(":443")).unwrap_or(&authority);
    format!("{host}{}", path.trim_end_matches('/'))
}

/// Returns the host of an address, in lower case and without a port.
fn host(url: &str) -> String {
    let canonical = canonical(url);
    let authority = canonical.split(['/', '?']).next().unwrap_or_default();
    match authority.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default().to_string(),
        None => authority.split(':').next().unwrap_or_default().to_string(),
    }
}

/// Returns the addresses in all strings of a JSON value. Skips the remaining strings once `MOST_URLS` addresses are
/// found.
pub(super) fn urls_in(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    collect_urls(value, &mut found);
    found
}

fn collect_urls(value: &Value, found: &mut BTreeSet<String>) {
    if found.len() >= MOST_URLS {
        return;
    }
    match value {
        Value::String(text) => found.extend(urls(text).map(str::to_string)),
        Value::Array(all) => all.iter().for_each(|one| collect_urls(one, found)),
        Value::Object(all) => all.values().for_each(|one| collect_urls(one, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The addresses that all sub-queries retrieved, with the evidence for each.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// By normalised address: the address, the best evidence for it, and the ids of the sub-queries that
    /// retrieved it.
    entries: BTreeMap<String, (String, Evidence, BTreeSet<usize>)>,
}

impl Ledger {
    /// Adds the pages that a sub-query retrieved, as guard observed it. A host is no source by itself. An address that
    /// the agent passed to a tool counts only if `retrievals` also contains a connection to its host.
    pub fn add(&mut self, sub_query: usize, retrievals: &[Retrieval]) {
        let is_host = |one: &Retrieval| match one {
            Retrieval::Host(host) => Some(host.to_ascii_lowercase()),
            _ => None,
        };
        let hosts: BTreeSet<String> = retrievals.iter().filter_map(is_host).collect();
        for retrieval in retrievals {
            match retrieval {
                Retrieval::Request(url) => self.insert(sub_query, url, Evidence::Request),
                Retrieval::ToolCall(url) if hosts.contains(&host(url)) => {
                    self.insert(sub_query, url, Evidence::Connection);
                }
                Retrieval::Search(url) => self.insert(sub_query, url, Evidence::Search),
                Retrieval::ToolResult(url) => self.insert(sub_query, url, Evidence::ToolResult),
                Retrieval::ToolCall(_) | Retrieval::Host(_) => {}
            }
        }
    }

    fn insert(&mut self, sub_query: usize, url: &str, evidence: Evidence) {
        let (_, known, sub_queries) = self
            .entries
            .entry(canonical(url))
            .or_insert_with(|| (url.to_string(), evidence, BTreeSet::new()));
        *known = evidence.min(*known);
        sub_queries.insert(sub_query);
    }

    /// Returns the retrieved sources, numbered from 1 in the order of their normalised addresses.
    pub fn sources(&self) -> Vec<Source> {
        let all = self.entries.values().enumerate();
        all.map(|(index, (url, evidence, sub_queries))| Source {
            number: index + 1,
            url: url.clone(),
            evidence: *evidence,
            sub_queries: sub_queries.iter().copied().collect(),
        })
        .collect()
    }
}

/// An answer whose citations were checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckedAnswer {
    /// The answer. Outside code, `[N]` replaces every citation of a retrieved source, and all other citations are
    /// removed.
    pub answer: String,
    /// The cited sources, numbered from 1 in the order in which the answer cites them.
    pub sources: Vec<Source>,
    /// The citations that guard removed, because nothing shows that an agent retrieved the source.
    pub dropped: Vec<String>,
}

/// The maximum number of times that guard checks an answer again after it has removed citations.
const MOST_PASSES: usize = 16;
/// The maximum length of a link's label, in bytes. A link with a longer label is not recognised.
const LONGEST_LABEL: usize = 1000;

/// Checks the citations in an answer, which are addresses and numbers in brackets, against the numbered `sources`.
/// Removes the citations of other sources, and numbers the remaining ones anew. Does not change code (see
/// [`markdown_code`]).
pub fn check_citations(answer: &str, sources: &[Source]) -> CheckedAnswer {
    let mut checked = check_once(answer, sources);
    // The text around a removed citation can form a new citation: `[[7]1]` becomes `[1]`.
    for _ in 0..MOST_PASSES {
        let again = check_once(&checked.answer, &checked.sources);
        if again.dropped.is_empty() {
            return checked;
        }
        let mut dropped = std::mem::take(&mut checked.dropped);
        dropped.extend(again.dropped);
        checked = CheckedAnswer { dropped, ..again };
    }
    // Only a hostile text nests citations so deeply. Without brackets and `://`, it contains no citation.
    checked.answer = checked.answer.replace(['[', ']'], "").replace("://", " ");
    checked
}

fn check_once(answer: &str, sources: &[Source]) -> CheckedAnswer {
    let mut checker = Checker { sources, checked: CheckedAnswer::default() };
    for part in markdown_code::split(answer) {
        match part {
            Part::Text(text) => checker.text(text),
            Part::Code(code) => checker.checked.answer.push_str(code),
        }
    }
    checker.checked
}

struct Checker<'s> {
    sources: &'s [Source],
    checked: CheckedAnswer,
}

impl Checker<'_> {
    fn text(&mut self, text: &str) {
        let mut urls = all_urls(text).peekable();
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            if urls.peek().is_some_and(|(range, _)| range.start == at)
                && let Some((range, url)) = urls.next()
            {
                let is_cited = self.url(url);
                at = range.end;
                // Remove the parentheses of `(https://example.org)`, which would be left empty.
                if !is_cited && text[at..].starts_with(')') && self.checked.answer.ends_with('(') {
                    self.checked.answer.pop();
                    self.remove_spaces_at_end();
                    at += 1;
                }
                continue;
            }
            if let Some((label, url, length)) = link(rest) {
                self.checked.answer.push_str(label);
                self.url(url);
                at += length;
                while urls.next_if(|(range, _)| range.start < at).is_some() {}
                continue;
            }
            if let Some((address, length)) = other_link(rest) {
                if rest.starts_with(']') {
                    self.checked.answer.push(']');
                }
                self.drop_citation(address.to_string());
                at += length;
                while urls.next_if(|(range, _)| range.start < at).is_some() {}
                continue;
            }
            if let Some((number, length)) = numbered(rest) {
                self.number(number);
                at += length;
                continue;
            }
            let Some(c) = rest.chars().next() else { break };
            self.checked.answer.push(c);
            at += c.len_utf8();
        }
    }

    /// Appends the citation of the source with this address to the answer. If there is no such source, appends nothing,
    /// records the removed citation, and returns false.
    fn url(&mut self, url: &str) -> bool {
        let wanted = canonical(url);
        let source = self.sources.iter().find(|source| canonical(&source.url) == wanted);
        match source {
            Some(source) => self.cite(source.number),
            None => self.drop_citation(url.to_string()),
        }
        source.is_some()
    }

    fn number(&mut self, number: usize) {
        if self.sources.iter().any(|source| source.number == number) {
            self.cite(number);
        } else {
            self.drop_citation(format!("[{number}]"));
        }
    }

    /// Appends the citation of the source with the number `offered` to the answer, and adds the source to the cited
    /// sources. The citation's number is the position of the source among the cited sources.
    fn cite(&mut self, offered: usize) {
        let Some(source) = self.sources.iter().find(|source| source.number == offered) else { return };
        let cited = &mut self.checked.sources;
        let number = match cited.iter().find(|known| known.url == source.url) {
            Some(known) => known.number,
            None => {
                let number = cited.len() + 1;
                cited.push(Source { number, ..source.clone() });
                number
            }
        };
        let text = &mut self.checked.answer;
        if text.ends_with(|c: char| c.is_alphanumeric()) {
            text.push(' ');
        }
        text.push_str(&format!("[{number}]"));
    }

    fn drop_citation(&mut self, citation: String) {
        self.remove_spaces_at_end();
        if !self.checked.dropped.contains(&citation) {
            self.checked.dropped.push(citation);
        }
    }

    /// Removes the spaces before a removed citation, but not the indentation of its line.
    fn remove_spaces_at_end(&mut self) {
        let text = &mut self.checked.answer;
        text.truncate(text.trim_end_matches(' ').len().max(text.rfind('\n').map_or(0, |line| line + 1)));
    }
}

/// Parses a Markdown link to an address of the scheme `http` or `https` at the beginning of a text. Returns its label,
/// its address, and its length in bytes; `None` if the text does not begin with such a link.
fn link(text: &str) -> Option<(&str, &str, usize)> {
    let (label, target) = label_and_target(text)?;
    let (range, url) = all_urls(target).next().filter(|(range, _)| range.start == 0)?;
    let closes = target[range.end..].find(')')? + range.end + 1;
    Some((label, url, 1 + label.len() + 2 + closes))
}

/// Parses the end of a Markdown link, `](ADDRESS)` or `]: ADDRESS`, or `<ADDRESS>`, at the beginning of a text. Meant
/// for addresses that [`all_urls`] does not find: with another scheme, without a scheme (`//example.org`), or written
/// with escapes. Returns the address and the length in bytes; `None` if the text begins differently.
fn other_link(text: &str) -> Option<(&str, usize)> {
    let (begin, ends): (_, &[char]) = if text.starts_with("](") {
        (2, &[')'])
    } else if text.starts_with("]:") {
        (2, &[' ', '\t', '\n'])
    } else if text.starts_with('<') {
        (1, &['>', ' ', '\n'])
    } else {
        return None;
    };
    // A link's target may begin in the next line.
    let target = text[begin..].trim_start();
    let begin = text.len() - target.len();
    let address = target.split(ends).next().unwrap_or_default().split('\n').next().unwrap_or_default();
    let plain = without_escapes(address);
    let plain = plain.trim_start_matches(['<', ' ']);
    let runs_code =
        |scheme: &str| ["javascript", "data", "vbscript"].contains(&scheme.to_ascii_lowercase().as_str());
    let is_address = plain.starts_with("//")
        || plain.contains("://")
        || plain.split_once(':').is_some_and(|(scheme, _)| runs_code(scheme));
    let closing = usize::from(text[begin + address.len()..].starts_with([')', '>']));
    is_address.then_some((address, begin + address.len() + closing))
}

/// Replaces what Markdown lets a writer put in place of a colon or a slash: backslash escapes and character references.
fn without_escapes(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let reference = rest.strip_prefix('&').and_then(|rest| rest.split_once(';')).map(|(name, _)| name);
        let number = |name: &str| match name.strip_prefix("#x").or_else(|| name.strip_prefix("#X")) {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => name.strip_prefix('#')?.parse().ok(),
        };
        let decoded = reference.and_then(|name| match name {
            "colon" => Some(':'),
            "sol" => Some('/'),
            name => number(name).and_then(char::from_u32),
        });
        match (decoded, reference) {
            (Some(decoded), Some(name)) => {
                plain.push(decoded);
                rest = &rest[name.len() + 2..];
            }
            _ => {
                let is_escape = c == '\\' && rest[1..].starts_with(|next: char| next.is_ascii_punctuation());
                if !is_escape {
                    plain.push(c);
                }
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    plain
}

/// Parses the beginning of a Markdown link, `[LABEL](`. Returns the label, and the rest of the line after the
/// parenthesis; `None` if the text begins differently.
fn label_and_target(text: &str) -> Option<(&str, &str)> {
    let inside = text.strip_prefix('[')?;
    let end = inside.bytes().take(LONGEST_LABEL).position(|byte| matches!(byte, b'[' | b']' | b'\n'))?;
    let rest = inside[end..].strip_prefix("](")?;
    Some((&inside[..end], &rest[..rest.find('\n').unwrap_or(rest.len())]))
}

/// Parses a number of one to four digits in brackets at the beginning of a text. Returns the number, and the length
/// with the brackets; `None` if the text begins differently.
fn numbered(text: &str) -> Option<(usize, usize)> {
    let (number, _) = text.strip_prefix('[')?.split_once(']')?;
    let is_number = (1..=4).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| number.parse().ok()).flatten().map(|parsed| (parsed, number.len() + 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn found(text: &str) -> Vec<&str> {
        urls(text).collect()
    }

    #[test]
    fn addresses_end_where_people_think_they_end() {
        for (text, expected) in [
            ("see https://a.org/x.", vec!["https://a.org/x"]),
            ("(https://a.org/x)", vec!["https://a.org/x"]),
            (
                "https://en.wikipedia.org/wiki/Rust_(language), and",
                vec!["https://en.wikipedia.org/wiki/Rust_(language)"],
            ),
            ("[t](https://a.org/x) <http://b.org>", vec!["https://a.org/x", "http://b.org"]),
            ("\"https://a.org/?q=1&r=2#top\"", vec!["https://a.org/?q=1&r=2#top"]),
            ("http httpx://a https:// http://", vec![]),
            ("**https://a.org**", vec!["https://a.org"]),
            ("HTTPS://a.org/x Http://b.org", vec!["HTTPS://a.org/x", "Http://b.org"]),
            ("好HTTP://a.org/好", vec!["HTTP://a.org/好"]),
        ] {
            assert_eq!(found(text), expected, "{text}");
        }
        assert_eq!(found(&format!("https://a.org/{}", "x".repeat(LONGEST_URL))), Vec::<&str>::new());
    }

    #[test]
    fn spellings_of_an_address_are_equal() {
        for (one, other) in [
            ("https://A.org/x/", "http://a.org/x"),
            ("https://a.org:443/x#y", "https://a.org/x"),
            ("https://user@a.org", "https://a.org/"),
            ("https://a.org?x", "https://A.org?x"),
        ] {
            assert_eq!(canonical(one), canonical(other));
        }
        assert_ne!(canonical("https://a.org/X"), canonical("https://a.org/x"));
        assert_ne!(canonical("https://a.org/x"), canonical("https://a.org.evil/x"));
        assert_eq!(host("https://[::1]:8080/x"), "::1");
        assert_eq!(host("https://A.org:8080/x"), "a.org");
    }

    fn ledger(retrievals: &[Retrieval]) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.add(0, retrievals);
        ledger
    }

    #[test]
    fn only_what_guard_observed_is_a_source() {
        let call = |url: &str| Retrieval::ToolCall(url.to_string());
        let result = |url: &str| Retrieval::ToolResult(url.to_string());
        let evidence =
            |retrievals: &[Retrieval]| ledger(retrievals).sources().first().map(|source| source.evidence);
        // A tool call alone shows only that the agent wanted the page.
        assert_eq!(evidence(&[call("https://a.org/x")]), None);
        assert_eq!(evidence(&[call("https://a.org/x"), Retrieval::Host("b.org".into())]), None);
        let connected = [call("https://a.org/x"), Retrieval::Host("A.org".into())];
        assert_eq!(evidence(&connected), Some(Evidence::Connection));
        assert_eq!(evidence(&[result("https://a.org/x")]), Some(Evidence::ToolResult));
        let searched = [result("https://a.org/x"), Retrieval::Search("https://a.org/x".into())];
        assert_eq!(evidence(&searched), Some(Evidence::Search));
        let both = [result("http://a.org/x"), Retrieval::Request("http://a.org/x".into())];
        assert_eq!(evidence(&both), Some(Evidence::Request));
        // A connection alone does not show which page was retrieved.
        assert_eq!(evidence(&[Retrieval::Host("a.org".into())]), None);
    }

    #[test]
    fn deeply_nested_citations_and_open_backticks_hide_nothing() {
        let began = std::time::Instant::now();
        let nested = format!("{}{}", "[".repeat(50_000), "7]".repeat(50_000));
        let checked = check_citations(&nested, &[]);
        assert!(!checked.answer.contains("7]") && checked.dropped.contains(&"[7]".to_string()));
        assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
        // Removing the brackets must not form a new address.
        let checked = check_citations(&format!("{nested} htt[]ps://evil.org/x"), &[]);
        assert!(urls(&checked.answer).next().is_none(), "{}", checked.answer);
        let checked = check_citations("A quote: ` see https://evil.org/x and [9].", &[]);
        assert_eq!(checked.dropped, ["https://evil.org/x", "[9]"]);
        assert!(check_citations("Code: `a[9]`.", &[]).dropped.is_empty());
    }

    #[test]
    fn citations_that_nobody_retrieved_are_removed() {
        let sources = ledger(&[
            Retrieval::ToolResult("https://a.org/one".into()),
            Retrieval::ToolResult("https://b.org/two".into()),
        ])
        .sources();
        let check = |answer: &str| check_citations(answer, &sources);
        let checked =
            check("Two [2], one [1], again https://b.org/two/. Bad [3] and https://evil.org/x too.");
        assert_eq!(checked.answer, "Two [1], one [2], again [1]. Bad and too.");
        assert_eq!(checked.dropped, ["[3]", "https://evil.org/x"]);
        let order: Vec<&str> = checked.sources.iter().map(|source| source.url.as_str()).collect();
        assert_eq!(order, ["https://b.org/two", "https://a.org/one"]);
        let links = check("A [page](https://a.org/one) and [another](https://evil.org/).");
        assert_eq!(links.answer, "A page [1] and another.");
        assert_eq!(links.dropped, ["https://evil.org/"]);
        assert_eq!(check("Fast [2] (https://evil.org/hype).").answer, "Fast [1].");
        assert_eq!(check("Fast (https://a.org/one).").answer, "Fast ([1]).");
        // Code must not be treated as a citation.
        let code = "`x[3]` a\n```\ncurl https://evil.org\n```\n";
        assert_eq!(check(code), CheckedAnswer { answer: code.into(), ..CheckedAnswer::default() });
        assert_eq!(check("Both [1][2].").answer, "Both [1][2].");
        assert_eq!(check("Both [9][2].").answer, "Both [1].");
        // Other spellings and places of an address.
        let long = format!("https://evil.org/{}", "x".repeat(3000));
        for hidden in [
            "HTTPS://evil.org/x",
            "[a](Https://evil.org/x)",
            "[a](//evil.org/x)",
            "[a](ftp://evil.org/x)",
            "[a](https&#58;//evil.org/x)",
            "[a](https\\://evil.org/x)",
            "[a [b]](//evil.org/x)",
            "[a]\n\n[a]: //evil.org/x",
            "[a](\n//evil.org/x)",
            "<ftp://evil.org/x>",
            "a ` b\nc `[a](https://evil.org/x)` d",
            "- ```\n  code\n  ```\n[a](https://evil.org/x)\n```\nz",
            "<div>\n```\n<a href=\"https://evil.org/x\">a</a>\n```\n</div>",
            "A ` mark.\n\n[a](https://evil.org/x)\n\nAnother ` mark.",
            "- `\n- [a](https://evil.org/x) `",
            "\\` https://evil.org/x `",
            &long,
            &format!("{} https://evil.org/x", "https://a.org/one ".repeat(2 * MOST_URLS)),
        ] {
            let checked = check(hidden);
            assert!(!checked.answer.contains("evil"), "{hidden:.200}: {:.200}", checked.answer);
            assert_eq!(checked.dropped.len(), 1, "{hidden:.200}");
        }
        // The text that remains after a removal must be checked again.
        assert_eq!(check("word[2] [[9]1]").answer, "word [1] [1]");
        assert_eq!(check("word[2] [[9]7]").answer, "word [1]");
    }

    #[test]
    fn addresses_are_found_in_any_shape_of_json() {
        let value = json!({"a": ["see https://a.org/x", {"b": "http://b.org"}], "c": 5, "d": null});
        let found: Vec<String> = urls_in(&value).into_iter().collect();
        assert_eq!(found, ["http://b.org", "https://a.org/x"]);
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_checker(text in "\\PC{0,80}|([\\[\\]()`h0-9 ]|https?://[a-c.]{1,4}){0,30}") {
            let sources = ledger(&[Retrieval::ToolResult("https://a.b".into())]).sources();
            let checked = check_citations(&text, &sources);
            // The checked answer must cite only retrieved sources.
            let again = check_citations(&checked.answer, &checked.sources);
            prop_assert!(again.dropped.is_empty(), "{:?}", again);
            for (range, url) in all_urls(&text) {
                prop_assert_eq!(&text[range], url);
            }
        }
    }
}
