//! The updates that agents report while they work, and typed access to those of deep research.
//!
//! An update is an [`AgentEvent`](crate::agents::adapter::AgentEvent): `event_type` says what the update means, and `data` holds
//! its fields. Another agent adds its own event types without a change here. Readers ignore event types and fields that
//! they do not know. A breaking change of an event's data gets a new type with a suffix, such as
//! `sub_query_completed.v2`; a type without a suffix is version 1.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use crate::agents::adapter::AgentEvent as AgentUpdate;

use super::error::ValidationError;
use super::sources::Source;

/// The event type of the update that the agent sends before it asks the model for sub-queries.
pub const EVENT_DECOMPOSITION_STARTED: &str = "decomposition_started";
/// The event type of the update with the sub-queries of the first round.
pub const EVENT_DECOMPOSITION_COMPLETE: &str = "decomposition_complete";
pub const EVENT_SUB_QUERY_STARTED: &str = "sub_query_started";
/// The event type of the update with the answer to a sub-query.
pub const EVENT_SUB_QUERY_COMPLETED: &str = "sub_query_completed";
/// The event type of the update that reports that a sub-query has failed. The other sub-queries continue.
pub const EVENT_SUB_QUERY_FAILED: &str = "sub_query_failed";
/// The event type of the update that the agent sends before it asks the model for the final answer.
pub const EVENT_SYNTHESIS_STARTED: &str = "synthesis_started";
/// The event type of the last update, which contains the final answer.
pub const EVENT_FINAL_RESULT: &str = "final_result";
/// The event type of the update with the sub-queries of a further round.
pub const EVENT_ROUND_PLANNED: &str = "round_planned";
pub const EVENT_RESEARCH_NOTE: &str = "research_note";

/// The event type of the update that reports that the run has ended without an answer.
pub const EVENT_RESEARCH_FAILED: &str = "research_failed";

/// The data of an event type without fields: an empty object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NoData {}

/// The data of [`EVENT_DECOMPOSITION_COMPLETE`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DecompositionComplete {
    /// The texts of the sub-queries. The position of a sub-query in the list, from 0, is its id.
    pub sub_queries: Vec<String>,
}

/// The data of [`EVENT_SUB_QUERY_STARTED`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SubQueryStarted {
    /// The id of the sub-query, from 0.
    pub id: usize,
    /// The text of the sub-query.
    pub query: String,
}

/// The data of [`EVENT_SUB_QUERY_COMPLETED`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SubQueryResult {
    /// The id of the sub-query, from 0.
    pub id: usize,
    /// The answer to the sub-query.
    pub result: String,
    /// The number of tokens that the sub-query used; 0 if the API reported none.
    pub tokens_used: u32,
}

/// The data of [`EVENT_SUB_QUERY_FAILED`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SubQueryFailed {
    /// The id of the sub-query, from 0.
    pub id: usize,
    /// Why the sub-query failed.
    pub error: String,
}

/// The data of [`EVENT_ROUND_PLANNED`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RoundPlanned {
    /// The number of the round, from 2.
    pub round: usize,
    /// The id of the first sub-query of the round. The others have the following ids.
    pub first_id: usize,
    /// The texts of the sub-queries of the round.
    pub sub_queries: Vec<String>,
}

/// The data of [`EVENT_RESEARCH_NOTE`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResearchNote {
    /// The text of the note.
    pub note: String,
}

/// The data of [`EVENT_RESEARCH_FAILED`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResearchFailed {
    /// Why the run failed.
    pub error: String,
    /// The kind of error, as in the field `error_kind` of a result of `guard exec`.
    pub error_kind: String,
    /// The id of the run, for `guard research --resume`.
    #[serde(default)]
    pub research_id: String,
}

/// The number of tokens that the whole run used, its duration, and how many sub-queries succeeded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResultMetadata {
    /// The number of tokens that all requests to the model used.
    pub total_tokens: u32,
    /// The duration of the run in milliseconds. For a resumed run, only the time since it was resumed.
    pub duration_ms: u64,
    /// The number of sub-queries that have an answer.
    pub sub_queries_succeeded: usize,
    /// The number of sub-queries that failed.
    pub sub_queries_failed: usize,
}

