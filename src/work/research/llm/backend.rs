//! The trait of a backend, which answers one request and reports what the model wrote, retrieved and used.

use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use serde::{Deserialize, Serialize};

use crate::work::research::error::LlmError;
use crate::work::research::sources::Retrieval;

/// A request as the client passes it to a backend.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LlmCall {
    pub prompt: String,
    pub system_instruction: Option<String>,
    /// The name of the model; an empty name leaves the choice to the backend.
    pub model: String,
    /// The sampling temperature; `None` means the model's default.
    pub temperature: Option<f32>,
    /// The time limit after which the backend should end the request itself.
    pub timeout: Duration,
    /// The maximum number of tokens that the request may use; `None` means no limit.
    pub max_tokens: Option<u64>,
    /// The maximum cost of the request; `None` means no limit. A backend that cannot measure the cost while the model
    /// works ignores this limit. The client starts no request when the budget is used up.
    pub max_cost: Option<f64>,
}

/// The tokens and the cost that a request used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LlmUsage {
    /// The number of input and output tokens together.
    pub tokens: u64,
    /// The cost, computed with the prices in `config.toml`; 0 if the file has no price for the model.
    pub cost: f64,
}

impl LlmUsage {
    pub const NOTHING: Self = Self { tokens: 0, cost: 0.0 };

    /// Creates the usage of this many tokens, without a known cost.
    pub fn tokens(tokens: u64) -> Self {
        Self { tokens, cost: 0.0 }
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { tokens: self.tokens.saturating_add(other.tokens), cost: self.cost + other.cost }
    }
}

/// An event that a backend reports while it answers a request.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum BackendEvent {
    /// A piece of text that the model wrote. It need not be part of the final answer.
    Text(String),
    /// guard observed that the model retrieved a page or connected to a host.
    Retrieved(Retrieval),
    /// The model retrieved a text that gives orders to its reader. Holds the phrase that guard found in the text.
    Order(String),
    /// The usage of the request. A failed request reports its usage too, before its error.
    Used(LlmUsage),
    /// The last event: the whole answer.
    Completed {
        text: String,
        /// The backend's id of the request, for example a run id for `guard log`; `None` if the backend has none.
        interaction_id: Option<String>,
    },
}

/// The events of one request. After an error or [`BackendEvent::Completed`], nothing follows. Dropping the stream
/// cancels the request and ends every process that the backend started for it.
pub type BackendStream = Pin<Box<dyn Stream<Item = Result<BackendEvent, LlmError>> + Send>>;

/// Answers requests to a model, for example with a CLI, an API, or a script in a test.
pub trait LlmBackend: Send + Sync {
    /// Starts to answer a request. The client calls this in a tokio runtime.
    fn start(&self, call: LlmCall) -> BackendStream;

    /// Returns how long the client waits after the timeout before it drops the stream. A backend that ends
    /// requests itself needs this time to report their usage.
    fn grace(&self) -> Duration {
        Duration::ZERO
    }
}
