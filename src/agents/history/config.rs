//! The settings of a conversation's history. All have defaults, so a user need not set any.

use serde::{Deserialize, Serialize};

use super::model_limits::limits_of;

/// How large prompts may be, and when a summary replaces older messages. Sizes are in estimated tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryConfig {
    pub max_prompt_tokens: usize,
    /// Compaction starts when the summary and the messages that it does not cover are together larger than
    /// this.
    pub summary_threshold: usize,
    /// How many of the newest messages stay verbatim. Eight messages are four exchanges.
    pub recent_message_count: usize,
    /// Whether guard summarises older messages at all. If not, prompts leave out the messages that do not fit.
    pub enable_compression: bool,
    /// Tokens of the model's context that guard reserves for the answer.
    pub response_reserve: usize,
    /// The model that answers prompts. The size of its context limits the size of prompts.
    pub model: String,
    pub summary_model: String,
    /// Maximum size of a summary without its pinned facts. guard cuts a longer summary.
    pub max_summary_tokens: usize,
    /// Maximum size of the list of pinned facts in a summary: the constraints, paths, names and numbers that guard
    /// copies word for word from the replaced messages.
    pub max_pinned_tokens: usize,
    /// Maximum size of the messages in one prompt for the summary model.
    pub max_summary_input_tokens: usize,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self {
            max_prompt_tokens: 16_000,
            summary_threshold: 8_000,
            recent_message_count: 8,
            enable_compression: true,
            response_reserve: 8_000,
            model: "gemini-3-pro-preview".to_string(),
            summary_model: "gemini-2.5-flash".to_string(),
            max_summary_tokens: 2_000,
            max_pinned_tokens: 600,
            max_summary_input_tokens: 40_000,
        }
    }
}

impl HistoryConfig {
    /// Returns the maximum size of a prompt: the configured maximum, or less if the model's context is too
    /// small for prompt and answer. The reserve for the answer never takes more than half of the context, so
    /// that a small context leaves room for a prompt.
    pub fn prompt_budget(&self) -> usize {
        let safe_limit = limits_of(&self.model).safe_limit;
        self.max_prompt_tokens.min(safe_limit - self.response_reserve.min(safe_limit / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_required_ones() {
        let config = HistoryConfig::default();
        assert_eq!(
            (config.max_prompt_tokens, config.summary_threshold, config.recent_message_count),
            (16_000, 8_000, 8)
        );
        assert!(config.enable_compression);
        assert!((4_000..=8_000).contains(&config.response_reserve));
        assert_eq!(config.summary_model, "gemini-2.5-flash");
        assert_eq!(config.prompt_budget(), 16_000);
    }

    #[test]
    fn a_prompt_leaves_room_for_the_answer_in_the_context_of_the_model() {
        let config = HistoryConfig { max_prompt_tokens: 5_000_000, ..HistoryConfig::default() };
        assert_eq!(config.prompt_budget(), 892_000);
        let greedy = HistoryConfig { response_reserve: usize::MAX, ..config };
        assert_eq!(greedy.prompt_budget(), 450_000);
    }

    #[test]
    fn a_configuration_names_only_what_it_changes() {
        let config: HistoryConfig =
            toml::from_str("max_prompt_tokens = 12_000").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config, HistoryConfig { max_prompt_tokens: 12_000, ..HistoryConfig::default() });
        assert!(toml::from_str::<HistoryConfig>("max_prompt_token = 1").is_err());
    }
}
