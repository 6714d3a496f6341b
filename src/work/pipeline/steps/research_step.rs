//! Performs a step by deep research: guard decomposes the question, answers the parts with parallel read-only runs of
//! the role's agent, and writes the report with checked sources.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, json};

use super::agent_call::{Question, agent_settings};
use crate::agents::exec::{Cancel, Executor};
use crate::run::outcome::ErrorKind;
use crate::run::transcript::EventType;
use crate::work::pipeline::context::{Task, TaskContext};
use crate::work::pipeline::documents;
use crate::work::pipeline::error::PipelineError;
use crate::work::pipeline::task::budget::remaining_budget;
use crate::work::pipeline::task::journal_records::AgentReply;
use crate::work::pipeline::task::state::{TaskEvent, Used};
use crate::work::pipeline::workflow::model::{Agent, FieldType, Role, Step};
use crate::work::research::{
    AgentContext, AgentError, AgentUpdate, Budget, DeepResearchAgent, ExecutorBackend, Journal, LlmClient,
    LlmConfig, LlmError, LlmUsage, Report, RequestLimits, ResearchConfig, Started, default_model,
    run_blocking,
};

/// The directory of the journals of deep research, in the directory of a task.
const JOURNALS: &str = "research";
/// How long guard waits for the agents' runs to end after the research has failed or was cancelled.
const RUNS_GRACE: Duration = Duration::from_secs(20);

/// Researches the question, and writes the report to the step's document. If an earlier process was interrupted during
/// the research, continues it: sub-queries that have an answer do not run again.
pub(crate) fn research(
    context: &mut TaskContext<'_>,
    step: &Step,
    role: &Role,
    config: &ResearchConfig,
    question: &Question,
) -> Result<AgentReply, PipelineError> {
    let journal = Arc::new(open_journal(context, role, config, question)?);
    let used_before = journal.progress().used;
    let sessions = journal.directory().join("sessions");
    let backend = backend(context, role, &sessions);
    let client = Arc::new(LlmClient::new(
        Arc::new(backend.clone()),
        llm_config(&context.task, step, role, used_before),
    ));
    let agent = DeepResearchAgent::new(config.clone()).with_journal(journal.clone());
    let mut report = Report::new(journal.id(), &context.task.request);
    let began = Instant::now();
    let check = limits(&context.task, step, context.cancel().clone(), began);
    let result = run_blocking(&agent, &question.prompt, AgentContext::new(client.clone()), check, |update| {
        report.observe(update);
        show(context, role, update);
    });
    // If the research failed, its runs may not have ended yet. They read the worktree, so wait for them.
    if !backend.wait_for_runs(RUNS_GRACE) {
        tracing::warn!(
            step = step.id,
            "the research has ended, but an agent's run has not; guard no longer waits for the run"
        );
    }
    let _ = std::fs::remove_dir_all(&sessions);
    if context.is_cancelled() {
        return Err(PipelineError::Interrupted);
    }
    let mut reply = AgentReply {
        used: used_since(client.budget(), used_before, began),
        before: question.tip.clone(),
        after: context.task.setting.tree.tip()?.unwrap_or_default(),
        ..AgentReply::default()
    };
    if let Some(path) = changed_file(context, question)? {
        let problem = format!(
            "an agent of the research changed `{path}`, but research must not change files; give the role a read-only policy"
        );
        reply.error = Some((ErrorKind::PolicyDenied, problem));
        return Ok(reply);
    }
    match result {
        Ok(_) => reply.answer = write_report(context, step, question, &report)?,
        Err(error) => reply.error = Some((error.kind(), error.to_string())),
    }
    Ok(reply)
}

