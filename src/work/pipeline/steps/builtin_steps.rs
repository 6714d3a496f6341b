//! The steps that the runner performs itself, without an agent: merge, archive, deliver.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Next;
use super::document_commit::DocumentCommit;
use super::next_step;
use crate::git::{Merged, StepCommit};
use crate::run::transcript::EventType;
use crate::sys::fs::{Durability, replace_file};
use crate::work::pipeline::context::Task;
use crate::work::pipeline::context::TaskContext;
use crate::work::pipeline::error::PipelineError;
use crate::work::pipeline::steps::document_commit::{commit_changes, step_commit};
use crate::work::pipeline::steps::project_tests::test_command;
use crate::work::pipeline::steps::publish::push_and_open_pull_request;
use crate::work::pipeline::task::state::{RUNNER, Status, TaskEvent};
use crate::work::pipeline::workflow::model::Step;

/// Maximum length of a task's summary, in characters. The summary becomes the body of the pull request.
const LONGEST_SUMMARY: usize = 60_000;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct MergeIntent {
    commit: StepCommit,
    theirs: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct MergeOutcome {
    word: String,
    conflicts: String,
    files: Vec<String>,
}

/// Returns the commit that the base branch currently points to. Fails if the branch does not exist.
fn base_tip(task: &Task) -> Result<String, PipelineError> {
    let base = &task.setting.workflow.base;
    let tip = task.setting.tree.commit_named(&format!("refs/heads/{base}"))?;
    tip.ok_or_else(|| PipelineError::Strange(format!("the base branch `{base}` is missing; restore it")))
}

pub(crate) fn run_merge(context: &mut TaskContext<'_>, step: &Step) -> Result<Next, PipelineError> {
    let base = context.task.setting.workflow.base.clone();
    let met: MergeOutcome = context.effect(
        &step.id,
        "merge",
        |context| {
            let theirs = base_tip(&context.task)?;
            let mut commit = step_commit(
                context,
                step,
                &format!("Merge {base} into {}", context.task.setting.tree.short_branch()),
            )?;
            commit.merges = Some(theirs.clone());
            Ok(MergeIntent { commit, theirs })
        },
        |context, meeting, _| {
            let tree = context.task.setting.tree.clone();
            let met = |word: &str| MergeOutcome {
                word: word.to_string(),
                conflicts: String::new(),
                files: Vec::new(),
            };
            match tree.merge(&meeting.commit.parent, &meeting.theirs)? {
                Merged::UpToDate => Ok(met("UP_TO_DATE")),
                Merged::Clean(merged) => {
                    // The user may have worked in the worktree while the task waited, and `check_out` would discard
                    // this work.
                    if !tree.uncommitted()?.is_empty() {
                        context.save_work()?;
                    }
                    let commit = StepCommit { tree: Some(merged), ..meeting.commit.clone() };
                    tree.commit(&commit, &[])?;
                    tree.check_out(&context.repository)?;
                    Ok(met("MERGED"))
                }
                Merged::Conflict(files, conflicts) => {
                    Ok(MergeOutcome { files, conflicts, ..met("CONFLICT") })
                }
            }
        },
    )?;
    let word = after_merge(context, step, &met.word);
    let line = match met.word.as_str() {
        "UP_TO_DATE" if word != met.word => {
            format!(
                "Merging '{base}'... already up to date. The earlier merge is not approved yet, so it goes to review."
            )
        }
        "UP_TO_DATE" => format!("Merging '{base}'... already up to date."),
        "MERGED" => format!("Merging '{base}'... OK."),
        _ => {
            let more = met.files.len().saturating_sub(10);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let some: Vec<&str> = met.files.iter().take(10).map(String::as_str).collect();
            format!("Merging '{base}'... conflicts in {}{more}.", some.join(", "))
        }
    };
    context.announce(RUNNER, line);
    context.task.state.conflicts = met.conflicts;
    context.task.state.conflict_files = met.files;
    Ok(Next::Go { to: next_step(step, Some(word))?, feedback: String::new() })
}

/// Returns the verdict of a merge step, given the outcome `word` of the merge. After a merge with changes or conflicts,
/// records in the task's state which step reviews it. While this record exists, the verdict is `MERGED` even if there
/// is nothing new to merge, so that a merge that was rejected and repaired is reviewed again.
fn after_merge(context: &mut TaskContext<'_>, step: &Step, word: &str) -> &'static str {
    match word {
        "UP_TO_DATE" if context.task.state.merge_review.is_some() => "MERGED",
        "UP_TO_DATE" => "UP_TO_DATE",
        word => {
            let review = step.verdicts.get("MERGED").map(|verdict| verdict.next.clone());
            let is_reviewed = |id: &String| {
                context.task.setting.workflow.step(id).is_some_and(|step| step.verdict_words().len() > 1)
            };
            context.task.state.merge_review = review.filter(is_reviewed);
            if word == "MERGED" { "MERGED" } else { "CONFLICT" }
        }
    }
}

/// Moves the task's documents to the archive in one commit.
pub(crate) fn run_archive(context: &mut TaskContext<'_>, step: &Step) -> Result<Next, PipelineError> {
    let moved: Vec<(String, String)> = context.effect(
        &step.id,
        "archive",
        |context| {
            let mut changes = Vec::new();
            for (from, to, text) in documents_to_archive(&context.task)? {
                changes.push((from, None));
                changes.push((to, Some(text)));
            }
            Ok(DocumentCommit {
                commit: step_commit(context, step, &format!("Archive: {}", context.task.setting.feat))?,
                changes,
            })
        },
        |context, change_set, _| {
            if !change_set.changes.is_empty() {
                commit_changes(context, change_set)?;
            }
            let pairs = change_set.changes.chunks(2).filter_map(|pair| match pair {
                [from, to] => Some((from.0.clone(), to.0.clone())),
                _ => None,
            });
            Ok(pairs.collect())
        },
    )?;
    for place in context.task.state.documents.values_mut() {
        if let Some((_, to)) = moved.iter().find(|(from, _)| from == place) {
            place.clone_from(to);
        }
    }
    if !moved.is_empty() {
        context.announce(RUNNER, format!("Archiving {} documents... OK.", moved.len()));
    }
    Ok(Next::Go { to: next_step(step, None)?, feedback: String::new() })
}

/// Returns every document of this task on the branch: its path, the path to move it to in the archive, and its text.
fn documents_to_archive(task: &Task) -> Result<Vec<(String, String, String)>, PipelineError> {
    let (tree, workflow) = (&task.setting.tree, &task.setting.workflow);
    let mut found = Vec::new();
    for step in &workflow.steps {
        let Some(document) = &step.document else { continue };
        let rounds = task.state.rounds.get(&step.id).copied().unwrap_or(0);
        for n in 1..=rounds {
            let from = workflow.document_path(&document.path, &task.setting.feat, n);
            let Some(content) = tree.file_at(&tree.branch, &from)? else { continue };
            let below = from.strip_prefix(&format!("{}/", workflow.documents)).unwrap_or(&from);
            let to = free_archive_path(task, &format!("{}/archived/{below}", workflow.documents))?;
            if !found.iter().any(|(known, _, _)| *known == from) {
                found.push((from, to, String::from_utf8_lossy(&content).into_owned()));
            }
        }
    }
    Ok(found)
}

/// Returns `wanted`, or the first variant of it, from `-2` to `-999`, that does not exist on the task's branch. Fails
/// if all exist.
fn free_archive_path(task: &Task, wanted: &str) -> Result<String, PipelineError> {
    let tree = &task.setting.tree;
    let (stem, ending) = wanted.rsplit_once('.').unwrap_or((wanted, "md"));
    let others = (2..1000).map(|n| format!("{stem}-{n}.{ending}"));
    for place in std::iter::once(wanted.to_string()).chain(others) {
        if tree.file_at(&tree.branch, &place)?.is_none() {
            return Ok(place);
        }
    }
    Err(PipelineError::Strange(format!(
        "cannot archive a document: `{wanted}` and its variants up to `{stem}-999.{ending}` exist on the branch"
    )))
}

pub(crate) fn run_deliver(context: &mut TaskContext<'_>, step: &Step) -> Result<Next, PipelineError> {
    let (tree, base) = (context.task.setting.tree.clone(), base_tip(&context.task)?);
    let tip = tree.tip()?.unwrap_or_default();
    if !tree.contains(&tip, &base)? {
        context.announce(
            RUNNER,
            format!("'{}' has new commits that the task's branch lacks.", context.task.setting.workflow.base),
        );
        return Ok(Next::Go { to: next_step(step, Some("BEHIND"))?, feedback: String::new() });
    }
    let summary = build_summary(&context.task)?;
    let path = context.directory().join("summary.md");
    let place: String = context.effect(
        &step.id,
        "deliver",
        |_| Ok(json!({ "tip": tip })),
        |_, _, _| {
            replace_file(&path, summary.as_bytes(), 0o600, Durability::Synced)
                .map_err(|source| PipelineError::Io { path: path.clone(), source })?;
            Ok(path.display().to_string())
        },
    )?;
    context.events.send(TaskEvent::new(EventType::TaskDelivered, place.clone(), json!({ "summary": place })));
    context.task.state.delivered = Some(match push_and_open_pull_request(context, &step.id, &summary)? {
        None => place,
        Some(Ok(url)) => url,
        Some(Err(problem)) => return Ok(Next::Stop(Status::Failed, problem)),
    });
    Ok(Next::Go { to: next_step(step, Some("DELIVERED"))?, feedback: String::new() })
}

/// Returns a summary of the task for the user who merges its branch, cut after `LONGEST_SUMMARY` characters.
fn build_summary(task: &Task) -> Result<String, PipelineError> {
    let (tree, used) = (&task.setting.tree, task.state.used);
    let mut out = format!("# {}\n\n{}\n\n## Commits\n\n", task.setting.feat, task.request.trim());
    for subject in tree.subjects(&tree.base)? {
        // In a code span, GitHub does not turn parts of a subject into mentions of users or links.
        out.push_str(&format!("- `{}`\n", subject.replace('`', "'")));
    }
    out.push_str("\n## Documents\n\n");
    for (name, place) in &task.state.documents {
        out.push_str(&format!("- {name}: `{place}`\n"));
    }
    let tests = match test_command(task)? {
        Some(words) => {
            format!(
                "guard ran `{}` after each step of a role that may commit",
                shell_words::join(&words).replace('`', "'")
            )
        }
        None => "not run".to_string(),
    };
    out.push_str(&format!("\nTests: {tests}.\n"));
    out.push_str(&format!(
        "\nAgent calls: {}, tokens: {}, time: {} s. Task {}. Merge the branch with `git -c core.hooksPath=/dev/null merge {}`.\n",
        used.calls,
        used.tokens,
        used.agent_ms / 1000,
        task.id,
        tree.short_branch()
    ));
    Ok(out.chars().take(LONGEST_SUMMARY).collect())
}
