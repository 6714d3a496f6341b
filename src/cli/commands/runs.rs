//! `guard runs` and `guard ps`: list the records of runs and delete old ones. guard never deletes a record that the
//! user needs to find commits or a worktree.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::cli::args::runs::{Ps, Runs, RunsAction};
use crate::cli::output::exit_code::Exit;
use crate::cli::output::json::print_json;
use crate::cli::output::table;
use crate::cli::output::table::Column;
use crate::cli::{Failure, note};
use crate::git::{Record, Repository, main_directory, moved_files};
use crate::judge::policy::TimeLimit;
use crate::run::outcome::ErrorKind;
use crate::run::transcript::{Run, RunState, Store};
use crate::session::keep_runs::{disk_use, holds_work};
use crate::session::run_reference::short_ids;
use crate::session::run_reference::store;
use crate::text::terminal_text;

/// The minimum age of runs that `guard runs prune` deletes if the user gives neither `--older-than` nor `--keep`.
const DEFAULT_AGE: SignedDuration = SignedDuration::from_hours(30 * 24);
/// The number of runs that guard lists on a terminal by default.
const SHOWN_ON_TERMINAL: usize = 20;

pub(in crate::cli) fn run(args: &Runs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let store = store()?;
    if let Some(RunsAction::Prune { older_than, keep, dry_run }) = &args.action {
        let age = match (older_than, keep) {
            (Some(text), _) => parse_age("--older-than", text)?,
            (None, Some(_)) => SignedDuration::ZERO,
            (None, None) => DEFAULT_AGE,
        };
        prune(&store, &store.list()?, age, keep.unwrap_or(0), *dry_run, out)?;
        return Ok(Exit::Success);
    }
    let limit = match args.number {
        Some(0) => usize::MAX,
        Some(number) => number,
        None if !args.json && io::stdout().is_terminal() => SHOWN_ON_TERMINAL,
        None => usize::MAX,
    };
    let repository = args.repo.as_deref().map(repository_at).transpose()?;
    let is_wanted = |run: &Run| {
        (!args.failed || has_failed(run))
            && repository.as_ref().is_none_or(|repository| is_in_repository(run, repository))
    };
    let runs: Vec<Run> = if args.running {
        store.running()?.into_iter().filter(is_wanted).take(limit).collect()
    } else {
        store.newest_first()?.filter(is_wanted).take(limit).collect()
    };
    if args.json {
        print_json(&runs.iter().map(as_json).collect(), out)?;
    } else {
        let is_filtered = args.failed || args.running || repository.is_some();
        list(&runs, &store, is_filtered, out)?;
    }
    Ok(Exit::Success)
}

pub(in crate::cli) fn ps(args: &Ps, out: &mut dyn Write) -> Result<Exit, Failure> {
    let store = store()?;
    let runs = store.running()?;
    if args.json {
        print_json(&runs.iter().map(as_json).collect(), out)?;
    } else if runs.is_empty() {
        writeln!(out, "no runs are running")?;
    } else {
        write_table(&runs, &store.ids()?, &HashMap::new(), out)?;
    }
    Ok(Exit::Success)
}

/// Returns the repository that contains a directory. Fails if the directory does not exist or is in no repository.
pub(in crate::cli) fn repository_at(directory: &Path) -> Result<Repository, Failure> {
    let found = if directory.is_dir() { Repository::find(directory)? } else { None };
    found.ok_or_else(|| {
        Failure::usage(
            format!(
                "{} is not in a git repository",
                std::path::absolute(directory).unwrap_or_default().display()
            ),
            "change to a directory of a repository, or give one with --repo DIR",
        )
    })
}

fn is_in_repository(run: &Run, repository: &Repository) -> bool {
    if let Some(directory) = run.repository() {
        return directory == main_directory(&repository.common_dir);
    }
    // The transcript names no repository: the run has no worktree, or an older version of guard recorded the run.
    let is_inside = |top: &Path| run.directory().is_some_and(|directory| directory.starts_with(top));
    repository.toplevel.as_deref().is_some_and(is_inside)
        || Record::read(&run.folder).is_ok_and(|record| record.common_dir == repository.common_dir)
}

/// Returns the state of a run in one or two words: how it ended, or why it has no result.
pub(in crate::cli) fn outcome(run: &Run) -> &'static str {
    let Some(result) = run.last.as_ref().map(|event| &event.data) else {
        return match run.state {
            RunState::Running => "running",
            RunState::Unreadable if run.transcript.symlink_metadata().is_err() => "not begun",
            RunState::Unreadable => "unreadable",
            RunState::Unfinished | RunState::Finished => "cut off",
        };
    };
    let kind = result.get("error_kind").and_then(Value::as_str).and_then(|kind| kind.parse().ok());
    match (result.get("success").and_then(Value::as_bool), kind) {
        (_, Some(ErrorKind::IdleTimeout | ErrorKind::Timeout)) => "timeout",
        (_, Some(ErrorKind::Cancelled)) => "stopped",
        (_, Some(ErrorKind::BudgetExhausted)) => "budget",
        (_, Some(ErrorKind::MemoryExhausted)) => "memory",
        (_, Some(ErrorKind::RecordFull)) => "record full",
        (_, Some(ErrorKind::PolicyDenied)) => "refused",
        (Some(true), _) => "ok",
        (None, None) if run.exit_code() == Some(0) => "ok",
        _ => "failed",
    }
}

