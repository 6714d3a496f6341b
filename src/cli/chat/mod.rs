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
use std::path::Path;

use super::Failure;
use crate::agents::conversation::{Conversation, NewConversation, TurnOptions, check_message};
use crate::agents::exec::{READ_ONLY_POLICY, Sandbox};
use crate::cli::args::chat::Chat;
use crate::cli::commands::conversation_store::conversations;
use crate::cli::commands::executor;
use crate::cli::output::exit_code::Exit;

pub(super) fn run(args: &Chat, out: &mut dyn Write) -> Result<Exit, Failure> {
    // Check the options before guard creates a conversation, so that refused options leave no empty conversation.
    turn_options(args).check()?;
    match &args.once {
        Some(message) => once::run(args, message, out),
        None => {
            // Also check the terminal before guard creates a conversation.
            interactive::check_terminal()?;
            let (conversation, executor) = (open_or_create(args)?, executor::executor()?);
            let (store, is_new) = (conversations()?, args.session.is_none());
            // This process holds the conversation's lock, so `guard history clear` would fail. Hints name `/clear`
            // instead.
            let options = TurnOptions { clear_command: Some("/clear"), ..turn_options(args) };
            interactive::run(&store, conversation, is_new, &options, &executor, out)
        }
    }
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
        let settings = &conversation.record().settings;
        confirm_policy(args, &settings.cd, settings.sandbox)?;
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
    let sandbox = new.sandbox.map(Into::into).unwrap_or_default();
    confirm_policy(args, &cd, sandbox)?;
    Ok(conversations.create(NewConversation {
        agent: new.agent.clone(),
        command: new.command.clone(),
        model: args.model.clone(),
        cd,
        sandbox,
        title: new.title.clone(),
        mode: new.mode.map(Into::into).unwrap_or_default(),
    })?)
}

/// Asks the user about a policy or a project's settings that need a confirmation. The runs of the turns have no terminal
/// on which they could ask.
fn confirm_policy(args: &Chat, directory: &Path, sandbox: Sandbox) -> Result<(), Failure> {
    let read_only = (sandbox == Sandbox::ReadOnly).then_some(READ_ONLY_POLICY);
    crate::session::confirm_defaults(
        directory,
        args.policy.as_deref().or(read_only),
        &crate::cli::commands::run::ask,
    )
}

fn turn_options(args: &Chat) -> TurnOptions {
    let defaults = TurnOptions::default();
    TurnOptions {
        timeout: args.timeout.unwrap_or(defaults.timeout),
        max_duration: args.max_duration.unwrap_or(defaults.max_duration),
        max_retries: args.max_retries.unwrap_or(defaults.max_retries),
        policy: args.policy.clone(),
        uses_default_policy: true,
        ..defaults
    }
}
