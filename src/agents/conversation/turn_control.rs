//! Commands to a conversation: `cancel` ends the turn that is in progress, `pause` refuses further turns until
//! `resume`, and `adjust_config` changes the model.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::record::Settings;
use super::store::write_model;
use super::{Conversation, ConversationError};
use crate::agents::control::{AgentCommand, CommandReader, CommandWatch, Rejection};
use crate::agents::exec::Cancel;

/// The file that exists while the conversation is paused.
const PAUSED: &str = "paused";

pub(super) fn control_directory(conversation: &Path) -> PathBuf {
    conversation.join("control")
}

pub(super) fn is_paused(conversation: &Path) -> bool {
    conversation.join(PAUSED).exists()
}

/// Receives commands while a turn is in progress.
pub(super) struct TurnControl {
    /// The settings that the last command wrote.
    settings: Arc<Mutex<Option<Settings>>>,
    _watch: CommandWatch,
}

impl TurnControl {
    /// Starts to receive commands. Returns `None` if that fails, because a turn also works without commands.
    pub(super) fn start(conversation: &Path, settings: &Settings, cancel: &Cancel) -> Option<Self> {
        let reader = CommandReader::open(control_directory(conversation)).ok()?;
        let (directory, before, cancel) = (conversation.to_path_buf(), settings.clone(), cancel.clone());
        let settings = Arc::new(Mutex::new(None));
        let in_thread = settings.clone();
        let watch = CommandWatch::start(reader, move |command| {
            act_on(command, &directory, Some(&cancel), &mut |model| {
                let written = write_model(&directory, &before, Some(model))?;
                *in_thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(written);
                Ok(())
            })
        });
        Some(Self { settings, _watch: watch.ok()? })
    }

    /// Stops receiving commands. Returns the settings if a command has changed them, and `None` otherwise.
    pub(super) fn changed_settings(self) -> Option<Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Conversation {
    /// Executes the commands that were sent while no turn was in progress. A rejected command is not an error: its
    /// sender gets the reason.
    pub fn obey_commands(&mut self) -> Result<(), ConversationError> {
        let directory = self.directory.clone();
        let control = control_directory(&directory);
        let failed = |error: crate::agents::control::ControlError| ConversationError::Io {
            what: "read the commands in",
            path: control.clone(),
            source: io::Error::other(error),
        };
        let mut reader = CommandReader::open(&control).map_err(failed)?;
        while let Some(command) = reader.next_command().map_err(failed)? {
            let mut set_model = |model: String| self.set_model(Some(model));
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
    set_model: &mut dyn FnMut(String) -> Result<(), ConversationError>,
) -> Result<Value, Rejection> {
    let failed = |error: io::Error| Rejection::Failed(error.into());
    let path = conversation.join(PAUSED);
    match command.command_type.as_str() {
        "cancel" => match cancel {
            Some(cancel) => {
                cancel.set();
                Ok(json!({}))
            }
            None => Err(Rejection::NoTurn),
        },
        "pause" => {
            let open = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&path);
            open.map_err(failed)?;
            Ok(json!({ "effective": "before the next turn" }))
        }
        "resume" => match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(json!({})),
        },
        "adjust_config" => {
            let model = command.data.get("model").and_then(Value::as_str);
            let expected = "{\"model\": NAME}, the only setting of a conversation that can change";
            let model = model.ok_or(Rejection::NoSetting(expected))?;
            set_model(model.to_string()).map_err(|error| Rejection::Failed(error.into()))?;
            Ok(json!({ "effective": "with the next turn" }))
        }
        other => Err(Rejection::UnknownType(other.to_string())),
    }
}
