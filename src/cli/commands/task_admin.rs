//! `guard task list`, `show`, `approve`, `reject`, `clean` and `cancel`: the commands for tasks, except those that
//! run one.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::cli::Failure;
use crate::cli::commands::task_store::{failed, task_store};
use crate::cli::output::exit_code::Exit;
use crate::git::{Repository, TaskTree};
use crate::work::pipeline;
use crate::work::pipeline::task::journal::{Decision, Journal, TaskRow};
use crate::work::pipeline::{PipelineError, Status, TaskSettings, TaskStore};

pub(in crate::cli) fn list(
    task_store: &TaskStore,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let tasks = task_store.journal().map_err(failed)?.tasks().map_err(failed)?;
    if as_json {
        let rows: Vec<Value> = tasks.iter().map(|task| summary(task_store, task)).collect();
        crate::cli::output::json::to_writer(&mut *out, &json!(rows)).map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(Exit::Success);
    }
    for task in &tasks {
        let row = summary(task_store, task);
        let text = |name: &str| row[name].as_str().unwrap_or_default().to_string();
        let request: String = task.request.lines().next().unwrap_or_default().chars().take(60).collect();
        writeln!(out, "{}  {:<16} {:<14} {}  {request}", task.id, text("status"), text("step"), task.branch)?;
    }
    Ok(Exit::Success)
}

/// Returns the state of a task as JSON. If a task is recorded as running but has no worker process, it was killed,
/// and its status is `interrupted`.
fn summary(task_store: &TaskStore, task: &TaskRow) -> Value {
    let is_alive = task.status == "running" && task_store.worker(&task.id).is_some();
    let status = if task.status == "running" && !is_alive { "interrupted" } else { &task.status };
    json!({
        "task_id": task.id, "status": status, "reason": task.reason, "step": task.state["step"], "visit": task.state["visit"],
        "branch": task.branch, "worktree": task.setting["tree"]["worktree"], "repository": task.repository, "request": task.request,
        "mode": task.setting["mode"], "created": task.created, "updated": task.updated, "used": task.state["used"],
        "used_by": task.state["used_by"], "documents": task.state["documents"], "delivered": task.state["delivered"],
    })
}

pub(in crate::cli) fn find(journal: &Journal, id: Option<&str>) -> Result<TaskRow, Failure> {
    let found = match id {
        Some(id) => journal.task(id).map_err(failed)?,
        None => journal.tasks().map_err(failed)?.into_iter().next(),
    };
    found.ok_or_else(|| failed(PipelineError::Unknown(id.unwrap_or("newest").to_string())))
}

pub(in crate::cli) fn show(
    task_store: &TaskStore,
    id: Option<&str>,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let journal = task_store.journal().map_err(failed)?;
    let task = find(&journal, id)?;
    let entries = journal.entries(&task.id).map_err(failed)?;
    let mut shown = summary(task_store, &task);
    let tree: Option<TaskTree> = serde_json::from_value(task.setting["tree"].clone()).ok();
    let commits = tree.and_then(|tree| tree.subjects(&tree.base).ok()).unwrap_or_default();
    let path = task_store.task_directory(&task.id).join("summary.md");
    shown["commits"] = json!(commits);
    shown["summary"] = if path.exists() { json!(path) } else { Value::Null };
    if as_json {
        let effect = |entry: &pipeline::task::journal::Entry| {
            json!({ "visit": entry.visit, "step": entry.step, "effect": entry.effect, "begun": entry.begun, "ended": entry.ended,
                "intent": entry.intent, "outcome": entry.outcome })
        };
        shown["journal"] = entries.iter().map(effect).collect();
        crate::cli::output::json::to_writer_pretty(&mut *out, &shown).map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(Exit::Success);
    }
    let text = |name: &str| shown[name].as_str().unwrap_or_default().to_string();
    writeln!(out, "task      {}\nrequest   {}", task.id, task.request.lines().next().unwrap_or_default())?;
    writeln!(
        out,
        "status    {} {}\nbranch    {}\nworktree  {}",
        text("status"),
        task.reason,
        task.branch,
        text("worktree")
    )?;
    writeln!(
        out,
        "used      {} calls, {} tokens, {} s",
        shown["used"]["calls"],
        shown["used"]["tokens"],
        shown["used"]["agent_ms"].as_u64().unwrap_or(0) / 1000
    )?;
    for (step, used) in shown["used_by"].as_object().into_iter().flatten() {
        let seconds = used["agent_ms"].as_u64().unwrap_or(0) / 1000;
        writeln!(out, "  {step:<14} {} calls, {} tokens, {seconds} s", used["calls"], used["tokens"])?;
    }
    for commit in &commits {
        writeln!(out, "commit    {commit}")?;
    }
    for (name, place) in shown["documents"].as_object().into_iter().flatten() {
        writeln!(out, "document  {name}: {}", place.as_str().unwrap_or_default())?;
    }
    for (title, place) in [("summary", text("summary")), ("delivered", text("delivered"))] {
        if !place.is_empty() {
            writeln!(out, "{title:<9} {place}")?;
        }
    }
    for entry in entries.iter().filter(|entry| entry.effect != "visit") {
        let how = if entry.ended.is_some() { "done" } else { "begun" };
        let run = entry.outcome.as_ref().and_then(|outcome| outcome["run_id"].as_str()).unwrap_or_default();
        writeln!(out, "  {:>3} {:<14} {:<14} {how:<6} {run}", entry.visit, entry.step, entry.effect)?;
    }
    Ok(Exit::Success)
}

