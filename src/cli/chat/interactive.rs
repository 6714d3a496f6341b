//! `guard chat` on a terminal: reads messages, shows what the agent does, and runs slash commands.
//!
//! Ctrl-C ends the turn, and Ctrl-D ends the conversation. Errors of a turn or a command never end the conversation.
//! guard stores every turn before it shows that the turn has ended.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use super::editor::{ChatEditor, Input, is_dumb_terminal};
use super::slash_commands;
use super::slash_commands::{COMMANDS, SlashCommand, Typed};
use super::turn_signals::{TurnSignals, restore_terminal};
use super::turn_view::{Tone, TurnView, format_line};
use super::{failed_turn, work_commands};
use crate::agents::adapter;
use crate::agents::conversation::{
    Conversation, ConversationError, Conversations, FilesUndone, TurnOptions, TurnState,
};
use crate::agents::exec::{Cancel, Executor};
use crate::cli::output::exit_code::Exit;
use crate::cli::output::quantities::count;
use crate::cli::output::terminal_summary;
use crate::cli::{Failure, stdout_colour};
use crate::run::transcript::runs_dir;
use crate::text::terminal_text;

/// The maximum length of a message in the list of turns, in characters.
const LONGEST_EXCERPT: usize = 60;

/// Fails unless standard input and output are terminals, on which a person can type messages and read answers.
pub(super) fn check_terminal() -> Result<(), Failure> {
    let problem = match (io::stdin().is_terminal(), io::stdout().is_terminal()) {
        (true, true) => return Ok(()),
        (false, _) => "standard input is not a terminal",
        (true, false) => "standard output is not a terminal",
    };
    Err(Failure::usage(
        format!("{problem}, and an interactive conversation needs a terminal"),
        "send one message: guard chat --once 'MESSAGE', or guard chat --once - to read it from standard input",
    ))
}

/// Runs the conversation until the user leaves. `is_new` is true if this command created the conversation.
pub(super) fn run(
    store: &Conversations,
    conversation: Conversation,
    is_new: bool,
    options: &TurnOptions,
    executor: &Executor,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    // Start the signal thread before any other thread, because threads inherit which signals are blocked.
    let signals = TurnSignals::start()?;
    // Change to the agent's directory, because paths in messages and slash commands are relative to it.
    std::env::set_current_dir(&conversation.record().settings.cd)?;
    let models = adapter::named(conversation.agent())
        .map(|adapter| adapter.models.into_iter().flat_map(|(short, long)| [short, long]).collect());
    let history =
        runs_dir().map_or_else(|_| PathBuf::from("/dev/null"), |runs| runs.with_file_name("chat-history"));
    let has_colour = stdout_colour();
    let editor = ChatEditor::new(history, models.unwrap_or_default(), has_colour)?;
    let mut chat = Chat { conversation, is_new, options, executor, signals, editor, has_colour, out };
    chat.greet()?;
    let left = chat.talk();
    chat.leave(store);
    left
}

struct Chat<'c> {
    conversation: Conversation,
    /// Whether this command created the conversation.
    is_new: bool,
    options: &'c TurnOptions,
    executor: &'c Executor,
    signals: TurnSignals,
    editor: ChatEditor,
    has_colour: bool,
    out: &'c mut dyn Write,
}

/// Whether the conversation continues after a message or a command.
enum Next {
    Ask,
    Leave,
}

