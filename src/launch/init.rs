//! The first process of a run: makes the namespaces' view, starts the agent, reaps what is orphaned, and kills everything
//! when it is told to or when the supervisor is gone.
//!
//! It stays outside the agent's sandbox, but can signal nothing except its own descendants: in a PID namespace by being
//! process 1, elsewhere by a Landlock scope. So one `kill(-1)` ends the whole run and nothing else, without a race
//! against processes that fork.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeVal;

use super::child::{self, Equipment, Given};
use super::first::Known;
use super::group::{Group, ProcessBound};
use super::orders::{Desk, Orders};
use super::prepare::Folders;
use crate::sandbox;
use crate::sys::{process, socket, terminal};

/// What the first process and the supervisor say to each other.
pub(super) mod message {
    /// The run's folders are there, and this control group, which it is in.
    pub(in crate::launch) const MADE: u8 = b'M';
    /// The view is set up, and with it comes the terminal's other end if one was wanted. An event says that it is there:
    /// who is woken by a message runs in the place of its sender, which here goes on. A second event says that the agent
    /// is out of the first process's memory, and that nobody can look into that any more.
    pub(in crate::launch) const READY: u8 = b'R';
    /// It could not be set up: text follows.
    pub(in crate::launch) const FAILED: u8 = b'F';
    /// The agent ended: its wait status follows.
    pub(in crate::launch) const ENDED: u8 = b'E';
    /// Nothing of the run is left; what all of it used follows.
    pub(in crate::launch) const EMPTY: u8 = b'Z';
    /// To it: kill everything.
    pub(in crate::launch) const KILL: u8 = b'K';
    /// To it: send the signal that follows to the agent's process group.
    pub(in crate::launch) const SIGNAL: u8 = b'S';
}

/// Around it.
pub(super) struct Setting<'s> {
    /// The maps of its user namespace, if it has one of its own: (user, group).
    pub(super) user: Option<(u32, u32)>,
    /// Where its orders will lie.
    pub(super) desk: &'s Desk,
    /// What it is to make for the run before anything else.
    pub(super) folders: Option<&'s Folders>,
    /// The control group that was made for the run before.
    pub(super) group: Option<&'s Group>,
    /// The run talks to a terminal: these of its standard streams are replaced by a new one.
    pub(super) terminal: [bool; 3],
}

/// The life of the first process. Never comes back.
pub(super) fn live(
    known: &Known,
    mut equipment: Equipment,
    setting: &Setting<'_>,
    control: &OwnedFd,
    ready: &EventFd,
    setup: &OwnedFd,
) -> ! {
    let fail = |problem: &str| -> ! {
        let _ = nix::unistd::write(control, &[&[message::FAILED], problem.as_bytes()].concat());
        process::exit_now(125)
    };
    match make(known, setting, control) {
        Ok(group) => {
            // Without a namespace the limit counts everything of the user on the machine.
            equipment.counts_all = !equipment.has_view && group.process_bound == ProcessBound::Rlimit;
            if group.process_bound == ProcessBound::Supervisor {
                match sandbox::filters(!equipment.has_view, true) {
                    Ok(filters) => equipment.filters = filters,
                    Err(error) => fail(&error.to_string()),
                }
            }
        }
        Err(problem) => fail(&problem),
    }
    let mut orders = None;
    if equipment.has_view {
        match take_view(setting, setup) {
            Ok(given) => orders = Some(given),
            Err(problem) => fail(&problem),
        }
    } else if let Err(error) = process::become_subreaper() {
        fail(&error.to_string());
    }
    if equipment.null_input {
        // On the machine's mount, the descriptor would let root change the device's mode.
        match std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
            Ok(null) => equipment.stdio[0] = null.into(),
            Err(error) => fail(&format!("/dev/null: {error}")),
        }
    }
    let own_terminal = match make_terminal(setting, &mut equipment) {
        Ok(ends) => ends,
        Err(error) => fail(&format!("a terminal: {error}")),
    };
    let scoped =
        equipment.has_view || process::set_no_new_privileges().is_ok() && sandbox::restrict_signals().is_ok();
    // With the rights there still are: what is in it is the agent's own matter.
    let entered = std::env::set_current_dir(&known.folder);
    // To reap and to kill one's own children takes no rights, and the agent is to have none.
    let _ = process::set_no_new_privileges();
    let _ = process::drop_capabilities();
    let sent = match &own_terminal {
        Some((master, _)) => socket::send_with(control.as_fd(), &[message::READY], master.as_raw_fd()),
        None => nix::unistd::write(control, &[message::READY]).map(drop).map_err(Into::into),
    };
    if let Err(error) = sent.and_then(|()| Ok(ready.write(1).map(drop)?)) {
        fail(&error.to_string());
    }
    let terminal = own_terminal.as_ref().map(|(_, slave)| slave);
    let agent = process::start_in_place(|| {
        // Without the first process nothing could end what it started.
        let _ = process::die_with_parent();
        let orders = orders.map_or_else(|| Given::Later(setting.desk), |orders| Given::Now(Box::new(orders)));
        child::become_agent(known, &equipment, setup, terminal, &entered, orders)
    });
    let agent = match agent {
        Err(error) => fail(&format!("clone: {error}")),
        Ok(agent) => agent,
    };
    // The agent was to be looked at by the supervisor, in the same memory. Its program does not run before this is undone.
    let _ = process::set_dumpable(false);
    let _ = std::env::set_current_dir("/");
    let _ = ready.write(1);
    keep_only(control);
    watch(control, agent, scoped)
}