/// The data of [`EVENT_FINAL_RESULT`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct FinalResult {
    /// The final answer.
    pub answer: String,
    /// The number of tokens that the run used, its duration, and how many sub-queries succeeded.
    pub metadata: ResultMetadata,
    /// The sources that the answer cites, in the order of their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Source>,
    /// Warnings about the answer: citations that guard removed because no sub-query retrieved the page, sub-queries
    /// without an answer or a source, and answers that were cut or contain instructions to the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unconfirmed: Vec<String>,
}

impl FinalResult {
    /// Creates a result without sources.
    pub fn new(answer: impl Into<String>, metadata: ResultMetadata) -> Self {
        Self { answer: answer.into(), metadata, sources: Vec::new(), unconfirmed: Vec::new() }
    }
}

/// Splits an event type into its name and version: `name.v2` is version 2 of `name`. Without a valid suffix, the whole
/// text is the name, and the version is 1.
pub fn event_version(event_type: &str) -> (&str, u32) {
    let versioned = event_type.rsplit_once(".v").and_then(|(name, number)| {
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit()) && !number.starts_with('0');
        let number = number.parse::<u32>().ok().filter(|_| is_number && !name.is_empty())?;
        Some((name, number))
    });
    versioned.unwrap_or((event_type, 1))
}

/// True if an event type is version 1 of `name`.
fn is_first_version(event_type: &str, name: &str) -> bool {
    event_version(event_type) == (name, 1)
}

fn data(of: impl Serialize) -> Value {
    serde_json::to_value(of).unwrap_or_default()
}

impl AgentUpdate {
    pub fn decomposition_started() -> Self {
        Self::new(EVENT_DECOMPOSITION_STARTED, "Decomposing query into sub-queries", json!({}))
    }

    /// Creates the update with the sub-queries of the first round.
    pub fn decomposition_complete(sub_queries: Vec<String>) -> Self {
        let message = format!("Decomposed into {} sub-queries", sub_queries.len());
        Self::new(EVENT_DECOMPOSITION_COMPLETE, message, data(DecompositionComplete { sub_queries }))
    }

    pub fn sub_query_started(id: usize, query: impl Into<String>) -> Self {
        let query = query.into();
        Self::new(
            EVENT_SUB_QUERY_STARTED,
            format!("Sub-query {id} started"),
            data(SubQueryStarted { id, query }),
        )
    }

    pub fn sub_query_completed(id: usize, result: impl Into<String>, tokens_used: u32) -> Self {
        let result = result.into();
        Self::new(
            EVENT_SUB_QUERY_COMPLETED,
            format!("Sub-query {id} completed"),
            data(SubQueryResult { id, result, tokens_used }),
        )
    }

    pub fn sub_query_failed(id: usize, error: impl Into<String>) -> Self {
        let error = error.into();
        Self::new(
            EVENT_SUB_QUERY_FAILED,
            format!("Sub-query {id} failed"),
            data(SubQueryFailed { id, error }),
        )
    }

    pub fn synthesis_started() -> Self {
        Self::new(EVENT_SYNTHESIS_STARTED, "Synthesizing results", json!({}))
    }

    pub fn final_result(result: &FinalResult) -> Self {
        Self::new(EVENT_FINAL_RESULT, "Research complete", data(result))
    }

    /// Creates the update with the sub-queries of a further round.
    pub fn round_planned(round: RoundPlanned) -> Self {
        let message = format!("Round {}: {} further sub-queries", round.round, round.sub_queries.len());
        Self::new(EVENT_ROUND_PLANNED, message, data(round))
    }

    pub fn research_note(note: impl Into<String>) -> Self {
        let note = note.into();
        Self::new(EVENT_RESEARCH_NOTE, note.clone(), data(ResearchNote { note }))
    }

    pub fn research_failed(failed: &ResearchFailed) -> Self {
        Self::new(EVENT_RESEARCH_FAILED, failed.error.clone(), data(failed))
    }

