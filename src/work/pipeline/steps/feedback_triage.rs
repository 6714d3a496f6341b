//! Triages an agent's feedback: a triage agent decides what to do with it, and a documentation agent makes the
//! changes to the documentation that the feedback calls for.
//!
//! All of this happens while guard executes the step whose agent gave the feedback, with a journal entry before
//! and after each part. The feedback of the triage and documentation agents is not triaged, so triage cannot
//! loop. guard adds a remark that it cannot act on to the backlog, where the user can read it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::agent_call::Question;
use super::document_commit::DocumentCommit;
use super::{answer, feedback};
use crate::text::template::Template;
use crate::work::pipeline::context::Task;
use crate::work::pipeline::context::TaskContext;
use crate::work::pipeline::documents;
use crate::work::pipeline::error::PipelineError;
use crate::work::pipeline::steps::agent_call::{call_agent, template_values};
use crate::work::pipeline::steps::document_commit::{commit_changes, shared_document_changes, step_commit};
use crate::work::pipeline::task::budget::{add_usage, exhausted_limit};
use crate::work::pipeline::task::journal_records::AgentReply;
use crate::work::pipeline::task::state::{RUNNER, Used};
use crate::work::pipeline::workflow::model::{DocsConfig, Field, Role, Step, Triage};

/// Maximum number of files that one documentation call may write: each file needs a Landlock rule.
const MOST_OPENED: usize = 512;
/// Maximum total size of the files that the documentation agent changes because of one remark, in bytes. guard writes
/// the files' new texts to the journal before it commits them.
const MOST_WRITTEN: usize = 8 << 20;

/// The path of a changed file and its new text; `None` means that the file is deleted.
type Change = (String, Option<String>);

/// The result of a call to the documentation agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Written {
    used: Used,
    run_id: String,
    /// The changed files with their new contents.
    changes: Vec<Change>,
    /// Why the agent's changes cannot be used; `None` if they can.
    problem: Option<String>,
}

/// Sends the feedback in an answer to the triage agent and acts on the agent's decision. Does nothing if the answer has
/// no remark, if it is the user's own decision, or if the workflow has no triage.
pub(crate) fn triage_feedback(
    context: &mut TaskContext<'_>,
    step: &Step,
    role: &Role,
    answer: &Map<String, Value>,
) -> Result<(), PipelineError> {
    // A user's comment on a decision is already recorded in the decision's document.
    let is_user_decision = answer.contains_key("decided_by");
    let remark = feedback::remark(answer, &step.answer).filter(|_| !is_user_decision);
    let (Some(triage), Some(remark)) = (context.task.setting.workflow.triage.clone(), remark) else {
        return Ok(());
    };
    let Some(judge) = context.task.setting.workflow.roles.get(&triage.role).cloned() else { return Ok(()) };
    context.announce(&role.title, format!("Feedback: {}", remark.lines().next().unwrap_or_default()));
    let (decision, note) = decide_remark(context, step, &triage, &judge, &remark)?;
    context.announce(&judge.title, format!("Feedback: {decision}."));
    match (decision.as_str(), &triage.docs) {
        ("IGNORE", _) => Ok(()),
        ("DOCS", Some(docs)) => update_documentation(context, step, docs, &remark, &note),
        ("DOCS", None) => add_to_backlog(context, step, &format!("Documentation: {note}")),
        _ => add_to_backlog(context, step, &note),
    }
}

