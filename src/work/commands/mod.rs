//! Finds the batch, task, research run or conversation with a given id, and sends a command to it.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::agents::control::{AckStatus, AgentAck, AgentCommand, ControlChannel, ControlError};
use crate::agents::conversation::{ConversationError, Conversations};
use crate::work::batch::{OpenQueue, QueueError, command_batch};
use crate::work::pipeline::task::journal::TaskRow;
use crate::work::pipeline::{PipelineError, Status, TaskStore, control_directory};
use crate::work::research::Journal;
use crate::work::roots::Roots;

/// The prefix of the ids of batches.
const BATCH_PREFIX: &str = "batch_";

/// The stores of a user's batches, tasks, research runs and conversations, to which commands can be sent.
#[derive(Clone)]
pub struct WorkStores {
    pub open_queue: OpenQueue,
    /// Starts a batch worker in the background if none is running.
    pub start_worker: Arc<dyn Fn() -> std::io::Result<()> + Send + Sync>,
    /// The tasks of `guard task`.
    pub tasks: TaskStore,
    /// The directory of the journals of `guard research`.
    pub research: PathBuf,
    pub conversations: Conversations,
}

impl fmt::Debug for WorkStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkStores").field("research", &self.research).finish_non_exhaustive()
    }
}

/// A batch, task, research run or conversation to which a command can be sent, in progress or ended.
#[derive(Debug)]
pub enum Work {
    /// A batch, with its id.
    Batch(String),
    Task(Box<TaskRow>),
    Research {
        /// The complete id of the research run.
        id: String,
        /// The directory that the agents may read, if the user gave one.
        directory: Option<PathBuf>,
    },
    Conversation {
        /// The complete id of the conversation.
        id: String,
        /// The directory in which the agent works.
        directory: PathBuf,
    },
}

impl Work {
    /// Returns the directory of the work; for a task, that of the user's repository. `None` for a research run without
    /// a directory, and for a batch, because each of its tasks has its own directory.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::Batch(_) => None,
            Self::Task(task) => Some(Path::new(&task.repository)),
            Self::Research { directory, .. } => directory.as_deref(),
            Self::Conversation { directory, .. } => Some(directory),
        }
    }

    /// Returns true if a client of a server with these roots may control this work. `given_id` is the id by which the
    /// client asked for the work. If the work has no directory, `given_id` must be the complete id, which nobody can
    /// guess.
    pub fn is_open_to(&self, roots: &Roots, given_id: &str) -> bool {
        match (self.directory(), self) {
            (Some(directory), _) => roots.contain(directory),
            (None, Self::Batch(id) | Self::Research { id, .. }) => id == given_id,
            (None, _) => false,
        }
    }
}