fn has_failed(run: &Run) -> bool {
    !matches!(outcome(run), "ok" | "running" | "stopped" | "not begun")
}

/// Returns the outcome of a run, with the exit code if the run failed.
pub(in crate::cli) fn state_text(run: &Run) -> String {
    match (outcome(run), run.exit_code()) {
        ("failed", Some(code)) if code != 0 => format!("failed ({code})"),
        (outcome, _) => outcome.to_string(),
    }
}

fn as_json(run: &Run) -> Value {
    let duration = run.duration(Timestamp::now()).map(|duration| duration.as_millis() as i64);
    json!({
        "run_id": run.id, "state": run.state.name(), "outcome": outcome(run), "problem": run.problem,
        "started": run.started().map(|time| time.to_string()), "finished": run.finished().map(|time| time.to_string()),
        "duration_ms": duration, "exit_code": run.exit_code(), "policy": run.policy(), "denials": run.denials(),
        "repository": run.repository().map(Path::to_string_lossy), "branch": run.branch(),
        "directory": run.directory().map(Path::to_string_lossy), "tool": run.tool(), "pid": run.supervisor_pid(),
        "bytes": run.bytes, "command": run.command(), "transcript": run.transcript.to_string_lossy(),
    })
}

fn list(runs: &[Run], store: &Store, is_filtered: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let ids = store.ids()?;
    let folder = store.folder().display();
    if ids.is_empty() {
        writeln!(out, "no runs in {folder}")?;
        return Ok(());
    }
    let sizes: HashMap<&str, u64> =
        ids.iter().map(|id| (id.as_str(), disk_use(&store.folder().join(id)))).collect();
    if runs.is_empty() {
        writeln!(out, "no run matches these options")?;
    } else {
        write_table(runs, &ids, &sizes, out)?;
    }
    let more = match runs.len() {
        shown if shown < ids.len() && !is_filtered => {
            format!("; these are the newest {shown} (-n 0 shows all)")
        }
        _ => String::new(),
    };
    let count = if ids.len() == 1 { "1 run".to_string() } else { format!("{} runs", ids.len()) };
    writeln!(out, "{count}, {} in {folder}{more}", size(sizes.values().sum()))?;
    Ok(())
}

/// Prints runs as a table. If `sizes` is empty, the table has no column for sizes.
fn write_table(
    runs: &[Run],
    ids: &[String],
    sizes: &HashMap<&str, u64>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let short = short_ids(&ids);
    let now = Timestamp::now();
    let is_terminal = io::stdout().is_terminal();
    let column = |title, leave_out, widest, is_number, cell: &dyn Fn(&Run) -> Option<String>| {
        let text = |run: &Run| match cell(run) {
            Some(text) => terminal_text::one_line(&text),
            None => "-".to_string(),
        };
        Column {
            title,
            cells: runs.iter().map(text).collect(),
            is_number,
            widest,
            shrinks: title == "BRANCH",
            leave_out,
        }
    };
    let mut columns = vec![
        column("RUN", 0, 36, false, &|run| {
            Some(short.get(run.id.as_str()).copied().unwrap_or(&run.id).to_string())
        }),
        column("STARTED", 0, 20, false, &|run| {
            let started = run.started()?;
            Some(if is_terminal {
                ago(now.duration_since(started))
            } else {
                started.strftime("%Y-%m-%d %H:%MZ").to_string()
            })
        }),
        column("STATE", 0, 14, false, &|run| Some(state_text(run))),
        column("TIME", 1, 9, true, &|run| run.duration(now).map(short_duration)),
        column("REFUSED", 3, 7, true, &|run| run.denials().map(|count| count.to_string())),
        column("SIZE", 5, 10, true, &|run| sizes.get(run.id.as_str()).map(|bytes| size(*bytes))),
        column("REPOSITORY", 4, 20, false, &|run| {
            Some(run.repository()?.file_name()?.to_string_lossy().into_owned())
        }),
        column("BRANCH", 0, 24, false, &branch),
        column("COMMAND", 0, usize::MAX, false, &|run| {
            Some(match &run.problem {
                Some(problem) => format!("({problem})"),
                None => command(run),
            })
        }),
    ];
    if sizes.is_empty() {
        columns.retain(|column| column.title != "SIZE");
    }
    table::write(columns, table::width(), out)
}

