//! `guard run`: runs a command under a policy in the sandbox, and prints one result.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::agents::adapter::{Profile, missing_key};
use crate::cli::args;
use crate::cli::commands::detach;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::run_plan::show_plan;
use crate::cli::output::run_report::{
    Form, failure_result, print_failure, print_not_started, report, report_launch_failure, report_plan_error,
    report_workspace_problem, result_before_start,
};
use crate::cli::output::terminal_summary;
use crate::cli::session::agent_run;
use crate::cli::session::agent_run::AgentOutput;
use crate::cli::session::defaults::{Defaults, uncommitted_note};
use crate::cli::session::run_workspace::{OpenedWorkspace, WorkspaceRequest};
use crate::cli::session::user_directories::{config_dir, home};
use crate::cli::session::{keep_runs, policy_files};
use crate::cli::{Failure, note};
use crate::judge::policy::{Budget, Config, Policy, Severity};
use crate::run::launch;
use crate::run::launch::{HomeState, Keys, Launch, LaunchPlan, Options, RunRequest, Streams};
use crate::run::outcome::{ErrorKind, RunResult, duration};
use crate::run::transcript::{Line, Observer, runs_dir};
use crate::sys::fs::resolve_existing;
use crate::sys::process;
use crate::text::terminal_text;

/// Runs the command, in this process or in the background (`--detach`), or only prints the plan of the run
/// (`--dry-run`).
pub(in crate::cli) fn run(arguments: &args::Run, out: &mut dyn Write) -> Result<Exit, Failure> {
    // guard may have inherited descriptors, such as the lock of a session. The programs that guard starts must not
    // inherit them: such a program may outlive guard, and would keep the lock.
    process::close_on_exec_from(3)?;
    if !arguments.detach {
        return run_with(arguments, |policy| policy, out).map(|(exit, _)| exit);
    }
    match detach::fork()? {
        detach::Side::Caller(background) => detach::await_start(background, arguments.json, out),
        detach::Side::Run(notifier) => {
            run_or_plan(arguments, |policy| policy, Some(notifier), &mut None, out)
        }
    }
}

/// Runs the command in this process, under the policy that `change` returns, or only prints the plan of the run
/// (`--dry-run`). Also returns the run's id if the run has ended with a result.
pub(in crate::cli) fn run_with(
    arguments: &args::Run,
    change: impl FnOnce(Policy) -> Policy,
    out: &mut dyn Write,
) -> Result<(Exit, Option<String>), Failure> {
    let mut started = None;
    run_or_plan(arguments, change, None, &mut started, out).map(|exit| (exit, started))
}

