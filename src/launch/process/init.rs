//! Init of a run: makes the namespaces' view, starts the agent, reaps what is orphaned, and kills everything
//! when it is told to or when the supervisor is gone.
//!
//! It stays outside the agent's sandbox, but can signal nothing except its own descendants: in a PID namespace by being
//! process 1, elsewhere by a Landlock scope. So one `kill(-1)` ends the whole run and nothing else, without a race
//! against processes that fork.

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
    /// The maps of its user namespace, if it has one of its own: (user, group).
    pub(crate) user: Option<(u32, u32)>,
    /// The run's cgroup.
    pub(crate) group: &'s Group,
    /// The run talks to a terminal: these of its standard streams are replaced by a new one.
    pub(crate) terminal: [bool; 3],
}

/// The life of init. Never comes back.
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

/// Whoever is not there to read it does not need it.
fn send(control: &OwnedFd, message: &InitMessage) {
    let _ = nix::unistd::write(control, &message.encode());
}

/// Everything up to the fork of the agent: its process id.
fn start_agent(
    plan: &LaunchPlan,
    equipment: &mut ChildResources,
    setting: &InitConfig<'_>,
    control: &OwnedFd,
    setup: &OwnedFd,
) -> Result<i32, StartError> {
    // The result says which bounds are in force: without them there is no run.
    setting.group.join().map_err(StartError::at("join the cgroup"))?;
    if equipment.has_view {
        enter_namespaces(plan, setting.user)?;
    } else {
        process::become_subreaper()?;
    }
    if equipment.null_input {
        // On the machine's mount, the descriptor would let root change the device's mode.
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
        equipment.stdio[0] = null.map_err(StartError::at("/dev/null"))?.into();
    }
    let own_terminal = make_terminal(setting, equipment).map_err(StartError::at("a terminal"))?;
    if !equipment.has_view {
        restrict_own_signals()?;
    }
    // With the rights there still are: what is in it is the agent's own matter.
    let entered = std::env::set_current_dir(&plan.folder);
    // To reap and to kill one's own children takes no rights, and the agent is to have none.
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
            // Without init nothing could end what it started.
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

/// Sets up the mounts of this process, which is process 1 of its namespaces.
fn enter_namespaces(plan: &LaunchPlan, user: Option<(u32, u32)>) -> Result<(), StartError> {
    // Process 1 takes the whole namespace with it.
    process::die_with_parent()?;
    // The maps of a user namespace are files of the process, which one that cannot be looked at does not own.
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

/// Everything but the control socket is closed: a pipe held here would never end.
fn keep_only(control: &OwnedFd) {
    let number = control.as_raw_fd() as u32;
    let _ = process::close_range(0, number.saturating_sub(1));
    let _ = process::close_range(number + 1, u32::MAX);
}

/// Reaps, forwards and waits for the end.
fn watch(control: &OwnedFd, agent: i32) -> ! {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
    let Ok(children) = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC) else {
        end(control, agent)
    };
    loop {
        if !reap(control, agent) {
            // Nothing is left, and nothing can come any more: no need to be told.
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
                // Nothing to read: guard is gone.
                Some(InitRequest::Kill) | None => end(control, agent),
            }
        }
    }
}

/// Takes every child that has ended; tells about the agent. Whether any are left.
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

/// Kills everything, sees it dead, says so, and ends.
fn end(control: &OwnedFd, agent: i32) -> ! {
    loop {
        let _ = process::kill_everything();
        if !reap(control, agent) {
            break;
        }
        // Killed processes need a moment; what was orphaned meanwhile is killed in the next round.
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    leave(control)
}

/// Says so before it ends, which takes a moment: nobody has to wait for that.
fn leave(control: &OwnedFd) -> ! {
    send(control, &InitMessage::AllDead(Used::by_children()));
    process::exit_now(0)
}
