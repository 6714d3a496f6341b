//! Creates pseudo terminals, and reads and changes the state of terminals.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check_int;

/// Opens a new pseudo terminal through a multiplexer (`/dev/ptmx`). Returns its master and its slave.
pub fn open(multiplexer: &std::path::Path) -> io::Result<(OwnedFd, OwnedFd)> {
    use std::os::unix::fs::OpenOptionsExt;
    let master: OwnedFd = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY | libc::O_CLOEXEC)
        .open(multiplexer)?
        .into();
    let unlocked: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads one int.
    check_int(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked) })?;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: TIOCGPTPEER takes flags and gives a descriptor.
    let slave = check_int(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) })?;
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    Ok((master, unsafe { OwnedFd::from_raw_fd(slave) }))
}

/// Makes a terminal the controlling terminal of this process's session.
pub fn take_control(terminal: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the argument is a plain integer.
    check_int(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) }).map(drop)
}

/// Makes the programs on a terminal redraw their output: changes the terminal's size for a moment, so that the kernel
/// sends them SIGWINCH.
pub fn ask_to_redraw(terminal: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the structure has only plain integers, so all-zero is a valid value.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: TIOCGWINSZ fills in the structure, TIOCSWINSZ reads it.
    unsafe {
        check_int(libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size))?;
        let other = libc::winsize { ws_row: size.ws_row.saturating_add(1), ..size };
        check_int(libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const other))?;
        check_int(libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size)).map(drop)
    }
}

/// Returns true if this process can read from the terminal and set its modes without the kernel stopping it: the
/// process is in the foreground process group, or the terminal is not its controlling terminal.
pub fn is_in_foreground(terminal: BorrowedFd<'_>) -> bool {
    match nix::unistd::tcgetpgrp(terminal) {
        Ok(group) => group == nix::unistd::getpgrp(),
        Err(error) => error == nix::errno::Errno::ENOTTY,
    }
}

/// Returns the width of a terminal in columns; `None` if the descriptor is not a terminal.
pub fn columns(terminal: BorrowedFd<'_>) -> Option<usize> {
    // SAFETY: the structure has only plain integers, so all-zero is a valid value.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: TIOCGWINSZ fills in the structure.
    check_int(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) }).ok()?;
    Some(usize::from(size.ws_col))
}

pub fn copy_size(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the structure has only plain integers, so all-zero is a valid value.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: TIOCGWINSZ fills in the structure, TIOCSWINSZ reads it.
    unsafe {
        check_int(libc::ioctl(from.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size))?;
        check_int(libc::ioctl(to.as_raw_fd(), libc::TIOCSWINSZ, &raw const size)).map(drop)
    }
}
