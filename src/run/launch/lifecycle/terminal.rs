//! Controls the user's terminal while the agent runs on a separate terminal that guard connects to it: raw mode,
//! Ctrl-C, and questions to the user. guard must always restore the modes of the user's terminal.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use nix::sys::termios::{FlushArg, SetArg, Termios, cfmakeraw, tcflush, tcgetattr, tcsetattr};

use super::terminal_state::TerminalState;
use crate::judge::decide::Verdict;
use crate::run::supervisor::{Ask, Choice};
use crate::sys::terminal;

/// Returns true if the run may use the user's terminal: standard input and output are the same terminal, and guard is
/// in its foreground. If one of them is a pipe (`guard run … | less`), the program at the other end of the pipe uses
/// the terminal. If guard is a background job, the shell uses it.
pub fn is_interactive(input: BorrowedFd<'_>, output: BorrowedFd<'_>) -> bool {
    let device = |fd: BorrowedFd<'_>| {
        nix::sys::stat::fstat(fd).ok().filter(|_| fd.is_terminal()).map(|found| found.st_rdev)
    };
    let is_one = device(input).is_some_and(|terminal| device(output) == Some(terminal));
    is_one && terminal::is_in_foreground(input)
}

/// A terminal in raw mode. Dropping it restores the old modes.
pub(crate) struct Raw {
    terminal: OwnedFd,
    before: Termios,
}

impl Raw {
    pub(crate) fn new(terminal: OwnedFd) -> io::Result<Self> {
        let before = tcgetattr(&terminal)?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(&terminal, SetArg::TCSADRAIN, &raw)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.terminal, SetArg::TCSADRAIN, &self.before);
    }
}

/// A lock on the user's terminal, with the state in which the agent's output has left it. guard holds the lock while it
/// writes output of the agent or asks a question.
#[derive(Debug, Clone, Default)]
pub(crate) struct Screen(Arc<Mutex<TerminalState>>);

