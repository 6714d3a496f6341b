//! The user's terminal while the run has a terminal of its own: raw mode, size changes, interrupts and questions. The
//! terminal's modes are always restored.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::termios::{FlushArg, LocalFlags, SetArg, Termios, cfmakeraw, tcflush, tcgetattr, tcsetattr};

use crate::decide::Verdict;
use crate::supervisor::{Ask, Choice};
use crate::sys::terminal;

/// Whether one terminal is both standard input and output and guard is in its foreground. Then the run takes that
/// terminal over. With a pipe on one side (`guard run … | less`), the program on the other side of the pipe keeps the
/// terminal. A background job leaves it to the shell.
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
    /// Puts a terminal into raw mode.
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

/// A lock on the user's terminal. A piece of the agent's output or a question holds it while it is written.
#[derive(Debug, Clone, Default)]
pub(crate) struct Screen(Arc<Mutex<()>>);

impl Screen {
    /// Takes the lock.
    pub(crate) fn take(&self) -> MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts Ctrl-C presses that did not end the run's programs.
#[derive(Debug, Default)]
pub(crate) struct InterruptKeys {
    pressed: u32,
    last: Option<Instant>,
}

impl InterruptKeys {
    /// Whether these keys, already forwarded to the run's terminal, mean that the user wants the whole run to end. The
    /// first Ctrl-C interrupts a program that reads lines, and a second one soon after ends the run. A program that
    /// reads single keys uses Ctrl-C for itself, so there only many presses end the run.
    pub(crate) fn are_to_end_run(&mut self, keys: &[u8], agents: BorrowedFd<'_>) -> bool {
        if keys != [CTRL_C] {
            self.pressed = 0;
            return false;
        }
        let is_soon = self.last.replace(Instant::now()).is_some_and(|last| last.elapsed() < SOON);
        self.pressed = if is_soon { self.pressed + 1 } else { 1 };
        let line_mode = LocalFlags::ISIG | LocalFlags::ICANON;
        let reads_lines = tcgetattr(agents).is_ok_and(|modes| modes.local_flags.contains(line_mode));
        self.pressed >= if reads_lines { 2 } else { INSISTENT }
    }
}

const CTRL_C: u8 = 3;
/// Presses of Ctrl-C within this time of each other are counted together.
const SOON: Duration = Duration::from_secs(3);
/// This many presses of Ctrl-C end a run whatever its program does with them.
const INSISTENT: u32 = 5;

/// Receives the user's keys while a question is open.
#[derive(Clone)]
pub(crate) struct Keys {
    asking: Arc<AtomicBool>,
    sender: Sender<Vec<u8>>,
}

impl Keys {
    /// Takes the keys if a question is open. Returns whether it did.
    pub(crate) fn take(&self, bytes: &[u8]) -> bool {
        let is_asking = self.asking.load(Ordering::Acquire);
        if is_asking {
            let _ = self.sender.send(bytes.to_vec());
        }
        is_asking
    }
}

/// Asks questions on the user's terminal.
pub(crate) struct TerminalAsk {
    terminal: OwnedFd,
    /// guard's end of the agent's terminal.
    agents: OwnedFd,
    screen: Screen,
    asking: Arc<AtomicBool>,
    keys: Receiver<Vec<u8>>,
}

/// Creates the asker, and the end that feeds it with keys.
pub(crate) fn asker(terminal: OwnedFd, agents: OwnedFd, screen: Screen) -> (TerminalAsk, Keys) {
    let (sender, keys) = channel();
    let asking = Arc::new(AtomicBool::new(false));
    (TerminalAsk { terminal, agents, screen, asking: asking.clone(), keys }, Keys { asking, sender })
}

/// Undoes whatever the agent has done to the terminal, so that a question is displayed as written: ends an unfinished
/// control sequence, resets colours, character sets, margins, modes and reports, and moves the agent's output up into
/// the scroll-back.
const CLEAN_SCREEN: &str = concat!(
    "\x18\x1b\\",               // CAN, ST: no control sequence or string is open any more
    "\x1b[!p\x1b[0m\x1b(B\x0f", // soft reset, plain colours, ASCII
    "\x1b[?6l\x1b[r\x1b[4l\x1b[?7h\x1b[?25h\x1b[?5l", // whole screen, no insertion, wrapping, a cursor, not inverted
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[=0u", // nothing but keys is reported
    "\x1b[999;1H",                                                                // the last line
);

/// Enough empty lines to scroll all output of the agent off the screen.
const LINES_UP: usize = 200;

/// The input must be silent for this long before an answer counts. Reports that the agent made the terminal send, and
/// keys the user typed for the agent, arrive before that.
const QUIET: Duration = Duration::from_millis(150);
/// If the input is not silent within this time, the answer is no.
const LONGEST_NOISE: Duration = Duration::from_secs(5);

impl TerminalAsk {
    fn say(&self, text: &str) {
        // In raw mode, lines need a carriage return.
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

    /// Discards input until none arrives for a moment. Returns whether that moment came.
    fn drain_input(&self) -> bool {
        let began = Instant::now();
        let _ = tcflush(&self.terminal, FlushArg::TCIFLUSH);
        while began.elapsed() < LONGEST_NOISE {
            match self.keys.recv_timeout(QUIET) {
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        false
    }

    /// Reads the answer to the question on the screen.
    fn choice(&self) -> Choice {
        loop {
            let Ok(keys) = self.keys.recv() else { return Choice::Deny };
            // A user presses one key. Several bytes at once are a paste or a report of the terminal.
            match keys.as_slice() {
                b"y" | b"Y" => return Choice::Once,
                b"a" | b"A" => return Choice::Always,
                // n, Enter, Escape, Ctrl-C, Ctrl-D.
                b"n" | b"N" | b"\r" | b"\n" | [27 | 3 | 4] => return Choice::Deny,
                _ => {}
            }
        }
    }
}

impl Ask for TerminalAsk {
    fn ask(&mut self, verdict: &Verdict) -> Choice {
        // From here on, the lock keeps the agent's output off the terminal. It could overwrite the question, or make
        // the terminal send a reply that looks like an answer.
        let turn = self.screen.take();
        self.asking.store(true, Ordering::Release);
        self.say(CLEAN_SCREEN);
        self.say(&"\n".repeat(LINES_UP));
        self.say("\x1b[H");
        let is_quiet = self.drain_input();
        let part = printable(verdict.part.as_deref().unwrap_or("a command"));
        self.say(&format!(
            "guard: the agent wants to run: {part}\n  {} (rule {})\n  [y] once  [a] always in this run  [n] no: ",
            printable(&verdict.cause.reason),
            verdict.cause.rule
        ));
        let choice = if is_quiet { self.choice() } else { Choice::Deny };
        self.say(match choice {
            Choice::Once => "once\n",
            Choice::Always => "always\n",
            Choice::Deny => "no\n",
        });
        // Keys typed after the answer were not meant for the agent.
        self.drain_input();
        self.asking.store(false, Ordering::Release);
        drop(turn);
        let _ = terminal::ask_to_redraw(self.agents.as_fd());
        choice
    }
}

/// Replaces hidden characters: the agent chose the text, and they could make the question look like another one.
fn printable(text: &str) -> String {
    crate::terminal_text::replace(text)
}
