//! `guard history`: lists, shows, searches, exports, forks, undoes, clears and deletes conversations.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde::Serialize;

use crate::agents::conversation::{
    ConversationLine, Conversations, FilesUndone, NextPrompt, Record, Turn, TurnState,
};
use crate::agents::exec::Cancel;
use crate::cli::args::chat::History;
use crate::cli::commands::conversation_store::conversations;
use crate::cli::commands::executor;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::table;
use crate::cli::output::table::Column;
use crate::cli::{Failure, note};
use crate::text::terminal_text;

/// How long `guard history compact` waits for the summary.
const SUMMARY_WAIT: Duration = Duration::from_secs(300);

pub(in crate::cli) fn run(history: &History, out: &mut dyn Write) -> Result<Exit, Failure> {
    let conversations = conversations()?;
    match history {
        History::List { json } => list(&conversations, *json, out)?,
        History::Show { which, all, json } => show(&conversations.read(&which.id)?, *all, *json, out)?,
        History::Search { text, json } => return search(&conversations, text, *json, out),
        History::Diff { which, json } => diff(&conversations.next_prompt(&which.id)?, *json, out)?,
        History::Export { which, format } => {
            let text = conversations.read(&which.id)?.export((*format).into());
            // Print the document unchanged to a file or a pipe. On a terminal, escape control sequences.
            if io::stdout().is_terminal() {
                write_indented("", &text, out)?;
            } else {
                write!(out, "{text}")?;
            }
        }
        History::Fork { which, at, json } => {
            let record = conversations.read(&which.id)?;
            let fork = conversations.fork(&record, *at)?;
            if *json {
                print_json(
                    &serde_json::json!({ "SESSION_ID": fork.id(), "turns": fork.turns().len() }),
                    out,
                )?;
            } else {
                writeln!(out, "{}", fork.id())?;
                note(
                    "guard: the new conversation gets its own worktree, which starts at the commit checked out in the conversation's directory",
                );
            }
        }
        History::Compact { id, json } => compact(&conversations, id, *json, out)?,
        History::Undo { id, json } => undo(&conversations, id, *json, out)?,
        History::Clear { id } => {
            let mut conversation = conversations.open(id)?;
            conversation.clear()?;
            writeln!(
                out,
                "cleared the conversation {}: its next turn begins without a history",
                conversation.short_id()
            )?;
        }
        History::Delete { ids } => {
            for id in ids {
                writeln!(out, "deleted the conversation {}", conversations.delete(id)?)?;
            }
        }
    }
    Ok(Exit::Success)
}

fn print_json(value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    crate::cli::output::json::to_writer(&mut *out, value).map_err(io::Error::from)?;
    writeln!(out)
}

fn list(conversations: &Conversations, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let lines = conversations.list()?;
    if json {
        return Ok(print_json(&lines, out)?);
    }
    if lines.is_empty() {
        note("guard: there are no conversations yet; start a conversation: guard chat --once 'MESSAGE'");
        return Ok(());
    }
    let cells = |of: &dyn Fn(&ConversationLine) -> String| -> Vec<String> {
        lines.iter().map(|line| terminal_text::one_line(&of(line))).collect()
    };
    let column = |title, cells, leave_out| Column {
        title,
        cells,
        is_number: false,
        widest: 24,
        shrinks: false,
        leave_out,
    };
    let minute = |time: &str| time.get(..16).unwrap_or(time).replace('T', " ");
    let columns = vec![
        column("ID", cells(&|line| line.short_id.clone()), 0),
        Column { is_number: true, ..column("TURNS", cells(&|line| line.turns.to_string()), 1) },
        column("STATE", cells(&|line| line.state.clone().unwrap_or_default()), 2),
        column("AGENT", cells(&|line| line.agent.clone()), 3),
        column("UPDATED", cells(&|line| minute(&line.updated)), 4),
        Column { widest: 80, shrinks: true, ..column("TITLE", cells(&|line| line.title.clone()), 0) },
    ];
    Ok(table::write(columns, table::width(), out)?)
}

fn show(record: &Record, all: bool, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let turns: Vec<&Turn> = record.turns.iter().filter(|turn| all || turn.is_active).collect();
    let settings = &record.settings;
    if json {
        let value = serde_json::json!({
            "SESSION_ID": settings.id, "title": record.title(), "settings": settings, "is_open": record.is_open, "turns": turns,
            "worktree": record.worktree(), "damaged_lines": record.damaged_lines,
        });
        return Ok(print_json(&value, out)?);
    }
    let model = settings.model_in_use().map(|model| format!(" ({model})")).unwrap_or_default();
    writeln!(out, "{}", terminal_text::one_line(&record.title()))?;
    writeln!(out, "{} with {}{}", settings.id, settings.agent, terminal_text::one_line(&model))?;
    writeln!(out, "in {}", terminal_text::one_line(&settings.cd.to_string_lossy()))?;
    if let Some(worktree) = record.worktree() {
        let (branch, path) = (&worktree.branch, &worktree.path);
        writeln!(
            out,
            "branch {}, worktree {}",
            terminal_text::one_line(branch),
            terminal_text::one_line(path)
        )?;
    }
    if record.damaged_lines > 0 {
        writeln!(out, "damaged lines of the conversation that guard cannot read: {}", record.damaged_lines)?;
    }
    for turn in turns {
        write_turn(turn, record.is_open, out)?;
    }
    Ok(())
}

