//! Parses a CLI's output line by line into events, and finally into a [`Conclusion`].
//!
//! Lines that are not JSON, unknown kinds and missing fields are not errors: the parser passes them on
//! unchanged and counts them. Only the adapter's rules decide what counts as success. Memory is bounded
//! whatever the CLI prints, and every byte is inspected a constant number of times.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::adapter::{Adapter, EventRule, OutputFormat, When};
use super::event::AgentEvent;
use super::retry_after::Wait;
use crate::outcome::ErrorKind;
use crate::transcript::EventType;

/// The longest line or object that is parsed; a longer one is only counted.
const LONGEST_LINE: usize = 16 << 20;
/// The largest answer, in bytes, that is kept.
const LARGEST_ANSWER: usize = 16 << 20;
/// How many candidate object starts are tried in the CLI's last output.
const MOST_OBJECTS: usize = 32;

/// How many distinct unknown event kinds are listed.
const MOST_KINDS: usize = 20;

/// A longer message for people is truncated.
const LONGEST_MESSAGE: usize = 64 << 10;

/// How the CLI's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this code.
    Code(i32),
    /// A signal that guard did not send killed it.
    Signal(i32),
    /// Guard ended it for a reason that is already recorded, such as a timeout.
    Cut,
}

/// The outcome of a question to an agent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conclusion {
    /// Whether the agent reported success.
    pub success: bool,
    /// The agent's answer.
    pub answer: String,
    /// The id of the agent's session.
    pub session: Option<String>,
    /// The kind and message of the error.
    pub error: Option<(ErrorKind, String)>,
    /// When a retry makes sense, if the CLI said so.
    pub wait: Option<Wait>,
    /// The usage figures that the CLI reported.
    pub usage: Option<Value>,
    /// The number of lines of unknown kinds.
    pub unknown: u64,
    /// The unknown kinds in order of appearance, with counts. Only the first `MOST_KINDS` are listed.
    pub unknown_kinds: Vec<(String, u64)>,
    /// The number of lines that were not JSON objects.
    pub unreadable: u64,
}

/// The incremental parser for the output of one run.
#[derive(Debug)]
pub struct Reading {
    adapter: Adapter,
    format: OutputFormat,
    /// When the output being read was printed.
    time: SystemTime,
    line: Vec<u8>,
    is_too_long: bool,
    /// The lines so far of an object that is not complete yet.
    object: Vec<u8>,
    found: Conclusion,
    /// Whether the last line reported success or failure.
    verdict: Option<bool>,
    /// The most recent error message.
    complaint: Option<String>,
}

/// Returns the value at the first of several paths (separated by `|`) that exists.
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
    /// Whether a line of this kind reports success.
    fn says_success(&self, value: &Value) -> bool {
        let is_there = |path: &String| find(value, path).is_some();
        self.success_when.iter().all(|when| holds(value, when))
            && !self.success_unless.as_ref().is_some_and(is_there)
            && self.answer.as_ref().is_none_or(is_there)
    }
}

impl Reading {
    /// Creates a parser for one run of this CLI.
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

    /// Sets the time at which the output passed to [`Self::feed`] from now on was printed.
    pub fn at(&mut self, time: SystemTime) {
        self.time = time;
    }

    fn event(&self, event_type: EventType, message: String, data: Value) -> AgentEvent {
        AgentEvent { event_type: event_type.to_string(), message, timestamp: self.time, data }
    }

    /// An event for a line that is not one of the agent's own events.
    fn words(&self, event_type: EventType, line: &[u8]) -> AgentEvent {
        let text: String = String::from_utf8_lossy(line).chars().take(4096).collect();
        let data = json!({ "text": text });
        self.event(event_type, text, data)
    }

    /// Parses the next bytes of output. They may end anywhere in a line.
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

    /// Parses a final line that has no newline.
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

    /// Parses a line of the `stream-json` format.
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

    /// Parses a line of the `json` format: part of the object, or other text. An object begins and ends at
    /// the beginning of a line.
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

    /// Adds a line of the `text` format to the answer.
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

    /// Updates the conclusion from a line of a known kind.
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
        // Output after a final line invalidates that line's verdict.
        self.verdict = rule.is_last.then(|| rule.says_success(value));
        if rule.is_last {
            self.found.usage = rule.usage.as_ref().and_then(|path| find(value, path)).cloned();
            if self.verdict == Some(false) {
                self.complaint = text_at(value, rule.error.as_ref()).or(self.complaint.take());
            }
        }
    }

    /// Sets the verdict for the formats that have no final line, from the exit and the output.
    fn settle(&mut self, ending: Ending, last_words: &str) {
        match self.format {
            OutputFormat::StreamJson => {}
            // A failure is reported on standard error, not where the answer is printed.
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

    /// Returns the outcome of the run. `asked` is the session that was to be resumed; `last_words` is the end
    /// of standard error.
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

    /// The kind and message of the failure.
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
        // The error message is more specific than the exit code. The exit code is more reliable than other
        // output.
        let kind = adapter
            .kind_of_words(&words)
            .or(by_exit)
            .or_else(|| adapter.kind_of_words(last_words))
            .unwrap_or(ErrorKind::UpstreamError);
        (kind, if words.is_empty() { how } else { format!("{how}: {words}") })
    }

    /// The last line with a known phrase, or else the last line.
    fn telling_line(&self, text: &str) -> String {
        let lines = || text.lines().rev().map(str::trim).filter(|line| !line.is_empty());
        let known = lines().find(|line| self.adapter.kind_of_words(line).is_some());
        known.or_else(|| lines().next()).unwrap_or_default().chars().take(1000).collect()
    }
}

/// Returns the last JSON object in the text that this rule can interpret.
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

/// Truncates a text to at most this many bytes, at a character boundary.
fn cut(text: &mut String, most: usize) {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
}