/// Asks the triage agent about a remark. Returns the decision, and the text to act on. If the budget is used up or the
/// agent's answer is unusable, the decision is `BACKLOG` and the text is the remark.
fn decide_remark(
    context: &mut TaskContext<'_>,
    step: &Step,
    triage: &Triage,
    judge: &Role,
    remark: &str,
) -> Result<(String, String), PipelineError> {
    // Without budget for another call, the remark is added to the backlog, where the user can read it.
    let to_backlog = || ("BACKLOG".to_string(), remark.to_string());
    if exhausted_limit(&context.task, &step.id).is_some() {
        return Ok(to_backlog());
    }
    let asked: AgentReply = context.effect(
        &step.id,
        "triage",
        |context| remark_question(context, &triage.prompt, &triage.answer, judge, remark, ""),
        |context, question, _| call_agent(context, &step.id, judge, question),
    )?;
    add_usage(context, &step.id, asked.used);
    let Ok(decided) = answer::extract(&asked.answer, &triage.answer) else { return Ok(to_backlog()) };
    let text = |name: &str| decided.get(name).and_then(Value::as_str).map(str::to_string);
    let (decision, note) = to_backlog();
    Ok((text("decision").unwrap_or(decision), text("note").unwrap_or(note)))
}

/// Prepares a call about a remark, to the triage agent or to the documentation agent. `files` are the patterns of the
/// documentation's files, for the documentation agent.
fn remark_question(
    context: &mut TaskContext<'_>,
    prompt: &str,
    answer: &std::collections::BTreeMap<String, Field>,
    role: &Role,
    remark: &str,
    files: &str,
) -> Result<Question, PipelineError> {
    let template = Template::read(prompt).map_err(|wrong| PipelineError::Strange(wrong.message))?;
    let mut values = template_values(&context.task, role);
    values.insert("feedback".to_string(), remark.to_string());
    values.insert("files".to_string(), files.to_string());
    values.insert("answer_format".to_string(), answer::format(answer, None));
    let tip = context.task.setting.tree.tip()?.unwrap_or_default();
    Ok(Question { prompt: template.fill(&values), tip, document: None, writes: Vec::new() })
}

/// Adds an item to the backlog and commits the change, unless the backlog already has the item.
fn add_to_backlog(context: &mut TaskContext<'_>, step: &Step, item: &str) -> Result<(), PipelineError> {
    let shared = Map::from_iter([("backlog_items".to_string(), json!([item]))]);
    let _: Option<String> = context.effect(
        &step.id,
        "triage-commit",
        |context| {
            let changes = shared_document_changes(&context.task, &shared)?;
            Ok(DocumentCommit {
                commit: step_commit(context, step, &format!("Backlog: {}", context.task.setting.feat))?,
                changes,
            })
        },
        |context, change_set, _| {
            if change_set.changes.is_empty() {
                return Ok(None);
            }
            commit_changes(context, change_set).map(Some)
        },
    )?;
    Ok(())
}

/// Has the documentation agent update the documentation, and commits the result. The sandbox lets this agent write only
/// the documentation. If the budget is used up or the agent's changes are unusable, adds `note` to the backlog instead.
fn update_documentation(
    context: &mut TaskContext<'_>,
    step: &Step,
    docs: &DocsConfig,
    remark: &str,
    note: &str,
) -> Result<(), PipelineError> {
    let Some(writer) = context.task.setting.workflow.roles.get(&docs.role).cloned() else { return Ok(()) };
    if let Some(reason) = exhausted_limit(&context.task, &step.id) {
        let line = format!(
            "guard did not update the documentation: {reason}. It adds the remark to the backlog instead."
        );
        context.announce(RUNNER, line);
        return add_to_backlog(context, step, &format!("Documentation: {note}"));
    }
    context.announce(RUNNER, format!("Spawning {}...", writer.title));
    let text = if note == remark { remark.to_string() } else { format!("{remark}\n\n{note}") };
    let files = docs.files.join(" ");
    let written: Written = context.effect(
        &step.id,
        "docs",
        |context| remark_question(context, &docs.prompt, &docs.answer, &writer, &text, &files),
        |context, question, is_again| {
            if is_again {
                context
                    .announce(RUNNER, format!("The {} was interrupted; guard calls it again.", writer.title));
                context.restore(Some(&question.tip))?;
            }
            let (files, directories) = writable_paths(&context.task, docs, &question.tip)?;
            let writes = files.into_iter().chain(directories.iter().cloned()).collect();
            let question = Question { writes, ..question.clone() };
            let asked = call_agent(context, &step.id, &writer, &question)?;
            let found = documentation_changes(&context.task, docs, &asked, &directories)?;
            let (changes, problem) = match found {
                Ok(changes) => (changes, None),
                Err(problem) => {
                    // These directories held only committed files. git may ignore what is there now, so
                    // remove the directories; the restore below brings the committed files back.
                    directories.iter().try_for_each(|path| context.task.setting.tree.delete_dir(path))?;
                    (Vec::new(), Some(problem))
                }
            };
            Ok(Written { used: asked.used, run_id: asked.run_id, changes, problem })
        },
    )?;
    add_usage(context, &step.id, written.used);
    if let Some(problem) = &written.problem {
        context.announce(
            RUNNER,
            format!("guard did not update the documentation: {problem}. It adds the remark to the backlog instead."),
        );
        let tip = context.task.setting.tree.tip()?;
        context.restore(tip.as_deref())?;
        return add_to_backlog(context, step, &format!("Documentation: {note}"));
    }
    commit_documentation(context, step, docs, &writer, &written.changes)
}

