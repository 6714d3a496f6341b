//! `guard apply`: applies the changes of a run to the user's branch or, with `--uncommitted`, to the user's index and
//! working tree. Then removes the run's worktree.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::args::take_over::Apply;
use crate::cli::commands::review::{is_confirmed, write_findings};
use crate::cli::output::exit_code::Exit;
use crate::cli::output::json::print_json;
use crate::cli::output::quantities::{count, listed};
use crate::cli::{Failure, note};
use crate::git::review::findings::Danger;
use crate::git::{
    ApplyMethod, ApplyPlan, ApplyRequest, KeepPolicy, Planned, Repository, Workspace, WorkspaceError,
};
use crate::run::launch::danger_finding;
use crate::run::outcome::{Finding, RunResult};
use crate::run::transcript::{Run, RunState};
use crate::session::worktree_lookup::{find_or_newest, here};
use crate::text::terminal_text;

/// Applies everything on the branch of a run that the user's branch does not have, whichever runs made it.
pub(in crate::cli) fn run(args: &Apply, out: &mut dyn Write) -> Result<Exit, Failure> {
    let (folder, record) = find_or_newest(args.run.as_deref())?;
    let repository = Repository { trusted: args.trust_repository, ..here()? };
    let mut workspace = match Workspace::load(&folder) {
        Err(WorkspaceError::Busy(_)) if Run::read(&folder).state == RunState::Running => {
            return Err(Failure::usage(
                format!("the run {} is still running", record.run_id),
                format!(
                    "wait for its end with `guard log {0} --follow`; `guard diff {0}` shows its work so far",
                    record.run_id
                ),
            ));
        }
        loaded => loaded?,
    };
    if args.commit_only {
        return commit_only(args, &mut workspace, &repository, out);
    }
    let findings = |dangers: Vec<Danger>| -> Vec<Finding> {
        broken_boundary(&folder).into_iter().chain(dangers.into_iter().map(danger_finding)).collect()
    };
    let request = ApplyRequest {
        method: match (args.squash, args.uncommitted) {
            (true, _) => ApplyMethod::Squash,
            (_, true) => ApplyMethod::Uncommitted,
            _ => ApplyMethod::Merge,
        },
        message: args.message.clone(),
        dry_run: args.dry_run,
    };
    let mut plan = match workspace.plan_apply(&repository, &request)? {
        Planned::Ready(plan) => plan,
        Planned::Nothing(work) => {
            let has_work = work.tip != record.base || !work.uncommitted.is_empty();
            return nothing(args, &mut workspace, has_work, out);
        }
        Planned::Conflicts { paths, work, dangers } => {
            let refusal = Refusal::Conflicts { paths, is_committed: work.uncommitted.is_empty() };
            return refuse(args, &workspace, refusal, &findings(dangers), out);
        }
        Planned::Overlaps { paths, dangers } => {
            return refuse(args, &workspace, Refusal::Overlaps(paths), &findings(dangers), out);
        }
    };
    let findings = findings(std::mem::take(&mut plan.dangers));
    if !args.json {
        write_findings(&findings, out)?;
        out.flush()?;
    }
    if !args.dry_run {
        let show = "`guard diff` shows the work";
        if !args.yes && !findings.is_empty() && !is_confirmed("apply this work?", show, "apply it")? {
            note("guard: nobody confirmed the changes, so guard applied nothing");
            return Ok(Exit::Problem);
        }
        workspace.apply(&repository, &plan)?;
    }
    let mut report = plan_json(&workspace, &plan, &findings, args.dry_run);
    if !args.json {
        write_plan(&workspace, &plan, args.dry_run, out)?;
        out.flush()?;
    }
    let exit = if args.dry_run || args.keep || record.here {
        Exit::Success
    } else {
        clean(&mut workspace, &mut report, args.json, out)?
    };
    if args.json {
        print_json(&report, out)?;
    }
    Ok(exit)
}

/// Returns the findings of a run that say that the agent changed the user's repository itself. All other findings of the
/// run's result are about files, and guard finds those again when it applies the work.
fn broken_boundary(folder: &Path) -> Vec<Finding> {
    let result = Run::read(folder).last.and_then(|last| serde_json::from_value::<RunResult>(last.data).ok());
    let findings = result.map(|result| result.findings).unwrap_or_default();
    findings.into_iter().filter(|finding| finding.kind == "repository.broken").collect()
}