    /// Returns the sub-queries if this is an [`EVENT_DECOMPOSITION_COMPLETE`]; `None` if it is another event.
    /// Logs malformed data and returns `None`.
    pub fn as_decomposition_complete(&self) -> Option<Vec<String>> {
        lenient(self.try_as_decomposition_complete())
    }

    /// Returns the data if this is an [`EVENT_SUB_QUERY_STARTED`]; `None` for another event or malformed data.
    pub fn as_sub_query_started(&self) -> Option<SubQueryStarted> {
        lenient(self.try_as_sub_query_started())
    }

    /// Returns the data if this is an [`EVENT_SUB_QUERY_COMPLETED`]; `None` for another event or malformed
    /// data.
    pub fn as_sub_query_completed(&self) -> Option<SubQueryResult> {
        lenient(self.try_as_sub_query_completed())
    }

    /// Returns the data if this is an [`EVENT_SUB_QUERY_FAILED`]; `None` for another event or malformed data.
    pub fn as_sub_query_failed(&self) -> Option<SubQueryFailed> {
        lenient(self.try_as_sub_query_failed())
    }

    /// Returns the data if this is an [`EVENT_FINAL_RESULT`]; `None` for another event or malformed data.
    pub fn as_final_result(&self) -> Option<FinalResult> {
        lenient(self.try_as_final_result())
    }

    /// Returns the data if this is an [`EVENT_ROUND_PLANNED`]; `None` for another event or malformed data.
    pub fn as_round_planned(&self) -> Option<RoundPlanned> {
        lenient(self.typed(EVENT_ROUND_PLANNED))
    }

    /// Returns the sub-queries of an [`EVENT_DECOMPOSITION_COMPLETE`]. Fails for another event or malformed
    /// data.
    pub fn try_as_decomposition_complete(&self) -> Result<Vec<String>, ValidationError> {
        self.typed::<DecompositionComplete>(EVENT_DECOMPOSITION_COMPLETE).map(|data| data.sub_queries)
    }

    /// Returns the data of an [`EVENT_SUB_QUERY_STARTED`]. Fails for another event or malformed data.
    pub fn try_as_sub_query_started(&self) -> Result<SubQueryStarted, ValidationError> {
        self.typed(EVENT_SUB_QUERY_STARTED)
    }

    /// Returns the data of an [`EVENT_SUB_QUERY_COMPLETED`]. Fails for another event or malformed data.
    pub fn try_as_sub_query_completed(&self) -> Result<SubQueryResult, ValidationError> {
        self.typed(EVENT_SUB_QUERY_COMPLETED)
    }

    /// Returns the data of an [`EVENT_SUB_QUERY_FAILED`]. Fails for another event or malformed data.
    pub fn try_as_sub_query_failed(&self) -> Result<SubQueryFailed, ValidationError> {
        self.typed(EVENT_SUB_QUERY_FAILED)
    }

    /// Returns the data of an [`EVENT_FINAL_RESULT`]. Fails for another event or malformed data.
    pub fn try_as_final_result(&self) -> Result<FinalResult, ValidationError> {
        self.typed(EVENT_FINAL_RESULT)
    }

    /// Parses the data as `T`, the type that belongs to the event type `expected`. Fails for another event type, for
    /// another version than version 1 of `expected`, and for malformed data.
    pub fn typed<T: DeserializeOwned>(&self, expected: &str) -> Result<T, ValidationError> {
        if !is_first_version(&self.event_type, expected) {
            return Err(ValidationError::WrongEventType {
                expected: expected.to_string(),
                actual: self.event_type.clone(),
            });
        }
        T::deserialize(&self.data).map_err(|error| ValidationError::SchemaMismatch {
            event_type: self.event_type.clone(),
            error: error.to_string(),
        })
    }
}

