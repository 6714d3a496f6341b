//! Streams of the agent that other programs of the run cannot open.
//!
//! Every process can open the descriptors of the other processes of its user below `/proc/PID/fd`, if they are pipes,
//! files or terminals. So every program of a run could write lines into the agent's output that look like lines of the
//! agent. A socket has no such way in: the kernel refuses to open it (ENXIO), whoever asks. (A pipe without any
//! permission bits is no replacement: `chmod /proc/PID/fd/1` gives them back, because the agent's user owns the pipe.)
//!
//! The agent itself cannot open its `/dev/stdin` and `/dev/stdout` either. A child that inherits a stream can use it.

use std::io;
use std::os::fd::OwnedFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};

/// The wanted capacity of a stream, in bytes. The kernel gives an ordinary user less by default.
const BUFFER_BYTES: usize = 1 << 20;

/// Creates a stream of two equal ends: guard's and the agent's.
///
/// Both directions stay open. If guard closed the direction that an output does not need, an agent that watches its
/// output for the end of the reader (as Python's `asyncio` does) would take that for the end.
pub(super) fn sealed_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (guard_end, agent_end) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    // With a large buffer, an agent can write its last output and exit before guard has read it.
    let _ = setsockopt(&agent_end, sockopt::SndBuf, &BUFFER_BYTES);
    Ok((guard_end, agent_end))
}
