//! Works on a task of the type `research`: divides the query into sub-queries, and answers each by a read-only run of
//! an agent.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::model::{TaskFailure, TaskKind, object};
use super::queue::{Claim, Lease};
use crate::agents::exec::{Cancel, Executor};
use crate::work::research::{
    AgentContext, AgentError, DeepResearchAgent, ExecutorBackend, FinalResult, Journal, LlmClient, LlmConfig,
    RequestLimits, ResearchConfig, Started, default_model, run_blocking,
};

/// How long a task whose research has ended waits for runs of agents that have not ended. Must be shorter than
/// [`STOP_GRACE`](super::worker::STOP_GRACE), so that a stopping worker can return the task to the queue.
const RUNS_GRACE: Duration = Duration::from_secs(10);

/// Answers the query of a task. The journal of the research is below `queue`, the directory of the queue. If the worker
/// is stopped or killed, or the attempt fails for a reason that may be temporary, the next attempt continues this
/// journal.
pub(super) fn research(
    executor: &Executor,
    queue: &Path,
    claim: &Claim,
    cancel: &Cancel,
) -> Result<Map<String, Value>, TaskFailure> {
    let name = name_of(&claim.lease);
    // Nothing uses the sessions of sub-queries after an attempt, so they are stored apart from those of other runs. An
    // attempt whose worker was killed leaves its sessions behind, so delete them first.
    let sessions = queue.join(format!("research-{name}"));
    let _ = std::fs::remove_dir_all(&sessions);
    let executor = Executor { sessions: sessions.clone(), ..executor.clone() };
    let backend = ExecutorBackend::new(executor, &claim.options.directory)
        .with_agent(claim.options.agent.clone())
        .with_policy(claim.options.policy.clone());
    let client = LlmClient::new(
        Arc::new(backend.clone()),
        llm_config(&claim.parameters, claim.options.agent.as_deref()),
    );
    let mut agent = DeepResearchAgent::new(research_config(&claim.parameters));
    let journal = open_journal(&queue.join("research"), &name, claim);
    if let Some(journal) = &journal {
        agent = agent.with_journal(journal.clone());
    }
    let result = follow(&agent, client, claim, cancel);
    // A worker that is stopped cancels its tasks and gives them back to the queue. The next attempt then continues with
    // the journal, so keep it.
    let may_continue = |failure: &TaskFailure| failure.is_temporary || failure.kind == TaskKind::Cancelled;
    if let Some(journal) = journal.filter(|_| !result.as_ref().is_err_and(may_continue)) {
        let _ = std::fs::remove_dir_all(journal.directory());
    }
    // `follow` has cancelled the remaining runs. They must not outlive the task, so wait for them.
    if !backend.wait_for_runs(RUNS_GRACE) {
        tracing::warn!(
            task = claim.task_id,
            "the research has ended, but an agent's run has not; guard no longer waits for the run"
        );
    }
    let _ = std::fs::remove_dir_all(&sessions);
    let FinalResult { answer, metadata, sources, unconfirmed, .. } = result?;
    Ok(object(json!({
        "answer": answer,
        "sources": sources,
        "unconfirmed": unconfirmed,
        "metadata": metadata,
    })))
}

/// Opens the journal of an earlier attempt at the task, or creates one. Returns `None` if that is not possible, for
/// example because a worker whose lease has expired still uses it; the research then works without a journal.
fn open_journal(journals: &Path, name: &str, claim: &Claim) -> Option<Arc<Journal>> {
    let started = Started {
        query: query(claim).to_string(),
        config: research_config(&claim.parameters),
        model: llm_config(&claim.parameters, claim.options.agent.as_deref()).model,
        agent: claim.options.agent.clone(),
        directory: Some(claim.options.directory.clone()),
        policy: claim.options.policy.clone(),
        allow_hosts: Vec::new(),
        limits: RequestLimits::default(),
    };
    Journal::continue_or_create(journals, name, started)
        .inspect_err(|error| tracing::warn!(task = claim.task_id, %error, "guard cannot use a journal for the research, so a later attempt starts from the beginning"))
        .map(Arc::new)
        .ok()
}

