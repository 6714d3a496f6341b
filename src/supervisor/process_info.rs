//! Facts about processes of the run, read from `/proc`.

use std::io::Read as _;
use std::path::PathBuf;

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
    // The parent comes early in the line, so one small read is enough. This runs for every recorded exec.
    let mut text = [0; 256];
    let mut file = std::fs::File::open(format!("/proc/{pid}/stat")).ok()?;
    let length = file.read(&mut text).ok()?;
    // The name in parentheses may contain anything, parentheses and spaces included.
    let rest = &text[text[..length].iter().rposition(|&byte| byte == b')')? + 1..length];
    let mut fields = rest.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    std::str::from_utf8(fields.nth(1)?).ok()?.parse().ok()
}

/// Returns the current directory of a thread; `None` if the thread does not exist or guard may not read the directory.
pub(crate) fn cwd_of(tid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{tid}/cwd")).ok()
}
