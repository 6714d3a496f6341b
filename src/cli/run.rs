//! `guard run`: runs a command under a policy in the sandbox, and prints one result.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::agent_run::{self, AgentOutput};
use super::args;
use super::defaults::Defaults;
use super::exit_code::Exit;
use super::run_workspace::{OpenedWorkspace, WorkspaceProblem, WorkspaceRequest};
use super::{Failure, detach, keep_runs, note, terminal_summary};
use crate::agent::{Profile, missing_key};
use crate::launch::{
    self, Finished, HomeState, Keys, Launch, LaunchError, LaunchPlan, Options, RunRequest, Streams,
};
use crate::outcome::{Denial, ErrorDetail, ErrorKind, HostTraffic, RunResult, TranscriptPlace, duration};
use crate::policy::{Budget, Config, Policy, Severity};
use crate::terminal_text;
use crate::transcript::{EventType, Line, Observer, runs_dir};
use crate::workspace::{self, Record};

/// Runs the command, here or in the background (`--detach`), or only prints the plan of the run (`--dry-run`).
pub(super) fn run(arguments: &args::Run, out: &mut dyn Write) -> Result<Exit, Failure> {
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

/// Like [`run`], but changes the policy before the run. Also returns the run's id if the command was started.
pub(super) fn run_with(
    arguments: &args::Run,
    change: impl FnOnce(Policy) -> Policy,
    out: &mut dyn Write,
) -> Result<(Exit, Option<String>), Failure> {
    let mut started = None;
    run_or_plan(arguments, change, None, &mut started, out).map(|exit| (exit, started))
}

/// Runs the command, or only prints the plan of the run. In the background, `notifier` tells the caller when the
/// command has started.
fn run_or_plan(
    arguments: &args::Run,
    change: impl FnOnce(Policy) -> Policy,
    notifier: Option<detach::StartNotifier>,
    started: &mut Option<String>,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let form = Form::from_args(arguments);
    // First, so that no copy of the environment contains a key.
    let (config, keys) = configuration()?;
    let (arguments, policy) = match with_defaults(arguments, &config) {
        Ok((arguments, policy)) => (arguments, change(policy)),
        // Callers that read JSON get this as a result, too.
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
    request.options.is_attended = form == Form::PassThrough && io::stdin().is_terminal();
    if let Some(problem) = profile.as_ref().and_then(|profile| agent_run::version_problem(profile, &request))
    {
        let hint = "`--agent none` runs the command without treating it as an agent";
        print_not_started(&request, ErrorKind::ConfigError, &problem, hint, form, out)?;
        return Ok(Exit::OwnFailure);
    }
    let needs_keys = arguments.require_keys || profile.as_ref().is_some_and(|profile| profile.asks_model);
    // A missing program is the clearer problem, and the plan reports it.
    if needs_keys && agent_run::is_installed(&request.command) {
        let is_set = |name: &str| request.key_variables.iter().any(|known| known == name);
        if let Some(missing) = missing_key(&request.options.presets, &request.config, is_set) {
            let hint = "guard keeps the key outside the sandbox and gives the agent only a placeholder";
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
    // Before any program is searched for on PATH.
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
    let mut streams = streams(form, reader)?;
    if notifier.is_some() {
        // The transcript has the output. Standard error is only for what guard says before the command starts.
        (streams.output, streams.error) = (None, None);
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
    let not_started = result_before_start(&planned.plan);
    // A person reads one line at the beginning and one at the end; programs and logs get the whole summary.
    let one_line = has_terminal && !super::logging::is_verbose();
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
            keep_runs::delete_old_runs(&launch.request.config.state, launch.run_id());
            if has_terminal {
                super::allow::save_answered(&finished.result);
            }
            Ok(exit)
        }
        Err(failure) => report_launch_failure(not_started, &failure, form, out),
    }
}

/// Completes the arguments with the defaults of the project and the user, and loads the policy.
fn with_defaults(arguments: &args::Run, config: &Config) -> Result<(args::Run, Policy), Failure> {
    let directory = match &arguments.dir {
        Some(directory) => directory.clone(),
        None => std::env::current_dir().unwrap_or_default(),
    };
    let defaults =
        Defaults::find(&directory, arguments.base.as_deref(), arguments.policy.as_deref(), config)?;
    defaults.confirm()?;
    let mut arguments = arguments.clone();
    defaults.complete(&mut arguments);
    let prefix = defaults.branch_prefix().map(str::to_string);
    let mut policy = super::allow::allow_for_one_run(defaults.policy, &arguments.allow)?;
    if let Some(prefix) = prefix {
        if !crate::policy::is_branch_prefix(&prefix) {
            return Err(Failure::usage(
                format!("branch_prefix = {prefix:?} is not the beginning of a branch name"),
                "such as \"task/\"; `guard config show --origin` says where it is",
            ));
        }
        policy.git.branch_prefix = prefix;
    }
    Ok((arguments, policy))
}

/// The plan for a run of `/bin/true` in the current directory, for answering questions about what a run may access.
pub(super) fn plan_here(policy: Option<&str>) -> Result<LaunchPlan, Failure> {
    let parsed = <args::Cli as clap::Parser>::try_parse_from(["guard", "run", "--", "/bin/true"]);
    let Ok(args::Cli { command: args::Command::Run(mut arguments), .. }) = parsed else {
        return Err(Failure::usage("the run cannot be planned", "`guard run --dry-run -- true` says why"));
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
        Failure::usage(error.to_string(), "`guard run --dry-run -- COMMAND` shows what a run would be")
    })
}

/// The policy for answering questions: the one that the user named, or the one that runs in the current directory would
/// use.
pub(super) fn policy_here(named: Option<&str>) -> Result<Policy, Failure> {
    let (config, _) = configuration()?;
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

/// The output format of `guard run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The agent's output as it is, and a summary at the end.
    PassThrough,
    /// One JSON object at the end.
    Json,
    /// Every event as a JSON line, with the result as the last one.
    Stream,
}

impl Form {
    fn from_args(arguments: &args::Run) -> Self {
        match (arguments.stream_json, arguments.json) {
            (true, _) => Self::Stream,
            (false, true) => Self::Json,
            (false, false) => Self::PassThrough,
        }
    }
}

/// Creates the id of a new run. Ids sort by time and reveal nothing else.
fn run_id() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// Reads the user's configuration, and takes the API keys out of the environment.
pub(super) fn configuration() -> Result<(Config, Keys), Failure> {
    let config = match Config::place() {
        Some(place) => Config::read(&place)
            .map_err(|error| Failure::usage(error.to_string(), "correct the file, or move it away"))?,
        None => Config::default(),
    };
    for name in config.agent.keys() {
        if crate::agent::named(name).is_none_or(|agent| agent.login.is_none()) {
            let known = crate::agent::AGENTS.iter().filter_map(|(name, _)| crate::agent::named(name));
            let known: Vec<String> =
                known.filter(|agent| agent.login.is_some()).map(|agent| agent.name).collect();
            let message =
                format!("[agent.{name}] in config.toml: guard knows no agent `{name}` with a login");
            return Err(Failure::usage(message, format!("agents with a login: {}", known.join(", "))));
        }
    }
    let keys = Keys::take(&config);
    Ok((config, keys))
}

/// Converts an amount of money to millionths.
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
            // A bare name passes the caller's own value.
            let kept = keys.others(&[]).into_iter().find(|(name, _)| name == pair).map(|(_, value)| value);
            let value = std::env::var_os(pair).or(kept).ok_or_else(|| {
                Failure::usage(
                    format!(
                        "--env {}: the variable is not set in guard's environment",
                        pair.to_string_lossy()
                    ),
                    "set it, or give a value with --env NAME=VALUE",
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
    // A key that no gateway uses is a variable like any other.
    let presets = policy.network.presets.iter().chain(&requested_presets);
    let gateways = presets.filter_map(|name| crate::policy::preset(name)).flat_map(|preset| preset.gateway);
    let kept: Vec<&str> = gateways
        .filter_map(|gateway| crate::policy::key_variables(&gateway.name))
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
        runs,
        scratch: std::env::temp_dir(),
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

/// Parses the `PATH=TEXT` values of `--home-file`. Each path must be relative to the home directory and without `..`.
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

/// The directory of the user's configuration and policies.
pub(super) fn config_dir() -> Option<PathBuf> {
    Config::place()?.parent().map(PathBuf::from)
}

/// The caller's home directory.
pub(super) fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute())
}

fn streams(form: Form, reader: Option<Box<dyn launch::OutputReader>>) -> Result<Streams, Failure> {
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
        questions,
        reader,
    })
}

/// An observer that prints each event when guard records it; `None` unless the output is a stream.
fn observer(form: Form) -> Option<Observer> {
    if form != Form::Stream {
        return None;
    }
    // Not through the standard library's line buffer, which would split long lines into two writes.
    let out = io::stdout().as_fd().try_clone_to_owned().ok()?;
    let mut whole = Vec::new();
    Some(Box::new(move |line: &Line<'_>| {
        whole.clear();
        whole.extend_from_slice(line.json);
        whole.push(b'\n');
        // A missing reader must not end the run: the transcript has everything.
        let _ = launch::write_to_caller(&out, &whole);
    }))
}

