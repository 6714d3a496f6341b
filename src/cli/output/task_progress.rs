//! Shows a task's progress: as lines for users, with an animated line on a terminal, or as JSON events for programs.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::{Timestamp, tz::TimeZone};
use serde_json::json;

use crate::run::transcript::EventType;
use crate::text::terminal_text;
use crate::work::pipeline::TaskEvent;

/// How guard shows the progress of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Form {
    /// guard prints lines of text for users.
    Lines,
    /// guard prints one JSON object per line, for programs.
    Events,
    /// guard shows no progress, and prints only the result at the end.
    Quiet,
}

/// The content of the animated status line.
#[derive(Default)]
struct StatusLine {
    phase: String,
    since: Option<Instant>,
    doing: String,
    /// The tokens and the cost that the task has used so far, as text.
    used: String,
    has_ended: bool,
}

/// Shows the progress of a task as text or as JSON, or not at all.
pub(in crate::cli) struct TaskProgress {
    form: Form,
    status: Option<Arc<Mutex<StatusLine>>>,
}

const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

impl TaskProgress {
    pub(in crate::cli) fn new(form: Form) -> Self {
        let is_terminal = io::stdout().is_terminal() && io::stderr().is_terminal();
        let status = (form == Form::Lines && is_terminal).then(|| {
            let status = Arc::new(Mutex::new(StatusLine::default()));
            let shared = status.clone();
            // The thread ends with the process. If it cannot start, guard shows the progress without the animated line.
            let _ = std::thread::Builder::new().name("live".to_string()).spawn(move || animate(&shared));
            status
        });
        Self { form, status }
    }

    /// Shows an event of the task. Ignores errors: the task must continue even if nobody reads the output.
    pub(in crate::cli) fn show(&self, event: &TaskEvent) {
        match self.form {
            Form::Quiet => {}
            Form::Events => {
                let now = Timestamp::now().to_string();
                let line = json!({ "event_type": event.event_type, "message": event.message, "timestamp": now, "data": event.data });
                let _ = writeln!(io::stdout(), "{line}");
            }
            Form::Lines => self.line(event),
        }
    }

    fn line(&self, event: &TaskEvent) {
        let mut locked =
            self.status.as_ref().map(|status| status.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(status) = &mut locked {
            match event.event_type {
                EventType::TaskStep => {
                    status.phase.clone_from(&event.message);
                    status.since = Some(Instant::now());
                    status.doing.clear();
                    let used = &event.data["used"];
                    status.used = match used["cost"].as_f64().filter(|cost| *cost > 0.0) {
                        Some(cost) => format!("{} tokens, {cost:.2}", used["tokens"]),
                        None => format!("{} tokens", used["tokens"]),
                    };
                }
                EventType::TaskAgent => {
                    let kind = event.data["event"].as_str().unwrap_or_default();
                    let first: String =
                        event.message.lines().next().unwrap_or_default().chars().take(60).collect();
                    status.doing = format!("{kind} {}", terminal_text::one_line(&first));
                }
                EventType::TaskEnded => status.has_ended = true,
                _ => {}
            }
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
        if let Some(line) = status_line(event) {
            let _ = writeln!(io::stdout(), "{}", terminal_text::one_line(&line));
        }
        if event.event_type == EventType::TaskSaid {
            let now = Timestamp::now().to_zoned(TimeZone::system()).strftime("%H:%M:%S").to_string();
            let who = event.data["who"].as_str().unwrap_or_default();
            let _ = writeln!(io::stdout(), "[{now}] {who}: {}", terminal_text::one_line(&event.message));
        }
    }
}

/// Returns the line for an event about the beginning or the end of a step, such as `[PLANNING]... In Progress` or
/// `[PLANNING]... Done`; `None` for other events.
fn status_line(event: &TaskEvent) -> Option<String> {
    let how = match event.event_type {
        EventType::TaskStep => "In Progress",
        EventType::TaskStepEnded => match event.data["outcome"].as_str().unwrap_or_default() {
            "done" => "Done",
            "needs_human" => "Needs Human",
            "budget_exhausted" => "Budget Exhausted",
            _ => "Failed",
        },
        _ => return None,
    };
    Some(format!("[{}]... {how}", event.message))
}

/// Redraws the animated status line until the task has ended.
fn animate(status: &Mutex<StatusLine>) {
    for frame in FRAMES.iter().cycle() {
        std::thread::sleep(Duration::from_millis(120));
        let status = status.lock().unwrap_or_else(PoisonError::into_inner);
        if status.has_ended {
            return;
        }
        if let Some(since) = status.since {
            let seconds = since.elapsed().as_secs();
            let line = format!(
                "{frame} [{}] {}m{:02}s ({}) {}",
                status.phase,
                seconds / 60,
                seconds % 60,
                status.used,
                status.doing
            );
            let _ = write!(io::stderr(), "\r\x1b[K{}", line.chars().take(110).collect::<String>());
        }
    }
}
