//! Handles signals in an interactive conversation: Ctrl-C ends the turn, and every other signal that asks guard to
//! exit ends the conversation. Also keeps the terminal from echoing keys that the user presses during a turn.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::signal::Signal;
use nix::sys::termios::{InputFlags, LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

use super::editor::is_dumb_terminal;
use crate::agents::exec::Cancel;
use crate::sys::{process, signals};

/// The state that the signal thread shares with the main thread.
#[derive(Default)]
struct State {
    /// Cancels the running turn or command; `None` if none is running.
    running: Option<Cancel>,
    /// Tells the user that the turn is being cancelled.
    tell: Option<Box<dyn Fn() + Send>>,
    /// The text that guard prints when a signal ends the conversation.
    farewell: String,
    ended_by: Option<Signal>,
}

/// Receives signals in a separate thread.
pub(super) struct TurnSignals {
    state: Arc<Mutex<State>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TurnSignals {
    /// Starts the signal thread. Call this function before any other thread starts, because threads inherit which
    /// signals are blocked.
    pub(super) fn start() -> io::Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        let awaited = signals::end_signals();
        awaited.thread_block()?;
        let terminal = tcgetattr(io::stdin()).ok();
        let shared = state.clone();
        let listen = move || {
            while let Some(signal) = signals::wait_for(&awaited, None) {
                receive(signal, &shared, terminal.as_ref());
            }
        };
        std::thread::Builder::new().name("signals".to_string()).spawn(listen)?;
        Ok(Self { state })
    }

    pub(super) fn set_farewell(&self, text: String) {
        lock(&self.state).farewell = text;
    }

    /// Calls `work`. If Ctrl-C or another signal that asks guard to exit arrives meanwhile, cancels it with `cancel`, and
    /// calls `tell` the first time.
    pub(super) fn during<T>(
        &self,
        cancel: &Cancel,
        tell: impl Fn() + Send + 'static,
        work: impl FnOnce() -> T,
    ) -> T {
        let mut state = lock(&self.state);
        state.running = Some(cancel.clone());
        state.tell = Some(Box::new(tell));
        drop(state);
        let keys = HiddenKeys::start();
        let result = work();
        drop(keys);
        let mut state = lock(&self.state);
        (state.running, state.tell) = (None, None);
        drop(state);
        result
    }

    /// Returns the signal that asked guard to exit, if there was one.
    pub(super) fn ended_by(&self) -> Option<Signal> {
        lock(&self.state).ended_by
    }
}

fn receive(signal: Signal, state: &Mutex<State>, terminal: Option<&Termios>) {
    let mut state = lock(state);
    if signal != Signal::SIGINT {
        state.ended_by = Some(signal);
    }
    if let Some(tell) = state.tell.take() {
        tell();
    }
    if let Some(running) = &state.running {
        // When the turn has ended, the main thread checks whether to end the conversation.
        return running.set();
    }
    if signal != Signal::SIGINT {
        // The main thread is waiting for input. Every turn is already stored, so exiting loses nothing.
        if let Some(terminal) = terminal {
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, terminal);
        }
        restore_terminal();
        let _ = write!(io::stderr(), "\r\n{}", state.farewell);
        process::exit_now(128 + signal as i32);
    }
}

/// Switches on bracketed paste, so that text pasted during a turn stays one message. The line editor switches it on
/// and off, too.
const MARK_PASTES: &str = "\x1b[?2004h";
const DO_NOT_MARK_PASTES: &str = "\x1b[?2004l";

/// Switches off bracketed paste, which this module or the line editor may have switched on.
pub(super) fn restore_terminal() {
    if !is_dumb_terminal() {
        let _ = write!(io::stderr(), "{DO_NOT_MARK_PASTES}");
    }
}

/// Keeps the terminal from echoing keys until this value is dropped. The line editor reads these keys afterwards.
struct HiddenKeys {
    before: Option<Termios>,
}

impl HiddenKeys {
    fn start() -> Self {
        let before = tcgetattr(io::stdin()).ok();
        if let Some(before) = &before {
            let mut hidden = before.clone();
            hidden.local_flags &= !LocalFlags::ECHO;
            // On a dumb terminal there is no line editor, so the terminal must keep collecting lines (`ICANON`).
            if !is_dumb_terminal() {
                hidden.local_flags &= !LocalFlags::ICANON;
                // The line editor distinguishes Enter from Ctrl-J, so the terminal must not convert one to the other.
                hidden.input_flags &= !InputFlags::ICRNL;
                let _ = write!(io::stderr(), "{MARK_PASTES}");
            }
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &hidden);
        }
        Self { before }
    }
}

impl Drop for HiddenKeys {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, before);
        }
    }
}
