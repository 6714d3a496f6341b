//! Runs a task step by step until it ends or cannot continue. The journal records every effect before and
//! after it happens.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::context::{Task, TaskContext, repository};
use super::error::PipelineError;
use super::resume::{prepare_resume, retry};
use super::steps::Next;
use super::steps::agent_step::run_role_step;
use super::steps::builtin_steps::{run_archive, run_deliver, run_merge};
use super::task::budget::reached_limit;
use super::task::journal::{EffectState, Journal, TaskRow, now};
use super::task::journal_records::StepSnapshot;
use super::task::state::{LimitOverrides, RUNNER, State, Status, TaskEvent, TaskSettings, Used};
use super::task::task_control::TaskControl;
use super::task::task_lock::{TaskLock, TaskStore};
use super::workflow::model::{BACK, BuiltinStep, END, Step, StepExecutor};
use crate::agents::exec::Cancel;
use crate::run::transcript::EventType;

/// The result of running a task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ending {
    pub task_id: String,
    pub status: Status,
    /// Why the task stopped; empty if it succeeded.
    pub reason: String,
    pub branch: String,
    pub worktree: String,
    /// The short ids and subjects of the task's commits, oldest first; empty if git cannot list them.
    pub commits: Vec<String>,
    /// The path of each document of the task, by the document's name.
    pub documents: BTreeMap<String, String>,
    pub used: Used,
    /// The URL of the branch's pull request or, if the branch stays local, the path of the task's summary; `None` if
    /// the task has not delivered the branch.
    pub delivered: Option<String>,
}

/// Runs one task. Holds the task's lock until the `Runner` is dropped.
pub struct Runner<'r> {
    context: TaskContext<'r>,
    is_resumed: bool,
    _lock: TaskLock,
}

impl<'r> Runner<'r> {
    /// Takes the lock of a new task and creates the task in the journal, without running any step.
    pub fn begin(
        task_store: TaskStore,
        mut journal: Journal,
        id: &str,
        request: &str,
        setting: TaskSettings,
        cancel: Cancel,
        on_event: &'r mut dyn FnMut(TaskEvent),
    ) -> Result<Self, PipelineError> {
        let lock = task_store.lock(id)?;
        let repository = repository(&setting)?;
        let first = setting.workflow.modes.get(&setting.mode).cloned().unwrap_or_default();
        let state = State {
            step: first.clone(),
            visit: 1,
            rounds: BTreeMap::from([(first.clone(), 1)]),
            since: BTreeMap::from([(first, 1)]),
            ..State::default()
        };
        journal.create(&TaskRow {
            id: id.to_string(),
            created: now(),
            updated: now(),
            status: Status::Running.name().to_string(),
            reason: String::new(),
            request: request.to_string(),
            repository: setting.repository.display().to_string(),
            branch: setting.tree.short_branch().to_string(),
            setting: serde_json::to_value(&setting).unwrap_or_default(),
            state: serde_json::to_value(&state).unwrap_or_default(),
        })?;
        let task = Task { id: id.to_string(), request: request.to_string(), setting, state };
        let mut context = TaskContext::new(task, journal, repository, task_store, cancel, on_event);
        context.announce(RUNNER, "Task Received.");
        if !context.task.setting.safety.is_empty() {
            let line = context.task.setting.safety.clone();
            context.announce(RUNNER, line);
        }
        Ok(Self { context, is_resumed: false, _lock: lock })
    }