/// Returns the name of the task's journal and of its session directory, which is the same for every attempt.
fn name_of(lease: &Lease) -> String {
    let batch: String = lease.batch.chars().filter(char::is_ascii_hexdigit).collect();
    format!("{batch}-{}", lease.position)
}

fn query(claim: &Claim) -> &str {
    claim.parameters.get("query").and_then(Value::as_str).unwrap_or_default()
}

/// Runs the agent until its final result, a cancellation, or the time limit of the task.
fn follow(
    agent: &DeepResearchAgent,
    client: LlmClient,
    claim: &Claim,
    cancel: &Cancel,
) -> Result<FinalResult, TaskFailure> {
    let began = Instant::now();
    let check = || {
        if cancel.is_set() {
            return Err(AgentError::Cancelled.into());
        }
        let Some(limit) = claim.options.timeout.filter(|limit| began.elapsed() >= *limit) else {
            return Ok(());
        };
        let message = format!("the research took longer than {} s", limit.as_secs_f64());
        Err(TaskFailure::permanent(TaskKind::TimedOut, message))
    };
    run_blocking(agent, query(claim), AgentContext::new(Arc::new(client)), check, |_| {})
}

impl From<AgentError> for TaskFailure {
    fn from(error: AgentError) -> Self {
        let kind = error.kind();
        Self::of_run(Some(kind), error.to_string(), json!({ "error_kind": kind }))
    }
}

fn number(parameters: &Map<String, Value>, name: &str) -> Option<u64> {
    parameters.get(name).and_then(Value::as_u64)
}

fn research_config(parameters: &Map<String, Value>) -> ResearchConfig {
    let defaults = ResearchConfig::default();
    let count = |name| number(parameters, name).and_then(|number| usize::try_from(number).ok());
    ResearchConfig {
        max_queries: count("max_queries").unwrap_or(defaults.max_queries),
        depth: count("depth").unwrap_or(defaults.depth),
        ..defaults
    }
}

fn llm_config(parameters: &Map<String, Value>, agent: Option<&str>) -> LlmConfig {
    let defaults = LlmConfig::default();
    let model = parameters.get("model").and_then(Value::as_str).map(str::to_string);
    LlmConfig {
        model: model.unwrap_or_else(|| default_model(agent).to_string()),
        timeout: number(parameters, "timeout").map_or(defaults.timeout, Duration::from_secs),
        max_tokens: number(parameters, "max_tokens"),
        max_cost: parameters.get("max_cost").and_then(Value::as_f64),
        ..defaults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_become_settings() {
        let parameters =
            object(json!({"query": "q", "max_queries": 7, "depth": 2, "timeout": 45, "model": "m",
            "max_tokens": 9000, "max_cost": 0.5}));
        let llm = llm_config(&parameters, None);
        assert_eq!((llm.model.as_str(), llm.timeout), ("m", Duration::from_secs(45)));
        assert_eq!((llm.max_tokens, llm.max_cost), (Some(9000), Some(0.5)));
        let config = research_config(&parameters);
        assert_eq!((config.max_queries, config.depth), (7, 2));
        let none = object(json!({"query": "q"}));
        assert_eq!(llm_config(&none, Some("gemini")), LlmConfig::default());
        assert_eq!(llm_config(&none, Some("codex")).model, "");
        assert_eq!(research_config(&none), ResearchConfig::default());
    }

    #[test]
    fn only_failures_of_the_api_are_temporary() {
        let plan = TaskFailure::from(AgentError::Decomposition { problem: "no list".to_string() });
        assert_eq!((plan.kind, plan.is_temporary), (TaskKind::RunFailed, true));
        let cancelled = TaskFailure::from(AgentError::Cancelled);
        assert_eq!((cancelled.kind, cancelled.is_temporary), (TaskKind::Cancelled, false));
        assert_eq!(cancelled.detail["error_kind"], "cancelled");
    }
}
