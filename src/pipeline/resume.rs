//! Going on with a task: where it stood, what is to be done again, and what somebody has taken away meanwhile.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::runner::{PipelineError, Runner, understood};
use super::steps::agent_step::Asked;
use super::task::state::{RUNNER, State, Status};

/// How things stood when a step began.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StepSnapshot {
    pub(crate) state: State,
    /// Where the branch was.
    pub(crate) tip: String,
}

impl Runner<'_> {
    /// How things stood when the step that the task is at began.
    pub(crate) fn began(&self) -> Result<Option<StepSnapshot>, PipelineError> {
        let entries = self.journal.entries(&self.id)?;
        let visit = self.state.visit;
        let began = entries.iter().find(|entry| entry.visit == visit && entry.effect == "visit");
        began.map(|entry| understood(entry.intent.clone())).transpose()
    }

    /// Whether the last call failed and whoever worked on the task could not even write that down: a disk that was full, say.
    /// What the step's calls used is counted then, which nobody has done yet.
    fn died_of_a_call(&mut self, status: Status) -> Result<bool, PipelineError> {
        if !matches!(status, Status::Running | Status::Interrupted) {
            return Ok(false);
        }
        let (visit, step) = (self.state.visit, self.state.step.clone());
        let entries = self.journal.entries(&self.id)?;
        let calls = entries
            .iter()
            .filter(|entry| entry.visit == visit && matches!(entry.effect.as_str(), "agent" | "repair"));
        let asked: Vec<Asked> =
            calls.filter_map(|entry| entry.outcome.clone()).map(understood).collect::<Result<_, _>>()?;
        let has_failed = asked.iter().any(|asked| asked.error.is_some());
        if has_failed {
            asked.iter().for_each(|asked| self.count(&step, asked.used));
        }
        Ok(has_failed)
    }

    /// That the branch is gone, and where it was last known to be.
    pub(crate) fn branch_is_gone(&self) -> PipelineError {
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
            "the branch {branch} is gone; bring it back (`git branch {branch} {last}`), then go on"
        ))
    }

    /// What a person lets go on, or has changed meanwhile.
    pub(crate) fn take_up(&mut self, status: Status) -> Result<(), PipelineError> {
        let status = if self.died_of_a_call(status)? { Status::Failed } else { status };
        let began = self.began()?;
        let is_stopped = matches!(status, Status::NeedsHuman | Status::Failed | Status::BudgetExhausted);
        let is_awaited = status == Status::NeedsHuman;
        let is_merged_by_hand = is_stopped && self.find_persons_merge(began.as_ref(), is_awaited)?;
        let is_unsolved = self.setting.workflow.step(&self.state.step).is_some_and(|step| step.must_merge);
        match status {
            Status::Succeeded | Status::Cancelled => {
                let how = if status == Status::Succeeded { "has succeeded" } else { "was cancelled" };
                return Err(PipelineError::Strange(format!(
                    "the task {how}; there is nothing to go on with"
                )));
            }
            Status::Failed | Status::BudgetExhausted | Status::NeedsHuman if is_merged_by_hand => {
                self.state.since = BTreeMap::from([(self.state.step.clone(), 1)]);
            }
            // They have not merged it: the agent tries again.
            Status::NeedsHuman if is_unsolved && began.is_some() => {
                self.state.since = BTreeMap::from([(self.state.step.clone(), 1)]);
                self.journal.forget_from(&self.id, self.state.visit, false)?;
            }
            // The step is to be tried again, from its beginning.
            Status::Failed | Status::BudgetExhausted => {
                let visit = self.state.visit;
                // What was decided by a person stays; what the step had done is begun anew.
                self.restore(began.as_ref().map(|began| began.tip.as_str()))?;
                self.journal.forget_from(&self.id, visit, false)?;
                self.state.warned.clear();
            }
            // They have seen it: it may go round once more.
            Status::NeedsHuman => {
                self.state.since = BTreeMap::from([(self.state.step.clone(), 1)]);
                self.state.said.clear();
            }
            // What the step's calls have used is counted when it is gone through again.
            Status::Interrupted => {
                if let Some(began) = began {
                    self.state.used = began.state.used;
                    self.state.used_by = began.state.used_by;
                }
            }
            _ => {}
        }
        self.say(RUNNER, format!("Resuming at {}.", self.state.step));
        self.write_down(Status::Running, "")
    }

    /// Goes back to the last time a step began: what came after it is kept under `refs/guard/`, and forgotten.
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
                "the task has not been at `{step}`; it was at {}",
                known.join(", ")
            ))
        };
        let began: StepSnapshot = understood(last.ok_or_else(visited)?.intent.clone())?;
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
        self.journal.forget_from(&self.id, visit, true)?;
        self.write_down(Status::Running, "")?;
        self.say(RUNNER, format!("Going back to {step}."));
        Ok(())
    }
}
