//! The user's terminal while a run has one of its own: raw, its size followed, put back whatever happens.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

use crate::decide::Verdict;
use crate::intercept::{Ask, Choice};

/// A terminal in raw mode; put back when dropped.
pub(super) struct Raw {
    terminal: OwnedFd,
    before: Termios,
}

impl Raw {
    /// Makes a terminal raw.
    pub(super) fn new(terminal: OwnedFd) -> std::io::Result<Self> {
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

/// Where keys go while a person is asked.
#[derive(Clone)]
pub(super) struct Keys {
    asking: Arc<AtomicBool>,
    sender: Sender<u8>,
}

impl Keys {
    /// Takes keys if a question is open. Whether it did.
    pub(super) fn take(&self, bytes: &[u8]) -> bool {
        if !self.asking.load(Ordering::Acquire) {
            return false;
        }
        // A person presses one key; a terminal that the agent made answer something sends more at once.
        if let [key] = bytes {
            let _ = self.sender.send(*key);
        }
        true
    }
}

/// Asks on the user's terminal.
pub(super) struct TerminalAsk {
    terminal: Arc<Mutex<OwnedFd>>,
    asking: Arc<AtomicBool>,
    keys: Receiver<u8>,
}

/// The two ends: who asks, and where keys come from.
pub(super) fn asker(terminal: OwnedFd) -> (TerminalAsk, Keys) {
    let (sender, keys) = channel();
    let asking = Arc::new(AtomicBool::new(false));
    let ask = TerminalAsk { terminal: Arc::new(Mutex::new(terminal)), asking: asking.clone(), keys };
    (ask, Keys { asking, sender })
}

impl TerminalAsk {
    fn say(&self, text: &str) {
        if let Ok(terminal) = self.terminal.lock() {
            // The terminal may be raw: lines need their carriage return.
            let _ = nix::unistd::write(terminal.as_fd(), text.replace('\n', "\r\n").as_bytes());
        }
    }
}

impl Ask for TerminalAsk {
    fn ask(&mut self, verdict: &Verdict) -> Choice {
        while self.keys.try_recv().is_ok() {}
        self.asking.store(true, Ordering::Release);
        let part = printable(verdict.part.as_deref().unwrap_or("a command"));
        self.say(&format!(
            "\nguard: the agent wants to run: {part}\n  {} (rule {})\n  [y] once  [a] always in this run  [n] no: ",
            printable(&verdict.cause.reason),
            verdict.cause.rule
        ));
        let choice = loop {
            match self.keys.recv() {
                Ok(b'y' | b'Y') => break Choice::Once,
                Ok(b'a' | b'A') => break Choice::Always,
                // n, Enter, Escape, Ctrl-C, Ctrl-D, or nobody there any more.
                Ok(b'n' | b'N' | b'\r' | b'\n' | 27 | 3 | 4) | Err(_) => break Choice::Deny,
                Ok(_) => {}
            }
        };
        self.asking.store(false, Ordering::Release);
        self.say(match choice {
            Choice::Once => "once\n",
            Choice::Always => "always\n",
            Choice::Deny => "no\n",
        });
        choice
    }
}

/// The agent chose the words: control characters could make the question look like another.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
