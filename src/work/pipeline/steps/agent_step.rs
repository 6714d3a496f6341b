//! Runs a step that an agent performs: asks the agent, parses its answer, verifies its claims, and commits
//! its work.
//!
//! If an answer is unusable, guard asks the agent once to repair it. guard never trusts what the agent claims.

use serde_json::{Map, Value};

use super::Next;
use super::answer;
use super::research_step::research;
use super::validate_answer::Validation;
use crate::text::template::Template;
use crate::work::pipeline::context::Task;
use crate::work::pipeline::context::TaskContext;
use crate::work::pipeline::documents;
use crate::work::pipeline::error::PipelineError;
use crate::work::pipeline::steps::agent_call::{
    Question, call_agent, committed_document, document_path, template_values,
};
use crate::work::pipeline::steps::finish_step::{finish_role_step, user_decision, waiting_reason};
use crate::work::pipeline::steps::manual_merge::{accept_user_merge, hand_over_conflict};
use crate::work::pipeline::steps::validate_answer::validate_answer;
use crate::work::pipeline::task::budget::{add_usage, exhausted_limit};
use crate::work::pipeline::task::journal_records::AgentReply;
use crate::work::pipeline::task::state::{RUNNER, Status};
use crate::work::pipeline::workflow::model::{Role, Step, Work};

/// Maximum size of an agent's answer as quoted in a request to repair it, in bytes.
const MOST_QUOTED: usize = 16 << 10;

/// Maximum size of a branch's diff in a prompt, in bytes.
const MOST_DIFF: usize = 192 << 10;

pub(crate) fn run_role_step(
    context: &mut TaskContext<'_>,
    step: &Step,
    role: &str,
) -> Result<Next, PipelineError> {
    let strange = || PipelineError::Strange(format!("the workflow has no role `{role}`"));
    let role = context.task.setting.workflow.roles.get(role).cloned().ok_or_else(strange)?;
    let is_user_gate = step.gate.as_ref().is_some_and(|gate| context.task.setting.gates.contains(gate));
    let answer = if step.must_merge && context.task.state.merged_by.is_some() {
        match accept_user_merge(context, step, &role)? {
            Ok(answer) => answer,
            Err(stop) => return Ok(stop),
        }
    } else if is_user_gate {
        match user_decision(context)? {
            Some(answer) => answer,
            None => return Ok(Next::Stop(Status::NeedsHuman, waiting_reason(&context.task, step))),
        }
    } else {
        match agent_answer(context, step, &role)? {
            Ok(answer) => answer,
            Err(stop) => return Ok(stop),
        }
    };
    finish_role_step(context, step, &role, &answer)
}

/// Asks the agent and validates its answer. If the answer is unusable, asks the agent once to repair it. Returns the
/// valid answer, or why the task stops without one.
fn agent_answer(
    context: &mut TaskContext<'_>,
    step: &Step,
    role: &Role,
) -> Result<Result<Map<String, Value>, Next>, PipelineError> {
    context.announce(RUNNER, format!("Spawning {}...", role.title));
    let asked = ask_agent(context, step, role, "agent", None)?;
    // After a crash, the working tree may have changed since guard validated the answer. If the journal has an entry
    // for the commit, the answer was valid, so do not validate it again.
    let (was_validated, was_repaired) = (has_begun(context, "commit")?, has_begun(context, "repair")?);
    let validation = match (was_validated, was_repaired) {
        (_, true) => {
            Validation::Invalid("guard had already asked for a repair before it was interrupted".to_string())
        }
        (true, false) => return parse_accepted_answer(step, &asked).map(Ok),
        (false, false) => validate_answer(context, step, role, &asked)?,
    };
    let problem = match validation {
        Validation::Valid(answer) => return Ok(Ok(answer)),
        Validation::Stop(stop) => return Ok(Err(stop)),
        Validation::Invalid(problem) => problem,
    };
    if let Some(reason) = exhausted_limit(&context.task, &step.id) {
        return Ok(Err(Next::Stop(Status::BudgetExhausted, reason)));
    }
    let line = format!("guard cannot use the answer of the {} ({problem}), and asks once more.", role.title);
    context.announce(RUNNER, line);
    let again = ask_agent(context, step, role, "repair", Some((&problem, &asked.answer)))?;
    // A role that may commit may have committed in both calls, so its work begins at the commit before the
    // first call. A read-only role starts over in the second call.
    let before = if role.work == Work::Commit { asked.before } else { again.before.clone() };
    let again = AgentReply { before, ..again };
    if was_validated {
        return parse_accepted_answer(step, &again).map(Ok);
    }
    Ok(match validate_answer(context, step, role, &again)? {
        Validation::Valid(answer) => Ok(answer),
        Validation::Stop(stop) => Err(stop),
        Validation::Invalid(problem) if step.must_merge => {
            Err(hand_over_conflict(context, &again, &problem)?)
        }
        Validation::Invalid(problem) => Err(Next::Stop(Status::Failed, format!("{}: {problem}", role.title))),
    })
}

/// True if the journal has an entry for this effect in the current execution of the step, possibly from an
/// earlier process.
fn has_begun(context: &TaskContext<'_>, effect: &str) -> Result<bool, PipelineError> {
    Ok(context.journal.effect_state(context.task.state.visit, effect)?.is_some())
}

/// Parses an answer that an earlier process accepted before it crashed.
fn parse_accepted_answer(step: &Step, asked: &AgentReply) -> Result<Map<String, Value>, PipelineError> {
    answer::extract(&asked.answer, &step.answer).map_err(|problem| {
        PipelineError::Strange(format!("the answer in the journal cannot be used: {problem}"))
    })
}

