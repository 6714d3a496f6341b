//! `guard runs`: lists the records of runs and deletes old ones. It never deletes a record that is needed to find
//! commits or a worktree.

use std::io::{self, Write};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::args::{Runs, RunsAction};
use super::exit_code::Exit;
use super::log::store;
use super::policy::print_json;
use super::{Failure, note};
use crate::policy::TimeLimit;
use crate::terminal_text;
use crate::transcript::{Run, RunState, Store};
use crate::workspace::{Record, State};

/// The default age from which `prune` deletes.
const DEFAULT_AGE: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Longer commands are cut off in the table.
const LONGEST_COMMAND: usize = 60;

pub(super) fn run(args: &Runs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let store = store()?;
    let runs = store
        .list()
        .map_err(|error| Failure::usage(error.to_string(), "check the owner and mode of the directory"))?;
    match &args.action {
        Some(RunsAction::Prune { older_than, keep, dry_run }) => {
            let age = match (older_than, keep) {
                (Some(text), _) => parse_age("--older-than", text)?,
                (None, Some(_)) => SignedDuration::ZERO,
                (None, None) => DEFAULT_AGE,
            };
            prune(&store, &runs, age, keep.unwrap_or(0), *dry_run, out)?;
        }
        None if args.json => print_json(&runs.iter().map(as_json).collect(), out)?,
        None => table(&runs, &store, out)?,
    }
    Ok(Exit::Success)
}

fn as_json(run: &Run) -> Value {
    json!({
        "run_id": run.id, "state": run.state.name(), "problem": run.problem,
        "started": run.started().map(|time| time.to_string()), "finished": run.finished().map(|time| time.to_string()),
        "exit_code": run.exit_code(), "policy": run.policy(), "denials": run.denials(), "bytes": run.bytes,
        "command": run.command(), "transcript": run.transcript.to_string_lossy(),
    })
}

fn table(runs: &[Run], store: &Store, out: &mut dyn Write) -> io::Result<()> {
    if runs.is_empty() {
        return writeln!(out, "no runs in {}", store.folder().display());
    }
    let width = runs.iter().map(|run| run.id.chars().count()).max().unwrap_or(0);
    writeln!(
        out,
        "{:<width$}  {:<20}  {:<10}  {:>4}  {:<12}  {:>7}  {:>9}  COMMAND",
        "RUN", "STARTED", "STATE", "EXIT", "POLICY", "DENIALS", "SIZE"
    )?;
    let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_string());
    for run in runs {
        let started = run.started().map(|time| time.strftime("%Y-%m-%d %H:%M:%SZ").to_string());
        let last = match &run.problem {
            Some(problem) => format!("({problem})"),
            None => run.command().join(" "),
        };
        writeln!(
            out,
            "{:<width$}  {:<20}  {:<10}  {:>4}  {:<12}  {:>7}  {:>9}  {}",
            terminal_text::escape(&run.id),
            dash(started),
            run.state.name(),
            dash(run.exit_code().map(|code| code.to_string())),
            terminal_text::escape(run.policy().unwrap_or("-")),
            dash(run.denials().map(|count| count.to_string())),
            size(run.bytes),
            terminal_text::escape(&cut(&last)),
        )?;
    }
    Ok(())
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST_COMMAND) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

pub(super) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Parses ages such as `30d`, the value of an option.
pub(super) fn parse_age(option: &str, text: &str) -> Result<SignedDuration, Failure> {
    // A number alone would be seconds. Who types `30` means days, and would lose every run.
    let has_unit = text.trim().ends_with(|last: char| last.is_ascii_alphabetic());
    let age = TimeLimit::parse(text).filter(|_| has_unit).and_then(|age| i64::try_from(age.0).ok());
    age.map(SignedDuration::from_secs).ok_or_else(|| {
        Failure::usage(
            format!("{option} {text}: invalid time"),
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
    // The list starts with the newest. Unfinished runs do not count among those to keep.
    let finished = runs.iter().filter(|run| run.state == RunState::Finished);
    let (mut count, mut freed) = (0, 0);
    for run in finished.skip(keep).filter(old).filter(|run| !holds_work(run)) {
        let bytes = folder_size(&run.folder);
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
    let unfinished = if kept > 0 { format!("; {kept} unfinished runs kept") } else { String::new() };
    let verb = if dry_run { "would be freed" } else { "freed" };
    writeln!(out, "{count} of {} runs, {} {verb}{unfinished}", runs.len(), size(freed))?;
    Ok(())
}

/// Removes leftovers of killed runs: temporary files, and directories of runs that never began.
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
            writeln!(out, "would remove {}, which never began, if its directory is empty", run.id)?;
        } else if !dry_run && store.forget(run, &scratch) {
            writeln!(out, "removed {}, which never began", run.id)?;
        }
    }
    Ok(())
}

/// Whether a run's worktree still exists, or commits of it are nowhere else. Its record is needed to find them.
fn holds_work(run: &Run) -> bool {
    if !Record::exists(&run.folder) {
        return false;
    }
    let is_open = |record: Record| record.state != State::Removed && record.worktree.exists();
    run.folder.join("git").exists() || Record::read(&run.folder).map_or(true, is_open)
}

/// The size of a directory's files in bytes. Counts what cannot be read as zero.
fn folder_size(folder: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => folder_size(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}
