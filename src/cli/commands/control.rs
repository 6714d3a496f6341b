//! `guard control`: sends a command to work in progress, and prints the acknowledgement.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::agents::control::{AckStatus, AgentAck, AgentCommand, ControlError};
use crate::cli::Failure;
use crate::cli::args::control::Control;
use crate::cli::commands::batch::QueuePlace;
use crate::cli::commands::research::RESEARCH;
use crate::cli::output::exit_code::Exit;
use crate::text::terminal_text;
use crate::work::commands::{WorkError, WorkStores};

pub(in crate::cli) fn run(args: &Control, out: &mut dyn Write) -> Result<Exit, Failure> {
    let command = command(args)?;
    let stores = work_stores(Arc::new(QueuePlace::find(&args.store)?))?;
    let work = stores.find(&args.id)?.ok_or_else(|| unknown(&args.id))?;
    let ack = stores.send(&work, &command, Duration::from_secs(args.wait))?;
    print(args, ack, out)
}

/// Returns the stores of this user's batches, tasks, research runs and conversations. `place` is the queue with the
/// batches.
pub(in crate::cli) fn work_stores(place: Arc<QueuePlace>) -> Result<WorkStores, Failure> {
    let tasks = crate::cli::commands::task_store::task_store()?;
    let of_worker = place.clone();
    Ok(WorkStores {
        open_queue: Arc::new(move || place.open()),
        start_worker: Arc::new(move || of_worker.start_worker()),
        research: tasks.runs.with_file_name(RESEARCH),
        tasks,
        conversations: crate::cli::commands::conversation_store::conversations()?,
    })
}

fn unknown(id: &str) -> Failure {
    Failure::usage(
        format!("no batch, task, research run or conversation has the id {id}"),
        "`guard batch list`, `guard task list`, `guard research --list` and `guard history list` show their ids",
    )
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
    Ok(AgentCommand { command_type: args.command.clone(), command_id, data })
}

fn print(args: &Control, ack: Option<AgentAck>, out: &mut dyn Write) -> Result<Exit, Failure> {
    let Some(ack) = ack else {
        return Err(Failure::usage(
            format!("the process that works on {} did not answer within {} s", args.id, args.wait),
            "guard stored the command; it takes effect when the process that does the work reads it; wait longer with --wait SECONDS",
        ));
    };
    if args.json {
        crate::cli::output::json::to_writer(&mut *out, &json!(ack)).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        let reason = ack.data["reason"].as_str().map(|text| format!(": {}", terminal_text::replace(text)));
        writeln!(out, "{}{}", ack.status, reason.unwrap_or_default())?;
    }
    Ok(if ack.status == AckStatus::Rejected { Exit::Problem } else { Exit::Success })
}

impl From<WorkError> for Failure {
    fn from(error: WorkError) -> Self {
        match error {
            WorkError::Queue(error) => error.into(),
            WorkError::Task(error) => crate::cli::commands::task_store::failed(error),
            WorkError::Conversation(error) => Self::usage(error.to_string(), error.hint()),
            WorkError::Control(error) => error.into(),
            other => Self::usage(other.to_string(), "`guard doctor` checks the state directory and its disk"),
        }
    }
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
