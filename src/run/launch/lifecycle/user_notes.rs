//! guard's notes to the user on the terminal while the agent runs: what a press of Ctrl-C has done, and what the next one
//! does.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::caller_output::write_to_caller;
use super::terminal::Screen;

/// Prints notes on the user's terminal.
#[derive(Debug)]
pub(crate) struct UserNotes {
    /// guard's standard error, if it is a terminal.
    terminal: Option<OwnedFd>,
    screen: Screen,
}

impl UserNotes {
    pub(crate) fn new(terminal: Option<OwnedFd>, screen: Screen) -> Self {
        Self { terminal, screen }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let terminal = self.terminal.as_ref().map(|terminal| terminal.as_fd().try_clone_to_owned());
        Ok(Self { terminal: terminal.transpose()?, screen: self.screen.clone() })
    }

    /// Prints a note as a line of its own, in a separate thread: a terminal whose output the user has stopped (Ctrl-S)
    /// must neither delay the end of the run nor keep the user's keys from the agent. Returns false without printing if
    /// the note must wait, because guard asks a question or writes output of the agent.
    pub(crate) fn print(&self, note: &str) -> bool {
        let Some(terminal) = &self.terminal else { return true };
        if self.screen.try_lock().is_none() {
            return false;
        }
        let Ok(terminal) = terminal.as_fd().try_clone_to_owned() else { return true };
        let (screen, note) = (self.screen.clone(), note.to_string());
        let work = move || {
            let state = screen.lock();
            // In raw mode, every line needs a carriage return.
            let line = format!("{}{note}\r\n", state.begin_line());
            let _ = write_to_caller(&terminal, line.as_bytes());
        };
        let _ = std::thread::Builder::new().name("note".to_string()).spawn(work);
        true
    }
}
