//! Builds the prompts that contain a conversation's history, from its stored turns.

use std::path::Path;
use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::Serialize;

use super::model::{TurnMode, TurnState};
use super::record::{Record, Settings, Turn};
use super::store::{Conversation, Conversations};
use super::{ConversationError, summary_files};
use crate::agents::adapter;
use crate::agents::history::{
    GeminiHistoryManager, HistoryConfig, Message, MessageForm, Role, SizeWarning, SummarySource,
    estimate_tokens, limits_of,
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ContextUse {
    /// The estimated number of tokens of the next prompt without its message or, if the agent's CLI stores the
    /// conversation in its own session, of all messages.
    pub estimated_tokens: usize,
    /// The maximum number of tokens of a prompt or, with the agent's own session, the part of the model's context that
    /// guard considers safe ([`safe_limit`](crate::agents::history::ModelLimits::safe_limit)).
    pub limit: usize,
    /// Whether the agent knows the earlier turns from its own session or from the prompt.
    pub mode: TurnMode,
}

/// What the next prompt contains of the conversation's history, and what it leaves out.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct NextPrompt {
    /// The summary that replaces the oldest messages; null if there is none.
    pub summary: Option<ShownSummary>,
    /// The messages that the prompt does not contain word for word, oldest first.
    pub left_out: Vec<LeftOutMessage>,
    /// Paths, names, numbers and constraints in the summarised messages that neither the text of the summary nor its
    /// pinned facts contain.
    pub lost_facts: Vec<String>,
    /// The estimated number of tokens of all messages.
    pub all_tokens: usize,
    /// The estimated number of tokens of the next prompt, without the user's new message.
    pub prompt_tokens: usize,
    /// The maximum size of a prompt, in tokens.
    pub limit: usize,
}

/// The summary that prompts contain instead of the oldest messages.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ShownSummary {
    /// How many of the oldest messages the summary replaces.
    pub covers: usize,
    /// The text of the summary.
    pub text: String,
    /// Facts copied word for word from the replaced messages: the user's constraints, paths, names, numbers.
    pub pinned: Vec<String>,
    /// The model that wrote the summary, or `truncation` if no model could write one.
    pub made_by: String,
}

/// A message that the next prompt does not contain word for word.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct LeftOutMessage {
    /// The number of the turn that the message belongs to.
    pub turn: usize,
    /// Who wrote the message: `user` or `assistant`.
    pub role: &'static str,
    /// Whether the summary describes the message.
    pub is_in_summary: bool,
    /// Whether the prompt contains the beginning and the end of the message, without its middle.
    pub is_cut: bool,
    /// The text of the message.
    pub text: String,
}

/// The prompt of a turn: the user's message, with the history unless the agent's own session already contains it.
pub(super) struct BuiltPrompt {
    pub(super) text: String,
    pub(super) estimated_tokens: usize,
    /// The estimated number of tokens that the model receives: those of the prompt or, if the agent has its own
    /// session, of the new message and all earlier ones.
    pub(super) context_tokens: usize,
    pub(super) notes: Vec<String>,
}

/// Returns the time since the Unix epoch.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The user's settings for prompts that contain the history of a conversation. `None` means the default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistorySettings {
    /// The maximum size of a prompt, in estimated tokens.
    pub max_prompt_tokens: Option<usize>,
    /// The model that summarises conversations whose agent is Gemini.
    pub summary_model: Option<String>,
}

impl HistorySettings {
    /// Returns the model that summarises a conversation with these settings; `None` means the default model of the
    /// agent's CLI. The user's setting names a model of Gemini, which other agents do not know.
    pub(super) fn summary_model(&self, settings: &Settings) -> Option<String> {
        let configured = self.summary_model.clone().filter(|_| settings.agent == "gemini");
        configured.or_else(|| adapter::named(&settings.agent).and_then(|adapter| adapter.summary_model))
    }

    /// Returns the configuration of the history. The agent's adapter determines the models and the longest prompt.
    fn config_of(&self, settings: &Settings) -> HistoryConfig {
        let defaults = HistoryConfig::default();
        let longest = adapter::named(&settings.agent).map_or(usize::MAX, |adapter| adapter.longest_prompt());
        // An estimated token stands for at most four bytes, so a prompt of `longest / 4` tokens has at most `longest`
        // bytes.
        let most_tokens = longest / 4;
        let max_prompt_tokens = self.max_prompt_tokens.unwrap_or(defaults.max_prompt_tokens).min(most_tokens);
        HistoryConfig {
            model: settings.model_in_use().unwrap_or_else(|| settings.agent.clone()),
            summary_model: self.summary_model(settings).unwrap_or_else(|| settings.agent.clone()),
            max_prompt_tokens,
            // The older messages must be summarised before they no longer fit.
            summary_threshold: defaults.summary_threshold.min(max_prompt_tokens / 2),
            max_summary_input_tokens: defaults.max_summary_input_tokens.min(most_tokens),
            ..defaults
        }
    }
}

/// Returns the two messages of a turn. If the agent did not finish its answer, a remark that says so replaces the
/// answer or follows the part that exists. Without the remark, the agent could mistake the user's next message for a
/// part of this one.
fn messages_of(turn: &Turn) -> [Message; 2] {
    let remark = match &turn.state {
        TurnState::Done => None,
        TurnState::Failed { error_kind, .. } => {
            Some(format!("[The agent did not finish its answer to the user's message: {error_kind}.]"))
        }
        state => Some(format!(
            "[The agent did not finish its answer to the user's message: the turn was {}.]",
            state.name()
        )),
    };
    let said = turn.assistant.trim_end();
    let answer = match remark {
        None => said.to_string(),
        Some(remark) if said.is_empty() => remark,
        Some(remark) => format!("{said}\n{remark}"),
    };
    [Message::new(Role::User, turn.user.clone()), Message::new(Role::Assistant, answer)]
}

