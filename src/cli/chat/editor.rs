//! Reads the user's input with a line editor: history, messages of several lines, and completion.
//!
//! Enter sends the message. Alt-Enter, or a backslash before Enter, begins another line. Pasted text stays one
//! message. A terminal that cannot move the cursor (`TERM=dumb`) has no line editing, but everything else works.

use std::borrow::Cow;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{
    Cmd, ColorMode, CompletionType, ConditionalEventHandler, Config, Context, Editor, Event, EventContext,
    EventHandler, Helper, KeyCode, KeyEvent, Modifiers, RepeatCount,
};

use super::slash_commands::COMMANDS;
use crate::text::terminal_text;

/// The maximum number of messages in the history.
const MOST_ENTRIES: usize = 1_000;
/// The maximum number of directory entries that completion reads.
const MOST_FILES: usize = 10_000;

/// What the user entered at the prompt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    Text(String),
    /// The user pressed Ctrl-C.
    Interrupt,
    /// The user pressed Ctrl-D on an empty line, or the input ended.
    End,
}

/// The line editor, with its history file.
pub(super) struct ChatEditor {
    editor: Editor<Assistant, FileHistory>,
    history: PathBuf,
    continued: ContinuedLines,
    has_colour: bool,
    is_dumb: bool,
}

impl ChatEditor {
    /// Creates the editor. `history` is the path of the history file; if guard cannot read it, the history is empty.
    /// `models` are the names that the editor offers after `/model`.
    pub(super) fn new(history: PathBuf, models: Vec<String>, has_colour: bool) -> io::Result<Self> {
        let config = Config::builder()
            .max_history_size(MOST_ENTRIES)
            .map_err(error)?
            .history_ignore_dups(true)
            .map_err(error)?
            .completion_type(CompletionType::List)
            .completion_show_all_if_ambiguous(true)
            .bracketed_paste(true)
            .color_mode(if has_colour { ColorMode::Enabled } else { ColorMode::Disabled })
            .build();
        let mut editor =
            Editor::with_history(config.clone(), FileHistory::with_config(&config)).map_err(error)?;
        editor.set_helper(Some(Assistant { models }));
        let continued = ContinuedLines::default();
        // Bind Ctrl-J like Enter: if the user presses Enter before the editor starts reading, the terminal may convert
        // the key to Ctrl-J.
        for (enter, modifiers) in [(KeyCode::Enter, Modifiers::NONE), (KeyCode::Char('J'), Modifiers::CTRL)] {
            let begins_line = Event::from(KeyEvent(enter, modifiers | Modifiers::ALT));
            editor.bind_sequence(begins_line, EventHandler::Simple(Cmd::Newline));
            let on_enter = Box::new(Continuation { lines: continued.clone() });
            let sends = Event::from(KeyEvent(enter, modifiers));
            editor.bind_sequence(sends, EventHandler::Conditional(on_enter));
        }
        let _ = editor.load_history(&history);
        let is_dumb = is_dumb_terminal();
        Ok(Self { editor, history, continued, has_colour, is_dumb })
    }

    /// Reads the next message or command from the user. Removes control characters other than tabs and newlines.
    pub(super) fn read(&mut self, prompt: &str) -> io::Result<Input> {
        let styled = if self.has_colour { format!("\x1b[2m{prompt}\x1b[m") } else { prompt.to_string() };
        let mut text = String::new();
        loop {
            self.continued.take();
            match self.editor.readline(&(prompt, styled.as_str())) {
                Ok(line) => text.push_str(&line),
                Err(ReadlineError::Interrupted) => return Ok(Input::Interrupt),
                Err(ReadlineError::Eof) => return Ok(Input::End),
                Err(ReadlineError::Signal(_)) => continue,
                Err(other) => return Err(error(other)),
            }
            // On a dumb terminal there is no line editing, so no key binding handles a backslash before Enter.
            if self.is_dumb && text.ends_with('\\') {
                text.pop();
                text.push('\n');
                continue;
            }
            let text = without_backslashes(&text, self.continued.take());
            let is_kept = |one: &char| !one.is_control() || matches!(one, '\n' | '\t');
            return Ok(Input::Text(text.chars().filter(is_kept).collect()));
        }
    }