fn write_turn(turn: &Turn, is_open: bool, out: &mut dyn Write) -> io::Result<()> {
    let state = match &turn.state {
        TurnState::Done => String::new(),
        TurnState::Interrupted if is_open => ", running or interrupted".to_string(),
        state => format!(", {}", state.name()),
    };
    let gone = if turn.is_active { "" } else { ", no longer part of the conversation" };
    let minute = turn.started.get(..16).unwrap_or(&turn.started).replace('T', " ");
    writeln!(out, "\n── turn {}, {minute}{state}{gone}", turn.number)?;
    write_indented("> ", &turn.user, out)?;
    writeln!(out)?;
    write_indented("", &turn.assistant, out)?;
    if let TurnState::Failed { error_kind, error } = &turn.state {
        writeln!(out, "({error_kind}: {})", terminal_text::one_line(error))?;
    }
    for remark in &turn.notes {
        writeln!(out, "(note: {})", terminal_text::one_line(remark))?;
    }
    if !turn.run_id.is_empty() {
        let denials = if turn.denials > 0 { format!(", {} denials", turn.denials) } else { String::new() };
        writeln!(out, "   run {}{denials}", terminal_text::one_line(&turn.run_id))?;
    }
    Ok(())
}

fn write_indented(before: &str, text: &str, out: &mut dyn Write) -> io::Result<()> {
    text.lines().try_for_each(|line| writeln!(out, "{before}{}", terminal_text::escape(line)))
}

fn search(
    conversations: &Conversations,
    text: &str,
    json: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    if text.trim().is_empty() {
        return Err(Failure::usage(
            "the text to search for is empty",
            "give a text, for example: guard history search 'dark mode'",
        ));
    }
    let hits = conversations.search(text)?;
    if json {
        print_json(&hits, out)?;
    }
    if hits.is_empty() && !json {
        note(&format!(
            "guard: no message of any conversation contains \"{}\"",
            terminal_text::one_line(text)
        ));
    }
    for hit in hits.iter().filter(|_| !json) {
        let excerpt = terminal_text::one_line(&hit.excerpt);
        writeln!(out, "{}  turn {:<3} {:<9} {excerpt}", hit.short_id, hit.turn, hit.role)?;
    }
    Ok(if hits.is_empty() { Exit::Problem } else { Exit::Success })
}

fn diff(next: &NextPrompt, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    if json {
        return Ok(print_json(next, out)?);
    }
    if let Some(summary) = &next.summary {
        writeln!(
            out,
            "summary of {} messages, by {}:",
            summary.covers,
            terminal_text::one_line(&summary.made_by)
        )?;
        write_indented("+ ", &summary.text, out)?;
        for fact in &summary.pinned {
            writeln!(out, "+ kept word for word: {}", terminal_text::one_line(fact))?;
        }
        for fact in &next.lost_facts {
            writeln!(out, "- not in the summary: {}", terminal_text::one_line(fact))?;
        }
        writeln!(out)?;
    }
    if next.left_out.is_empty() {
        writeln!(out, "the next prompt contains every message word for word")?;
    }
    for message in &next.left_out {
        let why = match message {
            message if message.is_in_summary => "in the summary",
            message if message.is_cut => "cut: the prompt leaves out the middle of this message",
            _ => "left out",
        };
        writeln!(out, "turn {}, {} ({why}):", message.turn, message.role)?;
        write_indented("- ", &message.text, out)?;
    }
    writeln!(
        out,
        "\nestimated tokens: {} in all messages, {} in the next prompt without your message (limit: {})",
        next.all_tokens, next.prompt_tokens, next.limit
    )?;
    Ok(())
}

fn compact(conversations: &Conversations, id: &str, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let mut conversation = conversations.open(id)?;
    let cancel = Cancel::default();
    executor::cancel_on_signals(&cancel)?;
    let done = conversation.compact_within(&executor::executor()?, &cancel, SUMMARY_WAIT)?;
    if json {
        return Ok(print_json(&done, out)?);
    }
    writeln!(
        out,
        "a summary replaces older messages: {}; author of the summary: {}; estimated tokens: {} instead of {}",
        done.covers,
        terminal_text::one_line(&done.made_by),
        done.summary_tokens,
        done.replaced_tokens
    )?;
    if let Some(warning) = &done.warning {
        note(&terminal_text::one_line(&format!("guard: warning: {warning}")));
    }
    Ok(())
}

fn undo(conversations: &Conversations, id: &str, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let undone = conversations.open(id)?.undo_turn()?;
    if json {
        return Ok(print_json(&undone, out)?);
    }
    writeln!(
        out,
        "undone: turn {}: {}",
        undone.turn,
        terminal_text::one_line(terminal_text::before(&undone.message, 200))
    )?;
    match &undone.files {
        FilesUndone::MovedBack { saved } => {
            writeln!(out, "the files are as they were before the turn; its work is saved as {saved}")?;
        }
        FilesUndone::Unchanged => {
            writeln!(
                out,
                "the undo changed no files, because the turn has no worktree, or no longer has one"
            )?;
        }
        FilesUndone::NotPossible { reason } => {
            writeln!(out, "the files stay as they are: {}", terminal_text::one_line(reason))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::conversation::ShownSummary;

    #[test]
    fn diff_prints_facts_that_the_summary_lost() {
        let summary = ShownSummary {
            covers: 8,
            text: "They chose SQLite.".to_string(),
            pinned: vec!["never push to main".to_string()],
            made_by: "m".to_string(),
        };
        let next = NextPrompt {
            summary: Some(summary),
            left_out: Vec::new(),
            lost_facts: vec!["port 8080".to_string()],
            all_tokens: 9_000,
            prompt_tokens: 4_000,
            limit: 16_000,
        };
        let mut out = Vec::new();
        assert!(diff(&next, false, &mut out).is_ok());
        let text = String::from_utf8_lossy(&out).into_owned();
        let expected = "+ kept word for word: never push to main\n- not in the summary: port 8080\n";
        assert!(text.contains(expected), "{text}");
    }
}