/// What the run needs before anything else, while guard makes a plan. The group that this process is in then.
fn make(known: &Known, setting: &Setting<'_>, control: &OwnedFd) -> Result<Group, String> {
    let made = setting.folders.map_or(Ok(()), Folders::make);
    made.map_err(|error| format!("prepare the run's folders: {error}"))?;
    let group =
        setting.group.cloned().unwrap_or_else(|| Group::make(&known.run_id, &known.limits, known.is_root));
    // The result says which bounds are in force: without them there is no run.
    if let Err(error) = group.join() {
        if setting.group.is_none() {
            // Nobody else knows of it.
            group.remove();
        }
        return Err(format!("join the control group: {error}"));
    }
    let _ = nix::unistd::write(control, &[&[message::MADE], group.to_bytes().as_slice()].concat());
    Ok(group)
}

/// In namespaces of its own: its view, and what it is to start.
fn take_view(setting: &Setting<'_>, setup: &OwnedFd) -> Result<Orders, String> {
    // Process 1 takes the whole namespace with it.
    process::die_with_parent().map_err(|error| error.to_string())?;
    // The maps of a user namespace are files of the process, which one that cannot be looked at does not own.
    let _ = process::set_dumpable(true);
    let apart = sandbox::part(setting.user).map_err(|error| error.to_string());
    let _ = process::set_dumpable(false);
    let apart = apart?;
    let orders = setting.desk.receive(setup)?;
    sandbox::enter(apart, &orders.view).map_err(|error| error.to_string())?;
    Ok(orders)
}

fn make_terminal(
    setting: &Setting<'_>,
    equipment: &mut Equipment,
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

/// Reaps, forwards and waits for the end. Without memory of the heap, which the agent has worked on before its program
/// began: if it was killed in the middle of that, nothing of it can be relied on.
fn watch(control: &OwnedFd, agent: i32, scoped: bool) -> ! {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
    let Ok(children) = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC) else {
        end(control, agent, scoped)
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
            let mut order = [0u8; 8];
            match nix::unistd::read(control, &mut order) {
                Ok(5) if order[0] == message::SIGNAL => {
                    let number = i32::from_le_bytes([order[1], order[2], order[3], order[4]]);
                    if let Ok(signal) = Signal::try_from(number) {
                        let _ = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(agent), signal);
                    }
                }
                Err(nix::errno::Errno::EINTR) => {}
                // Told to, or the supervisor is gone.
                _ => end(control, agent, scoped),
            }
        }
    }
}

/// Takes every child that has ended; tells about the agent. Whether any are left.
fn reap(control: &OwnedFd, agent: i32) -> bool {
    loop {
        match process::reap(false) {
            Ok(Some((pid, status))) if pid == agent => {
                let [a, b, c, d] = status.to_le_bytes();
                let _ = nix::unistd::write(control, &[message::ENDED, a, b, c, d]);
            }
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return false,
            Err(_) => {}
        }
    }
}

/// Kills everything, sees it dead, says so, and ends.
fn end(control: &OwnedFd, agent: i32, scoped: bool) -> ! {
    loop {
        if scoped {
            let _ = process::kill_everything();
        } else {
            super::descendants::kill_all(std::process::id() as i32);
        }
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
    let mut last = [message::EMPTY; 1 + Used::BYTES];
    last[1..].copy_from_slice(&Used::by_children().to_bytes());
    let _ = nix::unistd::write(control, &last);
    process::exit_now(0)
}

/// What processes that have ended used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) cpu_ms: u64,
    pub(super) max_rss_kib: u64,
}

impl Used {
    /// As long as it is when it is told.
    pub(super) const BYTES: usize = 16;

    /// By everything that this process has waited for.
    pub(super) fn by_children() -> Self {
        let Ok(used) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return Self::default() };
        let milliseconds =
            |time: TimeVal| (time.tv_sec() * 1000 + time.tv_usec() / 1000).max(0).unsigned_abs();
        Self {
            cpu_ms: milliseconds(used.user_time()) + milliseconds(used.system_time()),
            max_rss_kib: used.max_rss().max(0).unsigned_abs(),
        }
    }

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.cpu_ms.to_le_bytes());
        bytes[8..].copy_from_slice(&self.max_rss_kib.to_le_bytes());
        bytes
    }

    /// As it was told.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (cpu_ms, rest) = bytes.split_first_chunk()?;
        let (max_rss_kib, _) = rest.split_first_chunk()?;
        Some(Self { cpu_ms: u64::from_le_bytes(*cpu_ms), max_rss_kib: u64::from_le_bytes(*max_rss_kib) })
    }
}
