//! Removes a finished task: its worktree, its branch if that is merged, and its journal entries. Keeps
//! uncommitted work under `refs/guard/`.

use super::state::{Status, TaskSettings};
use super::task_lock::TaskStore;
use crate::work::pipeline::context::repository;
use crate::work::pipeline::error::PipelineError;
use crate::work::pipeline::task::journal::Journal;

/// The result of [`clean`]: what was removed and what was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cleaned {
    pub id: String,
    pub branch: String,
    /// Whether the branch no longer exists: guard deleted it because it was fully merged into the base, or the whole
    /// repository is gone.
    pub is_branch_gone: bool,
    /// The ref under which uncommitted work was saved; `None` if there was none.
    pub kept: Option<String>,
}

/// Removes what a task left on the machine, except the transcripts of its agents' runs. Fails if the task has neither
/// succeeded nor been cancelled, or if its worktree contains another git repository, whose files would be lost.
pub fn clean(task_store: &TaskStore, journal: &mut Journal, id: &str) -> Result<Cleaned, PipelineError> {
    let found = journal.task(id)?.ok_or_else(|| PipelineError::Unknown(id.to_string()))?;
    let lock = task_store.lock(&found.id)?;
    let row = journal.task(&found.id)?.ok_or_else(|| PipelineError::Unknown(id.to_string()))?;
    if !matches!(Status::parse(&row.status), Some(Status::Succeeded | Status::Cancelled)) {
        return Err(PipelineError::Strange(format!(
            "the task {0} is not finished ({1}); cancel it first with `guard task cancel {0}`",
            row.id, row.status
        )));
    }
    let setting: TaskSettings = serde_json::from_value(row.setting).map_err(|error| {
        PipelineError::Strange(format!("cannot parse the task's settings in the journal: {error}"))
    })?;
    let tree = &setting.tree;
    let mut cleaned = Cleaned { id: row.id.clone(), branch: row.branch, is_branch_gone: true, kept: None };
    // If the repository is gone, so are the branch and the worktree.
    if repository(&setting).is_ok() {
        tree.dispose_killed_runs(&task_store.runs)?;
        if tree.check_worktree().is_ok() && !tree.uncommitted()?.is_empty() {
            // guard cannot save the files of a nested repository, because git does not add them to commits.
            if let Some(nested) = tree.nested_repositories()?.first() {
                return Err(PipelineError::Strange(format!(
                    "{} is a git repository of its own, which `guard task clean` would delete; move it out of the worktree first",
                    tree.worktree.join(nested).display()
                )));
            }
            cleaned.kept = Some(tree.save(&format!("task-{}/{}", row.id, uuid::Uuid::now_v7()))?);
        }
        cleaned.is_branch_gone = tree.remove(&format!("refs/heads/{}", setting.workflow.base))?;
    }
    journal.remove(&row.id)?;
    let directory = task_store.task_directory(&row.id);
    std::fs::remove_dir_all(&directory).map_err(|source| PipelineError::Io { path: directory, source })?;
    drop(lock);
    Ok(cleaned)
}
