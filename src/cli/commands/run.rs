//! `guard run`: runs a command under a policy in the sandbox, and prints one result.

use std::io::{self, BufRead, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};

use crate::cli::args;
use crate::cli::commands::{allow, detach};
use crate::cli::note;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::run_plan::show_plan;
use crate::cli::output::run_report::{Form, report, report_not_started};
use crate::cli::output::terminal_summary;
use crate::judge::policy::{Policy, Severity};
use crate::run::launch;
use crate::run::launch::{LaunchPlan, Streams};
use crate::run::outcome::RunResult;
use crate::run::settings::RunSettings;
use crate::run::transcript::{Line, Observer};
use crate::session;
use crate::session::defaults::uncommitted_note;
use crate::session::{Caller, EndedRun, Failure, NotStarted, PreparedRun, Question, policy_files};
use crate::sys::process;

/// Runs the command, in this process or in the background (`--detach`), or only prints the plan of the run
/// (`--dry-run`).
pub(in crate::cli) fn run(arguments: args::Run, out: &mut dyn Write) -> Result<Exit, Failure> {
    let output = arguments.output();
    let settings = arguments.settings()?;
    // guard may have inherited descriptors, such as the lock of a session. The programs that guard starts must not
    // inherit them: such a program may outlive guard, and would keep the lock.
    process::close_on_exec_from(3)?;
    if !output.detach {
        return run_with(settings, output, |policy| policy, out).map(|(exit, _)| exit);
    }
    match detach::fork()? {
        detach::Side::Caller(background) => detach::await_start(background, output.json, out),
        detach::Side::Run(notifier) => {
            run_or_plan(settings, output, |policy| policy, Some(notifier), out).map(|(exit, _)| exit)
        }
    }
}

/// Runs the command in this process, under the policy that `change` returns, or only prints the plan of the run
/// (`--dry-run`). Also returns the run's id if the run has ended with a result.
pub(in crate::cli) fn run_with(
    settings: RunSettings,
    output: args::RunOutput,
    change: impl FnOnce(Policy) -> Policy,
    out: &mut dyn Write,
) -> Result<(Exit, Option<String>), Failure> {
    run_or_plan(settings, output, change, None, out)
}

/// Runs the command, or only prints the plan of the run. If the run is in the background, `notifier` tells the
/// calling process when the command has started. Also returns the run's id if the run has ended with a result.
fn run_or_plan(
    settings: RunSettings,
    output: args::RunOutput,
    change: impl FnOnce(Policy) -> Policy,
    notifier: Option<detach::StartNotifier>,
    out: &mut dyn Write,
) -> Result<(Exit, Option<String>), Failure> {
    let form = Form::from_args(&output);
    let caller = caller(form);
    let names_directory = settings.dir.is_some();
    let prepared = prepare(settings, change, &caller);
    if output.dry_run {
        let exit = match prepared.and_then(|prepared| prepared.plan(&caller)) {
            Ok(plan) => show_plan(&plan, form, out)?,
            Err(not_started) => report_not_started(not_started, form, out)?,
        };
        return Ok((exit, None));
    }
    let ended = match prepared.and_then(|prepared| execute(prepared, &caller, output, notifier)) {
        Ok(ended) => ended,
        Err(not_started) => return Ok((report_not_started(not_started, form, out)?, None)),
    };
    let result = &ended.finished.result;
    let exit = report(result, form, output.quiet, out)?;
    out.flush()?;
    if form == Form::PassThrough && !output.quiet && !names_directory {
        note_uncommitted_policy(result);
    }
    ended.delete_old_runs();
    if caller.has_terminal {
        allow::save_answered(result);
    }
    Ok((exit, Some(result.run_id.clone())))
}

