//! `guard worktree`: lists, shows, receives and removes what runs have left in the repository. Without a name or
//! `--all`, it never removes work that is nowhere else.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::args::Worktree;
use super::exit_code::Exit;
use super::log::store;
use super::policy::print_json;
use super::{Failure, note};
use crate::terminal_text;
use crate::workspace::{
    self, DisposeReport, Entry, KeepPolicy, Limits, OtherRef, ReceiveError, Received, Repository, State,
    Workspace, WorkspaceError,
};

pub(super) fn run(args: &Worktree, out: &mut dyn Write) -> Result<Exit, Failure> {
    match args {
        Worktree::List { all, json } => list(*all, *json, out),
        Worktree::Path { run } => {
            let (_, record) = find(run)?;
            out.write_all(record.worktree.as_os_str().as_bytes())?;
            writeln!(out)?;
            Ok(Exit::Success)
        }
        Worktree::Diff { run, stat } => diff(run, *stat, out),
        Worktree::MergePreview { run, into, json } => preview(run, into.as_deref(), *json, out),
        Worktree::Clean { runs, all, json } => clean(runs, *all, *json, out),
        Worktree::Receive { run, max_mib, json } => receive(run, *max_mib, *json, out),
    }
}

impl From<WorkspaceError> for Failure {
    fn from(error: WorkspaceError) -> Self {
        let hint =
            error.hint().unwrap_or("`guard worktree list` shows the state of each worktree").to_string();
        Self::usage(error.to_string(), hint)
    }
}

fn entries() -> Result<Vec<Entry>, Failure> {
    Ok(workspace::list(store()?.folder())?)
}

/// The repository that contains the current directory.
pub(super) fn here() -> Result<Repository, Failure> {
    let current = std::env::current_dir().unwrap_or_default();
    Repository::find(&current)?.ok_or_else(|| {
        Failure::usage(
            format!("{} is not in a git repository", current.display()),
            "change to the repository of the run",
        )
    })
}

/// Finds a workspace by its name. Without a name, and for `@`, the newest one with a worktree in this repository.
pub(super) fn find_or_newest(name: Option<&str>) -> Result<(PathBuf, workspace::Record), Failure> {
    match name.filter(|name| *name != "@") {
        Some(name) => find(name),
        None => workspace::newest(store()?.folder(), &here()?.common_dir)?.ok_or_else(|| {
            Failure::usage(
                "no run has a worktree in this repository",
                "`guard worktree list` lists the worktrees of all runs; `guard restore --list` what is saved",
            )
        }),
    }
}

/// Finds a workspace by its run, a unique beginning or end of its id, or its branch.
fn find(name: &str) -> Result<(PathBuf, workspace::Record), Failure> {
    let known: Vec<(PathBuf, workspace::Record)> =
        entries()?.into_iter().filter_map(|entry| Some((entry.run_folder, entry.record.ok()?))).collect();
    let branch = |record: &workspace::Record| record.branch.trim_start_matches("refs/heads/").to_string();
    let tests: [&dyn Fn(&workspace::Record) -> bool; 3] = [
        &|record| record.run_id == name,
        &|record| branch(record) == name && record.state != State::Removed,
        &|record| !name.is_empty() && (record.run_id.starts_with(name) || record.run_id.ends_with(name)),
    ];
    for test in tests {
        let mut matching = known.iter().filter(|(_, record)| test(record));
        match (matching.next(), matching.next()) {
            (None, _) => {}
            (Some(one), None) => return Ok(one.clone()),
            (Some(_), Some(_)) => {
                return Err(Failure::usage(format!("{name:?} matches several runs"), "give more of the id"));
            }
        }
    }
    Err(Failure::usage(
        format!("no run with a worktree matches {name:?}"),
        "`guard worktree list --all` lists the runs with worktrees",
    ))
}

fn short(id: &str) -> &str {
    id.get(..10).unwrap_or(id)
}

fn entry_json(entry: &Entry) -> Value {
    match &entry.record {
        Err(error) => {
            json!({ "run_folder": entry.run_folder.to_string_lossy(), "problem": error.to_string() })
        }
        Ok(record) => json!({
            "run_id": record.run_id, "state": record.state.name(), "in_use": entry.is_busy,
            "branch": record.branch.trim_start_matches("refs/heads/"), "base": record.base, "tip": record.tip,
            "worktree": record.worktree.to_string_lossy(), "repository": record.common_dir.to_string_lossy(),
            "here": record.here,
        }),
    }
}

