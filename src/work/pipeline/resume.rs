//! Resumes a task: restores the state in which it stopped, decides which effects to repeat, and detects what the user
//! changed or removed in the meantime.

use std::collections::BTreeMap;

use super::task::journal_records::{AgentReply, StepSnapshot};
use super::task::state::{RUNNER, State, Status};
use crate::work::pipeline::context::TaskContext;
use crate::work::pipeline::error::PipelineError;
use crate::work::pipeline::steps::manual_merge::find_user_merge;
use crate::work::pipeline::steps::research_step::discard_journals;
use crate::work::pipeline::task::budget::add_usage;
use crate::work::pipeline::task::task_journal::parse_stored;

/// True if an agent call of the current step failed and the runner died before it could record that the step failed,
/// for example because the disk was full. If so, adds the usage of the step's calls, which has not been counted yet.
fn died_after_failed_call(context: &mut TaskContext<'_>, status: Status) -> Result<bool, PipelineError> {
    if !matches!(status, Status::Running | Status::Interrupted) {
        return Ok(false);
    }
    let (visit, step) = (context.task.state.visit, context.task.state.step.clone());
    let entries = context.journal.entries()?;
    let calls = entries
        .iter()
        .filter(|entry| entry.visit == visit && matches!(entry.effect.as_str(), "agent" | "repair"));
    let asked: Vec<AgentReply> =
        calls.filter_map(|entry| entry.outcome.clone()).map(parse_stored).collect::<Result<_, _>>()?;
    let has_failed = asked.iter().any(|asked| asked.error.is_some());
    if has_failed {
        asked.iter().for_each(|asked| add_usage(context, &step, asked.used));
    }
    Ok(has_failed)
}

/// Prepares a stopped task for its next step, depending on how it stopped and what the user has changed. Fails if the
/// task has succeeded or was cancelled.
pub(crate) fn prepare_resume(context: &mut TaskContext<'_>, status: Status) -> Result<(), PipelineError> {
    let status = if died_after_failed_call(context, status)? { Status::Failed } else { status };
    let began = context.step_snapshot()?;
    let is_stopped = matches!(status, Status::NeedsHuman | Status::Failed | Status::BudgetExhausted);
    let is_awaited = status == Status::NeedsHuman;
    let is_merged_by_hand = is_stopped && find_user_merge(context, began.as_ref(), is_awaited)?;
    let is_unsolved =
        context.task.setting.workflow.step(&context.task.state.step).is_some_and(|step| step.must_merge);
    match status {
        Status::Succeeded | Status::Cancelled => {
            let how = if status == Status::Succeeded { "has succeeded" } else { "was cancelled" };
            return Err(PipelineError::Strange(format!("the task {how} and cannot be resumed")));
        }
        Status::Failed | Status::BudgetExhausted | Status::NeedsHuman if is_merged_by_hand => {
            context.task.state.since = BTreeMap::from([(context.task.state.step.clone(), 1)]);
        }
        // The step must merge and the user has not merged by hand, so the agent tries again.
        Status::NeedsHuman if is_unsolved && began.is_some() => {
            context.task.state.since = BTreeMap::from([(context.task.state.step.clone(), 1)]);
            context.journal.delete_entries_from(context.task.state.visit, false)?;
        }
        // Try the step again from its beginning.
        Status::Failed | Status::BudgetExhausted => {
            let visit = context.task.state.visit;
            // Keep the user's decision at the gate, but discard what the step did.
            context.restore(began.as_ref().map(|began| began.tip.as_str()))?;
            context.journal.delete_entries_from(visit, false)?;
            context.task.state.warned.clear();
        }
        // The user has resumed the task in spite of the problem, so count the rounds from this one again.
        Status::NeedsHuman => {
            context.task.state.since = BTreeMap::from([(context.task.state.step.clone(), 1)]);
            context.task.state.said.clear();
        }
        // The replay of the step counts the usage of its calls again, so start from the usage at the beginning of the
        // step.
        Status::Interrupted => {
            if let Some(began) = began {
                context.task.state.used = began.state.used;
                context.task.state.used_by = began.state.used_by;
            }
        }
        _ => {}
    }
    context.announce(RUNNER, format!("Resuming the task at the step {}.", context.task.state.step));
    context.save_progress(Status::Running, "")
}

/// Returns the task to the state in which `step` last began. Saves later work under `refs/guard/`, and deletes the
/// journal entries of that work. The task keeps its usage, its raised limits and its test command. Fails if the task
/// has not reached `step`.
pub(crate) fn retry(context: &mut TaskContext<'_>, step: &str) -> Result<(), PipelineError> {
    let entries = context.journal.entries()?;
    let last = entries.iter().rev().find(|entry| entry.step == step && entry.effect == "visit");
    let visited = || {
        let known: Vec<&str> =
            entries.iter().filter(|entry| entry.effect == "visit").map(|entry| entry.step.as_str()).collect();
        PipelineError::Strange(format!(
            "the task has not reached the step `{step}`; so far it has reached {}",
            known.join(", ")
        ))
    };
    let began: StepSnapshot = parse_stored(last.ok_or_else(visited)?.intent.clone())?;
    let visit = began.state.visit;
    context.task.state = State {
        used: context.task.state.used,
        used_by: std::mem::take(&mut context.task.state.used_by),
        raised: std::mem::take(&mut context.task.state.raised),
        tests: context.task.state.tests.take(),
        since: BTreeMap::new(),
        said: BTreeMap::new(),
        ..began.state
    };
    // Record the step first: if guard is killed from here on, `guard task resume` begins the step again.
    context.journal.delete_decisions_from(visit)?;
    context.save_progress(Status::Failed, &format!("going back to the step {step} was interrupted"))?;
    discard_journals(&context.directory(), visit);
    context.restore(Some(&began.tip))?;
    context.journal.delete_entries_from(visit, true)?;
    context.save_progress(Status::Running, "")?;
    context.announce(RUNNER, format!("Going back to the step {step}."));
    Ok(())
}
