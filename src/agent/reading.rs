//! A CLI's output, line by line → events, and in the end what became of it.
//!
//! Lines that are not JSON, kinds that nobody knows and fields that are missing are no errors: they are handed on as what
//! they are, and counted. What counts as success is said by the adapter, and by nothing else.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::adapter::{Adapter, EventRule, When};
use super::event::AgentEvent;

/// The longest line that is understood; a longer one is counted.
const LONGEST_LINE: usize = 16 << 20;
/// The most of an answer that is kept.
const LARGEST_ANSWER: usize = 16 << 20;
/// A longer line for people is cut.
const LONGEST_MESSAGE: usize = 64 << 10;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// With a code.
    Code(i32),
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
    pub error: Option<(String, String)>,
    /// What it says it used.
    pub usage: Option<Value>,
    /// Lines of kinds that nobody knows.
    pub unknown: u64,
    /// Lines that were no objects.
    pub unreadable: u64,
}

/// Reads the output of one run.
#[derive(Debug)]
pub struct Reading {
    adapter: Arc<Adapter>,
    /// When what is read now was printed.
    time: SystemTime,
    line: Vec<u8>,
    is_too_long: bool,
    found: Conclusion,
    /// The last line said how it went.
    verdict: Option<bool>,
    /// What was said to be wrong, the last thing first.
    complaint: Option<String>,
}

fn find<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |value, key| value.get(key))
}

fn text_at(value: &Value, path: Option<&String>) -> Option<String> {
    match find(value, path?)? {
        Value::String(text) => Some(text.clone()),
        Value::Null => None,
        other => Some(other.to_string()),
    }
}

fn holds(value: &Value, when: &When) -> bool {
    find(value, &when.key).and_then(Value::as_str) == Some(when.value.as_str())
}

impl Reading {
    /// For one run of this CLI.
    pub fn new(adapter: Adapter) -> Self {
        Self {
            adapter: Arc::new(adapter),
            time: SystemTime::UNIX_EPOCH,
            line: Vec::new(),
            is_too_long: false,
            found: Conclusion::default(),
            verdict: None,
            complaint: None,
        }
    }

    /// What is fed from here on was printed then.
    pub fn at(&mut self, time: SystemTime) {
        self.time = time;
    }

