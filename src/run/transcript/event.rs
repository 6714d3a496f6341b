//! One line of a transcript, as readers parse it.
//!
//! Later versions of guard may add event types and fields. Readers must ignore those that they do not know, and
//! must treat ids as opaque.

use std::io::Write;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::base64;
use super::event_type::{EventType, is_denial};

/// One line of a transcript.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// The event type: `run.started`, `exec`, `deny.exec`, `output`, … New types may be added.
    #[serde(default)]
    pub event_type: String,
    /// The event in one line of text, for users.
    #[serde(default)]
    pub message: String,
    /// When the event happened: RFC 3339, UTC, with microseconds.
    #[serde(default)]
    pub timestamp: String,
    /// The data of the event; its fields depend on the event type. New fields may be added.
    #[serde(default)]
    pub data: Value,
    /// The id of the run, an opaque text.
    #[serde(default)]
    pub run_id: String,
    /// The number of the line in the transcript, from 1.
    #[serde(default)]
    pub seq: u64,
    /// The SHA-256 hash of the previous line, without its newline, in lower-case hexadecimal; 64 zeros in the first
    /// line.
    #[serde(default)]
    pub prev: String,
}

impl Event {
    pub fn is_denial(&self) -> bool {
        is_denial(&self.event_type)
    }

    /// Returns the working directory in the data of `run.started` and of events about programs. Older
    /// versions of guard wrote only `folder`.
    pub fn directory(&self) -> Option<&str> {
        self.data.get("directory").or_else(|| self.data.get("folder"))?.as_str()
    }

    /// Returns when the event happened; `None` if the timestamp is invalid.
    pub fn time(&self) -> Option<Timestamp> {
        self.timestamp.parse().ok()
    }

    /// Returns the stream and the bytes of an output event; `None` for events of other types and for malformed data.
    pub fn output(&self) -> Option<(Stream, Vec<u8>)> {
        if self.event_type != EventType::Output {
            return None;
        }
        let text = |key: &str| self.data.get(key).and_then(Value::as_str);
        let stream = Stream::named(text("stream")?)?;
        let bytes = match text("text") {
            Some(text) => text.as_bytes().to_vec(),
            None => base64::decode(text("base64")?)?,
        };
        Some((stream, bytes))
    }
}

/// The stream that a piece of output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
    /// A pseudo-terminal, which carries standard output and standard error together.
    Terminal,
}

impl Stream {
    pub(super) const ALL: [Self; 3] = [Self::Stdout, Self::Stderr, Self::Terminal];

    /// Returns the name of the stream as events contain it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Terminal => "terminal",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stream| stream.name() == name)
    }
}

/// Returns the current time, in microseconds since 1970.
pub(super) fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Formats timestamps. Caches the text of the current second, so that most events need no calendar computation.
#[derive(Default)]
pub(super) struct Clock {
    second: Option<i64>,
    text: String,
}

impl Clock {
    pub(super) fn write(&mut self, micros: i64, out: &mut Vec<u8>) {
        let second = micros.div_euclid(1_000_000);
        if self.second != Some(second) {
            self.text = Timestamp::from_second(second).unwrap_or_default().to_string();
            self.text.truncate(self.text.len() - 1);
            self.second = Some(second);
        }
        // Writing to a `Vec` cannot fail.
        let _ = write!(out, "{}.{:06}Z", self.text, micros.rem_euclid(1_000_000));
    }
}
