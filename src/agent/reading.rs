//! A CLI's output, line by line → events, and in the end what became of it.
//!
//! Lines that are not JSON, kinds that nobody knows and fields that are missing are no errors: they are handed on as what
//! they are, and counted. What counts as success is said by the adapter, and by nothing else. Whatever is printed, what is
//! kept of it is bounded, and every byte is looked at a fixed number of times.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::adapter::{Adapter, EventRule, OutputFormat, When};
use super::quota::Wait;

/// The longest line or object that is understood; a longer one is counted.
const LONGEST_LINE: usize = 16 << 20;
/// The most of an answer that is kept.
const LARGEST_ANSWER: usize = 16 << 20;
/// How many beginnings of an object are tried in what a CLI printed last.
const MOST_OBJECTS: usize = 32;

/// Something an agent did, in its own words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentEvent {
    /// `agent.message`, `agent.tool_use`, …; `agent.other` for what nobody knows.
    pub event_type: String,
    /// A line for people.
    pub message: String,
    /// The agent's own object.
    pub data: Value,
}

impl AgentEvent {
    fn text(event_type: &str, line: &[u8]) -> Self {
        let text: String = String::from_utf8_lossy(line).chars().take(4096).collect();
        Self { event_type: event_type.to_string(), data: json!({ "text": text }), message: text }
    }
}

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
    pub error: Option<(String, String)>,
    /// When it is worth another try, where it was said.
    pub wait: Option<Wait>,
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
    adapter: Adapter,
    format: OutputFormat,
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

