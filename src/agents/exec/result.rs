//! The result of `guard exec`: the last attempt's run result, with the agent's answer or error.
//!
//! The doc comments of the public types become the descriptions in the published JSON schema.

use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::attempt_outcome::{Attempt, AttemptOutcome, was_ended_by_guard};
use super::failure::Failure;
use super::{ExecRequest, Prepared, retry};
use crate::agents::adapter::{Conclusion, Ending};
use crate::run::outcome::{ErrorDetail, ErrorKind, RunResult, duration};

/// The number of events, by what happened to them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventCounts {
    /// The number of events of the request, including those that guard dropped.
    pub told: u64,
    /// The number of events that guard dropped because the caller read too slowly. The transcript contains them.
    pub dropped: u64,
    /// The number of lines of the agent's output with an event type that guard does not know.
    pub unknown: u64,
    /// The number of lines of the agent's output that are not JSON objects.
    pub unreadable: u64,
}

impl EventCounts {
    /// Adds an attempt's numbers of output lines that guard could not interpret.
    pub(super) fn add_read(&mut self, outcome: &AttemptOutcome) {
        if let Some(conclusion) = &outcome.conclusion {
            self.unknown += conclusion.unknown;
            self.unreadable += conclusion.unreadable;
        }
    }
}

/// The result of `guard exec`: the last attempt's run result, with the agent's answer or error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExecResult {
    /// The result of the last attempt's run. `success`, `result`, `error`, `error_kind` and `error_detail` also take
    /// the agent's own output into account; `SESSION_ID` is the id with which a later request can continue the session.
    #[serde(flatten)]
    pub run: RunResult,
    /// All attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// The number of events of all attempts together, by what happened to them.
    #[serde(default)]
    pub events: EventCounts,
    /// The JSON objects that the agent printed, if the request set `return_all_messages`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_messages: Option<Vec<Value>>,
    /// Usage figures, if the request set `return_metrics`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Value>,
    /// Notes for the caller, for example that the agent's version is untested, that the agent did not see uncommitted
    /// changes, or that its output had unknown event types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl ExecResult {
    /// Returns the result of a request that failed before its first attempt.
    pub(super) fn failed(request: &ExecRequest, failure: &Failure, took: Duration) -> Self {
        let policy = request.policy().unwrap_or_default().to_string();
        let mut run = RunResult { tool: tool(request), policy, ..RunResult::default() };
        set_time(&mut run, took);
        set_error(&mut run, request, failure.kind, &failure.message, 0);
        Self {
            run,
            attempts: Vec::new(),
            events: EventCounts::default(),
            all_messages: None,
            metrics: None,
            notes: Vec::new(),
        }
    }

    /// Returns the result for a request that guard refused before it parsed or executed the request, for example
    /// because its JSON is not valid.
    pub fn refused(kind: ErrorKind, message: &str) -> Self {
        let request = ExecRequest::new("", "/");
        let mut result = Self::failed(&request, &Failure::new(kind, message), Duration::ZERO);
        result.run.tool = "guard".to_string();
        result
    }

    /// Returns the result of a request: the run result of its last attempt, with the agent's answer or error applied.
    pub(super) fn from_attempts(
        request: &ExecRequest,
        prepared: &Prepared,
        outcome: AttemptOutcome,
        attempts: Vec<Attempt>,
        events: EventCounts,
        took: Duration,
    ) -> Self {
        let AttemptOutcome { result: mut run, conclusion, messages, stderr, notes: of_run } = outcome;
        let mut notes = prepared.notes.clone();
        notes.extend(of_run);
        set_time(&mut run, took);
        run.tool = prepared.adapter.as_ref().map_or_else(|| tool(request), |adapter| adapter.name.clone());
        // The caller always sees guard's session id, even if the agent uses another id for the session.
        if let Some(session) = &prepared.session {
            run.session_id.clone_from(&session.id);
        }
        if let Some(message) = run.error_kind.and_then(|kind| time_limit_message(kind, request)) {
            if let Some(detail) = &mut run.error_detail {
                detail.message.clone_from(&message);
            }
            run.error = Some(message);
        }
        let mut metrics = None;
        if let Some(conclusion) = conclusion {
            apply_conclusion(&mut run, &conclusion, &stderr);
            notes.extend(ignored_events(&conclusion.unknown_kinds));
            metrics = request.return_metrics.then(|| {
                json!({ "agent": conclusion.usage, "usage": run.usage, "unknown_events": conclusion.unknown, "unreadable_lines": conclusion.unreadable })
            });
        }
        // Every failure reports the limits in force and the number of retries.
        if let Some(detail) = &mut run.error_detail {
            detail.retries = attempts.len().saturating_sub(1) as u32;
            detail.idle_timeout_s = Some(request.timeout);
            detail.max_duration_s = Some(request.max_duration);
            if detail.last_lines.is_empty() {
                detail.last_lines = last_lines(&stderr);
            }
        }
        let all_messages = request.return_all_messages.then_some(messages);
        Self { run, attempts, events, all_messages, metrics, notes }
    }
}

