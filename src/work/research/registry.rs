//! The event types of deep research in one table, and a registry that checks updates against schemas.
//!
//! The JSON Schemas in `schemas/events/` and `schemas/asyncapi.json` are generated from [`EVENTS`]. A registry can also
//! hold schemas of other agents.

use std::collections::{BTreeMap, VecDeque};

use schemars::Schema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::error::ValidationError;
use super::update::{
    AgentUpdate, DecompositionComplete, EVENT_DECOMPOSITION_COMPLETE, EVENT_DECOMPOSITION_STARTED,
    EVENT_FINAL_RESULT, EVENT_RESEARCH_FAILED, EVENT_RESEARCH_NOTE, EVENT_ROUND_PLANNED,
    EVENT_SUB_QUERY_COMPLETED, EVENT_SUB_QUERY_FAILED, EVENT_SUB_QUERY_STARTED, EVENT_SYNTHESIS_STARTED,
    FinalResult, NoData, ResearchFailed, ResearchNote, RoundPlanned, SubQueryFailed, SubQueryResult,
    SubQueryStarted, event_version,
};
use crate::text::json_schema::JsonSchema;

/// One event type: its name, its meaning and the schema of its data.
#[derive(Debug, Clone, Copy)]
pub struct EventSpec {
    pub event_type: &'static str,
    pub meaning: &'static str,
    data: fn() -> Schema,
}

fn schema_of<T: schemars::JsonSchema>() -> Schema {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    settings.into_generator().into_root_schema_for::<T>()
}

/// The event types of deep research, in the order in which they usually occur.
pub const EVENTS: &[EventSpec] = &[
    EventSpec {
        event_type: EVENT_DECOMPOSITION_STARTED,
        meaning: "The agent asks the model for sub-queries.",
        data: schema_of::<NoData>,
    },
    EventSpec {
        event_type: EVENT_DECOMPOSITION_COMPLETE,
        meaning: "The model has listed the sub-queries. The id of a sub-query is its position in the list.",
        data: schema_of::<DecompositionComplete>,
    },
    EventSpec {
        event_type: EVENT_SUB_QUERY_STARTED,
        meaning: "A sub-query started.",
        data: schema_of::<SubQueryStarted>,
    },
    EventSpec {
        event_type: EVENT_SUB_QUERY_COMPLETED,
        meaning: "A sub-query has an answer.",
        data: schema_of::<SubQueryResult>,
    },
    EventSpec {
        event_type: EVENT_SUB_QUERY_FAILED,
        meaning: "A sub-query failed. The others go on.",
        data: schema_of::<SubQueryFailed>,
    },
    EventSpec {
        event_type: EVENT_ROUND_PLANNED,
        meaning: "A further round of research begins, with new sub-queries (`--depth`).",
        data: schema_of::<RoundPlanned>,
    },
    EventSpec {
        event_type: EVENT_RESEARCH_NOTE,
        meaning: "Something the user should know, such as sub-queries that guard left out.",
        data: schema_of::<ResearchNote>,
    },
    EventSpec {
        event_type: EVENT_SYNTHESIS_STARTED,
        meaning: "The agent asks the model for an answer from all findings.",
        data: schema_of::<NoData>,
    },
    EventSpec {
        event_type: EVENT_FINAL_RESULT,
        meaning: "The last event: the answer, its sources, and what the run used.",
        data: schema_of::<FinalResult>,
    },
    EventSpec {
        event_type: EVENT_RESEARCH_FAILED,
        meaning: "The last event of a run without an answer. `guard research --resume` continues it.",
        data: schema_of::<ResearchFailed>,
    },
];

impl EventSpec {
    pub fn named(event_type: &str) -> Option<&'static Self> {
        EVENTS.iter().find(|spec| spec.event_type == event_type)
    }

    pub fn data_schema(&self) -> Value {
        let mut schema = (self.data)().to_value();
        if let Some(fields) = schema.as_object_mut() {
            fields.remove("title");
            fields.remove("description");
            // The data of every event is an object. State that even if the generated schema has no `type`.
            fields.entry("type").or_insert_with(|| json!("object"));
        }
        schema
    }

    /// Returns the JSON Schema of the whole event.
    pub fn schema(&self) -> Value {
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": format!("guard research: {}", self.event_type),
            "description": self.meaning,
            "type": "object",
            "required": ["event_type", "message", "timestamp", "data"],
            "properties": {
                "event_type": {"const": self.event_type},
                "message": {"type": "string", "description": "A short description."},
                "timestamp": {
                    "type": "string", "format": "date-time", "description": "When the event happened (RFC 3339, UTC).",
                },
                "data": self.data_schema(),
            },
        })
    }
}