/// Completes the settings, and checks that the run can start. Creates nothing.
fn prepare(
    settings: RunSettings,
    change: impl FnOnce(Policy) -> Policy,
    caller: &Caller<'_>,
) -> Result<PreparedRun, NotStarted> {
    // Take the keys out of the environment first, so that no later copy of the environment contains them.
    let (config, keys) = session::configuration()?;
    let mut complete = session::with_defaults(settings, &config, caller).map_err(NotStarted::Settings)?;
    policy_files::confirm(&complete.policy, caller.ask).map_err(NotStarted::Settings)?;
    complete.policy = change(complete.policy);
    for remark in complete.policy.remarks.iter().filter(|remark| remark.severity == Severity::Warning) {
        note(&remark.render(false));
    }
    PreparedRun::new(complete, (config, keys), caller)
}

/// Opens the workspace of the run, starts the run, and waits for its end.
fn execute(
    prepared: PreparedRun,
    caller: &Caller<'_>,
    output: args::RunOutput,
    notifier: Option<detach::StartNotifier>,
) -> Result<EndedRun, NotStarted> {
    let form = Form::from_args(&output);
    let streams = streams(form, &prepared, notifier.is_some())?;
    let opened = prepared.open(caller)?;
    if caller.has_terminal && !output.quiet {
        note(&terminal_summary::beginning(opened.plan()));
    }
    let observer = match notifier {
        Some(notifier) => Some(notifier.observer(opened.id())),
        None => observer(form),
    };
    opened.run(streams, observer)
}

/// Returns what the session needs to know about the caller of `guard run`.
fn caller(form: Form) -> Caller<'static> {
    let is_direct = form == Form::PassThrough;
    Caller {
        note: &note,
        ask: &ask,
        has_terminal: is_direct && launch::is_interactive(io::stdin().as_fd(), io::stdout().as_fd()),
        is_attended: is_direct && io::stdin().is_terminal(),
    }
}

/// Asks a question on the terminal. Returns `None` if there is none.
pub(in crate::cli) fn ask(question: &Question) -> io::Result<Option<bool>> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(None);
    }
    let _ = write!(io::stderr(), "guard: {}\n{} [y/N] ", question.message, question.question);
    let _ = io::stderr().flush();
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(Some(matches!(answer.trim(), "y" | "Y" | "yes")))
}

/// After a refusal that a rule could have lifted, tells the user if the project's policy has changes that are not in the
/// commit that the run started at.
fn note_uncommitted_policy(result: &RunResult) {
    let is_liftable = result.denials.iter().any(|denial| denial.allow_with.is_some());
    if let Some(uncommitted) = is_liftable.then(uncommitted_note).flatten() {
        note(&format!("guard: {uncommitted}"));
    }
}

/// Returns the plan for a run of `/bin/true` in the current directory, from which guard answers questions about what
/// a run may access.
pub(in crate::cli) fn plan_here(policy: Option<&str>) -> Result<LaunchPlan, Failure> {
    let caller = caller(Form::PassThrough);
    let settings = RunSettings {
        command: vec!["/bin/true".into()],
        policy: policy.map(str::to_string),
        ..RunSettings::default()
    };
    let (config, keys) = session::configuration()?;
    let complete = session::with_defaults(settings, &config, &caller)?;
    let prepared = PreparedRun::new(complete, (config, keys), &caller);
    prepared.and_then(|prepared| prepared.plan(&caller)).map_err(NotStarted::into_failure)
}

/// Returns the streams of the run. A run in the background writes nothing to this process's streams: the transcript
/// contains the command's output.
fn streams(form: Form, prepared: &PreparedRun, is_in_background: bool) -> io::Result<Streams> {
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
    let shows =
        |shows: bool, fd: &dyn AsFd| if shows && !is_in_background { own(fd).map(Some) } else { Ok(None) };
    let input: OwnedFd = if !through && io::stdin().is_terminal() {
        std::fs::File::open("/dev/null")?.into()
    } else {
        own(&io::stdin())?
    };
    let questions = if is_terminal[0] && is_terminal[2] { Some(own(&io::stderr())?) } else { None };
    Ok(Streams {
        input,
        output: shows(through, &io::stdout())?,
        error: shows(through, &io::stderr())?,
        is_terminal,
        is_sealed: prepared.is_sealed(),
        questions,
        notes: shows(io::stderr().is_terminal(), &io::stderr())?,
        reader: prepared.output_reader(),
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