    /// Takes the lock of a stopped task and prepares it to continue: from the step `from`, or where the task stopped if
    /// `from` is `None`. Creates a missing worktree again. Fails if the task's branch no longer exists.
    pub fn resume(
        task_store: TaskStore,
        journal: Journal,
        id: &str,
        from: Option<&str>,
        cancel: Cancel,
        on_event: &'r mut dyn FnMut(TaskEvent),
    ) -> Result<Self, PipelineError> {
        let found = journal.task(id)?.ok_or_else(|| PipelineError::Unknown(id.to_string()))?;
        let lock = task_store.lock(&found.id)?;
        // Another process may have advanced the task before this process took the lock.
        let row = journal.task(&found.id)?.ok_or_else(|| PipelineError::Unknown(id.to_string()))?;
        let strange = |what: &str, error: serde_json::Error| {
            PipelineError::Strange(format!("the task's {what} in the journal cannot be parsed: {error}"))
        };
        let setting: TaskSettings =
            serde_json::from_value(row.setting).map_err(|error| strange("settings", error))?;
        let state: State = serde_json::from_value(row.state).map_err(|error| strange("state", error))?;
        let repository = repository(&setting)?;
        let task = Task { id: row.id, request: row.request, setting, state };
        let mut context = TaskContext::new(task, journal, repository, task_store, cancel, on_event);
        // Create a missing worktree again from the branch. A missing branch is an error, because the task's
        // commits were on it.
        let effect = context.journal.effect_state(0, "worktree")?;
        let was_made = matches!(effect, Some(EffectState::Done(_)));
        if was_made && context.task.setting.tree.tip()?.is_none() {
            return Err(context.missing_branch_error());
        }
        context.task.setting.tree.create(&context.repository, was_made)?;
        match from {
            Some(step) => retry(&mut context, step)?,
            None => prepare_resume(&mut context, Status::parse(&row.status).unwrap_or(Status::Running))?,
        }
        Ok(Self { context, is_resumed: true, _lock: lock })
    }

    /// Replaces the task's test command. An empty command means that no tests are run.
    pub fn set_tests(&mut self, words: Vec<String>) -> Result<(), PipelineError> {
        self.context.task.state.tests = Some(words);
        self.context.save_progress(Status::Running, "")
    }

    /// Raises the limits of the task or of its steps. Fails if the workflow lacks one of the steps.
    pub fn raise_limits(&mut self, more: LimitOverrides) -> Result<(), PipelineError> {
        for step in more.steps.keys() {
            if self.context.task.setting.workflow.step(step).is_none() {
                return Err(PipelineError::Strange(format!("the workflow has no step `{step}`")));
            }
        }
        let raised = &mut self.context.task.state.raised;
        raised.task = more.task.or(raised.task);
        for (step, bounds) in more.steps {
            let known = raised.steps.entry(step).or_default();
            *known = bounds.or(*known);
        }
        self.context.save_progress(Status::Running, "")
    }

    pub fn id(&self) -> &str {
        &self.context.task.id
    }

    /// Runs steps until the task ends or cannot continue for now, and returns how it ended. If a step returns an error
    /// other than an interruption, records the task as failed and returns the error.
    pub fn run(mut self) -> Result<Ending, PipelineError> {
        let control = self.context.receive_commands()?;
        let ended = self.run_steps(&control);
        let (status, reason) = match ended {
            Ok((status, reason)) => (status, reason),
            Err(PipelineError::Interrupted) if control.has_cancelled() => {
                (Status::Cancelled, "the user cancelled the task".to_string())
            }
            Err(PipelineError::Interrupted) => (Status::Interrupted, "a signal stopped the task".to_string()),
            Err(error) => {
                // If the failure cannot be recorded (a full disk), report the original error all the same.
                let _ = self.context.save_progress(Status::Failed, &error.to_string());
                return Err(error);
            }
        };
        self.context.save_progress(status, &reason)?;
        let ending = self.ending(status, reason);
        let message = match status {
            Status::Succeeded => format!("Pipeline Success! Branch '{}' is ready for merge.", ending.branch),
            _ => format!("{}: {}", status.name(), ending.reason),
        };
        self.context.announce(RUNNER, message);
        let data = serde_json::to_value(&ending).unwrap_or_default();
        self.context.events.send(TaskEvent::new(EventType::TaskEnded, status.name(), data));
        Ok(ending)
    }

