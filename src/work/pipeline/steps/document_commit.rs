//! The commits that guard makes for a step, with its documents.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::git::StepCommit;
use crate::run::transcript::EventType;
use crate::work::pipeline::context::Task;
use crate::work::pipeline::context::TaskContext;
use crate::work::pipeline::documents;
use crate::work::pipeline::error::PipelineError;
use crate::work::pipeline::steps::agent_call::committed_document;
use crate::work::pipeline::steps::answer;
use crate::work::pipeline::task::state::TaskEvent;
use crate::work::pipeline::workflow::model::Step;

/// A commit that the runner makes, and the files that it changes: each path with the new text, or with `None` if the
/// commit deletes the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DocumentCommit {
    pub(crate) commit: StepCommit,
    pub(crate) changes: Vec<(String, Option<String>)>,
}

/// Returns the path and the new text of each shared document (backlog, lessons) that changes when the answer's items
/// are added. Writes no files.
pub(crate) fn shared_document_changes(
    task: &Task,
    answer: &Map<String, Value>,
) -> Result<Vec<(String, Option<String>)>, PipelineError> {
    let workflow = &task.setting.workflow;
    let mut changes = Vec::new();
    let lists = [
        (workflow.backlog.as_ref(), "Backlog", "backlog_items"),
        (workflow.memory.as_ref().map(|memory| &memory.file), "Agent Memory", "lessons"),
    ];
    for (file, title, key) in lists {
        let (Some(file), items) = (file, answer::list(answer, key)) else { continue };
        if let Some(text) = documents::append_items(&committed_document(task, file)?, title, &items) {
            changes.push((format!("{}/{file}", workflow.documents), Some(text)));
        }
    }
    Ok(changes)
}

/// Prepares a commit that the runner makes on top of the task's branch.
pub(crate) fn step_commit(
    context: &TaskContext<'_>,
    step: &Step,
    subject: &str,
) -> Result<StepCommit, PipelineError> {
    context.task.setting.tree.check_worktree()?;
    let parent = context.task.setting.tree.tip()?.ok_or_else(|| context.missing_branch_error())?;
    let message = format!(
        "{subject}\n\nGuard-Task: {}\nGuard-Step: {} {}\n",
        context.task.id, context.task.state.visit, step.id
    );
    let date = format!("{} +0000", jiff::Timestamp::now().as_second());
    Ok(StepCommit { parent, merges: None, tree: None, message, who: context.task.setting.who.clone(), date })
}

/// Writes or deletes the files, commits them, and returns the id of the commit. Safe to repeat after a crash.
pub(crate) fn commit_changes(
    context: &mut TaskContext<'_>,
    change_set: &DocumentCommit,
) -> Result<String, PipelineError> {
    let tree = context.task.setting.tree.clone();
    for (path, text) in &change_set.changes {
        let place = tree.worktree.join(path);
        let written = match text {
            Some(text) => documents::write(&tree.worktree, path, text),
            None => documents::remove(&tree.worktree, path),
        };
        written.map_err(|source| PipelineError::Io { path: place, source })?;
    }
    let bytes =
        |(path, text): &(String, Option<String>)| (path.clone(), text.clone().map(String::into_bytes));
    let changes: Vec<(String, Option<Vec<u8>>)> = change_set.changes.iter().map(bytes).collect();
    let id = tree.commit(&change_set.commit, &changes)?;
    let subject = change_set.commit.message.lines().next().unwrap_or_default().to_string();
    context.events.send(TaskEvent::new(EventType::TaskCommit, subject, json!({ "commit": id })));
    Ok(id)
}

/// Returns a user's name and address in the form used in documents: `Name <address>`, or `a person` without a name.
pub(crate) fn signature((name, address): &(String, String)) -> String {
    match (name.is_empty(), address.is_empty()) {
        (true, _) => "a person".to_string(),
        (false, true) => name.clone(),
        (false, false) => format!("{name} <{address}>"),
    }
}
