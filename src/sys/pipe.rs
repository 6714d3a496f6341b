//! Pipe operations: count the unread bytes, and move data between pipes without copying it through this process.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::fcntl::{SpliceFFlags, splice, tee};

use super::check_int;

/// Returns the number of unread bytes in a pipe. Accepts either end of the pipe.
pub fn unread_bytes(pipe: impl AsFd) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int.
    check_int(unsafe { libc::ioctl(pipe.as_fd().as_raw_fd(), libc::FIONREAD, &raw mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Copies at most `most` bytes from one pipe to another without consuming them, and returns their number. Never blocks:
/// fails with `EAGAIN` if `from` is empty or `to` is full. Returns zero if `from` is empty and no process can write to
/// it any more.
pub fn copy_without_reading(from: impl AsFd, to: impl AsFd, most: usize) -> io::Result<usize> {
    Ok(tee(from, to, most, SpliceFFlags::SPLICE_F_NONBLOCK)?)
}

/// Discards up to `count` bytes from a pipe. Never blocks; discards fewer bytes if another process has read some of
/// them.
pub fn discard(from: impl AsFd, count: usize) -> io::Result<()> {
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    let mut left = count;
    while left > 0 {
        match splice(&from, None, &null, None, left, SpliceFFlags::SPLICE_F_NONBLOCK) {
            Ok(0) | Err(nix::errno::Errno::EAGAIN) => break,
            Ok(moved) => left -= moved,
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
