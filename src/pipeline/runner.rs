//! Runs a task step by step until it ends or cannot continue. The journal records every effect before and
//! after it happens.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::resume::StepSnapshot;
use super::task::state::{RUNNER, State, Status, TaskEvent, TaskSettings, Used};
use super::task::task_lock::{TaskLock, TaskStore};
use super::workflow::model::{BACK, BuiltinStep, END, Step, StepExecutor};
use crate::agent_exec::Cancel;
use crate::pipeline::task::journal::{EffectState, Journal, StoreError, TaskRow, now};
use crate::transcript::EventType;
use crate::workspace::{Repository, WorkspaceError};

/// Why a task cannot continue for now. Its progress is in the journal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// The journal cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// git failed, or the repository cannot be used.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Another process works on the task.
    #[error("another guard process ({process}) is working on the task {id}")]
    Busy {
        /// The id of the task.
        id: String,
        /// The id of that process, if known.
        process: String,
    },
    /// No task, or more than one, matches this id.
    #[error("no task, or more than one, matches the id `{0}`")]
    Unknown(String),
    /// The task could not be created. Holds the complete message.
    #[error("{0}")]
    NotBegun(String),
    /// The task is in a state in which the operation is impossible. Holds the complete message.
    #[error("{0}")]
    Strange(String),
    /// A signal ended the run.
    #[error("interrupted")]
    Interrupted,
}

/// The result of running a task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ending {
    /// The id of the task.
    pub task_id: String,
    /// The status in which the task stopped.
    pub status: Status,
    /// Why it stopped.
    pub reason: String,
    /// The task's branch.
    pub branch: String,
    /// The path of the task's worktree.
    pub worktree: String,
    /// The commits of the task, oldest first.
    pub commits: Vec<String>,
    /// The task's documents: name → path.
    pub documents: BTreeMap<String, String>,
    /// What the task has used so far.
    pub used: Used,
    /// Where the branch was delivered, for example the URL of a pull request.
    pub delivered: Option<String>,
}

/// What follows a step.
pub(crate) enum Next {
    /// Continue with another step.
    Go { to: String, feedback: String },
    /// Stop the task for now.
    Stop(Status, String),
}

/// Runs one task. Holds the task's lock while it lives.
pub struct Runner<'r> {
    pub(crate) id: String,
    pub(crate) request: String,
    pub(crate) setting: TaskSettings,
    pub(crate) state: State,
    pub(crate) task_store: TaskStore,
    pub(crate) repository: Repository,
    pub(crate) journal: Journal,
    pub(crate) cancel: Cancel,
    pub(crate) on_event: &'r mut dyn FnMut(TaskEvent),
    is_resumed: bool,
    _lock: TaskLock,
}

