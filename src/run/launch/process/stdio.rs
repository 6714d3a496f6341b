//! Creates the agent's standard streams: pipes or sealed streams to guard, `/dev/null`, or a terminal that init creates
//! later.
//!
//! guard must never pass a descriptor of the caller to the agent, because the agent could do more with it than read
//! or write.

use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;

use super::agent_input::AgentInput;
use super::sealed_stream::sealed_pair;
use super::stdin_sharing::shell_reading_commands_from;
use crate::run::launch::streams::Streams;
use crate::run::transcript::Stream;

/// The capacity of the pipes for the agent's output, in bytes.
const PIPE_BYTES: i32 = 1 << 20;

/// The agent's standard streams, and guard's ends of them.
pub(crate) struct AgentStdio {
    pub(crate) stdio: [OwnedFd; 3],
    /// guard's ends of the agent's standard output and error: (descriptor, stream). A stream that is connected to a
    /// terminal is not in the list.
    pub(crate) outputs: Vec<(OwnedFd, Stream)>,
    /// guard's end of the agent's standard input; `None` if that is `/dev/null` or a terminal.
    pub(crate) feeder: Option<AgentInput>,
    /// True if the agent's standard input is `/dev/null`. Init then opens `/dev/null` again after it has made the run's
    /// mounts, if there are any.
    pub(crate) null_input: bool,
    /// A note for the user about the agent's standard input, if there is one.
    pub(crate) note: Option<String>,
}

impl AgentStdio {
    pub(crate) fn make(streams: &Streams) -> io::Result<Self> {
        let mut outputs = Vec::new();
        let mut output = |is_terminal: bool, stream: Stream| -> io::Result<OwnedFd> {
            // Init replaces this descriptor with the agent's terminal before it starts the agent.
            if is_terminal {
                return open_null();
            }
            let is_sealed = streams.is_sealed && stream == Stream::Stdout;
            let (guard_end, agent_end) = if is_sealed { sealed_pair()? } else { large_pipe()? };
            outputs.push((guard_end, stream));
            Ok(agent_end)
        };
        let stdout = output(streams.is_terminal[1], Stream::Stdout)?;
        let stderr = output(streams.is_terminal[2], Stream::Stderr)?;
        let (mut feeder, mut null_input, mut note) = (None, false, None);
        let stdin = if streams.is_terminal[0] {
            open_null()?
        } else if is_null(&streams.input)? {
            null_input = true;
            open_null()?
        } else if let Some((shell, pid)) = shell_sharing(&streams.input) {
            null_input = true;
            note = Some(format!(
                "the agent's standard input is empty: {shell} (process {pid}) reads its commands from guard's standard \
                 input; give the agent another standard input with `guard run … < FILE`"
            ));
            open_null()?
        } else {
            let (agent_end, feeder_end) = AgentInput::make(streams.is_sealed)?;
            feeder = Some(feeder_end);
            agent_end
        };
        Ok(Self { stdio: [stdin, stdout, stderr], outputs, feeder, null_input, note })
    }
}

/// Creates a pipe with the largest capacity that Linux allows an unprivileged user by default. Then an agent can write
/// this much output and exit, even if guard has not read the output yet.
fn large_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (guard_end, agent_end) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let _ = nix::fcntl::fcntl(&agent_end, nix::fcntl::FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
    Ok((guard_end, agent_end))
}

/// Returns the name and process id of a shell that reads its commands from this input. Returns `None` for a terminal,
/// because the kernel lets only the foreground process group read from it.
fn shell_sharing(input: &OwnedFd) -> Option<(String, i32)> {
    if input.is_terminal() { None } else { shell_reading_commands_from(input) }
}

fn is_null(fd: &OwnedFd) -> io::Result<bool> {
    let found = nix::sys::stat::fstat(fd)?;
    let is_device = found.st_mode & libc::S_IFMT == libc::S_IFCHR;
    Ok(is_device && found.st_rdev == nix::sys::stat::makedev(1, 3))
}

fn open_null() -> io::Result<OwnedFd> {
    Ok(std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?.into())
}
