//! Restricts a helper process between fork and exec.
//!
//! Everything is prepared before the fork: the child of a multi-threaded process may only make system calls there,
//! without allocating or locking.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;

use super::{process, seccomp};

/// The restrictions of one child process.
pub struct Confinement {
    /// A Landlock ruleset.
    pub ruleset: OwnedFd,
    /// A seccomp filter.
    pub filter: Vec<libc::sock_filter>,
    /// Resource limits.
    pub limits: Vec<(Resource, u64)>,
    /// Whether the kernel kills the child when the thread that started it ends.
    pub dies_with_parent: bool,
}

/// Applies the restrictions to a command before it executes its program.
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
        // The caller of guard may already have set a lower limit.
        let (_, hard) = getrlimit(resource)?;
        let most = most.min(hard);
        setrlimit(resource, most, most)?;
    }
    process::drop_capabilities()?;
    process::set_no_new_privileges()?;
    super::landlock_restrict(confinement.ruleset.as_fd(), 0)?;
    seccomp::install(&confinement.filter)
}

/// Asks git to terminate: it removes its temporary files and locks, as for SIGTERM. SIGTERM itself may not arrive,
/// because guard blocks it during setup and cleanup, and a child inherits the signal mask.
pub const END_OF_GIT: Signal = Signal::SIGPIPE;

/// Sends SIGTERM to a command when the thread that starts it ends for any reason.
pub fn ends_with_parent(command: &mut Command) {
    gets_signal_with_parent(command, Signal::SIGTERM);
}

fn gets_signal_with_parent(command: &mut Command, signal: Signal) {
    let parent = std::process::id();
    let work = move || {
        process::signal_with_parent(signal as i32)?;
        // If the parent ended before the call above, no signal will come.
        if std::os::unix::process::parent_id() == parent {
            Ok(())
        } else {
            Err(io::ErrorKind::Interrupted.into())
        }
    };
    // SAFETY: two system calls on plain integers.
    unsafe { command.pre_exec(work) };
}

/// Limits the memory of git and of each process it starts. Git gets [`END_OF_GIT`] when the thread that starts it
/// ends.
pub fn bound_git(command: &mut Command, bytes: u64) {
    let work = move || {
        let (_, hard) = getrlimit(Resource::RLIMIT_DATA)?;
        let most = bytes.min(hard);
        setrlimit(Resource::RLIMIT_DATA, most, most)?;
        Ok(())
    };
    // SAFETY: two system calls on plain integers.
    unsafe { command.pre_exec(work) };
    gets_signal_with_parent(command, END_OF_GIT);
}

/// Makes git the leader of a new session: it has no terminal to prompt on, and one signal to its process group
/// reaches every process it starts. Git gets [`END_OF_GIT`] when the thread that starts it ends.
pub fn alone_in_session(command: &mut Command) {
    let leave = || {
        nix::unistd::setsid()?;
        process::signal_with_parent(END_OF_GIT as i32)
    };
    // SAFETY: two system calls on plain integers.
    unsafe { command.pre_exec(leave) };
}
