//! `guard worktree`: lists, shows, receives and removes the branches and worktrees that runs have left in the
//! repository. Without a run's name or `--all`, guard removes only worktrees without new work. Otherwise it saves new
//! work before it removes the worktree.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::args::Worktree;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::json::print_json;
use crate::cli::output::quantities::{count, listed};
use crate::cli::output::table;
use crate::cli::output::table::Column;
use crate::cli::{Failure, note};
use crate::git;
use crate::git::{
    DisposeReport, Entry, KeepPolicy, OtherRef, ReceiveError, Received, Repository, State, Workspace,
    WorkspaceError,
};
use crate::session::run_reference::{short_ids, store};
use crate::session::worktree_lookup::{entries, find, short_branch, target_commit};
use crate::text::terminal_text;

/// The width of the columns before the path in `guard worktree list`, with the gaps between them, if run ids are shown
/// with eight characters and every other column has its maximum width.
const LONGEST_BEFORE_PATH: usize = 76;

pub(in crate::cli) fn run(args: &Worktree, out: &mut dyn Write) -> Result<Exit, Failure> {
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
        Worktree::Clean { runs, all, all_repositories, dry_run, json } => {
            let (all, all_repositories, dry_run, json) = (*all, *all_repositories, *dry_run, *json);
            clean(&CleanRequest { runs, all, all_repositories, dry_run, json }, out)
        }
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
        writeln!(out, "there are no worktrees of runs")?;
        return Ok(Exit::Success);
    }
    let ids = store()?.ids()?;
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let short_id = short_ids(&ids);
    let mut rows = Vec::new();
    for entry in &entries {
        match &entry.record {
            Err(error) => note(&format!("guard: note: {error}")),
            Ok(record) => rows.push((record, entry.is_busy)),
        }
    }
    let column = |title, leave_out, widest, cell: &dyn Fn(&git::Record, bool) -> String| {
        let cells = rows.iter().map(|(record, is_busy)| terminal_text::one_line(&cell(record, *is_busy)));
        Column { title, cells: cells.collect(), is_number: false, widest, shrinks: false, leave_out }
    };
    let columns = vec![
        column("RUN", 0, 36, &|record, _| {
            short_id.get(record.run_id.as_str()).copied().unwrap_or(&record.run_id).to_string()
        }),
        column("STATE", 0, 10, &|record, is_busy| {
            if is_busy { "in use" } else { record.state.name() }.to_string()
        }),
        column("TIP", 1, 10, &|record, _| {
            // A run in an existing worktree may have added nothing to the work of earlier runs there.
            if record.tip == record.base && !record.here { "-" } else { short(&record.tip) }.to_string()
        }),
        column("BRANCH", 0, 40, &|record, _| short_branch(record).to_string()),
        // Users copy paths, so the table never shortens them.
        column("WORKTREE", 0, usize::MAX, &|record, _| record.worktree.to_string_lossy().into_owned()),
    ];
    let longest = rows.iter().map(|(record, _)| record.worktree.as_os_str().len()).max().unwrap_or(0);
    table::write(columns, table::width().max(longest + LONGEST_BEFORE_PATH), out)?;
    Ok(Exit::Success)
}

