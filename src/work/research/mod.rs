//! Research: agents that answer a query with several requests to a model, and report their progress as a stream
//! of updates.
//!
//! ```text
//!   query ─► decompose ─► sub-queries, each a read-only run of an agent ─► synthesis ─► answer with checked sources
//!                              │ journal (on disk)        │ what guard's proxy and the agent's tools retrieved
//!                              └── updates, in the order in which they happen ──► reader of the stream
//! ```
//!
//! The parts:
//! - [`Agent`] and [`AgentUpdate`]: what every agent implements and reports. A new agent needs no change in this
//!   module.
//! - [`LlmClient`]: requests with timeouts, retries and a budget, over a backend; the default one is the sandboxed CLI.
//! - [`DeepResearchAgent`]: decomposition, parallel sub-queries, synthesis.
//! - [`EventRegistry`]: schemas of updates, from the one table [`EVENTS`].
//!
//! This module starts programs only through [`agents::exec`](crate::agents::exec), prints nothing, and never
//! follows an instruction in a text that a model or a page wrote.
#![forbid(unsafe_code)]

mod agent;
mod blocking;
mod config;
mod control;
mod deep;
mod error;
mod hostile;
mod journal;
mod llm;
mod markdown_code;
mod registry;
mod report;
mod sources;
mod update;

pub use agent::{
    Agent, AgentContext, CHANNEL_CAPACITY, UpdateSender, UpdateStream, next_update, update_stream,
};
pub use blocking::run_blocking;
pub use config::{LlmConfig, MODEL, ResearchConfig, default_model};
pub use control::{RunControl, RunState};
pub use deep::DeepResearchAgent;
pub use error::{AgentError, JournalError, LlmError, ValidationError};
pub use journal::{Finished, Journal, Planned, Progress, RequestLimits, RunStage, Started, StoredRun};
pub use llm::{
    BackendEvent, BackendStream, Budget, ChunkStream, ExecutorBackend, LlmBackend, LlmCall, LlmClient,
    LlmRequest, LlmResponse, LlmStreamChunk, LlmUsage, next_chunk,
};
pub use registry::{EVENTS, EventRegistry, EventSpec, UnknownEvents, ValidationMode, Validity, asyncapi};
pub use report::{Report, SubQuery, SubQueryState};
pub use sources::{CheckedAnswer, Evidence, Ledger, Retrieval, Source, check_citations};
pub use update::{
    AgentUpdate, DecompositionComplete, EVENT_DECOMPOSITION_COMPLETE, EVENT_DECOMPOSITION_STARTED,
    EVENT_FINAL_RESULT, EVENT_RESEARCH_FAILED, EVENT_RESEARCH_NOTE, EVENT_ROUND_PLANNED,
    EVENT_SUB_QUERY_COMPLETED, EVENT_SUB_QUERY_FAILED, EVENT_SUB_QUERY_STARTED, EVENT_SYNTHESIS_STARTED,
    FinalResult, NoData, ResearchFailed, ResearchNote, ResultMetadata, RoundPlanned, SubQueryFailed,
    SubQueryResult, SubQueryStarted, event_version,
};
