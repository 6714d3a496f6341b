//! What all stores have in common: the stored form and the digest of a task, and the failures with which the queue
//! itself ends tasks.

use std::time::Duration;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::QueueError;
use crate::work::batch::model::{BatchOptions, NewTask, TaskFailure, TaskKind};

pub(super) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 4)
}

/// Returns a digest of the types, ids, parameters and options of tasks. If an earlier submission with the same
/// idempotency key has the same digest, the queue treats the new submission as a repetition.
pub(super) fn digest<'t>(tasks: impl Iterator<Item = &'t NewTask>) -> String {
    let mut hash = Sha256::new();
    for task in tasks {
        let parameters = Value::Object(task.parameters.clone());
        let options = serde_json::to_string(&task.options).unwrap_or_default();
        hash.update(format!("{:?} {:?} {parameters} {options} ", task.task_type, task.task_id));
    }
    crate::text::hex::encode(hash.finalize())
}

/// Returns the parameters and the options of a task as JSON texts. PostgreSQL can store these even if a value contains
/// U+0000, because JSON escapes it.
pub(super) fn payload(task: &NewTask) -> Result<(String, String), QueueError> {
    let unstorable = |error: serde_json::Error| QueueError::Unstorable {
        task: task.task_id.clone(),
        reason: error.to_string(),
    };
    let parameters = serde_json::to_string(&task.parameters).map_err(unstorable)?;
    // Fails for a directory whose path is not UTF-8.
    let options = serde_json::to_string(&task.options).map_err(unstorable)?;
    Ok((parameters, options))
}

/// Parses the texts that [`payload`] returned. The error is the failure with which the queue ends the task.
pub(super) fn parse_payload(
    parameters: &str,
    options: &str,
) -> Result<(Map<String, Value>, BatchOptions), TaskFailure> {
    let failure = |error: serde_json::Error| {
        let message = format!("this version of guard cannot read the task from the queue: {error}");
        TaskFailure::permanent(TaskKind::Internal, message)
    };
    Ok((serde_json::from_str(parameters).map_err(failure)?, serde_json::from_str(options).map_err(failure)?))
}

pub(super) fn cancelled() -> TaskFailure {
    TaskFailure::permanent(TaskKind::Cancelled, "the task was cancelled")
}

pub(super) fn dependency_failed() -> TaskFailure {
    TaskFailure::permanent(TaskKind::DependencyFailed, "a task on which this task depends failed")
}

pub(super) fn worker_lost(takeovers: i64) -> TaskFailure {
    let times = takeovers + 1;
    let message = format!("the worker of the task died {times} times; the task itself may be the cause");
    TaskFailure::permanent(TaskKind::WorkerLost, message)
}

pub(super) fn expired() -> TaskFailure {
    let message = "the task expired: its `expires_after` passed while no worker was running the task";
    TaskFailure::permanent(TaskKind::Expired, message)
}
