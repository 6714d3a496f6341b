//! What comes back.

use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::attempt::AttemptOutcome;
use super::{ExecRequest, Prepared, retry};
use crate::agent::{Conclusion, Ending};
use crate::outcome::{ErrorDetail, ErrorKind, ModelUsage, RunResult, duration};

/// A request that failed before anything ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// In a word.
    pub(super) kind: ErrorKind,
    /// In a sentence.
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// One attempt to answer a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// The attempt's run; `guard log` shows it.
    pub run_id: String,
    /// The error kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<ErrorKind>,
    /// The duration in milliseconds.
    pub duration_ms: u64,
    /// The attempt left commits or changed files. guard does not retry it then.
    #[serde(default)]
    pub left_work: bool,
    /// Its model usage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelUsage>,
}

/// Counts of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventCounts {
    /// Events reported.
    pub told: u64,
    /// Events dropped because the caller read too slowly. The transcript has them.
    pub dropped: u64,
    /// Lines of the agent's stream with an unknown event type.
    pub unknown: u64,
    /// Lines of the agent's stream that are not JSON objects.
    pub unreadable: u64,
}

impl EventCounts {
    /// Adds what was read of an attempt.
    pub(super) fn add_read(&mut self, tried: &AttemptOutcome) {
        if let Some(conclusion) = &tried.conclusion {
            self.unknown += conclusion.unknown;
            self.unreadable += conclusion.unreadable;
        }
    }
}

/// `guard exec`: the result of the last attempt, in the agent's own terms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExecResult {
    /// The run's result; `success`, `result`, `SESSION_ID`, `error`, `error_kind` and `error_detail` are the agent's.
    #[serde(flatten)]
    pub run: RunResult,
    /// All attempts in order.
    pub attempts: Vec<Attempt>,
    /// Counts of events of all attempts.
    #[serde(default)]
    pub events: EventCounts,
    /// All events of the agent, if `return_all_messages` was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_messages: Option<Vec<Value>>,
    /// Usage metrics, if `return_metrics` was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Value>,
    /// What else the caller should know: an agent version that was not tested, uncommitted changes that were left out,
    /// unknown event types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl ExecResult {
    /// A failure before anything ran.
    pub(super) fn failed(request: &ExecRequest, failure: &Failure, took: Duration) -> Self {
        let mut run =
            RunResult { tool: tool(request), policy: request.policy().to_string(), ..RunResult::default() };
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

    /// The result of what could not even be understood as a request.
    pub fn refused(kind: ErrorKind, message: &str) -> Self {
        let request = ExecRequest::new("", "/");
        let mut result = Self::failed(&request, &Failure::new(kind, message), Duration::ZERO);
        result.run.tool = "guard".to_string();
        result
    }

    pub(super) fn of(
        request: &ExecRequest,
        prepared: &Prepared,
        tried: AttemptOutcome,
        attempts: Vec<Attempt>,
        events: EventCounts,
        took: Duration,
    ) -> Self {
        let AttemptOutcome { result: mut run, conclusion, messages, stderr, notes: of_run } = tried;
        let mut notes = prepared.notes.clone();
        notes.extend(of_run);
        set_time(&mut run, took);
        run.tool = prepared.adapter.as_ref().map_or_else(|| tool(request), |adapter| adapter.name.clone());
        // Always guard's own: what the agent calls it is the agent's matter.
        if let Some(session) = &prepared.session {
            run.session_id.clone_from(&session.id);
        }
        let mut metrics = None;
        if let Some(conclusion) = conclusion {
            apply_conclusion(&mut run, &conclusion, &stderr);
            notes.extend(ignored_events(&conclusion.unknown_kinds));
            metrics = request.return_metrics.then(|| {
                json!({ "agent": conclusion.usage, "usage": run.usage, "unknown_events": conclusion.unknown, "unreadable_lines": conclusion.unreadable })
            });
        }
        // Whatever the kind of failure: the limits that were in force, and the retries that were made.
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

/// That events were ignored because nobody knows their kinds here: said once, whatever their number.
pub(super) fn ignored_events(kinds: &[(String, u64)]) -> Option<String> {
    let shown: Vec<String> = kinds.iter().map(|(kind, count)| format!("`{kind}` ({count})")).collect();
    (!shown.is_empty()).then(|| {
        format!(
            "the agent's stream has events of kinds that guard does not know, and ignores: {}",
            shown.join(", ")
        )
    })
}

/// Puts what an agent's output says into the result of its run: the answer, and what went wrong in the agent's own terms.
pub fn apply_conclusion(run: &mut RunResult, conclusion: &Conclusion, stderr: &str) {
    // Its code was 0, and it says that it succeeded.
    run.success &= conclusion.success;
    run.result.clone_from(&conclusion.answer);
    // What cut the run says more than how the agent took it.
    let Some((kind, words)) = conclusion.error.as_ref().filter(|_| !was_cut(run)) else { return };
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
    // The summary is short; the details are in the details.
    run.error = Some(words.chars().take(500).collect());
    run.error_kind = Some(*kind);
}

/// How a run's program ended, as its agent's output is to be read.
pub fn ending(run: &RunResult) -> Ending {
    match (run.exit_code, run.signal) {
        _ if was_cut(run) => Ending::Cut,
        (_, Some(signal)) => Ending::Signal(signal),
        (Some(code), None) => Ending::Code(code),
        (None, None) => Ending::Cut,
    }
}

/// Whether guard ended the run, or it never was one.
pub(super) fn was_cut(run: &RunResult) -> bool {
    run.error_kind.is_some_and(|kind| kind != ErrorKind::UpstreamError) || run.exit_code.is_none()
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
    // The summary is short; the details are in the details.
    run.error = Some(words.chars().take(500).collect());
    run.error_kind = Some(kind);
}

/// The last twenty lines of a text.
fn last_lines(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].iter().map(|line| (*line).to_string()).collect()
}