fn show_plan(plan: &LaunchPlan, form: Form, out: &mut dyn Write) -> Result<Exit, Failure> {
    if form != Form::PassThrough {
        serde_json::to_writer_pretty(&mut *out, plan).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(Exit::Success);
    }
    let words: Vec<_> = plan.argv.iter().map(|word| word.to_string_lossy()).collect();
    writeln!(out, "command      {}", words.join(" "))?;
    writeln!(out, "program      {}", plan.program.display())?;
    writeln!(out, "directory    {}", plan.folder.display())?;
    if let Some(checkout) = &plan.checkout {
        let base = checkout.base.get(..12).unwrap_or(&checkout.base);
        writeln!(out, "worktree     {}", checkout.worktree.display())?;
        writeln!(out, "branch       {} from {base}", checkout.branch)?;
    }
    writeln!(out, "policy       {}", plan.policy)?;
    if let Some(login) = &plan.home_state.login {
        writeln!(out, "login        a copy of {}, which the agent can read", login.source.display())?;
    }
    writeln!(out, "namespaces   {}", plan.namespaces.name())?;
    writeln!(out, "verify exec  {}", if plan.verify_exec { "yes" } else { "no" })?;
    writeln!(out, "\nfiles (access to all others is denied)")?;
    for grant in &plan.grants {
        writeln!(out, "  {}  {}  ({})", grant.rights.letters(), grant.path.display(), grant.why)?;
    }
    for grant in &plan.settings_above {
        let covered = "unless namespaces hide them";
        writeln!(out, "  {}  {}  ({}, {covered})", grant.rights.letters(), grant.path.display(), grant.why)?;
    }
    writeln!(out, "\nmounts, if the run has namespaces")?;
    for at in plan.view.own() {
        writeln!(out, "  private    {}", at.display())?;
    }
    for hidden in &plan.view.hidden {
        writeln!(out, "  hidden     {}", hidden.display())?;
    }
    for layer in &plan.view.layers {
        writeln!(out, "  layered    {} over {}", layer.at.display(), layer.lower.display())?;
    }
    for repository in &plan.protected_repositories {
        writeln!(out, "  read-only  {}", repository.display())?;
    }
    writeln!(out, "  read-only  all paths without `w` above, including their metadata")?;
    writeln!(out, "\nnetwork")?;
    writeln!(
        out,
        "  loopback   {}",
        if plan.network.loopback { "servers the run itself starts" } else { "no" }
    )?;
    for port in &plan.network.listen {
        writeln!(out, "  listen     127.0.0.1:{port}, also for 0.0.0.0 and ::")?;
    }
    if plan.network.allow.is_empty() {
        writeln!(out, "  hosts      none; the proxy denies all requests")?;
    }
    for host in &plan.network.allow {
        writeln!(out, "  host       {}  ({})", host.entry, host.why)?;
    }
    for host in &plan.network.deny {
        writeln!(out, "  denied     {host}")?;
    }
    for gateway in &plan.network.gateways {
        let key = gateway.key.as_ref();
        let key = key.map(|key| format!(", key {key}, added outside the sandbox")).unwrap_or_default();
        writeln!(out, "  gateway    {} to {}{key}", gateway.name, gateway.upstream)?;
    }
    let budget = &plan.network.budget;
    let bound = |value: Option<u64>| value.map_or("none".to_string(), |value| value.to_string());
    if *budget != Budget::default() {
        let cost =
            budget.max_cost_micros.map_or("none".to_string(), |micros| format!("{}", micros as f64 / 1e6));
        let (tokens, requests) = (bound(budget.max_tokens), bound(budget.max_requests));
        writeln!(out, "  budget     tokens {tokens}, requests {requests}, cost {cost}")?;
    }
    writeln!(out, "\nvariables")?;
    let hidden = |name: &OsString| {
        plan.redact.iter().any(|text| {
            crate::policy::Pattern::new(text).is_ok_and(|pattern| pattern.matches(name.as_bytes()))
        })
    };
    for (name, value) in &plan.environment {
        let value = if hidden(name) { "[redacted]".into() } else { value.to_string_lossy() };
        writeln!(out, "  {}={value}", name.to_string_lossy())?;
    }
    writeln!(out, "\nlimits")?;
    let limits = serde_json::to_value(&plan.limits).unwrap_or_default();
    for (name, value) in limits.as_object().into_iter().flatten() {
        writeln!(
            out,
            "  {name:<14} {}",
            if value.is_null() { "none".to_string() } else { value.to_string() }
        )?;
    }
    for text in &plan.notes {
        writeln!(out, "\nnote: {text}")?;
    }
    if let Some(reason) = &plan.needs_view {
        writeln!(out, "\nnote: this run needs namespaces: {reason}")?;
    }
    Ok(Exit::Success)
}