    /// Adds the user's input to the history. Ignores errors, because the history is only a convenience.
    pub(super) fn remember(&mut self, text: &str) {
        let _ = self.editor.add_history_entry(text);
        let folder = self.history.parent().unwrap_or(Path::new("/"));
        let _ = std::fs::DirBuilder::new().mode(0o700).recursive(true).create(folder);
        let _ = self.editor.append_history(&self.history);
        // The editor creates the file with mode 600. Also correct the mode of a file that existed before.
        let _ = std::fs::set_permissions(&self.history, std::fs::Permissions::from_mode(0o600));
    }
}

/// Returns true if the terminal cannot move its cursor: if `TERM` is unset, empty or `dumb`.
pub(super) fn is_dumb_terminal() -> bool {
    std::env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb")
}

fn error(error: ReadlineError) -> io::Error {
    match error {
        ReadlineError::Io(error) => error,
        ReadlineError::Errno(error) => error.into(),
        other => io::Error::other(other),
    }
}

/// The lines that the user ended with a backslash and Enter. guard removes these backslashes, but keeps a backslash
/// at the end of a pasted line, which is part of the message.
#[derive(Clone, Default)]
struct ContinuedLines(Arc<Mutex<Vec<String>>>);

impl ContinuedLines {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A key handler that begins another line if the user presses Enter after a backslash.
struct Continuation {
    lines: ContinuedLines,
}

impl ConditionalEventHandler for Continuation {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext<'_>) -> Option<Cmd> {
        let line = context.line();
        if context.pos() < line.len() || !line.ends_with('\\') {
            return None;
        }
        let last = line.rsplit('\n').next().unwrap_or(line).to_string();
        self.lines.0.lock().unwrap_or_else(PoisonError::into_inner).push(last);
        Some(Cmd::Newline)
    }
}

