//! Commands to a running task: `cancel`, `pause`, `resume`, and `adjust_config`, which raises its limits.
//!
//! A thread receives the commands. `cancel` ends the agent that is running; the other commands take effect between two
//! steps.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::state::LimitOverrides;
use crate::agents::control::{AgentCommand, CommandReader, CommandWatch, ControlError, PauseGate, Rejection};
use crate::agents::exec::Cancel;
use crate::work::pipeline::error::PipelineError;

/// What users have requested with `guard control` since the task was started or resumed.
#[derive(Clone, Default)]
struct Commanded {
    gate: PauseGate,
    is_cancelled: Arc<AtomicBool>,
    raised: Arc<Mutex<Vec<LimitOverrides>>>,
}

/// Receives the commands to one running task.
pub(crate) struct TaskControl {
    commanded: Commanded,
    _watch: CommandWatch,
}

/// Returns the control directory, a subdirectory of the directory of a task.
pub fn control_directory(task_directory: &Path) -> std::path::PathBuf {
    task_directory.join("control")
}

impl TaskControl {
    /// Starts to receive commands. `steps` are the steps whose limits a command may raise.
    pub(crate) fn start(
        task_directory: &Path,
        steps: Vec<String>,
        cancel: &Cancel,
    ) -> Result<Self, PipelineError> {
        let directory = control_directory(task_directory);
        let failed = |source| PipelineError::Io { path: directory.clone(), source };
        let reader = CommandReader::open(&directory).map_err(|error| match error {
            ControlError::Io { source, .. } => failed(source),
            other => failed(std::io::Error::other(other)),
        })?;
        let (commanded, cancel) = (Commanded::default(), cancel.clone());
        let in_thread = commanded.clone();
        let watch = CommandWatch::start(reader, move |command| in_thread.act_on(command, &steps, &cancel));
        Ok(Self { commanded, _watch: watch.map_err(failed)? })
    }

    /// True if a command of `guard control`, and not a signal, cancelled the task.
    pub(crate) fn has_cancelled(&self) -> bool {
        self.commanded.is_cancelled.load(Ordering::Acquire)
    }

    /// Waits while the task is paused, until it is resumed or cancelled.
    pub(crate) fn wait_while_paused(&self, cancel: &Cancel) {
        self.commanded.gate.wait(|| cancel.is_set());
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.commanded.gate.is_paused()
    }

    /// Returns the limits that commands have raised since the last call of this function.
    pub(crate) fn take_raised(&self) -> Vec<LimitOverrides> {
        std::mem::take(&mut *self.commanded.raised.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Commanded {
    fn act_on(&self, command: &AgentCommand, steps: &[String], cancel: &Cancel) -> Result<Value, Rejection> {
        match command.command_type.as_str() {
            "cancel" => {
                self.is_cancelled.store(true, Ordering::Release);
                cancel.set();
                Ok(json!({}))
            }
            "pause" => {
                Ok(json!({ "changed": self.gate.set_paused(true), "effective": "after the current step" }))
            }
            "resume" => Ok(json!({ "changed": self.gate.set_paused(false) })),
            "adjust_config" => {
                let expected = "{\"task\": LIMITS} or {\"steps\": {STEP: LIMITS}}, where LIMITS is an object \
                                with `tokens`, `cost`, `minutes` or `rounds`";
                let raised: LimitOverrides = serde_json::from_value(command.data.clone())
                    .map_err(|problem| Rejection::InvalidData { expected, problem })?;
                if raised == LimitOverrides::default() {
                    return Err(Rejection::NoSetting(expected));
                }
                if let Some(unknown) = raised.steps.keys().find(|step| !steps.contains(step)) {
                    return Err(Rejection::UnknownStep(unknown.clone()));
                }
                self.raised.lock().unwrap_or_else(PoisonError::into_inner).push(raised);
                Ok(json!({ "effective": "before the next step" }))
            }
            other => Err(Rejection::UnknownType(other.to_string())),
        }
    }
}
