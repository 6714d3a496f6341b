//! The output of `guard run` at the end of a run: the result as JSON, or a summary for the user.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crate::cli::args;
use crate::cli::note;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::logging;
use crate::cli::output::terminal_summary;
use crate::git;
use crate::git::Record;
use crate::run::launch::LaunchError;
use crate::run::outcome::{Denial, ErrorKind, HostTraffic, RunResult, duration};
use crate::run::transcript::{EventType, runs_dir};
use crate::session::{Failure, NotStarted, Problem, WorkspaceProblem, with_error};
use crate::text::terminal_text;

/// The output format of `guard run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Form {
    /// The agent's unchanged output, and a summary at the end.
    PassThrough,
    /// One JSON object, the result, at the end.
    Json,
    /// Every event as a JSON line, with the result as the last line.
    Stream,
}

impl Form {
    /// Returns the format that the options of `guard run` choose.
    pub(in crate::cli) fn from_args(arguments: &args::RunOutput) -> Self {
        match (arguments.stream_json, arguments.json) {
            (true, _) => Self::Stream,
            (false, true) => Self::Json,
            (false, false) => Self::PassThrough,
        }
    }
}

/// Prints why guard did not start a run: a result as JSON, or a message for the user.
pub(in crate::cli) fn report_not_started(
    not_started: NotStarted,
    form: Form,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let (result, exit) = match not_started {
        // Callers that read JSON get this error as a result, too.
        NotStarted::Settings(Failure::Usage { message, .. }) if form != Form::PassThrough => {
            let empty = RunResult { duration: duration(Duration::ZERO), ..RunResult::default() };
            (with_error(empty, ErrorKind::ConfigError, &message), Exit::OwnFailure)
        }
        NotStarted::Usage(failure) | NotStarted::Settings(failure) => return Err(failure),
        NotStarted::Run { problem, .. } if form == Form::PassThrough => {
            note(&format!("guard: {problem}\n  hint: {}", problem.hint()));
            return Ok(exit_of_problem(&problem));
        }
        NotStarted::Run { about, problem } => {
            (with_error(*about, problem.kind(), &problem.to_string()), exit_of_problem(&problem))
        }
    };
    print_result(&result, out)?;
    Ok(exit)
}

fn exit_of_problem(problem: &Problem) -> Exit {
    match problem {
        Problem::Plan(LaunchError::CommandNotFound(_)) => Exit::CommandNotFound,
        Problem::Plan(LaunchError::NotExecutable { .. }) => Exit::CannotExecute,
        // Use the same exit code as for a run that the signal ended.
        Problem::Workspace(WorkspaceProblem { signal: Some(signal), .. }) => Exit::Code(128 + *signal as u8),
        _ => Exit::OwnFailure,
    }
}

fn print_result(result: &RunResult, out: &mut dyn Write) -> Result<(), Failure> {
    crate::cli::output::json::to_writer(&mut *out, result).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

pub(in crate::cli) fn report(
    result: &RunResult,
    form: Form,
    quiet: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    // A person at a terminal gets one line at the beginning and one at the end. Programs, log files and users of `-v`
    // get the whole summary at the end.
    let one_line = io::stderr().is_terminal() && !logging::is_verbose();
    if form == Form::PassThrough {
        if !quiet && one_line {
            // If standard output is not a terminal, it may be a pipe to a pager, which still shows its output on the
            // terminal. Then print the line only if it contains news.
            if io::stdout().is_terminal() || terminal_summary::has_news(result) {
                note(&terminal_summary::ending(result));
            }
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

pub(in crate::cli) fn exit_of(result: &RunResult) -> Exit {
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

/// Returns true if guard ended the run because of a limit. guard reports this even if the user wants no summary.
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
    // Leave out the duration if the policy refused the command, because the command never ran.
    let after = match result.error_kind {
        Some(ErrorKind::PolicyDenied) => String::new(),
        _ => format!(" after {}", result.duration),
    };
    lines.push(format!("guard: {ended}{after}{how}{shims}"));
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
            lines.push(format!("    to allow this: guard run {}", terminal_text::replace(options)));
        }
    }
    if result.denials.len() > MOST_SHOWN {
        lines.push(format!(
            "  refused: and {} more; `guard log --denied` shows all refusals",
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
            "  model: requests {}, tokens in {}, tokens out {}{cost}",
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

/// Returns one line with the hosts that guard refused to the run, for a summary that does not list every denial.
/// Returns `None` if there are no such hosts.
fn refused_hosts(result: &RunResult) -> Option<String> {
    let refused: Vec<&HostTraffic> = result.network.iter().filter(|host| host.refused > 0).collect();
    let shown = |host: &&HostTraffic| match host.port {
        // Port 0 means that the run only resolved the name.
        0 => terminal_text::replace(&host.host),
        port => format!("{}:{port}", terminal_text::replace(&host.host)),
    };
    let names: Vec<String> = refused.iter().take(MOST_SHOWN).map(shown).collect();
    let more = match refused.len().saturating_sub(MOST_SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more; `guard log --network` shows all hosts"),
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

/// Returns the shortest text that identifies a run for `guard diff` and `guard apply`: `@` if the run is the newest
/// one with a worktree in its repository, otherwise its branch.
fn reference(run_id: &str, branch: &str) -> String {
    let newest = || {
        let runs = runs_dir().ok()?;
        let record = Record::read(&runs.join(run_id)).ok()?;
        git::newest(&runs, &record.common_dir).ok()?
    };
    let is_newest = newest().is_some_and(|(_, record)| record.run_id == run_id);
    if is_newest { "@".to_string() } else { branch.to_string() }
}

fn finding_lines(result: &RunResult) -> Vec<String> {
    let findings = result.findings.iter().take(MOST_SHOWN);
    let mut lines: Vec<String> = findings.map(|finding| format!("  review: {}", finding.message)).collect();
    if result.findings.len() > MOST_SHOWN {
        lines.push(format!(
            "  review: and {} more; `guard log` shows all findings",
            result.findings.len() - MOST_SHOWN
        ));
    }
    lines
}

/// Returns lines about the run's commits and findings, what happened to its branch, and what the user can do next.
/// Returns only the findings if the run had no worktree.
fn worktree_lines(result: &RunResult) -> Vec<String> {
    let Some(worktree) = &result.worktree else { return finding_lines(result) };
    let mut lines = Vec::new();
    for commit in result.commits.iter().take(MOST_SHOWN) {
        lines.push(format!("  commit: {} {}", commit.id.get(..10).unwrap_or(&commit.id), commit.subject));
    }
    if result.commits.len() > MOST_SHOWN {
        lines.push(format!("  commit: {} more", result.commits.len() - MOST_SHOWN));
    }
    lines.extend(finding_lines(result));
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
    } else if worktree.saved.is_empty() && worktree.uncommitted.is_empty() {
        lines.push("  branch: guard removed the run's branch, because the run left nothing new".to_string());
    } else if worktree.saved.is_empty() {
        lines.push(
            "  branch: guard removed the run's branch, and moved files of its worktree away (see above)"
                .to_string(),
        );
    } else {
        lines.push(format!(
            "  branch: guard removed the run's branch; its work is saved in {}",
            worktree.saved.join(", ")
        ));
    }
    if worktree.unreceived {
        lines.push(
            "  kept: the run's private git repository, which has commits or refs that guard did not receive"
                .to_string(),
        );
    }
    lines
}
