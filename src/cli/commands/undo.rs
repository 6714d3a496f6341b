//! `guard undo`: undoes what a run changed in the user's directory, from the snapshot that guard took before the run.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::args::take_over::Undo as Arguments;
use crate::cli::commands::runs::{parse_age, size};
use crate::cli::output::exit_code::Exit;
use crate::cli::output::json::print_json;
use crate::cli::output::quantities::count;
use crate::cli::{Failure, note};
use crate::git;
use crate::git::snapshot::Name;
use crate::git::{
    DirectorySnapshot, SavedSnapshot, Selection, SkipReason, SnapshotKind, SnapshotLimits, SnapshotRequest,
    StepKind, Undo, UndoPlan, UndoReport,
};
use crate::run::transcript::{Run, RunState};
use crate::session::keep_runs::snapshot_limits;
use crate::session::run_reference;
use crate::session::run_reference::{Candidate, pick, short_ids, store};
use crate::session::user_config;
use crate::text::terminal_text;

/// The maximum number of paths of one kind that guard lists for a person.
const MOST_SHOWN: usize = 20;

pub(in crate::cli) fn run(args: &Arguments, out: &mut dyn Write) -> Result<Exit, Failure> {
    if let Some(age) = &args.expire {
        return expire(age, args.dry_run, args.json, out);
    }
    let directory = directory(args.dir.as_deref())?;
    let all = git::saved_snapshots(store()?.folder());
    if args.list {
        return list(&of_directory(&all, &directory), args.json, out);
    }
    let saved = find(args, &all, &directory)?;
    undo(args, saved, &directory, out)
}

/// Returns the directory that the user means, without symbolic links.
fn directory(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let current = || match given {
        Some(directory) => Ok(directory.to_path_buf()),
        None => std::env::current_dir(),
    };
    current().and_then(std::fs::canonicalize).map_err(|error| {
        let shown = given.map_or("the current directory".to_string(), |given| given.display().to_string());
        Failure::usage(
            format!("cannot open {shown}: {error}"),
            "change to the directory in which the run worked, or give it with --dir DIR",
        )
    })
}

/// Returns the snapshots of the nearest directory, at or above this one, that has any.
fn of_directory(all: &[SavedSnapshot], directory: &Path) -> Vec<SavedSnapshot> {
    let of = |level: &Path| -> Vec<SavedSnapshot> {
        all.iter().filter(|saved| saved.directory() == level).cloned().collect()
    };
    directory.ancestors().map(of).find(|found| !found.is_empty()).unwrap_or_default()
}

/// Returns true if there is a snapshot of the run with this id, or a unique beginning or end of it.
pub(in crate::cli) fn has_snapshot(name: &str) -> bool {
    let Ok(store) = store() else { return false };
    let all = git::saved_snapshots(store.folder());
    pick(name, &candidates(all.iter())).is_ok()
}

fn candidates<'s>(all: impl Iterator<Item = &'s SavedSnapshot>) -> Vec<Candidate> {
    let candidate = |saved: &SavedSnapshot| Candidate {
        id: saved.id().to_string(),
        started: time(saved),
        ..Candidate::default()
    };
    all.map(candidate).collect()
}

fn time(saved: &SavedSnapshot) -> Option<Timestamp> {
    Timestamp::try_from(saved.taken()).ok()
}

/// Finds the snapshot that the user named, or that of the last run in the directory.
fn find(args: &Arguments, all: &[SavedSnapshot], directory: &Path) -> Result<SavedSnapshot, Failure> {
    let here = of_directory(all, directory);
    let runs_here: Vec<&SavedSnapshot> =
        here.iter().filter(|saved| saved.kind() == SnapshotKind::Run).collect();
    let reference = args.run.as_deref().unwrap_or("@");
    if reference.starts_with('@') {
        if runs_here.is_empty() {
            return Err(nothing_here(directory));
        }
        let found = pick(reference, &candidates(runs_here.iter().copied()))?;
        return Ok(runs_here[found].clone());
    }
    let found = match pick(reference, &candidates(all.iter())) {
        Ok(found) => &all[found],
        Err(failure) => return Err(without_snapshot(reference, directory).unwrap_or(failure)),
    };
    if directory.starts_with(found.directory()) {
        return Ok(found.clone());
    }
    Err(Failure::usage(
        format!("the run {} worked in {}", found.id(), found.directory().display()),
        format!("change to that directory, or add --dir {}", found.directory().display()),
    ))
}

