//! Works on a task of the type `research`: the worker divides the query into sub-queries, and answers each by a
//! read-only run of an agent.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::model::{TaskFailure, TaskKind};
use super::queue::Claim;
use super::run_task::{is_temporary, object, task_kind};
use crate::agent_exec::{Cancel, Executor};
use crate::research::{
    AgentContext, AgentError, DeepResearchAgent, ExecutorBackend, FinalResult, LlmClient, LlmConfig,
    ResearchConfig, default_model, run_blocking,
};

/// How long the worker waits for the agents' runs after research has failed or was cancelled. Must be shorter than
/// the lease of the task.
const RUNS_GRACE: Duration = Duration::from_secs(10);

/// Answers the query of a task. The runs store their sessions in the directory `sessions`, which this function
/// removes at the end.
pub(super) fn research(
    executor: &Executor,
    sessions: &Path,
    claim: &Claim,
    cancel: &Cancel,
) -> Result<Map<String, Value>, TaskFailure> {
    let executor = Executor { sessions: sessions.to_path_buf(), ..executor.clone() };
    let backend = ExecutorBackend::new(executor, &claim.options.directory)
        .with_agent(claim.options.agent.clone())
        .with_policy(claim.options.policy.clone());
    let client = LlmClient::new(
        Arc::new(backend.clone()),
        llm_config(&claim.parameters, claim.options.agent.as_deref()),
    );
    let agent = DeepResearchAgent::new(research_config(&claim.parameters));
    let result = follow(&agent, client, claim, cancel);
    // Dropping the stream has cancelled the remaining runs. They must not outlive the task, so wait for them.
    if !backend.wait_for_runs(RUNS_GRACE) {
        tracing::warn!(task = claim.task_id, "a run of the research has not ended yet");
    }
    let _ = std::fs::remove_dir_all(sessions);
    let FinalResult { answer, metadata, sources, unconfirmed, .. } = result?;
    Ok(object(json!({
        "answer": answer,
        "sources": sources,
        "unconfirmed": unconfirmed,
        "metadata": metadata,
    })))
}

/// Runs the agent until its final result, a cancellation, or the time limit of the task.
fn follow(
    agent: &DeepResearchAgent,
    client: LlmClient,
    claim: &Claim,
    cancel: &Cancel,
) -> Result<FinalResult, TaskFailure> {
    let query = claim.parameters.get("query").and_then(Value::as_str).unwrap_or_default();
    let began = Instant::now();
    let check = || {
        if cancel.is_set() {
            return Err(AgentError::Cancelled.into());
        }
        let Some(limit) = claim.options.timeout.filter(|limit| began.elapsed() >= *limit) else {
            return Ok(());
        };
        let message = format!("the research took longer than {} s", limit.as_secs());
        Err(TaskFailure::permanent(TaskKind::TimedOut, message))
    };
    run_blocking(agent, query, AgentContext::new(Arc::new(client)), check, |_| {})
}

impl From<AgentError> for TaskFailure {
    fn from(error: AgentError) -> Self {
        let kind = error.kind();
        Self {
            kind: task_kind(Some(kind)),
            message: error.to_string(),
            detail: json!({ "error_kind": kind }),
            is_temporary: is_temporary(Some(kind)),
        }
    }
}

fn number(parameters: &Map<String, Value>, name: &str) -> Option<u64> {
    parameters.get(name).and_then(Value::as_u64)
}

fn research_config(parameters: &Map<String, Value>) -> ResearchConfig {
    let defaults = ResearchConfig::default();
    let max_queries = number(parameters, "max_queries").and_then(|number| usize::try_from(number).ok());
    ResearchConfig { max_queries: max_queries.unwrap_or(defaults.max_queries), ..defaults }
}

fn llm_config(parameters: &Map<String, Value>, agent: Option<&str>) -> LlmConfig {
    let defaults = LlmConfig::default();
    let model = parameters.get("model").and_then(Value::as_str).map(str::to_string);
    LlmConfig {
        model: model.unwrap_or_else(|| default_model(agent).to_string()),
        timeout: number(parameters, "timeout").map_or(defaults.timeout, Duration::from_secs),
        ..defaults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_become_settings() {
        let parameters = object(json!({"query": "q", "max_queries": 7, "timeout": 45, "model": "m"}));
        let llm = llm_config(&parameters, None);
        assert_eq!((llm.model.as_str(), llm.timeout), ("m", Duration::from_secs(45)));
        assert_eq!(research_config(&parameters).max_queries, 7);
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