/// Why a command could not be delivered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The journal of tasks cannot be used.
    #[error(transparent)]
    Task(#[from] PipelineError),
    #[error(transparent)]
    Conversation(#[from] ConversationError),
    /// The command is invalid, or guard cannot read or write a file of the control directory.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// No worker could be started for a batch that was resumed.
    #[error("cannot start a worker for the resumed batch: {0}")]
    Worker(std::io::Error),
}

impl WorkStores {
    /// Finds the batch, task, research run or conversation with this id; `None` if there is none. A batch needs its
    /// complete id. For other work, the end of the id is enough if it is unique among the work of the same kind; for a
    /// task, so is the beginning.
    pub fn find(&self, id: &str) -> Result<Option<Work>, WorkError> {
        if id.starts_with(BATCH_PREFIX) {
            let known = (self.open_queue)()?.batch(id)?;
            return Ok(known.map(|_| Work::Batch(id.to_string())));
        }
        let journal = self.tasks.journal().map_err(PipelineError::from)?;
        if let Some(task) = journal.task(id).map_err(PipelineError::from)? {
            return Ok(Some(Work::Task(Box::new(task))));
        }
        if let Some((id, started)) = Journal::started(&self.research, id) {
            return Ok(Some(Work::Research { id, directory: started.directory }));
        }
        // An id that no conversation has, or that several have, belongs to no work.
        let Ok(record) = self.conversations.read(id) else { return Ok(None) };
        Ok(Some(Work::Conversation { id: record.settings.id, directory: record.settings.cd }))
    }

    /// Sends a command, and waits at most `wait` until the process that does the work has completed or rejected it.
    /// Returns the last acknowledgement, which may be only `accepted`; `None` if there is none yet. If no process does
    /// the work, or if the work is a batch, this process carries out or rejects the command itself.
    pub fn send(
        &self,
        work: &Work,
        command: &AgentCommand,
        wait: Duration,
    ) -> Result<Option<AgentAck>, WorkError> {
        crate::agents::control::check_command(command)?;
        match work {
            Work::Batch(id) => self.send_to_batch(id, command),
            Work::Task(task) => self.send_to_task(task, command, wait),
            Work::Research { id, .. } => {
                if !Journal::is_running(&self.research, id) {
                    let reason = format!(
                        "the research is not running; if it has no answer yet, `guard research --resume {id}` continues it"
                    );
                    return Ok(Some(rejected(command, &reason)));
                }
                let channel = Journal::control_directory(&self.research, id).map(ControlChannel::new);
                channel.map_or(Ok(None), |channel| send(&channel, command, wait))
            }
            Work::Conversation { id, .. } => self.send_to_conversation(id, command, wait),
        }
    }

    fn send_to_batch(&self, id: &str, command: &AgentCommand) -> Result<Option<AgentAck>, WorkError> {
        let ack = command_batch(&mut *(self.open_queue)()?, id, command)?;
        // A local worker ends when every batch is paused, so a batch that is resumed may need a new worker.
        let is_done = ack.as_ref().is_some_and(|ack| ack.status == AckStatus::Completed);
        if command.command_type == "resume" && is_done {
            (self.start_worker)().map_err(WorkError::Worker)?;
        }
        Ok(ack)
    }

    fn send_to_task(
        &self,
        task: &TaskRow,
        command: &AgentCommand,
        wait: Duration,
    ) -> Result<Option<AgentAck>, WorkError> {
        if self.tasks.worker(&task.id).is_some() {
            let channel = ControlChannel::new(control_directory(&self.tasks.task_directory(&task.id)));
            return send(&channel, command, wait);
        }
        // No process works on the task, so this process answers. Only `cancel` makes sense then.
        if command.command_type != "cancel" {
            let reason = format!(
                "the task is not running; unless it succeeded or was cancelled, `guard task resume {}` continues it",
                task.id
            );
            return Ok(Some(rejected(command, &reason)));
        }
        if Status::parse(&task.status) == Some(Status::Succeeded) {
            return Ok(Some(rejected(command, "the task has already succeeded")));
        }
        let is_repeated = Status::parse(&task.status) == Some(Status::Cancelled);
        if !is_repeated {
            self.tasks.cancel(&task.id)?;
        }
        let data = json!({ "repeated": is_repeated });
        Ok(Some(AgentAck { command_id: command.command_id.clone(), status: AckStatus::Completed, data }))
    }

    fn send_to_conversation(
        &self,
        id: &str,
        command: &AgentCommand,
        wait: Duration,
    ) -> Result<Option<AgentAck>, WorkError> {
        let (id, directory) = self.conversations.control_directory(id)?;
        let channel = ControlChannel::new(directory);
        channel.send(command)?;
        // If no other process has the conversation open, this process opens it and carries out the command.
        if let Ok(mut conversation) = self.conversations.open(&id) {
            conversation.obey_commands()?;
        }
        Ok(channel.wait_for(&command.command_id, wait)?)
    }
}

fn send(
    channel: &ControlChannel,
    command: &AgentCommand,
    wait: Duration,
) -> Result<Option<AgentAck>, WorkError> {
    channel.send(command)?;
    Ok(channel.wait_for(&command.command_id, wait)?)
}

fn rejected(command: &AgentCommand, reason: &str) -> AgentAck {
    let data = json!({ "reason": reason });
    AgentAck { command_id: command.command_id.clone(), status: AckStatus::Rejected, data }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client of a server must not reach work in a directory outside its roots, nor find work without a directory by
    /// guessing the end of its id.
    #[test]
    fn clients_reach_only_their_work() {
        let root = std::env::temp_dir();
        let roots = Roots::new(std::slice::from_ref(&root)).unwrap_or_else(|error| panic!("{error}"));
        let id = "01a1ec2f-303d-74be-a76e-7f3a14635469".to_string();
        let research = |directory| Work::Research { id: id.clone(), directory };
        for (work, given_id, is_open) in [
            (research(None), id.as_str(), true),
            (research(None), "635469", false),
            (research(Some(root)), "635469", true),
            (research(Some("/etc".into())), id.as_str(), false),
            (research(Some("/nonexistent".into())), id.as_str(), false),
            (Work::Conversation { id: id.clone(), directory: "/etc".into() }, id.as_str(), false),
        ] {
            assert_eq!(work.is_open_to(&roots, given_id), is_open, "{work:?}");
        }
    }
}
