//! Undoes the last turn: restores the conversation and the files of the worktree to their state before the
//! turn.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::ConversationError;
use super::message_log::Entry;
use super::model::TurnState;
use super::store::Conversation;
use super::worktree_snapshot::ConversationTree;

/// What guard did with the files when it undid a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum FilesUndone {
    /// guard restored the branch and the files to their state before the turn.
    MovedBack {
        /// The git ref under which guard saved the files as they were after the turn; `guard restore` brings them back.
        saved: String,
    },
    /// The turn left no worktree, so there are no files to restore.
    Unchanged,
    /// guard cannot restore the files.
    NotPossible {
        /// Why guard cannot restore the files.
        reason: String,
    },
}

/// The result of undoing a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Undone {
    /// The number of the turn that was undone.
    pub turn: usize,
    /// The user's message of the turn that was undone.
    pub message: String,
    /// What guard did with the files.
    pub files: FilesUndone,
}

impl Conversation {
    /// Undoes the last active turn. Saves the files as the turn left them, so that the user can restore them. If guard
    /// cannot restore the earlier files, it undoes only the messages, and the result says why.
    pub fn undo_turn(&mut self) -> Result<Undone, ConversationError> {
        let Some(last) = self.record.last_active() else {
            return Err(ConversationError::Nothing("there is no turn to undo"));
        };
        let (number, message) = (self.record.turns[last].number, self.record.turns[last].user.clone());
        let files = self.move_files_back(last)?;
        let saved = match &files {
            FilesUndone::MovedBack { saved } => Some(saved.clone()),
            _ => None,
        };
        self.store(Entry::Undone { time: Timestamp::now().to_string(), turn: number, saved })?;
        Ok(Undone { turn: number, message, files })
    }

    fn move_files_back(&self, at: usize) -> Result<FilesUndone, ConversationError> {
        let (details, number) = (&self.record.details[at], self.record.turns[at].number);
        let not_possible = |reason: &str| Ok(FilesUndone::NotPossible { reason: reason.to_string() });
        // An interrupted turn has not recorded its worktree, so use the worktree of the last earlier turn that recorded
        // one.
        let earlier = || self.record.details[..at].iter().rev().find_map(|one| one.worktree.as_ref());
        let Some(worktree) = details.worktree.as_ref().or_else(earlier) else {
            return match Conversation::works_in_place(self) {
                true => not_possible(
                    "the agent changes the conversation's directory itself; in that directory, `guard undo` undoes what its last run changed",
                ),
                false if self.record.turns[at].state == TurnState::Interrupted => not_possible(
                    "guard was interrupted before it recorded the turn's worktree; `guard worktree list` shows it",
                ),
                false => Ok(FilesUndone::Unchanged),
            };
        };
        let scratch = self.directory.join("scratch");
        let Some(tree) = ConversationTree::open(&self.record, worktree, &scratch)? else {
            return match &details.before {
                Some(before) => not_possible(&format!(
                    "the worktree {} no longer exists; the git ref {} has the files from before the turn",
                    worktree.path, before.files
                )),
                None => Ok(FilesUndone::Unchanged),
            };
        };
        if details.before.is_none() && self.had_files_before(at) {
            return not_possible("guard has no copy of the files from before the turn");
        }
        // An undo that was interrupted may have saved the files of the turn already: do not overwrite them.
        let saved = tree.save_as_new(&self.record.settings.id, &format!("undone-{number}"))?;
        match &details.before {
            Some(before) => tree.move_to(&before.tip, &before.files)?,
            None => tree.move_to(&worktree.base, &worktree.base)?,
        }
        Ok(FilesUndone::MovedBack { saved: saved.files })
    }

    /// Returns whether a turn before the one with the index `at` may have left files in the worktree.
    fn had_files_before(&self, at: usize) -> bool {
        let copied = self.record.settings.forked_from.as_ref().map_or(0, |(_, last)| *last);
        let turns = self.record.turns[..at].iter().zip(&self.record.details[..at]).rev();
        let mut own_turns = turns.filter(|(turn, _)| turn.number > copied);
        let left_files = own_turns.find_map(|(turn, details)| match &details.worktree {
            Some(worktree) => Some(worktree.kept),
            None => (turn.state == TurnState::Interrupted).then_some(true),
        });
        left_files.unwrap_or(false)
    }

    /// Returns whether the agent changes the user's directory itself, because it is not in a git repository.
    fn works_in_place(&self) -> bool {
        let settings = &self.record.settings;
        let is_in_repository = settings.cd.ancestors().any(|directory| directory.join(".git").exists());
        settings.sandbox == crate::agents::exec::Sandbox::WorkspaceWrite && !is_in_repository
    }
}
