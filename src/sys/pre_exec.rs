//! What a helper program gives up between fork and exec. Everything is made before the fork: the child of a process with
//! many threads may only make system calls.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;

use super::{process, seccomp};

/// The restrictions of one child.
pub struct Confinement {
    /// A Landlock ruleset.
    pub ruleset: OwnedFd,
    /// A seccomp program.
    pub filter: Vec<libc::sock_filter>,
    /// Bounds of what it may use.
    pub limits: Vec<(Resource, u64)>,
    /// Killed when the thread that starts it ends.
    pub dies_with_parent: bool,
}

/// Makes a command give all of that up before it executes its program.
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
        // Who started guard may have set less already.
        let (_, hard) = getrlimit(resource)?;
        let most = most.min(hard);
        setrlimit(resource, most, most)?;
    }
    process::drop_capabilities()?;
    process::set_no_new_privileges()?;
    super::landlock_restrict(confinement.ruleset.as_fd(), 0)?;
    seccomp::install(&confinement.filter)
}

/// Asks a git to end: it removes its temporary files and locks, as at SIGTERM. That one it may not hear of, because guard
/// blocks it while something is made or put away, and a child inherits what is blocked.
pub const END_OF_GIT: Signal = Signal::SIGPIPE;

/// Makes a command be asked to end (SIGTERM) when the thread that starts it ends, however that comes.
pub fn ends_with_parent(command: &mut Command) {
    gets_signal_with_parent(command, Signal::SIGTERM);
}

fn gets_signal_with_parent(command: &mut Command, signal: Signal) {
    let parent = std::process::id();
    let work = move || {
        process::signal_with_parent(signal as i32)?;
        // Whoever ended before the call above ends nobody any more.
        if std::os::unix::process::parent_id() == parent {
            Ok(())
        } else {
            Err(io::ErrorKind::Interrupted.into())
        }
    };
    // SAFETY: two system calls on plain integers.
    unsafe { command.pre_exec(work) };
}

/// Bounds the memory of a git and of each process it starts, and makes it be asked to end when the thread that starts it ends.
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

/// Makes a git the first of a session of its own: it has no terminal to ask anybody on, and one signal to its process
/// group reaches whatever it starts. It is asked to end when the thread that starts it ends.
pub fn alone_in_session(command: &mut Command) {
    let leave = || {
        nix::unistd::setsid()?;
        process::signal_with_parent(END_OF_GIT as i32)
    };
    // SAFETY: two system calls on plain integers.
    unsafe { command.pre_exec(leave) };
}
