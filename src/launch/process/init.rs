//! The init process of a run: sets up the mounts, starts the agent, reaps orphans, and kills everything when the
//! supervisor asks for it or is gone.
//!
//! Init stays outside the agent's sandbox, but it can signal only its own descendants: as PID 1 of a PID namespace, or
//! by a Landlock scope. So one `kill(-1)` ends the whole run and nothing else, without a race against processes that
//! fork.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::agent;
use super::agent::ChildResources;
use super::cgroup::Group;
use super::protocol::{InitMessage, InitRequest, StartError, Used};
use crate::launch::plan::LaunchPlan;
use crate::sandbox;
use crate::sys::{process, socket, terminal};

/// What init needs besides the plan.
pub(crate) struct InitConfig<'s> {
    /// The user and group id to map, if init gets a user namespace.
    pub(crate) user: Option<(u32, u32)>,
    pub(crate) group: &'s Group,
    /// Which of the standard streams (input, output, error) are replaced by a new terminal.
    pub(crate) terminal: [bool; 3],
}

/// The main function of init. It starts the agent, watches over it and never returns.
pub(crate) fn live(
    plan: &LaunchPlan,
    mut equipment: ChildResources,
    setting: &InitConfig<'_>,
    control: &OwnedFd,
    setup: &OwnedFd,
) -> ! {
    let started = start_agent(plan, &mut equipment, setting, control, setup);
    let agent = match started {
        Ok(agent) => agent,
        Err(error) => {
            send(control, &InitMessage::Failed(error));
            process::exit_now(125)
        }
    };
    let _ = std::env::set_current_dir("/");
    keep_only(control);
    watch(control, agent)
}

/// Ignores errors: a supervisor that is gone does not need the message.
fn send(control: &OwnedFd, message: &InitMessage) {
    let _ = nix::unistd::write(control, &message.encode());
}

/// Does everything up to the fork of the agent, and returns the agent's process id.
fn start_agent(
    plan: &LaunchPlan,
    equipment: &mut ChildResources,
    setting: &InitConfig<'_>,
    control: &OwnedFd,
    setup: &OwnedFd,
) -> Result<i32, StartError> {
    // The result says which limits are in force, so a run must not go on without them.
    setting.group.join().map_err(StartError::at("join the cgroup"))?;
    if equipment.has_view {
        enter_namespaces(plan, setting.user)?;
    } else {
        process::become_subreaper()?;
    }
    if equipment.null_input {
        // A descriptor from the host's mount would let root change the device's mode.
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
        equipment.stdio[0] = null.map_err(StartError::at("/dev/null"))?.into();
    }
    let own_terminal = make_terminal(setting, equipment).map_err(StartError::at("a terminal"))?;
    if !equipment.has_view {
        restrict_own_signals()?;
    }
    // Before the capabilities are dropped, which may be needed to enter it. Landlock still decides what the agent may
    // do inside.
    let entered = std::env::set_current_dir(&plan.folder);
    // Init needs no privileges to reap and kill its own children, and the agent must not inherit any.
    let _ = process::set_no_new_privileges();
    let _ = process::drop_capabilities();
    let ready = InitMessage::Ready.encode();
    match &own_terminal {
        Some((master, _)) => socket::send_with(control.as_fd(), &ready, master.as_raw_fd())?,
        None => drop(nix::unistd::write(control, &ready)?),
    }
    let terminal = own_terminal.as_ref().map(|(_, slave)| slave);
    let agent = process::fork(0).map_err(StartError::at("clone"))?;
    if agent == 0 {
        process::run_child(|| {
            // Nothing could end the agent once init is gone.
            let _ = process::die_with_parent();
            agent::become_agent(plan, equipment, setup, terminal, &entered)
        });
    }
    Ok(agent)
}

/// Without a PID namespace, a Landlock scope keeps init from signalling anything but its own descendants.
fn restrict_own_signals() -> Result<(), StartError> {
    process::set_no_new_privileges()?;
    Ok(sandbox::restrict_signals()?)
}

/// Sets up the mounts of this process, which is PID 1 of its namespace.
fn enter_namespaces(plan: &LaunchPlan, user: Option<(u32, u32)>) -> Result<(), StartError> {
    // The death of PID 1 ends every process of its namespace.
    process::die_with_parent()?;
    // An undumpable process does not own its `/proc` files, and so could not write its uid and gid maps.
    let _ = process::set_dumpable(true);
    let apart = sandbox::part(user);
    let _ = process::set_dumpable(false);
    Ok(sandbox::enter(apart?, &plan.view)?)
}

fn make_terminal(
    setting: &InitConfig<'_>,
    equipment: &mut ChildResources,
) -> std::io::Result<Option<(OwnedFd, OwnedFd)>> {
    if !setting.terminal.contains(&true) {
        return Ok(None);
    }
    let (master, slave) = terminal::open(Path::new("/dev/ptmx"))?;
    for (stream, _) in equipment.stdio.iter_mut().zip(setting.terminal).filter(|(_, wanted)| *wanted) {
        *stream = slave.try_clone()?;
    }
    Ok(Some((master, slave)))
}

/// Closes every descriptor but the control socket: the reader of a pipe that init held open would never see its end.
fn keep_only(control: &OwnedFd) {
    let number = control.as_raw_fd() as u32;
    let _ = process::close_range(0, number.saturating_sub(1));
    let _ = process::close_range(number + 1, u32::MAX);
}

/// Reaps children and forwards signals until the run ends.
fn watch(control: &OwnedFd, agent: i32) -> ! {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
    let Ok(children) = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC) else {
        end(control, agent)
    };
    loop {
        if !reap(control, agent) {
            // No process is left that could fork. Init ends without being told to.
            leave(control)
        }
        let mut fds = [
            PollFd::new(control.as_fd(), PollFlags::POLLIN),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
        ];
        if poll(&mut fds, PollTimeout::NONE).is_err() {
            continue;
        }
        let _ = children.read_signal();
        if fds[0].any() == Some(true) {
            let mut request = [0u8; 8];
            let got = match nix::unistd::read(control, &mut request) {
                Err(nix::errno::Errno::EINTR) => continue,
                got => got.unwrap_or(0),
            };
            match InitRequest::decode(&request[..got]) {
                Some(InitRequest::Signal(number)) => {
                    if let Ok(signal) = Signal::try_from(number) {
                        let _ = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(agent), signal);
                    }
                }
                // End of file: guard is gone.
                Some(InitRequest::Kill) | None => end(control, agent),
            }
        }
    }
}

/// Reaps every child that has ended and reports the agent's exit. Returns whether any child is left.
fn reap(control: &OwnedFd, agent: i32) -> bool {
    loop {
        match process::reap() {
            Ok(Some((pid, status))) if pid == agent => {
                send(control, &InitMessage::AgentEnded(status));
            }
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return false,
            Err(_) => {}
        }
    }
}

/// Kills everything, waits until it is dead, reports that, and exits.
fn end(control: &OwnedFd, agent: i32) -> ! {
    loop {
        let _ = process::kill_everything();
        if !reap(control, agent) {
            break;
        }
        // Killed processes need a moment to die. The next round kills what was orphaned meanwhile.
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    leave(control)
}

/// Reports before it exits, so that the supervisor need not wait for the exit.
fn leave(control: &OwnedFd) -> ! {
    send(control, &InitMessage::AllDead(Used::by_children()));
    process::exit_now(0)
}