fn find<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |value, key| value.get(key)).filter(|found| !found.is_null())
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
            line: Vec::new(),
            is_too_long: false,
            object: Vec::new(),
            found: Conclusion::default(),
            verdict: None,
            complaint: None,
        }
    }

    /// Reads the next bytes, cut anywhere.
    pub fn feed(&mut self, mut bytes: &[u8], mut see: impl FnMut(AgentEvent)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
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
                return see(AgentEvent::text("agent.text", line));
            }
        };
        let kind = value.get(&self.adapter.stream.kind_key).and_then(Value::as_str).unwrap_or_default();
        let rule = self.adapter.stream.event.iter().find(|rule| rule.kind == kind).cloned();
        let Some(rule) = rule else {
            self.found.unknown += 1;
            let message = format!(
                "an event of a kind nobody knows here: {}",
                kind.chars().take(100).collect::<String>()
            );
            return see(AgentEvent { event_type: "agent.other".to_string(), message, data: value });
        };
        let kind = kind.to_string();
        self.take(rule, &kind, value, see);
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
                see(AgentEvent::text("agent.text", line));
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
            (Ok(value), Some(rule)) => self.take(rule, "result", value, see),
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
            see(AgentEvent::text("agent.message", line));
        }
    }

    fn take(&mut self, rule: EventRule, kind: &str, value: Value, see: &mut impl FnMut(AgentEvent)) {
        let message = text_at(&value, rule.text.as_ref()).unwrap_or_else(|| kind.to_string());
        self.learn(&rule, &value, &message);
        see(AgentEvent {
            event_type: rule.becomes,
            message: message.chars().take(65_536).collect(),
            data: value,
        });
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
        if rule.becomes == "agent.error" {
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
                "session_lost".to_string(),
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
        found.wait = found.wait.filter(|_| kind == "rate_limited" || kind == "upstream_error");
        found.error = Some((kind, words));
        found
    }

    /// Kind and words of what went wrong.
    fn failure(&self, ending: Ending, last_words: &str) -> (String, String) {
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
            .unwrap_or("upstream_error");
        (kind.to_string(), if words.is_empty() { how } else { format!("{how}: {words}") })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn in_format(format: OutputFormat) -> Reading {
        Reading::new(super::super::named("gemini").unwrap_or_else(|| panic!("gemini")), format)
    }

    fn reading() -> Reading {
        in_format(OutputFormat::StreamJson)
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

    fn conclude(format: OutputFormat, out: &str, code: i32, err: &str) -> Conclusion {
        let mut run = in_format(format);
        run.feed(out.as_bytes(), |_| {});
        run.conclude(Ending::Code(code), None, err)
    }

    fn kind(end: &Conclusion) -> &str {
        end.error.as_ref().map(|(kind, _)| kind.as_str()).unwrap_or_default()
    }

    const OBJECT: &str =
        "{\n  \"session_id\": \"s1\",\n  \"response\": \"Hello\",\n  \"stats\": {\n    \"x\": 1\n  }\n}";
    const FAILED: &str = "{\n  \"session_id\": \"s1\",\n  \"error\": {\n    \"type\": \"Error\",\n    \"message\": \"You exceeded your current quota.\\nSuggested retry after 1.5s.\",\n    \"code\": 429\n  }\n}";

    #[test]
    fn one_object_says_the_same() {
        let end = conclude(OutputFormat::Json, OBJECT, 0, "YOLO mode is enabled.\n");
        assert!(end.success && end.answer == "Hello", "{end:?}");
        assert_eq!((end.session.as_deref(), end.usage), (Some("s1"), Some(json!({ "x": 1 }))));
        let end = conclude(OutputFormat::Json, &format!("a warning\n{OBJECT}\n"), 0, "");
        assert!(end.success && end.unreadable == 1, "{end:?}");
        let blocked = OBJECT.replace("\"stats\"", "\"error\": {\"message\": \"SAFETY\"},\n  \"stats\"");
        for (out, code) in [
            (OBJECT, 1),
            ("", 0),
            ("{\n  \"session_id\": \"s1\"\n}", 0),
            ("{\n  \"response\": \"cut", 0),
            ("{\n\"response\":\n}\n}\n", 0),
            (blocked.as_str(), 0),
        ] {
            let end = conclude(OutputFormat::Json, out, code, "");
            assert!(!end.success && kind(&end) == "upstream_error", "{out}: {end:?}");
        }
    }

    #[test]
    fn a_failed_object_is_the_last_thing_on_standard_error() {
        let log = "Attempt 1 failed: {\"a\": 1}\n  cause: {\n    code: 429\n  }\n}\n";
        for text in [format!("{log}{FAILED}"), format!("{log}{FAILED}\n{FAILED}\n"), FAILED.to_string()] {
            let end = conclude(OutputFormat::Json, "", 173, &text);
            assert_eq!(kind(&end), "rate_limited", "{text}");
            assert_eq!(end.session.as_deref(), Some("s1"));
            assert_eq!(end.wait, Some(Wait::For(std::time::Duration::from_millis(1500))));
            assert!(end.error.is_some_and(|(_, words)| words.contains("exceeded your current quota")));
        }
        // Whatever is said there, it is no answer.
        let end = conclude(OutputFormat::Json, "", 0, OBJECT);
        assert!(!end.success, "{end:?}");
    }

    #[test]
    fn words_are_an_answer_when_the_code_is_zero() {
        let end = conclude(OutputFormat::Text, "Hello\n\nyou\n", 0, "noise");
        assert!(end.success && end.answer == "Hello\n\nyou" && end.unreadable == 0, "{end:?}");
        for (out, code) in [("", 0), (" \n\n", 0), ("Hello", 1)] {
            assert!(!conclude(OutputFormat::Text, out, code, "").success, "{out}");
        }
        let trace = "Error when talking to Gemini API: {\"error\":{\"code\":401,\"status\":\"UNAUTHENTICATED\"}}\n    at x\nAn unexpected critical error occurred:[object Object]\n";
        let end = conclude(OutputFormat::Text, "", 1, trace);
        assert_eq!(kind(&end), "auth_error");
        assert!(end.error.is_some_and(|(_, words)| words.contains("UNAUTHENTICATED")));
    }

    #[test]
    fn talk_on_the_way_is_no_answer() {
        let tool = "{\"type\":\"tool_use\",\"tool_name\":\"t\"}\n";
        let end = read(&format!("{INIT}{HELLO}{tool}{HELLO}{DONE}")).0.conclude(Ending::Code(0), None, "");
        assert_eq!((end.success, end.answer.as_str()), (true, "Hello"));
    }

    #[test]
    fn a_signal_is_no_code() {
        // 128 and 45 are the code of a quota that is used up.
        let end = read(INIT).0.conclude(Ending::Signal(45), None, "");
        assert_eq!(kind(&end), "upstream_error");
        assert!(end.error.is_some_and(|(_, words)| words.contains("signal 45")));
    }

    #[test]
    fn the_words_of_a_failure_beat_what_was_said_on_the_way() {
        let retried = "Attempt 1 failed: RESOURCE_EXHAUSTED\nReached max session turns";
        let result = "{\"type\":\"result\",\"status\":\"error\",\"error\":{\"message\":\"Reached max session turns\"}}\n";
        let end = read(&format!("{INIT}{result}")).0.conclude(Ending::Code(53), None, retried);
        assert_eq!(kind(&end), "turn_limit");
    }

    /// Reads a text whole, and in pieces.
    fn both(
        format: OutputFormat,
        text: &str,
        cuts: Vec<usize>,
        code: i32,
        err: &str,
    ) -> [(Vec<AgentEvent>, Conclusion); 2] {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
        cuts.sort_unstable();
        [Vec::new(), cuts].map(|cuts| {
            let (mut run, mut events) = (in_format(format), Vec::new());
            let mut from = 0;
            for cut in cuts.into_iter().chain([text.len()]) {
                run.feed(&text.as_bytes()[from..cut], |event| events.push(event));
                from = cut;
            }
            run.finish(|event| events.push(event));
            (events, run.conclude(Ending::Code(code), None, err))
        })
    }

    fn formats() -> impl proptest::strategy::Strategy<Value = OutputFormat> {
        proptest::sample::select(vec![OutputFormat::StreamJson, OutputFormat::Json, OutputFormat::Text])
    }

    proptest::proptest! {
        #[test]
        fn pieces_change_nothing(
            format in formats(),
            cuts in proptest::collection::vec(0usize..400, 0..6),
            noise in "([ -~\\n]|\\{\\n|\\}\\n){0,60}",
            code in 0..3i32,
        ) {
            let text = format!("{INIT}{noise}\n{HELLO}{DONE}{noise}{OBJECT}");
            let [whole, pieces] = both(format, &text, cuts, code, &noise);
            assert_eq!(whole, pieces);
        }

        /// Nothing is a success that does not end with the words for it.
        #[test]
        fn noise_is_no_success(noise in "([ -~\\n]|\\{\\n|\\}\\n|\"status\":\"success\"){0,80}") {
            for format in [OutputFormat::StreamJson, OutputFormat::Json] {
                let end = conclude(format, &noise, 0, &format!("{noise}\n{OBJECT}"));
                assert!(!end.success || noise.contains("\"type\":\"result\"") || noise.contains("\"response\""), "{end:?}");
                assert_eq!(end.success, end.error.is_none());
            }
        }
    }
}