/// Reports that a run cannot be planned. guard has created nothing, and there is no transcript.
fn report_plan_error(
    request: &RunRequest,
    error: &LaunchError,
    form: Form,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let (kind, exit, hint) = match error {
        LaunchError::CommandNotFound(_) => (
            ErrorKind::CommandNotFound,
            Exit::CommandNotFound,
            "check the name, or give the program's path; guard searches your PATH",
        ),
        LaunchError::NotExecutable { .. } => {
            (ErrorKind::InvalidInput, Exit::CannotExecute, "give a program that is executable")
        }
        _ => (
            ErrorKind::InvalidInput,
            Exit::OwnFailure,
            "`guard run --dry-run -- COMMAND` shows how guard would run the command",
        ),
    };
    let tool = request.command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let result = RunResult {
        tool: Path::new(&tool)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default(),
        policy: request.policy.name.clone(),
        duration: duration(Duration::ZERO),
        ..failure_result(kind, &error.to_string())
    };
    print_failure(&result, hint, form, out)?;
    Ok(exit)
}

/// Reports that the worktree of a run cannot be created. The run was not started, and guard has left nothing behind.
fn report_workspace_problem(
    request: &RunRequest,
    problem: &WorkspaceProblem,
    form: Form,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    print_not_started(request, problem.kind, &problem.message, &problem.hint, form, out)?;
    Ok(problem.exit)
}