/// Returns the message about a run that guard ended at a time limit. The message of `guard run` does not fit, because
/// it says how to set no limit, and a request must have limits. Returns `None` for other kinds of errors.
fn time_limit_message(kind: ErrorKind, request: &ExecRequest) -> Option<String> {
    match kind {
        ErrorKind::IdleTimeout => Some(format!(
            "the run was idle (no output, no new program, no CPU work) for {} seconds, which is the idle limit; \
             `--timeout TIME`, or `timeout` in a request, sets another limit of at most a week",
            request.timeout
        )),
        ErrorKind::Timeout => Some(format!(
            "the run did not end within {} seconds, which is the limit for the whole run; `--max-duration TIME`, or \
             `max_duration` in a request, sets another limit of at most a week",
            request.max_duration
        )),
        _ => None,
    }
}

/// Returns a note that lists these unknown event types in the agent's output with their counts; `None` if the list is
/// empty.
pub(super) fn ignored_events(kinds: &[(String, u64)]) -> Option<String> {
    let shown: Vec<String> = kinds.iter().map(|(kind, count)| format!("`{kind}` ({count})")).collect();
    (!shown.is_empty())
        .then(|| format!("guard ignored events of unknown types in the agent's output: {}", shown.join(", ")))
}

/// Applies the conclusion from an agent's output to the result of its run: the answer, or the agent's error.
pub fn apply_conclusion(run: &mut RunResult, conclusion: &Conclusion, stderr: &str) {
    // Success needs both: exit code 0, and a report of success in the output.
    run.success &= conclusion.success;
    run.result.clone_from(&conclusion.answer);
    // If guard ended the run, its reason is more specific than the agent's error that followed.
    let Some((kind, words)) = conclusion.error.as_ref().filter(|_| !was_ended_by_guard(run)) else { return };
    run.success = false;
    let mut detail = ErrorDetail {
        message: words.clone(),
        exit_code: run.exit_code,
        last_lines: last_lines(stderr),
        ..run.error_detail.take().unwrap_or_default()
    };
    if let Some(wait) = &conclusion.wait {
        retry::set_wait(&mut detail, wait, Timestamp::now());
    }
    run.error_detail = Some(detail);
    // `error` is a short summary; `error_detail.message` has the complete text.
    run.error = Some(words.chars().take(500).collect());
    run.error_kind = Some(*kind);
}

pub fn ending(run: &RunResult) -> Ending {
    match (run.exit_code, run.signal) {
        _ if was_ended_by_guard(run) => Ending::EndedByGuard,
        (_, Some(signal)) => Ending::Signal(signal),
        (Some(code), None) => Ending::Code(code),
        (None, None) => Ending::EndedByGuard,
    }
}

fn tool(request: &ExecRequest) -> String {
    let program = request.command.first().map(|word| word.rsplit('/').next().unwrap_or(word).to_string());
    request.agent.clone().or(program).unwrap_or_else(|| "gemini".to_string())
}

fn set_time(run: &mut RunResult, took: Duration) {
    run.duration = duration(took);
    run.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
}

fn set_error(run: &mut RunResult, request: &ExecRequest, kind: ErrorKind, words: &str, retries: u32) {
    run.error_detail = Some(ErrorDetail {
        message: words.to_string(),
        exit_code: run.exit_code,
        last_lines: run.error_detail.take().map(|detail| detail.last_lines).unwrap_or_default(),
        idle_timeout_s: Some(request.timeout),
        max_duration_s: Some(request.max_duration),
        retries,
        ..ErrorDetail::default()
    });
    // `error` is a short summary; `error_detail.message` has the complete text.
    run.error = Some(words.chars().take(500).collect());
    run.error_kind = Some(kind);
}

/// Returns the last twenty lines of a text.
fn last_lines(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].iter().map(|line| (*line).to_string()).collect()
}
