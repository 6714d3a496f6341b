//! A conversation as stored: its settings, and its turns, which are reconstructed from the entries of the log.

use std::path::PathBuf;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::message_log::{Ended, Entry, Sent};
use super::model::{Mode, Snapshot, TurnMode, TurnState};
use crate::agents::adapter;
use crate::agents::exec::Sandbox;
use crate::run::outcome::Worktree;

#[derive(Debug, Clone, Default)]
pub struct NewConversation {
    /// The agent's name. Default: the agent whose program `command` names, or else `generic`; `gemini` without a
    /// `command`.
    pub agent: Option<String>,
    /// The agent's program, if it is not on PATH; for `generic`, the command that gets each prompt on its standard
    /// input.
    pub command: Vec<String>,
    /// The model. Default: the agent's default model.
    pub model: Option<String>,
    /// The directory in which the agent works.
    pub cd: PathBuf,
    /// Which files the agent may write.
    pub sandbox: Sandbox,
    /// The title of the conversation. Default: the beginning of the first message.
    pub title: Option<String>,
    /// How the agent learns the earlier turns: from its own session, or from guard's history in the prompt.
    pub mode: Mode,
}

/// The settings of a stored conversation: the content of `conversation.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Settings {
    /// The version of the format of `conversation.json`.
    pub version: u32,
    /// The id of the conversation.
    pub id: String,
    /// The title of the conversation, if the user gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The agent's name.
    pub agent: String,
    /// The agent's program or command, if the user gave one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The model, if the user chose one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The directory in which the agent works.
    pub cd: PathBuf,
    /// Which files the agent may write.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// How the agent learns the earlier turns of the conversation.
    pub mode: Mode,
    /// When the conversation began (RFC 3339, UTC).
    pub created: String,
    /// The id of the conversation that this one was copied from, and the number of the last copied turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<(String, usize)>,
}

impl Settings {
    /// Returns whether the agent's CLI stores the conversation in its own session.
    pub(super) fn is_native(&self) -> bool {
        match self.mode {
            Mode::OwnHistory => false,
            Mode::Native => true,
            Mode::Auto => adapter::named(&self.agent).is_some_and(|adapter| adapter.has_sessions()),
        }
    }

    pub(super) fn turn_mode(&self) -> TurnMode {
        if self.is_native() { TurnMode::Native } else { TurnMode::OwnHistory }
    }

    /// Returns the model that the agent uses, under the name that the agent's CLI uses for it: the user's choice or
    /// else the agent's default. `None` if there is neither.
    pub fn model_in_use(&self) -> Option<String> {
        let adapter = adapter::named(&self.agent);
        let usual = adapter.as_ref().and_then(|adapter| adapter.model.clone());
        let asked = self.model.clone().or(usual)?;
        Some(adapter.and_then(|adapter| adapter.models.get(&asked).cloned()).unwrap_or(asked))
    }
}

/// One turn of a conversation: a message of the user, and the agent's answer or the error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct Turn {
    /// The number of the turn. Numbers begin at 1 and are never used twice.
    pub number: usize,
    /// The user's message.
    pub user: String,
    /// The agent's answer; empty if there is none.
    pub assistant: String,
    /// The id of the turn's run, for `guard log`; empty if no run started.
    pub run_id: String,
    /// When the turn began (RFC 3339, UTC).
    pub started: String,
    /// The duration of the turn in milliseconds; 0 if the turn was interrupted.
    pub duration_ms: u64,
    /// The number of tokens that the model API reported for the turn, input and output together; null if it is not
    /// known.
    pub tokens_reported: Option<u64>,
    /// The estimated number of tokens of the prompt that guard sent to the agent.
    pub estimated_tokens: u64,
    /// Whether the turn succeeded, failed, was cancelled or was interrupted.
    pub state: TurnState,
    /// How many actions of the agent the policy denied.
    pub denials: u64,
    /// How the agent learnt the earlier turns of the conversation.
    pub mode: TurnMode,
    /// Whether the turn is still part of the conversation: false if the turn was cleared or undone.
    pub is_active: bool,
    /// Notes of guard for the user about the turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A stored conversation.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Record {
    /// The settings of the conversation.
    pub settings: Settings,
    /// All turns, oldest first, including those that were cleared or undone.
    pub turns: Vec<Turn>,
    /// The number of lines in the file of the conversation that guard could not parse and left out.
    pub damaged_lines: usize,
    /// Whether a process of guard has the conversation open, so that no other process can add a turn.
    pub is_open: bool,
    #[serde(skip)]
    pub(super) details: Vec<TurnDetails>,
}