/// Prints a result that says that the run was not started, and why.
fn print_not_started(
    request: &RunRequest,
    kind: ErrorKind,
    problem: &str,
    hint: &str,
    form: Form,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let tool = request.command.first().map(Path::new).and_then(Path::file_name);
    let result = RunResult {
        tool: tool.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        policy: request.policy.name.clone(),
        duration: duration(Duration::ZERO),
        ..failure_result(kind, problem)
    };
    print_failure(&result, hint, form, out)
}

/// The result of a run that has not begun. It contains only what the plan says.
fn result_before_start(plan: &LaunchPlan) -> RunResult {
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

fn report_launch_failure(
    not_started: RunResult,
    failure: &launch::Failure,
    form: Form,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let (kind, hint) = match failure {
        launch::Failure::Unavailable { needs, .. } => {
            let fixes: Vec<&str> = needs.iter().map(|need| need.fix.as_str()).collect();
            (
                ErrorKind::SandboxUnavailable,
                format!("{}; `guard doctor` shows what this machine supports", fixes.join("; ")),
            )
        }
        launch::Failure::Canary(_) => (
            ErrorKind::SandboxUnavailable,
            "this kernel does not enforce the sandbox as documented; please report it".to_string(),
        ),
        _ => (ErrorKind::Internal, "`guard doctor` shows what this machine supports".to_string()),
    };
    let RunResult { error, error_kind, error_detail, .. } = failure_result(kind, &failure.to_string());
    let result = RunResult { error, error_kind, error_detail, ..not_started };
    print_failure(&result, &hint, form, out)?;
    Ok(Exit::OwnFailure)
}

fn failure_result(kind: ErrorKind, message: &str) -> RunResult {
    RunResult {
        error: Some(message.to_string()),
        error_kind: Some(kind),
        error_detail: Some(ErrorDetail { message: message.to_string(), ..ErrorDetail::default() }),
        ..RunResult::default()
    }
}

fn print_failure(result: &RunResult, hint: &str, form: Form, out: &mut dyn Write) -> Result<(), Failure> {
    if form == Form::PassThrough {
        note(&format!("guard: {}\n  hint: {hint}", result.error.as_deref().unwrap_or_default()));
    } else {
        print_result(result, out)?;
    }
    Ok(())
}

fn print_result(result: &RunResult, out: &mut dyn Write) -> Result<(), Failure> {
    serde_json::to_writer(&mut *out, result).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

fn report(
    finished: &Finished,
    form: Form,
    quiet: bool,
    one_line: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let result = &finished.result;
    if form == Form::PassThrough {
        if !quiet && one_line {
            note(&terminal_summary::ending(result));
        } else if !quiet {
            for line in summary(result) {
                note(&terminal_text::replace(&line));
            }
        } else if is_ended_by_limit(result) {
            note(&terminal_text::replace(&format!("guard: {}", result.error.as_deref().unwrap_or_default())));
        }
    } else {
        print_result(result, out)?;
    }
    Ok(exit_of(result))
}

/// The exit code of a run with this result.
pub(super) fn exit_of(result: &RunResult) -> Exit {
    match result.error_kind {
        Some(
            ErrorKind::IdleTimeout | ErrorKind::Timeout | ErrorKind::BudgetExhausted | ErrorKind::RecordFull,
        ) => Exit::TimedOut,
        Some(ErrorKind::Internal | ErrorKind::ReceiveRefused | ErrorKind::BoundaryBroken) => Exit::OwnFailure,
        Some(ErrorKind::CommandNotFound) if result.exit_code.is_none() => Exit::CommandNotFound,
        Some(ErrorKind::PolicyDenied) => Exit::CannotExecute,
        Some(ErrorKind::UpstreamError) if result.exit_code.is_none() => Exit::CannotExecute,
        _ => Exit::Code(result.exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(125)),
    }
}

/// Whether guard ended the run because of a limit. guard prints this even if the user wants no summary.
fn is_ended_by_limit(result: &RunResult) -> bool {
    let limits = [
        ErrorKind::IdleTimeout,
        ErrorKind::Timeout,
        ErrorKind::BudgetExhausted,
        ErrorKind::RecordFull,
        ErrorKind::MemoryExhausted,
    ];
    result.error_kind.is_some_and(|kind| limits.contains(&kind))
}

/// The maximum number of denials that a summary lists.
const MOST_SHOWN: usize = 10;

/// The summary for the user at the end of a run.
fn summary(result: &RunResult) -> Vec<String> {
    let mut lines = Vec::new();
    let ended = match (&result.error, result.exit_code) {
        (Some(error), _) => error.clone(),
        (None, code) => format!("{} ended with exit code {}", result.tool, code.unwrap_or_default()),
    };
    let how = match (&result.enforcement.seccomp, result.enforcement.namespaces) {
        (false, _) => "",
        (true, true) => ", with namespaces",
        (true, false) => ", without namespaces",
    };
    let shims = if result.enforcement.seccomp && !result.enforcement.shims { ", without shims" } else { "" };
    lines.push(format!("guard: {ended} after {}{how}{shims}", result.duration));
    if !result.files_changed.is_empty() {
        let shown: Vec<&str> =
            result.files_changed.iter().take(MOST_SHOWN).map(|change| change.path.as_str()).collect();
        let more = result.files_changed.len().saturating_sub(MOST_SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        lines.push(format!("  changed: {}{more}", shown.join(", ")));
    }
    for denial in result.denials.iter().take(MOST_SHOWN) {
        let times = if denial.count > 1 { format!(" ({} times)", denial.count) } else { String::new() };
        lines.push(format!("  refused: {}{times}", terminal_text::replace(&refusal(denial))));
        if let Some(options) = &denial.allow_with {
            lines.push(format!("    to allow it: guard run {}", terminal_text::replace(options)));
        }
    }
    if result.denials.len() > MOST_SHOWN {
        lines.push(format!(
            "  refused: {} more; `guard log --denied` shows them",
            result.denials.len() - MOST_SHOWN
        ));
        lines.extend(refused_hosts(result));
    }
    for host in result.network.iter().filter(|host| host.connections + host.requests > 0).take(MOST_SHOWN) {
        lines.push(format!(
            "  network: {}:{} ({} sent, {} received)",
            terminal_text::replace(&host.host),
            host.port,
            bytes(host.bytes_up),
            bytes(host.bytes_down)
        ));
    }
    if let Some(model) = &result.usage.model {
        let cost = if model.cost > 0.0 { format!(", cost {:.4}", model.cost) } else { String::new() };
        lines.push(format!(
            "  model: {} requests, {} tokens in, {} out{cost}",
            model.requests, model.input_tokens, model.output_tokens
        ));
    }
    lines.extend(worktree_lines(result));
    lines.push(format!("  transcript: guard log {} ({})", result.run_id, result.transcript.path));
    if let Some(head) = &result.transcript.head {
        lines.push(format!("  head: {head}"));
    }
    lines
}

/// Describes a denial in a line for the user. Omits the advice on what to do instead, which is meant for the agent.
fn refusal(denial: &Denial) -> String {
    let Denial { kind, message, what, rule, reason, .. } = denial;
    if *kind == EventType::DenyExec && !what.is_empty() {
        format!("{what} (rule {rule}): {reason}")
    } else {
        message.clone()
    }
}

/// The hosts that the run was refused, in one line for a summary that does not list every denial.
fn refused_hosts(result: &RunResult) -> Option<String> {
    let refused: Vec<&HostTraffic> = result.network.iter().filter(|host| host.refused > 0).collect();
    let shown = |host: &&HostTraffic| match host.port {
        // The name was only looked up.
        0 => terminal_text::replace(&host.host),
        port => format!("{}:{port}", terminal_text::replace(&host.host)),
    };
    let names: Vec<String> = refused.iter().take(MOST_SHOWN).map(shown).collect();
    let more = match refused.len().saturating_sub(MOST_SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more; `guard log --network` shows them"),
    };
    (!names.is_empty()).then(|| format!("  refused hosts: {}{more}", names.join(", ")))
}

fn bytes(count: u64) -> String {
    match count {
        0..10_000 => format!("{count} bytes"),
        10_000..10_000_000 => format!("{} kB", count / 1000),
        _ => format!("{} MB", count / 1_000_000),
    }
}

/// The shortest text that names a run for `guard diff` and `guard apply`: `@` if the run is the newest one in its
/// repository, otherwise its branch.
fn reference(run_id: &str, branch: &str) -> String {
    let newest = || {
        let runs = runs_dir().ok()?;
        let record = Record::read(&runs.join(run_id)).ok()?;
        workspace::newest(&runs, &record.common_dir).ok()?
    };
    let is_newest = newest().is_some_and(|(_, record)| record.run_id == run_id);
    if is_newest { "@".to_string() } else { branch.to_string() }
}

/// Lines that tell the user what happened to the run's branch, and what to do next.
fn worktree_lines(result: &RunResult) -> Vec<String> {
    let Some(worktree) = &result.worktree else { return Vec::new() };
    let mut lines = Vec::new();
    for commit in result.commits.iter().take(MOST_SHOWN) {
        lines.push(format!("  commit: {} {}", commit.id.get(..10).unwrap_or(&commit.id), commit.subject));
    }
    if result.commits.len() > MOST_SHOWN {
        lines.push(format!("  commit: {} more", result.commits.len() - MOST_SHOWN));
    }
    for finding in result.findings.iter().take(MOST_SHOWN) {
        lines.push(format!("  review: {}", finding.message));
    }
    if result.findings.len() > MOST_SHOWN {
        lines.push(format!("  review: {} more; `guard log` shows them", result.findings.len() - MOST_SHOWN));
    }
    let run = &result.run_id;
    if worktree.kept {
        let work = match worktree.uncommitted.len() {
            0 => String::new(),
            1 => ", 1 path not committed".to_string(),
            count => format!(", {count} paths not committed"),
        };
        lines.push(format!("  branch: {} in {}{work}", worktree.branch, worktree.path));
        let has_work = worktree.tip != worktree.base || !worktree.uncommitted.is_empty();
        if result.error_kind == Some(ErrorKind::ReceiveRefused) {
            lines.push(format!("  next: guard worktree receive {run}"));
        } else if has_work {
            let run = reference(run, &worktree.branch);
            lines.push(format!("  next: guard diff {run}; guard apply {run}"));
        }
    } else if worktree.saved.is_empty() {
        lines.push("  branch: removed, because the run left nothing new".to_string());
    } else {
        lines.push(format!("  branch: discarded; its work is saved in {}", worktree.saved.join(", ")));
    }
    if worktree.unreceived {
        lines.push(
            "  kept: the run's quarantine repository, with commits or refs that guard did not receive"
                .to_string(),
        );
    }
    lines
}