impl Screen {
    pub(crate) fn lock(&self) -> MutexGuard<'_, TerminalState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `None` if another thread holds the lock.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, TerminalState>> {
        match self.0.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Passes the user's keys to [`TerminalAsk`] while guard waits for the answer to a question.
#[derive(Clone)]
pub(crate) struct Keys {
    asking: Arc<AtomicBool>,
    sender: Sender<Vec<u8>>,
}

impl Keys {
    /// Sends the keys to the question that guard is asking. Returns false if guard is asking none: the keys are then
    /// for the agent.
    pub(crate) fn send_to_question(&self, bytes: &[u8]) -> bool {
        let is_asking = self.asking.load(Ordering::Acquire);
        if is_asking {
            let _ = self.sender.send(bytes.to_vec());
        }
        is_asking
    }
}

/// Asks the user on the terminal whether the agent may run a command.
pub(crate) struct TerminalAsk {
    terminal: OwnedFd,
    /// guard's end of the agent's terminal.
    agent_terminal: OwnedFd,
    screen: Screen,
    asking: Arc<AtomicBool>,
    keys: Receiver<Vec<u8>>,
}

/// Creates the object that asks questions, and the object that passes the user's keys to it. `asking` is true while a
/// question waits for its answer.
pub(crate) fn asker(
    terminal: OwnedFd,
    agent_terminal: OwnedFd,
    screen: Screen,
    asking: Arc<AtomicBool>,
) -> (TerminalAsk, Keys) {
    let (sender, keys) = channel();
    (TerminalAsk { terminal, agent_terminal, screen, asking: asking.clone(), keys }, Keys { asking, sender })
}

/// Control sequences that reset everything that the agent's output may have changed in the terminal, so that the
/// terminal displays a question correctly: an unfinished control sequence, colours, character sets, margins, modes
/// and reports. They move the cursor to the last line.
const CLEAN_SCREEN: &str = concat!(
    "\x18\x1b\\",               // CAN, ST: no control sequence or string is open any more
    "\x1b[!p\x1b[0m\x1b(B\x0f", // soft reset, plain colours, ASCII
    "\x1b[?6l\x1b[r\x1b[4l\x1b[?7h\x1b[?25h\x1b[?5l", // whole screen, no insertion, wrapping, a cursor, not inverted
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[=0u", // nothing but keys is reported
    "\x1b[999;1H",                                                                // the last line
);

/// How many empty lines guard writes before a question, to scroll the agent's output off the screen. No usual screen
/// has more lines.
const SCROLL_LINES: usize = 200;

/// guard accepts an answer only after no input has arrived for this time. Replies of the terminal to control
/// sequences of the agent, and keys that the user typed for the agent, arrive earlier.
const QUIET: Duration = Duration::from_millis(150);
/// If input keeps arriving for this long, guard treats the question as answered with no.
const QUIET_TIMEOUT: Duration = Duration::from_secs(5);

impl TerminalAsk {
    fn write(&self, text: &str) {
        // In raw mode, every line needs a carriage return.
        let text = text.replace('\n', "\r\n");
        let mut left = text.as_bytes();
        while !left.is_empty() {
            match nix::unistd::write(self.terminal.as_fd(), left) {
                Ok(written) => left = &left[written..],
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Discards input until none arrives for the time [`QUIET`]. Returns false if input keeps arriving until
    /// [`QUIET_TIMEOUT`], or if the thread that forwards the user's keys has ended.
    fn drain_input(&self) -> bool {
        let began = Instant::now();
        let _ = tcflush(&self.terminal, FlushArg::TCIFLUSH);
        while began.elapsed() < QUIET_TIMEOUT {
            match self.keys.recv_timeout(QUIET) {
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        false
    }

    /// Waits until the user presses a key that answers the question, and ignores all other keys. The answer is no if
    /// the thread that forwards the user's keys has ended.
    fn read_choice(&self) -> Choice {
        loop {
            let Ok(keys) = self.keys.recv() else { return Choice::Deny };
            // A user presses one key at a time. Several bytes at once are a paste or a report of the terminal.
            match keys.as_slice() {
                b"y" | b"Y" => return Choice::Once,
                b"a" | b"A" => return Choice::Always,
                b"s" | b"S" => return Choice::Save,
                // These are n, Enter, Escape, Ctrl-C and Ctrl-D.
                b"n" | b"N" | b"\r" | b"\n" | [27 | 3 | 4] => return Choice::Deny,
                _ => {}
            }
        }
    }
}

impl Ask for TerminalAsk {
    fn ask(&mut self, verdict: &Verdict) -> Choice {
        // From here on, the lock prevents output of the agent on the terminal. That output could overwrite the
        // question, or make the terminal send a reply that looks like an answer.
        let lock = self.screen.lock();
        self.asking.store(true, Ordering::Release);
        self.write(CLEAN_SCREEN);
        self.write(&"\n".repeat(SCROLL_LINES));
        self.write("\x1b[H");
        let is_quiet = self.drain_input();
        let part = printable(verdict.part.as_deref().unwrap_or("a command"));
        self.write(&format!(
            "guard: the agent wants to run: {part}\n  {} (rule {})\n  [y] yes, once  [a] yes, always in this run  [s] yes, and save it as a rule  [n] no: ",
            printable(&verdict.cause.reason),
            verdict.cause.rule
        ));
        let choice = if is_quiet { self.read_choice() } else { Choice::Deny };
        self.write(match choice {
            Choice::Once => "once\n",
            Choice::Always => "always\n",
            Choice::Save => "guard saves the rule when the run has ended\n",
            Choice::Deny => "no\n",
        });
        // Discard keys that the user typed after the answer: they were not for the agent.
        self.drain_input();
        self.asking.store(false, Ordering::Release);
        drop(lock);
        let _ = terminal::ask_to_redraw(self.agent_terminal.as_fd());
        choice
    }
}

/// Replaces invisible and control characters in a text that the agent chose, because they could make the question
/// look like a different one.
fn printable(text: &str) -> String {
    crate::text::terminal_text::replace(text)
}
