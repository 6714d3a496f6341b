//! `guard task`: turns a request in one sentence into a reviewed branch; also lists, shows, resumes, decides, cancels
//! and cleans tasks. The `pipeline` module does the work.

use std::io::Write;
use std::path::Path;

use serde_json::json;

use crate::agents::adapter::{MissingKey, missing_key, named};
use crate::agents::exec::Cancel;
use crate::cli::args::task::{Task, TaskBounds, TaskCommand, TaskOutput, TaskTests};
use crate::cli::commands::task_admin::{cancel, clean, decide, list, show};
use crate::cli::commands::task_store::{RESUME_HINT, failed, task_store};
use crate::cli::commands::workflow;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::task_progress::{Form, TaskProgress};
use crate::cli::{Failure, note};
use crate::git::{Repository, Request, TaskTree, WorkspaceError};
use crate::judge::policy::{Config, PolicyDirs};
use crate::run::outcome::ErrorKind;
use crate::session::is_installed;
#[cfg(debug_assertions)]
use crate::work::pipeline::task::journal::Journal;
use crate::work::pipeline::task::journal::TaskRow;
use crate::work::pipeline::{
    Agent, Bounds, Ending, LimitOverrides, PipelineError, Runner, Status, TaskEvent, TaskSettings, TaskStore,
    Workflow, load, name_of, safety,
};

/// The maximum length of a request, in bytes. Users should put a longer request into a file of the repository.
const LONGEST_REQUEST: usize = 110 << 10;

pub(in crate::cli) fn run(arguments: &Task, out: &mut dyn Write) -> Result<Exit, Failure> {
    let task_store = task_store()?;
    match &arguments.command {
        None => begin(arguments, task_store, out),
        Some(TaskCommand::List { json }) => list(&task_store, *json, out),
        Some(TaskCommand::Show { id, json }) => show(&task_store, id.as_deref(), *json, out),
        Some(TaskCommand::Resume { id, bounds, tests, output }) => {
            let resume_from = ResumeFrom::CurrentStep(limit_overrides(bounds), test_command(tests)?);
            resume(task_store, id.as_deref(), resume_from, output, out)
        }
        Some(TaskCommand::Retry { id, from, output }) => {
            resume(task_store, Some(id), ResumeFrom::Step(from), output, out)
        }
        Some(TaskCommand::Approve { id, feedback }) => decide(&task_store, id, true, feedback, out),
        Some(TaskCommand::Reject { id, feedback }) => decide(&task_store, id, false, feedback, out),
        Some(TaskCommand::Clean { ids, all }) => clean(&task_store, ids, *all, out),
        Some(TaskCommand::Cancel { id }) => cancel(&task_store, id, out),
    }
}

fn begin(arguments: &Task, task_store: TaskStore, out: &mut dyn Write) -> Result<Exit, Failure> {
    let request =
        arguments.request.as_ref().or(arguments.task.as_ref()).map(|text| text.trim()).unwrap_or_default();
    if request.is_empty() {
        return Err(Failure::usage(
            "guard task got no request",
            "give a request: guard task \"what the agents are to do\"; see guard task --help",
        ));
    }
    if request.len() > LONGEST_REQUEST {
        let message = format!("the request has {} bytes; the maximum is {LONGEST_REQUEST}", request.len());
        return Err(Failure::usage(
            message,
            "put the text into a file in the repository, and name the file in the request",
        ));
    }
    let workflow = load_workflow(arguments)?;
    let mode = arguments.mode.clone().unwrap_or_else(|| workflow.mode.clone());
    if !workflow.modes.contains_key(&mode) {
        let known: Vec<&str> = workflow.modes.keys().map(String::as_str).collect();
        return Err(Failure::usage(
            format!("the workflow has no mode `{mode}`"),
            format!("the modes of the workflow are {}", known.join(", ")),
        ));
    }
    let id = uuid::Uuid::now_v7().to_string();
    if let Some(missing) =
        missing_keys(&workflow, arguments.agent.as_deref(), arguments.agent_command.as_deref())?
    {
        return report_missing_key(&missing, &arguments.output, out);
    }
    let settings = task_settings(arguments, &task_store, &id, request, workflow, mode)?;
    let journal = task_store.journal().map_err(|error| failed(PipelineError::NotBegun(error.to_string())))?;
    #[cfg(debug_assertions)]
    let journal = kill_at_write(journal, &arguments.output);
    let folder = task_store.task_directory(&id);
    let mut has_begun = false;
    let ended = drive(&arguments.output, out, |cancel, see| {
        let runner = Runner::begin(task_store, journal, &id, request, settings, cancel, see)
            .map_err(|error| PipelineError::NotBegun(error.to_string()))?;
        has_begun = true;
        runner.run()
    });
    if !has_begun {
        let _ = std::fs::remove_dir_all(folder);
    }
    ended
}