fn list(all: bool, json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let is_shown = |entry: &Entry| {
        all || !entry.record.as_ref().is_ok_and(|record| record.state == State::Removed && !entry.is_busy)
    };
    let entries: Vec<Entry> = entries()?.into_iter().filter(is_shown).collect();
    if json {
        print_json(&entries.iter().map(entry_json).collect(), out)?;
        return Ok(Exit::Success);
    }
    if entries.is_empty() {
        writeln!(out, "no worktrees of runs")?;
        return Ok(Exit::Success);
    }
    writeln!(out, "{:<36}  {:<10}  {:<10}  {:<28}  WORKTREE", "RUN", "STATE", "TIP", "BRANCH")?;
    for entry in &entries {
        match &entry.record {
            Err(error) => note(&format!("guard: note: {error}")),
            Ok(record) => {
                let state = if entry.is_busy { "in use" } else { record.state.name() };
                let tip = if record.tip == record.base { "-" } else { short(&record.tip) };
                writeln!(
                    out,
                    "{:<36}  {state:<10}  {tip:<10}  {:<28}  {}",
                    terminal_text::escape(&record.run_id),
                    terminal_text::escape(record.branch.trim_start_matches("refs/heads/")),
                    terminal_text::escape(&record.worktree.to_string_lossy()),
                )?;
            }
        }
    }
    Ok(Exit::Success)
}

fn diff(run: &str, stat: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let (folder, record) = find(run)?;
    let text = workspace::diff(&folder, stat)?;
    if std::io::IsTerminal::is_terminal(&std::io::stdout()) {
        // An agent's files can hold control sequences, which a terminal would obey.
        for line in String::from_utf8_lossy(&text).lines() {
            writeln!(out, "{}", terminal_text::escape(line))?;
        }
    } else {
        out.write_all(&text)?;
    }
    if record.state == State::Kept
        && let Ok(workspace) = Workspace::load(&folder)
    {
        let paths = workspace.uncommitted()?;
        if !paths.is_empty() {
            note(&format!(
                "guard: note: the diff omits uncommitted paths: {}; `guard diff {}` shows them",
                listed(&paths),
                record.run_id
            ));
        }
    }
    Ok(Exit::Success)
}

pub(super) fn listed(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths
        .iter()
        .take(10)
        .map(|path| terminal_text::escape(&path.to_string_lossy()).into_owned())
        .collect();
    let more = if paths.len() > 10 { format!(" and {} more", paths.len() - 10) } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

fn preview(run: &str, into: Option<&str>, json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let (folder, record) = find(run)?;
    let preview = workspace::preview(&folder, into)?;
    let names = |paths: &[PathBuf]| -> Vec<String> {
        paths.iter().map(|path| path.to_string_lossy().into_owned()).collect()
    };
    if json {
        let value = json!({
            "branch": record.branch.trim_start_matches("refs/heads/"), "into": preview.into, "ahead": preview.ahead,
            "behind": preview.behind, "files": names(&preview.files), "conflicts": names(&preview.conflicts),
        });
        print_json(&value, out)?;
    } else {
        let branch = record.branch.trim_start_matches("refs/heads/");
        let (files, into) = (preview.files.len(), terminal_text::escape(&preview.into).into_owned());
        writeln!(
            out,
            "{branch} into {into}: {} commits, {files} files; {into} has {} commits that {branch} lacks",
            preview.ahead, preview.behind
        )?;
        for path in &preview.conflicts {
            writeln!(out, "conflict: {}", terminal_text::escape(&path.to_string_lossy()))?;
        }
        if preview.conflicts.is_empty() {
            writeln!(out, "merges without conflicts: git merge {branch}")?;
        }
    }
    Ok(if preview.conflicts.is_empty() { Exit::Success } else { Exit::Problem })
}

fn disposed_json(run: &str, report: &DisposeReport) -> Value {
    let texts = |paths: &[PathBuf]| -> Vec<String> {
        paths.iter().map(|path| path.to_string_lossy().into_owned()).collect()
    };
    json!({
        "run_id": run, "kept": report.kept, "has_commits": report.has_commits, "unreceived": report.unreceived,
        "uncommitted": texts(&report.uncommitted), "saved": report.saved,
        "moved": report.moved.iter().map(|(from, to)| json!({ "from": from.to_string_lossy(), "to": to.to_string_lossy() })).collect::<Vec<_>>(),
    })
}

fn clean(runs: &[String], all: bool, json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    // Named workspaces are removed, and with `--all` every one that is not in use. Otherwise only those with nothing
    // new, or those that were interrupted.
    let (folders, disposal): (Vec<PathBuf>, KeepPolicy) = if runs.is_empty() {
        let open = entries()?.into_iter().filter(|entry| {
            !entry.is_busy && entry.record.as_ref().is_ok_and(|record| record.state != State::Removed)
        });
        (
            open.map(|entry| entry.run_folder).collect(),
            if all { KeepPolicy::Discard } else { KeepPolicy::Auto },
        )
    } else {
        let found = runs.iter().map(|run| find(run).map(|(folder, _)| folder));
        (found.collect::<Result<_, _>>()?, KeepPolicy::Discard)
    };
    let mut results = Vec::new();
    let mut failed = false;
    for folder in folders {
        match clean_one(&folder, disposal) {
            Ok((run, report)) => {
                if !json {
                    write_disposed(&run, &report, out)?;
                }
                results.push(disposed_json(&run, &report));
            }
            Err(error) => {
                failed = true;
                note(&format!("guard: {}: {error}", folder.display()));
                if let Some(hint) = error.hint() {
                    note(&format!("  hint: {hint}"));
                }
            }
        }
    }
    if json {
        print_json(&Value::Array(results), out)?;
    }
    Ok(if failed { Exit::Problem } else { Exit::Success })
}

fn clean_one(folder: &Path, disposal: KeepPolicy) -> Result<(String, DisposeReport), WorkspaceError> {
    let mut workspace = Workspace::load(folder)?;
    let report = workspace.dispose(disposal)?;
    Ok((workspace.record().run_id.clone(), report))
}

fn write_disposed(run: &str, report: &DisposeReport, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "{run}: {}", if report.kept { "kept" } else { "removed" })?;
    for name in &report.saved {
        writeln!(out, "  its work is saved under {name}")?;
    }
    if report.unreceived {
        writeln!(out, "  its quarantine repository is kept: it has commits that guard did not receive")?;
    }
    for (from, to) in &report.moved {
        writeln!(
            out,
            "  moved {} to {}",
            terminal_text::escape(&from.to_string_lossy()),
            terminal_text::escape(&to.to_string_lossy())
        )?;
    }
    Ok(())
}