fn diff(run: &str, stat: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let (folder, record) = find(run)?;
    let text = git::diff(&folder, stat, target_commit(&record)?.as_deref())?;
    if std::io::IsTerminal::is_terminal(&std::io::stdout()) {
        // An agent's files can contain control sequences, which the terminal would interpret.
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

fn preview(run: &str, into: Option<&str>, json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let (folder, record) = find(run)?;
    let preview = git::preview(&folder, into)?;
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
            "{branch} into {into}: {}, {}; {into} has {} that {branch} lacks",
            count(preview.ahead, "commit"),
            count(files, "file"),
            count(preview.behind, "commit")
        )?;
        for path in &preview.conflicts {
            writeln!(out, "conflict: {}", terminal_text::escape(&path.to_string_lossy()))?;
        }
        if preview.conflicts.is_empty() {
            writeln!(out, "the branch merges without conflicts; to merge it: guard apply {branch}")?;
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

struct CleanRequest<'a> {
    runs: &'a [String],
    all: bool,
    all_repositories: bool,
    dry_run: bool,
    json: bool,
}

impl CleanRequest<'_> {
    /// Returns the common directory of the repository to clean, which contains the current directory; `None` means all
    /// repositories. Fails if the current directory is in no repository.
    fn repository(&self) -> Result<Option<PathBuf>, Failure> {
        if self.all_repositories {
            return Ok(None);
        }
        let directory = std::env::current_dir()?;
        let found = Repository::find(&directory)?;
        let found = found.ok_or_else(|| {
            Failure::usage(
                format!("{} is not in a git repository", directory.display()),
                "change to a repository, name the runs to remove, or give --all-repositories",
            )
        })?;
        Ok(Some(found.common_dir))
    }
}

fn clean(request: &CleanRequest<'_>, out: &mut dyn Write) -> Result<Exit, Failure> {
    // If the user named runs, remove their workspaces. With `--all`, remove every workspace that is not in use.
    // Otherwise remove only workspaces without new work, and those that a killed guard did not finish creating or
    // removing.
    let mut repository = None;
    let (folders, disposal): (Vec<PathBuf>, KeepPolicy) = if request.runs.is_empty() {
        repository = request.repository()?;
        let is_meant = |record: &git::Record| {
            record.state != State::Removed
                && repository.as_ref().is_none_or(|repository| record.common_dir == *repository)
        };
        let open = entries()?
            .into_iter()
            .filter(|entry| !entry.is_busy && entry.record.as_ref().is_ok_and(is_meant));
        (
            open.map(|entry| entry.run_folder).collect(),
            if request.all { KeepPolicy::Discard } else { KeepPolicy::Auto },
        )
    } else {
        let found = request.runs.iter().map(|run| find(run).map(|(folder, _)| folder));
        (found.collect::<Result<_, _>>()?, KeepPolicy::Discard)
    };
    let mut results = Vec::new();
    let mut failed = false;
    for folder in folders {
        match clean_one(&folder, disposal, request.dry_run) {
            Ok((record, report)) => {
                if !request.json {
                    write_disposed(&record, &report, request.dry_run, out)?;
                }
                results.push(disposed_json(&record.run_id, &report));
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
    if request.json {
        print_json(&Value::Array(results), out)?;
    } else if request.runs.is_empty() {
        if results.is_empty() && !failed {
            writeln!(out, "there are no worktrees of runs to remove")?;
        }
        out.flush()?;
        let is_meant = |common_dir: &Path| repository.as_ref().is_none_or(|wanted| common_dir == wanted);
        crate::cli::commands::task_admin::clean_finished(&is_meant, request.all && !request.dry_run, out)?;
        crate::cli::commands::undo::clean(request.dry_run, out)?;
    }
    Ok(if failed { Exit::Problem } else { Exit::Success })
}

fn clean_one(
    folder: &Path,
    disposal: KeepPolicy,
    dry_run: bool,
) -> Result<(git::Record, DisposeReport), WorkspaceError> {
    let mut workspace = Workspace::load(folder)?;
    let report = if dry_run {
        let kept = workspace.record().here || disposal == KeepPolicy::Auto && workspace.holds_new_work()?;
        DisposeReport { kept, ..DisposeReport::default() }
    } else {
        workspace.dispose(disposal)?
    };
    Ok((workspace.record().clone(), report))
}

fn write_disposed(
    record: &git::Record,
    report: &DisposeReport,
    dry_run: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let done = match (report.kept, dry_run) {
        (true, false) => "kept",
        (true, true) => "would be kept",
        (false, false) => "removed",
        (false, true) => "would be removed",
    };
    writeln!(
        out,
        "{}: {done}: {} in {}",
        terminal_text::escape(&record.run_id),
        terminal_text::escape(short_branch(record)),
        terminal_text::escape(&record.worktree.to_string_lossy()),
    )?;
    for name in &report.saved {
        writeln!(out, "  its work is saved under {name}")?;
    }
    if report.unreceived {
        writeln!(
            out,
            "  guard kept the run's private git repository, which has commits that guard did not receive"
        )?;
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
    let (folder, record) = find(run)?;
    let mut workspace = Workspace::load(&folder)?;
    let mut limits = record.limits();
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
        ReceiveError::TooLarge { .. } => "if you expect commits of this size, give a larger --max-mib",
        ReceiveError::CheckedOut { .. } => "switch that worktree to another branch, and try again",
        ReceiveError::Moved { .. } => {
            "put the branch back (git update-ref), or fetch the commits from the run's private repository yourself"
        }
        ReceiveError::NotOpen(_) => "`guard worktree list` shows the worktrees that guard still keeps",
        _ => {
            "guard kept the run's private repository, and did not change yours; correct the problem and try again"
        }
    }
}

fn received_json(received: &Received) -> Value {
    let other = |one: &OtherRef| json!({ "name": one.name, "id": one.id, "new": one.is_new });
    json!({
        "old": received.old, "new": received.new, "commit_count": received.commit_count,
        "commits": received.commits.iter().map(|commit| json!({ "id": commit.id, "author": commit.author, "subject": commit.subject })).collect::<Vec<_>>(),
        "other_refs": received.other_refs.iter().map(other).collect::<Vec<_>>(),
        "other_refs_left_out": received.other_refs_left_out,
    })
}

fn write_received(branch: &str, received: &Received, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "{branch}: guard received {}", count(received.commit_count, "commit"))?;
    for commit in &received.commits {
        writeln!(out, "  {} {}", short(&commit.id), terminal_text::escape(&commit.subject))?;
    }
    for one in &received.other_refs {
        let what = match (&one.id, one.is_new) {
            (Some(_), true) => "created",
            (Some(_), false) => "moved",
            (None, _) => "deleted or corrupted",
        };
        writeln!(
            out,
            "  not received: {}, which was {what} in the run's private repository",
            terminal_text::escape(&one.name)
        )?;
    }
    if received.other_refs_left_out > 0 {
        writeln!(
            out,
            "  more refs of the run's private repository that guard did not receive: {}",
            received.other_refs_left_out
        )?;
    }
    Ok(())
}
