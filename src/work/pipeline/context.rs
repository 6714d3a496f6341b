//! The context that every step of a task receives: the task itself, its journal, its repository, the executor
//! of its agents, and the callback for its events.

use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::error::PipelineError;
use super::task::journal::{EffectState, Entry, Journal};
use super::task::journal_records::StepSnapshot;
use super::task::state::{State, Status, TaskEvent, TaskSettings};
use super::task::task_control::TaskControl;
use super::task::task_journal::{TaskJournal, parse_stored};
use super::task::task_lock::TaskStore;
use crate::agents::adapter::AgentEvent;
use crate::agents::exec::{Cancel, ExecRequest, ExecResult, Executor};
use crate::git::Repository;
use crate::run::transcript::EventType;

/// A task: its id, the user's request, its fixed settings, and its progress.
pub(crate) struct Task {
    pub(crate) id: String,
    pub(crate) request: String,
    pub(crate) setting: TaskSettings,
    pub(crate) state: State,
}

/// Passes the events of a task to the callback that the caller provided.
pub(crate) struct Events<'r> {
    on_event: &'r mut dyn FnMut(TaskEvent),
}

impl<'r> Events<'r> {
    pub(crate) fn new(on_event: &'r mut dyn FnMut(TaskEvent)) -> Self {
        Self { on_event }
    }

    pub(crate) fn send(&mut self, event: TaskEvent) {
        (self.on_event)(event);
    }
}

pub(crate) struct TaskContext<'r> {
    pub(crate) task: Task,
    pub(crate) journal: TaskJournal,
    pub(crate) repository: Repository,
    pub(crate) events: Events<'r>,
    task_store: TaskStore,
    cancel: Cancel,
}

impl<'r> TaskContext<'r> {
    pub(crate) fn new(
        task: Task,
        journal: Journal,
        repository: Repository,
        task_store: TaskStore,
        cancel: Cancel,
        on_event: &'r mut dyn FnMut(TaskEvent),
    ) -> Self {
        let journal = TaskJournal::new(journal, &task.id);
        Self { task, journal, repository, events: Events::new(on_event), task_store, cancel }
    }

    /// Returns the task's own directory, which is a subdirectory of the directory where all tasks are stored.
    pub(crate) fn directory(&self) -> PathBuf {
        self.task_store.task_directory(&self.task.id)
    }

    pub(crate) fn executor(&self) -> &Executor {
        &self.task_store.executor
    }

