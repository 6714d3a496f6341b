//! The user's terminal while a run has one of its own: raw, its size followed, put back whatever happens.

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

/// Whether a person sits at one terminal that is both standard input and output, and guard is in its foreground: then the
/// run takes that terminal over. A pipe on one side (`guard run … | less`) leaves the terminal to whoever is on the other
/// side of it, and a job in the background leaves it to the shell.
pub fn is_interactive(input: BorrowedFd<'_>, output: BorrowedFd<'_>) -> bool {
    let device = |fd: BorrowedFd<'_>| {
        nix::sys::stat::fstat(fd).ok().filter(|_| fd.is_terminal()).map(|found| found.st_rdev)
    };
    let is_one = device(input).is_some_and(|terminal| device(output) == Some(terminal));
    is_one && terminal::is_in_foreground(input)
}

/// A terminal in raw mode; put back when dropped.
pub(crate) struct Raw {
    terminal: OwnedFd,
    before: Termios,
}

impl Raw {
    /// Makes a terminal raw.
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

/// Whose turn it is to write to the user's terminal: the agent's output, a piece at a time, or a question.
#[derive(Debug, Clone, Default)]
pub(crate) struct Screen(Arc<Mutex<()>>);

impl Screen {
    /// Waits for the turn of whoever asks; it lasts until the guard is dropped.
    pub(crate) fn take(&self) -> MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ctrl-C pressed again and again, while the run's programs do not end.
#[derive(Debug, Default)]
pub(crate) struct InterruptKeys {
    pressed: u32,
    last: Option<Instant>,
}

impl InterruptKeys {
    /// Whether a person wants the whole run to end: by these keys, which went to the run's terminal. A program that reads
    /// lines is interrupted by the first Ctrl-C, and the second one, soon after, ends the run. A program that reads single
    /// keys uses Ctrl-C for itself; only pressing it many times ends the run.
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
/// Ctrl-C pressed again within this time means the same run.
const SOON: Duration = Duration::from_secs(3);
/// So many times Ctrl-C end a run whatever its program does with them.
const INSISTENT: u32 = 5;

/// Where keys go while a person is asked.
#[derive(Clone)]
pub(crate) struct Keys {
    asking: Arc<AtomicBool>,
    sender: Sender<Vec<u8>>,
}

impl Keys {
    /// Takes keys if a question is open. Whether it did.
    pub(crate) fn take(&self, bytes: &[u8]) -> bool {
        let is_asking = self.asking.load(Ordering::Acquire);
        if is_asking {
            let _ = self.sender.send(bytes.to_vec());
        }
        is_asking
    }
}

/// Asks on the user's terminal.
pub(crate) struct TerminalAsk {
    terminal: OwnedFd,
    /// guard's end of the agent's terminal.
    agents: OwnedFd,
    screen: Screen,
    asking: Arc<AtomicBool>,
    keys: Receiver<Vec<u8>>,
}

/// The two ends: who asks, and where keys come from.
pub(crate) fn asker(terminal: OwnedFd, agents: OwnedFd, screen: Screen) -> (TerminalAsk, Keys) {
    let (sender, keys) = channel();
    let asking = Arc::new(AtomicBool::new(false));
    (TerminalAsk { terminal, agents, screen, asking: asking.clone(), keys }, Keys { asking, sender })
}

/// Takes the terminal back from whatever the agent has made of it, so that a question is seen as it is written: ends an
/// unfinished control sequence, resets colours, character sets, margins, modes and reports, and moves what the agent has
/// painted up into the scroll-back.
const CLEAN_SCREEN: &str = concat!(
    "\x18\x1b\\",               // CAN, ST: no control sequence or string is open any more
    "\x1b[!p\x1b[0m\x1b(B\x0f", // soft reset, plain colours, ASCII
    "\x1b[?6l\x1b[r\x1b[4l\x1b[?7h\x1b[?25h\x1b[?5l", // whole screen, no insertion, wrapping, a cursor, not inverted
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[=0u", // nothing but keys is reported
    "\x1b[999;1H",                                                                // the last line
);

/// Enough empty lines that nothing the agent has painted is left on the screen.
const LINES_UP: usize = 200;

/// How long the input must be silent before a question counts as asked. What the agent has made the terminal send, and what
/// the user typed to the agent, comes before that.
const QUIET: Duration = Duration::from_millis(150);
/// A terminal that never is silent is not waited for without end: the answer is no.
const LONGEST_NOISE: Duration = Duration::from_secs(5);

impl TerminalAsk {
    fn say(&self, text: &str) {
        // The terminal may be raw: lines need their carriage return.
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

    /// Throws away what is in the input, until nothing comes for a moment. Whether that moment came.
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

    /// The answer to the question that is on the screen.
    fn choice(&self) -> Choice {
        loop {
            let Ok(keys) = self.keys.recv() else { return Choice::Deny };
            // A person presses one key. What comes as several bytes is a paste, or the terminal's own report.
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
        // From here on nothing of the agent's is written: not over the question, and nothing that the terminal answers.
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
        // What was typed after the answer was not meant for the agent.
        self.drain_input();
        self.asking.store(false, Ordering::Release);
        drop(turn);
        let _ = terminal::ask_to_redraw(self.agents.as_fd());
        choice
    }
}

/// The agent chose the words: hidden characters could make the question look like another.
fn printable(text: &str) -> String {
    crate::terminal_text::replace(text)
}