/// Returns the first API key that an agent of this workflow needs and that is missing; `None` if no key is missing.
/// Ignores agents that are not installed, because the steps that use these agents report that clearer problem.
fn missing_keys(
    workflow: &Workflow,
    agent: Option<&str>,
    command: Option<&str>,
) -> Result<Option<MissingKey>, Failure> {
    let config = match Config::place() {
        Some(place) => Config::read(&place)
            .map_err(|error| Failure::usage(error.to_string(), "correct the file, or move it away"))?,
        None => Config::default(),
    };
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    for role in workflow.roles.values() {
        let own = workflow.agent_of(role);
        let Some(adapter) = named(agent.unwrap_or(&own.name)) else { continue };
        let adapter = adapter.configured(&config);
        let program =
            command.map(str::to_string).or(own.command).or_else(|| adapter.programs.first().cloned());
        let is_present = program.is_some_and(|program| is_installed(&[program.into()]));
        if let Some(missing) = missing_key(&adapter.presets, &config, is_set).filter(|_| is_present) {
            return Ok(Some(missing));
        }
    }
    Ok(None)
}

/// Reports that an API key is missing. guard has created nothing for the task yet.
fn report_missing_key(
    missing: &MissingKey,
    output: &TaskOutput,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    if output.json || output.stream_json {
        writeln!(
            out,
            "{}",
            json!({ "status": "failed", "reason": missing.to_string(), "error_kind": ErrorKind::AuthError })
        )?;
    }
    note(&format!(
        "guard: {missing}\n  hint: set the key in your environment; guard keeps it outside the sandbox and gives the agent a placeholder"
    ));
    Ok(Exit::OwnFailure)
}

/// Loads the workflow, and replaces its base branch and its limits by those of the command line. Fails if the workflow
/// has no step with the name in a limit.
fn load_workflow(arguments: &Task) -> Result<Workflow, Failure> {
    let mut found = load(&arguments.workflow, &PolicyDirs::from_environment()).map_err(workflow::failure)?;
    if let Some(base) = &arguments.base {
        found.base.clone_from(base);
    }
    let LimitOverrides { task, steps } = limit_overrides(&arguments.bounds);
    let limits = &mut found.limits;
    limits.tokens = task.tokens.or(limits.tokens);
    limits.cost = task.cost.or(limits.cost);
    limits.minutes = task.minutes.or(limits.minutes);
    limits.rounds = task.rounds.unwrap_or(limits.rounds);
    for (id, bounds) in steps {
        let known: Vec<String> = found.steps.iter().map(|step| step.id.clone()).collect();
        let Some(step) = found.steps.iter_mut().find(|step| step.id == id) else {
            let message = format!("the workflow has no step `{id}` to limit");
            return Err(Failure::usage(
                message,
                format!("the steps of the workflow are {}", known.join(", ")),
            ));
        };
        step.limits = bounds.or(step.limits);
    }
    Ok(found)
}

fn task_settings(
    arguments: &Task,
    task_store: &TaskStore,
    id: &str,
    request: &str,
    workflow: Workflow,
    mode: String,
) -> Result<TaskSettings, Failure> {
    let folder = match &arguments.dir {
        Some(folder) => std::path::absolute(folder)?,
        None => std::env::current_dir()?,
    };
    let none = || {
        Failure::usage(
            format!("{} is not in a git repository", folder.display()),
            "change to a repository, or create one with git init",
        )
    };
    let found = Repository::find(&folder).map_err(failed)?.ok_or_else(none)?;
    let repository = Repository { trusted: arguments.trust_repository, ..found };
    let base = format!("refs/heads/{}", workflow.base);
    if repository.commit(&base).map_err(failed)?.is_none() {
        let message = format!("the base branch `{}` does not exist or has no commit", workflow.base);
        return Err(Failure::usage(message, "give another branch with --base, or make a first commit"));
    }
    let gates = gates(arguments, &workflow)?;
    let remote = (!arguments.local).then(|| arguments.remote.clone());
    let found = safety(&repository, remote.as_deref(), &workflow.base);
    if arguments.require_protection && !found.is_protected {
        let hint =
            "protect the branch (require pull requests, block force pushes), or omit --require-protection";
        return Err(Failure::usage(format!("--require-protection: {}", found.line), hint));
    }
    let prefix = arguments.branch_prefix.as_ref().or(workflow.branch_prefix.as_ref());
    let (feat, tree) = plan_worktree(arguments, task_store, id, request, (&repository, &base, prefix))?;
    let directories = workflow.document_directories();
    if let Some(path) = tree.first_non_directory(&tree.base, &directories).map_err(failed)? {
        let message = format!(
            "`{path}` is not a directory in {}, but the workflow stores documents below it",
            workflow.base
        );
        return Err(Failure::usage(message, "set another path with `documents:` in a custom workflow"));
    }
    let tests = test_command(&arguments.tests)?;
    let dirty = repository.toplevel.clone().filter(|_| !repository.bare);
    if let Some(top) = dirty
        && has_changes(&top)
    {
        note("guard: the task does not see your uncommitted changes; they stay in your working tree");
    }
    Ok(TaskSettings {
        who: TaskTree::identity(&repository).map_err(failed)?,
        repository: repository.toplevel.clone().unwrap_or(repository.common_dir.clone()),
        workflow,
        mode,
        feat,
        tree,
        trusted: arguments.trust_repository,
        gates,
        agent: Agent {
            name: arguments.agent.clone().unwrap_or_default(),
            command: arguments.agent_command.clone(),
            model: arguments.model.clone(),
            ..Agent::default()
        },
        tests,
        remote,
        safety: found.line,
    })
}

