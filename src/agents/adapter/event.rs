//! The events that guard reports while an agent works.
//!
//! The format is open: `event_type` names the meaning, and `data` may hold anything. Readers must ignore event types
//! and fields that they do not know, and must treat ids as opaque. An event states a fact and never a command, so a
//! reader may process it twice.

use std::fmt;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// An event of an agent's run: something that the agent printed, or that guard did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentEvent {
    /// The event type: `agent.…` for the agent's output, `exec.…` for actions of `guard exec`, any other for events of
    /// the run's transcript. Later versions may add types.
    pub event_type: String,
    /// A short description of the event.
    #[serde(default)]
    pub message: String,
    /// When the event happened (RFC 3339, UTC).
    #[serde(default = "never", serialize_with = "write_time", deserialize_with = "read_time")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub timestamp: SystemTime,
    /// For `agent.…`, the JSON object that the agent printed; otherwise data specific to the event type. Later versions
    /// may add fields.
    #[serde(default)]
    pub data: Value,
}

impl AgentEvent {
    /// Creates an event with the current time.
    pub fn new(event_type: impl Into<String>, message: impl Into<String>, data: Value) -> Self {
        Self { event_type: event_type.into(), message: message.into(), timestamp: SystemTime::now(), data }
    }
}

/// Returns the timestamp for a stored event that has none.
fn never() -> SystemTime {
    SystemTime::UNIX_EPOCH
}

fn write_time<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    let time = Timestamp::try_from(*time).map_err(serde::ser::Error::custom)?;
    to.collect_str(&time)
}

/// Parses a timestamp: RFC 3339 text as guard writes it, or the object with seconds and nanoseconds that serde's
/// default for `SystemTime` writes.
fn read_time<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
    struct Time;

    impl<'de> Visitor<'de> for Time {
        type Value = SystemTime;

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            to.write_str("a time as RFC 3339 text, or seconds and nanoseconds since 1970")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<SystemTime, E> {
            text.parse::<Timestamp>().map(SystemTime::from).map_err(E::custom)
        }

        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<SystemTime, M::Error> {
            let (mut seconds, mut nanoseconds) = (0u64, 0u64);
            while let Some(name) = map.next_key::<String>()? {
                match name.as_str() {
                    "secs_since_epoch" => seconds = map.next_value()?,
                    "nanos_since_epoch" => nanoseconds = map.next_value()?,
                    _ => drop(map.next_value::<de::IgnoredAny>()?),
                }
            }
            let since = Duration::from_secs(seconds).checked_add(Duration::from_nanos(nanoseconds));
            since
                .and_then(|since| never().checked_add(since))
                .ok_or_else(|| de::Error::custom("the timestamp is out of range"))
        }
    }

    from.deserialize_any(Time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> Result<AgentEvent, serde_json::Error> {
        serde_json::from_value(value)
    }

    #[test]
    fn times_are_text_and_both_forms_are_understood() {
        let event = AgentEvent::new("a", "b", json!({ "c": 1 }));
        let written = serde_json::to_value(&event).unwrap_or_else(|error| panic!("{error}"));
        let text = written["timestamp"].as_str().unwrap_or_default();
        assert!(text.ends_with('Z') && text.contains('T'), "{written}");
        assert_eq!(read(written).unwrap_or_else(|error| panic!("{error}")), event);
        let text = read(json!({ "event_type": "a", "timestamp": "1970-01-01T00:00:02.5Z" }));
        let numbers = json!({ "secs_since_epoch": 2, "nanos_since_epoch": 500_000_000, "zone": "none" });
        let numbers = read(json!({ "event_type": "a", "timestamp": numbers }));
        let when = |event: Result<AgentEvent, serde_json::Error>| event.ok().map(|event| event.timestamp);
        assert_eq!(when(text), Some(never() + Duration::from_millis(2500)));
        assert_eq!(when(numbers), Some(never() + Duration::from_millis(2500)));
    }

    #[test]
    fn what_nobody_knows_is_ignored_and_nothing_panics() {
        let event = read(json!({ "event_type": "future.thing", "confidence": 0.95, "data": [1] }));
        assert!(event.is_ok_and(|event| event.event_type == "future.thing" && event.timestamp == never()));
        for bad in [
            json!({}),
            json!([]),
            json!({ "event_type": 1 }),
            json!({ "event_type": "a", "timestamp": "yesterday" }),
            json!({ "event_type": "a", "timestamp": 5 }),
            json!({ "event_type": "a", "timestamp": { "secs_since_epoch": u64::MAX, "nanos_since_epoch": u64::MAX } }),
        ] {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
    }
}
