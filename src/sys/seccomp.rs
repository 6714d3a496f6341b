//! Installs seccomp filters, and receives and answers their notifications for the supervisor.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{check, check_int};

/// Installs a seccomp filter on this thread.
pub fn install(program: &[libc::sock_filter]) -> io::Result<()> {
    install_with(program, 0).map(drop)
}

/// Installs a seccomp filter on this thread and returns the descriptor for receiving its notifications.
pub fn install_listener(program: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    // Without WAIT_KILLABLE_RECV, a signal interrupts and restarts a call even if the supervisor has already received
    // its notification: the supervisor would then perform a connect twice.
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let fd = install_with(program, flags)?;
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn install_with(program: &[libc::sock_filter], flags: libc::c_ulong) -> io::Result<i64> {
    let length = u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel reads `len` instructions from `filter`, both of which live through the call.
    check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    })
}

/// A system call whose thread is blocked until the supervisor replies.
#[derive(Debug, Clone, Copy)]
pub struct Notification {
    /// The notification's id, which the reply must repeat.
    pub id: u64,
    /// The id of the thread that made the call and waits for the reply.
    pub tid: i32,
    /// The system call number.
    pub number: i32,
    /// The arguments of the system call, as register values.
    pub arguments: [u64; 6],
}

/// How the supervisor answers a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Let the kernel perform the call.
    Continue,
    /// Make the call return this value without performing it.
    Value(i64),
    /// Make the call fail with this errno.
    Error(i32),
}

/// Receives the next notification. Returns `None` if the thread that made the call has ended, or if a signal
/// interrupted the wait.
pub fn receive(listener: BorrowedFd<'_>) -> io::Result<Option<Notification>> {
    // SAFETY: the structure has only plain integers, so all-zero is a valid value, and the kernel wants it zeroed.
    let mut raw: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills in the structure, whose size is part of the request number.
    let result = check_int(unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV as _, &raw mut raw)
    });
    match result {
        Ok(_) => Ok(Some(Notification {
            id: raw.id,
            tid: raw.pid as i32,
            number: raw.data.nr,
            arguments: raw.data.args,
        })),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sends the reply to a notification. Succeeds even if the thread that made the call has ended meanwhile.
pub fn reply(listener: BorrowedFd<'_>, id: u64, reply: Reply) -> io::Result<()> {
    let (val, error, flags) = match reply {
        Reply::Continue => (0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        Reply::Value(value) => (value, 0, 0),
        Reply::Error(errno) => (0, -errno, 0),
    };
    let mut raw = libc::seccomp_notif_resp { id, val, error, flags };
    let result = retry_interrupted(|| {
        // SAFETY: the kernel reads the structure, whose size is part of the request number.
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND as _, &raw mut raw) }
    });
    match result {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
        _ => Ok(()),
    }
}

/// Sets whether the kernel wakes the supervisor on the CPU of the thread that made the call, which is idle until the
/// reply. Has no effect before Linux 6.6.
pub fn set_sync_wake_up(listener: BorrowedFd<'_>, on: bool) {
    const SET_FLAGS: libc::c_ulong = 0x4008_2104;
    const SYNC_WAKE_UP: libc::c_ulong = 1;
    // SAFETY: the argument is a plain integer.
    unsafe { libc::ioctl(listener.as_raw_fd(), SET_FLAGS as _, if on { SYNC_WAKE_UP } else { 0 }) };
}

/// Returns true if the thread that made the call is still waiting. The kernel has then not reused its thread id, so
/// everything that the supervisor read by that id came from this thread.
pub fn is_waiting(listener: BorrowedFd<'_>, id: u64) -> bool {
    let mut id = id;
    let result = retry_interrupted(|| {
        // SAFETY: the kernel reads one u64.
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID as _, &raw mut id) }
    });
    result.is_ok()
}

/// Repeats a call while it fails with EINTR: if a reply were lost, the thread that waits for it would block forever.
fn retry_interrupted(mut call: impl FnMut() -> i32) -> io::Result<i32> {
    loop {
        match check_int(call()) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            result => return result,
        }
    }
}

/// Returns true if the kernel supports the flags that guard needs for a seccomp listener. Installs nothing.
pub fn listener_is_supported() -> bool {
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // SAFETY: a null program makes the kernel fail with EFAULT after it has checked the flags.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            std::ptr::null::<libc::sock_fprog>(),
        )
    };
    result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}
