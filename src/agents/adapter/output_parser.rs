//! Parses a CLI's output line by line into events, and finally into a [`Conclusion`].
//!
//! Lines that are not JSON and lines of an unknown kind are not errors: the parser reports them as events and counts
//! them. A missing field is not an error either. Only the adapter's rules decide what counts as success. Memory is
//! bounded whatever the CLI prints, and every byte is inspected a constant number of times.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::event::AgentEvent;
use super::retry_after::Wait;
use crate::agents::adapter::known::{Adapter, EventRule, OutputFormat, When};
use crate::run::outcome::ErrorKind;
use crate::run::transcript::EventType;

/// The maximum length of a line or JSON object, in bytes. A longer one is not parsed, only counted.
const LONGEST_LINE: usize = 16 << 20;
/// The maximum length of the answer, in bytes.
const LARGEST_ANSWER: usize = 16 << 20;
/// The maximum number of positions in the CLI's standard error at which guard tries to parse a JSON object.
const MOST_OBJECTS: usize = 32;

/// The maximum number of distinct unknown event types that a conclusion lists.
const MOST_KINDS: usize = 20;

/// The maximum length of an event's message, in bytes. Longer messages are truncated.
const LONGEST_MESSAGE: usize = 64 << 10;

/// How the CLI's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Code(i32),
    /// The process was killed by this signal, which guard did not send.
    Signal(i32),
    /// guard ended the process for a reason that the run's result states, such as a timeout.
    EndedByGuard,
}

/// What the parser concludes from an agent's output and exit: the answer, or the error.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conclusion {
    /// Whether the agent succeeded: its CLI exited with code 0, and its output reported success.
    pub success: bool,
    pub answer: String,
    /// The id of the agent's session.
    pub session: Option<String>,
    pub error: Option<(ErrorKind, String)>,
    pub wait: Option<Wait>,
    pub usage: Option<Value>,
    /// The number of lines with an unknown event type.
    pub unknown: u64,
    /// The unknown event types in order of appearance, with counts. Only the first `MOST_KINDS` are listed.
    pub unknown_kinds: Vec<(String, u64)>,
    /// The number of lines that were not JSON objects.
    pub unreadable: u64,
}

/// Parses the output of one run incrementally.
#[derive(Debug)]
pub struct OutputParser {
    adapter: Adapter,
    format: OutputFormat,
    /// The time at which the CLI printed the output that is being parsed.
    time: SystemTime,
    line: Vec<u8>,
    is_too_long: bool,
    /// The lines read so far of a JSON object that is not complete yet.
    object: Vec<u8>,
    conclusion: Conclusion,
    /// Whether the output's final line reported success; `None` if there is no final line yet, or other output followed
    /// it.
    verdict: Option<bool>,
    last_error: Option<String>,
}

/// Returns the value at the first of several paths that leads to a value other than null; `None` if no path does. `|`
/// separates the paths.
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

fn condition_holds(value: &Value, when: &When) -> bool {
    find(value, &when.key) == Some(&when.value)
}

impl EventRule {
    fn reports_success(&self, value: &Value) -> bool {
        let is_there = |path: &String| find(value, path).is_some();
        self.success_when.iter().all(|when| condition_holds(value, when))
            && !self.success_unless.as_ref().is_some_and(is_there)
            && self.answer.as_ref().is_none_or(is_there)
    }
}

impl OutputParser {
    pub fn new(adapter: Adapter, format: OutputFormat) -> Self {
        Self {
            adapter,
            format,
            time: SystemTime::UNIX_EPOCH,
            line: Vec::new(),
            is_too_long: false,
            object: Vec::new(),
            conclusion: Conclusion::default(),
            verdict: None,
            last_error: None,
        }
    }

    /// Sets the time at which the CLI printed the bytes that the following calls of [`Self::feed`] receive.
    pub fn at(&mut self, time: SystemTime) {
        self.time = time;
    }

    fn event(&self, event_type: EventType, message: String, data: Value) -> AgentEvent {
        AgentEvent { event_type: event_type.to_string(), message, timestamp: self.time, data }
    }

    /// Creates an event for a line of plain text, cut to 4096 characters.
    fn text_event(&self, event_type: EventType, line: &[u8]) -> AgentEvent {
        let text: String = String::from_utf8_lossy(line).chars().take(4096).collect();
        let data = json!({ "text": text });
        self.event(event_type, text, data)
    }

