//! Requests to a model: one client with timeouts, retries and a budget, over interchangeable backends.
//!
//! The client does not depend on a CLI or an API. A backend turns a request into a stream of events; the
//! default backend runs an agent's CLI in a read-only sandbox. Requests contain no history.

mod backend;
mod budget;
mod client;
mod exec_backend;
#[cfg(test)]
pub(crate) mod scripted;

pub use backend::{BackendEvent, BackendStream, LlmBackend, LlmCall, LlmUsage};
pub use budget::Budget;
pub use client::{ChunkStream, LlmClient, LlmRequest, LlmResponse, LlmStreamChunk, next_chunk};
pub use exec_backend::ExecutorBackend;
