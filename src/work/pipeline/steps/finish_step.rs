//! Completes a step that an agent performed: reports the result, commits the work and documents, and decides which step
//! follows.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::Next;
use super::next_step;
use crate::text::template::fill_message;
use crate::work::pipeline::context::Task;
use crate::work::pipeline::context::TaskContext;
use crate::work::pipeline::documents;
use crate::work::pipeline::error::PipelineError;
use crate::work::pipeline::steps::agent_call::{document_path, template_values};
use crate::work::pipeline::steps::document_commit::{
    DocumentCommit, commit_changes, shared_document_changes, signature, step_commit,
};
use crate::work::pipeline::steps::feedback_triage::triage_feedback;
use crate::work::pipeline::steps::project_tests::test_command;
use crate::work::pipeline::task::state::{RUNNER, Status};
use crate::work::pipeline::workflow::model::{BACK, FieldType, Role, Step, Work};

/// Returns the user's decision at this step's gate, in the form of an agent's answer; `None` if the user has not
/// decided.
pub(crate) fn user_decision(
    context: &mut TaskContext<'_>,
) -> Result<Option<Map<String, Value>>, PipelineError> {
    let decision = context.journal.decision(context.task.state.visit)?;
    Ok(decision.map(|decision| {
        let mut answer = Map::new();
        answer.insert("verdict".to_string(), json!(decision.verdict));
        if !decision.feedback.is_empty() {
            answer.insert("feedback".to_string(), json!(decision.feedback));
        }
        answer.insert("decided_by".to_string(), json!(signature(&decision.who)));
        answer
    }))
}

pub(crate) fn waiting_reason(task: &Task, step: &Step) -> String {
    format!(
        "waiting for the user's decision at the gate {}: `guard task approve {id}` or `guard task reject {id} --feedback …`, then `guard task resume {id}`",
        step.gate.as_deref().unwrap_or(&step.id),
        id = task.id
    )
}

/// Reports the result, commits the step's documents, triages the answer's feedback, and decides which step follows.
pub(crate) fn finish_role_step(
    context: &mut TaskContext<'_>,
    step: &Step,
    role: &Role,
    answer: &Map<String, Value>,
) -> Result<Next, PipelineError> {
    let place = document_path(&context.task, step);
    if let (Some(document), Some(place)) = (&step.document, &place) {
        context.task.state.documents.insert(document.name.clone(), place.clone());
    }
    let word = answer.get("verdict").and_then(Value::as_str).filter(|word| step.verdicts.contains_key(*word));
    let remark = answer.get("feedback").and_then(Value::as_str).unwrap_or_default().to_string();
    let mut values = template_values(&context.task, role);
    values.insert("feedback".to_string(), remark.clone());
    // Report only what guard verified: a committing step does not get here unless its tests pass.
    let tests = if test_command(&context.task)?.is_some() { "Tests passed." } else { "Tests not run." };
    values.insert("tests_result".to_string(), tests.to_string());
    for (name, field) in &step.answer {
        let text = answer.get(name).and_then(Value::as_str).unwrap_or_default();
        values.insert(name.clone(), text.to_string());
        if field.is == FieldType::Commit {
            values.insert("commit".to_string(), text.chars().take(7).collect());
        }
    }
    let says =
        word.map_or(step.says.as_ref(), |word| step.verdicts.get(word).and_then(|one| one.says.as_ref()));
    if let Some(says) = says {
        let line = fill_message(says, &values);
        let person = deciding_user(answer).map(|(name, _)| name);
        context.announce(person.as_ref().unwrap_or(&role.title), line);
    }
    commit_documents(context, step, role, word, answer)?;
    triage_feedback(context, step, role, answer)?;
    // The first word that a verdict field accepts is the approval.
    if word.is_some()
        && word == step.verdict_words().first().copied()
        && context.task.state.merge_review.as_ref() == Some(&step.id)
    {
        context.task.state.merge_review = None;
    }
    let to = next_step(step, word)?;
    let goes_back = to == BACK || context.task.state.rounds.contains_key(&to);
    if word.is_none() || !goes_back {
        return Ok(Next::Go { to, feedback: String::new() });
    }
    let feedback = match &place {
        Some(place) => format!("The review is at `{place}`.\n{remark}"),
        None => remark,
    };
    if let Some(stop) = stop_if_repeating(context, step, &feedback)? {
        return Ok(stop);
    }
    Ok(Next::Go { to, feedback })
}