fn nothing_here(directory: &Path) -> Failure {
    Failure::usage(
        format!("guard has no snapshot of {} from before a run", directory.display()),
        "guard takes one before a run that works in the directory itself (--in-place, --here, or outside a repository); \
         for a run with a worktree, use `guard diff`, `guard worktree clean` or `guard restore`",
    )
}

/// Returns why there is no snapshot for what the user named; `None` if it is neither a run nor a path.
fn without_snapshot(reference: &str, directory: &Path) -> Option<Failure> {
    if let Ok(run) = run_reference::find(Some(reference)) {
        let id = &run.id;
        return Some(match run.branch() {
            Some(branch) => Failure::usage(
                format!(
                    "the run {id} worked in a worktree, on the branch {branch}, and not in your directory"
                ),
                format!(
                    "`guard diff {id}` shows its work, `guard worktree clean {id}` removes it, and `guard restore {id}` \
                     brings back what was removed"
                ),
            ),
            None => Failure::usage(
                format!("guard has no snapshot from before the run {id}"),
                "the run could write nothing in its directory, or snapshots were switched off, or the snapshot has \
                 expired (`guard help undo`)",
            ),
        });
    }
    let is_path = reference.contains('/') || directory.join(reference).symlink_metadata().is_ok();
    is_path.then(|| {
        Failure::usage(
            format!("no run matches {reference:?}"),
            format!(
                "to undo the changes of the last run in this file or directory: guard undo @ {reference}"
            ),
        )
    })
}

fn undo(
    args: &Arguments,
    saved: SavedSnapshot,
    directory: &Path,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let store = store()?;
    let run = Run::read(&store.folder().join(saved.id()));
    if run.state == RunState::Running && saved.kind() == SnapshotKind::Run {
        return Err(Failure::usage(
            format!("the run {} is still running", saved.id()),
            format!("end it with `guard stop {}`, or wait for it", saved.id()),
        ));
    }
    let selection = Selection {
        paths: selected_paths(&args.paths, directory, &saved.directory())?,
        only_deleted: args.deleted,
        force: args.force,
    };
    let (id, top) = (saved.id().to_string(), saved.directory());
    let undo = Undo::open(saved)?;
    let plan = undo.plan(&selection)?;
    if !args.json {
        write_plan(&undo, &plan, &id, &top, args, out)?;
        out.flush()?;
    }
    let is_partial = !plan.skipped.is_empty() || plan.unseen.is_some();
    if args.dry_run || plan.is_empty() {
        if args.json {
            print_json(&as_json(&id, &top, &plan, None, None), out)?;
        }
        return Ok(if is_partial && !args.dry_run { Exit::Problem } else { Exit::Success });
    }
    if !args.yes && !is_confirmed(args)? {
        note("guard: nobody confirmed the undo, so guard changed nothing");
        return Ok(Exit::Problem);
    }
    // An undo overwrites work of the run, and the user may want that back.
    let own_id = uuid::Uuid::now_v7().to_string();
    let own = take_own_snapshot(&undo, &top, store.folder(), &own_id);
    let own_id = match &own {
        Ok(_) => Some(own_id.as_str()),
        Err(failure) => {
            note(&format!(
                "guard: cannot take a snapshot, so this undo cannot be undone: {}",
                failure.render()
            ));
            None
        }
    };
    let report = undo.apply(&plan);
    if let Ok(own) = own {
        own.finish();
    }
    let report = report?;
    if args.json {
        print_json(&as_json(&id, &top, &plan, Some(&report), own_id), out)?;
    } else {
        write_report(&report, own_id, out)?;
    }
    Ok(if is_partial || !report.failed.is_empty() { Exit::Problem } else { Exit::Success })
}