/// Removes the backslash from the end of each line that the user continued with Enter.
fn without_backslashes(text: &str, mut continued: Vec<String>) -> String {
    let lines = text.split('\n').map(|line| {
        let found = continued.iter().position(|one| one == line);
        match found.map(|at| continued.swap_remove(at)) {
            Some(_) => line.strip_suffix('\\').unwrap_or(line),
            None => line,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Completes the user's input, and makes it safe to display.
struct Assistant {
    models: Vec<String>,
}

impl Helper for Assistant {}
impl Validator for Assistant {}
impl Hinter for Assistant {
    type Hint = String;
}

impl Highlighter for Assistant {
    /// Removes characters that would control the terminal from the displayed line. This does not move the cursor's
    /// column, because these characters have no width.
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        let is_shown = |one: char| matches!(one, '\n' | '\t') || !terminal_text::is_unsafe(one);
        if line.chars().all(is_shown) {
            return line.into();
        }
        line.chars().filter(|one| is_shown(*one)).collect::<String>().into()
    }

    fn highlight_char(&self, line: &str, _: usize, _: rustyline::highlight::CmdKind) -> bool {
        line.chars().any(|one| !matches!(one, '\n' | '\t') && terminal_text::is_unsafe(one))
    }
}

impl Completer for Assistant {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(complete(&line[..at], &self.models))
    }
}

/// Returns the completions of a text: the offset of the word to complete, and its possible replacements.
fn complete(text: &str, models: &[String]) -> (usize, Vec<String>) {
    let start = text
        .rfind(char::is_whitespace)
        .map_or(0, |at| at + text[at..].chars().next().map_or(0, char::len_utf8));
    let word = &text[start..];
    if start == 0 && (word.is_empty() || word.starts_with('/')) {
        let names = COMMANDS.iter().map(|entry| entry.name).filter(|name| name.starts_with(word));
        let names: Vec<String> = names.map(|name| format!("{name} ")).collect();
        if !names.is_empty() {
            return (0, names);
        }
    }
    if text[..start].trim() == "/model" {
        return (start, models.iter().filter(|model| model.starts_with(word)).cloned().collect());
    }
    // Agents read a file if its path follows an `@`.
    let path = word.strip_prefix('@').unwrap_or(word);
    (start + word.len() - path.len(), complete_path(path))
}

/// Returns the paths that begin with a text, sorted. Directories end with a slash. Leaves out names with white space or
/// unsafe characters, and hidden names unless the text asks for them. Reads at most `MOST_FILES` entries.
fn complete_path(text: &str) -> Vec<String> {
    let (folder, beginning) =
        text.rsplit_once('/').map_or(("", text), |(folder, rest)| (&text[..=folder.len()], rest));
    let Ok(entries) = std::fs::read_dir(if folder.is_empty() { "." } else { folder }) else {
        return Vec::new();
    };
    let mut found: Vec<String> = Vec::new();
    for entry in entries.take(MOST_FILES).flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let is_wanted = name.starts_with(beginning)
            && (!name.starts_with('.') || beginning.starts_with('.'))
            && !name.chars().any(|one| terminal_text::is_unsafe(one) || one.is_whitespace());
        if is_wanted {
            let is_directory = entry.path().is_dir();
            found.push(format!("{folder}{name}{}", if is_directory { "/" } else { "" }));
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(text: &str) -> (usize, Vec<String>) {
        complete(text, &["gemini-3-pro".to_string(), "gemini-3-flash".to_string()])
    }

    #[test]
    fn commands_and_models_are_completed() {
        assert_eq!(completed("/hi"), (0, vec!["/history ".to_string()]));
        assert_eq!(completed("/").1.len(), COMMANDS.len());
        assert_eq!(completed("").1.len(), COMMANDS.len());
        assert_eq!(completed("/model gemini-3-p"), (7, vec!["gemini-3-pro".to_string()]));
        assert_eq!(completed("/model ").1.len(), 2);
        assert!(completed("say /hi").1.is_empty());
    }

    #[test]
    fn paths_are_completed() {
        let directory = std::env::temp_dir().join(format!("guard-chat-complete-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("source/deep")).expect("a directory");
        for name in ["source.txt", ".hidden", "two words", "tricky\u{202e}"] {
            std::fs::write(directory.join(name), "").expect("a file");
        }
        let at = directory.display();
        let found = |text: &str| completed(&format!("look at {text}"));
        let (start, names) = found(&format!("{at}/so"));
        assert_eq!((start, names), (8, vec![format!("{at}/source.txt"), format!("{at}/source/")]));
        assert_eq!(found(&format!("@{at}/source/")), (9, vec![format!("{at}/source/deep/")]));
        assert_eq!(found(&format!("{at}/.h")).1, [format!("{at}/.hidden")]);
        assert!(found(&format!("{at}/t")).1.is_empty());
        assert!(found("/no/such/directory/x").1.is_empty());
        std::fs::remove_dir_all(directory).expect("the directory can be removed");
    }

    #[test]
    fn only_continued_lines_lose_their_backslash() {
        let continued = || vec!["a \\".to_string()];
        assert_eq!(without_backslashes("a \\\nb \\\nc", continued()), "a \nb \\\nc");
        assert_eq!(without_backslashes("changed", continued()), "changed");
        assert_eq!(without_backslashes("a \\\na \\", continued()), "a \na \\");
    }

    #[test]
    fn what_controls_the_terminal_is_not_shown() {
        let assistant = Assistant { models: Vec::new() };
        assert_eq!(assistant.highlight("a\u{1b}[2J\u{202e}\tb\n", 0), "a[2J\tb\n");
        assert_eq!(assistant.highlight("plain ö", 0), "plain ö");
    }
}
