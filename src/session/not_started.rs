//! Why guard did not start a run.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::agents::adapter::MissingKey;
use crate::agents::exec::OutdatedAgent;
use crate::run::launch;
use crate::run::launch::{LaunchError, LaunchPlan, RunRequest};
use crate::run::outcome::{ErrorDetail, ErrorKind, RunResult, TranscriptPlace, duration};
use crate::session::Failure;
use crate::session::agent_run::NoLogin;
use crate::session::run_workspace::WorkspaceProblem;

/// Why guard did not start a run.
#[derive(Debug)]
pub(crate) enum NotStarted {
    /// The command line or guard's environment cannot be used.
    Usage(Failure),
    /// The settings of the user or the project cannot be used, or the user did not confirm them.
    Settings(Failure),
    /// guard cannot start this run.
    Run {
        /// What is known about the run, without the error.
        about: Box<RunResult>,
        problem: Problem,
    },
}

/// Why guard cannot start a run whose settings are known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error(transparent)]
    OutdatedAgent(#[from] OutdatedAgent),
    #[error(transparent)]
    MissingKey(#[from] MissingKey),
    #[error(transparent)]
    Login(#[from] NoLogin),
    #[error(transparent)]
    Plan(#[from] LaunchError),
    #[error(transparent)]
    Workspace(#[from] WorkspaceProblem),
    #[error(transparent)]
    Launch(#[from] launch::Failure),
}

impl From<Failure> for NotStarted {
    fn from(failure: Failure) -> Self {
        Self::Usage(failure)
    }
}

impl From<io::Error> for NotStarted {
    fn from(error: io::Error) -> Self {
        Self::Usage(error.into())
    }
}

impl NotStarted {
    /// Returns the error for a run that has no plan yet.
    pub(super) fn before_plan(request: &RunRequest, problem: impl Into<Problem>) -> Self {
        let program = request.command.first().map(Path::new).and_then(Path::file_name);
        let about = RunResult {
            tool: program.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            policy: request.policy.name.clone(),
            duration: duration(Duration::ZERO),
            ..RunResult::default()
        };
        Self::Run { about: Box::new(about), problem: problem.into() }
    }

    /// Returns the error for a command that only needs the plan of a run.
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Self::Usage(failure) | Self::Settings(failure) => failure,
            Self::Run { problem, .. } => Failure::usage(problem.to_string(), problem.hint()),
        }
    }
}

/// Returns the result of a run that has not begun. The result contains only data from the plan.
pub(super) fn result_before_start(plan: &LaunchPlan) -> RunResult {
    RunResult {
        tool: plan.program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        policy: plan.policy.clone(),
        run_id: plan.run_id.clone(),
        session_id: plan.run_id.clone(),
        duration: duration(Duration::ZERO),
        transcript: TranscriptPlace { path: plan.run_folder.to_string_lossy().into_owned(), head: None },
        ..RunResult::default()
    }
}

/// Adds an error to the result of a run.
pub(crate) fn with_error(result: RunResult, kind: ErrorKind, message: &str) -> RunResult {
    RunResult {
        error: Some(message.to_string()),
        error_kind: Some(kind),
        error_detail: Some(ErrorDetail { message: message.to_string(), ..ErrorDetail::default() }),
        ..result
    }
}

impl Problem {
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::OutdatedAgent(_) => ErrorKind::ConfigError,
            Self::MissingKey(_) | Self::Login(_) => ErrorKind::AuthError,
            Self::Plan(LaunchError::CommandNotFound(_)) => ErrorKind::CommandNotFound,
            Self::Plan(_) => ErrorKind::InvalidInput,
            Self::Workspace(problem) => problem.kind,
            Self::Launch(launch::Failure::Unavailable { .. } | launch::Failure::Canary(_)) => {
                ErrorKind::SandboxUnavailable
            }
            Self::Launch(_) => ErrorKind::Internal,
        }
    }

    /// Returns what the user can do.
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::OutdatedAgent(_) => "`--agent none` runs the command without treating it as an agent".into(),
            Self::MissingKey(_) => {
                "set the key in your environment; guard keeps it outside the sandbox and gives the agent a placeholder"
                    .into()
            }
            Self::Login(problem) => problem.hint(),
            Self::Plan(error) => plan_hint(error),
            Self::Workspace(problem) => problem.hint.clone(),
            Self::Launch(failure) => launch_hint(failure),
        }
    }
}

fn plan_hint(error: &LaunchError) -> String {
    match error {
        LaunchError::CommandNotFound(_) => {
            "check the name, or give the program's path; guard searches your PATH".into()
        }
        LaunchError::NotExecutable { .. } => "give a program that is executable".into(),
        // guard suggests no directory to grant instead: the agent chooses the path, and the nearest directory that
        // exists may be the user's home directory.
        LaunchError::GrantedPathMissing { option, .. } => {
            format!("create the file or directory first; {option} can only grant a path that exists")
        }
        _ => "correct the option, variable, directory or policy that the message names".into(),
    }
}

fn launch_hint(failure: &launch::Failure) -> String {
    match failure {
        launch::Failure::Unavailable { needs, .. } => {
            let fixes: Vec<&str> = needs.iter().map(|need| need.fix.as_str()).collect();
            format!("{}; `guard doctor` shows what this machine supports", fixes.join("; "))
        }
        launch::Failure::Canary(_) => {
            "this kernel does not enforce the sandbox as documented; please report this to the maintainers of guard".into()
        }
        launch::Failure::Step { .. } => "`guard doctor` shows what this machine supports".into(),
    }
}
