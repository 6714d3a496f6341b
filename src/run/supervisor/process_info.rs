//! Facts about processes of the run, read from `/proc`.

use std::io::Read as _;
use std::path::PathBuf;
use std::str::FromStr;

use crate::sys::process;

/// Returns true if a process is `ancestor` itself or one of its descendants. Returns false if `/proc` does not show
/// that.
pub(crate) fn is_descendant(pid: i32, ancestor: i32) -> bool {
    let mut next = pid;
    for _ in 0..4096 {
        if next == ancestor {
            return true;
        }
        match parent_of(next) {
            Some(parent) if parent > 1 => next = parent,
            _ => return false,
        }
    }
    false
}

/// Returns the parent process of a process or thread; `None` if the process or thread does not exist.
pub(crate) fn parent_of(pid: i32) -> Option<i32> {
    stat_field(pid, 1)
}

/// Returns true if a thread is the main thread of a process that has executed no program since its parent forked it.
pub(crate) fn has_not_executed(tid: i32) -> bool {
    /// A flag of the kernel's `struct task_struct`, which `/proc` shows.
    const PF_FORKNOEXEC: u32 = 0x40;
    // The kernel sets the flag for every thread too, but an exec clears it only for the main thread.
    stat_field::<u32>(tid, 6).is_some_and(|flags| flags & PF_FORKNOEXEC != 0)
        && process::process_of(tid).is_ok_and(|process| process == tid)
}

/// Returns a field of `/proc/PID/stat`, counted from 0 for the process state.
fn stat_field<T: FromStr>(pid: i32, number: usize) -> Option<T> {
    // These fields come early in the line, so one small read is enough. This runs for every recorded exec.
    let mut text = [0; 256];
    let mut file = std::fs::File::open(format!("/proc/{pid}/stat")).ok()?;
    let length = file.read(&mut text).ok()?;
    // The name in parentheses may contain anything, parentheses and spaces included.
    let rest = &text[text[..length].iter().rposition(|&byte| byte == b')')? + 1..length];
    let mut fields = rest.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    std::str::from_utf8(fields.nth(number)?).ok()?.parse().ok()
}

/// Returns the current directory of a thread; `None` if the thread does not exist or guard may not read the directory.
pub(crate) fn cwd_of(tid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{tid}/cwd")).ok()
}
