//! Saves the files of a conversation's worktree before a turn as a commit, so that the turn can be undone.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::model::Snapshot;
use super::record::Record;
use crate::git::{Repository, TaskTree, WorkspaceError, check_trust};
use crate::run::outcome::Worktree;

/// How many of the last turns can be undone.
const MOST_UNDONE: usize = 50;

/// The worktree of a conversation, for git calls that do not trust the files that the agent wrote.
pub(super) struct ConversationTree {
    pub(super) repository: Repository,
    pub(super) tree: TaskTree,
}

impl ConversationTree {
    /// Opens a worktree that a turn left. Returns `None` if the conversation is not in a repository, or if the worktree
    /// no longer exists or is damaged.
    pub(super) fn open(
        record: &Record,
        worktree: &Worktree,
        scratch: &Path,
    ) -> Result<Option<Self>, WorkspaceError> {
        let Some(repository) = Repository::find(&record.settings.cd)? else { return Ok(None) };
        // Another run may have planted a repository here since the last turn. A checkout obeys its configuration.
        check_trust(&repository)?;
        let made = DirBuilder::new().mode(0o700).recursive(true).create(scratch);
        made.map_err(|source| WorkspaceError::Io { what: "create", path: scratch.to_path_buf(), source })?;
        let branch = worktree.branch.as_str();
        let full =
            if branch.starts_with("refs/") { branch.to_string() } else { format!("refs/heads/{branch}") };
        let tree = TaskTree {
            mark: format!("guard conversation {}", record.settings.id),
            common_dir: repository.common_dir.clone(),
            object_format: repository.object_format.clone(),
            branch: full,
            base: worktree.base.clone(),
            worktree: worktree.path.clone().into(),
            scratch: scratch.to_path_buf(),
            excludes: TaskTree::user_excludes(&repository)?,
        };
        Ok(tree.check_worktree().is_ok().then_some(Self { repository, tree }))
    }

    /// Saves the files of the worktree under `refs/guard/conversation-ID/NAME`.
    pub(super) fn save(&self, id: &str, name: &str) -> Result<Snapshot, WorkspaceError> {
        let files = self.tree.save(&format!("conversation-{id}/{name}"))?;
        let tip = self.tree.tip()?.unwrap_or_else(|| self.tree.base.clone());
        Ok(Snapshot { tip, files })
    }

    /// Saves the files of the worktree under `refs/guard/conversation-ID/NAME`, or under `NAME-2`, `NAME-3` and so on
    /// if the name is in use.
    pub(super) fn save_as_new(&self, id: &str, name: &str) -> Result<Snapshot, WorkspaceError> {
        let (mut free, mut number) = (name.to_string(), 1);
        while self.tree.commit_named(&format!("refs/guard/conversation-{id}/{free}"))?.is_some() {
            number += 1;
            free = format!("{name}-{number}");
        }
        self.save(id, &free)
    }

    /// Saves the files before a turn. Deletes the state that was saved `MOST_UNDONE` turns earlier; guard can no longer
    /// undo that earlier turn.
    pub(super) fn save_before(&self, id: &str, turn: usize) -> Result<Snapshot, WorkspaceError> {
        if let Some(old) = turn.checked_sub(MOST_UNDONE).filter(|old| *old > 0) {
            self.tree.forget(&format!("conversation-{id}/before-{old}"))?;
        }
        self.save(id, &format!("before-{turn}"))
    }

    /// Returns whether the branch or the files of the worktree differ from a saved state.
    pub(super) fn differs_from(&self, id: &str, before: &Snapshot) -> Result<bool, WorkspaceError> {
        let now = self.save(id, "now")?;
        let files = |snapshot: &Snapshot| self.tree.tree_named(&snapshot.files);
        let differs = now.tip != before.tip || files(&now)? != files(before)?;
        self.tree.forget(&format!("conversation-{id}/now"))?;
        Ok(differs)
    }

    /// Resets the branch to the commit `tip`, and the files of the worktree to those of the commit `files`. Does not
    /// touch files that git ignores. Fails if one of the commits no longer exists.
    pub(super) fn move_to(&self, tip: &str, files: &str) -> Result<(), WorkspaceError> {
        let missing = |name: &str| WorkspaceError::Lost(format!("the saved state {name} no longer exists"));
        let files = self.tree.commit_named(files)?.ok_or_else(|| missing(files))?;
        let tip = self.tree.commit_named(tip)?.ok_or_else(|| missing(tip))?;
        let now = self.tree.tip()?.ok_or_else(|| missing(&self.tree.branch))?;
        // Check out the commit with the files, then move the branch to `tip` without changing the files, so
        // that changes that were uncommitted before are uncommitted again.
        self.tree.move_branch(&files, &now)?;
        self.tree.check_out(&self.repository)?;
        self.tree.move_branch(&tip, &files)
    }
}