/// Runs the command, or only prints the plan of the run. If the run is in the background, `notifier` tells the
/// calling process when the command has started. When the run has ended with a result, sets `started` to its id.
fn run_or_plan(
    arguments: &args::Run,
    change: impl FnOnce(Policy) -> Policy,
    notifier: Option<detach::StartNotifier>,
    started: &mut Option<String>,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let form = Form::from_args(arguments);
    // Take the keys out of the environment first, so that no later copy of the environment contains them.
    let (config, keys) = configuration()?;
    let confirmed = with_defaults(arguments, &config)
        .and_then(|(arguments, policy)| policy_files::confirm(&policy).map(|()| (arguments, policy)));
    let (arguments, policy) = match confirmed {
        Ok((arguments, policy)) => (arguments, change(policy)),
        // Callers that read JSON get this error as a result, too.
        Err(Failure::Usage { message, hint }) if form != Form::PassThrough => {
            let duration = duration(Duration::ZERO);
            let result = RunResult { duration, ..failure_result(ErrorKind::ConfigError, &message) };
            print_failure(&result, &hint, form, out)?;
            return Ok(Exit::OwnFailure);
        }
        Err(failure) => return Err(failure),
    };
    let arguments = &arguments;
    for remark in policy.remarks.iter().filter(|remark| remark.severity == Severity::Warning) {
        note(&remark.render(false));
    }
    let has_terminal =
        form == Form::PassThrough && launch::is_interactive(io::stdin().as_fd(), io::stdout().as_fd());
    let profile = agent_run::detect(arguments.agent.as_deref(), &arguments.command, has_terminal, &config)?;
    let mut request = request(arguments, policy, config, &keys, profile.as_ref())?;
    request.options.is_attended = is_attended(arguments);
    if let Some(problem) = profile.as_ref().and_then(|profile| agent_run::version_problem(profile, &request))
    {
        let hint = "`--agent none` runs the command without treating it as an agent";
        print_not_started(&request, ErrorKind::ConfigError, &problem, hint, form, out)?;
        return Ok(Exit::OwnFailure);
    }
    let needs_keys = arguments.require_keys || profile.as_ref().is_some_and(|profile| profile.asks_model);
    // If the program is missing, skip this check: the plan reports that clearer problem.
    if needs_keys && agent_run::is_installed(&request.command) {
        let is_set = |name: &str| request.key_variables.iter().any(|known| known == name);
        if let Some(missing) = missing_key(&request.options.presets, &request.config, is_set) {
            let hint = "set the key in your environment; guard keeps it outside the sandbox and gives the agent a placeholder";
            print_not_started(&request, ErrorKind::AuthError, &missing.to_string(), hint, form, out)?;
            return Ok(Exit::OwnFailure);
        }
    }
    match agent_run::login(arguments.agent_login.as_deref(), profile.as_ref(), &request) {
        Ok(login) => request.options.home_state.login = login,
        Err(problem) => {
            print_not_started(
                &request,
                ErrorKind::AuthError,
                &problem.to_string(),
                &problem.hint(),
                form,
                out,
            )?;
            return Ok(Exit::OwnFailure);
        }
    }
    if let Some(Err(error)) = arguments.dir.as_deref().map(launch::check_links) {
        return report_plan_error(&request, &error, form, out);
    }
    // Exclude programs in the run's directory before guard searches PATH for any program.
    launch::distrust(&request.folder);
    let run_id = run_id();
    if arguments.dry_run {
        match workspace_request(arguments, &request, &run_id).planned() {
            Ok(Some((checkout, folder))) => {
                request.folder = folder;
                request.checkout = Some(checkout);
            }
            Ok(None) => {}
            Err(problem) => return report_workspace_problem(&request, &problem, form, out),
        }
        if let Some(profile) = &profile {
            agent_run::prepare(profile, &mut request);
        }
        return match launch::plan(&request, run_id) {
            Ok(plan) => show_plan(&plan, form, out),
            Err(error) => report_plan_error(&request, &error, form, out),
        };
    }
    let reader = profile.as_ref().map(|profile| -> Box<dyn launch::OutputReader> {
        Box::new(AgentOutput::new(profile, has_terminal))
    });
    // guard takes what an agent prints as the agent's own words. A command of the agent's CLI that asks no model is
    // like any other command.
    let is_sealed = arguments.seal_stdio || profile.as_ref().is_some_and(|profile| profile.asks_model);
    let mut streams = streams(form, is_sealed, reader)?;
    if notifier.is_some() {
        // The transcript contains the command's output. Standard error is only for guard's messages before the
        // command starts.
        (streams.output, streams.error, streams.notes) = (None, None, None);
    }
    let mut launch = Launch::new(request, run_id)?;
    let OpenedWorkspace { task, folder } =
        match workspace_request(arguments, &launch.request, launch.run_id()).open() {
            Ok(opened) => opened,
            Err(problem) => return report_workspace_problem(&launch.request, &problem, form, out),
        };
    launch.request.folder = folder;
    if let Some(task) = task {
        launch.use_worktree(task);
    }
    if let Some(profile) = &profile {
        agent_run::prepare(profile, &mut launch.request);
    }
    let planned = match launch.plan(keys) {
        Ok(planned) => planned,
        Err(error) => return report_plan_error(&launch.request, &error, form, out),
    };
    match launch.take_snapshot(&planned) {
        Ok(notes) => notes.iter().for_each(|text| note(&terminal_text::replace(&format!("guard: {text}")))),
        Err(error) => return report_workspace_problem(&launch.request, &error.into(), form, out),
    }
    let not_started = result_before_start(&planned.plan);
    // A person at a terminal gets one line at the beginning and one at the end. Programs, log files and users of `-v`
    // get the whole summary at the end.
    let is_seen_by_a_person = form == Form::PassThrough && io::stderr().is_terminal();
    let one_line = is_seen_by_a_person && !crate::cli::output::logging::is_verbose();
    if has_terminal && !arguments.quiet {
        note(&terminal_summary::beginning(&planned.plan));
    }
    let observer = match notifier {
        Some(notifier) => Some(notifier.observer(launch.run_id())),
        None => observer(form),
    };
    match launch.run(planned, streams, observer) {
        Ok(finished) => {
            *started = Some(finished.result.run_id.clone());
            let exit = report(&finished, form, arguments.quiet, one_line, out)?;
            out.flush()?;
            if form == Form::PassThrough && !arguments.quiet && arguments.dir.is_none() {
                note_uncommitted_policy(&finished.result);
            }
            keep_runs::delete_old_runs(&launch.request.config.state, launch.run_id());
            if finished.result.snapshot.is_some() {
                keep_runs::delete_old_snapshots(&launch.request.config.state, launch.run_id());
            }
            if has_terminal {
                crate::cli::commands::allow::save_answered(&finished.result);
            }
            Ok(exit)
        }
        Err(failure) => report_launch_failure(not_started, &failure, form, out),
    }
}