/// Converts an error to `None`. Logs malformed data, because the sender of the event has made a mistake.
fn lenient<T>(read: Result<T, ValidationError>) -> Option<T> {
    match read {
        Ok(value) => Some(value),
        Err(error @ ValidationError::SchemaMismatch { .. }) => {
            tracing::warn!(%error, "guard ignored an event that does not match its schema");
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seven_events_have_their_messages_and_data() {
        let metadata = ResultMetadata {
            total_tokens: 1247,
            duration_ms: 23_400,
            sub_queries_succeeded: 4,
            sub_queries_failed: 1,
        };
        let of_metadata = json!({
            "total_tokens": 1247, "duration_ms": 23400, "sub_queries_succeeded": 4, "sub_queries_failed": 1,
        });
        for (update, event_type, message, data) in [
            (
                AgentUpdate::decomposition_started(),
                "decomposition_started",
                "Decomposing query into sub-queries",
                json!({}),
            ),
            (
                AgentUpdate::decomposition_complete(vec!["a".into(), "b".into()]),
                "decomposition_complete",
                "Decomposed into 2 sub-queries",
                json!({"sub_queries": ["a", "b"]}),
            ),
            (
                AgentUpdate::sub_query_started(3, "q"),
                "sub_query_started",
                "Sub-query 3 started",
                json!({"id": 3, "query": "q"}),
            ),
            (
                AgentUpdate::sub_query_completed(0, "r", 234),
                "sub_query_completed",
                "Sub-query 0 completed",
                json!({"id": 0, "result": "r", "tokens_used": 234}),
            ),
            (
                AgentUpdate::sub_query_failed(2, "timeout"),
                "sub_query_failed",
                "Sub-query 2 failed",
                json!({"id": 2, "error": "timeout"}),
            ),
            (AgentUpdate::synthesis_started(), "synthesis_started", "Synthesizing results", json!({})),
            (
                AgentUpdate::final_result(&FinalResult::new("yes", metadata)),
                "final_result",
                "Research complete",
                json!({"answer": "yes", "metadata": of_metadata}),
            ),
        ] {
            assert_eq!((update.event_type.as_str(), update.message.as_str()), (event_type, message));
            assert_eq!(update.data, data, "{event_type}");
        }
    }

    #[test]
    fn accessors_return_what_was_put_in_and_nothing_else() {
        let update = AgentUpdate::sub_query_completed(1, "r", 5);
        let result = SubQueryResult { id: 1, result: "r".into(), tokens_used: 5 };
        assert_eq!(update.as_sub_query_completed(), Some(result));
        assert_eq!(update.as_final_result(), None);
        assert_eq!(
            update.try_as_final_result(),
            Err(ValidationError::WrongEventType {
                expected: "final_result".into(),
                actual: "sub_query_completed".into()
            })
        );
        let mut broken = update.clone();
        broken.data = json!({"id": -1, "result": 5});
        assert_eq!(broken.as_sub_query_completed(), None);
        assert!(matches!(
            broken.try_as_sub_query_completed(),
            Err(ValidationError::SchemaMismatch { event_type, .. }) if event_type == "sub_query_completed"
        ));
        // A reader must ignore an unknown field, and must treat a later version of the event type as another
        // event.
        let mut later = update.clone();
        later.data["confidence"] = json!(0.95);
        assert!(later.as_sub_query_completed().is_some());
        later.event_type = "sub_query_completed.v2".to_string();
        assert!(matches!(later.try_as_sub_query_completed(), Err(ValidationError::WrongEventType { .. })));
        later.event_type = "sub_query_completed.v1".to_string();
        assert!(later.as_sub_query_completed().is_some());
    }

    #[test]
    fn versions_are_suffixes() {
        for (event_type, expected) in [
            ("final_result", ("final_result", 1)),
            ("final_result.v1", ("final_result", 1)),
            ("final_result.v2", ("final_result", 2)),
            ("final_result.v12", ("final_result", 12)),
            ("final_result.v0", ("final_result.v0", 1)),
            ("final_result.v02", ("final_result.v02", 1)),
            ("final_result.v", ("final_result.v", 1)),
            ("final_result.vx", ("final_result.vx", 1)),
            ("final_result.v+2", ("final_result.v+2", 1)),
            ("final_result.v99999999999", ("final_result.v99999999999", 1)),
            (".v2", (".v2", 1)),
        ] {
            assert_eq!(event_version(event_type), expected);
        }
    }
}
