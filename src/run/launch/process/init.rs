//! The init process of a run: it sets up the mounts, starts the agent, reaps orphans, and kills every process of the
//! run when guard requests it or has died.
//!
//! Init stays outside the agent's sandbox, but it can signal only its own descendants: either it is PID 1 of a PID
//! namespace, or a Landlock scope restricts it. So one `kill(-1)` kills the whole run and nothing else, without a
//! race against processes that fork.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::agent;
use super::agent::ChildResources;
use super::cgroup::Group;
use super::protocol::{InitMessage, InitRequest, StartError, Used};
use crate::run::launch::plan::launch_plan::LaunchPlan;
use crate::sandbox;
use crate::sys::{process, socket, terminal};

/// The settings that guard gives to init in addition to the plan.
pub(crate) struct InitConfig<'s> {
    /// The user and group id to map into init's user namespace; `None` if init gets no user namespace.
    pub(crate) user: Option<(u32, u32)>,
    pub(crate) group: &'s Group,
    /// For standard input, output and error of the agent: true if init connects the stream to a new terminal.
    pub(crate) terminal: [bool; 3],
}

/// The main function of init. It starts the agent, reaps and kills the run's processes, and never returns. If it cannot
/// start the agent, it reports the error to guard and exits.
pub(crate) fn run_init(
    plan: &LaunchPlan,
    mut resources: ChildResources,
    config: &InitConfig<'_>,
    control: &OwnedFd,
    setup: &OwnedFd,
) -> ! {
    let started = start_agent(plan, &mut resources, config, control, setup);
    let agent = match started {
        Ok(agent) => agent,
        Err(error) => {
            send(control, &InitMessage::Failed(error));
            process::exit_now(125)
        }
    };
    let _ = std::env::set_current_dir("/");
    close_all_but(control);
    watch(control, agent)
}

/// Sends a message to guard. Ignores errors, because nobody needs the message if guard has died.
fn send(control: &OwnedFd, message: &InitMessage) {
    let _ = nix::unistd::write(control, &message.encode());
}

/// Sets up the run's cgroup, namespaces, mounts and terminal, and forks the agent. Returns the agent's process id.
fn start_agent(
    plan: &LaunchPlan,
    resources: &mut ChildResources,
    config: &InitConfig<'_>,
    control: &OwnedFd,
    setup: &OwnedFd,
) -> Result<i32, StartError> {
    // The run's result states that the cgroup's limits are in force, so the run must not start without them.
    config.group.join().map_err(StartError::at("join the cgroup"))?;
    if resources.has_mount_namespace {
        enter_namespaces(plan, config.user)?;
    } else {
        process::become_subreaper()?;
    }
    if resources.null_input {
        // Open `/dev/null` here: with a descriptor from the host's mount, root in the sandbox could change the mode
        // of the host's device.
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
        resources.stdio[0] = null.map_err(StartError::at("open /dev/null"))?.into();
    }
    let own_terminal = make_terminal(config, resources).map_err(StartError::at("create a terminal"))?;
    if !resources.has_mount_namespace {
        restrict_signals_of_init()?;
    }
    // Enter the directory before init drops its capabilities, which may be needed for that. Landlock still decides
    // what the agent may do in the directory.
    let entered = std::env::set_current_dir(&plan.folder);
    // Init needs no privileges to reap and kill its children, and the agent must not inherit any.
    let _ = process::set_no_new_privileges();
    let _ = process::drop_capabilities();
    let ready = InitMessage::Ready.encode();
    match &own_terminal {
        Some((master, _)) => socket::send_with(control.as_fd(), &ready, master.as_raw_fd())?,
        None => drop(nix::unistd::write(control, &ready)?),
    }
    let terminal = own_terminal.as_ref().map(|(_, slave)| slave);
    let agent = process::fork(0).map_err(StartError::at("fork the agent process"))?;
    if agent == 0 {
        process::run_child(|| {
            // The agent must die with init: without a PID namespace, nothing else would kill it if guard dies as well.
            let _ = process::die_with_parent();
            agent::become_agent(plan, resources, setup, terminal, &entered)
        });
    }
    Ok(agent)
}

/// Restricts init by a Landlock scope to signals to its own descendants, because it has no PID namespace.
fn restrict_signals_of_init() -> Result<(), StartError> {
    process::set_no_new_privileges()?;
    Ok(sandbox::restrict_signals()?)
}

/// Sets up the namespaces and mounts of init, which is PID 1 of its PID namespace.
fn enter_namespaces(plan: &LaunchPlan, user: Option<(u32, u32)>) -> Result<(), StartError> {
    // Make init die with guard. Init is PID 1 of its PID namespace, so the kernel then kills every process in the
    // namespace.
    process::die_with_parent()?;
    // A process that is not dumpable does not own its `/proc` files, and so could not write its uid and gid maps.
    let _ = process::set_dumpable(true);
    let prepared = sandbox::prepare_mounts(user);
    let _ = process::set_dumpable(false);
    Ok(sandbox::apply_mount_plan(prepared?, &plan.view)?)
}

/// Creates a terminal for the agent and connects the agent's standard streams to it. Returns both ends: (master,
/// slave). Returns `None` if none of the agent's streams is a terminal.
fn make_terminal(
    config: &InitConfig<'_>,
    resources: &mut ChildResources,
) -> std::io::Result<Option<(OwnedFd, OwnedFd)>> {
    if !config.terminal.contains(&true) {
        return Ok(None);
    }
    let (master, slave) = terminal::open(Path::new("/dev/ptmx"))?;
    for (stream, _) in resources.stdio.iter_mut().zip(config.terminal).filter(|(_, wanted)| *wanted) {
        *stream = slave.try_clone()?;
    }
    Ok(Some((master, slave)))
}

/// Closes every descriptor of init except the control socket. If init kept a pipe of the agent open, the reader of
/// the pipe would never get end of file.
fn close_all_but(control: &OwnedFd) {
    let number = control.as_raw_fd() as u32;
    let _ = process::close_range(0, number.saturating_sub(1));
    let _ = process::close_range(number + 1, u32::MAX);
}

/// Reaps children, forwards guard's signals to the agent's process group, and kills the whole run if guard requests it
/// or has died. Exits when no process of the run is left.
fn watch(control: &OwnedFd, agent: i32) -> ! {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
    let Ok(children) = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC) else {
        kill_all_and_exit(control, agent)
    };
    loop {
        if !reap(control, agent) {
            // No process of the run is left.
            report_and_exit(control)
        }
        let mut fds = [
            PollFd::new(control.as_fd(), PollFlags::POLLIN),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            // Without `poll`, init would not notice guard's requests.
            Err(_) => kill_all_and_exit(control, agent),
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
                // `None` means that guard has died (end of file) or that the request is invalid.
                Some(InitRequest::Kill) | None => kill_all_and_exit(control, agent),
            }
        }
    }
}

/// Reaps every child that has ended and reports the agent's exit to guard. Returns true if any child is left.
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

/// Kills every process of the run, waits until all are dead, reports that to guard, and exits.
fn kill_all_and_exit(control: &OwnedFd, agent: i32) -> ! {
    loop {
        let _ = process::kill_everything();
        if !reap(control, agent) {
            break;
        }
        // Killed processes need a moment to die. The next iteration kills processes that were forked or orphaned
        // meanwhile.
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    report_and_exit(control)
}

/// Reports to guard that every other process of the run is dead, and exits. guard need not wait for the exit.
fn report_and_exit(control: &OwnedFd) -> ! {
    send(control, &InitMessage::AllDead(Used::by_children()));
    process::exit_now(0)
}
