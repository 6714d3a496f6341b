//! Warnings for the user about the size of a prompt or a conversation.

use serde::{Deserialize, Serialize};

use super::model_limits::ModelLimits;

/// Why a prompt does not contain everything that the user may expect, or why its answer may be slow. Sizes are
/// estimated tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SizeWarning {
    /// The new message does not fit into a prompt, even without the history.
    #[error(
        "the message has about {tokens} tokens, but a prompt may have at most {budget}, so guard left out its middle; put the text into a file and name the file instead"
    )]
    CurrentMessageCut { tokens: usize, budget: usize },
    #[error(
        "the newest messages are too large for the prompt, so guard left out the middle of {messages} of them"
    )]
    RecentMessagesCut { messages: usize },
    #[error(
        "the oldest messages ({messages}) are neither in the prompt nor in its summary; \
         state again what is still important, or clear the history"
    )]
    MessagesLeftOut { messages: usize },
    /// The prompt is larger than the target size of the model, below which it answers quickly.
    #[error("the prompt has about {tokens} tokens; answers become slow above {target} tokens")]
    PromptLarge { tokens: usize, target: usize },
    #[error(
        "the prompt has about {tokens} tokens; with more than {warning} tokens an answer takes 30 seconds or more"
    )]
    PromptSlow { tokens: usize, warning: usize },
    #[error(
        "the prompt has about {tokens} tokens, more than the practical maximum of {maximum}: \
         the model will probably time out; lower max_prompt_tokens"
    )]
    PromptTooLarge { tokens: usize, maximum: usize },
    /// The prompt is small enough, but the conversation has become long and the prompt contains most of it only
    /// as a summary.
    #[error(
        "the conversation has about {tokens} tokens, and the model sees most of it only as a summary; \
         start a new conversation for more exact answers"
    )]
    ConversationLong {
        /// The size of all messages of the conversation.
        tokens: usize,
    },
    /// The agent's own session is larger than the target size of the model, below which it answers quickly.
    #[error(
        "the agent's own session has about {tokens} tokens; answers become slow above {target} tokens; \
         if the agent no longer needs the earlier messages, clear the history or start a new conversation"
    )]
    SessionLarge {
        /// The size of all messages of the session, including the new one.
        tokens: usize,
        target: usize,
    },
    #[error(
        "the agent's own session has about {tokens} tokens; with more than {warning} tokens an answer takes \
         30 seconds or more; clear the history, or start a new conversation"
    )]
    SessionSlow {
        /// The size of all messages of the session, including the new one.
        tokens: usize,
        warning: usize,
    },
    #[error(
        "the agent's own session has about {tokens} tokens, more than the practical maximum of {maximum}: \
         the model will probably time out; clear the history, or start a new conversation"
    )]
    SessionTooLarge {
        /// The size of all messages of the session, including the new one.
        tokens: usize,
        maximum: usize,
    },
}

impl SizeWarning {
    /// Returns the warning about the size of a prompt and its conversation; `None` if both are small enough.
    pub(super) fn about(prompt: usize, conversation: usize, limits: &ModelLimits) -> Option<Self> {
        if prompt > limits.maximum {
            Some(Self::PromptTooLarge { tokens: prompt, maximum: limits.maximum })
        } else if prompt > limits.warning {
            Some(Self::PromptSlow { tokens: prompt, warning: limits.warning })
        } else if prompt > limits.target {
            Some(Self::PromptLarge { tokens: prompt, target: limits.target })
        } else if conversation > limits.maximum {
            Some(Self::ConversationLong { tokens: conversation })
        } else {
            None
        }
    }

    /// Returns the warning about the size of the agent's own session, of which the model receives every message; `None`
    /// if the session is small enough.
    pub fn about_session(tokens: usize, limits: &ModelLimits) -> Option<Self> {
        if tokens > limits.maximum {
            Some(Self::SessionTooLarge { tokens, maximum: limits.maximum })
        } else if tokens > limits.warning {
            Some(Self::SessionSlow { tokens, warning: limits.warning })
        } else if tokens > limits.target {
            Some(Self::SessionLarge { tokens, target: limits.target })
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_limit_that_is_exceeded_decides() {
        let limits = ModelLimits::default();
        let about = |prompt, conversation| SizeWarning::about(prompt, conversation, &limits);
        assert_eq!(about(16_000, 60_000), None);
        assert_eq!(about(16_000, 60_001), Some(SizeWarning::ConversationLong { tokens: 60_001 }));
        assert_eq!(about(16_001, 0), Some(SizeWarning::PromptLarge { tokens: 16_001, target: 16_000 }));
        assert_eq!(about(40_000, 0), Some(SizeWarning::PromptLarge { tokens: 40_000, target: 16_000 }));
        assert_eq!(about(40_001, 0), Some(SizeWarning::PromptSlow { tokens: 40_001, warning: 40_000 }));
        assert_eq!(about(60_001, 0), Some(SizeWarning::PromptTooLarge { tokens: 60_001, maximum: 60_000 }));
    }

    #[test]
    fn a_session_has_the_limits_of_a_prompt() {
        let about = |tokens| SizeWarning::about_session(tokens, &ModelLimits::default());
        assert_eq!(about(16_000), None);
        assert_eq!(about(16_001), Some(SizeWarning::SessionLarge { tokens: 16_001, target: 16_000 }));
        assert_eq!(about(40_001), Some(SizeWarning::SessionSlow { tokens: 40_001, warning: 40_000 }));
        assert_eq!(about(60_001), Some(SizeWarning::SessionTooLarge { tokens: 60_001, maximum: 60_000 }));
    }
}
