//! Merges made by hand: when an agent cannot resolve a conflict, the task waits until the user merges in the
//! worktree, and continues from there.

use serde_json::{Map, Value, json};

use super::Next;
use super::document_commit::signature;
use crate::git::TaskTree;
use crate::work::pipeline::context::TaskContext;
use crate::work::pipeline::error::PipelineError;
use crate::work::pipeline::steps::validate_answer::{find_merge_problem, find_work_problem};
use crate::work::pipeline::task::journal_records::{AgentReply, StepSnapshot};
use crate::work::pipeline::task::state::Status;
use crate::work::pipeline::task::task_journal::parse_stored;
use crate::work::pipeline::workflow::model::{FieldType, Role, Step};

/// Stops the task so that the user can resolve a merge conflict. Resets the branch and the worktree to the state
/// before the agent's attempt, and saves what the agent did.
pub(crate) fn hand_over_conflict(
    context: &mut TaskContext<'_>,
    asked: &AgentReply,
    problem: &str,
) -> Result<Next, PipelineError> {
    context.restore(Some(&asked.before))?;
    let (base, worktree) =
        (&context.task.setting.workflow.base, context.task.setting.tree.worktree.display());
    let reason = format!(
        "the agent did not resolve the conflict with '{base}' ({problem}); resolve it in {worktree} (`git -c core.hooksPath=/dev/null merge {base}`, then `commit` with the same option) \
         and run `guard task resume {id}`; if you resume the task without a merge, the agent tries again",
        id = context.task.id
    );
    Ok(Next::Stop(Status::NeedsHuman, reason))
}

/// Looks for a merge that the user made in the worktree since the task stopped. Records the user's name and returns
/// true if there is a usable one. If the task is waiting for the user's merge (`is_awaited`), uncommitted changes and
/// an unusable merge are errors.
pub(crate) fn find_user_merge(
    context: &mut TaskContext<'_>,
    began: Option<&StepSnapshot>,
    is_awaited: bool,
) -> Result<bool, PipelineError> {
    context.task.state.merged_by = None;
    let step = context.task.setting.workflow.step(&context.task.state.step).filter(|step| step.must_merge);
    let (Some(_), Some(began)) = (step, began) else { return Ok(false) };
    let tree = &context.task.setting.tree;
    let tip = tree.tip()?.unwrap_or_default();
    let is_moved = tip != began.tip && !agent_tips(context)?.contains(&tip);
    if !is_moved && !is_awaited {
        return Ok(false);
    }
    let worktree = tree.worktree.display().to_string();
    if let Some(path) = tree.uncommitted()?.first() {
        return Err(PipelineError::Strange(format!(
            "{worktree} has uncommitted changes ({path}); commit the merge there, or undo it with `git merge --abort`"
        )));
    }
    if !is_moved {
        return Ok(false);
    }
    let made = AgentReply { before: began.tip.clone(), after: tip, ..AgentReply::default() };
    if let Some(problem) = find_merge_problem(&context.task, &made)? {
        if !is_awaited {
            return Ok(false);
        }
        return Err(PipelineError::Strange(format!(
            "the merge in {worktree} cannot be used: {problem}; fix and commit it there, then run `guard task resume {}`",
            context.task.id
        )));
    }
    context.task.state.merged_by = Some(TaskTree::current_user(&context.repository)?);
    Ok(true)
}

/// Returns, for each agent call since the current execution of the step began, the commit that the branch pointed to
/// after the call.
fn agent_tips(context: &TaskContext<'_>) -> Result<Vec<String>, PipelineError> {
    let entries = context.journal.entries()?;
    let calls = entries.into_iter().filter(|entry| {
        entry.visit >= context.task.state.visit && matches!(entry.effect.as_str(), "agent" | "repair")
    });
    let asked: Result<Vec<AgentReply>, PipelineError> =
        calls.filter_map(|entry| entry.outcome).map(parse_stored).collect();
    Ok(asked?.into_iter().map(|asked| asked.after).collect())
}

/// Checks the user's merge like an agent's merge. Returns an answer for the step if the merge passes, and otherwise
/// stops the task until the user has repaired the merge.
pub(crate) fn accept_user_merge(
    context: &mut TaskContext<'_>,
    step: &Step,
    role: &Role,
) -> Result<Result<Map<String, Value>, Next>, PipelineError> {
    let tip = context.task.setting.tree.tip()?.ok_or_else(|| context.missing_branch_error())?;
    let before = context.step_snapshot()?.map(|began| began.tip).unwrap_or_default();
    let made = AgentReply { before, after: tip.clone(), ..AgentReply::default() };
    if let Some(problem) = find_work_problem(context, step, role, &made)? {
        let reason = format!(
            "the merge in {} cannot be used: {problem}; fix and commit it there, then run `guard task resume {}`",
            context.task.setting.tree.worktree.display(),
            context.task.id
        );
        return Ok(Err(Next::Stop(Status::NeedsHuman, reason)));
    }
    let mut answer = Map::new();
    for (name, field) in &step.answer {
        let value = match &field.is {
            FieldType::Commit => json!(tip),
            FieldType::OneOf(words) => json!(words.first()),
            FieldType::Number => json!(0),
            FieldType::List => json!([]),
            FieldType::Text | FieldType::Document => continue,
        };
        answer.insert(name.clone(), value);
    }
    let who = context.task.state.merged_by.clone().unwrap_or_default();
    answer.insert("decided_by".to_string(), json!(signature(&who)));
    Ok(Ok(answer))
}
