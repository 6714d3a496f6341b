//! `guard demo`: shows a complete run with a scripted agent. It needs no API key and no network.
pub(crate) mod agent;
mod scene;

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use super::Failure;
use crate::cli::demo::scene::Scene;
use crate::cli::output::exit_code::Exit;
use crate::git::{KeepPolicy, Limits, Repository, Request, Workspace, WorkspaceError};
use crate::judge::policy::{Config, Namespaces, PolicyDirs};
use crate::run::launch::{GitSession, Keys, Launch, Options, RunRequest, Streams};
use crate::run::transcript::{EventType, Line, Observer, runs_dir};

/// The name of the hidden command that makes guard act as the scripted agent.
pub(super) const AGENT: &str = "demo-agent";

/// Creates the scratch repository, runs the agent, prints what happens, and checks the effects from outside.
pub(super) fn run(namespaces: Option<Namespaces>, out: &mut dyn Write) -> Result<Exit, Failure> {
    let scene = Scene::make(&std::env::temp_dir()).map_err(|error| {
        Failure::usage(
            format!("cannot create the demo's scratch repository: {error}"),
            "install git, and check that the temporary directory is writable",
        )
    })?;
    writeln!(
        out,
        "guard demo: a scripted agent in a scratch repository, under the policy `strict`. No key, no network."
    )?;
    writeln!(
        out,
        "  |  output of the agent   +  allowed   x  denied, and by which rule   <  received into the repository\n"
    )?;
    out.flush()?;
    let run_id = uuid::Uuid::now_v7().to_string();
    let mut launch = Launch::new(request(&scene, namespaces)?, run_id)?;
    let task = task(&scene, &launch.request, launch.run_id())?;
    launch.request.folder = task.checkout().worktree;
    launch.use_worktree(task);
    let input: OwnedFd = std::fs::File::open("/dev/null")?.into();
    let streams = Streams {
        input,
        output: None,
        error: None,
        is_terminal: [false; 3],
        is_sealed: false,
        questions: None,
        notes: None,
        reader: None,
    };
    let planned = launch.plan(Keys::default()).map_err(|error| {
        Failure::usage(error.to_string(), "`guard doctor` shows what this machine supports")
    })?;
    let run_folder = planned.plan.run_folder.clone();
    let finished = launch.run(planned, streams, Some(observer())).map_err(|failure| {
        Failure::usage(
            failure.to_string(),
            "`guard doctor` shows what this machine supports, and how to get what is missing",
        )
    })?;
    let result = finished.result;
    writeln!(out, "\nchecked from outside the sandbox:")?;
    let mut all = result.success;
    for finding in scene.check() {
        all &= finding.holds;
        writeln!(out, "  {}  {}", if finding.holds { "yes" } else { "NO " }, finding.what)?;
    }
    // Remove the worktree before the scratch repository, so that the run's record says that the worktree is removed.
    let _ = Workspace::load(&run_folder).and_then(|mut workspace| workspace.dispose(KeepPolicy::Discard));
    let changed: Vec<&str> = result.files_changed.iter().map(|change| change.path.as_str()).collect();
    writeln!(
        out,
        "\nresult: exit code {}, commits: {} on {}, changed: {}, denials: {}.",
        result.exit_code.unwrap_or(-1),
        result.commits.len(),
        result.worktree.as_ref().map(|worktree| worktree.branch.as_str()).unwrap_or_default(),
        changed.join(", "),
        result.denials.len()
    )?;
    writeln!(
        out,
        "`guard log` shows the whole run, `guard verify` checks its transcript, `guard run -- COMMAND` runs your command."
    )?;
    Ok(if all { Exit::Success } else { Exit::Problem })
}

/// Runs the scripted agent in this process, which guard has started inside the sandbox.
pub(super) fn agent(arguments: &[String]) -> Result<Exit, Failure> {
    agent::perform(arguments, &mut io::stdout())?;
    Ok(Exit::Success)
}

fn request(scene: &Scene, namespaces: Option<Namespaces>) -> Result<RunRequest, Failure> {
    let policy = crate::judge::decide::load("strict", &PolicyDirs::default(), false)?;
    let own = std::env::current_exe()?;
    let mut command: Vec<OsString> = vec![own.into(), AGENT.into()];
    command.extend(scene.arguments().into_iter().map(OsString::from));
    let runs = runs_dir().map_err(|error| {
        Failure::usage(error.to_string(), "set XDG_STATE_HOME or HOME to an absolute path")
    })?;
    Ok(RunRequest {
        command,
        folder: scene.project(),
        policy,
        environment: std::env::vars_os().collect(),
        home: crate::session::user_directories::home(),
        runs,
        scratch: std::env::temp_dir(),
        uid: nix::unistd::geteuid().as_raw(),
        options: Options { namespaces, ..Options::default() },
        checkout: None,
        config: Config::default(),
        config_dir: crate::session::user_directories::config_dir(),
        key_variables: Vec::new(),
    })
}

/// Creates the worktree in which the scripted agent works.
fn task(scene: &Scene, request: &RunRequest, run_id: &str) -> Result<GitSession, Failure> {
    let failed = |error: WorkspaceError| {
        Failure::usage(format!("cannot create the demo's worktree: {error}"), "install git 2.38 or newer")
    };
    let repository = Repository::find(&scene.project()).map_err(failed)?.ok_or_else(|| {
        Failure::usage("git does not recognise the demo's scratch repository", "check the git installation")
    })?;
    let wanted = Request {
        run_id: run_id.to_string(),
        run_folder: request.runs.join(run_id),
        name: Some("demo".to_string()),
        fallback_root: request.runs.with_file_name("worktrees"),
        ..Request::new(&request.policy)
    };
    GitSession::open(&repository, &wanted, KeepPolicy::Keep, Limits::new(&request.policy)).map_err(failed)
}

/// Returns an observer that prints events as they happen, in a form that is the same on every machine.
fn observer() -> Observer {
    let mut last = String::new();
    Box::new(move |line: &Line<'_>| {
        // A program that searches PATH is denied in each directory. Show only the first denial.
        if line.event_type.is_denial() && last == line.message {
            return;
        }
        last = line.message.to_string();
        let data: serde_json::Value = serde_json::from_str(line.data).unwrap_or_default();
        let text = |key: &str| data.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
        let mut out = io::stdout().lock();
        let _ = match line.event_type {
            EventType::Output => text("text").lines().try_for_each(|line| writeln!(out, "  |  {line}")),
            // Do not show the start of a shim, which only starts the real program of the same name, or of the scripted
            // agent itself.
            EventType::Exec if text("path").ends_with("/guard-shim") || line.message.contains(AGENT) => {
                Ok(())
            }
            EventType::Exec => writeln!(out, "  +  {}", line.message),
            EventType::DenyExec => {
                writeln!(out, "  x  {} (rule {})", text("what"), text("rule"))
            }
            EventType::GitReceived => writeln!(out, "  <  received: {}", line.message),
            denial if denial.is_denial() => {
                writeln!(out, "  x  {} (rule {})", without_port(text("what")), text("rule"))
            }
            _ => Ok(()),
        };
        let _ = out.flush();
    })
}

fn without_port(what: &str) -> &str {
    what.rsplit_once(':').map_or(what, |(host, _)| host)
}
