//! guard's handle to a run's init process: forks init, waits until it is ready, and kills it if the run cannot start.
//! guard may fork only while it has only one thread.

use std::os::fd::{AsFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::agent::ChildResources;
use super::agent_input::AgentInput;
use super::cgroup::{Group, ProcessBound};
use super::init;
use super::init::InitConfig;
use super::protocol::{InitMessage, StartError};
use super::stdio::AgentStdio;
use crate::run::launch::plan::launch_plan::LaunchPlan;
use crate::run::launch::streams::Streams;
use crate::run::transcript::Stream;
use crate::sandbox;
use crate::sys::{process, socket};

/// How long guard waits until init is ready, in milliseconds. Usually that takes a few milliseconds.
const READY_TIMEOUT_MS: u16 = 30_000;

/// An init process, and guard's end of each socket and pipe to it.
pub(crate) struct InitProcess {
    pub(crate) pid: i32,
    /// The socket through which guard and init exchange messages.
    pub(crate) control: OwnedFd,
    /// The socket on which the agent process reports to guard until it executes the program.
    pub(crate) setup: OwnedFd,
    /// guard's ends of the agent's standard output and error: (descriptor, stream).
    pub(crate) pipes: Vec<(OwnedFd, Stream)>,
    /// guard's end of the agent's standard input; `None` if that is `/dev/null` or a terminal.
    pub(crate) feeder: Option<AgentInput>,
    /// A note for the user about the agent's standard input, if there is one.
    pub(crate) note: Option<String>,
    /// The listener to which the canary (the self-test of the sandbox) tries to connect. If the sandbox works, the
    /// attempt fails.
    pub(crate) canary: std::net::TcpListener,
}

impl InitProcess {
    /// Forks init. The run's directories must exist, and guard must have only one thread. `plan` must be the result
    /// of [`LaunchPlan::adapt_to_namespaces`].
    pub(crate) fn start(
        plan: &LaunchPlan,
        group: &Group,
        streams: &Streams,
        has_mount_namespace: bool,
    ) -> Result<Self, StartError> {
        let (flags, user) = if has_mount_namespace { sandbox::namespace_flags() } else { (0, None) };
        let counts_forks = group.process_bound == ProcessBound::Supervisor;
        let filters = sandbox::filters(!has_mount_namespace, counts_forks)?;
        let canary = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        let canary_port = canary.local_addr()?.port();
        let AgentStdio { stdio, outputs: pipes, feeder, null_input, note } = AgentStdio::make(streams)?;
        let pair = || socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (control, their_control) = pair()?;
        let (setup, their_setup) = pair()?;
        let pid = process::fork(flags).map_err(StartError::at("fork init"))?;
        if pid == 0 {
            process::run_child(|| {
                drop((control, setup, pipes, feeder));
                // Without a PID namespace, `RLIMIT_NPROC` counts every process of the user on the machine.
                let rlimit_counts_all = !has_mount_namespace && group.process_bound == ProcessBound::Rlimit;
                let resources = ChildResources {
                    filters,
                    stdio,
                    null_input,
                    canary_port,
                    has_mount_namespace,
                    rlimit_counts_all,
                };
                let config = InitConfig { user, terminal: streams.is_terminal, group };
                init::run_init(plan, resources, &config, &their_control, &their_setup)
            });
        }
        Ok(Self { pid, control, setup, pipes, feeder, note, canary })
    }

    /// Waits until init has set up its mounts. Returns the master end of the agent's terminal, if the agent has one.
    /// Fails if init reports an error, ends, or does not answer within [`READY_TIMEOUT_MS`].
    pub(crate) fn await_ready(&self) -> Result<Option<OwnedFd>, StartError> {
        await_readable(&self.control)?;
        let mut bytes = [0u8; 4096];
        let (got, terminal) = socket::receive_with(self.control.as_fd(), &mut bytes)?;
        if got == 0 {
            return Err(StartError::Other("the run's init ended before it was ready".to_string()));
        }
        match InitMessage::decode(&bytes[..got]) {
            Some(InitMessage::Ready) => Ok(terminal),
            Some(InitMessage::Failed(error)) => Err(error),
            other => Err(StartError::Other(format!("the run's init sent an unexpected message: {other:?}"))),
        }
    }

    /// Returns a value that kills init when it is dropped, unless the caller disarms it first.
    pub(crate) fn kill_on_drop(&self) -> KillOnDrop {
        KillOnDrop(Some(Pid::from_raw(self.pid)))
    }
}

/// Kills and reaps a child process when it is dropped.
pub(crate) struct KillOnDrop(Option<Pid>);

impl KillOnDrop {
    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // The kernel then kills the agent too: with the PID namespace, or by the agent's parent-death signal.
            let _ = kill(pid, Signal::SIGKILL);
            while matches!(waitpid(pid, None), Err(nix::errno::Errno::EINTR)) {}
        }
    }
}

/// Waits until init has sent a message or ended. Has a timeout, because an init that another process stopped (SIGSTOP)
/// never answers.
fn await_readable(control: &OwnedFd) -> Result<(), StartError> {
    loop {
        match poll(&mut [PollFd::new(control.as_fd(), PollFlags::POLLIN)], READY_TIMEOUT_MS) {
            Ok(0) => return Err(StartError::NoAnswer),
            Ok(_) => return Ok(()),
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(StartError::at("wait for init")(error)),
        }
    }
}
