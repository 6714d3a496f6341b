//! Decides what Ctrl-C means on the terminal of a run, where guard forwards every key to the agent's terminal.
//!
//! A program that reads lines is interrupted by the first Ctrl-C, as without guard. If it continues nevertheless, guard
//! says so, and the next Ctrl-C ends the run. A program that reads single keys may use Ctrl-C for its own purposes, so
//! only many presses end its run.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::{Pid, tcgetpgrp};

const CTRL_C: u8 = 3;
/// The maximum time between two presses of Ctrl-C that guard counts together, and between a note and the press that
/// follows it.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// How long a program that was interrupted may run on before guard says so.
const NOTE_DELAY: Duration = Duration::from_secs(1);
/// The number of presses of Ctrl-C that end a run, even if its program uses Ctrl-C for its own purposes.
const MANY_PRESSES: u32 = 5;
/// The number of presses after which guard says how many are left.
const PRESSES_BEFORE_NOTE: u32 = 3;

/// Counts presses of Ctrl-C.
#[derive(Debug, Default)]
pub(crate) struct InterruptKeys {
    pressed: u32,
    /// The time of the last press, or of the note after it.
    last: Option<Instant>,
    /// The note that guard still has to print, and the program that must be in the foreground then.
    due: Option<Due>,
}

#[derive(Debug)]
struct Due {
    at: Instant,
    note: String,
    /// The process group in the foreground of the agent's terminal at the time of the press, if the program read lines.
    /// If another group takes its place, the Ctrl-C has ended the program.
    reader_of_lines: Option<Pid>,
}

impl InterruptKeys {
    /// Counts keys that guard has forwarded to the agent's terminal. Returns true if they mean that the user wants to
    /// end the whole run.
    pub(crate) fn are_to_end_run(&mut self, keys: &[u8], agent_terminal: BorrowedFd<'_>) -> bool {
        self.due = None;
        if keys != [CTRL_C] {
            self.pressed = 0;
            return false;
        }
        let now = Instant::now();
        let is_soon = self.last.replace(now).is_some_and(|last| now.duration_since(last) < MAX_PAUSE);
        self.pressed = if is_soon { self.pressed + 1 } else { 1 };
        let reads_lines = reads_lines(agent_terminal);
        if self.pressed >= if reads_lines { 2 } else { MANY_PRESSES } {
            return true;
        }
        let seconds = MAX_PAUSE.as_secs();
        if reads_lines {
            self.due = Some(Due {
                at: now + NOTE_DELAY,
                note: format!(
                    "guard: the command got Ctrl-C and runs on; press it again within {seconds} seconds to end the run"
                ),
                reader_of_lines: tcgetpgrp(agent_terminal).ok(),
            });
        } else if self.pressed >= PRESSES_BEFORE_NOTE {
            let left = MANY_PRESSES - self.pressed;
            let times = if left == 1 { "once more".to_string() } else { format!("{left} more times") };
            self.due = Some(Due {
                at: now,
                note: format!(
                    "guard: the command handles Ctrl-C itself; press it {times} within {seconds} seconds to end the run"
                ),
                reader_of_lines: None,
            });
        }
        false
    }

    pub(crate) fn due_note(&mut self, agent_terminal: BorrowedFd<'_>) -> Option<&str> {
        let due = self.due.as_ref()?;
        if Instant::now() < due.at {
            return None;
        }
        let is_same = |group: Pid| reads_lines(agent_terminal) && tcgetpgrp(agent_terminal) == Ok(group);
        if !due.reader_of_lines.is_none_or(is_same) {
            self.due = None;
        }
        self.due.as_ref().map(|due| due.note.as_str())
    }

    /// Records that guard has printed the note. The time for the next press begins.
    pub(crate) fn has_printed_note(&mut self) {
        self.due = None;
        self.last = Some(Instant::now());
    }
}

/// Returns true if the program on the terminal reads lines and is interrupted by Ctrl-C.
fn reads_lines(agent_terminal: BorrowedFd<'_>) -> bool {
    let line_mode = LocalFlags::ISIG | LocalFlags::ICANON;
    tcgetattr(agent_terminal).is_ok_and(|modes| modes.local_flags.contains(line_mode))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn other_keys_begin_the_count_again() {
        let terminal = crate::sys::terminal::open(std::path::Path::new("/dev/ptmx"));
        let (agent_terminal, _slave) = terminal.unwrap_or_else(|error| panic!("{error}"));
        let mut keys = InterruptKeys::default();
        let mut press = |typed: &[u8]| keys.are_to_end_run(typed, agent_terminal.as_fd());
        assert_eq!([press(b"\x03"), press(b"a"), press(b"\x03"), press(b"\x03\x03")], [false; 4]);
        assert_eq!([press(b"\x03"), press(b"\x03")], [false, true]);
    }

    #[test]
    fn a_program_that_reads_keys_needs_many_presses() {
        let terminal = crate::sys::terminal::open(std::path::Path::new("/dev/ptmx"));
        let (agent_terminal, slave) = terminal.unwrap_or_else(|error| panic!("{error}"));
        let mut raw = tcgetattr(&slave).unwrap_or_else(|error| panic!("{error}"));
        nix::sys::termios::cfmakeraw(&mut raw);
        nix::sys::termios::tcsetattr(&slave, nix::sys::termios::SetArg::TCSANOW, &raw)
            .unwrap_or_else(|error| panic!("{error}"));
        let mut keys = InterruptKeys::default();
        let mut notes = Vec::new();
        let mut presses = 0;
        while !keys.are_to_end_run(&[CTRL_C], agent_terminal.as_fd()) {
            presses += 1;
            notes.extend(keys.due_note(agent_terminal.as_fd()).map(str::to_string));
        }
        assert_eq!(presses, MANY_PRESSES - 1);
        assert!(notes[0].contains("2 more times") && notes[1].contains("once more"), "{notes:?}");
        assert_eq!(notes.len(), 2, "{notes:?}");
    }
}
