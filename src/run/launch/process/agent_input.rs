//! guard's end of the agent's standard input: a pipe or, if the stream is sealed, a socket pair.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::poll::PollFlags;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{Shutdown, shutdown};

use super::sealed_stream::sealed_pair;
use crate::sys::pipe;

/// The maximum number of bytes that guard may write while the agent has read everything. A pipe has room for exactly
/// this much, so it becomes writable when it is empty.
pub(crate) const OFFER_BYTES: usize = 4096;

/// guard's end of the agent's standard input.
pub(crate) enum AgentInput {
    Pipe(OwnedFd),
    Sealed(SealedInput),
}

pub(crate) struct SealedInput {
    guard_end: OwnedFd,
    /// A copy of the agent's end. Only from this end the kernel tells how many bytes the agent has not read.
    agent_end: OwnedFd,
    /// Becomes readable each time the agent has read all of one write.
    reads: Epoll,
    /// A pipe to which guard copies the content of the caller's pipe, because the kernel copies only from pipe to pipe
    /// without consuming the content.
    copies: (OwnedFd, OwnedFd),
}

impl AgentInput {
    /// Creates the agent's standard input: the agent's end and guard's end.
    pub(crate) fn make(is_sealed: bool) -> io::Result<(OwnedFd, Self)> {
        if is_sealed {
            return SealedInput::make().map(|(agent_end, input)| (agent_end, Self::Sealed(input)));
        }
        let (agent_end, guard_end) = small_pipe()?;
        Ok((agent_end, Self::Pipe(guard_end)))
    }

    /// Returns a descriptor that reports an error when no process can read the agent's standard input any more. For a
    /// sealed stream it never does: guard itself has a copy of the agent's end.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Pipe(fd) => fd.as_fd(),
            Self::Sealed(input) => input.guard_end.as_fd(),
        }
    }

    pub(super) fn unread_bytes(&self) -> usize {
        let end = match self {
            Self::Pipe(fd) => fd,
            Self::Sealed(input) => &input.agent_end,
        };
        pipe::unread_bytes(end).unwrap_or(0)
    }

    /// Returns a descriptor and the event that it reports after the agent has read something.
    pub(super) fn read_event(&self) -> (BorrowedFd<'_>, PollFlags) {
        match self {
            Self::Pipe(fd) => (fd.as_fd(), PollFlags::POLLOUT),
            Self::Sealed(input) => (input.reads.0.as_fd(), PollFlags::POLLIN),
        }
    }

    /// Makes the descriptor of [`AgentInput::read_event`] wait for the next event.
    pub(super) fn clear_read_event(&self) {
        match self {
            Self::Pipe(_) if self.unread_bytes() == 0 => {}
            // The agent has enlarged its pipe or written to it, so no event tells guard when the pipe is empty.
            Self::Pipe(_) => std::thread::sleep(Duration::from_millis(10)),
            Self::Sealed(input) => {
                let _ = input.reads.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO);
            }
        }
    }

    /// Copies at most [`OFFER_BYTES`] from a pipe of the caller, without consuming them there.
    pub(super) fn copy_from_pipe(&self, from: &OwnedFd) -> io::Result<usize> {
        match self {
            Self::Pipe(fd) => pipe::copy_without_reading(from, fd, OFFER_BYTES),
            Self::Sealed(input) => {
                let (reader, writer) = &input.copies;
                let count = pipe::copy_without_reading(from, writer, OFFER_BYTES)?;
                let mut buffer = [0u8; OFFER_BYTES];
                let got = if count == 0 { 0 } else { nix::unistd::read(reader, &mut buffer)? };
                self.write(&buffer[..got])
            }
        }
    }

    /// Writes at most [`OFFER_BYTES`] to the agent. The write is never short and never blocks if the agent has read
    /// everything before.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(nix::unistd::write(self.descriptor(), bytes)?)
    }
}

impl SealedInput {
    fn make() -> io::Result<(OwnedFd, Self)> {
        let (guard_end, agent_end) = sealed_pair()?;
        // The stream has one direction, like a pipe: the agent cannot write to its standard input.
        shutdown(std::os::fd::AsRawFd::as_raw_fd(&guard_end), Shutdown::Read)?;
        let reads = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        // Edge-triggered: the stream is writable all the time, and only the moments matter at which it becomes empty.
        reads.add(&guard_end, EpollEvent::new(EpollFlags::EPOLLOUT | EpollFlags::EPOLLET, 0))?;
        let copies = small_pipe()?;
        Ok((agent_end.try_clone()?, Self { guard_end, agent_end, reads, copies }))
    }
}

fn small_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETPIPE_SZ(OFFER_BYTES as i32))?;
    Ok((reader, writer))
}
