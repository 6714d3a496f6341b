//! Creates and reaps processes, drops privileges, and manages descriptors.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{check, check_int};

/// Forks this process. `flags` are the `CLONE_NEW*` flags of new namespaces for the child. Returns 0 in the child.
///
/// The calling process must have only one thread: the child continues with ordinary code, which may allocate memory.
pub fn fork(flags: i32) -> io::Result<i32> {
    if flags == 0 {
        // SAFETY: the process has one thread (see above), so the child's memory is consistent.
        return check_int(unsafe { libc::fork() });
    }
    // SAFETY: as fork: no stack, no shared memory; the arguments after the flags are not used without their flags.
    check(unsafe {
        libc::syscall(libc::SYS_clone, flags as libc::c_long | libc::c_long::from(libc::SIGCHLD), 0, 0, 0, 0)
    })
    .map(|pid| pid as i32)
}

/// Runs `work` in a forked child. If `work` panics, exits, so that the child never returns into its parent's code.
pub fn run_child(work: impl FnOnce() -> Infallible) -> ! {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    exit_now(101)
}

/// Exits at once without running destructors or flushing buffers. Forked children need this, because their buffers are
/// copies of their parent's.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// A pidfd through which guard can duplicate the descriptors of a thread.
#[derive(Debug)]
pub enum ThreadFd {
    /// The pidfd refers to the thread itself.
    Thread(OwnedFd),
    /// The pidfd refers to the thread's process. It stays valid even if the thread ends and the kernel reuses the
    /// thread's id.
    Process(OwnedFd),
}

impl ThreadFd {
    /// Returns the pidfd, whatever it refers to.
    pub fn into_fd(self) -> OwnedFd {
        match self {
            Self::Thread(fd) | Self::Process(fd) => fd,
        }
    }
}

/// Opens a pidfd for a thread. Before Linux 6.9 only the main thread of a process can have one; for other threads the
/// result refers to their process.
pub fn thread_fd(tid: i32) -> io::Result<ThreadFd> {
    const PIDFD_THREAD: libc::c_uint = libc::O_EXCL as libc::c_uint;
    let is_invalid = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    match open_pidfd(tid, PIDFD_THREAD) {
        Err(error) if is_invalid(&error) => {}
        opened => return opened.map(ThreadFd::Thread),
    }
    match open_pidfd(tid, 0) {
        Err(error) if is_invalid(&error) => open_pidfd(process_of(tid)?, 0).map(ThreadFd::Process),
        opened => opened.map(ThreadFd::Thread),
    }
}

fn open_pidfd(id: i32, flags: libc::c_uint) -> io::Result<OwnedFd> {
    // SAFETY: all arguments are plain integers.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, id, flags) })?;
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Waits until a child exits or the deadline passes. Returns `None` if the child still runs.
pub fn wait_until(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    // Check first, because a child that was already reaped has no pidfd.
    if let Some(status) = child.try_wait()? {
        return Ok(Some(status));
    }
    // SAFETY: all arguments are plain integers. The child is not reaped yet, so its id is not reused.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) })?;
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    let exited = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Round up, so that the last poll does not repeatedly return just before the deadline.
        let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(exited.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) | Err(Errno::EINTR) if Instant::now() < deadline => {}
            Ok(_) | Err(Errno::EINTR) => return child.try_wait(),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the id of the process that contains a thread.
pub fn process_of(tid: i32) -> io::Result<i32> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status"))?;
    let id = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    id.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Duplicates descriptor `number` of another thread, given its pidfd.
pub fn descriptor_of(thread: BorrowedFd<'_>, number: i32) -> io::Result<OwnedFd> {
    // SAFETY: all arguments are plain integers.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, thread.as_raw_fd(), number, 0) })?;
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn prctl(option: i32, a: usize, b: usize) -> io::Result<i32> {
    // SAFETY: only options with plain integer arguments are used in this file.
    check_int(unsafe { libc::prctl(option, a, b, 0usize, 0usize) })
}

/// Sets `no_new_privs`: no program executed from here on can gain privileges.
pub fn set_no_new_privileges() -> io::Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0).map(drop)
}

/// Sets whether other processes of the same user may trace this one and read its memory.
pub fn set_dumpable(dumpable: bool) -> io::Result<()> {
    prctl(libc::PR_SET_DUMPABLE, usize::from(dumpable), 0).map(drop)
}

/// Makes this process a subreaper: the new parent of its orphaned descendants.
pub fn become_subreaper() -> io::Result<()> {
    prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0).map(drop)
}

/// Makes the kernel kill this process when the thread that created the process ends.
pub fn die_with_parent() -> io::Result<()> {
    signal_with_parent(libc::SIGKILL)
}

/// Makes the kernel send `signal` to this process when the thread that created the process ends.
pub(super) fn signal_with_parent(signal: i32) -> io::Result<()> {
    prctl(libc::PR_SET_PDEATHSIG, signal as usize, 0).map(drop)
}

/// Drops every capability for this process and everything that it executes, including those that root gets by
/// default.
pub fn drop_capabilities() -> io::Result<()> {
    for capability in 0..64 {
        match prctl(libc::PR_CAPBSET_DROP, capability, 0) {
            Ok(_) => {}
            // EINVAL: there are no more capabilities. EPERM: this process may not drop the capability, but exec
            // cannot gain it either (no_new_privs).
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM)) => break,
            Err(error) => return Err(error),
        }
    }
    match prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as usize, 0) {
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => return Err(error),
        _ => {}
    }
    set_capabilities(0, 0)
}