/// What a registry does with an update whose data does not match its schema.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValidationMode {
    /// The registry checks nothing. This mode is meant for development.
    Off,
    /// The registry logs a mismatch and accepts the update. This mode is meant for a transition, while senders
    /// switch to a new schema.
    #[default]
    WarnOnly,
    /// The registry returns an error for a mismatch. This mode is meant for production.
    Strict,
}

/// What a registry does with an update whose event type has no schema.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnknownEvents {
    /// The registry logs the update at the level debug, counts it, and ignores it.
    #[default]
    Drop,
    /// The registry logs and counts the update as with `Drop`, and stores it for [`EventRegistry::take_queued`].
    Queue,
    /// The registry returns an error for the update.
    Fail,
}

/// The result of checking an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Validity {
    /// The update matches its schema, or the registry checks nothing.
    Valid,
    /// The update does not match its schema, and the registry has logged that.
    Mismatch,
    /// No schema is registered for the event type. The reader should ignore the update.
    Unknown,
}

/// The schemas of event types, and the rules for updates that match no schema.
pub struct EventRegistry {
    schemas: BTreeMap<String, JsonSchema>,
    mode: ValidationMode,
    unknown: UnknownEvents,
    queue: VecDeque<AgentUpdate>,
    ignored: u64,
}

impl EventRegistry {
    /// The maximum number of queued updates. When the queue is full, a new update replaces the oldest one.
    pub const LONGEST_QUEUE: usize = 1024;

    /// Creates a registry without schemas.
    pub fn new(mode: ValidationMode, unknown: UnknownEvents) -> Self {
        Self { schemas: BTreeMap::new(), mode, unknown, queue: VecDeque::new(), ignored: 0 }
    }

    /// Creates a registry with the schemas of the event types in [`EVENTS`]. Fails if one of the schemas is not valid.
    pub fn of_research(mode: ValidationMode, unknown: UnknownEvents) -> Result<Self, ValidationError> {
        let mut registry = Self::new(mode, unknown);
        for spec in EVENTS {
            registry.register(spec.event_type, &spec.data_schema())?;
        }
        Ok(registry)
    }

    /// Adds the schema of an event type's data, or replaces it. `name.v1` is the same event type as `name`, and
    /// `name.v2` is a different one. Fails if the schema is not valid, or has a keyword that guard does not support, such as
    /// `$ref`.
    pub fn register(&mut self, event_type: &str, data_schema: &Value) -> Result<(), ValidationError> {
        let schema = JsonSchema::parse(data_schema).map_err(|error| ValidationError::InvalidSchema {
            event_type: event_type.to_string(),
            error: error.to_string(),
        })?;
        self.schemas.insert(canonical(event_type), schema);
        Ok(())
    }

    /// Checks an update by the schema of its event type. Fails if the data does not match and the mode is
    /// [`ValidationMode::Strict`], or if the event type is unknown and the rule for such types is
    /// [`UnknownEvents::Fail`].
    pub fn validate(&mut self, update: &AgentUpdate) -> Result<Validity, ValidationError> {
        if self.mode == ValidationMode::Off {
            return Ok(Validity::Valid);
        }
        let Some(schema) = self.schemas.get(&canonical(&update.event_type)) else {
            return self.on_unknown(update);
        };
        let problems = schema.problems(&update.data, 5);
        if problems.is_empty() {
            return Ok(Validity::Valid);
        }
        let error = ValidationError::SchemaMismatch {
            event_type: update.event_type.clone(),
            error: problems.join("; "),
        };
        if self.mode == ValidationMode::Strict {
            return Err(error);
        }
        tracing::warn!(%error, "guard accepted an event that does not match its schema");
        Ok(Validity::Mismatch)
    }

    fn on_unknown(&mut self, update: &AgentUpdate) -> Result<Validity, ValidationError> {
        match self.unknown {
            UnknownEvents::Drop => {}
            UnknownEvents::Queue => {
                if self.queue.len() == Self::LONGEST_QUEUE {
                    self.queue.pop_front();
                }
                self.queue.push_back(update.clone());
            }
            UnknownEvents::Fail => {
                return Err(ValidationError::UnknownEventType { event_type: update.event_type.clone() });
            }
        }
        self.ignored += 1;
        tracing::debug!(event_type = update.event_type, "ignored an event of an unknown type");
        Ok(Validity::Unknown)
    }

    /// Returns how many updates of unknown event types were ignored or queued.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Removes and returns the queued updates of unknown event types, oldest first.
    pub fn take_queued(&mut self) -> Vec<AgentUpdate> {
        self.queue.drain(..).collect()
    }
}

/// Returns the event type without its suffix `.v1`, if it has this suffix.
fn canonical(event_type: &str) -> String {
    match event_version(event_type) {
        (name, 1) => name.to_string(),
        (name, version) => format!("{name}.v{version}"),
    }
}