    /// Reads the next bytes, cut anywhere.
    pub fn feed(&mut self, mut bytes: &[u8], mut see: impl FnMut(AgentEvent)) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (head, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if self.line.is_empty() && !self.is_too_long {
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

    fn keep(&mut self, bytes: &[u8]) {
        if self.is_too_long || self.line.len() + bytes.len() > LONGEST_LINE {
            self.is_too_long = true;
            self.line.clear();
        } else {
            self.line.extend_from_slice(bytes);
        }
    }

    fn read_line(&mut self, line: &[u8], see: &mut impl FnMut(AgentEvent)) {
        let line = line.trim_ascii();
        if line.is_empty() {
            return;
        }
        let value = match serde_json::from_slice::<Value>(line) {
            Ok(value) if value.is_object() => value,
            _ => {
                self.found.unreadable += 1;
                let text: String = String::from_utf8_lossy(line).chars().take(4096).collect();
                let data = json!({ "text": text });
                return see(self.event("agent.text", text, data));
            }
        };
        let adapter = self.adapter.clone();
        let kind = value.get(&adapter.stream.kind_key).and_then(Value::as_str).unwrap_or_default();
        let Some(rule) = adapter.stream.event.iter().find(|rule| rule.kind == kind) else {
            self.found.unknown += 1;
            let message = format!(
                "an event of a kind nobody knows here: {}",
                kind.chars().take(100).collect::<String>()
            );
            return see(self.event("agent.other", message, value));
        };
        let mut message = text_at(&value, rule.text.as_ref()).unwrap_or_else(|| kind.to_string());
        self.learn(rule, &value, &message);
        cut(&mut message, LONGEST_MESSAGE);
        see(self.event(&rule.becomes, message, value));
    }

    fn event(&self, event_type: &str, message: String, data: Value) -> AgentEvent {
        AgentEvent { event_type: event_type.to_string(), message, timestamp: self.time, data }
    }

    /// What a line of a known kind says about how it goes.
    fn learn(&mut self, rule: &EventRule, value: &Value, message: &str) {
        if let Some(session) = text_at(value, rule.session.as_ref()) {
            self.found.session = Some(session);
        }
        if rule.answer_when.as_ref().is_some_and(|when| holds(value, when))
            && self.found.answer.len() + message.len() <= LARGEST_ANSWER
        {
            self.found.answer.push_str(message);
        }
        if let Some(answer) = text_at(value, rule.answer.as_ref()) {
            self.found.answer = answer;
        }
        if rule.becomes == "agent.error" {
            self.complaint = Some(message.to_string());
        }
        // Whatever comes after a last line takes its meaning away.
        self.verdict =
            rule.is_last.then(|| rule.success_when.as_ref().is_some_and(|when| holds(value, when)));
        if rule.is_last {
            self.found.usage = rule.usage.as_ref().and_then(|path| find(value, path)).cloned();
            if self.verdict == Some(false) {
                self.complaint = text_at(value, rule.error.as_ref()).or(self.complaint.take());
            }
        }
    }

    /// What became of it. `asked` is the session that was to go on; `last_words` what it printed elsewhere.
    pub fn conclude(mut self, ending: Ending, asked: Option<&str>, last_words: &str) -> Conclusion {
        if !self.line.is_empty() {
            let line = std::mem::take(&mut self.line);
            self.read_line(&line, &mut |_| {});
        }
        let mut found = std::mem::take(&mut self.found);
        if let (Some(asked), Some(session)) = (asked, &found.session)
            && asked != session
        {
            found.error = Some((
                "session_lost".to_string(),
                format!("the session {asked} was lost; the agent began {session}"),
            ));
            return found;
        }
        let Ending::Code(code) = ending else { return found };
        if code == 0 && self.verdict == Some(true) {
            found.success = true;
            return found;
        }
        let words = self.complaint.clone().unwrap_or_else(|| last_line(last_words));
        let name = &self.adapter.name;
        let by_words =
            || self.adapter.kind_of_words(&words).or_else(|| self.adapter.kind_of_words(last_words));
        // The words know more than a code that only says that something failed.
        let kind =
            by_words().or_else(|| self.adapter.kind_of_exit(code)).unwrap_or("upstream_error").to_string();
        let how = match (code, self.verdict) {
            (0, None) => format!("{name} ended without a result"),
            (0, Some(_)) => format!("{name} says it failed"),
            (code, _) => format!("{name} ended with code {code}"),
        };
        let words = if words.is_empty() { how } else { format!("{how}: {words}") };
        found.error = Some((kind, words));
        found
    }
}

/// Cuts a text to so many bytes, or a little less: never within a character.
fn cut(text: &mut String, most: usize) {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
}

fn last_line(text: &str) -> String {
    text.lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or_default()
        .chars()
        .take(1000)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading() -> Reading {
        Reading::new(super::super::named("gemini").unwrap_or_else(|| panic!("gemini")))
    }

    fn read(text: &str) -> (Reading, Vec<AgentEvent>) {
        let (mut reading, mut events) = (reading(), Vec::new());
        reading.feed(text.as_bytes(), |event| events.push(event));
        (reading, events)
    }

    const INIT: &str = "{\"type\":\"init\",\"session_id\":\"s1\",\"model\":\"m\"}\n";
    const HELLO: &str = "{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"Hel\",\"delta\":true}\n{\"type\":\"message\",\"role\":\"user\",\"content\":\"no\"}\n{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"lo\",\"delta\":true}\n";
    const DONE: &str = "{\"type\":\"result\",\"status\":\"success\",\"stats\":{\"total_tokens\":3}}\n";

    #[test]
    fn success_needs_code_zero_and_a_last_line_that_says_so() {
        let whole = format!("{INIT}{HELLO}{DONE}");
        let (run, events) = read(&whole);
        let end = run.conclude(Ending::Code(0), None, "");
        assert!(end.success && end.error.is_none(), "{end:?}");
        assert_eq!((end.answer.as_str(), end.session.as_deref()), ("Hello", Some("s1")));
        assert_eq!(end.usage, Some(json!({ "total_tokens": 3 })));
        assert_eq!(events.first().map(|event| event.event_type.as_str()), Some("agent.init"));
        for (text, code, kind) in [
            (format!("{INIT}{HELLO}"), 0, "upstream_error"),
            (format!("{INIT}{DONE}{HELLO}"), 0, "upstream_error"),
            (whole.clone(), 1, "upstream_error"),
            (String::new(), 0, "upstream_error"),
            (INIT.to_string(), 41, "auth_error"),
            (INIT.to_string(), 53, "turn_limit"),
            (INIT.to_string(), 173, "rate_limited"),
            (
                format!(
                    "{INIT}{{\"type\":\"result\",\"status\":\"error\",\"error\":{{\"message\":\"You exceeded your current quota\"}}}}\n"
                ),
                1,
                "rate_limited",
            ),
        ] {
            let end = read(&text).0.conclude(Ending::Code(code), None, "");
            assert!(!end.success, "{text}");
            assert_eq!(end.error.as_ref().map(|(kind, _)| kind.as_str()), Some(kind), "{text} {code}");
        }
    }

    #[test]
    fn a_session_that_is_another_is_lost() {
        let end = read(&format!("{INIT}{HELLO}{DONE}")).0.conclude(Ending::Code(0), Some("s0"), "");
        assert!(!end.success && end.error.is_some_and(|(kind, _)| kind == "session_lost"));
        assert!(read(&format!("{INIT}{DONE}")).0.conclude(Ending::Code(0), Some("s1"), "").success);
    }

    #[test]
    fn what_nobody_knows_is_counted_and_handed_on() {
        let (run, events) = read("{\"type\":\"future\",\"x\":1}\nnot json\n[1]\n\n{\"type\":5}\n");
        let end = run.conclude(Ending::Cut, None, "");
        assert_eq!((end.unknown, end.unreadable), (2, 2));
        let kinds: Vec<&str> = events.iter().map(|event| event.event_type.as_str()).collect();
        assert_eq!(kinds, ["agent.other", "agent.text", "agent.text", "agent.other"]);
    }

    proptest::proptest! {
        #[test]
        fn pieces_change_nothing(cuts in proptest::collection::vec(0usize..400, 0..6), noise in "[ -~\\n]{0,60}") {
            let text = format!("{INIT}{noise}\n{HELLO}{DONE}");
            let (whole, all) = read(&text);
            let (mut run, mut events) = (reading(), Vec::new());
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.sort_unstable();
            let mut from = 0;
            for cut in cuts.into_iter().chain([text.len()]) {
                run.feed(&text.as_bytes()[from..cut], |event| events.push(event));
                from = cut;
            }
            assert_eq!(events, all);
            assert_eq!(run.conclude(Ending::Code(0), None, ""), whole.conclude(Ending::Code(0), None, ""));
        }
    }
}
