//! `guard chat`: a conversation with an agent, one turn after the other.

mod editor;
mod failed_turn;
mod interactive;
mod markdown;
mod once;
mod slash_commands;
mod turn_signals;
mod turn_view;
mod work_commands;

use std::io::Write;
use std::time::Duration;

use super::chat_args::Chat;
use super::exit_code::Exit;
use super::run::user_config;
use super::{Failure, exec};
use crate::conversation::{
    Conversation, ConversationError, Conversations, HistorySettings, NewConversation, TurnOptions,
    check_message,
};
use crate::transcript::runs_dir;

/// How long a command waits for a summary of older messages after it has printed the answer.
pub(super) const SUMMARY_WAIT: Duration = Duration::from_secs(60);

impl From<ConversationError> for Failure {
    fn from(error: ConversationError) -> Self {
        Failure::usage(error.to_string(), error.hint())
    }
}

pub(super) fn run(args: &Chat, out: &mut dyn Write) -> Result<Exit, Failure> {
    // Check the options before guard creates a conversation, so that refused options leave no empty conversation.
    turn_options(args).check()?;
    match &args.once {
        Some(message) => once::run(args, message, out),
        None => {
            // Check the terminal before guard creates a conversation.
            interactive::check_terminal()?;
            let (conversation, executor) = (open_or_create(args)?, exec::executor()?);
            let (store, is_new) = (conversations()?, args.session.is_none());
            // This process holds the conversation's lock, so `guard history clear` would fail. Hints name `/clear`
            // instead.
            let options = TurnOptions { clear_command: Some("/clear"), ..turn_options(args) };
            interactive::run(&store, conversation, is_new, &options, &executor, out)
        }
    }
}

/// Returns the stored conversations of the current user.
pub(super) fn conversations() -> Result<Conversations, Failure> {
    let runs = runs_dir().map_err(|error| {
        Failure::usage(error.to_string(), "set XDG_STATE_HOME or HOME to an absolute path")
    })?;
    // The user can read conversations even if guard cannot use the configuration. Every turn reports that error.
    let config = user_config().unwrap_or_default().conversation;
    let history_settings =
        HistorySettings { max_prompt_tokens: config.max_prompt_tokens, summary_model: config.summary_model };
    let conversations = Conversations::at(runs.with_file_name("conversations"));
    Ok(conversations.with_history_settings(history_settings))
}

/// Opens the conversation that `--session` names, and sets its model if the user gave one. Without `--session`, starts
/// a new conversation.
fn open_or_create(args: &Chat) -> Result<Conversation, Failure> {
    let conversations = conversations()?;
    if let Some(id) = &args.session {
        let mut conversation = conversations.open(id)?;
        if args.model.is_some() && args.model != conversation.record().settings.model {
            conversation.set_model(args.model.clone())?;
        }
        return Ok(conversation);
    }
    let new = &args.new;
    let cd = match &new.cd {
        Some(cd) => std::path::absolute(cd),
        None => std::env::current_dir(),
    };
    let cd = cd.map_err(|error| {
        Failure::usage(
            format!("cannot determine the working directory: {error}"),
            "give a directory with --cd DIR",
        )
    })?;
    Ok(conversations.create(NewConversation {
        agent: new.agent.clone(),
        command: new.command.clone(),
        model: args.model.clone(),
        cd,
        sandbox: new.sandbox.map(Into::into).unwrap_or_default(),
        title: new.title.clone(),
        mode: new.mode.map(Into::into).unwrap_or_default(),
    })?)
}

/// Returns the options of each turn, from the command line.
fn turn_options(args: &Chat) -> TurnOptions {
    let defaults = TurnOptions::default();
    TurnOptions {
        timeout: args.timeout.unwrap_or(defaults.timeout),
        max_duration: args.max_duration.unwrap_or(defaults.max_duration),
        max_retries: args.max_retries.unwrap_or(defaults.max_retries),
        policy: args.policy.clone(),
        ..defaults
    }
}
