//! `guard control`: sends a command to work in progress, and prints the acknowledgement.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::batch::QueuePlace;
use super::control_args::Control;
use super::exit_code::Exit;
use super::research::RESEARCH;
use super::{Failure, task_admin};
use crate::batch::command_batch;
use crate::control::{AckStatus, AgentAck, AgentCommand, ControlChannel, ControlError, check_command};
use crate::pipeline::task::journal::TaskRow;
use crate::pipeline::{Status, TaskStore, control_directory};
use crate::research::Journal;
use crate::terminal_text;

pub(super) fn run(args: &Control, out: &mut dyn Write) -> Result<Exit, Failure> {
    let command = command(args)?;
    let ack = match args.id.starts_with("batch_") {
        true => to_batch(args, &command)?,
        false => to_stored_work(args, &command)?,
    };
    print(args, ack, out)
}

fn command(args: &Control) -> Result<AgentCommand, Failure> {
    let data = match &args.data {
        Some(text) => serde_json::from_str(text).map_err(|error| {
            Failure::usage(
                format!("--data is not JSON: {error}"),
                "give JSON, for example --data '{\"priority\": 5}'",
            )
        })?,
        None => Value::Null,
    };
    let command_id = args.command_id.clone().unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    let command = AgentCommand { command_type: args.command.clone(), command_id, data };
    check_command(&command)?;
    Ok(command)
}

fn to_batch(args: &Control, command: &AgentCommand) -> Result<Option<AgentAck>, Failure> {
    let place = QueuePlace::find(&args.store)?;
    let ack = command_batch(&mut *place.open()?, &args.id, command)?;
    let ack = ack.ok_or_else(|| {
        Failure::usage(format!("there is no batch {}", args.id), "`guard batch list` shows the batches")
    })?;
    // A local worker ends when every batch is paused.
    if command.command_type == "resume" && ack.status == AckStatus::Completed {
        place.start_worker()?;
    }
    Ok(Some(ack))
}

/// Sends the command to the task, the research or the conversation with this id.
fn to_stored_work(args: &Control, command: &AgentCommand) -> Result<Option<AgentAck>, Failure> {
    let task_store = super::task::task_store()?;
    let journal = task_store.journal().map_err(super::task::failed)?;
    match journal.task(&args.id).map_err(super::task::failed)? {
        Some(task) => to_task(args, &task_store, &task, command),
        None => {
            let directory = task_store.runs.with_file_name(RESEARCH);
            match Journal::control_directory(&directory, &args.id) {
                Some(control) => to_research(args, &directory, control, command),
                None => to_conversation(args, command),
            }
        }
    }
}

fn to_research(
    args: &Control,
    directory: &Path,
    control: PathBuf,
    command: &AgentCommand,
) -> Result<Option<AgentAck>, Failure> {
    if !Journal::is_running(directory, &args.id) {
        let reason = format!("it is not running; `guard research --resume {}` continues it", args.id);
        let data = json!({ "reason": reason });
        let command_id = command.command_id.clone();
        return Ok(Some(AgentAck { command_id, status: AckStatus::Rejected, data }));
    }
    send(&ControlChannel::new(control), args, command)
}

fn to_conversation(args: &Control, command: &AgentCommand) -> Result<Option<AgentAck>, Failure> {
    let conversations = super::chat::conversations()?;
    let unknown = |_| {
        Failure::usage(
            format!("there is no batch, task, research or conversation {}", args.id),
            "`guard batch list`, `guard task list` and `guard history list` show their ids; `guard research` prints its id when it starts",
        )
    };
    let (id, directory) = conversations.control_directory(&args.id).map_err(unknown)?;
    let channel = ControlChannel::new(directory);
    channel.send(command)?;
    // If nobody has the conversation open, this process answers for it.
    if let Ok(mut conversation) = conversations.open(&id) {
        conversation.obey_commands().map_err(|error| Failure::usage(error.to_string(), error.hint()))?;
    }
    Ok(channel.wait_for(&command.command_id, Duration::from_secs(args.wait))?)
}

fn to_task(
    args: &Control,
    task_store: &TaskStore,
    task: &TaskRow,
    command: &AgentCommand,
) -> Result<Option<AgentAck>, Failure> {
    if task_store.worker(&task.id).is_none() {
        return to_stopped_task(task_store, &task.id, &task.status, command).map(Some);
    }
    send(&ControlChannel::new(control_directory(&task_store.task_directory(&task.id))), args, command)
}

/// Nobody works on the task, so this process answers. Only `cancel` makes sense then.
fn to_stopped_task(
    task_store: &TaskStore,
    id: &str,
    status: &str,
    command: &AgentCommand,
) -> Result<AgentAck, Failure> {
    let ack = |status, data| AgentAck { command_id: command.command_id.clone(), status, data };
    if command.command_type != "cancel" {
        let reason = format!("the task is not running; `guard task resume {id}` continues it");
        return Ok(ack(AckStatus::Rejected, json!({ "reason": reason })));
    }
    if Status::parse(status) == Some(Status::Cancelled) {
        return Ok(ack(AckStatus::Completed, json!({ "repeated": true })));
    }
    task_admin::cancel(task_store, id, &mut std::io::sink())?;
    Ok(ack(AckStatus::Completed, json!({ "repeated": false })))
}

fn send(
    channel: &ControlChannel,
    args: &Control,
    command: &AgentCommand,
) -> Result<Option<AgentAck>, Failure> {
    channel.send(command)?;
    Ok(channel.wait_for(&command.command_id, Duration::from_secs(args.wait))?)
}

fn print(args: &Control, ack: Option<AgentAck>, out: &mut dyn Write) -> Result<Exit, Failure> {
    let Some(ack) = ack else {
        return Err(Failure::usage(
            format!("{} did not answer within {} seconds", args.id, args.wait),
            "the command is stored, and takes effect as soon as the process reads it; wait longer with --wait SECONDS",
        ));
    };
    if args.json {
        writeln!(out, "{}", json!(ack))?;
    } else {
        let reason = ack.data["reason"].as_str().map(|text| format!(": {}", terminal_text::replace(text)));
        writeln!(out, "{}{}", ack.status, reason.unwrap_or_default())?;
    }
    Ok(if ack.status == AckStatus::Rejected { Exit::Problem } else { Exit::Success })
}

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        let hint = match &error {
            ControlError::BadId(_) => "leave --command-id out, and guard chooses one",
            ControlError::TooLong => "shorten --data",
            _ => "`guard doctor` checks the state directory and its disk",
        };
        Self::usage(error.to_string(), hint)
    }
}