/// The data that guard needs to continue after a turn or to undo it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TurnDetails {
    /// The state of the worktree before the turn.
    pub(super) before: Option<Snapshot>,
    pub(super) worktree: Option<Worktree>,
    /// The id of the `agents::exec` session in which the turn ran, to which its worktree belongs; `None` if no id is
    /// stored.
    pub(super) session: Option<String>,
    /// Whether the agent's own session contains the turn and all active turns before it.
    pub(super) is_in_native_session: bool,
}

impl Record {
    pub(super) fn new(settings: Settings, entries: Vec<Entry>, damaged_lines: usize) -> Self {
        let mut record =
            Self { settings, turns: Vec::new(), damaged_lines, is_open: false, details: Vec::new() };
        entries.into_iter().for_each(|entry| record.apply(entry));
        record
    }

    pub(super) fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Sent(sent) => self.begin_turn(sent),
            Entry::Ended(ended) => self.end_turn(*ended),
            Entry::Cleared { .. } => self.turns.iter_mut().for_each(|turn| turn.is_active = false),
            Entry::Undone { turn, .. } => {
                let undone = self.turns.iter_mut().filter(|one| one.number == turn);
                undone.for_each(|turn| turn.is_active = false);
            }
        }
    }

    fn begin_turn(&mut self, sent: Sent) {
        self.turns.push(Turn {
            number: sent.turn,
            user: sent.text,
            assistant: String::new(),
            run_id: String::new(),
            started: sent.time,
            duration_ms: 0,
            tokens_reported: None,
            estimated_tokens: sent.estimated_tokens,
            state: TurnState::Interrupted,
            denials: 0,
            mode: sent.mode,
            is_active: true,
            notes: Vec::new(),
        });
        let details = TurnDetails { before: sent.before, session: sent.session, ..TurnDetails::default() };
        self.details.push(details);
    }

    fn end_turn(&mut self, ended: Ended) {
        let Some(at) = self.turns.iter().rposition(|turn| turn.number == ended.turn) else { return };
        let (turn, details) = (&mut self.turns[at], &mut self.details[at]);
        turn.assistant = ended.text;
        turn.run_id = ended.run_id;
        turn.duration_ms = ended.duration_ms;
        turn.tokens_reported = ended.tokens_reported;
        turn.estimated_tokens = ended.estimated_tokens;
        turn.state = ended.state;
        turn.denials = ended.denials;
        turn.mode = ended.mode;
        turn.notes = ended.notes;
        details.worktree = ended.worktree;
        details.session = ended.session;
        details.is_in_native_session = ended.is_in_native_session;
    }

    /// Returns the turns that were neither cleared nor undone, oldest first.
    pub fn active_turns(&self) -> impl DoubleEndedIterator<Item = &Turn> {
        self.turns.iter().filter(|turn| turn.is_active)
    }

    pub(super) fn next_number(&self) -> usize {
        self.turns.iter().map(|turn| turn.number).max().unwrap_or(0) + 1
    }

    /// Returns the index of the last active turn in `turns` and `details`; `None` if no turn is active.
    pub(super) fn last_active(&self) -> Option<usize> {
        self.turns.iter().rposition(|turn| turn.is_active)
    }

    /// Returns the id of the `agents::exec` session whose worktree the conversation uses. This is the conversation's
    /// id, until the worktree is lost and guard begins a new session.
    pub(super) fn session(&self) -> String {
        let last = self.details.iter().rev().find_map(|details| details.session.clone());
        last.unwrap_or_else(|| self.settings.id.clone())
    }

    /// Returns whether the agent's own session contains exactly the active turns, so that guard can resume it. A turn
    /// that failed before its run began is not in the session. Any other turn may be in it, even if the turn was
    /// cancelled or interrupted, so guard does not resume the session after such a turn was undone.
    pub(super) fn can_resume(&self) -> bool {
        let never_ran =
            |turn: &Turn| matches!(turn.state, TurnState::Failed { .. }) && turn.run_id.is_empty();
        let last = self.turns.iter().rposition(|turn| !never_ran(turn));
        let is_known = |at: usize| self.turns[at].is_active && self.details[at].is_in_native_session;
        self.settings.is_native() && last.is_some_and(is_known)
    }

    /// Returns the title that the user gave or, if there is none, the beginning of the first message. Cuts it to 60
    /// characters.
    pub fn title(&self) -> String {
        let first = || self.turns.first().map(|turn| turn.user.clone()).unwrap_or_default();
        let text = self.settings.title.clone().unwrap_or_else(first);
        let words: Vec<&str> = text.split_whitespace().take(40).collect();
        let mut title: String = words.join(" ").chars().take(61).collect();
        if title.chars().count() > 60 {
            title = title.chars().take(59).chain(['…']).collect();
        }
        title
    }

    /// Returns when the last turn ended or, if it was interrupted, when it began; without turns, when the conversation
    /// began (RFC 3339, UTC).
    pub fn updated(&self) -> String {
        let last = self.turns.iter().map(|turn| {
            let began: Option<Timestamp> = turn.started.parse().ok();
            let took = jiff::SignedDuration::from_millis(i64::try_from(turn.duration_ms).unwrap_or(0));
            began.and_then(|began| began.checked_add(took).ok()).map(|end| end.to_string())
        });
        last.flatten().last().unwrap_or_else(|| self.settings.created.clone())
    }

    /// Returns the worktree that contains the conversation's work; `None` if the last run did not keep it.
    pub fn worktree(&self) -> Option<&Worktree> {
        self.details.iter().rev().find_map(|details| details.worktree.as_ref()).filter(|tree| tree.kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::outcome::ErrorKind;

    fn settings(mode: Mode) -> Settings {
        Settings {
            version: 1,
            id: "0197f0a0-0000-7000-8000-000000000000".to_string(),
            title: None,
            agent: "gemini".to_string(),
            command: Vec::new(),
            model: None,
            cd: "/".into(),
            sandbox: Sandbox::WorkspaceWrite,
            mode,
            created: "2026-11-17T20:00:00Z".to_string(),
            forked_from: None,
        }
    }

    fn sent(turn: usize) -> Entry {
        Entry::Sent(Sent {
            turn,
            time: "2026-11-17T20:00:01Z".to_string(),
            text: format!("message {turn}"),
            mode: TurnMode::Native,
            estimated_tokens: 3,
            session: Some("s".to_string()),
            before: None,
        })
    }

    fn ended(turn: usize) -> Entry {
        Entry::Ended(Box::new(Ended {
            turn,
            time: "2026-11-17T20:00:02Z".to_string(),
            state: TurnState::Done,
            text: "answer".to_string(),
            run_id: "r".to_string(),
            duration_ms: 1000,
            tokens_reported: None,
            estimated_tokens: 3,
            denials: 0,
            mode: TurnMode::Native,
            notes: Vec::new(),
            worktree: None,
            session: Some("s".to_string()),
            is_in_native_session: true,
        }))
    }

    fn never_ran(turn: usize) -> Entry {
        let Entry::Ended(mut entry) = ended(turn) else { panic!("not the end of a turn") };
        let state = TurnState::Failed { error_kind: ErrorKind::InvalidInput, error: "too long".to_string() };
        (entry.state, entry.run_id, entry.is_in_native_session) = (state, String::new(), false);
        Entry::Ended(entry)
    }

    fn undone(turn: usize) -> Entry {
        Entry::Undone { time: "2026-11-17T20:00:03Z".to_string(), turn, saved: None }
    }

    fn cleared() -> Entry {
        Entry::Cleared { time: "2026-11-17T20:00:03Z".to_string() }
    }

    /// guard must resume the agent's own session only if the session contains exactly the active turns.
    #[test]
    fn a_session_is_resumed_only_if_it_knows_the_conversation() {
        for (name, entries, expected) in [
            ("nothing yet", vec![], false),
            ("one turn", vec![sent(1), ended(1)], true),
            ("an interrupted turn", vec![sent(1), ended(1), sent(2)], false),
            ("an undone turn", vec![sent(1), ended(1), sent(2), ended(2), undone(2)], false),
            ("an undone interrupted turn", vec![sent(1), ended(1), sent(2), undone(2)], false),
            ("a turn that never ran", vec![sent(1), ended(1), sent(2), never_ran(2)], true),
            (
                "an undone turn that never ran",
                vec![sent(1), ended(1), sent(2), never_ran(2), undone(2)],
                true,
            ),
            ("cleared", vec![sent(1), ended(1), cleared()], false),
            ("a turn after clearing", vec![sent(1), ended(1), cleared(), sent(2), ended(2)], true),
        ] {
            let record = Record::new(settings(Mode::Auto), entries.clone(), 0);
            assert_eq!(record.can_resume(), expected, "{name}");
            assert!(!Record::new(settings(Mode::OwnHistory), entries, 0).can_resume(), "{name}");
        }
    }

    #[test]
    fn numbers_are_never_used_twice_and_the_session_stays() {
        let entries = vec![sent(1), ended(1), sent(2), ended(2), undone(2)];
        let record = Record::new(settings(Mode::Auto), entries, 0);
        assert_eq!((record.next_number(), record.active_turns().count()), (3, 1));
        assert_eq!(record.session(), "s");
        assert_eq!(Record::new(settings(Mode::Auto), vec![], 0).session(), record.settings.id);
    }

    #[test]
    fn a_title_is_the_beginning_of_the_first_message() {
        let mut record = Record::new(settings(Mode::Auto), vec![sent(1)], 0);
        assert_eq!(record.title(), "message 1");
        record.turns[0].user = format!("a\n\tb {}", "好".repeat(100));
        assert_eq!(record.title().chars().count(), 60);
        assert!(record.title().starts_with("a b 好") && record.title().ends_with('…'));
    }
}