/// Drops all capabilities of this thread, but of no other thread, so that the kernel checks its calls like those of an
/// ordinary user. Unlike [`drop_capabilities`], does not prevent a program that the thread executes as root from
/// regaining them.
pub fn drop_effective_capabilities() -> io::Result<()> {
    set_capabilities(0, 0)
}

const CAPABILITY_VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn set_capabilities(effective: u32, permitted: u32) -> io::Result<()> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let data = [0, 1].map(|_| CapabilityData { effective, permitted, inheritable: 0 });
    // SAFETY: version 3 of the interface: one header, two data structures, both live through the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
}

pub fn has_cap_sys_admin() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut data = [const { CapabilityData { effective: 0, permitted: 0, inheritable: 0 } }; 2];
    // SAFETY: version 3 of the interface: one header, two data structures for the kernel to fill in.
    let got = unsafe { libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) };
    got == 0 && data[0].effective >> CAP_SYS_ADMIN & 1 == 1
}

/// Replaces the session keyring inherited from the user with an empty one. Ignores errors, because they mean that the
/// kernel has no keyrings.
pub fn leave_session_keyring() {
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: a null name asks for an anonymous keyring.
    unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
}

/// Marks every descriptor from `first` on as close-on-exec.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: all arguments are plain integers.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) })
        .map(drop)
}

/// Closes every descriptor from `first` to `last` now.
///
/// The caller must not drop or use any value that owns such a descriptor afterwards.
pub fn close_range(first: u32, last: u32) -> io::Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: all arguments are plain integers; the documentation above states the caller's obligation.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Kills every process that the calling process may signal, except itself. A process may call this only if a Landlock
/// scope or a PID namespace restricts its signals to its own descendants.
pub fn kill_everything() -> io::Result<()> {
    // SAFETY: all arguments are plain integers.
    match check_int(unsafe { libc::kill(-1, libc::SIGKILL) }) {
        Err(error)
            if error.raw_os_error() != Some(libc::ESRCH) && error.raw_os_error() != Some(libc::EPERM) =>
        {
            Err(error)
        }
        _ => Ok(()),
    }
}

/// Executes a program in place of this one. Returns only on failure.
pub fn execute(
    program: &std::ffi::CStr,
    argv: &[std::ffi::CString],
    environment: &[std::ffi::CString],
) -> io::Error {
    let pointers = |texts: &[std::ffi::CString]| -> Vec<*const libc::c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, environment) = (pointers(argv), pointers(environment));
    // SAFETY: null-terminated arrays of null-terminated strings that live through the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The child exited with this code.
    Code(i32),
    /// This signal killed the child.
    Signal(i32),
}

impl Ended {
    /// Converts a status that `wait` returned.
    pub fn from_status(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Signal(libc::WTERMSIG(status))
        } else {
            Self::Code(libc::WEXITSTATUS(status))
        }
    }

    /// Returns the signal that killed the child; `None` if the child exited.
    pub fn signal(self) -> Option<i32> {
        match self {
            Self::Code(_) => None,
            Self::Signal(signal) => Some(signal),
        }
    }

    /// Returns the exit code by the shell's convention: the child's own code, or 128 plus the signal number.
    pub fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

/// Reaps one child of this thread that has ended, and returns its process id and wait status; `None` if no child has
/// ended.
pub fn reap() -> io::Result<Option<(i32, i32)>> {
    let mut status = 0;
    let flags = libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG;
    // SAFETY: `status` is a valid place for an int.
    match check_int(unsafe { libc::waitpid(-1, &raw mut status, flags) })? {
        0 => Ok(None),
        pid => Ok(Some((pid, status))),
    }
}

/// Duplicates the descriptor `from` as descriptor `number`, without close-on-exec.
pub fn replace_descriptor(from: i32, number: i32) -> io::Result<()> {
    // SAFETY: all arguments are plain integers. `number` is one of the standard streams, which nothing in this program
    // owns.
    check_int(unsafe { libc::dup2(from, number) }).map(drop)
}

/// Restores the default action of a signal.
pub fn default_signal(signal: nix::sys::signal::Signal) -> io::Result<()> {
    // SAFETY: the default action runs no code of this program.
    unsafe { nix::sys::signal::signal(signal, nix::sys::signal::SigHandler::SigDfl) }?;
    Ok(())
}

/// Limits how much freed memory malloc retains. By default every thread has an arena that retains freed blocks, even
/// large ones. If an agent sent large requests to the threads that serve the shims, guard would retain memory for all
/// of them (300 MiB instead of less than 200).
pub fn limit_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: all arguments are plain integers; called before there is a second thread.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 512 << 10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_awaited_until_the_deadline() {
        let start = |script: &str| std::process::Command::new("sh").args(["-c", script]).spawn().expect("sh");
        let mut child = start("exit 3");
        let in_a_minute = Instant::now() + Duration::from_secs(60);
        for _ in 0..2 {
            let status = wait_until(&mut child, in_a_minute).expect("the child can be awaited");
            assert_eq!(status.and_then(|status| status.code()), Some(3));
        }
        let mut child = start("exec sleep 60");
        let began = Instant::now();
        let status =
            wait_until(&mut child, began + Duration::from_millis(50)).expect("the child can be awaited");
        let waited = began.elapsed();
        let _ = child.kill();
        let _ = child.wait();
        assert!(status.is_none() && waited >= Duration::from_millis(50), "{status:?} after {waited:?}");
    }

    #[test]
    fn a_thread_belongs_to_its_process() {
        let own = std::process::id() as i32;
        let of_thread =
            std::thread::spawn(|| process_of(nix::unistd::gettid().as_raw())).join().expect("no panic");
        assert_eq!(of_thread.expect("a status file"), own);
    }
}
