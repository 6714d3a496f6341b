//! `guard chat --once`: runs one turn. Prints the answer, or JSON if the user wants it, to standard output, and
//! everything else to standard error.

use std::io::{self, IsTerminal, Read, Write};

use super::super::{Failure, note};
use super::{Chat, check_message, executor, open_or_create, turn_options};
use crate::agents::conversation::{Conversation, ConversationError, LONGEST_MESSAGE, TurnResult};
use crate::agents::exec::Cancel;
use crate::cli::commands::conversation_store::SUMMARY_WAIT;
use crate::cli::output::exec_progress::ExecProgress;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::terminal_summary;
use crate::text::terminal_text;

pub(super) fn run(args: &Chat, message: &str, out: &mut dyn Write) -> Result<Exit, Failure> {
    let message = match message {
        "-" => read_message()?,
        text => text.to_string(),
    };
    // Check the message before guard creates a conversation, so that a refused message leaves no empty conversation.
    check_message(&message)?;
    let mut conversation = open_or_create(args)?;
    let executor = executor::executor()?;
    let (cancel, has_signal) = (Cancel::default(), Cancel::default());
    executor::cancel_both_on_signals(&cancel, &has_signal)?;
    executor::cancel_without_reader(&cancel)?;
    let is_text = !args.json && !args.stream_json;
    if is_text && args.session.is_none() {
        note(&format!("guard: the id of this conversation is {}", conversation.id()));
    }
    let progress = (is_text && io::stderr().is_terminal()).then(ExecProgress::start);
    let mut broken = None;
    let result = conversation.run_turn(&message, &turn_options(args), &executor, &cancel, &mut |event| {
        if let Some(progress) = &progress {
            progress.show(event);
        }
        if args.stream_json && broken.is_none() {
            broken = executor::print_event(event, out).err();
        }
        // If the reader has closed standard output, nobody needs the rest of the turn.
        if broken.is_some() && !cancel.is_set() {
            cancel.set();
        }
    });
    drop(progress);
    if let Some(error) = broken {
        return Err(error.into());
    }
    let exit = if is_text { print_text(&conversation, &result, out)? } else { print_json(&result, out)? };
    // The answer is printed. If guard is summarising the older messages, wait: the summary makes the next turn cheaper,
    // but is not necessary. A signal ends the wait; a reader that closes standard output does not.
    out.flush()?;
    conversation.wait_for_compaction(SUMMARY_WAIT, &has_signal);
    Ok(exit)
}

fn read_message() -> Result<String, Failure> {
    let mut bytes = Vec::new();
    io::stdin().lock().take(LONGEST_MESSAGE as u64 + 1).read_to_end(&mut bytes)?;
    // Check the length before the encoding: guard reads only one byte more than the limit, so it may have cut a longer
    // message inside a character.
    if bytes.len() > LONGEST_MESSAGE {
        return Err(ConversationError::LongMessage(bytes.len()).into());
    }
    String::from_utf8(bytes)
        .map_err(|_| Failure::usage("the message on standard input is not UTF-8", "convert it to UTF-8"))
}

fn print_json(result: &TurnResult, out: &mut dyn Write) -> Result<Exit, Failure> {
    serde_json::to_writer(&mut *out, result).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(executor::exit(&result.exec))
}

fn print_text(
    conversation: &Conversation,
    result: &TurnResult,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    for line in result.exec.run.result.lines() {
        writeln!(out, "{}", terminal_text::escape(line))?;
    }
    out.flush()?;
    for remark in &result.notes {
        note(&terminal_text::one_line(&format!("guard: note: {remark}")));
    }
    note(&terminal_summary::ending(&result.exec.run));
    note(&format!("  continue: guard chat --session {} --once 'MESSAGE'", conversation.short_id()));
    Ok(executor::exit(&result.exec))
}