/// Returns the AsyncAPI document that describes the output of `guard research --stream-json`.
pub fn asyncapi() -> Value {
    let messages: serde_json::Map<String, Value> = EVENTS
        .iter()
        .map(|spec| {
            let mut payload = spec.schema();
            if let Some(fields) = payload.as_object_mut() {
                fields.remove("$schema");
            }
            let message = json!({
                "name": spec.event_type, "summary": spec.meaning, "contentType": "application/json", "payload": payload,
            });
            (spec.event_type.to_string(), message)
        })
        .collect();
    let references: serde_json::Map<String, Value> = EVENTS
        .iter()
        .map(|spec| {
            let reference = format!("#/components/messages/{}", spec.event_type);
            (spec.event_type.to_string(), json!({ "$ref": reference }))
        })
        .collect();
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "guard research",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The events that `guard research --stream-json` prints, one JSON object per line. Readers ignore event types \
                            and fields that they do not know. An event describes a state, not a change, so a reader may process it twice.",
        },
        "defaultContentType": "application/json",
        "channels": {
            "updates": {"address": "stdout", "description": "Standard output of the process.", "messages": references},
        },
        "operations": {
            "receiveUpdates": {"action": "receive", "channel": {"$ref": "#/channels/updates"}},
        },
        "components": {"messages": messages},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strict() -> EventRegistry {
        EventRegistry::of_research(ValidationMode::Strict, UnknownEvents::Fail)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn every_constructor_matches_the_schema_of_its_event() {
        let mut registry = strict();
        let updates = [
            AgentUpdate::decomposition_started(),
            AgentUpdate::decomposition_complete(vec!["a".into()]),
            AgentUpdate::sub_query_started(0, "a"),
            AgentUpdate::sub_query_completed(0, "r", 1),
            AgentUpdate::sub_query_failed(0, "e"),
            AgentUpdate::round_planned(RoundPlanned { round: 2, first_id: 5, sub_queries: vec![] }),
            AgentUpdate::research_note("n"),
            AgentUpdate::synthesis_started(),
            AgentUpdate::final_result(&FinalResult::default()),
            AgentUpdate::research_failed(&ResearchFailed::default()),
        ];
        assert_eq!(updates.len(), EVENTS.len());
        for (update, spec) in updates.iter().zip(EVENTS) {
            assert_eq!(update.event_type, spec.event_type);
            assert_eq!(registry.validate(update), Ok(Validity::Valid));
            let whole = serde_json::to_value(update).unwrap_or_default();
            let schema = spec.schema();
            let validator = jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{error}"));
            assert!(validator.is_valid(&whole), "{whole} {schema}");
        }
    }

    #[test]
    fn the_mode_decides_what_a_mismatch_is() {
        let mut broken = AgentUpdate::sub_query_completed(0, "r", 1);
        for wrong in [json!({"id": -1, "result": "r", "tokens_used": 1}), json!({"id": 0}), json!([])] {
            broken.data = wrong;
            assert!(matches!(strict().validate(&broken), Err(ValidationError::SchemaMismatch { .. })));
            let mut warns = EventRegistry::of_research(ValidationMode::WarnOnly, UnknownEvents::Drop)
                .unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(warns.validate(&broken), Ok(Validity::Mismatch));
            let mut off = EventRegistry::of_research(ValidationMode::Off, UnknownEvents::Fail)
                .unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(off.validate(&broken), Ok(Validity::Valid));
        }
        broken.data = json!({"id": 0, "result": "r", "tokens_used": 1, "confidence": 0.95});
        assert_eq!(strict().validate(&broken), Ok(Validity::Valid));
    }

    #[test]
    fn unknown_events_are_dropped_queued_or_refused() {
        let later = AgentUpdate::new("final_result.v2", "", json!({}));
        assert_eq!(
            strict().validate(&later),
            Err(ValidationError::UnknownEventType { event_type: "final_result.v2".into() })
        );
        let mut drops = EventRegistry::new(ValidationMode::Strict, UnknownEvents::Drop);
        assert_eq!(drops.validate(&later), Ok(Validity::Unknown));
        assert_eq!((drops.ignored(), drops.take_queued().len()), (1, 0));
        let mut queues = EventRegistry::new(ValidationMode::Strict, UnknownEvents::Queue);
        for _ in 0..EventRegistry::LONGEST_QUEUE + 3 {
            assert_eq!(queues.validate(&later), Ok(Validity::Unknown));
        }
        assert_eq!(queues.take_queued().len(), EventRegistry::LONGEST_QUEUE);
        // Another agent registers version 2 of an event type of deep research.
        assert_eq!(queues.register("final_result.v2", &json!({"type": "object"})), Ok(()));
        assert_eq!(queues.validate(&later), Ok(Validity::Valid));
        let broken = queues.register("x", &json!({"type": "no such type"}));
        assert!(matches!(broken, Err(ValidationError::InvalidSchema { .. })), "{broken:?}");
    }
}
