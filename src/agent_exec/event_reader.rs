//! Reads the events of one attempt line by line.
//!
//! The agent's output goes through the adapter's parser; all other events are passed on to the caller. Kept
//! output is bounded. The last line of the stream is the run's result.

use std::borrow::Cow;
use std::io::BufRead;
use std::time::SystemTime;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::session::Session;
use super::{Cancel, ExecRequest};
use crate::agent::{AgentEvent, Reading};
use crate::outcome::RunResult;
use crate::transcript::{Event, EventType, Stream, decode_base64};

/// How many bytes of the agent's standard error are kept.
const KEPT: usize = 64 << 10;
/// The largest number of messages in a result, and their total size in bytes.
const MOST_MESSAGES: usize = 10_000;
const LARGEST_MESSAGES: usize = 64 << 20;

/// The note for a working tree with uncommitted changes, which the agent's branch does not contain.
const LEFT_OUT: &str = "changes that are not committed were left out: the agent works on a branch that begins at the last commit";

/// An output event, borrowed from its line. Nearly all bytes arrive as such events, so this avoids a second
/// copy.
#[derive(Deserialize)]
struct Printed<'l> {
    #[serde(borrow)]
    event_type: Cow<'l, str>,
    #[serde(borrow)]
    timestamp: Cow<'l, str>,
    #[serde(borrow)]
    data: Piece<'l>,
}

#[derive(Deserialize)]
struct Piece<'l> {
    #[serde(borrow)]
    stream: Cow<'l, str>,
    text: Option<String>,
    base64: Option<String>,
}

/// Reads the events of one attempt.
pub(super) struct Listener<'l> {
    pub(super) reading: Option<Reading>,
    pub(super) result: Option<RunResult>,
    pub(super) messages: Vec<Value>,
    /// The end of what the agent printed on standard error.
    pub(super) stderr: String,
    /// Notes for the caller about the run.
    pub(super) notes: Vec<String>,
    keeps_messages: bool,
    kept_bytes: usize,
    session: Option<&'l mut Session>,
    cancel: &'l Cancel,
    see: &'l mut dyn FnMut(AgentEvent),
}

impl<'l> Listener<'l> {
    pub(super) fn new(
        request: &ExecRequest,
        reading: Option<Reading>,
        session: Option<&'l mut Session>,
        cancel: &'l Cancel,
        see: &'l mut dyn FnMut(AgentEvent),
    ) -> Self {
        Self {
            reading,
            result: None,
            messages: Vec::new(),
            stderr: String::new(),
            notes: Vec::new(),
            keeps_messages: request.return_all_messages,
            kept_bytes: 0,
            session,
            cancel,
            see,
        }
    }

    /// Reads all events until the end of the input.
    pub(super) fn read(&mut self, mut input: impl BufRead) {
        let mut line = Vec::new();
        loop {
            line.clear();
            match input.read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => self.line(&line),
            }
        }
        if let Some(mut reading) = self.reading.take() {
            reading.finish(|event| self.agent_says(event));
            self.reading = Some(reading);
        }
    }

    /// Passes an event of the agent on, and keeps it if the request asked for messages.
    fn agent_says(&mut self, event: AgentEvent) {
        if self.keeps_messages && self.messages.len() < MOST_MESSAGES {
            let size = event.data.to_string().len();
            if self.kept_bytes + size <= LARGEST_MESSAGES {
                self.kept_bytes += size;
                self.messages.push(event.data.clone());
            }
        }
        (self.see)(event);
    }

    fn line(&mut self, line: &[u8]) {
        let printed = serde_json::from_slice::<Printed<'_>>(line).ok();
        if let Some(printed) = printed.filter(|printed| printed.event_type == EventType::Output) {
            return self.output(printed);
        }
        // The last line is the result, which has no event type.
        let Ok(event) = serde_json::from_slice::<Event>(line) else { return };
        if event.event_type.is_empty() {
            self.result = serde_json::from_slice(line).ok().or(self.result.take());
            return;
        }
        if event.event_type == EventType::RunStarted {
            self.begun(&event.data);
        }
        if event.event_type != EventType::RunFinished {
            let timestamp = time(&event.timestamp);
            let Event { event_type, message, data, .. } = event;
            (self.see)(AgentEvent { event_type, message, timestamp, data });
        }
    }

    /// The run has begun, so it can now be cancelled in an orderly way.
    fn begun(&mut self, data: &Value) {
        self.cancel.begun();
        if data.get("leaves_changes_behind").and_then(Value::as_bool) == Some(true) {
            self.notes.push(LEFT_OUT.to_string());
            (self.see)(AgentEvent::new(EventType::ExecNote, LEFT_OUT, json!({})));
        }
        let text = |key: &str| data.get(key).and_then(Value::as_str);
        if let (Some(session), Some(branch), Some(worktree)) =
            (&mut self.session, text("branch"), text("worktree"))
        {
            // Save this now: if this process is killed, nobody else records it. A failure here must not lose
            // the result.
            let _ = session.works_in(branch, worktree);
        }
    }

    fn output(&mut self, printed: Printed<'_>) {
        let Piece { stream, text, base64 } = printed.data;
        let Some(stream) = Stream::named(&stream) else { return };
        let Some(bytes) = text.map(String::into_bytes).or_else(|| decode_base64(&base64?)) else { return };
        let timestamp = time(&printed.timestamp);
        if matches!(stream, Stream::Stdout | Stream::Terminal)
            && let Some(mut reading) = self.reading.take()
        {
            reading.at(timestamp);
            reading.feed(&bytes, |event| self.agent_says(event));
            self.reading = Some(reading);
            return;
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if stream == Stream::Stderr {
            keep(&mut self.stderr, &text);
        }
        let data = json!({ "stream": stream.name(), "text": text });
        (self.see)(AgentEvent { event_type: EventType::Output.to_string(), message: text, timestamp, data });
    }
}

fn time(text: &str) -> SystemTime {
    text.parse::<Timestamp>().map_or_else(|_| SystemTime::now(), SystemTime::from)
}

/// Appends text and keeps only the end of it.
pub(super) fn keep(text: &mut String, more: &str) {
    text.push_str(more);
    if text.len() > 2 * KEPT {
        let mut from = text.len() - KEPT;
        while !text.is_char_boundary(from) {
            from += 1;
        }
        text.drain(..from);
    }
}
