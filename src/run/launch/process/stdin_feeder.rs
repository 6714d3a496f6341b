//! Copies the caller's standard input to the agent, through a pipe or a sealed stream that guard creates.
//!
//! The agent must never get the caller's own descriptor: through it, the agent could open a pipe again for writing
//! (`/proc/self/fd/0`), write to a socket, or change a file's metadata.
//!
//! The caller may share its input with other programs: for example, a script that runs guard in a `while read` loop
//! continues to read after guard has ended. So guard must not read more than the agent does. It first *offers* bytes
//! to the agent, at most one page at a time, without reading them, and *consumes* from the caller's input only the
//! bytes that the agent has read.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{MsgFlags, recv};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::{Whence, lseek};

use super::agent_input::{AgentInput, OFFER_BYTES};
use crate::sys::{pipe, terminal};

/// How long guard waits, in milliseconds, before it checks again whether input of a terminal is for the agent.
const POLL_INTERVAL_MS: u16 = 50;

/// The thread that copies the caller's standard input to the agent.
#[derive(Debug)]
pub(crate) struct StdinFeeder {
    stop: EventFd,
    thread: JoinHandle<()>,
}

impl StdinFeeder {
    pub(crate) fn start(source: OwnedFd, agent: AgentInput) -> io::Result<Self> {
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let stopped = stop.as_fd().try_clone_to_owned()?;
        let source = Source::new(source)?;
        let work = move || Feed { source, agent, stopped }.run();
        let thread = std::thread::Builder::new().name("input".to_string()).spawn(work)?;
        Ok(Self { stop, thread })
    }

    /// Stops the thread. Afterwards the position in the caller's pipe, socket or file is where the agent stopped
    /// reading. From a terminal or another device, guard may have read more than the agent.
    pub(crate) fn stop(self) {
        let _ = self.stop.write(1);
        let _ = self.thread.join();
    }
}

/// The caller's standard input. Its kind decides how guard can offer bytes without consuming them.
enum Source {
    Pipe(OwnedFd),
    Socket(OwnedFd),
    File {
        file: File,
        position: u64,
    },
    /// A terminal, from which other programs may read as well. guard cannot offer its bytes without consuming them.
    Terminal(OwnedFd),
    /// Any other file, such as a device. guard cannot offer its bytes without consuming them.
    Other(OwnedFd),
}

impl Source {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        let kind = SFlag::from_bits_truncate(fstat(&fd)?.st_mode) & SFlag::S_IFMT;
        Ok(match kind {
            SFlag::S_IFIFO => Self::Pipe(fd),
            SFlag::S_IFSOCK => Self::Socket(fd),
            SFlag::S_IFREG => {
                let position = u64::try_from(lseek(&fd, 0, Whence::SeekCur)?).unwrap_or(0);
                Self::File { file: File::from(fd), position }
            }
            _ if fd.is_terminal() => Self::Terminal(fd),
            _ => Self::Other(fd),
        })
    }

    /// Returns true if the pending input is for the agent. Input of a terminal is not for the agent in two cases: while
    /// another program (such as `less` at the end of a pipe) reads single keys from the terminal, and while guard is in
    /// the background, where a read would stop guard (SIGTTIN).
    fn is_for_agent(&self) -> bool {
        let Self::Terminal(fd) = self else { return true };
        let reads_lines = tcgetattr(fd).is_ok_and(|modes| modes.local_flags.contains(LocalFlags::ICANON));
        reads_lines && terminal::is_in_foreground(fd.as_fd())
    }

    fn descriptor(&self) -> &dyn AsFd {
        match self {
            Self::Pipe(fd) | Self::Socket(fd) | Self::Terminal(fd) | Self::Other(fd) => fd,
            Self::File { file, .. } => file,
        }
    }

    /// Copies pending input to the agent, which has read everything so far. Returns the number of bytes, which is zero
    /// at the end of the input.
    fn offer(&self, agent: &AgentInput) -> io::Result<usize> {
        let mut buffer = [0u8; OFFER_BYTES];
        let got = match self {
            Self::Pipe(fd) => return agent.copy_from_pipe(fd),
            Self::Socket(fd) => {
                recv(fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT)?
            }
            Self::File { file, position } => file.read_at(&mut buffer, *position)?,
            Self::Terminal(fd) | Self::Other(fd) => nix::unistd::read(fd, &mut buffer)?,
        };
        agent.write(&buffer[..got])
    }

    /// Removes bytes from the caller's input after the agent has read them. Does nothing for a terminal or another
    /// device, because [`Source::offer`] has already removed the bytes.
    fn consume(&mut self, count: usize) -> io::Result<()> {
        match self {
            Self::Pipe(fd) => pipe::discard(&*fd, count),
            Self::Socket(fd) => {
                let mut buffer = [0u8; OFFER_BYTES];
                recv(fd.as_raw_fd(), &mut buffer[..count.min(OFFER_BYTES)], MsgFlags::MSG_DONTWAIT)?;
                Ok(())
            }
            Self::File { file, position } => {
                *position += count as u64;
                lseek(&*file, i64::try_from(*position).unwrap_or(i64::MAX), Whence::SeekSet)?;
                Ok(())
            }
            Self::Terminal(_) | Self::Other(_) => Ok(()),
        }
    }
}