    /// Parses the next bytes of output, which may end in the middle of a line.
    pub fn feed(&mut self, mut bytes: &[u8], mut on_event: impl FnMut(AgentEvent)) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (head, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if self.line.is_empty() && !self.is_too_long && head.len() <= LONGEST_LINE {
                self.read_line(head, &mut on_event);
                continue;
            }
            self.buffer_line(head);
            let line = std::mem::take(&mut self.line);
            if std::mem::take(&mut self.is_too_long) {
                self.conclusion.unreadable += 1;
            } else {
                self.read_line(&line, &mut on_event);
            }
        }
        self.buffer_line(bytes);
    }

    /// Parses the last line if it does not end with a newline. Counts an incomplete JSON object as unreadable.
    pub fn finish(&mut self, mut on_event: impl FnMut(AgentEvent)) {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.is_too_long) {
            self.conclusion.unreadable += 1;
        } else if !line.is_empty() {
            self.read_line(&line, &mut on_event);
        }
        if !std::mem::take(&mut self.object).is_empty() {
            self.conclusion.unreadable += 1;
        }
    }

    /// Appends bytes to the incomplete line. A line that becomes too long is discarded.
    fn buffer_line(&mut self, bytes: &[u8]) {
        if self.is_too_long || self.line.len() + bytes.len() > LONGEST_LINE {
            self.is_too_long = true;
            self.line.clear();
        } else {
            self.line.extend_from_slice(bytes);
        }
    }

    fn read_line(&mut self, line: &[u8], on_event: &mut impl FnMut(AgentEvent)) {
        match self.format {
            OutputFormat::StreamJson => self.read_event(line.trim_ascii(), on_event),
            OutputFormat::Json => self.read_object_line(line.trim_ascii_end(), on_event),
            OutputFormat::Text => self.read_text_line(line, on_event),
        }
    }

    /// Parses a line of the `stream-json` format.
    fn read_event(&mut self, line: &[u8], on_event: &mut impl FnMut(AgentEvent)) {
        if line.is_empty() {
            return;
        }
        let value = match serde_json::from_slice::<Value>(line) {
            Ok(value) if value.is_object() => value,
            _ => {
                self.conclusion.unreadable += 1;
                return on_event(self.text_event(EventType::AgentText, line));
            }
        };
        let kind = value.get(&self.adapter.stream.kind_key).and_then(Value::as_str).unwrap_or_default();
        let fits = |rule: &&EventRule| {
            rule.kind == kind && rule.when.as_ref().is_none_or(|when| condition_holds(&value, when))
        };
        let rule = self.adapter.stream.event.iter().find(fits).cloned();
        let Some(rule) = rule else {
            self.conclusion.unknown += 1;
            let kind: String = kind.chars().take(100).collect();
            let message = format!("unknown event type `{kind}` in the agent's output");
            self.count_kind(kind);
            return on_event(self.event(EventType::AgentOther, message, value));
        };
        let kind = kind.to_string();
        self.apply_rule(&rule, &kind, value, on_event);
    }

    fn count_kind(&mut self, kind: String) {
        let kinds = &mut self.conclusion.unknown_kinds;
        match kinds.iter().position(|(known, _)| *known == kind) {
            Some(at) => kinds[at].1 += 1,
            None if kinds.len() < MOST_KINDS => kinds.push((kind, 1)),
            None => {}
        }
    }

    /// Parses a line of the `json` format, which is part of the JSON object or other text. The object starts with a
    /// line that begins with `{`. It ends on that line, or with a line that begins with `}`.
    fn read_object_line(&mut self, line: &[u8], on_event: &mut impl FnMut(AgentEvent)) {
        let begins = line.starts_with(b"{");
        if begins && !std::mem::take(&mut self.object).is_empty() {
            self.conclusion.unreadable += 1;
        }
        if !begins && self.object.is_empty() {
            if !line.is_empty() {
                self.conclusion.unreadable += 1;
                on_event(self.text_event(EventType::AgentText, line));
            }
            return;
        }
        if self.object.len() + line.len() >= LONGEST_LINE {
            self.object = Vec::new();
            self.conclusion.unreadable += 1;
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
            (Ok(value), Some(rule)) => self.apply_rule(&rule, "result", value, on_event),
            _ => self.conclusion.unreadable += 1,
        }
    }

    /// Adds a line of the `text` format to the answer.
    fn read_text_line(&mut self, line: &[u8], on_event: &mut impl FnMut(AgentEvent)) {
        if self.conclusion.answer.len() + line.len() < LARGEST_ANSWER {
            self.conclusion.answer.push_str(&String::from_utf8_lossy(line));
            self.conclusion.answer.push('\n');
        }
        if !line.trim_ascii().is_empty() {
            on_event(self.text_event(EventType::AgentMessage, line));
        }
    }

    /// Applies a rule to a line: updates the conclusion and reports the event.
    fn apply_rule(
        &mut self,
        rule: &EventRule,
        kind: &str,
        value: Value,
        on_event: &mut impl FnMut(AgentEvent),
    ) {
        let mut message = text_at(&value, rule.text.as_ref()).unwrap_or_else(|| kind.to_string());
        self.update_conclusion(rule, &value, &message);
        truncate(&mut message, LONGEST_MESSAGE);
        on_event(self.event(rule.becomes, message, value));
    }

    /// Updates the conclusion (session id, answer, error) from one line of the agent's output that matches `rule`.
    fn update_conclusion(&mut self, rule: &EventRule, value: &Value, message: &str) {
        if let Some(session) = text_at(value, rule.session.as_ref()) {
            self.conclusion.session = Some(session);
        }
        if rule.restarts_answer {
            self.conclusion.answer.clear();
        }
        if rule.answer_when.as_ref().is_some_and(|when| condition_holds(value, when))
            && self.conclusion.answer.len() + message.len() <= LARGEST_ANSWER
        {
            self.conclusion.answer.push_str(message);
        }
        if let Some(answer) = text_at(value, rule.answer.as_ref()) {
            self.conclusion.answer = answer;
        }
        if rule.becomes == EventType::AgentError {
            self.last_error = Some(message.to_string());
        }
        // Output after a final line invalidates that line's verdict.
        self.verdict = rule.is_last.then(|| rule.reports_success(value));
        if rule.is_last {
            self.conclusion.usage = rule.usage.as_ref().and_then(|path| find(value, path)).cloned();
            if self.verdict == Some(false) {
                self.last_error = text_at(value, rule.error.as_ref()).or(self.last_error.take());
            }
        }
    }

    /// Sets `verdict` for a run whose output has no final line that reports success or failure: in the `text` format
    /// from the exit code and the answer, in the `json` format from an error object on standard error.
    fn settle_verdict(&mut self, ending: Ending, stderr: &str) {
        match self.format {
            OutputFormat::StreamJson => {}
            // With this format, a CLI prints the JSON object of a failure on standard error, not on standard output.
            OutputFormat::Json => {
                if let (None, Some(rule)) = (self.verdict, self.adapter.object.clone())
                    && let Some(value) = last_object(stderr, &rule)
                {
                    self.update_conclusion(&rule, &value, "");
                    self.verdict = Some(false);
                }
            }
            OutputFormat::Text => {
                let length = self.conclusion.answer.trim_end().len();
                self.conclusion.answer.truncate(length);
                self.verdict = (ending == Ending::Code(0) && length > 0).then_some(true);
            }
        }
    }

    /// Returns the conclusion of the run. `resumed_session` is the session that the caller wanted to resume; `stderr`
    /// is the end of the CLI's standard error.
    pub fn conclude(mut self, ending: Ending, resumed_session: Option<&str>, stderr: &str) -> Conclusion {
        self.finish(|_| {});
        self.settle_verdict(ending, stderr);
        let mut found = std::mem::take(&mut self.conclusion);
        if let (Some(resumed_session), Some(session)) = (resumed_session, &found.session)
            && resumed_session != session
        {
            let message = format!(
                "the agent did not resume the session {resumed_session}; it began the session {session} instead"
            );
            found.error = Some((ErrorKind::SessionLost, message));
            return found;
        }
        if ending == Ending::EndedByGuard {
            return found;
        }
        if ending == Ending::Code(0) && self.verdict == Some(true) {
            found.success = true;
            return found;
        }
        let (kind, words) = self.failure(ending, stderr);
        found.wait = self.adapter.quota.wait(&words).or_else(|| self.adapter.quota.wait(stderr));
        found.wait = found.wait.filter(|_| matches!(kind, ErrorKind::RateLimited | ErrorKind::UpstreamError));
        found.error = Some((kind, words));
        found
    }

    fn failure(&self, ending: Ending, stderr: &str) -> (ErrorKind, String) {
        let adapter = &self.adapter;
        let words = self.last_error.clone().unwrap_or_else(|| self.most_specific_line(stderr));
        let name = &adapter.name;
        let (by_exit, how) = match (ending, self.verdict) {
            (Ending::Code(0), None) => (None, format!("{name} exited without reporting a result")),
            (Ending::Code(0), Some(_)) => (None, format!("{name} reported a failure")),
            (Ending::Code(code), _) => {
                (adapter.kind_of_exit(code), format!("{name} exited with code {code}"))
            }
            (Ending::Signal(signal), _) => (None, format!("{name} was killed by signal {signal}")),
            (Ending::EndedByGuard, _) => (None, format!("guard stopped {name}")),
        };
        // The error message is more specific than the exit code. The exit code is more reliable than other
        // output.
        let kind = adapter
            .kind_of_message(&words)
            .or(by_exit)
            .or_else(|| adapter.kind_of_message(stderr))
            .unwrap_or(ErrorKind::UpstreamError);
        (kind, if words.is_empty() { how } else { format!("{how}: {words}") })
    }

    /// Returns the last line of `text` that contains a known phrase, or else its last line that is not empty. Cuts it
    /// to 1000 characters. Returns an empty text if there is no line.
    fn most_specific_line(&self, text: &str) -> String {
        let lines = || text.lines().rev().map(str::trim).filter(|line| !line.is_empty());
        let known = lines().find(|line| self.adapter.kind_of_message(line).is_some());
        known.or_else(|| lines().next()).unwrap_or_default().chars().take(1000).collect()
    }
}

/// Returns the last JSON object in the text that contains an error message at the path in `rule`; `None` if there is
/// none among the last `MOST_OBJECTS` candidates.
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

/// Truncates a text to at most `most` bytes, at a character boundary.
fn truncate(text: &mut String, most: usize) {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
}
