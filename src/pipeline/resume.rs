//! Resumes a task: restores the state it stopped in, decides which effects to repeat, and detects what the
//! user changed or removed in the meantime.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::runner::{PipelineError, Runner, parse_stored};
use super::steps::agent_step::AgentReply;
use super::task::state::{RUNNER, State, Status};

/// The task's state when a step began.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StepSnapshot {
    pub(crate) state: State,
    /// The commit that the branch pointed to.
    pub(crate) tip: String,
}

impl Runner<'_> {
    /// The snapshot taken when the current step began.
    pub(crate) fn step_snapshot(&self) -> Result<Option<StepSnapshot>, PipelineError> {
        let entries = self.journal.entries(&self.id)?;
        let visit = self.state.visit;
        let began = entries.iter().find(|entry| entry.visit == visit && entry.effect == "visit");
        began.map(|entry| parse_stored(entry.intent.clone())).transpose()
    }

    /// True if the last agent call failed and the runner died before it could record that, for example
    /// because the disk was full. Counts the usage of the step's calls, which has not been counted yet.
    fn died_after_failed_call(&mut self, status: Status) -> Result<bool, PipelineError> {
        if !matches!(status, Status::Running | Status::Interrupted) {
            return Ok(false);
        }
        let (visit, step) = (self.state.visit, self.state.step.clone());
        let entries = self.journal.entries(&self.id)?;
        let calls = entries
            .iter()
            .filter(|entry| entry.visit == visit && matches!(entry.effect.as_str(), "agent" | "repair"));
        let asked: Vec<AgentReply> =
            calls.filter_map(|entry| entry.outcome.clone()).map(parse_stored).collect::<Result<_, _>>()?;
        let has_failed = asked.iter().any(|asked| asked.error.is_some());
        if has_failed {
            asked.iter().for_each(|asked| self.add_usage(&step, asked.used));
        }
        Ok(has_failed)
    }

    /// The error for a branch that was deleted, with its last known commit.
    pub(crate) fn missing_branch_error(&self) -> PipelineError {
        let branch = self.setting.tree.short_branch();
        let entries = self.journal.entries(&self.id).unwrap_or_default();
        let tip = |entry: &crate::pipeline::task::journal::Entry| {
            let outcome = entry.outcome.as_ref();
            let made = outcome.and_then(|outcome| outcome.as_str().or_else(|| outcome["after"].as_str()));
            let tip = made.or_else(|| entry.intent["tip"].as_str())?.to_string();
            self.setting.tree.commit_named(&tip).ok().flatten()
        };
        let last = entries.iter().rev().find_map(tip).unwrap_or_else(|| "COMMIT".to_string());
        PipelineError::Strange(format!(
            "the branch {branch} does not exist; recreate it with `git branch {branch} {last}`, then resume"
        ))
    }

    /// Prepares a stopped task for its next step, depending on how it stopped and what the user has changed.
    pub(crate) fn prepare_resume(&mut self, status: Status) -> Result<(), PipelineError> {
        let status = if self.died_after_failed_call(status)? { Status::Failed } else { status };
        let began = self.step_snapshot()?;
        let is_stopped = matches!(status, Status::NeedsHuman | Status::Failed | Status::BudgetExhausted);
        let is_awaited = status == Status::NeedsHuman;
        let is_merged_by_hand = is_stopped && self.find_user_merge(began.as_ref(), is_awaited)?;
        let is_unsolved = self.setting.workflow.step(&self.state.step).is_some_and(|step| step.must_merge);
        match status {
            Status::Succeeded | Status::Cancelled => {
                let how = if status == Status::Succeeded { "has succeeded" } else { "was cancelled" };
                return Err(PipelineError::Strange(format!("the task {how} and cannot be resumed")));
            }
            Status::Failed | Status::BudgetExhausted | Status::NeedsHuman if is_merged_by_hand => {
                self.state.since = BTreeMap::from([(self.state.step.clone(), 1)]);
            }
            // The user did not merge by hand: the agent tries again.
            Status::NeedsHuman if is_unsolved && began.is_some() => {
                self.state.since = BTreeMap::from([(self.state.step.clone(), 1)]);
                self.journal.delete_entries_from(&self.id, self.state.visit, false)?;
            }
            // Try the step again from its beginning.
            Status::Failed | Status::BudgetExhausted => {
                let visit = self.state.visit;
                // Keep the user's decision, but discard what the step did.
                self.restore(began.as_ref().map(|began| began.tip.as_str()))?;
                self.journal.delete_entries_from(&self.id, visit, false)?;
                self.state.warned.clear();
            }
            // The user has seen the problem: allow one more round.
            Status::NeedsHuman => {
                self.state.since = BTreeMap::from([(self.state.step.clone(), 1)]);
                self.state.said.clear();
            }
            // Replaying the step counts the usage of its calls again, so start from the usage at its
            // beginning.
            Status::Interrupted => {
                if let Some(began) = began {
                    self.state.used = began.state.used;
                    self.state.used_by = began.state.used_by;
                }
            }
            _ => {}
        }
        self.announce(RUNNER, format!("Resuming at {}.", self.state.step));
        self.save_progress(Status::Running, "")
    }

    /// Goes back to the last time that a step began. Saves the later work under `refs/guard/`, and deletes its
    /// journal entries.
    pub(crate) fn retry(&mut self, step: &str) -> Result<(), PipelineError> {
        let entries = self.journal.entries(&self.id)?;
        let last = entries.iter().rev().find(|entry| entry.step == step && entry.effect == "visit");
        let visited = || {
            let known: Vec<&str> = entries
                .iter()
                .filter(|entry| entry.effect == "visit")
                .map(|entry| entry.step.as_str())
                .collect();
            PipelineError::Strange(format!(
                "the task has not reached the step `{step}`; it has been at {}",
                known.join(", ")
            ))
        };
        let began: StepSnapshot = parse_stored(last.ok_or_else(visited)?.intent.clone())?;
        self.restore(Some(&began.tip))?;
        let visit = began.state.visit;
        self.state = State {
            used: self.state.used,
            used_by: std::mem::take(&mut self.state.used_by),
            raised: std::mem::take(&mut self.state.raised),
            tests: self.state.tests.take(),
            since: BTreeMap::new(),
            said: BTreeMap::new(),
            ..began.state
        };
        self.journal.delete_entries_from(&self.id, visit, true)?;
        self.save_progress(Status::Running, "")?;
        self.announce(RUNNER, format!("Going back to {step}."));
        Ok(())
    }
}
