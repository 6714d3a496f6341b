//! A CLI's output, line by line → events, and in the end what became of it.
//!
//! Lines that are not JSON, kinds that nobody knows and fields that are missing are no errors: they are handed on as what
//! they are, and counted. What counts as success is said by the adapter, and by nothing else. Whatever is printed, what is
//! kept of it is bounded, and every byte is looked at a fixed number of times.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::adapter::{Adapter, EventRule, OutputFormat, When};
use super::event::AgentEvent;
use super::retry_after::Wait;
use crate::outcome::ErrorKind;
use crate::transcript::EventType;

/// The longest line or object that is understood; a longer one is counted.
const LONGEST_LINE: usize = 16 << 20;
/// The most of an answer that is kept.
const LARGEST_ANSWER: usize = 16 << 20;
/// How many beginnings of an object are tried in what a CLI printed last.
const MOST_OBJECTS: usize = 32;

/// How many kinds of events that nobody knows are told apart.
const MOST_KINDS: usize = 20;

/// A longer line for people is cut.
const LONGEST_MESSAGE: usize = 64 << 10;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// With a code.
    Code(i32),
    /// By a signal that was not ours.
    Signal(i32),
    /// It was ended by something else, which is known already.
    Cut,
}

/// What became of a question.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conclusion {
    /// It says it has done what it was asked.
    pub success: bool,
    /// Its answer.
    pub answer: String,
    /// Its session.
    pub session: Option<String>,
    /// What went wrong: kind and words.
    pub error: Option<(ErrorKind, String)>,
    /// When it is worth another try, where it was said.
    pub wait: Option<Wait>,
    /// What it says it used.
    pub usage: Option<Value>,
    /// Lines of kinds that nobody knows.
    pub unknown: u64,
    /// Those kinds, in the order they came, and how often each did; of very many the first.
    pub unknown_kinds: Vec<(String, u64)>,
    /// Lines that were no objects.
    pub unreadable: u64,
}

/// Reads the output of one run.
#[derive(Debug)]
pub struct Reading {
    adapter: Adapter,
    format: OutputFormat,
    /// When what is read now was printed.
    time: SystemTime,
    line: Vec<u8>,
    is_too_long: bool,
    /// The lines of an object that is not whole yet.
    object: Vec<u8>,
    found: Conclusion,
    /// The last line said how it went.
    verdict: Option<bool>,
    /// What was said to be wrong, the last thing first.
    complaint: Option<String>,
}

/// The first of several paths (with `|` between) that leads to something.
fn find<'v>(value: &'v Value, paths: &str) -> Option<&'v Value> {
    let step = |value: &'v Value, key: &str| match value {
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        value => value.get(key),
    };
    paths.split('|').find_map(|path| path.split('.').try_fold(value, step).filter(|found| !found.is_null()))
}

