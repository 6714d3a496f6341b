//! The steps that the runner performs itself, without an agent: merge, archive, deliver.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::finish_step::DocumentCommit;
use crate::pipeline::runner::{Next, PipelineError, Runner};
use crate::pipeline::task::state::{RUNNER, Status, TaskEvent};
use crate::pipeline::workflow::model::Step;
use crate::transcript::EventType;
use crate::workspace::{Merged, StepCommit};

/// Maximum length of a pull request's body.
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

impl Runner<'_> {
    /// The current commit of the base branch.
    fn base_tip(&self) -> Result<String, PipelineError> {
        let base = &self.setting.workflow.base;
        let tip = self.setting.tree.commit_named(&format!("refs/heads/{base}"))?;
        tip.ok_or_else(|| PipelineError::Strange(format!("the branch `{base}` no longer exists")))
    }

    pub(crate) fn merge(&mut self, step: &Step) -> Result<Next, PipelineError> {
        let base = self.setting.workflow.base.clone();
        let met: MergeOutcome = self.effect(
            &step.id,
            "merge",
            |runner| {
                let theirs = runner.base_tip()?;
                let mut commit = runner.step_commit(
                    step,
                    &format!("Merge {base} into {}", runner.setting.tree.short_branch()),
                )?;
                commit.merges = Some(theirs.clone());
                Ok(MergeIntent { commit, theirs })
            },
            |runner, meeting, _| {
                let tree = runner.setting.tree.clone();
                let met = |word: &str| MergeOutcome {
                    word: word.to_string(),
                    conflicts: String::new(),
                    files: Vec::new(),
                };
                match tree.merge(&meeting.commit.parent, &meeting.theirs)? {
                    Merged::UpToDate => Ok(met("UP_TO_DATE")),
                    Merged::Clean(merged) => {
                        // The user may have worked in the worktree while the task waited.
                        if !tree.uncommitted()?.is_empty() {
                            runner.save_work()?;
                        }
                        let commit = StepCommit { tree: Some(merged), ..meeting.commit.clone() };
                        tree.commit(&commit, &[])?;
                        tree.check_out(&runner.repository)?;
                        Ok(met("MERGED"))
                    }
                    Merged::Conflict(files, conflicts) => {
                        Ok(MergeOutcome { files, conflicts, ..met("CONFLICT") })
                    }
                }
            },
        )?;
        let word = self.after_merge(step, &met.word);
        let line = match met.word.as_str() {
            "UP_TO_DATE" if word != met.word => {
                format!("Merging '{base}'... already up to date. The merge is reviewed again.")
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
        self.announce(RUNNER, line);
        self.state.conflicts = met.conflicts;
        self.state.conflict_files = met.files;
        Ok(Next::Go { to: Self::next_step(step, Some(word))?, feedback: String::new() })
    }

    /// The verdict after a merge. A merge that was rejected and repaired is reviewed again, although there is
    /// nothing new to merge.
    fn after_merge(&mut self, step: &Step, word: &str) -> &'static str {
        match word {
            "UP_TO_DATE" if self.state.merge_review.is_some() => "MERGED",
            "UP_TO_DATE" => "UP_TO_DATE",
            word => {
                let review = step.verdicts.get("MERGED").map(|verdict| verdict.next.clone());
                let is_reviewed = |id: &String| {
                    self.setting.workflow.step(id).is_some_and(|step| step.verdict_words().len() > 1)
                };
                self.state.merge_review = review.filter(is_reviewed);
                if word == "MERGED" { "MERGED" } else { "CONFLICT" }
            }
        }
    }

    /// Moves the task's documents to the archive.
    pub(crate) fn archive(&mut self, step: &Step) -> Result<Next, PipelineError> {
        let moved: Vec<(String, String)> = self.effect(
            &step.id,
            "archive",
            |runner| {
                let mut changes = Vec::new();
                for (from, to, text) in runner.documents_to_archive()? {
                    changes.push((from, None));
                    changes.push((to, Some(text)));
                }
                Ok(DocumentCommit {
                    commit: runner.step_commit(step, &format!("Archive: {}", runner.setting.feat))?,
                    changes,
                })
            },
            |runner, change_set, _| {
                if !change_set.changes.is_empty() {
                    runner.commit_changes(change_set)?;
                }
                let pairs = change_set.changes.chunks(2).filter_map(|pair| match pair {
                    [from, to] => Some((from.0.clone(), to.0.clone())),
                    _ => None,
                });
                Ok(pairs.collect())
            },
        )?;
        for place in self.state.documents.values_mut() {
            if let Some((_, to)) = moved.iter().find(|(from, _)| from == place) {
                place.clone_from(to);
            }
        }
        if !moved.is_empty() {
            self.announce(RUNNER, format!("Archiving {} documents... OK.", moved.len()));
        }
        Ok(Next::Go { to: Self::next_step(step, None)?, feedback: String::new() })
    }

    /// Every document of this task: its path, its path in the archive, and its text.
    fn documents_to_archive(&self) -> Result<Vec<(String, String, String)>, PipelineError> {
        let (tree, workflow) = (&self.setting.tree, &self.setting.workflow);
        let mut found = Vec::new();
        for step in &workflow.steps {
            let Some(document) = &step.document else { continue };
            let rounds = self.state.rounds.get(&step.id).copied().unwrap_or(0);
            for n in 1..=rounds {
                let from = workflow.document_path(&document.path, &self.setting.feat, n);
                let Some(content) = tree.file_at(&tree.branch, &from)? else { continue };
                let below = from.strip_prefix(&format!("{}/", workflow.documents)).unwrap_or(&from);
                let to = self.free_archive_path(&format!("{}/archived/{below}", workflow.documents))?;
                if !found.iter().any(|(known, _, _)| *known == from) {
                    found.push((from, to, String::from_utf8_lossy(&content).into_owned()));
                }
            }
        }
        Ok(found)
    }

    /// A path in the archive that no earlier task uses.
    fn free_archive_path(&self, wanted: &str) -> Result<String, PipelineError> {
        let tree = &self.setting.tree;
        let (stem, ending) = wanted.rsplit_once('.').unwrap_or((wanted, "md"));
        let others = (2..1000).map(|n| format!("{stem}-{n}.{ending}"));
        for place in std::iter::once(wanted.to_string()).chain(others) {
            if tree.file_at(&tree.branch, &place)?.is_none() {
                return Ok(place);
            }
        }
        Ok(wanted.to_string())
    }

    pub(crate) fn deliver(&mut self, step: &Step) -> Result<Next, PipelineError> {
        let (tree, base) = (self.setting.tree.clone(), self.base_tip()?);
        let tip = tree.tip()?.unwrap_or_default();
        if !tree.contains(&tip, &base)? {
            self.announce(RUNNER, format!("'{}' has new commits.", self.setting.workflow.base));
            return Ok(Next::Go { to: Self::next_step(step, Some("BEHIND"))?, feedback: String::new() });
        }
        let summary = self.summary()?;
        let path = self.task_store.task_directory(&self.id).join("summary.md");
        let place: String = self.effect(
            &step.id,
            "deliver",
            |_| Ok(json!({ "tip": tip })),
            |_, _, _| {
                std::fs::write(&path, &summary)
                    .map_err(|source| PipelineError::Io { path: path.clone(), source })?;
                Ok(path.display().to_string())
            },
        )?;
        (self.on_event)(TaskEvent::new(EventType::TaskDelivered, place.clone(), json!({ "summary": place })));
        self.state.delivered = Some(match self.push_and_open_pull_request(&step.id, &summary)? {
            None => place,
            Some(Ok(url)) => url,
            Some(Err(problem)) => return Ok(Next::Stop(Status::Failed, problem)),
        });
        Ok(Next::Go { to: Self::next_step(step, Some("DELIVERED"))?, feedback: String::new() })
    }

    /// A summary of the task for the user who merges its branch.
    fn summary(&self) -> Result<String, PipelineError> {
        let (tree, used) = (&self.setting.tree, self.state.used);
        let mut out = format!("# {}\n\n{}\n\n## Commits\n\n", self.setting.feat, self.request.trim());
        for subject in tree.subjects(&tree.base)? {
            // As a code span, a subject cannot mention users or contain links.
            out.push_str(&format!("- `{}`\n", subject.replace('`', "'")));
        }
        out.push_str("\n## Documents\n\n");
        for (name, place) in &self.state.documents {
            out.push_str(&format!("- {name}: `{place}`\n"));
        }
        let tests = match self.test_command()? {
            Some(words) => format!(
                "run by guard after work on the code: `{}`",
                shell_words::join(&words).replace('`', "'")
            ),
            None => "not run".to_string(),
        };
        out.push_str(&format!("\nTests: {tests}.\n"));
        out.push_str(&format!(
            "\n{} agent calls, {} tokens, {} s. Task {}. Merge it with `git merge {}`.\n",
            used.calls,
            used.tokens,
            used.agent_ms / 1000,
            self.id,
            tree.short_branch()
        ));
        Ok(out.chars().take(LONGEST_SUMMARY).collect())
    }
}
