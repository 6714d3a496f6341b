//! Writing to the caller's own streams, which may be read slowly, or by nobody any more.
//!
//! A reader that takes its time is waited for, as every program waits for it. But a caller that wants guard to end must not
//! have to wait for that reader: then guard gives the rest of the output up, which the transcript still gets.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::{PollFd, PollFlags, poll};

/// What a pipe takes without waiting when it has room at all.
const PIECE: usize = 4096;

/// How often a writer that waits looks whether the output was given up; milliseconds.
const LOOK_AGAIN: u16 = 50;

/// Nobody waits for the caller's readers any more. There is one caller for the whole process.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Stops waiting for whoever reads the output, in every thread.
pub(crate) fn give_up_output() {
    GIVEN_UP.store(true, Ordering::Release);
}

/// Whether output was given up.
pub(crate) fn is_output_given_up() -> bool {
    GIVEN_UP.load(Ordering::Acquire)
}

/// Writes everything to a stream of the caller's. Fails with `TimedOut` once output was given up, and with the stream's own
/// error when it cannot be written to any more.
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
