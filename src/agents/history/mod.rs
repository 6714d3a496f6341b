//! The history of a conversation with a model that stores none: messages in, prompts of a limited size out.
//!
//! [`GeminiHistoryManager`] stores every message and builds each prompt from a summary of the older messages,
//! the recent messages verbatim, and the new message. Prompts stay small because a model answers a small one in
//! seconds and a large one possibly not at all. `docs/internals/conversation-history.md` explains budgets and
//! compaction.
//!
//! This module does no I/O, starts no process and reads no clock. Its caller stores the messages, asks the
//! summary model and passes the time.
#![forbid(unsafe_code)]

mod circuit_breaker;
mod compaction;
mod config;
mod constraints;
mod fit;
mod manager;
mod message;
mod message_sizes;
mod model_limits;
mod pins;
mod prompt;
mod prompt_text;
mod size_warning;
mod summary;
mod tokens;

#[cfg(test)]
mod tests;

pub use circuit_breaker::{BreakerState, CircuitBreaker};
pub use compaction::{Applied, CompactionPlan, Level};
pub use config::HistoryConfig;
pub use manager::{Dropped, GeminiHistoryManager, TimeoutAdvice};
pub use message::{Message, Role};
pub use model_limits::{ModelLimits, full_model_name, limits_of};
pub use prompt::{MessageForm, PromptResult};
pub use size_warning::SizeWarning;
pub use summary::{
    Summarizer, Summary, SummaryCache, SummaryError, SummaryFuture, SummaryRequest, SummarySource, digest_of,
};
pub use tokens::estimate_tokens;
