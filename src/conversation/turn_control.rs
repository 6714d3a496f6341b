//! Commands to a conversation: `cancel` ends the turn that is in progress, `pause` refuses further turns until
//! `resume`, and `adjust_config` changes the model.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::{Conversation, ConversationError};
use crate::agent_exec::Cancel;
use crate::control::{AgentCommand, CommandReader, CommandWatch};

/// The file that exists while the conversation is paused.
const PAUSED: &str = "paused";

/// Returns the control directory of the conversation in this directory.
pub(super) fn control_directory(conversation: &Path) -> PathBuf {
    conversation.join("control")
}

pub(super) fn is_paused(conversation: &Path) -> bool {
    conversation.join(PAUSED).exists()
}

/// Receives commands while a turn is in progress.
pub(super) struct TurnControl {
    model: Arc<Mutex<Option<String>>>,
    _watch: CommandWatch,
}

impl TurnControl {
    /// Starts to receive commands. `None` if that fails: a turn also works without commands.
    pub(super) fn start(conversation: &Path, cancel: &Cancel) -> Option<Self> {
        let reader = CommandReader::open(control_directory(conversation)).ok()?;
        let model = Arc::new(Mutex::new(None));
        let (directory, cancel, in_thread) = (conversation.to_path_buf(), cancel.clone(), model.clone());
        let watch = CommandWatch::start(reader, move |command| {
            act_on(command, &directory, Some(&cancel), &mut |model| {
                *in_thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(model);
                Ok(())
            })
        });
        Some(Self { model, _watch: watch.ok()? })
    }

    /// Returns the model that a command chose, once.
    pub(super) fn take_model(&self) -> Option<String> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Conversation {
    /// Executes the commands that were sent while no turn was in progress.
    pub fn obey_commands(&mut self) -> Result<(), ConversationError> {
        let directory = self.directory.clone();
        let control = control_directory(&directory);
        let failed = |error: crate::control::ControlError| ConversationError::Io {
            what: "read the commands in",
            path: control.clone(),
            source: io::Error::other(error),
        };
        let mut reader = CommandReader::open(&control).map_err(failed)?;
        while let Some(command) = reader.next_command().map_err(failed)? {
            let mut set_model =
                |model: String| self.set_model(Some(model)).map_err(|error| error.to_string());
            match act_on(&command, &directory, None, &mut set_model) {
                Ok(data) => reader.complete(&command, data).map_err(failed)?,
                Err(reason) => reader.reject(&command, &reason).map_err(failed)?,
            }
        }
        Ok(())
    }
}

fn act_on(
    command: &AgentCommand,
    conversation: &Path,
    cancel: Option<&Cancel>,
    set_model: &mut dyn FnMut(String) -> Result<(), String>,
) -> Result<Value, String> {
    let path = conversation.join(PAUSED);
    match command.command_type.as_str() {
        "cancel" => match cancel {
            Some(cancel) => {
                cancel.set();
                Ok(json!({}))
            }
            None => Err("no turn is going on".to_string()),
        },
        "pause" => {
            let written = fs::File::create(&path).map_err(|error| error.to_string());
            written.map(|_| json!({ "effective": "before the next turn" }))
        }
        "resume" => match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.to_string()),
            _ => Ok(json!({})),
        },
        "adjust_config" => {
            let model = command.data.get("model").and_then(Value::as_str);
            let model = model
                .ok_or("expected {\"model\": NAME}, the only setting of a conversation that can change")?;
            set_model(model.to_string())?;
            Ok(json!({ "effective": "with the next turn" }))
        }
        other => Err(format!(
            "unknown command type `{other}`; a conversation knows cancel, pause, resume, adjust_config"
        )),
    }
}
