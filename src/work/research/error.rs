//! Errors of research agents, of requests to a model, and of events. Every error has a kind and a hint for the
//! user.

use std::path::PathBuf;
use std::time::Duration;

use crate::run::outcome::ErrorKind;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LlmError {
    #[error("timeout: no answer within {}", seconds(*after))]
    Timeout {
        /// The time limit that was exceeded.
        after: Duration,
    },
    /// All requests together have used up the tokens or the cost that the user allowed.
    #[error("the budget of the research is used up ({spent})")]
    BudgetExhausted {
        /// The usage and the limit, as text.
        spent: String,
    },
    #[error("the model answered with an empty text")]
    EmptyAnswer,
    /// The backend, which sends the request to the model, failed.
    #[error("{message}")]
    Backend {
        kind: ErrorKind,
        message: String,
        /// How long to wait before another request, if the API reported it.
        retry_after: Option<Duration>,
    },
}

impl LlmError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Timeout { .. } => ErrorKind::Timeout,
            Self::BudgetExhausted { .. } => ErrorKind::BudgetExhausted,
            Self::EmptyAnswer => ErrorKind::UpstreamError,
            Self::Backend { kind, .. } => *kind,
        }
    }

    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::Timeout | ErrorKind::IdleTimeout | ErrorKind::UpstreamError | ErrorKind::RateLimited
        )
    }

    /// Returns a hint for the user about what to do next; empty if there is none.
    pub fn hint(&self) -> &'static str {
        match self.kind() {
            ErrorKind::Timeout | ErrorKind::IdleTimeout => "give the requests more time with --timeout",
            ErrorKind::BudgetExhausted => "continue with --resume ID and a larger --max-tokens or --max-cost",
            ErrorKind::AuthError => "set the API key of the agent; `guard help keys` lists the variables",
            ErrorKind::RateLimited => {
                "wait until the quota is available again, then continue with --resume ID"
            }
            ErrorKind::CommandNotFound => "install the agent's program, or choose another with --agent",
            ErrorKind::ConfigError => "`guard doctor` shows which agents and versions this machine has",
            ErrorKind::SandboxUnavailable => "`guard doctor` shows what the sandbox lacks on this machine",
            ErrorKind::InvalidInput => "check --model and --agent",
            _ => "",
        }
    }
}

fn seconds(time: Duration) -> String {
    if time.subsec_millis() == 0 {
        format!("{} s", time.as_secs())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The model's list of sub-queries cannot be parsed, even after guard asked the model to repair it.
    #[error("guard cannot parse the model's list of sub-queries: {problem}")]
    Decomposition { problem: String },
    #[error("all sub-queries ({}) failed; the first error: {}", errors.len(), errors.first().map_or("", String::as_str))]
    AllSubQueriesFailed {
        /// The errors of the sub-queries, in the order of their ids.
        errors: Vec<String>,
        /// The kind of the first error.
        kind: ErrorKind,
    },
    /// A request to the model failed, and the run cannot continue without its answer.
    #[error("{phase} failed: {source}")]
    Llm {
        /// The phase of the request: `decomposition`, `synthesis` or another phase.
        phase: &'static str,
        source: LlmError,
    },
    /// The stream of updates ended without a final result.
    #[error("the stream of updates ended without a final result")]
    NoFinalResult,
    /// The user or a control command cancelled the run.
    #[error("the research was cancelled")]
    Cancelled,
    /// The agent's configuration or the query is invalid.
    #[error("{problem}")]
    InvalidInput { problem: String },
    /// The journal cannot be written. The run ends, because its results could be lost.
    #[error("cannot write the journal {}: {problem}", path.display())]
    Journal { path: PathBuf, problem: String },
    /// The operating system did not let guard create the runtime that drives the requests.
    #[error("cannot start the runtime for the requests to the model: {problem}")]
    Runtime { problem: String },
    /// An event of the agent does not match its schema, and the registry is strict.
    #[error(transparent)]
    Event(#[from] ValidationError),
}

impl AgentError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Decomposition { .. } => ErrorKind::UpstreamError,
            Self::AllSubQueriesFailed { kind, .. } => *kind,
            Self::Llm { source, .. } => source.kind(),
            Self::Cancelled => ErrorKind::Cancelled,
            Self::InvalidInput { .. } => ErrorKind::InvalidInput,
            Self::NoFinalResult | Self::Journal { .. } | Self::Runtime { .. } | Self::Event(_) => {
                ErrorKind::Internal
            }
        }
    }

    /// Returns a hint for the user about what to do next; empty if there is none.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Decomposition { .. } => "try again, or choose another model with --model",
            Self::Llm { source, .. } => source.hint(),
            Self::AllSubQueriesFailed { kind, .. } => {
                let hint =
                    LlmError::Backend { kind: *kind, message: String::new(), retry_after: None }.hint();
                if hint.is_empty() { "`guard log RUN` shows what a run did" } else { hint }
            }
            _ => "",
        }
    }
}

/// Why an update does not have the expected type or data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValidationError {
    #[error("expected an event of the type `{expected}`, found `{actual}`")]
    WrongEventType { expected: String, actual: String },
    #[error("an event of the type `{event_type}` does not match its schema: {error}")]
    SchemaMismatch { event_type: String, error: String },
    /// No schema is registered for the event type, and the registry is configured to fail on such events.
    #[error("unknown event type `{event_type}`")]
    UnknownEventType { event_type: String },
    #[error("the schema of the event type `{event_type}` is not valid: {error}")]
    InvalidSchema { event_type: String, error: String },
}

/// Why a journal cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    #[error("there is no research run `{id}`")]
    Unknown { id: String },
    /// The ids of several runs end with the characters that the user gave.
    #[error("the ids of several research runs end with `{id}`")]
    Ambiguous {
        /// The characters that the user gave.
        id: String,
    },
    /// Another process is working on the run.
    #[error("another process is working on the research run `{id}`")]
    Busy { id: String },
    /// The journal's file cannot be read, written or parsed.
    #[error("cannot use the journal {}: {problem}", path.display())]
    Unusable { path: PathBuf, problem: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_pass_is_retried() {
        let of = |kind| LlmError::Backend { kind, message: String::new(), retry_after: None };
        for kind in ErrorKind::ALL {
            let is_temporary =
                matches!(kind.as_str(), "timeout" | "idle_timeout" | "upstream_error" | "rate_limited");
            assert_eq!(of(*kind).is_retryable(), is_temporary, "{kind}");
        }
        assert!(LlmError::Timeout { after: Duration::from_secs(45) }.is_retryable());
        assert!(!LlmError::BudgetExhausted { spent: String::new() }.is_retryable());
    }

    #[test]
    fn messages_say_what_happened() {
        let timeout = LlmError::Timeout { after: Duration::from_secs(45) };
        assert_eq!(timeout.to_string(), "timeout: no answer within 45 s");
        let all = AgentError::AllSubQueriesFailed {
            errors: vec!["timeout: no answer within 1.5 s".to_string(), "x".to_string()],
            kind: ErrorKind::Timeout,
        };
        assert_eq!(
            all.to_string(),
            "all sub-queries (2) failed; the first error: timeout: no answer within 1.5 s"
        );
        assert_eq!(
            AgentError::NoFinalResult.to_string(),
            "the stream of updates ended without a final result"
        );
        assert!(all.hint().contains("--timeout"));
    }
}