#[derive(PartialEq, Eq)]
enum WaitResult {
    Ready,
    /// The run is over, no process can read the agent's pipe any more, or waiting failed.
    Over,
}

struct Feed {
    source: Source,
    agent: AgentInput,
    /// A descriptor that becomes readable when the run is over.
    stopped: OwnedFd,
}

impl Feed {
    /// Copies input until the input ends or cannot be read, the agent's pipe has no reader, or the run is over. Then
    /// closes guard's end, so that the agent gets the end of its input.
    fn run(mut self) {
        let mut offered = 0;
        while self.wait_until_read() == WaitResult::Ready {
            if self.source.consume(offered).is_err() {
                return;
            }
            offered = 0;
            if self.wait_for_input() == WaitResult::Over {
                return;
            }
            match self.source.offer(&self.agent) {
                Ok(0) => return,
                Ok(count) => offered = count,
                // Another program has read the input before guard could, or a signal interrupted guard.
                Err(error) if is_transient(&error) => {}
                Err(_) => return,
            }
        }
        let _ = self.source.consume(offered.saturating_sub(self.agent.unread_bytes()));
    }

    /// Waits until the agent has read everything that guard offered.
    fn wait_until_read(&self) -> WaitResult {
        while self.agent.unread_bytes() > 0 {
            let (descriptor, flags) = self.agent.read_event();
            if self.wait(descriptor, flags) == WaitResult::Over {
                return WaitResult::Over;
            }
            self.agent.clear_read_event();
        }
        WaitResult::Ready
    }

    fn wait_for_input(&self) -> WaitResult {
        loop {
            let result = self.wait(self.source.descriptor().as_fd(), PollFlags::POLLIN);
            if result == WaitResult::Over || self.source.is_for_agent() {
                return result;
            }
            // No event tells guard that another program has stopped reading from the terminal.
            let mut stopped = [PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut stopped, POLL_INTERVAL_MS);
        }
    }

    fn wait(&self, wanted: std::os::fd::BorrowedFd<'_>, flags: PollFlags) -> WaitResult {
        loop {
            let mut fds = [
                PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN),
                // Request no events: the kernel always reports POLLERR when the pipe has no reader.
                PollFd::new(self.agent.descriptor(), PollFlags::empty()),
                PollFd::new(wanted, flags),
            ];
            match poll(&mut fds, PollTimeout::NONE) {
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => return WaitResult::Over,
                Ok(_) if fds[0].any() == Some(true) || fds[1].any() == Some(true) => return WaitResult::Over,
                Ok(_) => return WaitResult::Ready,
            }
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
