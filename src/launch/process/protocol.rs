//! The messages between guard, init and the agent, before and while the agent's program runs.
//!
//! ```text
//!   control   init  ──► guard   Ready (with the terminal's master end), or Failed
//!             guard ──► init    Signal, Kill
//!             init  ──► guard   AgentEnded, and at last AllDead
//!   setup     agent ──► guard   Listener (with the notification descriptor), or Failed
//!             agent ──► guard   CanaryBroken, ExecFailed or Failed; the socket closes when the program runs
//! ```
//!
//! Both sockets keep message boundaries. The first byte of a message is its type.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// Why a run's processes could not be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StartError {
    /// Init was stopped or is stuck. This says nothing about the capabilities of the machine.
    #[error("init does not answer")]
    NoAnswer,
    /// The file system of a package cache cannot be the lower layer of an overlay.
    #[error("{0}")]
    Overlay(String),
    /// Another seccomp listener is already installed for this process tree.
    #[error("{0}")]
    Listener(String),
    #[error("{0}")]
    Other(String),
}

impl StartError {
    /// For `map_err`: adds the step that failed to the error.
    pub(crate) fn at<E: std::fmt::Display>(step: &str) -> impl FnOnce(E) -> Self {
        move |error| Self::Other(format!("{step}: {error}"))
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
    /// The mounts are set up. The message carries the terminal's master end if one was requested.
    Ready,
    Failed(StartError),
    /// The agent's wait status.
    AgentEnded(i32),
    /// Every process of the run but init is dead. Carries the resources they used in all.
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

/// Messages from the agent's process to guard, before it executes the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AgentMessage {
    /// Carries the seccomp notification descriptor.
    Listener,
    /// The canary did something that the sandbox must forbid.
    CanaryBroken(Vec<Breach>),
    Failed(StartError),
    /// The program could not be executed. Holds the errno.
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

/// What the canary could do although the sandbox forbids it.
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

    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Write => "write outside",
            Self::Connect => "connect to the machine",
            Self::Exec => "start a program unseen",
        }
    }
}

/// Resources used by processes that have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) cpu_ms: u64,
    pub(crate) max_rss_kib: u64,
}

impl Used {
    /// Resources used by all children that this process has reaped.
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
    fn every_message_is_read_as_it_was_written() {
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
    fn other_bytes_are_no_message() {
        for bytes in
            [&b""[..], b"Q", b"Rx", b"F", b"F?text", b"E123", b"E12345", b"Z1234", b"Cq", b"X1", b"S1"]
        {
            assert_eq!(InitMessage::decode(bytes), None, "{bytes:?}");
            assert_eq!(AgentMessage::decode(bytes), None, "{bytes:?}");
            assert_eq!(InitRequest::decode(bytes), None, "{bytes:?}");
        }
    }
}
