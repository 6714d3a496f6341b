//! Sends commands (`cancel`, `pause`, `resume`, `adjust_config`) to tasks, conversations and research runs in progress,
//! and returns their acknowledgements. Commands to a batch have the same form, but `batch::command_batch` carries them
//! out in the queue.
//!
//! Each piece of work (a task, conversation or research run) has a control directory with two append-only files.
//! Clients append commands to `commands.jsonl`; the process that does the work (the worker) reads them, executes them,
//! and appends acknowledgements to `acks.jsonl`. Both files survive a crash of either side. A command is not
//! idempotent, so the worker executes each `command_id` at most once: it writes `accepted` before it executes a
//! command, and skips ids that have an acknowledgement.
#![forbid(unsafe_code)]

mod rejection;
mod watch;

pub use rejection::Rejection;
pub use watch::{CommandWatch, PauseGate};

use std::collections::HashSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::sys::append_log::{self, AppendError, Writers};
use crate::text::string_enum::string_enum;

/// The maximum length of a command as JSON, in bytes.
pub const LARGEST_COMMAND: usize = 64 << 10;
/// The maximum size of `commands.jsonl` and of `acks.jsonl`, in bytes. Honest clients never send that many commands.
const LARGEST_FILE: u64 = 4 << 20;
/// The maximum length of the reason for a rejection, in characters.
const LONGEST_REASON: usize = 1000;
/// How often a client checks for the acknowledgement of its command.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A command to work in progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentCommand {
    /// What to do: `cancel`, `pause`, `resume` or `adjust_config`. Later versions may add types; a worker rejects types
    /// that it does not know.
    pub command_type: String,
    /// An id that the client chooses. If several commands have the same id, the worker carries out only the first one.
    pub command_id: String,
    /// The data of the command: for `adjust_config`, an object with the settings to change.
    #[serde(default)]
    pub data: Value,
}

string_enum! {
    /// What happened to a command.
    pub enum AckStatus {
        /// The worker has read the command and acts on it now.
        Accepted = "accepted",
        /// The worker does not act on the command; the field `reason` of the acknowledgement says why.
        Rejected = "rejected",
        /// The worker has done what the command says.
        Completed = "completed",
    }
}

impl<'de> Deserialize<'de> for AckStatus {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentAck {
    pub command_id: String,
    pub status: AckStatus,
    /// Details of the outcome. For a rejected command, this is an object whose field `reason` says why.
    #[serde(default)]
    pub data: Value,
}

/// Why a command could not be sent or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    #[error("cannot read or write {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The command or acknowledgement, as JSON, is longer than [`LARGEST_COMMAND`].
    #[error("the control command is longer than {} KiB; send less data with it", LARGEST_COMMAND >> 10)]
    TooLong,
    /// The command has no id, or an id that is too long or has unusual characters.
    #[error("invalid command id {0:?}; use 1 to 128 ASCII letters, digits, `-`, `_` or `.`")]
    BadId(String),
    /// `commands.jsonl` or `acks.jsonl` has reached its maximum size. Holds the path of the file.
    #[error("{} has reached its maximum size, because this task, research run or conversation got too many commands; guard can add nothing to the file", .0.display())]
    Full(PathBuf),
}

/// The client's side of a control directory: sends commands and reads acknowledgements.
#[derive(Debug, Clone)]
pub struct ControlChannel {
    directory: PathBuf,
}

impl ControlChannel {
    /// Returns the channel in this directory, which need not exist: the first command creates it.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Sends a command. When this function returns, the command is on disk.
    pub fn send(&self, command: &AgentCommand) -> Result<(), ControlError> {
        check_command(command)?;
        append(&self.directory, COMMANDS, command)
    }

    /// Returns the last acknowledgement of a command; `None` if there is none.
    pub fn acknowledgement(&self, command_id: &str) -> Result<Option<AgentAck>, ControlError> {
        let acks: Vec<AgentAck> = read_lines(&self.directory.join(ACKS), &mut 0)?;
        Ok(acks.into_iter().rev().find(|ack| ack.command_id == command_id))
    }