/// Returns the name of the branch that the user has checked out, or `the detached HEAD`.
fn target(plan: &ApplyPlan) -> String {
    plan.into
        .as_ref()
        .map_or("the detached HEAD".to_string(), |name| terminal_text::escape(name).into_owned())
}

fn write_plan(workspace: &Workspace, plan: &ApplyPlan, dry_run: bool, out: &mut dyn Write) -> io::Result<()> {
    let branch = terminal_text::escape(workspace.branch()).into_owned();
    let into = target(plan);
    let how = match plan.method {
        ApplyMethod::Merge if plan.is_fast_forward => "a fast-forward",
        ApplyMethod::Merge => "a merge commit",
        ApplyMethod::Squash => "one commit",
        ApplyMethod::Uncommitted => "uncommitted changes",
    };
    let (verb, files) = (if dry_run { "would apply" } else { "applied" }, count(plan.files.len(), "file"));
    // The run's commits, and one more for its uncommitted changes.
    let commits = plan.work.commits + usize::from(plan.work_message.is_some());
    let what = match plan.method {
        ApplyMethod::Merge => format!("{}, {files}", count(commits, "commit")),
        ApplyMethod::Squash | ApplyMethod::Uncommitted => files,
    };
    writeln!(out, "{verb} {branch} to {into} as {how}: {what}")?;
    if let Some(message) = &plan.work_message {
        writeln!(
            out,
            "  {} {} that the run left uncommitted, with the message {:?}",
            if dry_run { "would commit" } else { "committed" },
            count(plan.work.uncommitted.len(), "path"),
            terminal_text::one_line(message),
        )?;
    }
    if plan.has_hooks {
        writeln!(out, "  hooks: guard {} none of your git hooks", if dry_run { "would run" } else { "ran" })?;
    }
    match (dry_run, plan.method) {
        (true, _) => Ok(()),
        (false, ApplyMethod::Uncommitted) => {
            writeln!(out, "  next: git diff --cached; git commit")
        }
        (false, _) => writeln!(out, "  undo: git reset --keep {}", plan.old.get(..12).unwrap_or(&plan.old)),
    }
}

fn plan_json(workspace: &Workspace, plan: &ApplyPlan, findings: &[Finding], dry_run: bool) -> Value {
    json!({
        "run_id": workspace.record().run_id, "branch": workspace.branch(), "into": plan.into,
        "applied": !dry_run,
        "method": match plan.method {
            ApplyMethod::Merge if plan.is_fast_forward => "fast-forward",
            ApplyMethod::Merge => "merge",
            ApplyMethod::Squash => "squash",
            ApplyMethod::Uncommitted => "uncommitted",
        },
        // A dry run creates commits with other ids than the real ones, so leave the id out.
        "old": plan.old, "new": plan.new.as_ref().filter(|_| !dry_run),
        "commits": plan.work.commits, "uncommitted": texts(&plan.work.uncommitted), "files": texts(&plan.files),
        "findings": findings, "removed": false, "saved": [],
    })
}

fn texts(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.to_string_lossy().into_owned()).collect()
}

/// Removes the run's worktree and branch, and prints what it removed or, with `--json`, adds that to `report`. The
/// user's checkout already contains the changes, so a failure loses nothing; it only causes the exit code 1.
fn clean(
    workspace: &mut Workspace,
    report: &mut Value,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    match workspace.dispose(KeepPolicy::Discard) {
        Ok(disposed) => {
            report["removed"] = json!(!disposed.kept);
            report["saved"] = json!(disposed.saved);
            if !is_json {
                let saved = match disposed.saved.as_slice() {
                    [] => String::new(),
                    saved => format!("; the work is saved in {}", saved.join(", ")),
                };
                writeln!(out, "  removed: the run's worktree and branch{saved}")?;
                for (from, to) in &disposed.moved {
                    let shown = |path: &Path| terminal_text::escape(&path.to_string_lossy()).into_owned();
                    writeln!(out, "  moved: {} to {}", shown(from), shown(to))?;
                }
            }
            Ok(Exit::Success)
        }
        Err(error) => {
            note(&format!(
                "guard: your checkout contains the work, but guard cannot remove the run's worktree: {error}\n  hint: try again with `guard worktree clean {}`",
                workspace.record().run_id
            ));
            Ok(Exit::Problem)
        }
    }
}

