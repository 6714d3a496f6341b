//! Calls the agent of a role with a question, and returns its reply.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::agents::exec::{ExecRequest, ExecResult};
use crate::run::outcome::ErrorKind;
use crate::run::transcript::EventType;
use crate::work::pipeline::context::Task;
use crate::work::pipeline::context::TaskContext;
use crate::work::pipeline::error::PipelineError;
use crate::work::pipeline::steps::project_tests::test_command;
use crate::work::pipeline::task::budget::remaining_budget;
use crate::work::pipeline::task::journal_records::AgentReply;
use crate::work::pipeline::task::state::{TaskEvent, Used};
use crate::work::pipeline::workflow::model::{Agent, Role, Step, Work};

/// The inputs of one agent call, recorded in the journal before the call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) prompt: String,
    /// The commit that the task's branch pointed to before the call.
    pub(crate) tip: String,
    /// The document that an agent of a read-only role may write; `None` if its step has no document or its role may
    /// commit.
    pub(crate) document: Option<String>,
    /// Further files and directories that the agent may write.
    #[serde(default)]
    pub(crate) writes: Vec<String>,
}

/// Returns the path of the document that the step writes in its current execution; `None` if it writes none.
pub(crate) fn document_path(task: &Task, step: &Step) -> Option<String> {
    let document = step.document.as_ref()?;
    let n = task.state.rounds.get(&step.id).copied().unwrap_or(1);
    Some(task.setting.workflow.document_path(&document.path, &task.setting.feat, n))
}

/// Returns the values, by name, that templates of prompts and messages can always use.
pub(crate) fn template_values(task: &Task, role: &Role) -> BTreeMap<String, String> {
    let setting = &task.setting;
    let mut values = task.state.documents.clone();
    let tests = test_command(task).ok().flatten();
    let tests = tests.as_ref().map(shell_words::join).unwrap_or_default();
    for (name, value) in [
        ("request", task.request.as_str()),
        ("feat", &setting.feat),
        ("branch", setting.tree.short_branch()),
        ("base", &setting.workflow.base),
        ("role", &role.title),
        ("feedback", &task.state.feedback),
        ("conflicts", &task.state.conflicts),
        ("tests", &tests),
    ] {
        values.insert(name.to_string(), value.to_string());
    }
    values
}

/// Returns the text of a file below the documents directory, as committed on the task's branch; an empty text if there
/// is no such file.
pub(crate) fn committed_document(task: &Task, file: &str) -> Result<String, PipelineError> {
    let path = format!("{}/{file}", task.setting.workflow.documents);
    let found = task.setting.tree.file_at(&task.setting.tree.branch, &path)?;
    Ok(found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default())
}

/// Calls the agent in its role's sandbox, within the step's remaining budget.
pub(crate) fn call_agent(
    context: &mut TaskContext<'_>,
    step: &str,
    role: &Role,
    question: &Question,
) -> Result<AgentReply, PipelineError> {
    let tree = context.task.setting.tree.clone();
    let request = build_request(&context.task, step, role, question);
    let result = context.execute(&request, |event| {
        let data = json!({ "who": role.title, "event": event.event_type, "data": event.data });
        Some(TaskEvent::new(EventType::TaskAgent, event.message, data))
    })?;
    let after = tree.tip()?.unwrap_or_default();
    let mut asked = reply_from_result(&result, question.tip.clone(), after);
    if asked.error.as_ref().is_some_and(|(kind, _)| *kind == ErrorKind::Timeout) {
        // Count the full time limit for a call that timed out, even if less time was measured.
        asked.used.agent_ms = asked.used.agent_ms.max(request.max_duration.saturating_mul(1000));
    }
    Ok(asked)
}

/// Returns the settings of the agent in this role: those of the command line, else of the role, else of the workflow.
/// `max_tokens` does not come from the command line, whose option `--max-tokens` limits the task or a step instead.
pub(crate) fn agent_settings(task: &Task, role: &Role) -> Agent {
    let (agent, own) = (task.setting.workflow.agent_of(role), &task.setting.agent);
    Agent {
        name: if own.name.is_empty() { agent.name } else { own.name.clone() },
        command: own.command.clone().or(agent.command),
        model: own.model.clone().or(agent.model),
        timeout: own.timeout.or(agent.timeout),
        max_duration: own.max_duration.or(agent.max_duration),
        retries: own.retries.or(agent.retries),
        max_tokens: agent.max_tokens,
    }
}

fn build_request(task: &Task, step: &str, role: &Role, question: &Question) -> ExecRequest {
    let setting = &task.setting;
    let agent = agent_settings(task, role);
    let mut request = ExecRequest::new(question.prompt.clone(), setting.tree.worktree.clone());
    request.agent = Some(agent.name);
    request.command = agent.command.into_iter().collect();
    request.model = agent.model;
    request.policy = Some(role.policy.clone());
    request.timeout = agent.timeout.unwrap_or(request.timeout);
    request.max_duration = agent.max_duration.unwrap_or(request.max_duration);
    request.max_retries = agent.retries.unwrap_or(request.max_retries);
    if let Some(minutes) = remaining_budget(task, step, "minutes") {
        let seconds = (minutes * 60.0).ceil().max(1.0) as u64;
        if seconds < request.max_duration {
            // The call may use all the time that is left, so no time would be left for a retry.
            request.max_duration = seconds;
            request.max_retries = 0;
        }
    }
    let left = remaining_budget(task, step, "tokens").map(|left| (left as u64).max(1));
    request.max_tokens = [left, agent.max_tokens].into_iter().flatten().min();
    match role.work {
        Work::Read => request.in_place = true,
        Work::Commit => request.here = true,
    }
    let writes = question.document.iter().chain(&question.writes);
    request.write = writes.map(|path| setting.tree.worktree.join(path)).collect();
    request
}

fn reply_from_result(result: &ExecResult, before: String, after: String) -> AgentReply {
    let run = &result.run;
    // Include the usage of failed attempts.
    let models = || result.attempts.iter().filter_map(|attempt| attempt.model.as_ref());
    let error = run.error_kind.map(|kind| (kind, run.error.clone().unwrap_or_default()));
    AgentReply {
        answer: run.result.clone(),
        run_id: run.run_id.clone(),
        error: error.filter(|_| !run.success),
        used: Used {
            tokens: models().map(|model| model.input_tokens.saturating_add(model.output_tokens)).sum(),
            cost: models().map(|model| model.cost).sum(),
            agent_ms: run.duration_ms,
            calls: 1,
        },
        before,
        after,
    }
}