/// Returns the test command from the options: empty for no tests, `None` if guard should detect it in the project.
fn test_command(arguments: &TaskTests) -> Result<Option<Vec<String>>, Failure> {
    if arguments.no_tests {
        return Ok(Some(Vec::new()));
    }
    let invalid = |problem: String| {
        Failure::usage(format!("--tests: {problem}"), "give a command, such as --tests \"cargo test\"")
    };
    let Some(text) = &arguments.tests else { return Ok(None) };
    let argv = shell_words::split(text).map_err(|error| invalid(error.to_string()))?;
    if argv.is_empty() { Err(invalid("the command is empty".to_string())) } else { Ok(Some(argv)) }
}

fn has_changes(top: &Path) -> bool {
    crate::git::has_changes(top).unwrap_or(false)
}

fn gates(arguments: &Task, workflow: &Workflow) -> Result<Vec<String>, Failure> {
    let known: Vec<&str> = workflow.steps.iter().filter_map(|step| step.gate.as_deref()).collect();
    let gate = |text: &String| match text.split_once('=') {
        Some((gate, "human")) if known.contains(&gate) => Ok(gate.to_string()),
        _ => {
            let hint = format!(
                "give a gate such as --gate plan=human; the workflow's gates are {}",
                known.join(", ")
            );
            Err(Failure::usage(
                format!("--gate {text}: expected GATE=human, where GATE is a gate of the workflow"),
                hint,
            ))
        }
    };
    arguments.gate.iter().map(gate).collect()
}