fn text_at(value: &Value, path: Option<&String>) -> Option<String> {
    match find(value, path?)? {
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn holds(value: &Value, when: &When) -> bool {
    find(value, &when.key) == Some(&when.value)
}

impl EventRule {
    /// Whether a line of this kind says that all went well.
    fn says_success(&self, value: &Value) -> bool {
        let is_there = |path: &String| find(value, path).is_some();
        self.success_when.iter().all(|when| holds(value, when))
            && !self.success_unless.as_ref().is_some_and(is_there)
            && self.answer.as_ref().is_none_or(is_there)
    }
}

impl Reading {
    /// For one run of this CLI.
    pub fn new(adapter: Adapter, format: OutputFormat) -> Self {
        Self {
            adapter,
            format,
            time: SystemTime::UNIX_EPOCH,
            line: Vec::new(),
            is_too_long: false,
            object: Vec::new(),
            found: Conclusion::default(),
            verdict: None,
            complaint: None,
        }
    }

    /// What is fed from here on was printed then.
    pub fn at(&mut self, time: SystemTime) {
        self.time = time;
    }

    fn event(&self, event_type: EventType, message: String, data: Value) -> AgentEvent {
        AgentEvent { event_type: event_type.to_string(), message, timestamp: self.time, data }
    }

    /// Words that are no event of the agent's.
    fn words(&self, event_type: EventType, line: &[u8]) -> AgentEvent {
        let text: String = String::from_utf8_lossy(line).chars().take(4096).collect();
        let data = json!({ "text": text });
        self.event(event_type, text, data)
    }

    /// Reads the next bytes, cut anywhere.
    pub fn feed(&mut self, mut bytes: &[u8], mut see: impl FnMut(AgentEvent)) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (head, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if self.line.is_empty() && !self.is_too_long && head.len() <= LONGEST_LINE {
                self.read_line(head, &mut see);
                continue;
            }
            self.keep(head);
            let line = std::mem::take(&mut self.line);
            if std::mem::take(&mut self.is_too_long) {
                self.found.unreadable += 1;
            } else {
                self.read_line(&line, &mut see);
            }
        }
        self.keep(bytes);
    }

    /// Reads a last line that has no end.
    pub fn finish(&mut self, mut see: impl FnMut(AgentEvent)) {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.is_too_long) {
            self.found.unreadable += 1;
        } else if !line.is_empty() {
            self.read_line(&line, &mut see);
        }
        if !std::mem::take(&mut self.object).is_empty() {
            self.found.unreadable += 1;
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.is_too_long || self.line.len() + bytes.len() > LONGEST_LINE {
            self.is_too_long = true;
            self.line.clear();
        } else {
            self.line.extend_from_slice(bytes);
        }
    }

    fn read_line(&mut self, line: &[u8], see: &mut impl FnMut(AgentEvent)) {
        match self.format {
            OutputFormat::StreamJson => self.read_event(line.trim_ascii(), see),
            OutputFormat::Json => self.read_piece(line.trim_ascii_end(), see),
            OutputFormat::Text => self.read_words(line, see),
        }
    }

    /// A line of a stream: an object, or something else.
    fn read_event(&mut self, line: &[u8], see: &mut impl FnMut(AgentEvent)) {
        if line.is_empty() {
            return;
        }
        let value = match serde_json::from_slice::<Value>(line) {
            Ok(value) if value.is_object() => value,
            _ => {
                self.found.unreadable += 1;
                return see(self.words(EventType::AgentText, line));
            }
        };
        let kind = value.get(&self.adapter.stream.kind_key).and_then(Value::as_str).unwrap_or_default();
        let fits = |rule: &&EventRule| {
            rule.kind == kind && rule.when.as_ref().is_none_or(|when| holds(&value, when))
        };
        let rule = self.adapter.stream.event.iter().find(fits).cloned();
        let Some(rule) = rule else {
            self.found.unknown += 1;
            let kind: String = kind.chars().take(100).collect();
            let message = format!("an event of a kind nobody knows here: {kind}");
            self.count_kind(kind);
            return see(self.event(EventType::AgentOther, message, value));
        };
        let kind = kind.to_string();
        self.take(&rule, &kind, value, see);
    }

    fn count_kind(&mut self, kind: String) {
        let kinds = &mut self.found.unknown_kinds;
        match kinds.iter().position(|(known, _)| *known == kind) {
            Some(at) => kinds[at].1 += 1,
            None if kinds.len() < MOST_KINDS => kinds.push((kind, 1)),
            None => {}
        }
    }

    /// A line of the one object, or one beside it. An object begins and ends at the beginning of a line.
    fn read_piece(&mut self, line: &[u8], see: &mut impl FnMut(AgentEvent)) {
        let begins = line.starts_with(b"{");
        if begins && !std::mem::take(&mut self.object).is_empty() {
            self.found.unreadable += 1;
        }
        if !begins && self.object.is_empty() {
            if !line.is_empty() {
                self.found.unreadable += 1;
                see(self.words(EventType::AgentText, line));
            }
            return;
        }
        if self.object.len() + line.len() >= LONGEST_LINE {
            self.object = Vec::new();
            self.found.unreadable += 1;
            return;
        }
        self.object.extend_from_slice(line);
        self.object.push(b'\n');
        let may_be_whole = if begins { line.ends_with(b"}") } else { line.starts_with(b"}") };
        if !may_be_whole {
            return;
        }
        let text = std::mem::take(&mut self.object);
        match (serde_json::from_slice::<Value>(&text), self.adapter.object.clone()) {
            (Ok(value), Some(rule)) => self.take(&rule, "result", value, see),
            _ => self.found.unreadable += 1,
        }
    }

    /// A line of words: all of them are the answer.
    fn read_words(&mut self, line: &[u8], see: &mut impl FnMut(AgentEvent)) {
        if self.found.answer.len() + line.len() < LARGEST_ANSWER {
            self.found.answer.push_str(&String::from_utf8_lossy(line));
            self.found.answer.push('\n');
        }
        if !line.trim_ascii().is_empty() {
            see(self.words(EventType::AgentMessage, line));
        }
    }

    fn take(&mut self, rule: &EventRule, kind: &str, value: Value, see: &mut impl FnMut(AgentEvent)) {
        let mut message = text_at(&value, rule.text.as_ref()).unwrap_or_else(|| kind.to_string());
        self.learn(rule, &value, &message);
        cut(&mut message, LONGEST_MESSAGE);
        see(self.event(rule.becomes, message, value));
    }

    /// What a line of a known kind says about how it goes.
    fn learn(&mut self, rule: &EventRule, value: &Value, message: &str) {
        if let Some(session) = text_at(value, rule.session.as_ref()) {
            self.found.session = Some(session);
        }
        if rule.restarts_answer {
            self.found.answer.clear();
        }
        if rule.answer_when.as_ref().is_some_and(|when| holds(value, when))
            && self.found.answer.len() + message.len() <= LARGEST_ANSWER
        {
            self.found.answer.push_str(message);
        }
        if let Some(answer) = text_at(value, rule.answer.as_ref()) {
            self.found.answer = answer;
        }
        if rule.becomes == EventType::AgentError {
            self.complaint = Some(message.to_string());
        }
        // Whatever comes after a last line takes its meaning away.
        self.verdict = rule.is_last.then(|| rule.says_success(value));
        if rule.is_last {
            self.found.usage = rule.usage.as_ref().and_then(|path| find(value, path)).cloned();
            if self.verdict == Some(false) {
                self.complaint = text_at(value, rule.error.as_ref()).or(self.complaint.take());
            }
        }
    }

    /// In the formats that end without saying so: what the end makes of what was read.
    fn settle(&mut self, ending: Ending, last_words: &str) {
        match self.format {
            OutputFormat::StreamJson => {}
            // A failure is told elsewhere than an answer.
            OutputFormat::Json => {
                if let (None, Some(rule)) = (self.verdict, self.adapter.object.clone())
                    && let Some(value) = last_object(last_words, &rule)
                {
                    self.learn(&rule, &value, "");
                    self.verdict = Some(false);
                }
            }
            OutputFormat::Text => {
                let length = self.found.answer.trim_end().len();
                self.found.answer.truncate(length);
                self.verdict = (ending == Ending::Code(0) && length > 0).then_some(true);
            }
        }
    }

    /// What became of it. `asked` is the session that was to go on; `last_words` what it printed elsewhere.
    pub fn conclude(mut self, ending: Ending, asked: Option<&str>, last_words: &str) -> Conclusion {
        self.finish(|_| {});
        self.settle(ending, last_words);
        let mut found = std::mem::take(&mut self.found);
        if let (Some(asked), Some(session)) = (asked, &found.session)
            && asked != session
        {
            found.error = Some((
                ErrorKind::SessionLost,
                format!("the session {asked} was lost; the agent began {session}"),
            ));
            return found;
        }
        if ending == Ending::Cut {
            return found;
        }
        if ending == Ending::Code(0) && self.verdict == Some(true) {
            found.success = true;
            return found;
        }
        let (kind, words) = self.failure(ending, last_words);
        found.wait = self.adapter.quota.wait(&words).or_else(|| self.adapter.quota.wait(last_words));
        found.wait = found.wait.filter(|_| matches!(kind, ErrorKind::RateLimited | ErrorKind::UpstreamError));
        found.error = Some((kind, words));
        found
    }

    /// Kind and words of what went wrong.
    fn failure(&self, ending: Ending, last_words: &str) -> (ErrorKind, String) {
        let adapter = &self.adapter;
        let words = self.complaint.clone().unwrap_or_else(|| self.telling_line(last_words));
        let name = &adapter.name;
        let (by_exit, how) = match (ending, self.verdict) {
            (Ending::Code(0), None) => (None, format!("{name} ended without a result")),
            (Ending::Code(0), Some(_)) => (None, format!("{name} says it failed")),
            (Ending::Code(code), _) => (adapter.kind_of_exit(code), format!("{name} ended with code {code}")),
            (Ending::Signal(signal), _) => (None, format!("{name} was ended by signal {signal}")),
            (Ending::Cut, _) => (None, format!("{name} was ended")),
        };
        // The words of the failure know more than a code; but a code knows more than what was printed on the way.
        let kind = adapter
            .kind_of_words(&words)
            .or(by_exit)
            .or_else(|| adapter.kind_of_words(last_words))
            .unwrap_or(ErrorKind::UpstreamError);
        (kind, if words.is_empty() { how } else { format!("{how}: {words}") })
    }

    /// The last line that says something known, or just the last.
    fn telling_line(&self, text: &str) -> String {
        let lines = || text.lines().rev().map(str::trim).filter(|line| !line.is_empty());
        let known = lines().find(|line| self.adapter.kind_of_words(line).is_some());
        known.or_else(|| lines().next()).unwrap_or_default().chars().take(1000).collect()
    }
}

/// The last object of a text that this rule has something to learn from.
fn last_object(text: &str, rule: &EventRule) -> Option<Value> {
    let mut end = text.len();
    for _ in 0..MOST_OBJECTS {
        let before = &text[..end];
        let at = before.rfind("\n{").map(|at| at + 1).or_else(|| before.starts_with('{').then_some(0))?;
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
        if let Some(Ok(value)) = values.next()
            && text_at(&value, rule.error.as_ref()).is_some()
        {
            return Some(value);
        }
        end = at.checked_sub(1)?;
    }
    None
}

/// Cuts a text to so many bytes, or a little less: never within a character.
fn cut(text: &mut String, most: usize) {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
}