/// Makes one agent call (or does the deep research, if the step is configured for it) and counts its usage. If a crash
/// interrupted an earlier attempt, restores the state before that attempt and calls again. `repair` contains the
/// problem with an earlier answer, and that answer.
pub(crate) fn ask_agent(
    context: &mut TaskContext<'_>,
    step: &Step,
    role: &Role,
    name: &str,
    repair: Option<(&str, &str)>,
) -> Result<AgentReply, PipelineError> {
    let asked: AgentReply = context.effect(
        &step.id,
        name,
        |context| build_question(context, step, role, repair),
        |context, question, is_again| {
            if is_again {
                context
                    .announce(RUNNER, format!("The {} was interrupted; guard calls it again.", role.title));
                context.restore(Some(&question.tip))?;
            }
            create_document_file(context, step, question, repair.is_some())?;
            match &step.deep_research {
                Some(config) => research(context, step, role, config, question),
                None => call_agent(context, &step.id, role, question),
            }
        },
    )?;
    add_usage(context, &step.id, asked.used);
    Ok(asked)
}

fn build_question(
    context: &mut TaskContext<'_>,
    step: &Step,
    role: &Role,
    repair: Option<(&str, &str)>,
) -> Result<Question, PipelineError> {
    context.task.setting.tree.check_worktree()?;
    let tip = context.task.setting.tree.tip()?.ok_or_else(|| context.missing_branch_error())?;
    let document = document_path(&context.task, step);
    let mut prompt = build_prompt(context, step, role, document.as_deref())?;
    if let Some((problem, answer)) = repair {
        let mut from = answer.len().saturating_sub(MOST_QUOTED);
        while !answer.is_char_boundary(from) {
            from += 1;
        }
        prompt = format!(
            "{prompt}\n\n## You have done this already\nBut your answer cannot be used: {problem}. Your work is still there. Fix the \
             problem and answer again, with the JSON object at the end. Your answer was:\n\n{}\n",
            &answer[from..]
        );
    }
    // A role that may commit may write its document like every other file of the worktree, so the sandbox needs no
    // permission for this one file.
    let document = document.filter(|_| role.work == Work::Read);
    Ok(Question { prompt, tip, document, writes: Vec::new() })
}

fn build_prompt(
    context: &mut TaskContext<'_>,
    step: &Step,
    role: &Role,
    document: Option<&str>,
) -> Result<String, PipelineError> {
    let template = Template::read(&step.prompt).map_err(|wrong| {
        PipelineError::Strange(format!("the prompt of the step {} is invalid: {}", step.id, wrong.message))
    })?;
    let names = template.names();
    let mut values = template_values(&context.task, role);
    values.extend(document.map(|place| ("document".to_string(), place.to_string())));
    values.insert("answer_format".to_string(), answer::format(&step.answer, document));
    if names.contains(&"diff") {
        values.insert("diff".to_string(), branch_diff(&context.task)?);
    }
    if names.contains(&"notes") {
        values.insert("notes".to_string(), user_notes(context)?);
    }
    if names.contains(&"memory") {
        values.insert("memory".to_string(), relevant_lessons(&context.task)?);
    }
    Ok(template.fill(&values))
}

/// Returns the user's notes for the agents, read from the user's working tree or else from the base commit; an empty
/// text if there are none.
fn user_notes(context: &TaskContext<'_>) -> Result<String, PipelineError> {
    let Some(file) = &context.task.setting.workflow.notes else { return Ok(String::new()) };
    let path = format!("{}/{file}", context.task.setting.workflow.documents);
    let own = context.repository.toplevel.as_ref().and_then(|top| documents::read(top, &path).ok().flatten());
    if let Some(text) = own {
        return Ok(text);
    }
    let committed = context.task.setting.tree.file_at(&context.task.setting.tree.base, &path)?;
    Ok(committed.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default())
}

fn branch_diff(task: &Task) -> Result<String, PipelineError> {
    let base = format!("refs/heads/{}", task.setting.workflow.base);
    let (text, is_all) = task.setting.tree.diff(&base, MOST_DIFF)?;
    let more = "\n(This is not all of it: the diff is too long. Read the rest with the command above.)\n";
    Ok(format!("{text}{}", if is_all { "" } else { more }))
}

fn relevant_lessons(task: &Task) -> Result<String, PipelineError> {
    let Some(memory) = &task.setting.workflow.memory else { return Ok(String::new()) };
    let text = committed_document(task, &memory.file)?;
    Ok(documents::select_lessons(&text, &task.request, memory.tokens))
}

/// Makes sure that the document that the agent may write, if any, is a regular file, because the sandbox can only grant
/// access to an existing file. Moves anything else, such as a link, to the task's directory. Empties a file that this
/// step has not written itself, because an agent in an earlier role could have written the document in advance.
fn create_document_file(
    context: &mut TaskContext<'_>,
    step: &Step,
    question: &Question,
    is_repair: bool,
) -> Result<(), PipelineError> {
    let (Some(document), Some(place)) = (&step.document, &question.document) else { return Ok(()) };
    let worktree = context.task.setting.tree.worktree.clone();
    let aside = context.directory().join("aside");
    let failed = |source| PipelineError::Io { path: worktree.join(place), source };
    documents::clear(&worktree, place, &aside).map_err(failed)?;
    let is_own = is_repair || context.task.state.documents.get(&document.name) == Some(place);
    let there = documents::read(&worktree, place).map_err(failed)?;
    if there.is_none() || !is_own {
        documents::write(&worktree, place, "").map_err(failed)?;
    }
    Ok(())
}
