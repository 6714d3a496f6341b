//! Validates an agent's answer: its format, and every claim it makes about documents, commits, tests and
//! merges.

use serde_json::{Map, Value, json};

use super::Next;
use super::{answer, feedback};
use crate::agents::exec::ExecRequest;
use crate::run::outcome::ErrorKind;
use crate::run::transcript::EventType;
use crate::work::pipeline::context::Task;
use crate::work::pipeline::context::TaskContext;
use crate::work::pipeline::documents;
use crate::work::pipeline::error::PipelineError;
use crate::work::pipeline::steps::agent_call::document_path;
use crate::work::pipeline::steps::project_tests::{has_named_tests, test_command};
use crate::work::pipeline::task::budget::exhausted_limit;
use crate::work::pipeline::task::journal_records::AgentReply;
use crate::work::pipeline::task::state::{RUNNER, Status, TaskEvent};
use crate::work::pipeline::workflow::model::{FieldType, Role, Step, Work};

pub(crate) enum Validation {
    Valid(Map<String, Value>),
    /// The answer is unusable for this reason, and the agent may be asked to repair it.
    Invalid(String),
    /// No repair is possible: the step ends, and the runner does what [`Next`] says.
    Stop(Next),
}

/// Validates the format of an agent's answer, and every claim that it makes.
pub(crate) fn validate_answer(
    context: &mut TaskContext<'_>,
    step: &Step,
    role: &Role,
    asked: &AgentReply,
) -> Result<Validation, PipelineError> {
    if let Some((kind, words)) = &asked.error {
        let is_bound = matches!(kind, ErrorKind::BudgetExhausted | ErrorKind::Timeout);
        if let Some(reason) = exhausted_limit(&context.task, &step.id).filter(|_| is_bound) {
            return Ok(Validation::Stop(Next::Stop(Status::BudgetExhausted, reason)));
        }
        let status = match kind {
            ErrorKind::BudgetExhausted => Status::BudgetExhausted,
            _ => Status::Failed,
        };
        return Ok(Validation::Stop(Next::Stop(status, format!("{}: {kind}: {words}", role.title))));
    }
    if role.work == Work::Read && asked.before != asked.after {
        let problem = "the branch moved while the agent, which may only read, was working";
        return Ok(Validation::Invalid(problem.to_string()));
    }
    let answer = match answer::extract(&asked.answer, &step.answer) {
        Ok(answer) => answer,
        Err(problem) => return Ok(Validation::Invalid(problem.to_string())),
    };
    let problem = match find_false_claim(context, step, role, asked, &answer)? {
        None => feedback::contradiction(&answer, &step.answer, &context.task.setting.workflow.honesty)
            .map(|word| format!("the answer claims success, but its feedback says `{word}`")),
        problem => problem,
    };
    Ok(problem.map_or_else(|| Validation::Valid(answer), Validation::Invalid))
}

/// Describes the first claim in the answer that is not true, if there is one.
fn find_false_claim(
    context: &mut TaskContext<'_>,
    step: &Step,
    role: &Role,
    asked: &AgentReply,
    answer: &Map<String, Value>,
) -> Result<Option<String>, PipelineError> {
    let text = |name: &str| answer.get(name).and_then(Value::as_str).unwrap_or_default().trim();
    if let (Some(document), Some(place)) = (&step.document, document_path(&context.task, step)) {
        for (name, _) in step.answer.iter().filter(|(_, field)| field.is == FieldType::Document) {
            let claimed = text(name);
            let worktree = format!("{}/", context.task.setting.tree.worktree.display());
            let plain = claimed.strip_prefix(&worktree).unwrap_or(claimed).trim_start_matches("./");
            if plain != place {
                return Ok(Some(format!("`{name}` must be `{place}`, but is `{claimed}`")));
            }
        }
        // A role that may commit has its document on the branch, where guard checks it together with the rest
        // of the work.
        if role.work == Work::Read {
            let worktree = &context.task.setting.tree.worktree;
            let written = documents::read(worktree, &place)
                .map_err(|source| PipelineError::Io { path: worktree.join(&place), source })?;
            let lacks = documents::missing(document, written.as_deref().unwrap_or_default());
            if let Some(lacks) = lacks.filter(|_| !document.optional) {
                return Ok(Some(format!("the document `{place}` {lacks}")));
            }
        }
    }
    for (name, _) in step.answer.iter().filter(|(_, field)| field.is == FieldType::Commit) {
        if let Some(problem) = find_commit_problem(&context.task, name, text(name), asked)? {
            return Ok(Some(problem));
        }
    }
    if step.must_merge
        && let Some(problem) = find_merge_problem(&context.task, asked)?
    {
        return Ok(Some(problem));
    }
    if role.work == Work::Commit {
        return find_work_problem(context, step, role, asked);
    }
    Ok(None)
}

