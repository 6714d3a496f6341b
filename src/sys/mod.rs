//! Thin safe wrappers around system calls: the only module with `unsafe` code.
//!
//! Each function makes one call (or a few that only make sense together), checks its result, and returns owned
//! descriptors and plain values. This module must not read a policy, make decisions, or log.
#![allow(
    unsafe_code,
    reason = "system calls without a safe wrapper elsewhere are wrapped here, and only here"
)]

pub mod agent_paths;
pub(crate) mod append_log;
pub mod copy_tree;
pub mod directory;
pub mod fs;
pub mod memory;
pub mod mount;
pub mod pipe;
pub mod pre_exec;
pub mod process;
pub mod process_stderr;
pub mod programs;
pub mod ptrace;
pub mod remove_tree;
pub mod sealed_memory;
pub mod seccomp;
pub mod secret;
pub mod signals;
pub mod socket;
pub mod syscall_numbers;
pub mod terminal;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Converts the result of a raw system call: -1 means failure, with the reason in errno.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Converts the result of a C function that returns an `int`: -1 means failure, with the reason in errno.
fn check_int(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Restricts this thread and its descendants to a Landlock ruleset.
pub fn landlock_restrict(ruleset: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
    // SAFETY: all arguments are plain integers.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), flags) }).map(drop)
}

/// Returns the kernel's Landlock ABI version; 0 if the kernel has no Landlock or it is disabled.
pub fn landlock_version() -> i32 {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the kernel reads no memory and gives back a number.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0usize, VERSION)
    };
    i32::try_from(version).unwrap_or(0).max(0)
}