/// Stops the task if a reviewing step repeats its feedback, or gives feedback on unchanged work, because
/// another round would change nothing.
fn stop_if_repeating(
    context: &mut TaskContext<'_>,
    step: &Step,
    feedback: &str,
) -> Result<Option<Next>, PipelineError> {
    let workflow = &context.task.setting.workflow;
    let (base, reviews) =
        (format!("refs/heads/{}", workflow.base), format!("{}/reviews", workflow.documents));
    let about = digest(&context.task.setting.tree.changed_outside(&base, &reviews)?);
    let written = document_path(&context.task, step)
        .and_then(|place| documents::read(&context.task.setting.tree.worktree, &place).ok().flatten());
    // The first line of the feedback names the document, whose path differs from round to round. Compare only the rest.
    let words = feedback.lines().skip(1).collect::<Vec<_>>().join("\n");
    let feedback_digest = digest(format!("{words}\n{}", written.unwrap_or_default()).as_bytes());
    let last = context.task.state.said.insert(step.id.clone(), (feedback_digest.clone(), about.clone()));
    Ok(last.and_then(|(last_said, last_about)| {
        let why = match (last_said == feedback_digest, last_about == about) {
            (true, _) => "gave the same feedback twice",
            (_, true) => "reviewed the same work twice: nothing had changed in between",
            _ => return None,
        };
        Some(Next::Stop(
            Status::NeedsHuman,
            format!(
                "the step {} {why}; `guard task resume {}` allows one more round",
                step.id, context.task.id
            ),
        ))
    }))
}

/// Commits the step's document, and the items that the answer adds to the shared documents (backlog and lessons).
fn commit_documents(
    context: &mut TaskContext<'_>,
    step: &Step,
    role: &Role,
    word: Option<&str>,
    answer: &Map<String, Value>,
) -> Result<(), PipelineError> {
    let intent = |context: &mut TaskContext<'_>| -> Result<DocumentCommit, PipelineError> {
        let mut changes = shared_document_changes(&context.task, answer)?;
        let tree = &context.task.setting.tree;
        let place = document_path(&context.task, step);
        let is_there = |place: &String| tree.file_at(&tree.branch, place).map(|found| found.is_some());
        let has_committed = role.work == Work::Commit && place.as_ref().map_or(Ok(false), is_there)?;
        if let Some(place) = place.filter(|_| !has_committed) {
            let written = documents::read(&context.task.setting.tree.worktree, &place).map_err(|source| {
                PipelineError::Io { path: context.task.setting.tree.worktree.join(&place), source }
            })?;
            // A user's decision is recorded in the user's own words, even if a file exists at this path.
            let is_user_decision = answer.contains_key("decided_by");
            let text = written.filter(|text| !text.trim().is_empty() && !is_user_decision);
            // If the agent wrote no document, the runner writes one.
            let text = text.unwrap_or_else(|| decision_document(step, word, answer));
            changes.push((place, Some(text)));
        }
        let what = step.commit.clone().unwrap_or_else(|| "Notes".to_string());
        let verdict = word.map(|word| format!(": {word}")).unwrap_or_default();
        let subject = format!("{what}: {}{verdict}", context.task.setting.feat);
        let mut commit = step_commit(context, step, &subject)?;
        if let Some(person) = deciding_user(answer) {
            commit.who = person;
        }
        Ok(DocumentCommit { commit, changes })
    };
    let verdict = word.and_then(|word| step.verdicts.get(word));
    let committed = verdict.and_then(|verdict| verdict.committed.clone());
    let line = committed.or_else(|| step.commit.as_ref().map(|what| format!("Committing {what}... OK.")));
    let done: Option<String> = context.effect(&step.id, "commit", intent, |context, change_set, _| {
        if change_set.changes.is_empty() {
            return Ok(None);
        }
        commit_changes(context, change_set).map(Some)
    })?;
    if done.is_some()
        && let Some(line) = line
    {
        context.announce(RUNNER, line);
    }
    Ok(())
}

/// Returns the text that guard writes as the document of a step if the agent wrote none or a user decided: the status,
/// the decision and the answer as JSON.
fn decision_document(step: &Step, word: Option<&str>, answer: &Map<String, Value>) -> String {
    let object = serde_json::to_string_pretty(answer).unwrap_or_default();
    format!("# {}: {}\n\n```json\n{object}\n```\n", step.status, word.unwrap_or("done"))
}

/// Returns the name and address of the user who gave this answer; `None` if an agent gave it.
fn deciding_user(answer: &Map<String, Value>) -> Option<(String, String)> {
    let text = answer.get("decided_by")?.as_str()?;
    let (name, address) = text.rsplit_once(" <").unwrap_or((text, "guard@localhost"));
    Some((name.to_string(), address.trim_end_matches('>').to_string()))
}

fn digest(bytes: &[u8]) -> String {
    crate::text::hex::encode(Sha256::digest(bytes))
}