fn take_own_snapshot(
    undo: &Undo,
    directory: &Path,
    runs: &Path,
    id: &str,
) -> Result<DirectorySnapshot, Failure> {
    let state = user_config()?.state;
    // Without a limit of the user, an undo must still be able to save what it replaces.
    let (max_bytes, max_ignored_bytes) = state.snapshot_bytes().unwrap_or((0, 0));
    let request = SnapshotRequest {
        directory,
        runs,
        id,
        kind: SnapshotKind::Undo,
        command: &[],
        max_bytes,
        max_ignored_bytes,
        trusts_objects: true,
    };
    let taken = DirectorySnapshot::take_before_undo(&request, undo)?;
    let left_out = taken.too_large().files + taken.too_large_ignored().files;
    if left_out > 0 {
        note(&format!(
            "guard: {} too large for the snapshot from before this undo (snapshot_mib and snapshot_ignored_mib in [state] of config.toml)",
            if left_out == 1 { "1 file is".to_string() } else { format!("{left_out} files are") }
        ));
    }
    Ok(taken)
}

/// Converts the paths that the user gave, relative to `current`, to paths relative to the directory of the snapshot.
/// Follows no links, because the paths may not exist.
fn selected_paths(paths: &[PathBuf], current: &Path, top: &Path) -> Result<Vec<Name>, Failure> {
    use std::os::unix::ffi::OsStrExt;
    let mut selected = Vec::new();
    for path in paths {
        let mut whole = current.to_path_buf();
        for part in path.components() {
            match part {
                Component::RootDir => whole = PathBuf::from("/"),
                Component::ParentDir => {
                    whole.pop();
                }
                Component::Normal(name) => whole.push(name),
                Component::CurDir | Component::Prefix(_) => {}
            }
        }
        let Ok(below) = whole.strip_prefix(top) else {
            return Err(Failure::usage(
                format!("{} is not in {}, where the run worked", path.display(), top.display()),
                "give paths in that directory",
            ));
        };
        if below.as_os_str().is_empty() {
            return Ok(Vec::new());
        }
        selected.push(Name::from(below.as_os_str().as_bytes()));
    }
    Ok(selected)
}

fn heading(kind: StepKind) -> &'static str {
    match kind {
        StepKind::Restore => "bring back, because the run deleted it",
        StepKind::Revert => "change back",
        StepKind::Mode => "change back the mode or owner",
        StepKind::Remove => "remove, because the run created it",
    }
}

fn reason(reason: SkipReason) -> &'static str {
    match reason {
        SkipReason::ChangedSince => "it changed since the run; --force overwrites or removes it",
        SkipReason::DeletedSince => "it was deleted since the run; --force brings it back",
        SkipReason::CreatedSince => "it was created again since the run; --force overwrites it",
        SkipReason::Unknown => {
            "guard does not know whether the run or somebody else changed it; --force overwrites or removes it"
        }
        SkipReason::Blocked => {
            "a file or link that guard leaves alone is in the place of a directory above it"
        }
        SkipReason::NoCopy => "it was too large for the snapshot, or unreadable",
        SkipReason::Special => "it was a socket or a device",
        SkipReason::Repository => {
            "the run deleted, moved or replaced it, and guard cannot bring back a `.git`; copy it from a backup, or \
             clone the repository again and move the `.git` of the clone there"
        }
        SkipReason::MovedRepository => "it is your `.git`, which the run moved there; move it back",
    }
}

fn is_in_repository(path: &Name) -> bool {
    path.path().parent().is_some_and(|above| above.iter().any(|part| part == ".git"))
}

fn write_paths<'p>(
    paths: impl ExactSizeIterator<Item = (&'p Name, bool)>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let more = paths.len().saturating_sub(MOST_SHOWN);
    for (path, is_directory) in paths.take(MOST_SHOWN) {
        let slash = if is_directory { "/" } else { "" };
        writeln!(out, "  {}{slash}", terminal_text::escape(&path.path().to_string_lossy()))?;
    }
    if more > 0 {
        writeln!(out, "  … and {more} more (--json lists all)")?;
    }
    Ok(())
}