/// Describes what is wrong with an agent's work on the code: for example, it changes other roles' documents, contains a
/// merge, leaves uncommitted files, or fails the tests. `None` if the work is acceptable.
pub(crate) fn find_work_problem(
    context: &mut TaskContext<'_>,
    step: &Step,
    role: &Role,
    asked: &AgentReply,
) -> Result<Option<String>, PipelineError> {
    let workflow = &context.task.setting.workflow;
    let changed =
        context.task.setting.tree.changed_below(&asked.before, &asked.after, &workflow.documents)?;
    let own = document_path(&context.task, step);
    let is_others =
        |path: &&String| own.as_ref() != Some(*path) && is_a_document(&context.task, path, step.must_merge);
    if let Some(path) = changed.iter().find(is_others) {
        return Ok(Some(format!(
            "`{path}` is a document that this step must not change; restore the document"
        )));
    }
    let directories = workflow.document_directories();
    if let Some(path) = context.task.setting.tree.first_non_directory(&asked.after, &directories)? {
        return Ok(Some(format!(
            "`{path}` must be a directory or not exist, because documents are stored below it"
        )));
    }
    if !step.must_merge && context.task.setting.tree.has_merges(&asked.before, &asked.after)? {
        return Ok(Some(
            "the commits contain a merge, but this step must not merge; commit without it".to_string(),
        ));
    }
    let left = context.task.setting.tree.uncommitted()?;
    if !left.is_empty() {
        let some: Vec<&str> = left.iter().take(5).map(String::as_str).collect();
        let noun = if left.len() == 1 { "file is" } else { "files are" };
        return Ok(Some(format!("{} {noun} not committed: {}", left.len(), some.join(", "))));
    }
    if let Some(problem) = find_report_problem(&context.task, step, asked)? {
        return Ok(Some(problem));
    }
    let tests = test_command(&context.task)?;
    let problem = run_tests(context, step, role, tests.as_deref())?;
    if tests.is_some() {
        // The tests ran the agent's code, which may have changed files. Discard everything that is not in the
        // commit.
        context.restore(Some(&asked.after))?;
    }
    Ok(problem)
}

/// Describes what is wrong with the agent's report about its work on the code: the report is not on the branch, it is
/// incomplete, or it does not explain why a file that the step must update is unchanged. `None` if nothing is wrong.
fn find_report_problem(
    task: &Task,
    step: &Step,
    asked: &AgentReply,
) -> Result<Option<String>, PipelineError> {
    let tree = &task.setting.tree;
    let mut report = String::new();
    if let (Some(document), Some(place)) = (&step.document, document_path(task, step)) {
        let content = tree.file_at(&asked.after, &place)?;
        report = content.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let lacks = documents::missing(document, &report).filter(|_| !document.optional);
        if let Some(lacks) = lacks {
            return Ok(Some(format!("the document `{place}` {lacks}; complete the document and commit it")));
        }
    }
    if step.updates.is_empty() {
        return Ok(None);
    }
    let there = tree.top_files(&asked.after)?;
    let changed = tree.changed_since(&format!("refs/heads/{}", task.setting.workflow.base))?;
    let is_said = |file: &str| {
        let mut lines = report.lines().map(str::to_lowercase);
        lines.any(|line| line.contains(&file.to_lowercase()) && line.contains("unchanged"))
    };
    let is_stale = |file: &&String| there.contains(*file) && !changed.contains(*file) && !is_said(file);
    Ok(step.updates.iter().find(is_stale).map(|file| {
        format!(
            "`{file}` is unchanged; update it, or give the reason in the report, in a line with `{file}` and the word `unchanged`"
        )
    }))
}

/// True if `path` is or could be a document of a step of this task, or is a document shared by all tasks. For a merge,
/// shared documents do not count, because both sides may have changed them.
fn is_a_document(task: &Task, path: &str, is_merge: bool) -> bool {
    let workflow = &task.setting.workflow;
    let memory = workflow.memory.as_ref().map(|memory| &memory.file);
    let shared = [workflow.backlog.as_ref(), memory, workflow.notes.as_ref()].into_iter().flatten();
    let mut shared = shared.map(|file| format!("{}/{file}", workflow.documents));
    if shared.any(|file| path.eq_ignore_ascii_case(&file)) {
        return !is_merge;
    }
    workflow.steps.iter().filter_map(|step| step.document.as_ref()).any(|document| {
        let place = format!("{}/{}", workflow.documents, document.path.replace("{feat}", &task.setting.feat));
        match place.split_once("{n}") {
            None => path.eq_ignore_ascii_case(&place),
            Some((head, tail)) => {
                let (path, head, tail) = (path.to_lowercase(), head.to_lowercase(), tail.to_lowercase());
                path.starts_with(&head) && path.ends_with(&tail)
            }
        }
    })
}