    fn run_steps(&mut self, control: &TaskControl) -> Result<(Status, String), PipelineError> {
        self.create_worktree()?;
        loop {
            self.obey(control)?;
            if let Some((status, reason)) = reached_limit(&self.context.task) {
                return Ok((status, reason));
            }
            let step = self.context.task.setting.workflow.step(&self.context.task.state.step).cloned();
            let Some(step) = step else {
                return Err(PipelineError::Strange(format!(
                    "the workflow has no step `{}`",
                    self.context.task.state.step
                )));
            };
            self.record_visit(&step)?;
            let data = json!({ "step": step.id, "visit": self.context.task.state.visit, "status": step.status, "used": self.context.task.state.used });
            self.context.events.send(TaskEvent::new(EventType::TaskStep, step.status.clone(), data));
            let next = match &step.doer {
                StepExecutor::Role(role) => run_role_step(&mut self.context, &step, role)?,
                StepExecutor::BuiltinStep(BuiltinStep::Merge) => run_merge(&mut self.context, &step)?,
                StepExecutor::BuiltinStep(BuiltinStep::Archive) => run_archive(&mut self.context, &step)?,
                StepExecutor::BuiltinStep(BuiltinStep::Deliver) => run_deliver(&mut self.context, &step)?,
            };
            let outcome = match &next {
                Next::Stop(status, _) => status.name(),
                Next::Go { .. } => "done",
            };
            let data = json!({ "step": step.id, "visit": self.context.task.state.visit, "outcome": outcome });
            self.context.events.send(TaskEvent::new(EventType::TaskStepEnded, step.status.clone(), data));
            match next {
                Next::Stop(status, reason) => return Ok((status, reason)),
                Next::Go { to, .. } if to == END => return Ok((Status::Succeeded, String::new())),
                Next::Go { to, feedback } => self.advance_to(&to, feedback)?,
            }
            if self.context.is_cancelled() {
                return Err(PipelineError::Interrupted);
            }
        }
    }

    /// Carries out the commands of `guard control`: waits while the task is paused, and raises limits as requested.
    /// Fails with [`PipelineError::Interrupted`] if the task was cancelled.
    fn obey(&mut self, control: &TaskControl) -> Result<(), PipelineError> {
        if control.is_paused() {
            let line = format!("The task is paused. `guard control {} resume` continues it.", self.id());
            self.context.announce(RUNNER, line);
            self.context.wait_while_paused(control);
        }
        for raised in control.take_raised() {
            self.raise_limits(raised)?;
            self.context.announce(RUNNER, "The limits of the task were raised.");
        }
        if self.context.is_cancelled() { Err(PipelineError::Interrupted) } else { Ok(()) }
    }

    /// Records the task's state at the beginning of a step, so that `guard task retry` can return to it.
    fn record_visit(&mut self, step: &Step) -> Result<(), PipelineError> {
        let tip = self.context.task.setting.tree.tip()?.unwrap_or_default();
        let began = StepSnapshot { state: self.context.task.state.clone(), tip };
        self.context.effect_at(self.context.task.state.visit, &step.id, "visit", &began, |_, _, _| Ok(()))
    }

    fn advance_to(&mut self, to: &str, feedback: String) -> Result<(), PipelineError> {
        let to = if to == BACK {
            self.context.task.state.from.clone().unwrap_or_default()
        } else {
            to.to_string()
        };
        self.context.task.state.from = Some(std::mem::replace(&mut self.context.task.state.step, to.clone()));
        self.context.task.state.feedback = feedback;
        self.context.task.state.merged_by = None;
        self.context.task.state.visit += 1;
        *self.context.task.state.rounds.entry(to.clone()).or_default() += 1;
        *self.context.task.state.since.entry(to).or_default() += 1;
        self.context.save_progress(Status::Running, "")
    }

    /// Creates the task's branch and worktree before the first agent call, unless the journal records that they were
    /// created.
    fn create_worktree(&mut self) -> Result<(), PipelineError> {
        let tree = self.context.task.setting.tree.clone();
        let branch = tree.short_branch().to_string();
        let made: Value = self.context.effect_at(
            0,
            "init",
            "worktree",
            &json!({ "branch": branch, "base": tree.base }),
            |context, _, _| {
                tree.create(&context.repository, false)?;
                Ok(json!({ "worktree": tree.worktree }))
            },
        )?;
        if self.context.task.state.visit == 1 && made.is_object() && !self.is_resumed {
            self.context.announce(RUNNER, format!("Created branch '{branch}'."));
        }
        Ok(())
    }

    fn ending(&self, status: Status, reason: String) -> Ending {
        let tree = &self.context.task.setting.tree;
        Ending {
            task_id: self.context.task.id.clone(),
            status,
            reason,
            branch: tree.short_branch().to_string(),
            worktree: tree.worktree.display().to_string(),
            commits: tree.subjects(&tree.base).unwrap_or_default(),
            documents: self.context.task.state.documents.clone(),
            used: self.context.task.state.used,
            delivered: self.context.task.state.delivered.clone(),
        }
    }
}
