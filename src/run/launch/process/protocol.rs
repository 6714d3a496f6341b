//! The messages between guard, init and the agent process.
//!
//! ```text
//!   control   init  ──► guard   Ready (with the terminal's master end, if there is one), or Failed
//!             guard ──► init    Signal, Kill
//!             init  ──► guard   AgentEnded, and finally AllDead
//!   setup     agent ──► guard   Listener (with the seccomp listener), or Failed
//!             agent ──► guard   CanaryBroken, ExecFailed or Failed; a successful exec closes the socket
//! ```
//!
//! Both sockets preserve message boundaries. The first byte of a message is its type.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StartError {
    /// Init did not answer in time, because it was stopped or is stuck. That does not mean that the machine lacks a
    /// feature, so guard does not try again without namespaces.
    #[error("the run's init process does not answer")]
    NoAnswer,
    /// guard cannot mount an overlay over a package cache, for example because the cache's file system does not support
    /// overlays.
    #[error("{0}")]
    Overlay(String),
    /// The kernel refused a seccomp listener: most likely an outer sandbox has installed one for this process
    /// tree.
    #[error("cannot install a seccomp listener: {0}")]
    Listener(String),
    #[error("{0}")]
    Other(String),
}

impl StartError {
    /// Returns a function for `map_err` that adds the failed step to the error. `step` is a verb with its object,
    /// such as `fork init`.
    pub(crate) fn at<E: std::fmt::Display>(step: &str) -> impl FnOnce(E) -> Self {
        move |error| Self::Other(format!("cannot {step}: {error}"))
    }

    fn encode(&self) -> Vec<u8> {
        let (kind, text) = match self {
            Self::NoAnswer => (b'n', ""),
            Self::Overlay(text) => (b'o', text.as_str()),
            Self::Listener(text) => (b'l', text.as_str()),
            Self::Other(text) => (b'x', text.as_str()),
        };
        [&[kind], text.as_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, text) = bytes.split_first()?;
        let text = String::from_utf8_lossy(text).into_owned();
        match kind {
            b'n' => Some(Self::NoAnswer),
            b'o' => Some(Self::Overlay(text)),
            b'l' => Some(Self::Listener(text)),
            b'x' => Some(Self::Other(text)),
            _ => None,
        }
    }
}

impl From<crate::sandbox::SandboxError> for StartError {
    fn from(error: crate::sandbox::SandboxError) -> Self {
        match error {
            crate::sandbox::SandboxError::Overlay { .. } => Self::Overlay(error.to_string()),
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<std::io::Error> for StartError {
    fn from(error: std::io::Error) -> Self {
        Self::Other(error.to_string())
    }
}

impl From<nix::errno::Errno> for StartError {
    fn from(error: nix::errno::Errno) -> Self {
        std::io::Error::from(error).into()
    }
}

/// Messages from init to guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InitMessage {
    /// Init has set up the mounts. The message carries the master end of the agent's terminal, if the agent gets one.
    Ready,
    Failed(StartError),
    /// The agent has ended with this wait status.
    AgentEnded(i32),
    /// Every process of the run except init is dead. Contains the resources that these processes used.
    AllDead(Used),
}

impl InitMessage {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Ready => vec![b'R'],
            Self::Failed(error) => [vec![b'F'], error.encode()].concat(),
            Self::AgentEnded(status) => [&[b'E'][..], &status.to_le_bytes()].concat(),
            Self::AllDead(used) => [&[b'Z'][..], &used.encode()].concat(),
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [b'R'] => Some(Self::Ready),
            [b'F', error @ ..] => StartError::decode(error).map(Self::Failed),
            [b'E', status @ ..] => Some(Self::AgentEnded(i32::from_le_bytes(status.try_into().ok()?))),
            [b'Z', used @ ..] => Used::decode(used).map(Self::AllDead),
            _ => None,
        }
    }
}

/// Messages from guard to init.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InitRequest {
    /// Kill every process of the run.
    Kill,
    /// Send this signal to the agent's process group.
    Signal(i32),
}

impl InitRequest {
    pub(crate) fn encode(self) -> Vec<u8> {
        match self {
            Self::Kill => vec![b'K'],
            Self::Signal(number) => [&[b'S'][..], &number.to_le_bytes()].concat(),
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [b'K'] => Some(Self::Kill),
            [b'S', number @ ..] => Some(Self::Signal(i32::from_le_bytes(number.try_into().ok()?))),
            _ => None,
        }
    }
}

