//! The tool `guard_control`: sends a command to work in progress.

use std::time::Duration;

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::parameters::Parameters;
use crate::agents::control::{AckStatus, AgentCommand};
use crate::run::outcome::ErrorKind;
use crate::work::commands::WorkStores;
use crate::work::roots::Roots;

/// How long the server waits for the process that does the work, unless the client says otherwise, in seconds.
const DEFAULT_WAIT: u64 = 10;
const LONGEST_WAIT: u64 = 60;

/// Send a command to a batch, a task, a research run or a conversation.
#[derive(Debug, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "only for the schema: the parameters are parsed by name")]
pub(super) struct Control {
    /// The id of the work: the response_id of a batch, a task_id, a research_id, or the SESSION_ID of a conversation.
    id: String,
    /// What to do: `cancel`, `pause`, `resume` or `adjust_config`.
    command_type: String,
    /// An id of your choice. A command with a known id is not carried out again. Default: a new id.
    #[serde(default)]
    #[schemars(with = "String")]
    command_id: Option<String>,
    /// The settings to change, for `adjust_config`: `{"priority": N}` for a batch, `{"task": {"tokens": N}}` for a
    /// task, `{"max_tokens": N}` for a research run, `{"model": NAME}` for a conversation.
    #[serde(default)]
    #[schemars(with = "Map<String, Value>")]
    data: Option<Map<String, Value>>,
    /// Wait at most this many seconds for the acknowledgement. Default: 10.
    #[serde(default)]
    #[schemars(range(max = 60), with = "u64")]
    wait: Option<u64>,
}

/// What happened to the command.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct Controlled {
    /// Whether guard has carried out the command or is acting on it. False if guard rejected the command, or if the
    /// process that does the work has not read it in time.
    success: bool,
    /// The id of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command_id: Option<String>,
    /// `completed`, `rejected`, or `accepted` if the work is still acting on the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    status: Option<AckStatus>,
    /// Details of the acknowledgement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
    /// Why guard did not carry out the command, or that the command has not been read in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The kind of error: `invalid_input`, `busy` or `internal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error_kind: Option<ErrorKind>,
}

impl Controlled {
    fn failed(kind: ErrorKind, problem: impl Into<String>) -> Self {
        Self { error: Some(problem.into()), error_kind: Some(kind), ..Self::default() }
    }
}

/// Handles a call of the tool `guard_control`.
pub(super) fn control(stores: &WorkStores, roots: &Roots, given: JsonObject) -> Controlled {
    let (id, command, wait) = match parse(given) {
        Ok(parsed) => parsed,
        Err(problem) => return Controlled::failed(ErrorKind::InvalidInput, problem),
    };
    let internal = |problem: String| Controlled::failed(ErrorKind::Internal, problem);
    let work = match stores.find(&id) {
        Ok(work) => work.filter(|work| work.is_open_to(roots, &id)),
        Err(error) => return internal(error.to_string()),
    };
    let Some(work) = work else {
        let problem =
            format!("the parameter `id`: there is no batch, task, research run or conversation {id:?}");
        return Controlled::failed(ErrorKind::InvalidInput, problem);
    };
    match stores.send(&work, &command, wait) {
        Err(error) => internal(error.to_string()),
        Ok(None) => {
            let problem = "the process that does the work has not read the command yet; if you send it again, use the same command_id";
            Controlled {
                command_id: Some(command.command_id),
                ..Controlled::failed(ErrorKind::Busy, problem)
            }
        }
        Ok(Some(ack)) => {
            let is_rejected = ack.status == AckStatus::Rejected;
            let reason = ack.data["reason"].as_str().map(str::to_string);
            Controlled {
                success: !is_rejected,
                command_id: Some(ack.command_id),
                status: Some(ack.status),
                error: reason.filter(|_| is_rejected),
                error_kind: is_rejected.then_some(ErrorKind::InvalidInput),
                data: Some(ack.data).filter(Value::is_object),
            }
        }
    }
}

fn parse(given: JsonObject) -> Result<(String, AgentCommand, Duration), String> {
    let mut given = Parameters::new(given);
    let id: String = given.required("id")?;
    let command_type: String = given.required("command_type")?;
    let command_id: Option<String> = given.optional("command_id")?;
    let data: Option<Map<String, Value>> = given.optional("data")?;
    let wait: u64 = given.optional("wait")?.unwrap_or(DEFAULT_WAIT);
    given.reject_unknown()?;
    if wait > LONGEST_WAIT {
        return Err(format!("the parameter `wait` must be at most {LONGEST_WAIT}"));
    }
    let command_id = command_id.unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    let data = data.map_or(Value::Null, Value::Object);
    let command = AgentCommand { command_type, command_id, data };
    crate::agents::control::check_command(&command).map_err(|error| error.to_string())?;
    Ok((id, command, Duration::from_secs(wait)))
}