fn write_plan(
    undo: &Undo,
    plan: &UndoPlan,
    id: &str,
    top: &Path,
    args: &Arguments,
    out: &mut dyn Write,
) -> io::Result<()> {
    let top = terminal_text::escape(&top.to_string_lossy()).into_owned();
    if plan.is_empty() && plan.skipped.is_empty() {
        return writeln!(
            out,
            "nothing to undo in {top}: it is as before the run {id}; `guard undo --list` shows earlier runs"
        );
    }
    writeln!(out, "undo of the run {id} in {top}:")?;
    if !undo.knows_end() {
        writeln!(
            out,
            "guard was killed during this run, so it cannot tell the run's changes from later ones"
        )?;
    }
    for kind in [StepKind::Restore, StepKind::Revert, StepKind::Mode, StepKind::Remove] {
        // A repository is removed as a whole, so its files are not listed.
        let is_shown = |step: &&git::UndoStep| {
            step.kind == kind && (kind != StepKind::Remove || !is_in_repository(&step.path))
        };
        let steps: Vec<_> = plan.steps.iter().filter(is_shown).collect();
        if !steps.is_empty() {
            writeln!(out, "{} ({}):", heading(kind), steps.len())?;
            write_paths(steps.iter().map(|step| (&step.path, step.is_directory)), out)?;
        }
    }
    let reasons = [
        SkipReason::ChangedSince,
        SkipReason::DeletedSince,
        SkipReason::CreatedSince,
        SkipReason::Unknown,
        SkipReason::Blocked,
        SkipReason::NoCopy,
        SkipReason::Special,
        SkipReason::Repository,
        SkipReason::MovedRepository,
    ];
    for why in reasons {
        let paths: Vec<_> = plan.skipped.iter().filter(|(_, reason)| *reason == why).collect();
        if !paths.is_empty() {
            writeln!(out, "leave alone ({}): {}", paths.len(), reason(why))?;
            write_paths(paths.iter().map(|(path, _)| (path, false)), out)?;
        }
    }
    if let Some(why) = &plan.unseen {
        writeln!(
            out,
            "guard cannot see the whole directory: {}; `guard undo` again may find more",
            terminal_text::replace(why)
        )?;
    }
    if args.dry_run && !plan.is_empty() {
        writeln!(out, "--dry-run: guard changed nothing")?;
    }
    Ok(())
}

fn write_report(report: &UndoReport, own_id: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
    let done = |kind: StepKind| report.done.get(&kind).copied().unwrap_or_default();
    writeln!(
        out,
        "brought back {}, changed back {}, removed {}",
        done(StepKind::Restore),
        done(StepKind::Revert) + done(StepKind::Mode),
        done(StepKind::Remove)
    )?;
    for (path, problem) in report.failed.iter().take(MOST_SHOWN) {
        let path = path.path();
        note(&format!(
            "guard: {}: {}",
            terminal_text::escape(&path.to_string_lossy()),
            terminal_text::replace(problem)
        ));
    }
    if report.failed.len() > MOST_SHOWN {
        note(&format!("guard: and {} more failures", report.failed.len() - MOST_SHOWN));
    }
    if let Some(id) = own_id {
        writeln!(out, "  to take this back: guard undo {id}")?;
    }
    Ok(())
}

fn as_json(
    id: &str,
    top: &Path,
    plan: &UndoPlan,
    report: Option<&UndoReport>,
    own_id: Option<&str>,
) -> Value {
    let text = |path: &Name| path.path().to_string_lossy().into_owned();
    let step_name = |kind: StepKind| match kind {
        StepKind::Restore => "restore",
        StepKind::Revert => "revert",
        StepKind::Mode => "mode",
        StepKind::Remove => "remove",
    };
    let reason_name = |reason: SkipReason| match reason {
        SkipReason::ChangedSince => "changed_since",
        SkipReason::DeletedSince => "deleted_since",
        SkipReason::CreatedSince => "created_since",
        SkipReason::Unknown => "unknown",
        SkipReason::Blocked => "blocked",
        SkipReason::NoCopy => "no_copy",
        SkipReason::Special => "special",
        SkipReason::Repository => "repository",
        SkipReason::MovedRepository => "moved_repository",
    };
    let steps = plan.steps.iter().map(|step| {
        json!({ "path": text(&step.path), "action": step_name(step.kind), "directory": step.is_directory })
    });
    let skipped = plan.skipped.iter();
    let skipped = skipped.map(|(path, why)| json!({ "path": text(path), "reason": reason_name(*why) }));
    let failed = report.iter().flat_map(|report| &report.failed);
    let failed = failed.map(|(path, problem)| json!({ "path": text(path), "problem": problem }));
    json!({
        "run_id": id, "directory": top.to_string_lossy(), "done": report.is_some(),
        "steps": steps.collect::<Vec<_>>(), "skipped": skipped.collect::<Vec<_>>(),
        "failed": failed.collect::<Vec<_>>(), "incomplete": plan.unseen, "undo_id": own_id,
    })
}

