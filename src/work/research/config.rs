//! Settings that all research agents share ([`LlmConfig`]), and those of deep research ([`ResearchConfig`]).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::AgentError;

/// The model that guard uses if the user chooses none and the agent is Gemini.
pub const MODEL: &str = "gemini-3-flash-preview";

/// Returns the model to use if the user names none: [`MODEL`] for Gemini, which is also the default agent (`None`), and
/// an empty text for every other agent. An empty text leaves the choice to the agent's CLI, which alone knows the
/// models of its vendor.
pub fn default_model(agent: Option<&str>) -> &'static str {
    if agent.is_none_or(|agent| agent == "gemini") { MODEL } else { "" }
}

/// Settings for requests to a model, shared by all research agents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct LlmConfig {
    /// The name of the model; an empty name leaves the choice to the agent's CLI.
    pub model: String,
    /// The time limit for one attempt of a request. Each retry has the same limit.
    pub timeout: Duration,
    /// How often the client retries a request after a failure that may be temporary.
    pub max_retries: u32,
    /// The delay before the first retry. It doubles with every further retry, up to `longest_delay`.
    pub first_delay: Duration,
    /// The maximum delay before a retry. If the API demands a longer delay, the client does not retry.
    pub longest_delay: Duration,
    /// The sampling temperature; `None` means the model's default. A backend that cannot set the temperature logs a
    /// warning and ignores it.
    pub temperature: Option<f32>,
    /// The limit on the tokens of all requests together, input and output; `None` means no limit.
    pub max_tokens: Option<u64>,
    /// The limit on the cost of all requests together, by the prices in `config.toml`; `None` means no limit.
    pub max_cost: Option<f64>,
    /// The fraction of a limit, from 0 to 1, at which the client warns.
    pub warn_at: f64,
}

impl Default for LlmConfig {
    fn default() -> Self {
        Self {
            model: MODEL.to_string(),
            timeout: Duration::from_secs(300),
            max_retries: 1,
            first_delay: Duration::from_millis(500),
            longest_delay: Duration::from_secs(2),
            temperature: None,
            max_tokens: None,
            max_cost: None,
            warn_at: 0.8,
        }
    }
}

/// Settings of [`DeepResearchAgent`](super::DeepResearchAgent).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ResearchConfig {
    /// The maximum number of sub-queries in one round.
    pub max_queries: usize,
    /// The maximum number of sub-queries that run at the same time.
    pub max_parallel: usize,
    /// The maximum number of rounds. The first round answers the planned sub-queries; each further round adds
    /// sub-queries about what is still missing.
    pub depth: usize,
    /// The maximum number of bytes of each sub-query's answer in the prompts for the synthesis and for a further round.
    pub max_finding_bytes: usize,
}

impl ResearchConfig {
    /// The largest accepted value of `max_queries` and of `max_parallel`.
    pub const MOST_QUERIES: usize = 64;
    /// The largest accepted value of `depth`.
    pub const MOST_ROUNDS: usize = 5;

    /// Fails if `max_queries`, `max_parallel` or `depth` is 0 or larger than the largest accepted value.
    pub fn check(&self) -> Result<(), AgentError> {
        let bad = |problem: String| Err(AgentError::InvalidInput { problem });
        for (name, value, most) in [
            ("max_queries", self.max_queries, Self::MOST_QUERIES),
            ("max_parallel", self.max_parallel, Self::MOST_QUERIES),
            ("depth", self.depth, Self::MOST_ROUNDS),
        ] {
            if value == 0 || value > most {
                return bad(format!("`{name}` is {value}; it must be from 1 to {most}"));
            }
        }
        Ok(())
    }
}

impl Default for ResearchConfig {
    fn default() -> Self {
        Self { max_queries: 5, max_parallel: 16, depth: 1, max_finding_bytes: 32 << 10 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_sensible_and_stored_settings_of_another_version_are_read() {
        assert_eq!(ResearchConfig::default().check(), Ok(()));
        assert_eq!(LlmConfig::default().model, "gemini-3-flash-preview");
        let read: ResearchConfig = serde_json::from_str(r#"{"max_queries": 7, "colour": "red"}"#)
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((read.max_queries, read.depth), (7, 1));
        for wrong in [
            ResearchConfig { max_queries: 0, ..ResearchConfig::default() },
            ResearchConfig { depth: 6, ..ResearchConfig::default() },
            ResearchConfig { max_parallel: 65, ..ResearchConfig::default() },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }
}
