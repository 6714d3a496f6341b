//! Reads the events that one attempt's `guard run` process prints, line by line.
//!
//! The agent's output goes through the adapter's parser; all other events except `run.finished` are passed on to the
//! caller. The amount of output that is kept is limited. The last line of the stream is the run's result.

use std::borrow::Cow;
use std::io::BufRead;
use std::time::SystemTime;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::session::Session;
use super::{Cancel, ExecRequest};
use crate::agents::adapter::{AgentEvent, OutputParser};
use crate::run::outcome::RunResult;
use crate::run::transcript::{Event, EventType, Stream, decode_base64};

/// The number of bytes of the agent's standard error that are kept. [`append_bounded`] holds up to twice as many.
const KEPT: usize = 64 << 10;
/// The maximum number of messages in a result.
const MOST_MESSAGES: usize = 10_000;
/// The maximum total size of the messages in a result, in bytes.
const LARGEST_MESSAGES: usize = 64 << 20;

/// The note in the result if the user's working tree has uncommitted changes, which the agent's branch does not
/// contain.
const UNCOMMITTED_NOTE: &str =
    "the agent does not see your uncommitted changes, because its branch starts at the last commit";

/// An output event, parsed without a generic JSON value in between. Nearly all bytes arrive in such events, so this
/// avoids most allocations. The short fields borrow from the line.
#[derive(Deserialize)]
struct OutputEvent<'l> {
    #[serde(borrow)]
    event_type: Cow<'l, str>,
    #[serde(borrow)]
    timestamp: Cow<'l, str>,
    #[serde(borrow)]
    data: OutputData<'l>,
}

#[derive(Deserialize)]
struct OutputData<'l> {
    #[serde(borrow)]
    stream: Cow<'l, str>,
    text: Option<String>,
    base64: Option<String>,
}

/// Reads the events of one attempt and collects what the result needs.
pub(super) struct EventReader<'l> {
    pub(super) parser: Option<OutputParser>,
    pub(super) result: Option<RunResult>,
    pub(super) messages: Vec<Value>,
    /// The end of the agent's standard error.
    pub(super) stderr: String,
    /// Remarks about the run, which become part of the result's `notes`.
    pub(super) notes: Vec<String>,
    keeps_messages: bool,
    kept_bytes: usize,
    session: Option<&'l mut Session>,
    cancel: &'l Cancel,
    on_event: &'l mut dyn FnMut(AgentEvent),
}

impl<'l> EventReader<'l> {
    pub(super) fn new(
        request: &ExecRequest,
        parser: Option<OutputParser>,
        session: Option<&'l mut Session>,
        cancel: &'l Cancel,
        on_event: &'l mut dyn FnMut(AgentEvent),
    ) -> Self {
        Self {
            parser,
            result: None,
            messages: Vec::new(),
            stderr: String::new(),
            notes: Vec::new(),
            keeps_messages: request.return_all_messages,
            kept_bytes: 0,
            session,
            cancel,
            on_event,
        }
    }

    /// Reads all events until the end of the input, or until reading fails.
    pub(super) fn read(&mut self, mut input: impl BufRead) {
        let mut line = Vec::new();
        loop {
            line.clear();
            match input.read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => self.read_line(&line),
            }
        }
        if let Some(mut parser) = self.parser.take() {
            parser.finish(|event| self.report_agent_event(event));
            self.parser = Some(parser);
        }
    }

    /// Passes an event of the agent on to the caller, and keeps it if the request asks for all messages in the result.
    fn report_agent_event(&mut self, event: AgentEvent) {
        if self.keeps_messages && self.messages.len() < MOST_MESSAGES {
            let size = event.data.to_string().len();
            if self.kept_bytes + size <= LARGEST_MESSAGES {
                self.kept_bytes += size;
                self.messages.push(event.data.clone());
            }
        }
        (self.on_event)(event);
    }

    fn read_line(&mut self, line: &[u8]) {
        let output = serde_json::from_slice::<OutputEvent<'_>>(line).ok();
        if let Some(output) = output.filter(|output| output.event_type == EventType::Output) {
            return self.on_output(output);
        }
        // The last line is the result, which has no event type.
        let Ok(event) = serde_json::from_slice::<Event>(line) else { return };
        if event.event_type.is_empty() {
            self.result = serde_json::from_slice(line).ok().or(self.result.take());
            return;
        }
        if event.event_type == EventType::RunStarted {
            self.on_run_started(&event.data);
        }
        if event.event_type != EventType::RunFinished {
            let timestamp = time(&event.timestamp);
            let Event { event_type, message, data, .. } = event;
            (self.on_event)(AgentEvent { event_type, message, timestamp, data });
        }
    }

    /// Handles the event that reports the start of the run. From then on, guard knows the run's worktree, and can
    /// cancel the run without leaving files behind.
    fn on_run_started(&mut self, data: &Value) {
        self.cancel.set_begun();
        if data.get("leaves_changes_behind").and_then(Value::as_bool) == Some(true) {
            self.notes.push(UNCOMMITTED_NOTE.to_string());
            (self.on_event)(AgentEvent::new(EventType::ExecNote, UNCOMMITTED_NOTE, json!({})));
        }
        let text = |key: &str| data.get(key).and_then(Value::as_str);
        if let (Some(session), Some(branch), Some(worktree)) =
            (&mut self.session, text("branch"), text("worktree"))
        {
            // Record the worktree now: if this process is killed later, nothing else records it. The request continues
            // even if the record cannot be written, so that its result is not lost.
            let _ = session.record_worktree(branch, worktree);
        }
    }

    fn on_output(&mut self, output: OutputEvent<'_>) {
        let OutputData { stream, text, base64 } = output.data;
        let Some(stream) = Stream::named(&stream) else { return };
        let Some(bytes) = text.map(String::into_bytes).or_else(|| decode_base64(&base64?)) else { return };
        let timestamp = time(&output.timestamp);
        if matches!(stream, Stream::Stdout | Stream::Terminal)
            && let Some(mut parser) = self.parser.take()
        {
            parser.at(timestamp);
            parser.feed(&bytes, |event| self.report_agent_event(event));
            self.parser = Some(parser);
            return;
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if stream == Stream::Stderr {
            append_bounded(&mut self.stderr, &text);
        }
        let data = json!({ "stream": stream.name(), "text": text });
        let event_type = EventType::Output.to_string();
        (self.on_event)(AgentEvent { event_type, message: text, timestamp, data });
    }
}

fn time(text: &str) -> SystemTime {
    text.parse::<Timestamp>().map_or_else(|_| SystemTime::now(), SystemTime::from)
}

/// Appends `more` to `text`. If the text then has more than twice [`KEPT`] bytes, keeps only its last [`KEPT`] bytes.
pub(super) fn append_bounded(text: &mut String, more: &str) {
    text.push_str(more);
    if text.len() > 2 * KEPT {
        let mut from = text.len() - KEPT;
        while !text.is_char_boundary(from) {
            from += 1;
        }
        text.drain(..from);
    }
}
