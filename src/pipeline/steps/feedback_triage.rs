//! Triages an agent's feedback: a triage agent decides what to do with it, and a documentation agent applies
//! what belongs in the documentation.
//!
//! Everything happens within the visit of the step that gave the feedback, with a journal entry before and
//! after each part. The feedback of these two agents is not triaged, so this cannot loop. What cannot be done
//! goes to the backlog, where it stays visible.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::agent_step::{Asked, Question};
use super::finish_step::DocumentCommit;
use super::{answer, feedback};
use crate::pipeline::documents;
use crate::pipeline::runner::{PipelineError, Runner};
use crate::pipeline::task::state::{RUNNER, Used};
use crate::pipeline::workflow::model::{DocsConfig, Field, Role, Step, Triage};
use crate::pipeline::workflow::template::Template;

/// Maximum number of files opened for one call: each is one Landlock rule.
const MOST_OPENED: usize = 512;
/// Maximum number of bytes that one remark may change in the documentation. They are written to the journal
/// before the commit.
const MOST_WRITTEN: usize = 8 << 20;

/// A path and its new text; `None` deletes the file.
type Change = (String, Option<String>);

/// The result of a documentation call.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Written {
    used: Used,
    run_id: String,
    /// The new contents of the files; `None` deletes the file.
    changes: Vec<Change>,
    /// Why the result cannot be used.
    problem: Option<String>,
}

