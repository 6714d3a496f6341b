//! What a backend must do: answer one request, and report what the model said, retrieved and used.

use std::pin::Pin;
use std::time::Duration;

use futures_core::Stream;
use serde::{Deserialize, Serialize};

use crate::research::error::LlmError;
use crate::research::sources::Retrieval;

/// A request as a backend gets it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LlmCall {
    /// The prompt.
    pub prompt: String,
    /// Instructions that apply to the whole answer.
    pub system_instruction: Option<String>,
    /// The model.
    pub model: String,
    /// The sampling temperature, if the user chose one.
    pub temperature: Option<f32>,
    /// The time after which the backend should end the request by itself.
    pub timeout: Duration,
    /// The most tokens that the request may use.
    pub max_tokens: Option<u64>,
    /// The money that is left. A backend that cannot watch the cost ignores it; the client starts no request when
    /// nothing is left.
    pub max_cost: Option<f64>,
}

/// The tokens and the money that a request used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LlmUsage {
    /// Input and output tokens together.
    pub tokens: u64,
    /// The cost by the prices in `config.toml`; 0 without prices.
    pub cost: f64,
}

impl LlmUsage {
    /// Nothing was used.
    pub const NOTHING: Self = Self { tokens: 0, cost: 0.0 };

    /// This many tokens, without a known cost.
    pub fn tokens(tokens: u64) -> Self {
        Self { tokens, cost: 0.0 }
    }

    /// The sum of two usages.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { tokens: self.tokens.saturating_add(other.tokens), cost: self.cost + other.cost }
    }
}

/// What happens while a backend answers.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum BackendEvent {
    /// A piece of what the model says. It need not be part of the final answer.
    Text(String),
    /// guard observed that the model retrieved something.
    Retrieved(Retrieval),
    /// What the request used. A failed request reports it too, before its error.
    Used(LlmUsage),
    /// The last event: the whole answer.
    Completed {
        /// The answer.
        text: String,
        /// The backend's id of the exchange, for example a run for `guard log`.
        interaction_id: Option<String>,
    },
}

/// The events of one request. After an error or [`BackendEvent::Completed`], nothing follows. Dropping the stream
/// cancels the request and ends every process that the backend started for it.
pub type BackendStream = Pin<Box<dyn Stream<Item = Result<BackendEvent, LlmError>> + Send>>;

/// Answers requests: a CLI, an API, or a script in a test.
pub trait LlmBackend: Send + Sync {
    /// Starts to answer a request. Called in a tokio runtime.
    fn start(&self, call: LlmCall) -> BackendStream;

    /// How much longer than the timeout the client waits before it drops the stream. A backend that ends requests by
    /// itself needs this time to report what they used.
    fn grace(&self) -> Duration {
        Duration::ZERO
    }
}
