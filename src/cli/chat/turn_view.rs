//! Shows a turn while the agent works: the answer as it arrives, a line for each tool call and each refusal, and
//! below them a status line with the elapsed time.
//!
//! All displayed text is untrusted; [`Markdown`] or [`terminal_text`] makes it safe.

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::markdown::Markdown;
use crate::agents::adapter::AgentEvent;
use crate::cli::commands::executor::AFTER_INTERRUPT;
use crate::cli::output::line_width::{cut, terminal_width};
use crate::run::transcript::EventType;
use crate::text::terminal_text;

/// The time between two updates of the status line.
const PERIOD: Duration = Duration::from_millis(120);
/// The maximum number of refusals of a turn that guard prints.
const MOST_REFUSALS: usize = 12;
/// The maximum length of a line about a turn, in bytes.
const LONGEST_LINE: usize = 1_000;
const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// The kind of a line, which determines the symbol before it and its style.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Tool,
    Refusal,
    Problem,
    Remark,
}

impl Tone {
    /// Returns the symbol that stands before a line of this kind, and the escape sequence of its style.
    fn look(self) -> (&'static str, &'static str) {
        match self {
            Self::Tool => ("● ", "\x1b[36m"),
            Self::Refusal => ("✗ ", "\x1b[33m"),
            Self::Problem => ("✗ ", "\x1b[31m"),
            Self::Remark => ("", "\x1b[2m"),
        }
    }
}

/// What the display shows for an event.
#[derive(Debug, PartialEq, Eq)]
enum Shown {
    /// A part of the answer. If `is_whole` is true, the part is a complete message, which begins and ends on its own
    /// line.
    Answer {
        text: String,
        is_whole: bool,
    },
    /// Text for a separate line, and the kind of the line.
    Line(Tone, String),
    /// What the agent is doing, for the status line.
    Doing(String),
    Nothing,
}

/// The state that the display shares with the thread that draws the status line.
#[derive(Default)]
struct Screen {
    doing: String,
    /// Whether the status line is on the screen.
    is_drawn: bool,
    /// Whether the cursor is inside an unfinished line of the answer.
    is_in_line: bool,
    has_ended: bool,
}