impl Runner<'_> {
    /// Sends the feedback of an answer to the triage agent and acts on its decision.
    pub(crate) fn triage(
        &mut self,
        step: &Step,
        role: &Role,
        answer: &Map<String, Value>,
    ) -> Result<(), PipelineError> {
        // What a user says with a decision is in the decision's document.
        let is_persons = answer.contains_key("decided_by");
        let remark = feedback::remark(answer, &step.answer).filter(|_| !is_persons);
        let (Some(triage), Some(remark)) = (self.setting.workflow.triage.clone(), remark) else {
            return Ok(());
        };
        let Some(judge) = self.setting.workflow.roles.get(&triage.role).cloned() else { return Ok(()) };
        self.say(&role.title, format!("Feedback: {}", remark.lines().next().unwrap_or_default()));
        let (decision, note) = self.decided(step, &triage, &judge, &remark)?;
        self.say(&judge.title, format!("Feedback: {decision}."));
        match (decision.as_str(), &triage.docs) {
            ("IGNORE", _) => Ok(()),
            ("DOCS", Some(upkeep)) => self.document(step, upkeep, &remark, &note),
            ("DOCS", None) => self.remember(step, &format!("Documentation: {note}")),
            _ => self.remember(step, &note),
        }
    }

    /// The decision about a remark, and the text to act on.
    fn decided(
        &mut self,
        step: &Step,
        triage: &Triage,
        judge: &Role,
        remark: &str,
    ) -> Result<(String, String), PipelineError> {
        // Without budget for another call, the remark goes to the backlog, where it stays visible.
        let to_backlog = || ("BACKLOG".to_string(), remark.to_string());
        if self.used_up(&step.id).is_some() {
            return Ok(to_backlog());
        }
        let asked: Asked = self.effect(
            &step.id,
            "triage",
            |runner| runner.aside(&triage.prompt, &triage.answer, judge, remark, ""),
            |runner, question, _| runner.call(&step.id, judge, question),
        )?;
        self.count(&step.id, asked.used);
        let Ok(decided) = answer::extract(&asked.answer, &triage.answer) else { return Ok(to_backlog()) };
        let text = |name: &str| decided.get(name).and_then(Value::as_str).map(str::to_string);
        let (decision, note) = to_backlog();
        Ok((text("decision").unwrap_or(decision), text("note").unwrap_or(note)))
    }

    /// Prepares the question about a remark.
    fn aside(
        &mut self,
        prompt: &str,
        answer: &std::collections::BTreeMap<String, Field>,
        role: &Role,
        remark: &str,
        files: &str,
    ) -> Result<Question, PipelineError> {
        let template = Template::read(prompt).map_err(|wrong| PipelineError::Strange(wrong.message))?;
        let mut values = self.values(role);
        values.insert("feedback".to_string(), remark.to_string());
        values.insert("files".to_string(), files.to_string());
        values.insert("answer_format".to_string(), answer::format(answer, None));
        let tip = self.setting.tree.tip()?.unwrap_or_default();
        Ok(Question { prompt: template.fill(&values), tip, document: None, writes: Vec::new() })
    }

    /// Adds an item to the backlog.
    fn remember(&mut self, step: &Step, item: &str) -> Result<(), PipelineError> {
        let shared = Map::from_iter([("backlog_items".to_string(), json!([item]))]);
        let _: Option<String> = self.effect(
            &step.id,
            "triage-commit",
            |runner| {
                let changes = runner.shared_papers(&shared)?;
                Ok(DocumentCommit {
                    commit: runner.step_commit(step, &format!("Backlog: {}", runner.setting.feat))?,
                    changes,
                })
            },
            |runner, papers, _| {
                if papers.changes.is_empty() { Ok(None) } else { runner.put(papers).map(Some) }
            },
        )?;
        Ok(())
    }

    /// Has an agent update the documentation, and commits the result. The sandbox lets this agent write
    /// nothing else.
    fn document(
        &mut self,
        step: &Step,
        upkeep: &DocsConfig,
        remark: &str,
        note: &str,
    ) -> Result<(), PipelineError> {
        let Some(writer) = self.setting.workflow.roles.get(&upkeep.role).cloned() else { return Ok(()) };
        if let Some(reason) = self.used_up(&step.id) {
            self.say(RUNNER, format!("The documentation waits in the backlog: {reason}."));
            return self.remember(step, &format!("Documentation: {note}"));
        }
        self.say(RUNNER, format!("Spawning {}...", writer.title));
        let said = if note == remark { remark.to_string() } else { format!("{remark}\n\n{note}") };
        let written: Written = self.effect(
            &step.id,
            "docs",
            |runner| runner.aside(&upkeep.prompt, &upkeep.answer, &writer, &said, &upkeep.files.join(" ")),
            |runner, question, is_again| {
                if is_again {
                    runner.say(RUNNER, format!("{} was interrupted; asking again.", writer.title));
                    runner.restore(Some(&question.tip))?;
                }
                let (files, folders) = runner.opened(upkeep, &question.tip)?;
                let writes = files.into_iter().chain(folders.iter().cloned()).collect();
                let question = Question { writes, ..question.clone() };
                let asked = runner.call(&step.id, &writer, &question)?;
                let found = runner.written(upkeep, &asked, &folders)?;
                let (changes, problem) = match found {
                    Ok(changes) => (changes, None),
                    Err(problem) => {
                        // These directories held only committed files. git may ignore what is there now, so
                        // remove the directories; the restore below brings the committed files back.
                        folders.iter().try_for_each(|folder| runner.setting.tree.take_away(folder))?;
                        (Vec::new(), Some(problem))
                    }
                };
                Ok(Written { used: asked.used, run_id: asked.run_id, changes, problem })
            },
        )?;
        self.count(&step.id, written.used);
        if let Some(problem) = &written.problem {
            self.say(
                RUNNER,
                format!("The documentation stays as it is: {problem}. It waits in the backlog."),
            );
            let tip = self.setting.tree.tip()?;
            self.restore(tip.as_deref())?;
            return self.remember(step, &format!("Documentation: {note}"));
        }
        self.commit_documentation(step, upkeep, &writer, &written.changes)
    }

    fn commit_documentation(
        &mut self,
        step: &Step,
        upkeep: &DocsConfig,
        writer: &Role,
        changes: &[Change],
    ) -> Result<(), PipelineError> {
        if changes.is_empty() {
            self.say(&writer.title, "There was nothing to change.");
            return Ok(());
        }
        let _: String = self.effect(
            &step.id,
            "docs-commit",
            |runner| {
                let subject = format!("{}: {}", upkeep.commit, runner.setting.feat);
                Ok(DocumentCommit { commit: runner.step_commit(step, &subject)?, changes: changes.to_vec() })
            },
            |runner, papers, _| {
                let id = runner.put(papers)?;
                // Discards what was not committed: file modes, and changes made after the contents were read.
                runner.restore(None)?;
                Ok(id)
            },
        )?;
        let names: Vec<&str> = changes.iter().take(5).map(|(path, _)| path.as_str()).collect();
        let more = if changes.len() > names.len() { ", …" } else { "" };
        self.say(&writer.title, format!("Updated {}{more}.", names.join(", ")));
        self.say(RUNNER, format!("Committing {}... OK.", upkeep.commit));
        Ok(())
    }

    /// The files and directories that the documentation agent may write: existing files, and directories for
    /// new ones. Excluded are the tasks' documents (they belong to other roles), files with a second hard
    /// link (the other name could be code), and directories that contain ignored files (new files could not
    /// be told apart).
    fn opened(&self, upkeep: &DocsConfig, tip: &str) -> Result<(Vec<String>, Vec<String>), PipelineError> {
        let (tree, papers_folder) = (&self.setting.tree, &self.setting.workflow.documents);
        let mut files = tree.files(tip)?;
        files.retain(|path| self.is_upkept(upkeep, path) && documents::is_plain(&tree.worktree, path));
        // Files near the top are the ones that most people read, so keep those.
        files.sort_by_key(|path| path.matches('/').count());
        files.truncate(MOST_OPENED);
        let mut folders = Vec::new();
        for folder in &upkeep.folders {
            for folder in beside(&tree.worktree, folder, papers_folder) {
                if documents::is_plain_folder(&tree.worktree, &folder) && !tree.passes_over(&folder)? {
                    files.retain(|path| !path.starts_with(&format!("{folder}/")));
                    folders.push(folder);
                }
            }
        }
        Ok((files, folders))
    }

    fn is_upkept(&self, upkeep: &DocsConfig, path: &str) -> bool {
        let papers = format!("{}/", self.setting.workflow.documents).to_lowercase();
        upkeep.is_documentation(path) && !path.to_lowercase().starts_with(&papers)
    }

    /// The changes to the documentation, or why they cannot be used.
    fn written(
        &self,
        upkeep: &DocsConfig,
        asked: &Asked,
        folders: &[String],
    ) -> Result<Result<Vec<Change>, String>, PipelineError> {
        if let Some((kind, words)) = &asked.error {
            return Ok(Err(format!("{kind}: {words}")));
        }
        if asked.before != asked.after {
            return Ok(Err("the branch was moved meanwhile".to_string()));
        }
        if let Err(problem) = answer::extract(&asked.answer, &upkeep.answer) {
            return Ok(Err(problem.to_string()));
        }
        let tree = &self.setting.tree;
        for folder in folders {
            if !documents::is_plain_folder(&tree.worktree, folder) || tree.passes_over(folder)? {
                return Ok(Err(format!(
                    "{folder} has something in it that git passes over or that is no file"
                )));
            }
        }
        let mut changes = Vec::new();
        let mut bytes = 0;
        for path in tree.uncommitted()? {
            if !self.is_upkept(upkeep, &path) {
                return Ok(Err(format!("{path} was changed, and is no documentation")));
            }
            match documents::read(&tree.worktree, &path) {
                Ok(Some(text)) if text.contains(char::REPLACEMENT_CHARACTER) => {
                    return Ok(Err(format!("{path} is no text")));
                }
                Ok(text) => {
                    bytes += path.len() + text.as_ref().map_or(0, String::len);
                    if bytes > MOST_WRITTEN {
                        return Ok(Err(format!("it is more than {} MiB", MOST_WRITTEN >> 20)));
                    }
                    changes.push((path, text));
                }
                Err(error) => return Ok(Err(error.to_string())),
            }
        }
        Ok(Ok(changes))
    }
}

