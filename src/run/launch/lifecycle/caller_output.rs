//! Writes to the caller's standard output and error. The program that reads them may be slow or may have ended.
//!
//! guard waits for a slow reader, as every program does. But when the user or another program has told guard to end,
//! it stops waiting and drops the rest of the output. The transcript still gets all of it.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::{PollFd, PollFlags, poll};

/// The maximum number of bytes that guard writes at once. A pipe that polls as writable accepts this many without
/// blocking.
const WRITE_BYTES: usize = 4096;

/// How often a waiting thread checks whether guard has stopped waiting for readers of its output, in milliseconds.
const POLL_INTERVAL_MS: u16 = 50;

/// True if guard has stopped waiting for readers of its output. The variable is global, because the whole process has
/// one caller.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Makes every thread stop waiting for readers of guard's output.
pub(crate) fn give_up_output() {
    GIVEN_UP.store(true, Ordering::Release);
}

pub(crate) fn is_output_given_up() -> bool {
    GIVEN_UP.load(Ordering::Acquire)
}

/// Writes all bytes to a stream of the caller. Fails with `TimedOut` if guard has stopped waiting for readers of its
/// output, and with the stream's error if the write fails.
pub fn write_to_caller(stream: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    let mut left = bytes;
    while !left.is_empty() {
        if is_output_given_up() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut fds, POLL_INTERVAL_MS) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match nix::unistd::write(&stream, &left[..left.len().min(WRITE_BYTES)]) {
            Ok(written) => left = &left[written..],
            Err(nix::errno::Errno::EINTR | nix::errno::Errno::EAGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
