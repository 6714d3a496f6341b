//! Writes to the caller's own streams, whose reader may be slow or gone.
//!
//! guard waits for a slow reader, as every program does. But a caller that wants guard to end must not have to wait for
//! that reader: then guard gives the rest of the output up. The transcript still gets all of it.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::{PollFd, PollFlags, poll};

/// A pipe that polls as writable accepts this many bytes without blocking.
const PIECE: usize = 4096;

/// How often a waiting writer checks whether the output was given up, in milliseconds.
const LOOK_AGAIN: u16 = 50;

/// Output was given up. Global, because the whole process has one caller.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Makes every thread stop waiting for readers of the output.
pub(crate) fn give_up_output() {
    GIVEN_UP.store(true, Ordering::Release);
}

/// Whether output was given up.
pub(crate) fn is_output_given_up() -> bool {
    GIVEN_UP.load(Ordering::Acquire)
}

/// Writes all bytes to a stream of the caller. Fails with `TimedOut` once output was given up, and with the stream's
/// own error when it can no longer be written to.
pub fn write_to_caller(stream: impl AsFd, bytes: &[u8]) -> io::Result<()> {
    let mut left = bytes;
    while !left.is_empty() {
        if is_output_given_up() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut fds, LOOK_AGAIN) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match nix::unistd::write(&stream, &left[..left.len().min(PIECE)]) {
            Ok(written) => left = &left[written..],
            Err(nix::errno::Errno::EINTR | nix::errno::Errno::EAGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
