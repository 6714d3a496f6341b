//! Ctrl-C and other signals in an interactive conversation: Ctrl-C ends the turn, every other signal that asks guard to end
//! ends the conversation. Also keeps the terminal from showing keys that are pressed during a turn.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::signal::Signal;
use nix::sys::termios::{InputFlags, LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

use super::editor::is_dumb_terminal;
use crate::agent_exec::Cancel;
use crate::sys::{process, signals};

/// What guard is doing, as far as signals are concerned.
#[derive(Default)]
struct State {
    /// What the running turn or command can be cancelled with.
    running: Option<Cancel>,
    /// The text that is printed when a signal ends the conversation.
    farewell: String,
    ended_by: Option<Signal>,
}

/// Receives signals in a thread of its own.
pub(super) struct TurnSignals {
    state: Arc<Mutex<State>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TurnSignals {
    /// Starts the thread. Must be called before any other thread starts, because threads inherit the blocked signals.
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

    /// Sets the text that is printed when a signal ends the conversation.
    pub(super) fn set_farewell(&self, text: String) {
        lock(&self.state).farewell = text;
    }

    /// Does work that Ctrl-C can cancel.
    pub(super) fn during<T>(&self, cancel: &Cancel, work: impl FnOnce() -> T) -> T {
        lock(&self.state).running = Some(cancel.clone());
        let keys = HiddenKeys::start();
        let result = work();
        drop(keys);
        lock(&self.state).running = None;
        result
    }

    /// The signal that asked guard to end, if one did.
    pub(super) fn ended_by(&self) -> Option<Signal> {
        lock(&self.state).ended_by
    }
}

fn receive(signal: Signal, state: &Mutex<State>, terminal: Option<&Termios>) {
    let mut state = lock(state);
    if signal != Signal::SIGINT {
        state.ended_by = Some(signal);
    }
    if let Some(running) = &state.running {
        // The main thread ends the conversation when the turn has ended, if it is to end.
        return running.set();
    }
    if signal != Signal::SIGINT {
        // The main thread waits for keys. Every turn is stored, so nothing is lost.
        if let Some(terminal) = terminal {
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, terminal);
        }
        restore_terminal();
        let _ = write!(io::stderr(), "\r\n{}", state.farewell);
        process::exit_now(128 + signal as i32);
    }
}

/// Makes the terminal mark pasted text, so that a text pasted during a turn stays one message. The line editor switches
/// this on and off, too.
const MARK_PASTES: &str = "\x1b[?2004h";
const DO_NOT_MARK_PASTES: &str = "\x1b[?2004l";

/// Switches off what this module or the line editor switched on in the terminal.
pub(super) fn restore_terminal() {
    if !is_dumb_terminal() {
        let _ = write!(io::stderr(), "{DO_NOT_MARK_PASTES}");
    }
}

/// Keeps the terminal from showing keys until it is dropped. The line editor reads them afterwards.
struct HiddenKeys {
    before: Option<Termios>,
}

impl HiddenKeys {
    fn start() -> Self {
        let before = tcgetattr(io::stdin()).ok();
        if let Some(before) = &before {
            let mut hidden = before.clone();
            hidden.local_flags &= !LocalFlags::ECHO;
            // Without a line editor, the terminal itself collects the lines.
            if !is_dumb_terminal() {
                hidden.local_flags &= !LocalFlags::ICANON;
                // The line editor tells Enter from Ctrl-J.
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
