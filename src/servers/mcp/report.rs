//! The tools `guard_report` and `guard_cancel`: report the state of calls and runs, and cancel calls.

use std::time::Duration;

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::calls::Calls;
use super::parameters::Parameters;
use super::result_store::State;
use crate::run::outcome::{ErrorKind, RunResult};
use crate::run::transcript::{EventType, FindError, Reader, RunState, Step, Store};

/// The maximum number of calls that `guard_report` lists.
const MOST_LISTED: usize = 20;
/// How long `guard_cancel` waits for a cancelled call to end.
const PATIENCE: Duration = Duration::from_secs(15);

/// Report the state and the result of an earlier call or run.
#[derive(Debug, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Report {
    /// A `call_id` or a `run_id`. Without an id, the newest calls are listed.
    #[serde(default)]
    #[schemars(with = "String")]
    #[allow(dead_code, reason = "only for the schema: the parameter is parsed by name")]
    id: Option<String>,
}

/// The state of a call or run.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct Reported {
    /// Whether guard found the call or run, or listed the calls. `result` states whether the call or run succeeded.
    success: bool,
    /// `running`, `done`, or `broken_off` if the guard process of the call or run ended before the call or run did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["running", "done", "broken_off"]), with = "String")]
    status: Option<&'static str>,
    /// Whether the id belongs to a `call` or a `run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["call", "run"]), with = "String")]
    kind: Option<&'static str>,
    /// The latest progress message of a running call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// How long a running call has been running, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seconds: Option<u64>,
    /// The result, if the call or run is done. For a call, it is the result of the tool `gemini`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "RunResult")]
    result: Option<Value>,
    /// The newest calls, if no id was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    calls: Option<Vec<Listed>>,
    /// The error message, if the id is invalid or unknown, or guard cannot read the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The kind of error: `invalid_input` or `internal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error_kind: Option<ErrorKind>,
}

/// A call in the list of the newest calls.
#[derive(Debug, Serialize, JsonSchema)]
struct Listed {
    /// The id of the call.
    call_id: String,
    /// `running`, `done`, or `broken_off` if the guard process of the call ended before the call did.
    status: &'static str,
    /// The directory in which the agent works.
    cd: String,
    /// When the call began (RFC 3339, UTC).
    began: String,
}

fn name(state: State) -> &'static str {
    match state {
        State::Running => "running",
        State::Done => "done",
        State::BrokenOff => "broken_off",
    }
}

impl Reported {
    fn failed(problem: String) -> Self {
        Self { error: Some(problem), error_kind: Some(ErrorKind::InvalidInput), ..Self::default() }
    }

    fn internal(problem: String) -> Self {
        Self { error: Some(problem), error_kind: Some(ErrorKind::Internal), ..Self::default() }
    }
}

/// Handles a call of the tool `guard_report`.
pub(super) fn report(calls: &Calls, given: JsonObject) -> Reported {
    let mut given = Parameters::new(given);
    let id = given.optional::<String>("id").and_then(|id| given.reject_unknown().map(|()| id));
    match id {
        Ok(Some(id)) => call(calls, &id).unwrap_or_else(|| run(&id)),
        Ok(None) => {
            let listed = |(record, state): (super::result_store::Record, State)| Listed {
                call_id: record.call_id,
                status: name(state),
                cd: record.cd.display().to_string(),
                began: record.began,
            };
            let newest = calls.results.newest(MOST_LISTED).into_iter().map(listed).collect();
            Reported { success: true, calls: Some(newest), ..Reported::default() }
        }
        Err(problem) => Reported::failed(problem),
    }
}

fn call(calls: &Calls, id: &str) -> Option<Reported> {
    let found = Reported { success: true, kind: Some("call"), ..Reported::default() };
    if let Some((message, since)) = calls.progress(id) {
        return Some(Reported {
            status: Some("running"),
            message: Some(message),
            seconds: Some(since.as_secs()),
            ..found
        });
    }
    let (record, state) = calls.results.find(id)?;
    Some(Reported { status: Some(name(state)), result: record.result, ..found })
}

/// Returns the state of a run, with the result that is stored at the end of its transcript.
fn run(id: &str) -> Reported {
    // Accept only an id or the end of one, never a path.
    let is_id =
        (8..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if !is_id {
        return Reported::failed("the parameter `id` must be a call_id or a run_id".to_string());
    }
    let store = match Store::open() {
        Ok(store) => store,
        Err(error) => return Reported::internal(error.to_string()),
    };
    let run = match store.find(Some(id)) {
        Ok(run) => run,
        Err(error @ FindError::Folder { .. }) => return Reported::internal(error.to_string()),
        Err(_) => {
            return Reported::failed(format!(
                "the parameter `id`: no call has the id {id}, and it does not match exactly one run"
            ));
        }
    };
    let found = Reported { success: true, kind: Some("run"), ..Reported::default() };
    match run.state {
        RunState::Running => return Reported { status: Some("running"), ..found },
        RunState::Finished => {}
        RunState::Unfinished | RunState::Unreadable => {
            return Reported { status: Some("broken_off"), ..found };
        }
    }
    let mut reader = match Reader::open(&run.transcript) {
        Ok(reader) => reader,
        Err(error) => return Reported::internal(error.to_string()),
    };
    loop {
        match reader.step() {
            Ok(Step::Event(event)) if event.event_type == EventType::RunFinished => {
                return Reported { status: Some("done"), result: Some(event.data), ..found };
            }
            Ok(Step::End { .. }) | Err(_) => return Reported { status: Some("broken_off"), ..found },
            Ok(_) => {}
        }
    }
}

/// Cancel a running call.
#[derive(Debug, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Cancelling {
    /// The `call_id` of the call to cancel.
    #[allow(dead_code, reason = "only for the schema: the parameter is parsed by name")]
    id: String,
}

/// The state of the call after the request to cancel it.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct Cancelled {
    /// Whether the call has ended or is about to end.
    success: bool,
    /// `ended`: guard has cancelled the call. `ending`: guard has cancelled the call, which has not ended yet. `done`:
    /// the call had already ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["ended", "ending", "done"]), with = "String")]
    status: Option<&'static str>,
    /// The error message, if the id is invalid or unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The kind of error: `invalid_input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error_kind: Option<ErrorKind>,
}

/// Handles a call of the tool `guard_cancel`: cancels a call and waits for its end.
pub(super) async fn cancel(calls: &Calls, given: JsonObject) -> Cancelled {
    let failed = |problem: String| Cancelled {
        error: Some(problem),
        error_kind: Some(ErrorKind::InvalidInput),
        ..Cancelled::default()
    };
    let mut given = Parameters::new(given);
    let id = given.required::<String>("id").and_then(|id| given.reject_unknown().map(|()| id));
    let id = match id {
        Ok(id) => id,
        Err(problem) => return failed(problem),
    };
    if calls.cancel(&id) {
        let status = if calls.wait_for_call(&id, PATIENCE).await { "ended" } else { "ending" };
        return Cancelled { success: true, status: Some(status), ..Cancelled::default() };
    }
    match calls.results.find(&id) {
        Some((_, State::Running)) => failed(format!(
            "the parameter `id`: the call {id} runs in another guard server, and only that server can cancel it"
        )),
        Some(_) => Cancelled { success: true, status: Some("done"), ..Cancelled::default() },
        None => failed("the parameter `id`: no call has this id; guard_report lists calls".to_string()),
    }
}