fn is_confirmed(args: &Arguments) -> Result<bool, Failure> {
    if args.json || !io::stdin().is_terminal() {
        note(
            "guard: guard cannot ask for confirmation without a terminal\n  \
             hint: --dry-run shows what would change; use --yes to do it without asking",
        );
        return Ok(false);
    }
    let _ = write!(io::stderr(), "undo this? [y/N] ");
    let _ = io::stderr().flush();
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn list(saved: &[SavedSnapshot], is_json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    if is_json {
        let one = |saved: &SavedSnapshot| {
            json!({
                "id": saved.id(), "kind": saved.kind(), "taken_at": time(saved).map(|time| time.to_string()),
                "directory": saved.directory().to_string_lossy(), "files": saved.files(), "bytes": saved.disk_use(),
                "command": saved.command(), "knows_end": saved.is_finished(),
            })
        };
        print_json(&saved.iter().map(one).collect(), out)?;
        return Ok(Exit::Success);
    }
    if saved.is_empty() {
        writeln!(out, "guard has no snapshots of this directory")?;
        return Ok(Exit::Success);
    }
    let ids: Vec<&str> = saved.iter().map(SavedSnapshot::id).collect();
    let short = short_ids(&ids);
    writeln!(out, "{:<12}  {:<17}  {:>7}  {:>10}  BEFORE", "ID", "TAKEN", "FILES", "SIZE")?;
    for one in saved {
        let when = time(one).map_or("?".to_string(), |time| time.strftime("%Y-%m-%d %H:%MZ").to_string());
        let command = match one.kind() {
            SnapshotKind::Run => terminal_text::one_line(terminal_text::before(&one.command().join(" "), 80)),
            SnapshotKind::Undo => "(guard undo)".to_string(),
        };
        let id = short.get(one.id()).copied().unwrap_or(one.id());
        writeln!(out, "{id:<12}  {when:<17}  {:>7}  {:>10}  {command}", one.files(), size(one.disk_use()))?;
    }
    writeln!(out, "`guard undo ID --dry-run` shows what an undo would change")?;
    Ok(Exit::Success)
}

fn expire(age: &str, dry_run: bool, is_json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let age = parse_age("--expire", age)?;
    let runs = store()?.folder().to_path_buf();
    let old = Duration::from_secs(u64::try_from(age.as_secs()).unwrap_or(0));
    let now = SystemTime::now();
    let is_old =
        |saved: &SavedSnapshot| now.duration_since(saved.taken()).is_ok_and(|elapsed| elapsed >= old);
    let deleted: Vec<SavedSnapshot> = if dry_run {
        git::saved_snapshots(&runs).into_iter().filter(is_old).collect()
    } else {
        // A limit of zero would mean that there is none.
        let age = old.max(Duration::from_nanos(1));
        git::expire_snapshots(&runs, SnapshotLimits { age, bytes: 0 }, None)
    };
    if is_json {
        let ids: Vec<&str> = deleted.iter().map(SavedSnapshot::id).collect();
        print_json(&json!({ "removed": !dry_run, "snapshots": ids }), out)?;
        return Ok(Exit::Success);
    }
    let verb = if dry_run { "would delete" } else { "deleted" };
    let left = size(git::snapshots_disk_use(&runs));
    writeln!(out, "{verb} {}; all snapshots together take {left}", count(deleted.len(), "snapshot"))?;
    Ok(Exit::Success)
}

/// Deletes the snapshots that exceed the configured limits, and what killed guard processes left, for `guard worktree
/// clean`. Says how many snapshots stay.
pub(in crate::cli) fn clean(dry_run: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let runs = store()?.folder().to_path_buf();
    if !dry_run {
        let deleted = git::expire_snapshots(&runs, snapshot_limits(&user_config()?.state), None);
        if !deleted.is_empty() {
            writeln!(out, "deleted {} for `guard undo`", count(deleted.len(), "old snapshot"))?;
        }
    }
    let kept = git::saved_snapshots(&runs).len();
    if kept > 0 {
        let bytes = size(git::snapshots_disk_use(&runs));
        writeln!(
            out,
            "kept {} for `guard undo`, {bytes}; `guard undo --expire TIME` deletes older ones",
            count(kept, "snapshot")
        )?;
    }
    Ok(())
}