fn commit_documentation(
    context: &mut TaskContext<'_>,
    step: &Step,
    docs: &DocsConfig,
    writer: &Role,
    changes: &[Change],
) -> Result<(), PipelineError> {
    if changes.is_empty() {
        context.announce(&writer.title, "No documentation had to change.");
        return Ok(());
    }
    let _: String = context.effect(
        &step.id,
        "docs-commit",
        |context| {
            let subject = format!("{}: {}", docs.commit, context.task.setting.feat);
            Ok(DocumentCommit { commit: step_commit(context, step, &subject)?, changes: changes.to_vec() })
        },
        |context, change_set, _| {
            let id = commit_changes(context, change_set)?;
            // Discard what guard did not commit: file modes, and changes that the agent made after guard had read the
            // contents.
            context.restore(None)?;
            Ok(id)
        },
    )?;
    let names: Vec<&str> = changes.iter().take(5).map(|(path, _)| path.as_str()).collect();
    let more = if changes.len() > names.len() { ", …" } else { "" };
    context.announce(&writer.title, format!("Updated {}{more}.", names.join(", ")));
    context.announce(RUNNER, format!("Committing {}... OK.", docs.commit));
    Ok(())
}

/// Returns the files and directories that the documentation agent may write: existing files, and directories in which
/// it may create files. Excluded are the tasks' documents (they belong to other roles), files with a second hard link
/// (the other name could be code), and directories that contain ignored files (new files could not be distinguished
/// from them).
fn writable_paths(
    task: &Task,
    docs: &DocsConfig,
    tip: &str,
) -> Result<(Vec<String>, Vec<String>), PipelineError> {
    let (tree, documents_directory) = (&task.setting.tree, &task.setting.workflow.documents);
    let mut files = tree.files(tip)?;
    files.retain(|path| is_documentation_file(task, docs, path) && documents::is_plain(&tree.worktree, path));
    // If there are too many files, keep those in the upper directories, because most people read those.
    files.sort_by_key(|path| path.matches('/').count());
    files.truncate(MOST_OPENED);
    let mut directories = Vec::new();
    for directory in &docs.folders {
        for path in directories_beside(&tree.worktree, directory, documents_directory) {
            if documents::is_plain_directory(&tree.worktree, &path) && !tree.has_ignored_files(&path)? {
                files.retain(|file| !file.starts_with(&format!("{path}/")));
                directories.push(path);
            }
        }
    }
    Ok((files, directories))
}

fn is_documentation_file(task: &Task, docs: &DocsConfig, path: &str) -> bool {
    let prefix = format!("{}/", task.setting.workflow.documents).to_lowercase();
    docs.is_documentation(path) && !path.to_lowercase().starts_with(&prefix)
}