/// After a refusal that a rule could have lifted, tells the user if the project's policy has changes that are not in the
/// commit that the run started at.
fn note_uncommitted_policy(result: &RunResult) {
    let is_liftable = result.denials.iter().any(|denial| denial.allow_with.is_some());
    if let Some(uncommitted) = is_liftable.then(uncommitted_note).flatten() {
        note(&format!("guard: {uncommitted}"));
    }
}

/// Returns true if a person is at the terminal and can end a run that takes too long. Then guard applies only the
/// time limits on the command line.
fn is_attended(arguments: &args::Run) -> bool {
    Form::from_args(arguments) == Form::PassThrough && io::stdin().is_terminal()
}

/// Completes the arguments with the defaults of the project and the user, and loads the policy with the rules of
/// `--allow`. Fails if the user does not confirm what the project asks for.
fn with_defaults(arguments: &args::Run, config: &Config) -> Result<(args::Run, Policy), Failure> {
    let directory = match &arguments.dir {
        Some(directory) => directory.clone(),
        None => std::env::current_dir().unwrap_or_default(),
    };
    let defaults =
        Defaults::find(&directory, arguments.base.as_deref(), arguments.policy.as_deref(), config)?;
    defaults.confirm()?;
    let mut arguments = arguments.clone();
    let is_attended = is_attended(&arguments);
    defaults.complete(&mut arguments, is_attended);
    let prefix = defaults.branch_prefix().map(str::to_string);
    let mut policy = crate::cli::commands::allow::allow_for_one_run(defaults.policy, &arguments.allow)?;
    if let Some(prefix) = prefix {
        if !crate::judge::policy::is_branch_prefix(&prefix) {
            return Err(Failure::usage(
                format!("branch_prefix = {prefix:?} is not a valid prefix of a branch name"),
                "set a prefix such as \"task/\"; `guard config show --origin` says which file sets it",
            ));
        }
        policy.git.branch_prefix = prefix;
    }
    Ok((arguments, policy))
}