/// Describes what is wrong with the commit that the answer claims in the field `name`; `None` if the claim is true.
fn find_commit_problem(
    task: &Task,
    name: &str,
    claimed: &str,
    asked: &AgentReply,
) -> Result<Option<String>, PipelineError> {
    let tree = &task.setting.tree;
    let is_hash = claimed.len() >= 7 && claimed.bytes().all(|byte| byte.is_ascii_hexdigit());
    let found = if is_hash { tree.commit_named(claimed)? } else { None };
    let Some(commit) = found else {
        return Ok(Some(format!("`{name}`: there is no commit `{claimed}`")));
    };
    if !tree.contains(&tree.branch, &commit)? {
        return Ok(Some(format!("`{name}`: the commit {claimed} is not on {}", tree.short_branch())));
    }
    if tree.contains(&asked.before, &commit)? {
        return Ok(Some(format!("`{name}`: the commit {claimed} is older than this step")));
    }
    Ok(None)
}

/// Describes what is wrong with a merge: it does not contain the base or the task's own commits, has conflict markers,
/// or lost changes that only the base made. `None` if nothing is wrong.
pub(crate) fn find_merge_problem(task: &Task, asked: &AgentReply) -> Result<Option<String>, PipelineError> {
    let (tree, base, after) = (&task.setting.tree, &task.setting.workflow.base, &asked.after);
    let wanted = tree.commit_named(&format!("refs/heads/{base}"))?.unwrap_or_default();
    if !tree.contains(after, &wanted)? {
        return Ok(Some(format!("{base} is not merged: the branch does not contain {wanted}")));
    }
    if !tree.contains(after, &asked.before)? {
        return Ok(Some(format!(
            "the branch no longer contains the commit {}, which it pointed to before the merge",
            asked.before
        )));
    }
    let compared = tree.compare_merge(&asked.before, &wanted, after)?;
    // Look also at the files that conflict now, because the base branch may have moved since the merge step recorded
    // the conflicts.
    let mut conflicts = task.state.conflict_files.clone();
    conflicts.extend(compared.conflicts);
    if let Some(file) = tree.file_with_conflict_marker(after, &conflicts)? {
        return Ok(Some(format!("{file} still has conflict markers")));
    }
    if !compared.lost.is_empty() {
        let some: Vec<&str> = compared.lost.iter().take(5).map(String::as_str).collect();
        return Ok(Some(format!(
            "the merge lost changes of {base} in {} files that had no conflict: {}; restore them (for a file that only {base} \
             changed: `git restore --source={base} --staged --worktree FILE`), and commit",
            compared.lost.len(),
            some.join(", ")
        )));
    }
    Ok(None)
}

/// Runs the test command `words` under the policy of the role whose work is tested. Returns a message if the tests
/// fail. If there is no test command, only reports that no tests were run.
fn run_tests(
    context: &mut TaskContext<'_>,
    step: &Step,
    role: &Role,
    words: Option<&[String]>,
) -> Result<Option<String>, PipelineError> {
    let Some(words) = words else {
        if !has_named_tests(&context.task) {
            let line = "guard ran no tests, because it found no test command that is installed. Set one with `--tests COMMAND`.";
            context.announce(RUNNER, line);
        }
        context.events.send(TaskEvent::new(EventType::TaskTests, "not run", json!({ "step": step.id })));
        return Ok(None);
    };
    context.announce(RUNNER, format!("Running {}...", shell_words::join(words)));
    let mut request = ExecRequest::new("", context.task.setting.tree.worktree.clone());
    request.agent = Some("generic".to_string());
    request.command = words.to_vec();
    request.policy = Some(role.policy.clone());
    request.max_retries = 0;
    request.here = true;
    let result = context.execute(&request, |_| None)?;
    let data = json!({ "step": step.id, "success": result.run.success, "run_id": result.run.run_id });
    context.events.send(TaskEvent::new(
        EventType::TaskTests,
        if result.run.success { "passed" } else { "failed" },
        data,
    ));
    if result.run.success {
        return Ok(None);
    }
    let lines: Vec<&str> = result.run.result.lines().rev().take(20).collect();
    let last = lines.into_iter().rev().collect::<Vec<_>>().join("\n");
    let error = result.run.error.unwrap_or_default();
    let advice = if has_named_tests(&context.task) {
        String::new()
    } else {
        let (words, id) = (shell_words::join(words), &context.task.id);
        format!(
            "\n(guard found `{words}` in the project; `guard task resume {id} --tests COMMAND` runs another command, `--no-tests` skips the tests)"
        )
    };
    Ok(Some(format!("the tests fail: {error}\n{last}{advice}")))
}