impl<'r> Runner<'r> {
    /// Creates a task in the journal. Nothing else happens yet.
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
        let (id, request) = (id.to_string(), request.to_string());
        let mut runner = Self {
            id,
            request,
            setting,
            state,
            task_store,
            repository,
            journal,
            cancel,
            on_event,
            is_resumed: false,
            _lock: lock,
        };
        runner.announce(RUNNER, "Task Received.");
        if !runner.setting.safety.is_empty() {
            let line = runner.setting.safety.clone();
            runner.announce(RUNNER, line);
        }
        Ok(runner)
    }

    /// Resumes a task from the journal: where it stopped, or from an earlier step.
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
        // Another process may have advanced the task before we took the lock.
        let row = journal.task(&found.id)?.ok_or_else(|| PipelineError::Unknown(id.to_string()))?;
        let strange = |what: &str, error: serde_json::Error| {
            PipelineError::Strange(format!("the task's {what} in the journal cannot be parsed: {error}"))
        };
        let setting: TaskSettings =
            serde_json::from_value(row.setting).map_err(|error| strange("settings", error))?;
        let state: State = serde_json::from_value(row.state).map_err(|error| strange("state", error))?;
        let repository = repository(&setting)?;
        let request = row.request;
        let mut runner = Self {
            id: row.id,
            request,
            setting,
            state,
            task_store,
            repository,
            journal,
            cancel,
            on_event,
            is_resumed: true,
            _lock: lock,
        };
        // A missing worktree is created again from the branch. A missing branch is an error: it held the
        // work.
        let effect = runner.journal.effect_state(&runner.id, 0, "worktree")?;
        let was_made = matches!(effect, Some(EffectState::Done(_)));
        if was_made && runner.setting.tree.tip()?.is_none() {
            return Err(runner.missing_branch_error());
        }
        runner.setting.tree.create(&runner.repository, was_made)?;
        match from {
            Some(step) => runner.retry(step)?,
            None => runner.prepare_resume(Status::parse(&row.status).unwrap_or(Status::Running))?,
        }
        Ok(runner)
    }

    /// The id of the task.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Runs steps until the task ends or cannot continue for now.
    pub fn run(mut self) -> Result<Ending, PipelineError> {
        let ended = self.run_steps();
        let (status, reason) = match ended {
            Ok((status, reason)) => (status, reason),
            Err(PipelineError::Interrupted) => (Status::Interrupted, "stopped by a signal".to_string()),
            Err(error) => {
                // If the failure cannot be recorded (a full disk), report the original error all the same.
                let _ = self.save_progress(Status::Failed, &error.to_string());
                return Err(error);
            }
        };
        self.save_progress(status, &reason)?;
        let ending = self.ending(status, reason);
        let message = match status {
            Status::Succeeded => format!("Pipeline Success! Branch '{}' is ready for merge.", ending.branch),
            _ => format!("{}: {}", status.name(), ending.reason),
        };
        self.announce(RUNNER, message);
        let data = serde_json::to_value(&ending).unwrap_or_default();
        (self.on_event)(TaskEvent::new(EventType::TaskEnded, status.name(), data));
        Ok(ending)
    }

    fn run_steps(&mut self) -> Result<(Status, String), PipelineError> {
        self.create_worktree()?;
        loop {
            if let Some((status, reason)) = self.reached_limit() {
                return Ok((status, reason));
            }
            let step = self.setting.workflow.step(&self.state.step).cloned();
            let Some(step) = step else {
                return Err(PipelineError::Strange(format!(
                    "the workflow has no step `{}`",
                    self.state.step
                )));
            };
            self.record_visit(&step)?;
            let data = json!({ "step": step.id, "visit": self.state.visit, "status": step.status, "used": self.state.used });
            (self.on_event)(TaskEvent::new(EventType::TaskStep, step.status.clone(), data));
            let next = match &step.doer {
                StepExecutor::Role(role) => self.role_step(&step, role)?,
                StepExecutor::BuiltinStep(BuiltinStep::Merge) => self.merge(&step)?,
                StepExecutor::BuiltinStep(BuiltinStep::Archive) => self.archive(&step)?,
                StepExecutor::BuiltinStep(BuiltinStep::Deliver) => self.deliver(&step)?,
            };
            let outcome = match &next {
                Next::Stop(status, _) => status.name(),
                Next::Go { .. } => "done",
            };
            let data = json!({ "step": step.id, "visit": self.state.visit, "outcome": outcome });
            (self.on_event)(TaskEvent::new(EventType::TaskStepEnded, step.status.clone(), data));
            match next {
                Next::Stop(status, reason) => return Ok((status, reason)),
                Next::Go { to, .. } if to == END => return Ok((Status::Succeeded, String::new())),
                Next::Go { to, feedback } => self.advance_to(&to, feedback)?,
            }
            if self.cancel.is_set() {
                return Err(PipelineError::Interrupted);
            }
        }
    }

    /// Records the state at the beginning of the step, so that `guard task retry` can return to it.
    fn record_visit(&mut self, step: &Step) -> Result<(), PipelineError> {
        let tip = self.setting.tree.tip()?.unwrap_or_default();
        let began = StepSnapshot { state: self.state.clone(), tip };
        self.effect_at(self.state.visit, &step.id, "visit", &began, |_, _, _| Ok(()))
    }

    fn advance_to(&mut self, to: &str, feedback: String) -> Result<(), PipelineError> {
        let to = if to == BACK { self.state.from.clone().unwrap_or_default() } else { to.to_string() };
        self.state.from = Some(std::mem::replace(&mut self.state.step, to.clone()));
        self.state.feedback = feedback;
        self.state.merged_by = None;
        self.state.visit += 1;
        *self.state.rounds.entry(to.clone()).or_default() += 1;
        *self.state.since.entry(to).or_default() += 1;
        self.save_progress(Status::Running, "")
    }

    /// Creates the branch and the worktree before the first agent call.
    fn create_worktree(&mut self) -> Result<(), PipelineError> {
        let tree = self.setting.tree.clone();
        let branch = tree.short_branch().to_string();
        let made: Value = self.effect_at(
            0,
            "init",
            "worktree",
            &json!({ "branch": branch, "base": tree.base }),
            |runner, _, _| {
                tree.create(&runner.repository, false)?;
                Ok(json!({ "worktree": tree.worktree }))
            },
        )?;
        if self.state.visit == 1 && made.is_object() && !self.is_resumed {
            self.announce(RUNNER, format!("Created branch '{branch}'."));
        }
        Ok(())
    }

    /// Runs an effect of this visit: records the intent, acts, records the outcome. `act` receives the
    /// recorded intent, and whether an earlier attempt may already have acted.
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
        let visit = self.state.visit;
        let intent = match self.journal.effect_state(&self.id, visit, name)? {
            Some(EffectState::Done(outcome)) => return parse_stored(outcome),
            Some(EffectState::Again(intent)) => parse_stored(intent)?,
            _ => intent(self)?,
        };
        self.effect_at(visit, step, name, &intent, act)
    }

    fn effect_at<I, O>(
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
        let is_again = match self.journal.begin(&self.id, (visit, step), name, &written)? {
            EffectState::Done(outcome) => return parse_stored(outcome),
            EffectState::Again(_) => true,
            EffectState::New => false,
        };
        let outcome = act(self, intent, is_again)?;
        self.journal.finish(&self.id, visit, name, &serde_json::to_value(&outcome).unwrap_or_default())?;
        Ok(outcome)
    }

    /// Resets the branch and the working tree to the state before an interrupted or failed agent call. Saves what the
    /// agent did under `refs/guard/`. If `tip` is `None`, the branch stays at its current commit.
    pub(crate) fn restore(&mut self, tip: Option<&str>) -> Result<(), PipelineError> {
        let tree = &self.setting.tree;
        tree.dispose_killed_runs(&self.task_store.runs)?;
        let Some(now_at) = tree.tip()? else { return Ok(()) };
        let tip = tip.unwrap_or(&now_at);
        if now_at != tip || !tree.uncommitted()?.is_empty() {
            self.save_work()?;
            let tree = &self.setting.tree;
            if now_at != tip {
                tree.move_branch(tip, &now_at)?;
            }
            tree.check_out(&self.repository)?;
        }
        Ok(())
    }

    /// Saves the branch and the working tree under `refs/guard/` before they are reset.
    pub(crate) fn save_work(&mut self) -> Result<(), PipelineError> {
        let kept = self.setting.tree.save(&format!("task-{}/{}", self.id, uuid::Uuid::now_v7()))?;
        let data = json!({ "ref": kept });
        let message = format!("saved the previous work at {kept}");
        (self.on_event)(TaskEvent::new(EventType::TaskKept, message, data));
        Ok(())
    }

    pub(crate) fn announce(&mut self, who: &str, message: impl Into<String>) {
        (self.on_event)(TaskEvent::said(who, message));
    }

    pub(crate) fn save_progress(&mut self, status: Status, reason: &str) -> Result<(), PipelineError> {
        let state = serde_json::to_value(&self.state).unwrap_or_default();
        Ok(self.journal.advance(&self.id, status.name(), reason, &state)?)
    }

    /// The step that follows a verdict, or the only next step if there is no verdict.
    pub(crate) fn next_step(step: &Step, word: Option<&str>) -> Result<String, PipelineError> {
        let way = word
            .map_or_else(|| step.next.as_ref(), |word| step.verdicts.get(word).map(|verdict| &verdict.next));
        let strange =
            || PipelineError::Strange(format!("the step {} has no next step for {word:?}", step.id));
        way.cloned().ok_or_else(strange)
    }

    fn ending(&self, status: Status, reason: String) -> Ending {
        let tree = &self.setting.tree;
        Ending {
            task_id: self.id.clone(),
            status,
            reason,
            branch: tree.short_branch().to_string(),
            worktree: tree.worktree.display().to_string(),
            commits: tree.subjects(&tree.base).unwrap_or_default(),
            documents: self.state.documents.clone(),
            used: self.state.used,
            delivered: self.state.delivered.clone(),
        }
    }
}

pub(crate) fn repository(setting: &TaskSettings) -> Result<Repository, PipelineError> {
    let missing =
        || PipelineError::Strange(format!("{} is no longer a repository", setting.repository.display()));
    let found = Repository::find(&setting.repository)?.ok_or_else(missing)?;
    Ok(Repository { trusted: setting.trusted, ..found })
}

pub(crate) fn parse_stored<T: DeserializeOwned>(value: Value) -> Result<T, PipelineError> {
    serde_json::from_value(value)
        .map_err(|error| PipelineError::Strange(format!("a journal entry cannot be parsed: {error}")))
}