impl Chat<'_> {
    fn greet(&mut self) -> io::Result<()> {
        let settings = &self.conversation.record().settings;
        let model = self.conversation.model().map(|model| format!(" ({model})")).unwrap_or_default();
        let place = settings.cd.display().to_string();
        let title = match self.conversation.turns().len() {
            0 => format!("conversation {}", self.conversation.short_id()),
            1 => format!(
                "conversation {}, 1 turn: {}",
                self.conversation.short_id(),
                self.conversation.title()
            ),
            turns => {
                format!(
                    "conversation {}, {turns} turns: {}",
                    self.conversation.short_id(),
                    self.conversation.title()
                )
            }
        };
        let line = format!("guard: {}{model} · {place} · {title}", self.conversation.agent());
        self.remark(&line)?;
        self.remark("/help lists the commands, Ctrl-C ends a turn, Ctrl-D leaves")
    }

    /// Reads messages and commands until the user leaves, or a signal asks guard to end.
    fn talk(&mut self) -> Result<Exit, Failure> {
        let mut interrupts = 0;
        loop {
            self.out.flush()?;
            self.signals.set_farewell(self.farewell());
            let text = match self.editor.read(&prompt(&self.conversation))? {
                Input::End => return Ok(Exit::Success),
                Input::Interrupt => {
                    interrupts += 1;
                    if interrupts > 1 {
                        self.remark("Ctrl-D or /quit leaves the conversation")?;
                    }
                    continue;
                }
                Input::Text(text) => text,
            };
            interrupts = 0;
            let typed = slash_commands::parse(&text);
            if !matches!(typed, Ok(Typed::Nothing)) {
                self.editor.remember(text.trim());
            }
            let next = match typed {
                Ok(Typed::Nothing) => Next::Ask,
                Ok(Typed::Message(message)) => self.turn(&message)?,
                Ok(Typed::Command(command)) => self.command(command)?,
                Err(error) => {
                    self.problem(&error.to_string(), &error.hint())?;
                    Next::Ask
                }
            };
            if let Some(signal) = self.signals.ended_by() {
                return Ok(Exit::Code(u8::try_from(128 + signal as i32).unwrap_or(u8::MAX)));
            }
            if matches!(next, Next::Leave) {
                return Ok(Exit::Success);
            }
        }
    }

    fn turn(&mut self, message: &str) -> io::Result<Next> {
        self.out.flush()?;
        let cancel = Cancel::default();
        let mut view = TurnView::start(self.has_colour, !is_dumb_terminal());
        let (conversation, options, executor) = (&mut self.conversation, self.options, self.executor);
        let mut seen: Vec<String> = Vec::new();
        let result = self.signals.during(&cancel, view.interrupt_remark(), || {
            let result = conversation.run_turn(message, options, executor, &cancel, &mut |event| {
                if event.event_type == crate::run::transcript::EventType::ExecNote {
                    seen.push(event.message.clone());
                }
                view.show(event);
            });
            // Show the answer if the agent has not streamed it. If the turn failed, show no answer: the code below
            // prints the error.
            let answer = if result.exec.run.success { result.exec.run.result.as_str() } else { "" };
            view.finish(answer);
            result
        });
        for note in result.notes.iter().filter(|note| !seen.contains(note)) {
            self.remark(&format!("note: {note}"))?;
        }
        let mut run = result.exec.run;
        let failure = failed_turn::describe(&run, &self.conversation.short_id());
        for (number, line) in failure.iter().enumerate() {
            self.line(if number == 0 { Tone::Problem } else { Tone::Remark }, line)?;
        }
        if result.turn.state == TurnState::Cancelled {
            run.error = Some("cancelled".to_string());
        } else if !failure.is_empty() {
            run.error = Some("failed".to_string());
        }
        self.remark(&terminal_summary::turn_ending(&run))?;
        if self.conversation.is_compacting() {
            self.remark("guard summarises the older messages in the background")?;
        }
        Ok(Next::Ask)
    }

    fn command(&mut self, command: SlashCommand) -> io::Result<Next> {
        match command {
            SlashCommand::Quit => return Ok(Next::Leave),
            SlashCommand::Help => self.help()?,
            SlashCommand::History => self.list_turns()?,
            SlashCommand::Undo => self.undo()?,
            SlashCommand::Clear => {
                let cleared = self.conversation.clear();
                self.report(cleared, |()| {
                    "the agent forgets the earlier messages; the files stay".to_string()
                })?;
            }
            SlashCommand::Compact => self.compact()?,
            SlashCommand::Model(None) => {
                let model = self.conversation.model().unwrap_or_else(|| "the agent's default".to_string());
                self.remark(&format!("model: {model}"))?;
            }
            SlashCommand::Model(Some(name)) => {
                let set = self.conversation.set_model(Some(name).filter(|name| name != "default"));
                let model = self.conversation.model().unwrap_or_else(|| "the agent's default".to_string());
                self.report(set, |()| format!("model: {model}, from the next message on"))?;
            }
            SlashCommand::Fork(turn) => self.fork(turn.map(std::num::NonZeroUsize::get))?,
            SlashCommand::Diff { is_whole, arguments } => {
                let shown = work_commands::diff(&self.conversation, is_whole, &arguments, self.out);
                self.report_failure(shown)?;
            }
            SlashCommand::Apply(arguments) => {
                let applied = work_commands::apply(&self.conversation, &arguments, self.out);
                self.report_failure(applied)?;
            }
            SlashCommand::Why(arguments) => {
                let explained = work_commands::why(&self.conversation, &arguments, self.out);
                self.report_failure(explained)?;
            }
        }
        Ok(Next::Ask)
    }

    fn help(&mut self) -> io::Result<()> {
        for entry in &COMMANDS {
            let usage = format!("{} {}", entry.name, entry.arguments);
            writeln!(self.out, "  {usage:<34} {}", entry.description)?;
        }
        writeln!(
            self.out,
            "\n  Enter sends; \\ and Enter, or Alt-Enter, begins another line; Tab completes commands and paths; ↑ brings\n  \
             earlier messages back, Ctrl-R searches them. Put a space before a message that begins with a slash."
        )
    }

    fn list_turns(&mut self) -> io::Result<()> {
        if self.conversation.turns().is_empty() {
            return self.remark("there are no turns yet");
        }
        for turn in self.conversation.turns() {
            let message = terminal_text::one_line(&turn.user);
            let mut excerpt: String = message.chars().take(LONGEST_EXCERPT).collect();
            if excerpt.len() < message.len() {
                excerpt.push('…');
            }
            let refused = match turn.denials {
                0 => String::new(),
                1 => " · 1 action refused".to_string(),
                denials => format!(" · {denials} actions refused"),
            };
            let seconds = turn.duration_ms as f64 / 1000.0;
            writeln!(
                self.out,
                "{:>3}  {:<11} {seconds:>6.1} s  {excerpt}{refused}",
                turn.number,
                turn.state.name()
            )?;
        }
        Ok(())
    }

    fn undo(&mut self) -> io::Result<()> {
        let undone = self.conversation.undo_turn();
        self.report(undone, |undone| {
            let files = match &undone.files {
                FilesUndone::MovedBack { saved } => {
                    format!(
                        "the files are as they were before the turn (`guard restore {saved}` brings the turn's work back on a new branch)"
                    )
                }
                FilesUndone::Unchanged => {
                    "the undo changed no files, because the turn has no worktree, or no longer has one".to_string()
                }
                FilesUndone::NotPossible { reason } => format!("the files stay as they are: {reason}"),
            };
            format!("turn {} is undone; {files}", undone.turn)
        })
    }

    fn compact(&mut self) -> io::Result<()> {
        let cancel = Cancel::default();
        let view = TurnView::start(self.has_colour, !is_dumb_terminal());
        let (conversation, executor) = (&mut self.conversation, self.executor);
        let compacted = self.signals.during(&cancel, view.interrupt_remark(), || {
            let compacted = conversation.compact_now(executor, &cancel);
            view.finish("");
            compacted
        });
        let now = context(&self.conversation);
        self.report(compacted, |_| {
            format!("the older messages are summarised; tokens of the next prompt, and the limit: {now}")
        })
    }

    fn fork(&mut self, turn: Option<usize>) -> io::Result<()> {
        let old = self.conversation.short_id();
        let forked = self.conversation.fork(turn);
        let forked = match forked {
            Ok(forked) => {
                self.conversation = forked;
                Ok(())
            }
            Err(error) => Err(error),
        };
        let (new, turns) = (self.conversation.short_id(), count(self.conversation.turns().len(), "turn"));
        self.report(forked, |()| {
            format!(
                "you are in the copy {new} now, with {turns}; to return to the original: guard chat --session {old}"
            )
        })
    }

    /// Prints the result of a slash command: the text that `success` returns, or the error with its hint.
    fn report<T>(
        &mut self,
        result: Result<T, ConversationError>,
        success: impl FnOnce(T) -> String,
    ) -> io::Result<()> {
        match result {
            Ok(value) => self.remark(&success(value)),
            Err(error) => self.problem(&error.to_string(), error.hint()),
        }
    }

    /// Prints why a guard command, such as `guard diff`, failed.
    fn report_failure(&mut self, result: Result<(), Failure>) -> io::Result<()> {
        self.out.flush()?;
        match result {
            Ok(()) => Ok(()),
            Err(Failure::Usage { message, hint }) => self.problem(&message, &hint),
            Err(other) => self.problem(&other.render(), "/help lists the commands"),
        }
    }

    fn remark(&mut self, text: &str) -> io::Result<()> {
        self.line(Tone::Remark, text)
    }

    fn problem(&mut self, message: &str, hint: &str) -> io::Result<()> {
        self.line(Tone::Problem, message)?;
        self.remark(&format!("  hint: {hint}"))
    }

    fn line(&mut self, tone: Tone, text: &str) -> io::Result<()> {
        self.out.write_all(format_line(tone, text, self.has_colour, None).as_bytes())?;
        self.out.flush()
    }

    fn farewell(&self) -> String {
        if self.conversation.record().turns.is_empty() {
            return String::new();
        }
        format!("come back: guard chat --session {}\n", self.conversation.short_id())
    }

    /// Prints how to continue the conversation later. Deletes a new conversation without messages.
    fn leave(mut self, store: &Conversations) {
        restore_terminal();
        let farewell = self.farewell();
        if !farewell.is_empty() {
            let _ = self.remark(farewell.trim_end());
        }
        let (id, is_unused) = (self.conversation.id().to_string(), self.is_new && farewell.is_empty());
        drop(self.conversation);
        if is_unused {
            let _ = store.delete(&id);
        }
    }
}

/// Returns the prompt: the agent's name, and the estimated size of the conversation with its limit.
fn prompt(conversation: &Conversation) -> String {
    format!("{} · {} › ", conversation.agent(), context(conversation))
}

/// Returns the estimated size of the conversation and its limit, in tokens.
fn context(conversation: &Conversation) -> String {
    let used = conversation.context_use();
    format!("{}/{}", tokens(used.estimated_tokens), tokens(used.limit))
}

/// Formats a number of tokens in a short form: `850`, `3.2k`, `16k`, `1M`.
fn tokens(number: usize) -> String {
    match number {
        0..1_000 => number.to_string(),
        1_000..9_950 => format!("{:.1}k", number as f64 / 1e3).replace(".0k", "k"),
        9_950..999_500 => format!("{:.0}k", number as f64 / 1e3),
        _ => format!("{:.1}M", number as f64 / 1e6).replace(".0M", "M"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_counts_are_short() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1k"),
            (3_249, "3.2k"),
            (9_960, "10k"),
            (16_000, "16k"),
            (999_499, "999k"),
            (1_000_000, "1M"),
            (1_048_576, "1M"),
            (2_500_000, "2.5M"),
        ] {
            assert_eq!(tokens(number), text);
        }
    }
}
