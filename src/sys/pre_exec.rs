//! Restricts or sets up a child process of guard between fork and exec.
//!
//! guard prepares everything before the fork: after it, the child of a multi-threaded process may only make system
//! calls, without allocating or locking.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;

use super::{process, seccomp};

/// The restrictions that [`confine`] applies to one child process.
pub struct Confinement {
    /// The Landlock ruleset to apply.
    pub ruleset: OwnedFd,
    pub filter: Vec<libc::sock_filter>,
    /// Resource limits. A limit that is already lower stays as it is.
    pub limits: Vec<(Resource, u64)>,
    /// True if the kernel kills the child when the thread that started it ends.
    pub dies_with_parent: bool,
}

/// Makes the child process of a command restrict itself after the fork, before it executes its program.
pub fn confine(command: &mut Command, confinement: Confinement) {
    let apply = move || apply(&confinement);
    // SAFETY: `apply` makes system calls on memory that was there before the fork, and nothing else: no allocation, no
    // lock. The structures it reads belong to the closure.
    unsafe { command.pre_exec(apply) };
}

fn apply(confinement: &Confinement) -> io::Result<()> {
    if confinement.dies_with_parent {
        process::die_with_parent()?;
    }
    process::close_on_exec_from(3)?;
    for &(resource, most) in &confinement.limits {
        // The process that started guard may already have set a lower limit.
        let (_, hard) = getrlimit(resource)?;
        let most = most.min(hard);
        setrlimit(resource, most, most)?;
    }
    process::drop_capabilities()?;
    process::set_no_new_privileges()?;
    super::landlock_restrict(confinement.ruleset.as_fd(), 0)?;
    seccomp::install(&confinement.filter)
}

/// The signal with which guard ends git. As after SIGTERM, git then removes its temporary files and locks. SIGTERM
/// itself may have no effect: guard blocks it during setup and cleanup, and a child inherits the signal mask.
pub const GIT_END_SIGNAL: Signal = Signal::SIGPIPE;

/// Makes the kernel send SIGTERM to the command's process when the thread that starts it ends for any reason.
pub fn terminate_with_parent(command: &mut Command) {
    signal_when_parent_ends(command, Signal::SIGTERM);
}

fn signal_when_parent_ends(command: &mut Command, signal: Signal) {
    let parent = std::process::id();
    let work = move || {
        process::signal_with_parent(signal as i32)?;
        // If the parent ended before the call above, the kernel sends no signal.
        if std::os::unix::process::parent_id() == parent {
            Ok(())
        } else {
            Err(io::ErrorKind::Interrupted.into())
        }
    };
    // SAFETY: the closure only makes two system calls with plain integers.
    unsafe { command.pre_exec(work) };
}

/// Makes the command's process inherit a file descriptor under the same number, although it is marked close-on-exec.
/// The number must be at least 3, because the command's standard streams replace the lower ones.
pub fn inherit(command: &mut Command, file: OwnedFd) {
    let work = move || {
        fcntl(file.as_fd(), FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(())
    };
    // SAFETY: the closure only makes one system call with plain integers. It owns the descriptor, which therefore is
    // open in the child.
    unsafe { command.pre_exec(work) };
}

/// Limits the memory of git and of each process that git starts. The kernel sends [`GIT_END_SIGNAL`] to git when the
/// thread that starts it ends.
pub fn limit_git_memory(command: &mut Command, bytes: u64) {
    let work = move || {
        let (_, hard) = getrlimit(Resource::RLIMIT_DATA)?;
        let most = bytes.min(hard);
        setrlimit(Resource::RLIMIT_DATA, most, most)?;
        Ok(())
    };
    // SAFETY: the closure only makes two system calls with plain integers.
    unsafe { command.pre_exec(work) };
    signal_when_parent_ends(command, GIT_END_SIGNAL);
}

/// Makes git the leader of a new session: it has no terminal for prompts, and one signal to its process group reaches
/// every process that it starts. The kernel sends [`GIT_END_SIGNAL`] to git when the thread that starts it ends.
pub fn start_in_new_session(command: &mut Command) {
    let leave = || {
        nix::unistd::setsid()?;
        process::signal_with_parent(GIT_END_SIGNAL as i32)
    };
    // SAFETY: the closure only makes two system calls with plain integers.
    unsafe { command.pre_exec(leave) };
}

/// Makes a command's process the leader of a new session, so that it has no terminal and can outlive its caller.
pub fn start_session(command: &mut Command) {
    let leave = || nix::unistd::setsid().map(drop).map_err(io::Error::from);
    // SAFETY: the closure only makes one system call without arguments.
    unsafe { command.pre_exec(leave) };
}