#[derive(Default)]
struct Shared {
    screen: Mutex<Screen>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Screen> {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Screen {
    /// Removes the status line.
    fn erase(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// Prints text that is already safe. Ignores errors: if the terminal is closed, guard notices it when it reads
    /// the next message.
    fn print(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.erase();
        let mut out = io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        self.is_in_line = !text.ends_with('\n');
    }
}

pub(super) struct TurnView {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
    markdown: Markdown,
    has_colour: bool,
    refusals: HashSet<String>,
    /// Whether the display has shown a part of the answer since the last tool call.
    has_answer: bool,
}

impl TurnView {
    /// Starts the display. `has_spinner` is false for terminals that cannot erase a line.
    pub(super) fn start(has_colour: bool, has_spinner: bool) -> Self {
        let shared = Arc::new(Shared::default());
        let drawn = shared.clone();
        let draw = move || draw(&drawn);
        // If the thread cannot start, guard shows no status line, but does not fail.
        let thread = has_spinner
            .then(|| std::thread::Builder::new().name("progress".to_string()).spawn(draw).ok())
            .flatten();
        let markdown = Markdown::new(has_colour);
        Self { shared, thread, markdown, has_colour, refusals: HashSet::new(), has_answer: false }
    }

    pub(super) fn show(&mut self, event: &AgentEvent) {
        match shown(event) {
            Shown::Nothing => {}
            Shown::Doing(text) => self.shared.lock().doing = text,
            Shown::Answer { text, is_whole } => self.show_answer(&text, is_whole),
            Shown::Line(Tone::Refusal, text) => self.show_refusal(&text),
            Shown::Line(tone, text) => {
                self.has_answer &= tone != Tone::Tool;
                self.line(tone, &text);
            }
        }
    }

    fn show_answer(&mut self, text: &str, is_whole: bool) {
        let mut out = if is_whole { self.markdown.finish() } else { String::new() };
        out.push_str(&self.markdown.push(text));
        if is_whole {
            out.push_str(&self.markdown.finish());
        }
        self.has_answer |= !text.trim().is_empty();
        self.shared.lock().print(&out);
    }

    /// Prints a refusal, unless the display has already printed an equal one. After `MOST_REFUSALS` different refusals,
    /// prints once that there are more, and then nothing.
    fn show_refusal(&mut self, text: &str) {
        if self.refusals.len() > MOST_REFUSALS || !self.refusals.insert(text.to_string()) {
            return;
        }
        if self.refusals.len() > MOST_REFUSALS {
            self.line(Tone::Refusal, "guard refused more actions; /why lists all of them");
        } else {
            self.line(Tone::Refusal, text);
        }
    }

    /// Prints `text` on a separate line. Shortens a tool call to the width of the terminal; other text may wrap.
    fn line(&mut self, tone: Tone, text: &str) {
        let mut out = self.markdown.finish();
        let columns = (tone == Tone::Tool).then(terminal_width);
        let text = terminal_text::shorten(text, LONGEST_LINE);
        out.push_str(&format_line(tone, &text, self.has_colour, columns));
        self.shared.lock().print(&out);
    }

    /// Returns a function that says, from another thread, what Ctrl-C has done, and what the next one does.
    pub(super) fn interrupt_remark(&self) -> impl Fn() + Send + 'static {
        let (shared, has_colour) = (self.shared.clone(), self.has_colour);
        move || {
            let mut screen = shared.lock();
            let line_end = if screen.is_in_line { "\n" } else { "" };
            let line = format_line(Tone::Remark, AFTER_INTERRUPT, has_colour, None);
            screen.print(&format!("{line_end}{line}"));
        }
    }

    /// Ends the display. Prints `answer` unless the display has shown a part of the answer since the last tool call.
    pub(super) fn finish(mut self, answer: &str) {
        if !self.has_answer && !answer.trim().is_empty() {
            self.show_answer(answer, true);
        }
        let rest = self.markdown.finish();
        self.shared.lock().print(&rest);
    }
}

impl Drop for TurnView {
    /// Stops the thread and removes the status line.
    fn drop(&mut self) {
        self.shared.lock().has_ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.lock().erase();
    }
}

/// Formats a line with the symbol and the style of its kind. Makes the text safe, and shortens it to `width` if a
/// width is given.
pub(super) fn format_line(tone: Tone, text: &str, has_colour: bool, width: Option<usize>) -> String {
    let (mark, style) = tone.look();
    let line = format!("{mark}{}", terminal_text::one_line(text));
    let line = width.map_or_else(|| line.clone(), |width| cut(&line, width));
    if has_colour { format!("{style}{line}\x1b[m\n") } else { format!("{line}\n") }
}

/// Draws the status line until the turn ends, except while the cursor is inside a line of the answer.
fn draw(shared: &Shared) {
    let began = Instant::now();
    let mut frames = FRAMES.iter().cycle();
    let mut screen = shared.lock();
    while !screen.has_ended {
        if !screen.is_in_line {
            let seconds = began.elapsed().as_secs();
            let time = if seconds < 60 {
                format!("{seconds} s")
            } else {
                format!("{}m{:02}s", seconds / 60, seconds % 60)
            };
            let frame = frames.next().copied().unwrap_or_default();
            let doing = if screen.doing.is_empty() { "Ctrl-C ends the turn" } else { &screen.doing };
            let line = cut(&format!("{frame} {time} · {doing}"), terminal_width());
            let _ = write!(io::stderr(), "\r\x1b[K{line}");
            screen.is_drawn = true;
        }
        screen = shared.changed.wait_timeout(screen, PERIOD).unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn shown(event: &AgentEvent) -> Shown {
    let data = &event.data;
    if event.event_type.starts_with("deny.") {
        return Shown::Line(Tone::Refusal, refusal(event));
    }
    let Ok(event_type) = event.event_type.parse::<EventType>() else { return Shown::Nothing };
    match event_type {
        EventType::AgentMessage if is_answer(data) => Shown::Answer {
            text: event.message.clone(),
            is_whole: data.get("delta").and_then(Value::as_bool) != Some(true),
        },
        // Codex reports every change of a tool call in progress. guard shows only the call itself.
        EventType::AgentToolUse if data["type"] == "item.updated" => Shown::Nothing,
        EventType::AgentToolUse => Shown::Line(Tone::Tool, tool_call(event)),
        EventType::AgentToolResult => tool_failure(event),
        EventType::AgentError | EventType::GatewayError => {
            Shown::Line(Tone::Problem, first_line(&event.message).to_string())
        }
        EventType::ExecNote => Shown::Line(Tone::Remark, format!("note: {}", event.message)),
        EventType::ExecRetry => {
            let wait = data["wait_ms"].as_u64().unwrap_or_default() as f64 / 1000.0;
            let kind = data["error_kind"].as_str().unwrap_or("error");
            Shown::Line(Tone::Remark, format!("{kind}: trying again in {wait:.1} s"))
        }
        EventType::AgentText | EventType::AgentStatus | EventType::AgentTurn | EventType::Exec => {
            let text = terminal_text::one_line(terminal_text::before(first_line(&event.message), 200));
            if text.trim().is_empty() { Shown::Nothing } else { Shown::Doing(text) }
        }
        _ => Shown::Nothing,
    }
}

/// Returns true if a message is part of the answer, and not the user's own message or the agent's reasoning.
fn is_answer(data: &Value) -> bool {
    let block = &data["message"]["content"][0]["type"];
    data["role"] != "user" && data["item"]["type"] != "reasoning" && (block.is_null() || block == "text")
}

fn first_line(text: &str) -> &str {
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default()
}

/// Describes a refusal: what guard refused, and by which rule. Uses the event's message if the event does not name the
/// refused action.
fn refusal(event: &AgentEvent) -> String {
    let text = |key: &str| event.data[key].as_str().filter(|text| !text.is_empty());
    match (text("what"), text("rule")) {
        (Some(what), Some(rule)) => format!("refused: {what} (rule {rule})"),
        (Some(what), None) => format!("refused: {what}"),
        _ => format!("refused: {}", first_line(&event.message)),
    }
}

/// Describes a tool call: the name of the tool, and its most informative argument, such as a command or a path.
fn tool_call(event: &AgentEvent) -> String {
    const TELLING: [&str; 9] =
        ["command", "file_path", "path", "absolute_path", "dir_path", "pattern", "query", "url", "prompt"];
    let places = [&event.data["parameters"], &event.data["message"]["content"][0]["input"]];
    let arguments = places.into_iter().find_map(Value::as_object);
    let telling = arguments.and_then(|arguments| {
        let named = TELLING.iter().find_map(|name| arguments.get(*name)?.as_str());
        named.or_else(|| arguments.values().find_map(Value::as_str))
    });
    match telling {
        Some(argument) => format!("{}: {}", event.message, terminal_text::before(argument, 500)),
        None => event.message.clone(),
    }
}

/// Returns a line for a tool call that failed, and `Shown::Nothing` for a call that succeeded, because the display has
/// already shown the call.
fn tool_failure(event: &AgentEvent) -> Shown {
    let data = &event.data;
    let block = &data["message"]["content"][0];
    let has_failed =
        data["status"] == "error" || block["is_error"] == true || data["item"]["status"] == "failed";
    if !has_failed {
        return Shown::Nothing;
    }
    let texts =
        [&data["error"]["message"], &data["output"], &block["content"], &data["item"]["aggregated_output"]];
    let text = texts.into_iter().find_map(Value::as_str).unwrap_or(&event.message);
    Shown::Line(Tone::Remark, format!("  failed: {}", first_line(text)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(event_type: EventType, message: &str, data: Value) -> AgentEvent {
        AgentEvent::new(event_type, message, data)
    }

    #[test]
    fn only_the_answer_is_text() {
        let message = |data: Value| shown(&event(EventType::AgentMessage, "hello", data));
        let answer = |is_whole| Shown::Answer { text: "hello".to_string(), is_whole };
        assert_eq!(message(json!({"role": "assistant", "content": "hello", "delta": true})), answer(false));
        assert_eq!(message(json!({"item": {"type": "agent_message"}})), answer(true));
        assert_eq!(
            message(json!({"message": {"content": [{"type": "text", "text": "hello"}]}})),
            answer(true)
        );
        for other in [
            json!({"role": "user"}),
            json!({"item": {"type": "reasoning"}}),
            json!({"message": {"content": [{"type": "thinking"}]}}),
        ] {
            assert_eq!(message(other), Shown::Nothing);
        }
    }

    #[test]
    fn tool_calls_and_refusals_are_one_line_each() {
        let line = |event: &AgentEvent| match shown(event) {
            Shown::Line(tone, text) => format_line(tone, &text, false, Some(60)),
            other => panic!("{other:?}"),
        };
        let call = json!({"tool_name": "run_shell_command", "parameters": {"description": "x", "command": "npm test\nrm x"}});
        assert_eq!(
            line(&event(EventType::AgentToolUse, "run_shell_command", call)),
            "● run_shell_command: npm test rm x\n"
        );
        let call = json!({"message": {"content": [{"type": "tool_use", "name": "Read", "input": {"file_path": "/a\u{1b}[2J"}}]}});
        assert_eq!(line(&event(EventType::AgentToolUse, "Read", call)), "● Read: /a\u{fffd}[2J\n");
        assert_eq!(
            line(&event(EventType::AgentToolUse, "bash -lc ls", json!({"item": {}}))),
            "● bash -lc ls\n"
        );
        let refused = json!({"what": "git push", "rule": "git.remote", "reason": "No."});
        assert_eq!(
            line(&event(EventType::DenyExec, "git push", refused)),
            "✗ refused: git push (rule git.remote)\n"
        );
        let failed = json!({"status": "error", "error": {"message": "\nno such file\nmore"}});
        assert_eq!(line(&event(EventType::AgentToolResult, "error", failed)), "  failed: no such file\n");
        assert_eq!(
            shown(&event(EventType::AgentToolResult, "success", json!({"status": "success"}))),
            Shown::Nothing
        );
        let long = "x".repeat(100);
        assert_eq!(line(&event(EventType::ExecNote, &long, json!({}))).chars().count(), 59);
        let wait = json!({"wait_ms": 1500, "error_kind": "rate_limited"});
        assert_eq!(line(&event(EventType::ExecRetry, "", wait)), "rate_limited: trying again in 1.5 s\n");
    }
}