/// The directory itself, or, if it contains the tasks' documents, its subdirectories beside them.
fn beside(worktree: &std::path::Path, folder: &str, papers: &str) -> Vec<String> {
    let is_below = |inner: &str, outer: &str| inner == outer || inner.starts_with(&format!("{outer}/"));
    if is_below(folder, papers) {
        return Vec::new();
    }
    if !is_below(papers, folder) {
        return vec![folder.to_string()];
    }
    let entries = std::fs::read_dir(worktree.join(folder)).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.map(|name| format!("{folder}/{name}")).collect();
    names.sort();
    names.iter().flat_map(|inner| beside(worktree, inner, papers)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_documentation() {
        let files = ["*.md", "man/**", "!AGENTS.md", "!.*/**"].map(str::to_string).to_vec();
        let upkeep = DocsConfig { files, ..DocsConfig::default() };
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
            assert_eq!(upkeep.is_documentation(path), wanted, "{path}");
        }
    }

    #[test]
    fn folders_beside_the_papers() {
        let top = std::env::temp_dir().join(format!("guard-beside-{}", std::process::id()));
        let _ = std::fs::create_dir_all(top.join("docs/dev_docs/plans"));
        let _ = std::fs::create_dir_all(top.join("docs/guide"));
        let found = |folder: &str, papers: &str| beside(&top, folder, papers);
        assert_eq!(found("docs", "docs/dev_docs"), ["docs/guide"]);
        assert_eq!(found("docs", "papers"), ["docs"]);
        assert!(found("docs/dev_docs/plans", "docs/dev_docs").is_empty());
        assert!(documents::is_plain_folder(&top, "docs/guide"));
        let _ = std::os::unix::fs::symlink("/etc", top.join("docs/guide/etc"));
        assert!(!documents::is_plain_folder(&top, "docs/guide") && !documents::is_plain_folder(&top, "none"));
        let _ = std::fs::remove_dir_all(&top);
    }
}