    pub(crate) fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Returns true if the user or a signal has cancelled the task.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_set()
    }

    /// Starts to receive the commands of `guard control` to this task.
    pub(crate) fn receive_commands(&self) -> Result<TaskControl, PipelineError> {
        let steps = self.task.setting.workflow.steps.iter().map(|step| step.id.clone()).collect();
        TaskControl::start(&self.task_store.task_directory(&self.task.id), steps, &self.cancel)
    }

    pub(crate) fn wait_while_paused(&self, control: &TaskControl) {
        control.wait_while_paused(&self.cancel);
    }

    /// Runs an agent or a command in a sandbox. Converts its events with `task_event` and reports the converted events
    /// to the task's caller; an event for which `task_event` returns `None` is not reported. Fails with
    /// [`PipelineError::Interrupted`] if the task was cancelled meanwhile.
    pub(crate) fn execute(
        &mut self,
        request: &ExecRequest,
        task_event: impl Fn(AgentEvent) -> Option<TaskEvent>,
    ) -> Result<ExecResult, PipelineError> {
        let events = &mut self.events;
        let result = self.task_store.executor.execute(request, &self.cancel, &mut |event| {
            if let Some(event) = task_event(event) {
                events.send(event);
            }
        });
        if self.is_cancelled() { Err(PipelineError::Interrupted) } else { Ok(result) }
    }

    pub(crate) fn announce(&mut self, who: &str, message: impl Into<String>) {
        self.events.send(TaskEvent::said(who, message));
    }

    pub(crate) fn save_progress(&mut self, status: Status, reason: &str) -> Result<(), PipelineError> {
        Ok(self.journal.save_progress(status, reason, &self.task.state)?)
    }

    /// Performs one effect (an action such as an agent call or a commit) in the current visit (execution of a
    /// step): records its intent, that is its parameters, in the journal, calls `act`, and records the outcome.
    /// `intent` computes the parameters, unless an earlier attempt recorded them. `act` receives the parameters, and
    /// whether an earlier attempt may already have performed the effect. If the journal already has an outcome,
    /// returns that without calling either.
    pub(crate) fn effect<I, O>(
        &mut self,
        step: &str,
        name: &str,
        intent: impl FnOnce(&mut Self) -> Result<I, PipelineError>,
        act: impl FnOnce(&mut Self, &I, bool) -> Result<O, PipelineError>,
    ) -> Result<O, PipelineError>
    where
        I: Serialize + DeserializeOwned,
        O: Serialize + DeserializeOwned,
    {
        let visit = self.task.state.visit;
        let intent = match self.journal.effect_state(visit, name)? {
            Some(EffectState::Done(outcome)) => return parse_stored(outcome),
            Some(EffectState::Again(intent)) => parse_stored(intent)?,
            _ => intent(self)?,
        };
        self.effect_at(visit, step, name, &intent, act)
    }

    /// Performs one effect (an action such as an agent call or a commit) in the given visit (execution of a step):
    /// records `intent`, the parameters of the effect, in the journal, calls `act`, and records the outcome. If the
    /// journal already has an outcome, returns that without calling `act`.
    pub(crate) fn effect_at<I, O>(
        &mut self,
        visit: u32,
        step: &str,
        name: &str,
        intent: &I,
        act: impl FnOnce(&mut Self, &I, bool) -> Result<O, PipelineError>,
    ) -> Result<O, PipelineError>
    where
        I: Serialize,
        O: Serialize + DeserializeOwned,
    {
        let written = serde_json::to_value(intent).unwrap_or_default();
        let is_again = match self.journal.begin((visit, step), name, &written)? {
            EffectState::Done(outcome) => return parse_stored(outcome),
            EffectState::Again(_) => true,
            EffectState::New => false,
        };
        let outcome = act(self, intent, is_again)?;
        self.journal.finish(visit, name, &serde_json::to_value(&outcome).unwrap_or_default())?;
        Ok(outcome)
    }

    /// Disposes of killed runs in this worktree, and then resets the branch to the commit `tip` and the working tree to
    /// the files of that commit. If `tip` is `None`, the branch stays at its current commit. If the reset discards
    /// commits or uncommitted changes, saves them under `refs/guard/` first. If the branch does not exist, resets
    /// nothing.
    pub(crate) fn restore(&mut self, tip: Option<&str>) -> Result<(), PipelineError> {
        let tree = &self.task.setting.tree;
        tree.dispose_killed_runs(&self.task_store.runs)?;
        let Some(now_at) = tree.tip()? else { return Ok(()) };
        let tip = tip.unwrap_or(&now_at);
        if now_at != tip || !tree.uncommitted()?.is_empty() {
            self.save_work()?;
            let tree = &self.task.setting.tree;
            if now_at != tip {
                tree.move_branch(tip, &now_at)?;
            }
            tree.check_out(&self.repository)?;
        }
        Ok(())
    }

    /// Saves the branch and the working tree under `refs/guard/` before they are reset.
    pub(crate) fn save_work(&mut self) -> Result<(), PipelineError> {
        let kept = self.task.setting.tree.save(&format!("task-{}/{}", self.task.id, uuid::Uuid::now_v7()))?;
        let data = json!({ "ref": kept });
        let message = format!("guard saved the previous work as {kept}");
        self.events.send(TaskEvent::new(EventType::TaskKept, message, data));
        Ok(())
    }

    /// Returns the state recorded when the current step began; `None` if nothing was recorded.
    pub(crate) fn step_snapshot(&self) -> Result<Option<StepSnapshot>, PipelineError> {
        let entries = self.journal.entries()?;
        let visit = self.task.state.visit;
        let began = entries.iter().find(|entry| entry.visit == visit && entry.effect == "visit");
        began.map(|entry| parse_stored(entry.intent.clone())).transpose()
    }

    /// Returns the error for a task whose branch was deleted. Its message names the last commit of the branch that the
    /// journal records and the repository still contains, or the placeholder `COMMIT`.
    pub(crate) fn missing_branch_error(&self) -> PipelineError {
        let branch = self.task.setting.tree.short_branch();
        let entries = self.journal.entries().unwrap_or_default();
        let tip = |entry: &Entry| {
            let outcome = entry.outcome.as_ref();
            let made = outcome.and_then(|outcome| outcome.as_str().or_else(|| outcome["after"].as_str()));
            let tip = made.or_else(|| entry.intent["tip"].as_str())?.to_string();
            self.task.setting.tree.commit_named(&tip).ok().flatten()
        };
        let last = entries.iter().rev().find_map(tip).unwrap_or_else(|| "COMMIT".to_string());
        PipelineError::Strange(format!(
            "the branch {branch} does not exist; recreate it with `git branch {branch} {last}`, then resume"
        ))
    }
}

pub(crate) fn repository(setting: &TaskSettings) -> Result<Repository, PipelineError> {
    let missing =
        || PipelineError::Strange(format!("{} is no longer a repository", setting.repository.display()));
    let found = Repository::find(&setting.repository)?.ok_or_else(missing)?;
    Ok(Repository { trusted: setting.trusted, ..found })
}