/// Reports that there is nothing to apply. If the user's branch already contains the changes, still removes the run's
/// worktree, except with `--dry-run`, with `--keep`, or if the run worked in an existing worktree (`--here`).
fn nothing(
    args: &Apply,
    workspace: &mut Workspace,
    has_work: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let mut report = json!({
        "run_id": workspace.record().run_id, "branch": workspace.branch(), "applied": false, "removed": false, "saved": [],
    });
    if !args.json {
        let branch = terminal_text::escape(workspace.branch()).into_owned();
        let why = if has_work {
            "your branch already contains all of its work"
        } else {
            "the run left nothing new"
        };
        writeln!(out, "nothing to apply from {branch}: {why}")?;
        out.flush()?;
    }
    let is_removed = has_work && !args.dry_run && !args.keep && !workspace.record().here;
    let exit = if is_removed { clean(workspace, &mut report, args.json, out)? } else { Exit::Success };
    if args.json {
        print_json(&report, out)?;
    }
    Ok(exit)
}

/// Why guard cannot apply the changes of a run to the user's branch.
enum Refusal {
    Conflicts {
        paths: Vec<PathBuf>,
        /// True if the run has left no uncommitted changes.
        is_committed: bool,
    },
    Overlaps(Vec<PathBuf>),
}

/// Returns a hint with the commands that merge the run's branch. `git merge` would leave out uncommitted changes, so
/// they must be committed first: by guard, because `git commit` would run hooks on files that the agent wrote.
fn merge_hint(workspace: &Workspace, is_committed: bool) -> String {
    let merge = format!("git merge {}", shell_words::quote(&terminal_text::escape(workspace.branch())));
    if is_committed {
        return format!("merge the branch yourself and resolve the conflicts: {merge}");
    }
    let run = &workspace.record().run_id;
    format!(
        "commit what the run left uncommitted, merge the branch yourself and resolve the conflicts:\n    \
         guard apply {run} --commit-only && {merge}"
    )
}

/// Commits the run's uncommitted changes to the run's branch, and applies nothing.
fn commit_only(
    args: &Apply,
    workspace: &mut Workspace,
    repository: &Repository,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let (paths, dangers) = workspace.commit_work(repository, args.message.as_deref())?;
    let findings: Vec<Finding> = dangers.into_iter().map(danger_finding).collect();
    if args.json {
        let report = json!({
            "run_id": workspace.record().run_id, "branch": workspace.branch(), "applied": false,
            "committed": texts(&paths), "findings": findings,
        });
        print_json(&report, out)?;
        return Ok(Exit::Success);
    }
    write_findings(&findings, out)?;
    let branch = terminal_text::escape(workspace.branch()).into_owned();
    if paths.is_empty() {
        writeln!(out, "nothing to commit on {branch}: the run left no uncommitted changes")?;
    } else {
        writeln!(out, "committed {} to {branch}; guard ran no hooks", count(paths.len(), "path"))?;
    }
    Ok(Exit::Success)
}

fn refuse(
    args: &Apply,
    workspace: &Workspace,
    refusal: Refusal,
    findings: &[Finding],
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let branch = terminal_text::escape(workspace.branch()).into_owned();
    if args.json {
        let (conflicts, overlaps) = match &refusal {
            Refusal::Conflicts { paths, .. } => (texts(paths), Vec::new()),
            Refusal::Overlaps(paths) => (Vec::new(), texts(paths)),
        };
        let value = json!({
            "run_id": workspace.record().run_id, "branch": workspace.branch(), "applied": false, "conflicts": conflicts,
            "overlaps": overlaps, "findings": findings,
        });
        print_json(&value, out)?;
        return Ok(Exit::Problem);
    }
    // The hint may make the user merge the branch without guard, so show the findings before the hint.
    write_findings(findings, out)?;
    out.flush()?;
    match refusal {
        Refusal::Conflicts { paths, is_committed } => note(&format!(
            "guard: {branch} conflicts with your branch in: {}\n  guard changed nothing\n  hint: {}",
            listed(&paths),
            merge_hint(workspace, is_committed)
        )),
        Refusal::Overlaps(paths) => note(&format!(
            "guard: {branch} changes files that you have also changed, or that you have as untracked files: {}\n  guard changed nothing\n  \
             hint: commit these files, stash them (git stash -u), or move them away; then try again",
            listed(&paths)
        )),
    }
    Ok(Exit::Problem)
}