fn receive(run: &str, max_mib: Option<u64>, json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let (folder, _) = find(run)?;
    let mut workspace = Workspace::load(&folder)?;
    let mut limits = Limits::default();
    if let Some(mib) = max_mib {
        limits.bytes = mib.saturating_mul(1 << 20);
    }
    match workspace.receive(&limits) {
        Ok(received) => {
            workspace.dispose(KeepPolicy::Keep)?;
            if json {
                print_json(&received_json(&received), out)?;
            } else {
                write_received(workspace.branch(), &received, out)?;
            }
            Ok(Exit::Success)
        }
        Err(error) if json => {
            print_json(&json!({ "error": error.to_string(), "retryable": error.is_retryable() }), out)?;
            Ok(Exit::Problem)
        }
        Err(error) => {
            note(&format!("guard: {error}"));
            note(&format!("  hint: {}", next_step(&error)));
            Ok(Exit::Problem)
        }
    }
}

fn next_step(error: &ReceiveError) -> &'static str {
    match error {
        ReceiveError::TooLarge { .. } => "if the size is intended, give a larger --max-mib",
        ReceiveError::CheckedOut { .. } => "switch that worktree to another branch, and try again",
        ReceiveError::Moved { .. } => {
            "put the branch back (git update-ref), or fetch the commits from the quarantine yourself"
        }
        _ => "the quarantine repository is kept, and your repository is unchanged",
    }
}

fn received_json(received: &Received) -> Value {
    let other = |one: &OtherRef| json!({ "name": one.name, "id": one.id, "new": one.is_new });
    json!({
        "old": received.old, "new": received.new,
        "commits": received.commits.iter().map(|commit| json!({ "id": commit.id, "author": commit.author, "subject": commit.subject })).collect::<Vec<_>>(),
        "other_refs": received.other_refs.iter().map(other).collect::<Vec<_>>(),
        "other_refs_left_out": received.other_refs_left_out,
    })
}

fn write_received(branch: &str, received: &Received, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "{branch}: {} commits received", received.commits.len())?;
    for commit in &received.commits {
        writeln!(out, "  {} {}", short(&commit.id), terminal_text::escape(&commit.subject))?;
    }
    for one in &received.other_refs {
        let what = match (&one.id, one.is_new) {
            (Some(_), true) => "created",
            (Some(_), false) => "moved",
            (None, _) => "deleted or corrupted",
        };
        writeln!(out, "  not received: {} was {what} in the quarantine", terminal_text::escape(&one.name))?;
    }
    if received.other_refs_left_out > 0 {
        writeln!(out, "  not received: {} more refs of the quarantine", received.other_refs_left_out)?;
    }
    Ok(())
}
