//! The slash commands `/diff`, `/apply` and `/why`, which run `guard diff`, `guard apply` and `guard why` on the runs
//! of a conversation.

use std::ffi::OsString;
use std::io::Write;

use crate::agents::conversation::Conversation;
use crate::cli::args::Command;
use crate::cli::commands::{apply, diff, why};
use crate::cli::{Failure, parse};
use crate::git::{Record, State};
use crate::session::run_reference::store;

/// Returns the id of the conversation's last run whose worktree still exists. Fails if there is none.
fn last_run(conversation: &Conversation) -> Result<String, Failure> {
    let store = store()?;
    let record = conversation.record();
    // The copied turns of a fork worked in the worktree of the original conversation.
    let copied = record.settings.forked_from.as_ref().map_or(0, |(_, last)| *last);
    let own_turns = record.turns.iter().rev().filter(|turn| turn.number > copied);
    let is_open = |id: &&String| {
        !id.is_empty()
            && Record::read(&store.folder().join(id)).is_ok_and(|record| record.state != State::Removed)
    };
    own_turns.map(|turn| &turn.run_id).find(is_open).cloned().ok_or_else(|| {
        Failure::usage(
            "no turn has left changes in a worktree",
            "ask the agent to change a file first; only conversations in a git repository have a worktree",
        )
    })
}

/// Shows the changes of the last turn or, if `is_whole` is true, of all turns.
pub(super) fn diff(
    conversation: &Conversation,
    is_whole: bool,
    arguments: &[String],
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let run = last_run(conversation)?;
    if let Some(Command::Diff(mut parsed)) = parsed("diff", Some(&run), arguments) {
        parsed.since_run |= !is_whole;
        diff::run(&parsed, out)?;
    }
    Ok(())
}

/// Applies the changes of all turns to the user's branch. Keeps the worktree, so that the conversation can continue.
pub(super) fn apply(
    conversation: &Conversation,
    arguments: &[String],
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let run = last_run(conversation)?;
    if let Some(Command::Apply(mut parsed)) = parsed("apply", Some(&run), arguments) {
        parsed.keep = true;
        apply::run(&parsed, out)?;
    }
    Ok(())
}

/// Explains why guard refused actions in the last turn or, if the arguments begin with an option or `--`, answers the
/// question in the arguments.
pub(super) fn why(
    conversation: &Conversation,
    arguments: &[String],
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let last = conversation.record().turns.iter().rev().find(|turn| !turn.run_id.is_empty());
    let is_question = arguments.first().is_some_and(|first| first.starts_with('-'));
    let run = last.map(|turn| turn.run_id.as_str()).filter(|_| !is_question);
    if run.is_none() && !is_question {
        return Err(Failure::usage(
            "guard has refused nothing in this conversation yet",
            "`/why -- COMMAND` asks about a command",
        ));
    }
    if let Some(Command::Why(parsed)) = parsed("why", run, arguments) {
        why::run(&parsed, out)?;
    }
    Ok(())
}

/// Parses the arguments of a slash command with guard's command-line parser. If they are invalid or ask for help,
/// prints the parser's message and returns `None`.
fn parsed(command: &str, run: Option<&str>, arguments: &[String]) -> Option<Command> {
    let words = ["guard", command].into_iter().chain(run).chain(arguments.iter().map(String::as_str));
    match parse(words.map(OsString::from).collect()) {
        Ok(cli) => Some(cli.command),
        Err(error) => {
            let _ = error.print();
            None
        }
    }
}