/// Returns the agent's changes to the documentation, or why they cannot be used.
fn documentation_changes(
    task: &Task,
    docs: &DocsConfig,
    asked: &AgentReply,
    directories: &[String],
) -> Result<Result<Vec<Change>, String>, PipelineError> {
    if let Some((kind, words)) = &asked.error {
        return Ok(Err(format!("{kind}: {words}")));
    }
    if asked.before != asked.after {
        return Ok(Err("the task's branch changed while the documentation agent was working".to_string()));
    }
    if let Err(problem) = answer::extract(&asked.answer, &docs.answer) {
        return Ok(Err(problem.to_string()));
    }
    let tree = &task.setting.tree;
    for path in directories {
        if !documents::is_plain_directory(&tree.worktree, path) || tree.has_ignored_files(path)? {
            return Ok(Err(format!(
                "{path} contains something that guard does not accept: a file that git ignores, a link, a special file, a git repository, or too many entries"
            )));
        }
    }
    let mut changes = Vec::new();
    let mut bytes = 0;
    for path in tree.uncommitted()? {
        if !is_documentation_file(task, docs, &path) {
            return Ok(Err(format!("{path} was changed, but is not documentation")));
        }
        match documents::read(&tree.worktree, &path) {
            Ok(Some(text)) if text.contains(char::REPLACEMENT_CHARACTER) => {
                return Ok(Err(format!("{path} is not UTF-8 text")));
            }
            Ok(text) => {
                bytes += path.len() + text.as_ref().map_or(0, String::len);
                if bytes > MOST_WRITTEN {
                    return Ok(Err(format!(
                        "the files that the agent changed have more than {} MiB in total",
                        MOST_WRITTEN >> 20
                    )));
                }
                changes.push((path, text));
            }
            Err(error) => return Ok(Err(error.to_string())),
        }
    }
    Ok(Ok(changes))
}

/// Returns `directory` itself if it neither contains the tasks' documents nor is inside their directory. If it contains
/// them, returns instead the largest directories below it of which the same is true.
fn directories_beside(worktree: &std::path::Path, directory: &str, documents_directory: &str) -> Vec<String> {
    let is_below = |inner: &str, outer: &str| inner == outer || inner.starts_with(&format!("{outer}/"));
    if is_below(directory, documents_directory) {
        return Vec::new();
    }
    if !is_below(documents_directory, directory) {
        return vec![directory.to_string()];
    }
    let entries = std::fs::read_dir(worktree.join(directory)).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let names = directories.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.map(|name| format!("{directory}/{name}")).collect();
    names.sort();
    names.iter().flat_map(|inner| directories_beside(worktree, inner, documents_directory)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_documentation() {
        let files = ["*.md", "man/**", "!AGENTS.md", "!.*/**"].map(str::to_string).to_vec();
        let docs = DocsConfig { files, ..DocsConfig::default() };
        for (path, wanted) in [
            ("README.md", true),
            ("docs/a/b.md", true),
            ("man/x/guard.1", true),
            ("src/lib.rs", false),
            ("AGENTS.md", false),
            ("sub/AGENTS.md", false),
            (".github/x.md", false),
            ("README.md/x", false),
        ] {
            assert_eq!(docs.is_documentation(path), wanted, "{path}");
        }
    }

    #[test]
    fn directories_beside_the_documents() {
        let top = std::env::temp_dir().join(format!("guard-beside-{}", std::process::id()));
        let _ = std::fs::create_dir_all(top.join("docs/dev_docs/plans"));
        let _ = std::fs::create_dir_all(top.join("docs/guide"));
        let found = |directory: &str, documents: &str| directories_beside(&top, directory, documents);
        assert_eq!(found("docs", "docs/dev_docs"), ["docs/guide"]);
        assert_eq!(found("docs", "papers"), ["docs"]);
        assert!(found("docs/dev_docs/plans", "docs/dev_docs").is_empty());
        assert!(documents::is_plain_directory(&top, "docs/guide"));
        let _ = std::os::unix::fs::symlink("/etc", top.join("docs/guide/etc"));
        assert!(!documents::is_plain_directory(&top, "docs/guide"));
        assert!(!documents::is_plain_directory(&top, "none"));
        let _ = std::fs::remove_dir_all(&top);
    }
}
