//! Carries out commands to a batch, which `guard control`, HTTP clients and MCP clients send.

use serde_json::{Value, json};

use super::queue::{BatchChange, Queue, QueueError};
use crate::agents::control::{AckStatus, AgentAck, AgentCommand};

/// Carries out a command to a batch, unless a command with the same id was carried out before; the acknowledgement
/// then says `repeated`. Rejects unknown commands and invalid data. Returns `None` if the batch does not exist.
pub fn command_batch(
    queue: &mut dyn Queue,
    batch: &str,
    command: &AgentCommand,
) -> Result<Option<AgentAck>, QueueError> {
    let ack = |status, data| AgentAck { command_id: command.command_id.clone(), status, data };
    let change = match parse_change(command) {
        Ok(change) => change,
        Err(reason) => {
            let exists = queue.batch(batch)?.is_some();
            return Ok(exists.then(|| ack(AckStatus::Rejected, json!({ "reason": reason }))));
        }
    };
    let changed = queue.change(batch, &command.command_id, change)?;
    Ok(changed.map(|changed| {
        let mut data = json!({ "repeated": changed.is_repeated });
        if change == BatchChange::Cancel {
            data["cancelled"] = json!(changed.cancelled);
        }
        ack(AckStatus::Completed, data)
    }))
}

fn parse_change(command: &AgentCommand) -> Result<BatchChange, String> {
    match command.command_type.as_str() {
        "cancel" => Ok(BatchChange::Cancel),
        "pause" => Ok(BatchChange::Pause),
        "resume" => Ok(BatchChange::Resume),
        "adjust_config" => {
            let priority = command.data.get("priority").and_then(Value::as_i64);
            let priority = priority.and_then(|priority| i32::try_from(priority).ok());
            priority.map(BatchChange::Priority).ok_or_else(|| {
                "the data of `adjust_config` must be {\"priority\": N}, the only setting of a batch that can change"
                    .to_string()
            })
        }
        other => {
            Err(format!("unknown command type `{other}`; expected cancel, pause, resume or adjust_config"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_commands_with_their_data_change_a_batch() {
        let parse = |command_type: &str, data: Value| {
            parse_change(&AgentCommand {
                command_type: command_type.to_string(),
                command_id: "1".to_string(),
                data,
            })
        };
        assert_eq!(parse("pause", Value::Null), Ok(BatchChange::Pause));
        assert_eq!(parse("adjust_config", json!({ "priority": -3 })), Ok(BatchChange::Priority(-3)));
        for data in
            [Value::Null, json!({}), json!({ "priority": "high" }), json!({ "priority": 1_i64 << 40 })]
        {
            assert!(
                parse("adjust_config", data.clone()).is_err_and(|text| text.contains("priority")),
                "{data}"
            );
        }
        assert!(parse("fly", Value::Null).is_err_and(|text| text.contains("`fly`")));
    }
}