/// Deletes the research journals of the visit (execution of a step) `from_visit` and of all later ones, so that a
/// retried step begins its research again.
pub(crate) fn discard_journals(task_directory: &Path, from_visit: u32) {
    let Ok(entries) = std::fs::read_dir(task_directory.join(JOURNALS)) else { return };
    for entry in entries.flatten() {
        let visit = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        if visit.is_some_and(|visit| visit >= from_visit) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn open_journal(
    context: &TaskContext<'_>,
    role: &Role,
    config: &ResearchConfig,
    question: &Question,
) -> Result<Journal, PipelineError> {
    let agent = agent_settings(&context.task, role);
    let started = Started {
        query: question.prompt.clone(),
        config: config.clone(),
        model: model_of(&agent),
        agent: Some(agent.name),
        directory: Some(context.task.setting.tree.worktree.clone()),
        policy: Some(role.policy.clone()),
        allow_hosts: Vec::new(),
        limits: RequestLimits::default(),
    };
    let id = format!("{:06}", context.task.state.visit);
    Journal::continue_or_create(&context.directory().join(JOURNALS), &id, started)
        .map_err(|error| PipelineError::Strange(error.to_string()))
}

/// Returns a file of the worktree, other than the step's document, that the runs have changed; `None` if there is none.
/// The check is necessary because a workflow can give the role a policy that lets the runs write files.
fn changed_file(context: &TaskContext<'_>, question: &Question) -> Result<Option<String>, PipelineError> {
    let changed = context.task.setting.tree.uncommitted()?;
    Ok(changed.into_iter().find(|path| question.document.as_ref() != Some(path)))
}

fn model_of(agent: &Agent) -> String {
    agent.model.clone().unwrap_or_else(|| default_model(Some(&agent.name)).to_string())
}

fn backend(context: &TaskContext<'_>, role: &Role, sessions: &Path) -> ExecutorBackend {
    let agent = agent_settings(&context.task, role);
    let executor = Executor { sessions: sessions.to_path_buf(), ..context.executor().clone() };
    ExecutorBackend::new(executor, &context.task.setting.tree.worktree)
        .with_agent(Some(agent.name))
        .with_command(agent.command)
        .with_policy(Some(role.policy.clone()))
}

/// Returns the settings of the requests to the model. `used_before` is what the research used before an interruption.
/// The budget of the research counts that usage again, so this function adds it to the limits: only what the research
/// uses from now on may count towards the remaining budget of the task.
fn llm_config(task: &Task, step: &Step, role: &Role, used_before: LlmUsage) -> LlmConfig {
    let (agent, mut config) = (agent_settings(task, role), LlmConfig::default());
    config.model = model_of(&agent);
    config.timeout = agent.max_duration.map_or(config.timeout, Duration::from_secs);
    config.max_retries = agent.retries.unwrap_or(config.max_retries);
    let tokens = remaining_budget(task, &step.id, "tokens").map(|left| left as u64);
    config.max_tokens = tokens.map(|left| left.saturating_add(used_before.tokens));
    config.max_cost = remaining_budget(task, &step.id, "cost").map(|left| left + used_before.cost);
    config
}

/// Returns a check that fails when the task is cancelled, or when the minutes of the step are used up.
fn limits(
    task: &Task,
    step: &Step,
    cancel: Cancel,
    began: Instant,
) -> impl Fn() -> Result<(), AgentError> + use<> {
    let minutes = remaining_budget(task, &step.id, "minutes");
    let most = minutes.and_then(|minutes| Duration::try_from_secs_f64(minutes * 60.0).ok());
    move || {
        if cancel.is_set() {
            return Err(AgentError::Cancelled);
        }
        match most.filter(|most| began.elapsed() >= *most) {
            Some(after) => Err(AgentError::Llm { phase: "research", source: LlmError::Timeout { after } }),
            None => Ok(()),
        }
    }
}

fn used_since(budget: &Budget, before: LlmUsage, began: Instant) -> Used {
    let used = budget.used();
    Used {
        tokens: used.tokens.saturating_sub(before.tokens),
        cost: (used.cost - before.cost).max(0.0),
        agent_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        calls: 1,
    }
}

/// Reports an update of the research as an event of the task. Also announces it as a line of progress, except for the
/// start of a sub-query and for the final result.
fn show(context: &mut TaskContext<'_>, role: &Role, update: &AgentUpdate) {
    let data = json!({ "who": role.title, "event": update.event_type, "data": update.data });
    context.events.send(TaskEvent::new(EventType::TaskAgent, update.message.clone(), data));
    if update.as_final_result().is_none() && update.as_sub_query_started().is_none() {
        context.announce(&role.title, update.message.clone());
    }
}

/// Writes the report, and returns the answer that an agent would give: the path of the document.
fn write_report(
    context: &TaskContext<'_>,
    step: &Step,
    question: &Question,
    report: &Report,
) -> Result<String, PipelineError> {
    let worktree = &context.task.setting.tree.worktree;
    let mut answer = Map::new();
    if let Some(place) = &question.document {
        documents::write(worktree, place, &report.markdown())
            .map_err(|source| PipelineError::Io { path: worktree.join(place), source })?;
        let fields = step.answer.iter().filter(|(_, field)| field.is == FieldType::Document);
        answer.extend(fields.map(|(name, _)| (name.clone(), json!(place))));
    }
    Ok(serde_json::Value::Object(answer).to_string())
}
