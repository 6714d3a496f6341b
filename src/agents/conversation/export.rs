//! Exports a conversation as Markdown or JSON, and converts turns to the log entries of a copy.

use std::fmt::Write as _;

use super::message_log::{Ended, Entry, Sent};
use super::model::TurnState;
use super::record::{Record, Turn};

/// The format of an exported conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Markdown,
    /// One JSON object.
    Json,
}

/// Returns a Markdown code fence that is longer than every run of backticks in the text.
fn fence(text: &str) -> String {
    let longest = text.split(|character| character != '`').map(str::len).max().unwrap_or(0);
    "`".repeat(longest.max(2) + 1)
}

impl Record {
    /// Returns the active turns of the conversation as a document in the given format.
    pub fn export(&self, format: Format) -> String {
        match format {
            Format::Markdown => self.markdown(),
            Format::Json => {
                let turns: Vec<&Turn> = self.active_turns().collect();
                let value = serde_json::json!({
                    "settings": self.settings, "title": self.title(), "turns": turns,
                });
                format!("{value:#}\n")
            }
        }
    }

    fn markdown(&self) -> String {
        let settings = &self.settings;
        let mut text = format!("# {}\n\n", self.title());
        let model = settings.model_in_use().map(|model| format!(" ({model})")).unwrap_or_default();
        let _ = writeln!(
            text,
            "Conversation {} with {}{model}, started {}.",
            settings.id, settings.agent, settings.created
        );
        for turn in self.active_turns() {
            let _ = writeln!(text, "\n## Turn {}\n\n### User\n", turn.number);
            // Put the user's message into a code block, because it is plain text. The agent's answer is
            // Markdown already.
            let fence = fence(&turn.user);
            let _ = writeln!(text, "{fence}text\n{}\n{fence}\n\n### Assistant\n", turn.user.trim_end());
            match &turn.state {
                TurnState::Done => {}
                TurnState::Failed { error_kind, error } => {
                    let _ = writeln!(text, "*The turn failed ({error_kind}): {error}*\n");
                }
                state => {
                    let _ = writeln!(text, "*The turn was {}.*\n", state.name());
                }
            }
            let _ = writeln!(text, "{}", turn.assistant.trim_end());
        }
        text
    }
}

/// Returns the log entries that store a turn in a copy of the conversation. The copy has no worktree and no session
/// yet. An interrupted turn has no entry for its end.
pub(super) fn entries(turn: &Turn) -> Vec<Entry> {
    let sent = Entry::Sent(Sent {
        turn: turn.number,
        time: turn.started.clone(),
        text: turn.user.clone(),
        mode: turn.mode,
        estimated_tokens: turn.estimated_tokens,
        session: None,
        before: None,
    });
    if turn.state == TurnState::Interrupted {
        return vec![sent];
    }
    let ended = Entry::Ended(Box::new(Ended {
        turn: turn.number,
        time: turn.started.clone(),
        state: turn.state.clone(),
        text: turn.assistant.clone(),
        run_id: turn.run_id.clone(),
        duration_ms: turn.duration_ms,
        tokens_reported: turn.tokens_reported,
        estimated_tokens: turn.estimated_tokens,
        denials: turn.denials,
        mode: turn.mode,
        notes: turn.notes.clone(),
        worktree: None,
        session: None,
        is_in_native_session: false,
    }));
    vec![sent, ended]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_longer_than_what_it_encloses() {
        for (text, expected) in [("", "```"), ("a `b`", "```"), ("```", "````"), ("x ````` y", "``````")] {
            assert_eq!(fence(text), expected, "{text:?}");
        }
    }
}
