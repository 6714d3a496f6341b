//! The slash commands `/diff`, `/apply` and `/why`, which run `guard diff`, `guard apply` and `guard why` on the runs
//! of a conversation.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use crate::cli::args::Command;
use crate::cli::exit_code::Exit;
use crate::cli::run_reference::store;
use crate::cli::{Failure, apply, diff, parse, why};
use crate::conversation::Conversation;
use crate::workspace::{Record, State};

/// A run of the conversation whose worktree still exists.
struct OpenRun {
    id: String,
    directory: PathBuf,
    worktree: PathBuf,
}

/// Returns the runs of the conversation that worked in the conversation's current worktree, oldest first. Fails if
/// there are none.
fn open_runs(conversation: &Conversation) -> Result<Vec<OpenRun>, Failure> {
    let store = store()?;
    let record = conversation.record();
    // The copied turns of a fork worked in the worktree of the original conversation.
    let copied = record.settings.forked_from.as_ref().map_or(0, |(_, last)| *last);
    let own_turns = record.turns.iter().filter(|turn| turn.number > copied);
    let ids = own_turns.map(|turn| &turn.run_id).filter(|id| !id.is_empty());
    let mut runs: Vec<OpenRun> = ids.filter_map(|id| open_run(id, store.folder().join(id))).collect();
    let newest = runs.last().map(|run| run.worktree.clone());
    runs.retain(|run| Some(&run.worktree) == newest.as_ref());
    if runs.is_empty() {
        return Err(Failure::usage(
            "no turn has left changes in a worktree",
            "ask the agent to change a file first; only conversations in a git repository have a worktree",
        ));
    }
    Ok(runs)
}

fn open_run(id: &str, directory: PathBuf) -> Option<OpenRun> {
    let record = Record::read(&directory).ok()?;
    let is_open = record.state != State::Removed;
    is_open.then(|| OpenRun { id: id.to_string(), directory, worktree: record.worktree })
}

/// Shows the changes of the last turn or, if `is_whole` is true, of all turns.
pub(super) fn diff(
    conversation: &Conversation,
    is_whole: bool,
    arguments: &[String],
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let runs = open_runs(conversation)?;
    let run = if is_whole { runs.first() } else { runs.last() };
    let run = run.map(|run| run.id.as_str()).unwrap_or_default();
    if let Some(Command::Diff(parsed)) = parsed("diff", Some(run), arguments) {
        diff::run(&parsed, out)?;
    }
    Ok(())
}

/// Applies the changes of all turns to the user's branch. Keeps the worktree, so that the conversation can continue.
/// `applied` contains the ids of the runs whose changes were applied before.
pub(super) fn apply(
    conversation: &Conversation,
    applied: &mut Vec<String>,
    arguments: &[String],
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut runs = open_runs(conversation)?;
    let all: Vec<String> = runs.iter().map(|run| run.id.clone()).collect();
    // Apply from the oldest run whose changes are not applied yet. If all are applied, use the last run, which
    // reports that there is nothing new.
    let first = runs.iter().position(|run| !applied.contains(&run.id)).unwrap_or(runs.len() - 1);
    let later = runs.split_off(first + 1);
    let Some(run) = runs.pop() else { return Ok(()) };
    if let Some(Command::Apply(mut parsed)) = parsed("apply", Some(&run.id), arguments) {
        parsed.keep = true;
        let is_dry_run = parsed.dry_run;
        let later: Vec<PathBuf> = later.into_iter().map(|run| run.directory).collect();
        if apply::run_with(&parsed, &later, out)? == Exit::Success && !is_dry_run {
            *applied = all;
        }
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
    match parse(words.map(OsString::from)) {
        Ok(cli) => Some(cli.command),
        Err(error) => {
            let _ = error.print();
            None
        }
    }
}