/// Messages that the agent process sends to guard before it executes the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AgentMessage {
    /// The agent process has installed the seccomp filters. The message carries the seccomp listener.
    Listener,
    /// The sandbox did not refuse these operations when the canary (the self-test of the sandbox) tried them.
    CanaryBroken(Vec<Breach>),
    Failed(StartError),
    /// The agent process could not execute the program. Contains the errno of the exec.
    ExecFailed(i32),
}

impl AgentMessage {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Listener => vec![b'L'],
            Self::CanaryBroken(breaches) => {
                std::iter::once(b'C').chain(breaches.iter().map(|breach| *breach as u8)).collect()
            }
            Self::Failed(error) => [vec![b'F'], error.encode()].concat(),
            Self::ExecFailed(errno) => [&[b'X'][..], &errno.to_le_bytes()].concat(),
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [b'L'] => Some(Self::Listener),
            [b'C', breaches @ ..] => breaches
                .iter()
                .map(|letter| Breach::from_letter(*letter))
                .collect::<Option<_>>()
                .map(Self::CanaryBroken),
            [b'F', error @ ..] => StartError::decode(error).map(Self::Failed),
            [b'X', errno @ ..] => Some(Self::ExecFailed(i32::from_le_bytes(errno.try_into().ok()?))),
            _ => None,
        }
    }
}

/// An operation that the sandbox must refuse, but did not refuse when the canary (the self-test of the sandbox) tried
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Breach {
    Write = b'w',
    Connect = b'c',
    Exec = b'e',
}

impl Breach {
    const ALL: [Self; 3] = [Self::Write, Self::Connect, Self::Exec];

    fn from_letter(letter: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|breach| *breach as u8 == letter)
    }

    /// Returns the operation as the end of a sentence that begins with "it could".
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Write => "write a file outside the granted directories",
            Self::Connect => "connect to a port of the host",
            Self::Exec => "execute a program without the supervisor's approval",
        }
    }
}

/// The resources that the processes of a run have used: the CPU time of all of them, and the memory of the largest one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) cpu_ms: u64,
    pub(crate) max_rss_kib: u64,
}

impl Used {
    /// Returns the resources used by all processes that the calling process has reaped, and by those that they had
    /// reaped themselves. Returns zeros if the kernel does not report them.
    pub(crate) fn by_children() -> Self {
        let Ok(used) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return Self::default() };
        let milliseconds =
            |time: TimeVal| (time.tv_sec() * 1000 + time.tv_usec() / 1000).max(0).unsigned_abs();
        Self {
            cpu_ms: milliseconds(used.user_time()) + milliseconds(used.system_time()),
            max_rss_kib: used.max_rss().max(0).unsigned_abs(),
        }
    }

    fn encode(self) -> Vec<u8> {
        [self.cpu_ms.to_le_bytes(), self.max_rss_kib.to_le_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (cpu_ms, rest) = bytes.split_first_chunk()?;
        Some(Self {
            cpu_ms: u64::from_le_bytes(*cpu_ms),
            max_rss_kib: u64::from_le_bytes(rest.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors() -> [StartError; 4] {
        let text = || "why".to_string();
        [
            StartError::NoAnswer,
            StartError::Overlay(text()),
            StartError::Listener(text()),
            StartError::Other(String::new()),
        ]
    }

    #[test]
    fn every_message_decodes_to_itself() {
        let used = Used { cpu_ms: 7, max_rss_kib: u64::MAX };
        let from_init = [InitMessage::Ready, InitMessage::AgentEnded(-3), InitMessage::AllDead(used)];
        for message in from_init.into_iter().chain(errors().map(InitMessage::Failed)) {
            assert_eq!(InitMessage::decode(&message.encode()), Some(message));
        }
        for request in [InitRequest::Kill, InitRequest::Signal(15)] {
            assert_eq!(InitRequest::decode(&request.encode()), Some(request));
        }
        let from_agent = [
            AgentMessage::Listener,
            AgentMessage::ExecFailed(libc::ENOENT),
            AgentMessage::CanaryBroken(Vec::new()),
            AgentMessage::CanaryBroken(Breach::ALL.to_vec()),
        ];
        for message in from_agent.into_iter().chain(errors().map(AgentMessage::Failed)) {
            assert_eq!(AgentMessage::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn other_bytes_decode_to_nothing() {
        for bytes in
            [&b""[..], b"Q", b"Rx", b"F", b"F?text", b"E123", b"E12345", b"Z1234", b"Cq", b"X1", b"S1"]
        {
            assert_eq!(InitMessage::decode(bytes), None, "{bytes:?}");
            assert_eq!(AgentMessage::decode(bytes), None, "{bytes:?}");
            assert_eq!(InitRequest::decode(bytes), None, "{bytes:?}");
        }
    }
}
