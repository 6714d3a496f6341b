//! Creates the agent's standard streams: pipes that guard owns, `/dev/null`, or a terminal that init creates later.
//!
//! guard must never hand the agent a descriptor of the caller: its holder can do more with it than read or write.

use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;

use super::stdin_feeder::agent_pipe;
use super::stdin_sharing::shell_reading_commands_from;
use crate::launch::run::Streams;
use crate::transcript::Stream;

/// The pipe capacity for output, in bytes.
const PIPE: i32 = 1 << 20;

/// The agent's standard streams, and guard's ends of them.
pub(crate) struct AgentStdio {
    pub(crate) stdio: [OwnedFd; 3],
    /// (guard's end, the stream it carries).
    pub(crate) outputs: Vec<(OwnedFd, Stream)>,
    /// The pipe to which guard writes the agent's standard input, if the agent gets any.
    pub(crate) feeder: Option<OwnedFd>,
    /// Standard input is `/dev/null`. Init opens it again inside the run's mounts.
    pub(crate) null_input: bool,
    /// A note for the user about standard input.
    pub(crate) note: Option<String>,
}

impl AgentStdio {
    pub(crate) fn make(streams: &Streams) -> io::Result<Self> {
        let mut outputs = Vec::new();
        let mut output = |is_terminal: bool, stream: Stream| -> io::Result<OwnedFd> {
            // Init replaces it by the run's own terminal before the agent starts.
            if is_terminal {
                return null();
            }
            let (ours, theirs) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
            // The largest size an unprivileged user may set: some agents exit without waiting until their output is
            // read.
            let _ = nix::fcntl::fcntl(&theirs, nix::fcntl::FcntlArg::F_SETPIPE_SZ(PIPE));
            outputs.push((ours, stream));
            Ok(theirs)
        };
        let stdout = output(streams.is_terminal[1], Stream::Stdout)?;
        let stderr = output(streams.is_terminal[2], Stream::Stderr)?;
        let (mut feeder, mut null_input, mut note) = (None, false, None);
        let stdin = if streams.is_terminal[0] {
            null()?
        } else if is_null(&streams.input)? {
            null_input = true;
            null()?
        } else if let Some((shell, pid)) = shell_beside(&streams.input) {
            null_input = true;
            note = Some(format!(
                "the agent's standard input is empty: {shell} (process {pid}) reads its commands from the one guard was \
                 given; hand something else over with `guard run … < FILE`"
            ));
            null()?
        } else {
            let (agents, feeders) = agent_pipe()?;
            feeder = Some(feeders);
            agents
        };
        Ok(Self { stdio: [stdin, stdout, stderr], outputs, feeder, null_input, note })
    }
}

/// The shell that reads its commands from the same input. None at a terminal, where the kernel arbitrates by
/// foreground process group.
fn shell_beside(input: &OwnedFd) -> Option<(String, i32)> {
    if input.is_terminal() { None } else { shell_reading_commands_from(input) }
}

fn is_null(fd: &OwnedFd) -> io::Result<bool> {
    let found = nix::sys::stat::fstat(fd)?;
    let is_device = found.st_mode & libc::S_IFMT == libc::S_IFCHR;
    Ok(is_device && found.st_rdev == nix::sys::stat::makedev(1, 3))
}

fn null() -> io::Result<OwnedFd> {
    Ok(std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?.into())
}
