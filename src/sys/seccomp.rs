//! The seccomp filter that asks the supervisor, and the supervisor's end of it.
//!
//! seccompiler compiles the checks of arguments; it has no action for user notification and no flag for a listener, so the
//! program that treats whole calls is assembled here.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{check, check_int};

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// Numbers from here on belong to x32.
const X32_BIT: u32 = 0x4000_0000;

/// What becomes of a call, whatever its arguments are (or nearly so).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// It fails with this errno.
    Errno(i32),
    /// The supervisor is asked.
    Notify,
    /// The supervisor is asked when this argument's lower half is not zero.
    NotifyUnlessZero(u8),
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn jump(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | code | libc::BPF_K) as u16, jt, jf, k }
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// The program: foreign architectures are killed, the calls in the list are treated as it says, everything else passes.
///
/// It is a search tree: the kernel walks a program once for every call there is when it is installed, and for every call
/// that is not plainly allowed when it is made; a list of a hundred comparisons would cost more than all the rest.
pub fn program(calls: &[(i64, Treatment)]) -> Vec<libc::sock_filter> {
    let mut calls = calls.to_vec();
    calls.sort_by_key(|&(number, _)| number);
    let mut program = vec![
        statement(LOAD, 4),
        jump(libc::BPF_JEQ, ARCHITECTURE, 1, 0),
        statement(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        statement(LOAD, 0),
        jump(libc::BPF_JGE, X32_BIT, 0, 1),
        statement(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    program.extend(branch(&calls));
    program
}

/// Calls that are compared one after the other.
const LEAF: usize = 4;

fn branch(calls: &[(i64, Treatment)]) -> Vec<libc::sock_filter> {
    if calls.len() > LEAF {
        let (left, right) = calls.split_at(calls.len() / 2);
        let (below, above) = (branch(left), branch(right));
        if let (Ok(skip), Some((first, _))) = (u8::try_from(below.len()), right.first()) {
            let mut block = vec![jump(libc::BPF_JGE, *first as u32, skip, 0)];
            block.extend(below);
            block.extend(above);
            return block;
        }
        // Too far to jump: compared one after the other, which is as right.
    }
    let mut block = Vec::new();
    for &(number, treatment) in calls {
        let number = number as u32;
        match treatment {
            Treatment::Errno(errno) => {
                block.push(jump(libc::BPF_JEQ, number, 0, 1));
                block.push(statement(RETURN, libc::SECCOMP_RET_ERRNO | errno as u32));
            }
            Treatment::Notify => {
                block.push(jump(libc::BPF_JEQ, number, 0, 1));
                block.push(statement(RETURN, libc::SECCOMP_RET_USER_NOTIF));
            }
            Treatment::NotifyUnlessZero(argument) => {
                block.push(jump(libc::BPF_JEQ, number, 0, 4));
                block.push(statement(LOAD, 16 + 8 * u32::from(argument)));
                block.push(jump(libc::BPF_JEQ, 0, 0, 1));
                block.push(statement(RETURN, libc::SECCOMP_RET_ALLOW));
                block.push(statement(RETURN, libc::SECCOMP_RET_USER_NOTIF));
            }
        }
    }
    block.push(statement(RETURN, libc::SECCOMP_RET_ALLOW));
    block
}

/// Puts the program on this thread and gives back the end on which its notifications arrive.
pub fn install_listener(program: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    let length = u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // Without WAIT_KILLABLE_RECV a signal makes an answered call start again: connects are done twice.
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // SAFETY: the kernel reads `len` instructions from `filter`, both of which live through the call.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    })?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A call that waits for its answer.
#[derive(Debug, Clone, Copy)]
pub struct Notification {
    /// What the answer must carry.
    pub id: u64,
    /// The thread that waits.
    pub tid: i32,
    /// The call.
    pub number: i32,
    /// Its arguments.
    pub arguments: [u64; 6],
}

/// The answer to a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// The kernel goes on with the call.
    Continue,
    /// The call gives this value without having been made.
    Value(i64),
    /// The call fails with this errno.
    Error(i32),
}

/// The next notification. `None` when the caller is gone already, or a signal came.
pub fn receive(listener: BorrowedFd<'_>) -> io::Result<Option<Notification>> {
    // SAFETY: plain integers: all-zero is a valid value, and the kernel wants it zeroed.
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

/// Answers. A caller that died meanwhile is no failure.
pub fn reply(listener: BorrowedFd<'_>, id: u64, reply: Reply) -> io::Result<()> {
    let (val, error, flags) = match reply {
        Reply::Continue => (0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        Reply::Value(value) => (value, 0, 0),
        Reply::Error(errno) => (0, -errno, 0),
    };
    let mut raw = libc::seccomp_notif_resp { id, val, error, flags };
    // SAFETY: the kernel reads the structure, whose size is part of the request number.
    let result = check_int(unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND as _, &raw mut raw)
    });
    match result {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
        _ => Ok(()),
    }
}

/// Whether the caller still waits: what was read from a process of that number was read from the right one.
pub fn is_waiting(listener: BorrowedFd<'_>, id: u64) -> bool {
    let mut id = id;
    // SAFETY: the kernel reads one u64.
    let result =
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID as _, &raw mut id) };
    result == 0
}

/// Whether the kernel knows the listener flags this program needs: asks without installing anything.
pub fn listener_is_supported() -> bool {
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // SAFETY: a null program makes the kernel fail with EFAULT after it has looked at the flags.
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