/// Asks the user about what needs a confirmation before a run in a directory: what the project asks for beyond what the
/// user allows, and policy files that a run may have changed. `policy` is the policy that the command line names, if any.
pub(in crate::cli) fn confirm_defaults(directory: &Path, policy: Option<&str>) -> Result<(), Failure> {
    let defaults = Defaults::find(directory, None, policy, &user_config()?)?;
    defaults.confirm()?;
    policy_files::confirm(&defaults.policy)
}

/// Returns the plan for a run of `/bin/true` in the current directory, from which guard answers questions about what
/// a run may access.
pub(in crate::cli) fn plan_here(policy: Option<&str>) -> Result<LaunchPlan, Failure> {
    let parsed = <args::Cli as clap::Parser>::try_parse_from(["guard", "run", "--", "/bin/true"]);
    let Ok(args::Cli { command: args::Command::Run(mut arguments), .. }) = parsed else {
        return Err(Failure::usage(
            "guard cannot plan a run in this directory",
            "`guard run --dry-run -- true` shows the reason",
        ));
    };
    arguments.policy = policy.map(str::to_string);
    let (config, keys) = configuration()?;
    let (arguments, policy) = with_defaults(&arguments, &config)?;
    let mut request = request(&arguments, policy, config, &keys, None)?;
    let run_id = run_id();
    let planned = workspace_request(&arguments, &request, &run_id).planned();
    if let Some((checkout, folder)) =
        planned.map_err(|problem| Failure::usage(problem.message, problem.hint))?
    {
        request.folder = folder;
        request.checkout = Some(checkout);
    }
    launch::plan(&request, run_id).map_err(|error| {
        Failure::usage(
            error.to_string(),
            "correct the option, variable, directory or policy that the message names",
        )
    })
}

/// Returns the policy with which guard answers questions: the one that the user named, or the one that runs in the
/// current directory would use.
pub(in crate::cli) fn policy_here(named: Option<&str>) -> Result<Policy, Failure> {
    let config = user_config()?;
    let directory = std::env::current_dir().unwrap_or_default();
    Ok(Defaults::find(&directory, None, named, &config)?.policy)
}

fn workspace_request<'a>(
    arguments: &'a args::Run,
    request: &'a RunRequest,
    run_id: &'a str,
) -> WorkspaceRequest<'a> {
    WorkspaceRequest {
        arguments,
        policy: &request.policy,
        folder: &request.folder,
        run_id,
        runs: &request.runs,
    }
}

/// Creates the id of a new run. Ids sort by time and contain no other information.
fn run_id() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// Reads the user's configuration, and removes the API keys from the environment.
pub(in crate::cli) fn configuration() -> Result<(Config, Keys), Failure> {
    let config = user_config()?;
    let keys = Keys::take(&config);
    Ok((config, keys))
}

/// Reads the user's configuration file; without a file, returns the defaults. Fails if guard cannot read or parse the
/// file, or if a section `[agent.NAME]` names an agent for which guard cannot copy a login.
pub(in crate::cli) fn user_config() -> Result<Config, Failure> {
    let config = match Config::place() {
        Some(place) => Config::read(&place)
            .map_err(|error| Failure::usage(error.to_string(), "correct the file, or move it away"))?,
        None => Config::default(),
    };
    for name in config.agent.keys() {
        if crate::agents::adapter::named(name).is_none_or(|agent| agent.login.is_none()) {
            let known = crate::agents::adapter::AGENTS
                .iter()
                .filter_map(|(name, _)| crate::agents::adapter::named(name));
            let known: Vec<String> =
                known.filter(|agent| agent.login.is_some()).map(|agent| agent.name).collect();
            let message = format!(
                "[agent.{name}] in config.toml: guard knows no agent `{name}` whose login it can copy"
            );
            return Err(Failure::usage(
                message,
                format!(
                    "remove the section, or use an agent whose login guard can copy: {}",
                    known.join(", ")
                ),
            ));
        }
    }
    Ok(config)
}

