//! A real terminal for tests: types lines into a shell in tmux, and reads the screen.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{TestEnvironment, guard_program, skip};

/// The time limit for the screen to show something, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// A shell in a tmux terminal. Dropping the value ends both.
pub(crate) struct Terminal<'w> {
    environment: &'w TestEnvironment,
    server: String,
}

impl<'w> Terminal<'w> {
    /// Opens a terminal. Without tmux the test fails in CI, and is skipped elsewhere with a message.
    pub(crate) fn open(environment: &'w TestEnvironment) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            skip("guard at a terminal", "tmux is not installed; scripts/setup installs it");
            return None;
        }
        // Each terminal has its own socket, because the socket of an earlier one may still exist for a moment.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("tmux-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let server = environment.directory.with_file_name(name).to_string_lossy().into_owned();
        let terminal = Self { environment, server };
        let mut start = environment.command("tmux");
        start.args(["-S", &terminal.server, "-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30"]);
        start.args(["bash", "--norc", "--noprofile"]);
        let run = environment.guard_run_arguments(&[], &[]);
        let run = run.iter().filter(|word| *word != "--").cloned().collect::<Vec<_>>().join(" ");
        start.env("GUARD", guard_program()).env("RUN", format!("{} {run}", guard_program().display()));
        start.env("PS1", "READY> ").env("TERM", "screen").env("LESS", "");
        let outcome = environment.run_to_end(start, b"");
        outcome.expect_code(0);
        terminal.shows("READY>");
        Some(terminal)
    }

    pub(crate) fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = self.environment.command("tmux");
        command.args(["-S", &self.server]).args(arguments);
        String::from_utf8_lossy(&self.environment.run_to_end(command, b"").output).into_owned()
    }

    /// Presses keys, which have tmux's names.
    pub(crate) fn press(&self, keys: &str) {
        self.tmux(&["send-keys", keys]);
    }

    /// Types a line and presses Enter.
    pub(crate) fn types(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.press("Enter");
    }

    pub(crate) fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-J", "-S", "-200"])
    }

    /// Waits until the screen shows this text. Returns the screen.
    pub(crate) fn shows(&self, text: &str) -> String {
        self.waits_for(text, |screen| screen.contains(text))
    }

    /// Waits until the condition holds for the screen. `what` describes the condition for the error message. Returns
    /// the screen.
    pub(crate) fn waits_for(&self, what: &str, is_there: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let screen = self.screen();
            if is_there(&screen) {
                return screen;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "{}: {what:?} is not shown:\n{screen}",
                self.environment.name()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}
