//! The few tracing calls that hold a process at its exec until it has been looked at.

use std::io;

use super::{check, check_int};

/// What a traced thread did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It has just become another program; this thread asked for it.
    Exec(i32),
    /// It stopped for something else; this signal must be given back when it is let go.
    Stop(i32),
    /// It is gone.
    Exit,
}

fn request(request: libc::c_uint, pid: i32, data: usize) -> io::Result<()> {
    // SAFETY: none of the requests used here write to this process's memory.
    check(unsafe { libc::ptrace(request as _, pid, 0usize, data) }).map(drop)
}

/// Begins to trace a thread, without stopping it, so that a successful exec is reported; and asks it to stop at the next
/// occasion, so that a failed one is reported too.
pub fn watch_exec(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, libc::PTRACE_O_TRACEEXEC as usize)?;
    request(libc::PTRACE_INTERRUPT, tid, 0)
}

/// Where the stack of a stopped thread ends. Only of a program for this machine: the stack of one for another (32 bits)
/// would be read wrongly.
pub fn stack_pointer(tid: i32) -> io::Result<u64> {
    let registers = registers(tid)?;
    #[cfg(target_arch = "x86_64")]
    return Ok(registers.rsp);
    #[cfg(not(target_arch = "x86_64"))]
    return Ok(registers.sp);
}

/// What the last system call of a stopped thread gives back to it: a negative number is an error's.
pub fn call_result(tid: i32) -> io::Result<i64> {
    let registers = registers(tid)?;
    #[cfg(target_arch = "x86_64")]
    return Ok(registers.rax as i64);
    #[cfg(not(target_arch = "x86_64"))]
    return Ok(registers.regs[0] as i64);
}

fn registers(tid: i32) -> io::Result<libc::user_regs_struct> {
    // SAFETY: plain integers: all-zero is a valid value.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    let mut place =
        libc::iovec { iov_base: (&raw mut registers).cast(), iov_len: size_of::<libc::user_regs_struct>() };
    let set = libc::NT_PRSTATUS as usize;
    // SAFETY: the kernel writes at most `iov_len` bytes to the structure, which lives through the call.
    check(unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, set, &raw mut place) })?;
    if place.iov_len != size_of::<libc::user_regs_struct>() {
        return Err(io::Error::from_raw_os_error(libc::ENOEXEC));
    }
    Ok(registers)
}

/// Lets a stopped thread go and forgets it.
pub fn detach(tid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, signal as usize)
}

/// The next change of any thread this thread traces, if there is one now. If only one is traced, it is `only`.
pub fn next_change(only: Option<i32>) -> io::Result<Option<(i32, Change)>> {
    let mut status = 0;
    // __WNOTHREAD: children of the other threads of this process are not ours to reap.
    let flags = libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG;
    // SAFETY: `status` is a valid place for an int.
    let pid = check_int(unsafe { libc::waitpid(-1, &raw mut status, flags) });
    let pid = match pid {
        Ok(0) => return Ok(None),
        Ok(pid) => pid,
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
        Err(error) => return Err(error),
    };
    if !libc::WIFSTOPPED(status) {
        return Ok(Some((pid, Change::Exit)));
    }
    let event = status >> 16;
    if event == libc::PTRACE_EVENT_EXEC {
        // A thread that becomes a program has its process's number from then on: with one that is traced there is no other.
        if only == Some(pid) {
            return Ok(Some((pid, Change::Exec(pid))));
        }
        let mut former: libc::c_ulong = 0;
        // SAFETY: PTRACE_GETEVENTMSG writes one unsigned long to the given place.
        check(unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, pid, 0usize, &raw mut former) })?;
        return Ok(Some((pid, Change::Exec(former as i32))));
    }
    let signal = if event == libc::PTRACE_EVENT_STOP { 0 } else { libc::WSTOPSIG(status) };
    Ok(Some((pid, Change::Stop(signal))))
}
