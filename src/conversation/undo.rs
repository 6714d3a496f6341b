//! Undoes the last turn: the conversation and the files of the worktree are as they were before it.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::ConversationError;
use super::message_log::Entry;
use super::store::Conversation;
use super::worktree_snapshot::ConversationTree;

/// What became of the files when a turn was undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum FilesUndone {
    /// The branch and the files are as they were before the turn.
    MovedBack {
        /// The ref that has the files as they were after the turn; `guard restore` brings them back.
        saved: String,
    },
    /// The turn left no worktree, so there is nothing to move back.
    Unchanged,
    /// guard cannot move the files back.
    NotPossible {
        /// Why not.
        reason: String,
    },
}

/// The result of undoing a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Undone {
    /// The number of the turn.
    pub turn: usize,
    /// The user's message of that turn.
    pub message: String,
    /// What became of the files.
    pub files: FilesUndone,
}

impl Conversation {
    /// Undoes the last turn. What the turn did stays restorable.
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
        // An interrupted turn has not recorded its worktree; the turn before it has, if there was one.
        let earlier = || self.record.details[..at].iter().rev().find_map(|one| one.worktree.as_ref());
        let Some(worktree) = details.worktree.as_ref().or_else(earlier) else {
            return match Conversation::works_in_place(self) {
                true => {
                    not_possible("the agent works in the directory itself, of which guard keeps no copies")
                }
                false => Ok(FilesUndone::Unchanged),
            };
        };
        let scratch = self.directory.join("scratch");
        let Some(tree) = ConversationTree::open(&self.record, worktree, &scratch)? else {
            return match &details.before {
                Some(before) => not_possible(&format!(
                    "the worktree {} no longer exists; {} has the files from before the turn",
                    worktree.path, before.files
                )),
                None => Ok(FilesUndone::Unchanged),
            };
        };
        let saved = tree.save(&self.record.settings.id, &format!("undone-{number}"))?;
        match &details.before {
            Some(before) => tree.move_to(&before.tip, &before.files)?,
            None => tree.move_to(&worktree.base, &worktree.base)?,
        }
        Ok(FilesUndone::MovedBack { saved: saved.files })
    }

    /// Whether the agent changes the directory itself: it is no repository.
    fn works_in_place(&self) -> bool {
        let settings = &self.record.settings;
        let is_in_repository = settings.cd.ancestors().any(|directory| directory.join(".git").exists());
        settings.sandbox == crate::agent_exec::Sandbox::WorkspaceWrite && !is_in_repository
    }
}