/// Returns the history of these turns, with the stored summary that covers the most of their messages.
fn history_of<'t>(
    settings: &Settings,
    history_settings: &HistorySettings,
    turns: impl Iterator<Item = &'t Turn>,
    directory: &Path,
) -> GeminiHistoryManager {
    let messages: Vec<Message> = turns.flat_map(messages_of).collect();
    let summary = summary_files::best(directory, &messages);
    let history = GeminiHistoryManager::from_parts(history_settings.config_of(settings), messages, summary);
    let mut history = history.with_state(Default::default(), summary_files::breaker(directory));
    history.set_time(now());
    history
}

/// Returns the estimated size of the next prompt, without its message; 0 if the history has no messages.
fn prompt_tokens(history: &GeminiHistoryManager) -> usize {
    if history.message_count() == 0 { 0 } else { history.build_prompt("").estimated_tokens }
}

impl Conversation {
    /// Returns the active turns before the turn that is in progress.
    pub(super) fn earlier_turns(&self) -> impl Iterator<Item = &Turn> {
        self.record.active_turns().filter(|turn| Some(turn.number) != self.running)
    }

    pub(super) fn history(&self) -> GeminiHistoryManager {
        history_of(&self.record.settings, &self.history_settings, self.earlier_turns(), &self.directory)
    }

    /// Builds the prompt for a message, with at most `max_tokens`, or with the default limit if that is `None`.
    pub(super) fn build_prompt(&self, message: &str, max_tokens: Option<usize>) -> BuiltPrompt {
        let history = self.history();
        let built = match max_tokens {
            Some(most) => history.build_prompt_within(message, most),
            None => history.build_prompt(message),
        };
        let notes = built.warning.iter().map(ToString::to_string).collect();
        let estimated_tokens = built.estimated_tokens;
        let context_tokens = if self.record.settings.is_native() {
            history.estimated_total_tokens() + estimate_tokens(message)
        } else {
            estimated_tokens
        };
        BuiltPrompt { text: built.prompt_text, estimated_tokens, context_tokens, notes }
    }

    /// Returns the bare message as the prompt for an agent whose own session contains the earlier messages.
    pub(super) fn bare_prompt(&self, message: &str) -> BuiltPrompt {
        let history = self.history();
        let estimated_tokens = estimate_tokens(message);
        let context_tokens = history.estimated_total_tokens() + estimated_tokens;
        let warning = SizeWarning::about_session(context_tokens, &limits_of(&history.config().model));
        let notes = warning.iter().map(ToString::to_string).collect();
        BuiltPrompt { text: message.to_string(), estimated_tokens, context_tokens, notes }
    }

    pub fn context_use(&self) -> ContextUse {
        let (history, mode) = (self.history(), self.record.settings.turn_mode());
        match mode {
            TurnMode::Native => ContextUse {
                estimated_tokens: history.estimated_total_tokens(),
                limit: limits_of(&history.config().model).safe_limit,
                mode,
            },
            TurnMode::OwnHistory => ContextUse {
                estimated_tokens: prompt_tokens(&history),
                limit: history.config().prompt_budget(),
                mode,
            },
        }
    }
}

impl Conversations {
    /// Returns what the next prompt of a conversation contains of its history, and what it leaves out.
    pub fn next_prompt(&self, text: &str) -> Result<NextPrompt, ConversationError> {
        let record = self.read(text)?;
        let directory = self.directory(&record.settings.id);
        let turns = record.active_turns();
        let history = history_of(&record.settings, self.history_settings(), turns, &directory);
        Ok(next_prompt(&record, &history))
    }
}

fn next_prompt(record: &Record, history: &GeminiHistoryManager) -> NextPrompt {
    let summary = history.summary();
    let built = history.build_prompt("");
    let turns = record.active_turns().flat_map(|turn| [(turn, "user"), (turn, "assistant")]);
    let messages = turns.zip(history.messages()).zip(&built.forms);
    let left_out = messages.filter(|(_, form)| **form != MessageForm::Verbatim);
    let left_out = left_out.map(|(((turn, role), message), form)| LeftOutMessage {
        turn: turn.number,
        role,
        is_in_summary: *form == MessageForm::InSummary,
        is_cut: *form == MessageForm::Cut,
        text: message.content.clone(),
    });
    NextPrompt {
        summary: summary.map(|summary| ShownSummary {
            covers: summary.covers,
            text: summary.text.clone(),
            pinned: summary.pinned.clone(),
            made_by: made_by(&summary.made_by),
        }),
        left_out: left_out.collect(),
        lost_facts: history.dropped().map(|dropped| dropped.lost_facts).unwrap_or_default(),
        all_tokens: history.estimated_total_tokens(),
        prompt_tokens: prompt_tokens(history),
        limit: history.config().prompt_budget(),
    }
}

/// Returns the name of the model that wrote a summary, or `truncation` if no model did.
pub(super) fn made_by(source: &SummarySource) -> String {
    match source {
        SummarySource::Model(model) => model.clone(),
        SummarySource::Truncation => "truncation".to_string(),
    }
}