    /// Waits until the worker has rejected or completed a command, or until `most` has passed. Returns the last
    /// acknowledgement; `None` if there is none.
    pub fn wait_for(&self, command_id: &str, most: Duration) -> Result<Option<AgentAck>, ControlError> {
        let deadline = Instant::now() + most;
        loop {
            let ack = self.acknowledgement(command_id)?;
            let is_final = ack.as_ref().is_some_and(|ack| ack.status != AckStatus::Accepted);
            if is_final || Instant::now() >= deadline {
                return Ok(ack);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// The worker's side of a control directory: reads the commands to one piece of work. Only the process that
/// does the work may use it.
#[derive(Debug)]
pub struct CommandReader {
    directory: PathBuf,
    /// The number of bytes of `commands.jsonl` that this reader has read.
    position: u64,
    /// The ids of the commands that have an acknowledgement.
    known: HashSet<String>,
    waiting: std::collections::VecDeque<AgentCommand>,
}

impl CommandReader {
    /// Opens a control directory for the worker. The reader skips commands that this process, or an earlier one that
    /// crashed, has already acknowledged.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, ControlError> {
        let directory = directory.into();
        let acks: Vec<AgentAck> = read_lines(&directory.join(ACKS), &mut 0)?;
        let known = acks.into_iter().map(|ack| ack.command_id).collect();
        Ok(Self { directory, position: 0, known, waiting: Default::default() })
    }

    /// Returns the next command that no worker has acknowledged; `None` if there is none. Skips commands with an
    /// invalid id. Records the command as accepted before it returns, so that no worker executes the command twice. If
    /// guard cannot record the acknowledgement, it only logs a warning.
    pub fn next_command(&mut self) -> Result<Option<AgentCommand>, ControlError> {
        if self.waiting.is_empty() {
            let path = self.directory.join(COMMANDS);
            // Usually there is nothing new. Then this check costs only one system call.
            if fs::metadata(&path).is_ok_and(|file| file.len() > self.position) {
                self.waiting.extend(read_lines::<AgentCommand>(&path, &mut self.position)?);
            }
        }
        while let Some(command) = self.waiting.pop_front() {
            if check_id(&command.command_id).is_ok() && self.known.insert(command.command_id.clone()) {
                // Return the command even if the disk is full, so that the user can always cancel.
                if let Err(error) = self.write_ack(&command.command_id, AckStatus::Accepted, Value::Null) {
                    tracing::warn!(%error, "guard cannot record that it accepted a command");
                }
                return Ok(Some(command));
            }
        }
        Ok(None)
    }

    /// Records for the client that the command was executed.
    pub fn complete(&self, command: &AgentCommand, data: Value) -> Result<(), ControlError> {
        self.write_ack(&command.command_id, AckStatus::Completed, data)
    }

    /// Records for the client that the command was not executed, and why.
    pub fn reject(&self, command: &AgentCommand, reason: &Rejection) -> Result<(), ControlError> {
        let reason: String = reason.to_string().chars().take(LONGEST_REASON).collect();
        let data = serde_json::json!({ "reason": reason });
        self.write_ack(&command.command_id, AckStatus::Rejected, data)
    }

    fn write_ack(&self, command_id: &str, status: AckStatus, data: Value) -> Result<(), ControlError> {
        append(&self.directory, ACKS, &AgentAck { command_id: command_id.to_string(), status, data })
    }
}

const COMMANDS: &str = "commands.jsonl";
const ACKS: &str = "acks.jsonl";

/// Fails if a command cannot be sent because its id or its length is invalid.
pub fn check_command(command: &AgentCommand) -> Result<(), ControlError> {
    let length = serde_json::to_vec(command).map_or(usize::MAX, |json| json.len());
    if length > LARGEST_COMMAND { Err(ControlError::TooLong) } else { check_id(&command.command_id) }
}

fn check_id(id: &str) -> Result<(), ControlError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=128).contains(&id.len()) && id.chars().all(is_plain) {
        return Ok(());
    }
    Err(ControlError::BadId(id.chars().take(200).collect()))
}

/// Appends a value as one line. Several clients may append commands at the same time.
fn append(directory: &Path, name: &str, value: &impl Serialize) -> Result<(), ControlError> {
    let path = directory.join(name);
    let failed = |source| ControlError::Io { path: path.clone(), source };
    let line = serde_json::to_vec(value).map_err(|error| failed(error.into()))?;
    if line.len() > LARGEST_COMMAND {
        return Err(ControlError::TooLong);
    }
    DirBuilder::new().mode(0o700).recursive(true).create(directory).map_err(failed)?;
    let file = append_log::open(&path).map_err(failed)?;
    append_log::append(&file, line, LARGEST_FILE, Writers::Several).map_err(|error| match error {
        AppendError::Full => ControlError::Full(path.clone()),
        AppendError::Io(error) => failed(error),
    })
}

/// Reads the complete lines after `position`, and sets `position` to the end of the last one. Skips lines that
/// are not the expected JSON, which a client of another version, or a process that was killed while it wrote,
/// may have left. Reads at most [`LARGEST_FILE`] bytes. Returns no lines if the file does not exist.
fn read_lines<T: for<'de> Deserialize<'de>>(path: &Path, position: &mut u64) -> Result<Vec<T>, ControlError> {
    let bytes = append_log::read(path, *position, LARGEST_FILE)
        .map_err(|source| ControlError::Io { path: path.to_path_buf(), source })?;
    *position += bytes.len() as u64;
    let lines = bytes.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

#[cfg(test)]
mod tests;