/// Finds an unused name for the task's branch and worktree. Takes the name that the user gave, and fails if it is in
/// use. Without a given name, derives one from the request and adds a number if it is in use; fails after 99 attempts.
fn plan_worktree(
    arguments: &Task,
    task_store: &TaskStore,
    id: &str,
    request: &str,
    (repository, base, prefix): (&Repository, &str, Option<&String>),
) -> Result<(String, TaskTree), Failure> {
    let first = arguments.name.clone().unwrap_or_else(|| name_of(request));
    let policy = crate::judge::policy::load("strict", &PolicyDirs::from_environment())?;
    let prefix = prefix.unwrap_or(&policy.git.branch_prefix);
    for n in 1..100 {
        let name = if n == 1 { first.clone() } else { format!("{first}-{n}") };
        let wanted = Request {
            run_id: id.to_string(),
            name: Some(name.clone()),
            prefix: prefix.clone(),
            base: Some(base.to_string()),
            fallback_root: task_store.runs.with_file_name("worktrees"),
            ..Request::new(&policy)
        };
        let scratch = task_store.task_directory(id).join("scratch");
        match TaskTree::planned(repository, &wanted, &format!("guard task {id}"), &scratch) {
            Ok(tree) => {
                let prefix = format!("refs/heads/{prefix}");
                let feat = tree.branch.strip_prefix(&prefix).unwrap_or(&name).to_string();
                return Ok((feat, tree));
            }
            // If the user chose the name, guard does not replace it by another.
            Err(WorkspaceError::NameTaken { .. }) if arguments.name.is_none() => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Err(Failure::usage(
        format!("the names `{first}`, and `{first}-2` to `{first}-99`, are all in use"),
        "choose another name with --name",
    ))
}

/// Makes this process kill itself at the journal write that `--die-at` names. Only debug builds have this; tests use it
/// to check that a task survives a crash at every write.
#[cfg(debug_assertions)]
fn kill_at_write(mut journal: Journal, output: &TaskOutput) -> Journal {
    if let Some(last) = output.die_at {
        journal.watch(move |count| {
            if count == last {
                let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
            }
        });
    }
    journal
}

/// Runs a task, shows its progress, and prints how it ended.
fn drive(
    output: &TaskOutput,
    out: &mut dyn Write,
    work: impl FnOnce(Cancel, &mut dyn FnMut(TaskEvent)) -> Result<Ending, PipelineError>,
) -> Result<Exit, Failure> {
    let form = match (output.stream_json, output.json) {
        (true, _) => Form::Events,
        (_, true) => Form::Quiet,
        _ => Form::Lines,
    };
    let cancel = Cancel::default();
    // Handle signals before any other thread starts. If a thread did not block them, a signal would end the process.
    crate::cli::commands::executor::cancel_on_signals(&cancel)?;
    let progress = TaskProgress::new(form);
    let ended = work(cancel, &mut |event| progress.show(&event));
    let ending = match ended {
        Ok(ending) => ending,
        Err(PipelineError::Store(error)) => return own_failure(&error.to_string(), output, out),
        Err(PipelineError::Io { path, source }) => {
            return own_failure(&format!("{}: {source}", path.display()), output, out);
        }
        Err(error) => return Err(failed(error)),
    };
    if form != Form::Lines {
        crate::cli::output::json::to_writer(&mut *out, &ending).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else if ending.status != Status::Succeeded && ending.status != Status::Cancelled {
        note(&format!("guard: `guard task resume {}` continues the task", ending.task_id));
    }
    Ok(match ending.status {
        Status::Succeeded => Exit::Success,
        Status::NeedsHuman => Exit::Ask,
        Status::BudgetExhausted => Exit::TimedOut,
        Status::Interrupted | Status::Cancelled => Exit::Code(130),
        _ => Exit::Problem,
    })
}

fn own_failure(problem: &str, output: &TaskOutput, out: &mut dyn Write) -> Result<Exit, Failure> {
    if output.json || output.stream_json {
        writeln!(
            out,
            "{}",
            json!({ "status": "failed", "reason": problem, "error_kind": ErrorKind::Internal })
        )?;
    }
    note(&format!("guard: {problem}\n  hint: no work is lost; {RESUME_HINT}"));
    Ok(Exit::OwnFailure)
}

enum ResumeFrom<'a> {
    /// The earlier step with this name.
    Step(&'a str),
    /// The step that the task has reached. The fields are the new limits, and the new test
    /// command if the user set one, which is empty to run no tests.
    CurrentStep(LimitOverrides, Option<Vec<String>>),
}

fn limit_overrides(bounds: &TaskBounds) -> LimitOverrides {
    let TaskBounds { max_tokens, max_cost, max_duration, max_minutes, rounds } = bounds;
    let mut overrides = LimitOverrides::default();
    let mut add = |step: &Option<String>, more: Bounds| {
        let known = match step {
            None => &mut overrides.task,
            Some(step) => overrides.steps.entry(step.clone()).or_default(),
        };
        *known = more.or(*known);
    };
    for limit in max_tokens {
        add(&limit.step, Bounds { tokens: Some(limit.value), ..Bounds::default() });
    }
    for limit in max_cost {
        add(&limit.step, Bounds { cost: Some(limit.value), ..Bounds::default() });
    }
    for limit in max_duration {
        add(&limit.step, Bounds { minutes: Some(limit.value as f64 / 60.0), ..Bounds::default() });
    }
    for limit in max_minutes {
        add(&limit.step, Bounds { minutes: Some(limit.value), ..Bounds::default() });
    }
    for limit in rounds {
        add(&limit.step, Bounds { rounds: Some(limit.value), ..Bounds::default() });
    }
    overrides
}

fn resume(
    task_store: TaskStore,
    id: Option<&str>,
    resume_from: ResumeFrom<'_>,
    output: &TaskOutput,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let journal = task_store.journal().map_err(failed)?;
    let id = match id {
        Some(id) => id.to_string(),
        None => {
            let is_open = |task: &TaskRow| {
                !matches!(Status::parse(&task.status), Some(Status::Succeeded | Status::Cancelled))
            };
            let newest = journal.tasks().map_err(failed)?.into_iter().find(is_open);
            newest.map(|task| task.id).ok_or_else(|| {
                Failure::usage("there is no unfinished task", "`guard task list` lists all tasks")
            })?
        }
    };
    #[cfg(debug_assertions)]
    let journal = kill_at_write(journal, output);
    drive(output, out, |cancel, see| {
        let (from, more, tests) = match resume_from {
            ResumeFrom::Step(step) => (Some(step), LimitOverrides::default(), None),
            ResumeFrom::CurrentStep(more, tests) => (None, more, tests),
        };
        let mut runner = Runner::resume(task_store, journal, &id, from, cancel, see)?;
        if more != LimitOverrides::default() {
            runner.raise_limits(more)?;
        }
        if let Some(argv) = tests {
            runner.set_tests(argv)?;
        }
        runner.run()
    })
}