/// Converts the amount of money of `--max-cost` to millionths. Fails unless the amount is above 0 and at most
/// 1,000,000.
fn micros(amount: f64) -> Result<u64, Failure> {
    if amount > 0.0 && amount <= 1e6 {
        return Ok(((amount * 1e6).round() as u64).max(1));
    }
    Err(Failure::usage(
        format!("--max-cost {amount}: the amount must be above 0 and at most 1000000"),
        "give an amount such as --max-cost 2.50",
    ))
}

fn request(
    arguments: &args::Run,
    policy: Policy,
    config: Config,
    keys: &Keys,
    profile: Option<&Profile>,
) -> Result<RunRequest, Failure> {
    let folder = match &arguments.dir {
        Some(folder) => folder.clone(),
        None => std::env::current_dir().map_err(|error| {
            Failure::usage(
                format!("cannot determine the current directory: {error}"),
                "change to a directory that exists, or give one with --dir DIR",
            )
        })?,
    };
    let mut set = Vec::new();
    for pair in &arguments.env {
        let bytes = pair.as_bytes();
        let Some(at) = bytes.iter().position(|&byte| byte == b'=').filter(|&at| at > 0) else {
            // `--env NAME` without `=` passes the value that the variable has in guard's own environment.
            let kept = keys.others(&[]).into_iter().find(|(name, _)| name == pair).map(|(_, value)| value);
            let value = std::env::var_os(pair).or(kept).ok_or_else(|| {
                Failure::usage(
                    format!(
                        "--env {}: the variable is not set in guard's environment",
                        pair.to_string_lossy()
                    ),
                    "set the variable, or give a value with --env NAME=VALUE",
                )
            })?;
            set.push((pair.clone(), value));
            continue;
        };
        let text = |bytes: &[u8]| std::ffi::OsStr::from_bytes(bytes).to_os_string();
        set.push((text(&bytes[..at]), text(&bytes[at + 1..])));
    }
    let runs = runs_dir().map_err(|error| {
        Failure::usage(error.to_string(), "set XDG_STATE_HOME or HOME to an absolute path")
    })?;
    let of_agent = profile.iter().flat_map(|profile| &profile.adapter.presets);
    let of_agent = of_agent.filter(|preset| !arguments.preset.contains(preset));
    let requested_presets: Vec<String> = arguments.preset.iter().chain(of_agent).cloned().collect();
    let hosts_of_agent = profile.map(|profile| profile.adapter.hosts()).unwrap_or_default();
    // guard keeps out of the run only the keys that the gateways of this run use. It treats other keys like any other
    // variable.
    let presets = policy.network.presets.iter().chain(&requested_presets);
    let gateways =
        presets.filter_map(|name| crate::judge::policy::preset(name)).flat_map(|preset| preset.gateway);
    let kept: Vec<&str> = gateways
        .filter_map(|gateway| crate::judge::policy::key_variables(&gateway.name))
        .flatten()
        .copied()
        .collect();
    let passed_on = keys.others(&kept);
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    Ok(RunRequest {
        command: arguments.command.clone(),
        folder,
        policy,
        environment: std::env::vars_os().chain(passed_on).collect(),
        home: home(),
        // The sandbox opens granted paths without following links, and these directories may be links of the user.
        runs: resolve_existing(&runs),
        scratch: resolve_existing(&std::env::temp_dir()),
        uid: nix::unistd::geteuid().as_raw(),
        options: Options {
            namespaces: arguments.namespaces.map(Into::into),
            read: arguments.read.iter().map(absolute).collect(),
            write: arguments.write.iter().map(absolute).collect(),
            set,
            no_toolchains: arguments.no_toolchains,
            no_shims: arguments.no_shims,
            idle_seconds: arguments.timeout,
            total_seconds: arguments.max_duration,
            is_attended: false,
            is_users_worktree: arguments.here,
            no_verify: arguments.no_verify,
            allow_unprotected_repositories: arguments.allow_unprotected_repositories,
            home_state: HomeState {
                from: arguments.home_from.iter().map(absolute).collect(),
                to: arguments.home_to.as_ref().map(absolute),
                keep: arguments.home_keep.clone(),
                history: None,
                login: None,
            },
            home_files: home_files(&arguments.home_file)?,
            hosts: arguments.allow_host.iter().cloned().chain(hosts_of_agent).collect(),
            listen: arguments.listen.clone(),
            presets: requested_presets,
            budget: Budget {
                max_tokens: arguments.max_tokens,
                max_requests: arguments.max_requests,
                max_cost_micros: arguments.max_cost.map(micros).transpose()?,
            },
        },
        checkout: None,
        config,
        config_dir: config_dir(),
        key_variables: keys.names(),
    })
}

