//! Shows the progress of `guard exec` and `guard chat --once` on a terminal: the elapsed time, and the agent's last
//! event with a message, such as a tool call or a program start.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::agents::adapter::AgentEvent;
use crate::text::terminal_text;

/// The time between two updates of the progress line.
const PERIOD: Duration = Duration::from_millis(200);
/// The assumed width of the terminal if it does not report one.
const DEFAULT_WIDTH: usize = 80;

#[derive(Default)]
struct Status {
    doing: String,
    has_ended: bool,
}

/// The progress line on standard error. A thread redraws it until this value is dropped.
pub(in crate::cli) struct ExecProgress {
    status: Arc<(Mutex<Status>, Condvar)>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl ExecProgress {
    pub(in crate::cli) fn start() -> Self {
        let status = Arc::new((Mutex::new(Status::default()), Condvar::new()));
        let shared = status.clone();
        // If the thread cannot start, guard shows no progress, but does not fail.
        let thread =
            std::thread::Builder::new().name("progress".to_string()).spawn(move || draw(&shared)).ok();
        Self { status, thread }
    }

    /// Shows the first line of the event's message. Ignores events without a message, and `output` events.
    pub(in crate::cli) fn show(&self, event: &AgentEvent) {
        let first = event.message.lines().next().unwrap_or_default();
        let kind = event.event_type.strip_prefix("agent.").unwrap_or(&event.event_type);
        if first.is_empty() || event.event_type == "output" {
            return;
        }
        let doing = terminal_text::one_line(terminal_text::before(&format!("{kind}: {first}"), 200));
        self.status.0.lock().unwrap_or_else(PoisonError::into_inner).doing = doing;
    }
}

impl Drop for ExecProgress {
    /// Removes the progress line, so that the output that follows begins in the first column.
    fn drop(&mut self) {
        self.status.0.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
        self.status.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}

fn draw(status: &(Mutex<Status>, Condvar)) {
    let began = Instant::now();
    let mut locked = status.0.lock().unwrap_or_else(PoisonError::into_inner);
    while !locked.has_ended {
        let seconds = began.elapsed().as_secs();
        let line = format!("{}m{:02}s {}", seconds / 60, seconds % 60, locked.doing);
        let width = crate::sys::terminal::columns(io::stderr().as_fd()).unwrap_or(DEFAULT_WIDTH).max(2);
        let shown: String = line.chars().take(width - 1).collect();
        let _ = write!(io::stderr(), "\r\x1b[K{shown}");
        locked = status.1.wait_timeout(locked, PERIOD).unwrap_or_else(PoisonError::into_inner).0;
    }
}