/// Records the user's decision at the gate where a task waits: approval if `is_yes` is true, otherwise rejection, which
/// needs feedback. Fails if the task does not wait for a decision or has one already.
pub(in crate::cli) fn decide(
    task_store: &TaskStore,
    id: &str,
    is_yes: bool,
    feedback: &str,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let mut journal = task_store.journal().map_err(failed)?;
    let task = find(&journal, Some(id))?;
    let settings: TaskSettings = serde_json::from_value(task.setting.clone()).map_err(|error| {
        failed(PipelineError::Strange(format!("cannot parse the stored settings of the task: {error}")))
    })?;
    let step = settings.workflow.step(task.state["step"].as_str().unwrap_or_default());
    let words = step
        .filter(|step| step.gate.as_ref().is_some_and(|gate| settings.gates.contains(gate)))
        .map(|step| step.verdict_words());
    let Some(words) = words.filter(|_| task.status == Status::NeedsHuman.name()) else {
        let message = format!(
            "the task {} does not wait for a decision (status {}, step {})",
            task.id, task.status, task.state["step"]
        );
        return Err(Failure::usage(message, "`guard task show` shows the state of the task"));
    };
    // In the list of the step's verdicts, the first word means approval, the second means rejection.
    let verdict = words.get(usize::from(!is_yes)).copied().unwrap_or_default().to_string();
    if !is_yes && feedback.trim().is_empty() {
        return Err(Failure::usage(
            "a rejection needs a reason",
            "give the reason with --feedback \"what must change\"",
        ));
    }
    let visit = task.state["visit"].as_u64().unwrap_or(0) as u32;
    let repository = Repository::find(&settings.repository).map_err(failed)?;
    let who = repository.map_or_else(|| Ok(Default::default()), |found| TaskTree::current_user(&found));
    let decision =
        Decision { verdict: verdict.clone(), feedback: feedback.to_string(), who: who.map_err(failed)? };
    if !journal.decide(&task.id, visit, &decision).map_err(failed)? {
        return Err(Failure::usage(
            format!("the task {} already has a decision for this gate", task.id),
            format!("`guard task resume {}` continues the task", task.id),
        ));
    }
    writeln!(
        out,
        "guard recorded the decision `{verdict}`: `guard task resume {}` continues the task",
        task.id
    )?;
    Ok(Exit::Success)
}

/// Removes the worktrees and records of the tasks `ids` or, if `all` is true, of all finished tasks. Also removes their
/// branches if they are merged.
pub(in crate::cli) fn clean(
    task_store: &TaskStore,
    ids: &[String],
    all: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let mut journal = task_store.journal().map_err(failed)?;
    let ids = if all { finished_tasks(&journal, &|_| true)? } else { ids.to_vec() };
    clean_tasks(task_store, &mut journal, &ids, out)?;
    Ok(Exit::Success)
}

/// Removes the finished tasks of all repositories for which `is_meant` returns true; its argument is the repository's
/// common git directory. If `is_removed` is false, only prints how many tasks there are.
pub(in crate::cli) fn clean_finished(
    is_meant: &dyn Fn(&Path) -> bool,
    is_removed: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let task_store = task_store()?;
    if !task_store.tasks.exists() {
        return Ok(());
    }
    let mut journal = task_store.journal().map_err(failed)?;
    let ids = finished_tasks(&journal, is_meant)?;
    if is_removed {
        return clean_tasks(&task_store, &mut journal, &ids, out);
    }
    if !ids.is_empty() {
        writeln!(
            out,
            "finished tasks that have worktrees: {}; `guard task clean ID` removes one of these tasks, `guard worktree clean --all` removes them all, with all worktrees of runs",
            ids.len()
        )?;
    }
    Ok(())
}

fn finished_tasks(journal: &Journal, is_meant: &dyn Fn(&Path) -> bool) -> Result<Vec<String>, Failure> {
    let is_finished =
        |task: &TaskRow| matches!(Status::parse(&task.status), Some(Status::Succeeded | Status::Cancelled));
    let is_there = |task: &TaskRow| {
        let settings = serde_json::from_value::<TaskSettings>(task.setting.clone());
        // A task whose settings cannot be read counts as being in no repository.
        is_meant(settings.as_ref().map_or(Path::new(""), |settings| &settings.tree.common_dir))
    };
    let tasks = journal.tasks().map_err(failed)?.into_iter();
    Ok(tasks.filter(|task| is_finished(task) && is_there(task)).map(|task| task.id).collect())
}

fn clean_tasks(
    task_store: &TaskStore,
    journal: &mut Journal,
    ids: &[String],
    out: &mut dyn Write,
) -> Result<(), Failure> {
    for id in ids {
        let cleaned = pipeline::clean(task_store, journal, id).map_err(failed)?;
        let branch = if cleaned.is_branch_gone { " and the branch" } else { "" };
        writeln!(out, "{}: guard removed the worktree of {}{branch}", cleaned.id, cleaned.branch)?;
        if !cleaned.is_branch_gone {
            writeln!(
                out,
                "  guard kept the branch because it is not merged; git branch -D {} removes it",
                cleaned.branch
            )?;
        }
        if let Some(kept) = cleaned.kept {
            writeln!(out, "  uncommitted changes are saved at {kept}")?;
        }
    }
    Ok(())
}

pub(in crate::cli) fn cancel(task_store: &TaskStore, id: &str, out: &mut dyn Write) -> Result<Exit, Failure> {
    let task = find(&task_store.journal().map_err(failed)?, Some(id))?;
    let task = task_store.cancel(&task.id).map_err(failed)?;
    writeln!(out, "cancelled the task; its branch {} and its worktree stay", task.branch)?;
    Ok(Exit::Success)
}
