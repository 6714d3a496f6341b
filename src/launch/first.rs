//! guard's side of a run's first process: its start, which no plan has to be made for, its orders, and its end if there are
//! none.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::child::Equipment;
use super::group::Group;
use super::init::{self, Setting as InitSetting};
use super::orders::Desk;
use super::parent::Streams;
use super::plan::{LaunchPlan, Limits};
use super::prepare::Folders;
use super::protocol::{InitMessage, StartError};
use super::stdio::AgentStdio;
use crate::sandbox;
use crate::sys::{process, socket};
use crate::transcript::Stream;

/// How long the first process may take for a step; milliseconds. Each takes less than one.
const PATIENCE: u16 = 30_000;

/// What is known of a run before it is planned.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// The run's id.
    pub(super) run_id: String,
    /// The working folder.
    pub(super) folder: PathBuf,
    /// The run's folder.
    pub(super) run_folder: PathBuf,
    /// Bounds.
    pub(super) limits: Limits,
    /// The user who starts the run is root.
    pub(super) is_root: bool,
}

/// A first process that waits for orders, and our ends of everything that leads to it.
#[derive(Debug)]
pub(super) struct First {
    pub(super) pid: i32,
    /// It has namespaces of its own.
    pub(super) has_view: bool,
    pub(super) control: OwnedFd,
    pub(super) setup: OwnedFd,
    /// (our end, the stream it carries).
    pub(super) pipes: Vec<(OwnedFd, Stream)>,
    /// Where guard writes the agent's standard input to, if it gets any.
    pub(super) feeder: Option<OwnedFd>,
    /// What the user should know about the agent's standard input.
    pub(super) note: Option<String>,
    pub(super) canary: std::net::TcpListener,
    desk: Desk,
}

impl First {
    /// Starts it, and lets it make these folders and, unless there is one, a control group; it says what it has made. This
    /// process must have one thread.
    pub(super) fn start(
        known: &Known,
        (folders, group): (Option<&Folders>, Option<&Group>),
        streams: &Streams,
        has_view: bool,
    ) -> Result<Self, StartError> {
        let (flags, user) = if has_view { sandbox::namespace_flags() } else { (0, None) };
        let filters = sandbox::filters(!has_view, false)?;
        let canary = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        let canary_port = canary.local_addr()?.port();
        let AgentStdio { stdio, outputs: pipes, feeder, null_input, note } = AgentStdio::make(streams)?;
        let pair = || socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (control, their_control) = pair()?;
        let (setup, their_setup) = pair()?;
        let desk = Desk::make()?;
        let pid = process::fork(flags).map_err(StartError::at("clone"))?;
        if pid == 0 {
            process::run_child(|| {
                drop((control, setup, pipes, feeder));
                let equipment =
                    Equipment { filters, stdio, null_input, canary_port, has_view, counts_all: false };
                let setting =
                    InitSetting { user, terminal: streams.is_terminal, desk: &desk, folders, group };
                init::live(known, equipment, &setting, &their_control, &their_setup)
            });
        }
        Ok(Self { pid, has_view, control, setup, pipes, feeder, note, canary, desk })
    }

    /// The control group it is in, as soon as the folders are there that it was to make. This is the first that it says.
    pub(super) fn has_made(&self) -> Result<Group, StartError> {
        match self.receive()? {
            (InitMessage::Made(group), _) => Ok(group),
            (message, _) => Err(unexpected(message)),
        }
    }

    /// Its next message, and the descriptor that comes with it.
    fn receive(&self) -> Result<(InitMessage, Option<OwnedFd>), StartError> {
        await_any(&mut [PollFd::new(self.control.as_fd(), PollFlags::POLLIN)])?;
        let mut bytes = [0u8; 4096];
        let (got, descriptor) = socket::receive_with(self.control.as_fd(), &mut bytes)?;
        if got == 0 {
            return Err(StartError::Other("init ended at once".to_string()));
        }
        let message = InitMessage::decode(&bytes[..got]);
        Ok((message.ok_or_else(|| StartError::Other("malformed message of init".to_string()))?, descriptor))
    }

    /// Tells it what to do. The plan must be settled, and the run's folders must be there.
    pub(super) fn order(&mut self, plan: &LaunchPlan) -> Result<(), StartError> {
        self.desk.give(plan, &self.setup).map_err(StartError::at("give orders"))
    }

    /// Waits until it has a view of its own, or is what it is without one: the run's terminal, if it has one.
    pub(super) fn await_ready(&self) -> Result<Option<OwnedFd>, StartError> {
        match self.receive()? {
            (InitMessage::Ready, terminal) => Ok(terminal),
            (message, _) => Err(unexpected(message)),
        }
    }

    /// Ends it: there are no orders for it.
    pub(super) fn end(self) {
        let pid = Pid::from_raw(self.pid);
        drop(self);
        // What it has started has nobody to hear from any more, and goes with it.
        let _ = kill(pid, Signal::SIGKILL);
        while matches!(waitpid(pid, None), Err(nix::errno::Errno::EINTR)) {}
    }
}

fn unexpected(message: InitMessage) -> StartError {
    match message {
        InitMessage::Failed(error) => error,
        other => StartError::Other(format!("unexpected message of init: {other:?}")),
    }
}

/// Waits until one of these has something to say, but not for ever: a first process that was stopped says nothing.
fn await_any(fds: &mut [PollFd<'_>]) -> Result<(), StartError> {
    loop {
        match poll(fds, PATIENCE) {
            Ok(0) => return Err(StartError::NoAnswer),
            Ok(_) => return Ok(()),
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(StartError::at("wait for init")(error)),
        }
    }
}
