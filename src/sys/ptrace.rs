//! The ptrace calls that stop a process at its exec until the supervisor has checked it.

use std::io;

use super::{check, check_int};

/// A state change of a traced thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The thread executed a program. The exec changes the thread's id to the process id; the value is the id before
    /// the exec.
    Exec(i32),
    /// The thread stopped for a reason other than an exec. The value is the signal to pass to [`detach`].
    Stop(i32),
    Exit,
}

fn request(request: libc::c_uint, pid: i32, data: usize) -> io::Result<()> {
    // SAFETY: none of the requests used here write to this process's memory.
    check(unsafe { libc::ptrace(request as _, pid, 0usize, data) }).map(drop)
}

/// Traces a thread without stopping it, so that the kernel reports a successful exec. Also interrupts the thread at
/// the next opportunity, so that the kernel reports a failed exec too. If the tracing thread ends first, the kernel
/// kills the traced process, so that no unverified program continues to run.
pub fn watch_exec(tid: i32) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SEIZE, tid, options as usize)?;
    request(libc::PTRACE_INTERRUPT, tid, 0)
}

/// Returns the stack pointer of a stopped thread. Fails for 32-bit programs, whose stack has a different layout.
pub fn stack_pointer(tid: i32) -> io::Result<u64> {
    let registers = registers(tid)?;
    #[cfg(target_arch = "x86_64")]
    return Ok(registers.rsp);
    #[cfg(not(target_arch = "x86_64"))]
    return Ok(registers.sp);
}

/// Returns the return value of a stopped thread's last system call. A negative value is a negated errno.
pub fn call_result(tid: i32) -> io::Result<i64> {
    let registers = registers(tid)?;
    #[cfg(target_arch = "x86_64")]
    return Ok(registers.rax as i64);
    #[cfg(not(target_arch = "x86_64"))]
    return Ok(registers.regs[0] as i64);
}

fn registers(tid: i32) -> io::Result<libc::user_regs_struct> {
    // SAFETY: the structure has only plain integers, so all-zero is a valid value.
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

/// Resumes a stopped thread, delivers `signal` to it, and ends tracing.
pub fn detach(tid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, signal as usize)
}

/// Returns the next state change of a thread that the calling thread traces; `None` if there is none yet. If the
/// caller traces only one thread, `only` is the id of that thread, which saves a system call.
pub fn next_change(only: Option<i32>) -> io::Result<Option<(i32, Change)>> {
    let mut status = 0;
    // `__WNOTHREAD`: do not reap children of other threads of this process.
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
        // An exec gives the thread the id of its process. If the only traced thread already had this id, the id has not
        // changed, and the caller need not ask the kernel for the former one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_process_dies_with_the_thread_that_watches_its_exec() {
        let spawned = std::process::Command::new("sleep").arg("60").spawn();
        let mut child = spawned.unwrap_or_else(|error| panic!("{error}"));
        let tid = child.id() as i32;
        let watched = std::thread::spawn(move || watch_exec(tid)).join();
        assert!(matches!(watched, Ok(Ok(()))), "{watched:?}");
        let ended = child.wait().map(|status| status.signal());
        assert_eq!(ended.ok(), Some(Some(libc::SIGKILL)));
    }
}
