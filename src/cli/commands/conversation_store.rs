//! The stored conversations of the current user, for all commands that read or continue them.

use std::time::Duration;

use crate::agents::conversation::{ConversationError, Conversations, HistorySettings};
use crate::cli::Failure;
use crate::run::transcript::runs_dir;
use crate::session::user_config;

/// How long a command waits for a summary of older messages after it has printed the answer.
pub(in crate::cli) const SUMMARY_WAIT: Duration = Duration::from_secs(60);

impl From<ConversationError> for Failure {
    fn from(error: ConversationError) -> Self {
        Failure::usage(error.to_string(), error.hint())
    }
}

pub(in crate::cli) fn conversations() -> Result<Conversations, Failure> {
    let runs = runs_dir().map_err(|error| {
        Failure::usage(error.to_string(), "set XDG_STATE_HOME or HOME to an absolute path")
    })?;
    // If the configuration is invalid, use the defaults, so that the user can still read conversations. Every turn
    // reports the error in the configuration.
    let config = user_config().unwrap_or_default().conversation;
    let history_settings =
        HistorySettings { max_prompt_tokens: config.max_prompt_tokens, summary_model: config.summary_model };
    let conversations = Conversations::at(runs.with_file_name("conversations"));
    Ok(conversations.with_history_settings(history_settings))
}