/// Returns the branch of a run for the table. Leaves out the run's id at the end of the branch, because the first
/// column shows it.
fn branch(run: &Run) -> Option<String> {
    let branch = run.branch()?;
    Some(match branch.strip_suffix(run.id.as_str()) {
        Some(prefix) => format!("{prefix}…"),
        None => branch.to_string(),
    })
}

/// Returns the agent or program that a run started, with the arguments that the user gave.
fn command(run: &Run) -> String {
    let mut words = run.command();
    if let (Some(first), Some(tool)) = (words.first_mut(), run.tool()) {
        *first = tool.to_string();
    }
    words.join(" ")
}

/// Describes how long ago something happened, in whole seconds, minutes, hours (up to 48) or days.
fn ago(elapsed: SignedDuration) -> String {
    let seconds = elapsed.as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds}s ago"),
        60..3_600 => format!("{}m ago", seconds / 60),
        3_600..172_800 => format!("{}h ago", seconds / 3_600),
        _ => format!("{}d ago", seconds / 86_400),
    }
}

fn short_duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    match seconds {
        0..10 => format!("{:.1}s", duration.as_secs_f64().max(0.0)),
        10..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
    }
}

pub(in crate::cli) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Parses an age such as `30d`. `option` is the name of the option with the age, for error messages.
pub(in crate::cli) fn parse_age(option: &str, text: &str) -> Result<SignedDuration, Failure> {
    // Require a unit. A number alone would mean seconds, but a user who types `30` probably means days, and would lose
    // all runs.
    let has_unit = text.trim().ends_with(|last: char| last.is_ascii_alphabetic());
    let age = TimeLimit::parse(text).filter(|_| has_unit).and_then(|age| i64::try_from(age.0).ok());
    age.map(SignedDuration::from_secs).ok_or_else(|| {
        Failure::usage(
            format!("{option} {text} is not a valid time"),
            "give a number with the unit s, m, h, d or w, such as 30d",
        )
    })
}

fn prune(
    store: &Store,
    runs: &[Run],
    age: SignedDuration,
    keep: usize,
    dry_run: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let now = Timestamp::now();
    let old = |run: &&Run| run.finished().is_some_and(|end| now.duration_since(end) >= age);
    // The newest run comes first. Unfinished runs do not count towards the number of runs to keep.
    let finished = runs.iter().filter(|run| run.state == RunState::Finished);
    let (mut count, mut freed) = (0, 0);
    for run in finished.skip(keep).filter(old) {
        if holds_work(run) {
            let moved = moved_files(&run.folder);
            if moved.exists() {
                writeln!(
                    out,
                    "kept {}: guard moved files of its worktree to {}; delete that directory when you no longer need them",
                    run.id,
                    moved.display()
                )?;
            }
            continue;
        }
        let bytes = disk_use(&run.folder);
        if !dry_run && let Err(error) = store.delete(run) {
            note(&format!("guard: note: cannot delete the run {}: {error}", run.id));
            continue;
        }
        count += 1;
        freed += bytes;
        writeln!(out, "{} {}  {}", if dry_run { "would delete" } else { "deleted" }, run.id, size(bytes))?;
    }
    sweep(store, runs, dry_run, out)?;
    if !dry_run
        && let Err(error) = store.tidy()
        && error.kind() != io::ErrorKind::NotFound
    {
        note(&format!("guard: note: cannot clean up {}: {error}", store.folder().display()));
    }
    let kept = runs.iter().filter(|run| run.state != RunState::Finished).count();
    let unfinished = if kept > 0 { format!("; guard keeps unfinished runs: {kept}") } else { String::new() };
    let verb = if dry_run { "would be freed" } else { "freed" };
    let done = if dry_run { "would delete" } else { "deleted" };
    writeln!(out, "{done} {count} of {} runs, {} {verb}{unfinished}", runs.len(), size(freed))?;
    Ok(())
}

/// Removes temporary files of killed runs, and directories of runs that never began. With `dry_run`, only prints what
/// it would remove.
fn sweep(store: &Store, runs: &[Run], dry_run: bool, out: &mut dyn Write) -> io::Result<()> {
    let scratch = std::env::temp_dir();
    for run in runs {
        if let Some(left) = run.leftovers(&scratch) {
            let verb = if dry_run { "would remove" } else { "removed" };
            match if dry_run { Ok(()) } else { store.sweep(run, &scratch) } {
                Ok(()) => writeln!(out, "{verb} {}, left by {}", left.display(), run.id)?,
                Err(error) => note(&format!("guard: note: cannot remove {}: {error}", left.display())),
            }
        }
        if dry_run && store.never_began(run) {
            writeln!(out, "would remove {}, a run that never began, if its directory is empty", run.id)?;
        } else if !dry_run && store.forget(run, &scratch) {
            writeln!(out, "removed {}, a run that never began", run.id)?;
        }
    }
    Ok(())
}
