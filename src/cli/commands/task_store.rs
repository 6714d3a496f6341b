//! The stored tasks of the current user, and hints for errors about them, for all commands that read or change tasks.

use crate::cli::Failure;
use crate::cli::commands::executor::executor;
use crate::run::transcript::runs_dir;
use crate::work::pipeline::{PipelineError, TaskStore};

/// The hint in errors about tasks that guard cannot read or write.
const STATE_DIR_HINT: &str = "guard stores tasks below $XDG_STATE_HOME (default ~/.local/state): check free space and permissions there";

pub(in crate::cli) const RESUME_HINT: &str = "fix the problem; `guard task resume` then continues the task";

pub(in crate::cli) fn task_store() -> Result<TaskStore, Failure> {
    let runs = runs_dir().map_err(|error| {
        Failure::usage(error.to_string(), "set XDG_STATE_HOME or HOME to an absolute path")
    })?;
    Ok(TaskStore { executor: executor()?, tasks: runs.with_file_name("tasks"), runs })
}

pub(in crate::cli) fn failed(error: impl Into<PipelineError>) -> Failure {
    let error = error.into();
    let hint = match &error {
        PipelineError::Busy { .. } => {
            "wait until that process ends, or stop it with `guard task cancel`".to_string()
        }
        PipelineError::NotBegun(_) => format!("the task was not started; {STATE_DIR_HINT}, then try again"),
        PipelineError::Store(_) => format!("no work is lost; {STATE_DIR_HINT}, then try again"),
        PipelineError::Unknown(_) => "`guard task list` lists the tasks".to_string(),
        PipelineError::AlreadySucceeded(_) => {
            "merge its branch; or remove the task and the branch with `guard task clean` and git branch -D"
                .to_string()
        }
        PipelineError::WorkerStays { .. } => "end that process, and try again".to_string(),
        PipelineError::Workspace(error) => error.hint().unwrap_or(RESUME_HINT).to_string(),
        _ => RESUME_HINT.to_string(),
    };
    Failure::usage(error.to_string(), hint)
}
