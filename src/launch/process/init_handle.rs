//! guard's side of a run's init process: its start, and its end if the run does not take place.

use std::os::fd::{AsFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::agent::ChildResources;
use super::cgroup::{Group, ProcessBound};
use super::init::{self, InitConfig as InitSetting};
use super::protocol::{InitMessage, StartError};
use super::stdio::AgentStdio;
use crate::launch::plan::LaunchPlan;
use crate::launch::run::Streams;
use crate::sandbox;
use crate::sys::{process, socket};
use crate::transcript::Stream;

/// How long init may take until it is ready; milliseconds. It takes a few.
const PATIENCE: u16 = 30_000;

/// An init process, and guard's ends of everything that leads to it.
pub(crate) struct InitProcess {
    pub(crate) pid: i32,
    pub(crate) control: OwnedFd,
    /// Where the agent's process reports until it becomes the program.
    pub(crate) setup: OwnedFd,
    /// (guard's end, the stream it carries).
    pub(crate) pipes: Vec<(OwnedFd, Stream)>,
    /// Where guard writes the agent's standard input to, if it gets any.
    pub(crate) feeder: Option<OwnedFd>,
    /// What the user should know about the agent's standard input.
    pub(crate) note: Option<String>,
    pub(crate) canary: std::net::TcpListener,
}

impl InitProcess {
    /// Forks it. The plan must be settled, and the run's directories must exist. This process must have one thread.
    pub(crate) fn start(
        plan: &LaunchPlan,
        group: &Group,
        streams: &Streams,
        has_view: bool,
    ) -> Result<Self, StartError> {
        let (flags, user) = if has_view { sandbox::namespace_flags() } else { (0, None) };
        let filters = sandbox::filters(!has_view, group.process_bound == ProcessBound::Supervisor)?;
        let canary = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        let canary_port = canary.local_addr()?.port();
        let AgentStdio { stdio, outputs: pipes, feeder, null_input, note } = AgentStdio::make(streams)?;
        let pair = || socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (control, their_control) = pair()?;
        let (setup, their_setup) = pair()?;
        let pid = process::fork(flags).map_err(StartError::at("clone"))?;
        if pid == 0 {
            process::run_child(|| {
                drop((control, setup, pipes, feeder));
                // Without a namespace the limit counts everything of the user on the machine.
                let counts_all = !has_view && group.process_bound == ProcessBound::Rlimit;
                let equipment =
                    ChildResources { filters, stdio, null_input, canary_port, has_view, counts_all };
                let setting = InitSetting { user, terminal: streams.is_terminal, group };
                init::live(plan, equipment, &setting, &their_control, &their_setup)
            });
        }
        Ok(Self { pid, control, setup, pipes, feeder, note, canary })
    }

    /// Waits until its mounts are set up: the master end of the run's terminal, if it has one.
    pub(crate) fn await_ready(&self) -> Result<Option<OwnedFd>, StartError> {
        await_readable(&self.control)?;
        let mut bytes = [0u8; 4096];
        let (got, terminal) = socket::receive_with(self.control.as_fd(), &mut bytes)?;
        if got == 0 {
            return Err(StartError::Other("init ended at once".to_string()));
        }
        match InitMessage::decode(&bytes[..got]) {
            Some(InitMessage::Ready) => Ok(terminal),
            Some(InitMessage::Failed(error)) => Err(error),
            other => Err(StartError::Other(format!("unexpected message of init: {other:?}"))),
        }
    }

    /// Kills the process when the value is dropped, unless it is disarmed.
    pub(crate) fn kill_on_drop(&self) -> KillOnDrop {
        KillOnDrop(Some(Pid::from_raw(self.pid)))
    }
}

/// Kills and reaps a child.
pub(crate) struct KillOnDrop(Option<Pid>);

impl KillOnDrop {
    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // The kernel kills the agent with it: by the namespace, or by the agent's parent-death signal.
            let _ = kill(pid, Signal::SIGKILL);
            while matches!(waitpid(pid, None), Err(nix::errno::Errno::EINTR)) {}
        }
    }
}

/// Not for ever: an init that was stopped says nothing.
fn await_readable(control: &OwnedFd) -> Result<(), StartError> {
    loop {
        match poll(&mut [PollFd::new(control.as_fd(), PollFlags::POLLIN)], PATIENCE) {
            Ok(0) => return Err(StartError::NoAnswer),
            Ok(_) => return Ok(()),
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(StartError::at("wait for init")(error)),
        }
    }
}