/// Parses the `PATH=TEXT` values of `--home-file`. Each path must be relative to the home directory and must not
/// contain `..`.
fn home_files(given: &[String]) -> Result<Vec<(PathBuf, String)>, Failure> {
    let file = |given: &String| {
        let (path, text) = given.split_once('=')?;
        let is_plain = !path.is_empty()
            && Path::new(path).components().all(|part| matches!(part, std::path::Component::Normal(_)));
        is_plain.then(|| (PathBuf::from(path), text.to_string()))
    };
    let bad = |given: &String| {
        let path: String = given.chars().take_while(|c| *c != '=').take(100).collect();
        Failure::usage(
            format!("--home-file {path}: expected PATH=TEXT with a relative path without `..`"),
            "give a path inside the home, such as --home-file .config/tool.toml=TEXT",
        )
    };
    given.iter().map(|given| file(given).ok_or_else(|| bad(given))).collect()
}

fn streams(
    form: Form,
    is_sealed: bool,
    reader: Option<Box<dyn launch::OutputReader>>,
) -> Result<Streams, Failure> {
    let own = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned();
    let is_terminal = match form {
        Form::PassThrough => [
            launch::is_interactive(io::stdin().as_fd(), io::stdout().as_fd()),
            io::stdout().is_terminal(),
            io::stderr().is_terminal(),
        ],
        // With JSON on standard output there is no terminal for the agent to use.
        Form::Json | Form::Stream => [false; 3],
    };
    let through = form == Form::PassThrough;
    let input: OwnedFd = if !through && io::stdin().is_terminal() {
        std::fs::File::open("/dev/null")?.into()
    } else {
        own(&io::stdin())?
    };
    let questions = if is_terminal[0] && is_terminal[2] { Some(own(&io::stderr())?) } else { None };
    Ok(Streams {
        input,
        output: if through { Some(own(&io::stdout())?) } else { None },
        error: if through { Some(own(&io::stderr())?) } else { None },
        is_terminal,
        is_sealed,
        questions,
        notes: if io::stderr().is_terminal() { Some(own(&io::stderr())?) } else { None },
        reader,
    })
}

/// Returns an observer that prints each event when guard records it. Returns `None` unless the output is a stream, or
/// if guard cannot duplicate the descriptor of standard output.
fn observer(form: Form) -> Option<Observer> {
    if form != Form::Stream {
        return None;
    }
    // Do not use the standard library's line buffer, which would split long lines into two writes.
    let out = io::stdout().as_fd().try_clone_to_owned().ok()?;
    let is_terminal = io::stdout().is_terminal();
    let mut whole = Vec::new();
    Some(Box::new(move |line: &Line<'_>| {
        whole.clear();
        if is_terminal {
            let _ = crate::cli::output::json::write_stored(&mut whole, line.json);
        } else {
            whole.extend_from_slice(line.json);
        }
        whole.push(b'\n');
        // A closed pipe must not end the run, because the transcript records everything.
        let _ = launch::write_to_caller(&out, &whole);
    }))
}
