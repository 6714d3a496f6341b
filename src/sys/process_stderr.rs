//! Writes lines to the standard error of other processes.
//!
//! The other process controls the file behind that descriptor, so a write may block forever. Each write therefore has a
//! thread of its own, and the number of these threads is limited.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::sockopt::SockType;
use nix::sys::socket::{SockType as Type, UnixAddr, getpeername, getsockname, getsockopt};
use nix::sys::stat::{FileStat, fstat};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, PROC_SUPER_MAGIC, SYSFS_MAGIC, fstatfs};
use nix::sys::termios::{LocalFlags, tcgetattr};

use super::process;
use crate::text::terminal_text;

/// The maximum number of writer threads. A pipe that nobody reads blocks its thread; guard drops further lines.
const MOST_WRITERS: usize = 16;
/// The maximum time by which guard delays its reply to a process, so that the line is written before the process
/// continues.
pub const MAX_DELAY: Duration = Duration::from_millis(50);

static WRITERS: AtomicUsize = AtomicUsize::new(0);

/// The identity of an open file: its device and inode.
pub type FileId = (u64, u64);

pub fn file_id(descriptor: BorrowedFd<'_>) -> Option<FileId> {
    fstat(descriptor).ok().map(|found| (found.st_dev, found.st_ino))
}

/// A duplicate of the standard error of another process.
#[derive(Debug)]
pub struct ProcessStderr {
    descriptor: OwnedFd,
    file: FileId,
}

impl ProcessStderr {
    /// Duplicates the standard error of a thread, given its pidfd. Returns `None` if the thread is gone, or if its
    /// descriptor 2 does not look like a place for messages: guard must not change the data of a program that has closed
    /// its standard error and got another file under the number 2.
    pub fn of(thread: BorrowedFd<'_>) -> Option<Self> {
        let descriptor = process::descriptor_of(thread, 2).ok()?;
        let found = fstat(&descriptor).ok()?;
        let file = (found.st_dev, found.st_ino);
        let input = || process::descriptor_of(thread, 0).ok().and_then(|input| file_id(input.as_fd()));
        let is_for_messages = match found.st_mode & libc::S_IFMT {
            libc::S_IFIFO => access_mode(&descriptor).is_some_and(|mode| mode != OFlag::O_RDONLY),
            libc::S_IFCHR => is_line_terminal(&descriptor),
            libc::S_IFREG => is_message_file(&descriptor, &found),
            // A process talks to another program on a socket that is its standard input too.
            libc::S_IFSOCK => is_stream_socketpair(&descriptor) && input() != Some(file),
            _ => false,
        };
        is_for_messages.then_some(Self { descriptor, file })
    }

    pub fn file(&self) -> FileId {
        self.file
    }

    /// Writes a line in a thread, and then calls `done`. Drops the line if there are too many such threads, or if the
    /// thread cannot start.
    pub fn write_later(self, line: &str, done: impl FnOnce() + Send + 'static) {
        if WRITERS.fetch_add(1, Ordering::AcqRel) >= MOST_WRITERS {
            WRITERS.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        // The line may name a path or a host that an agent chose. It must not look like several lines of guard.
        let line = format!("{}\n", terminal_text::one_line(line));
        let work = move || {
            let _ = File::from(self.descriptor).write_all(line.as_bytes());
            WRITERS.fetch_sub(1, Ordering::AcqRel);
            done();
        };
        if std::thread::Builder::new().name("explain".to_string()).stack_size(64 << 10).spawn(work).is_err() {
            WRITERS.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Writes a line. Returns after [`MAX_DELAY`] even if the write still blocks.
    pub fn write(self, line: &str) {
        let (done, wait) = channel();
        self.write_later(line, move || {
            let _ = done.send(());
        });
        let _ = wait.recv_timeout(MAX_DELAY);
    }
}

fn access_mode(descriptor: &OwnedFd) -> Option<OFlag> {
    let flags = OFlag::from_bits_retain(fcntl(descriptor, FcntlArg::F_GETFL).ok()?);
    Some(flags & OFlag::O_ACCMODE)
}

/// Returns true for a terminal in line mode. A program that has switched line mode off shows a screen, which a line of
/// guard would disturb.
fn is_line_terminal(descriptor: &OwnedFd) -> bool {
    tcgetattr(descriptor).is_ok_and(|modes| modes.local_flags.contains(LocalFlags::ICANON))
}

/// Returns true for a file that was opened as a log: only for writing, for appending, or without a name. Programs open
/// their data files for reading and writing. The files of kernel interfaces are none: the kernel may check the rights of
/// the process that writes, which is guard, and not those of the process that opened the file.
fn is_message_file(descriptor: &OwnedFd, found: &FileStat) -> bool {
    let kernel = [PROC_SUPER_MAGIC, SYSFS_MAGIC, CGROUP2_SUPER_MAGIC];
    if !fstatfs(descriptor).is_ok_and(|system| !kernel.contains(&system.filesystem_type())) {
        return false;
    }
    let Ok(flags) = fcntl(descriptor, FcntlArg::F_GETFL) else { return false };
    let flags = OFlag::from_bits_retain(flags);
    match flags & OFlag::O_ACCMODE {
        OFlag::O_WRONLY => true,
        OFlag::O_RDWR => flags.contains(OFlag::O_APPEND) || found.st_nlink == 0,
        _ => false,
    }
}

/// Returns true for one end of a pair of connected stream sockets. Some programs (node) use such pairs in place of pipes.
/// A socket with a name, or one that is connected to a name, leads to a server.
fn is_stream_socketpair(descriptor: &OwnedFd) -> bool {
    use std::os::fd::AsRawFd as _;
    let number = descriptor.as_raw_fd();
    let is_unnamed = |address: nix::Result<UnixAddr>| {
        address.is_ok_and(|address| address.path().is_none() && address.as_abstract().is_none())
    };
    getsockopt(descriptor, SockType).is_ok_and(|kind| kind == Type::Stream)
        && is_unnamed(getsockname(number))
        && is_unnamed(getpeername(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    use nix::sys::termios::{SetArg, tcsetattr};

    use std::os::unix::net::{UnixListener, UnixStream};

    /// Returns true if guard would write to this file as the standard error of a process.
    fn is_used(stderr: impl Into<std::process::Stdio>, input: impl Into<std::process::Stdio>) -> bool {
        let mut child = std::process::Command::new("sleep");
        let mut child = child.arg("60").stderr(stderr).stdin(input).spawn().expect("sleep starts");
        let thread = process::thread_fd(child.id() as i32).expect("the child exists").into_fd();
        let found = ProcessStderr::of(thread.as_fd());
        let _ = child.kill();
        let _ = child.wait();
        found.is_some()
    }

    #[test]
    fn a_notice_is_one_line() {
        let mut child = std::process::Command::new("sleep");
        let mut child = child.arg("60").stderr(std::process::Stdio::piped()).spawn().expect("sleep starts");
        let thread = process::thread_fd(child.id() as i32).expect("the child exists").into_fd();
        ProcessStderr::of(thread.as_fd()).expect("a pipe").write("connect to a\nguard: forged\u{1b}[2J");
        let _ = child.kill();
        let mut told = String::new();
        std::io::Read::read_to_string(child.stderr.as_mut().expect("a pipe"), &mut told).expect("text");
        let _ = child.wait();
        assert_eq!(told, "connect to a guard: forged\u{fffd}[2J\n");
    }

    #[test]
    fn only_files_for_messages_are_used() {
        use std::process::Stdio;
        let path = std::env::temp_dir().join(format!("guard-stderr-{}", std::process::id()));
        let file = |write: bool, append: bool| {
            let mut options = File::options();
            options.create(true).read(true).write(write).append(append);
            OwnedFd::from(options.open(&path).expect("a file"))
        };
        assert!(is_used(Stdio::piped(), Stdio::null()));
        assert!(is_used(OwnedFd::from(File::create(&path).expect("a file")), Stdio::null()));
        assert!(is_used(file(false, true), Stdio::null()));
        assert!(!is_used(file(true, false), Stdio::null()), "a file for reading and writing");
        assert!(!is_used(Stdio::null(), Stdio::null()));
        let interface = File::options().write(true).open("/proc/self/comm").expect("a file of the kernel");
        assert!(!is_used(OwnedFd::from(interface), Stdio::null()));
        let (_master, terminal) = crate::sys::terminal::open("/dev/ptmx".as_ref()).expect("a terminal");
        assert!(is_used(terminal.try_clone().expect("a duplicate"), Stdio::null()));
        let mut modes = tcgetattr(&terminal).expect("modes");
        modes.local_flags.remove(LocalFlags::ICANON);
        tcsetattr(&terminal, SetArg::TCSANOW, &modes).expect("the modes are set");
        assert!(!is_used(terminal, Stdio::null()), "a program shows a screen");
        let unlinked = file(true, false);
        std::fs::remove_file(&path).expect("the file exists");
        assert!(is_used(unlinked, Stdio::null()));
        let (one, other) = UnixStream::pair().expect("a socket pair");
        let (one, other) = (OwnedFd::from(one), OwnedFd::from(other));
        assert!(is_used(one.try_clone().expect("a duplicate"), Stdio::null()));
        assert!(
            !is_used(other.try_clone().expect("a duplicate"), other),
            "the process reads from the same socket"
        );
        let listener = UnixListener::bind(&path).expect("a socket");
        let client = UnixStream::connect(&path).expect("a connection");
        std::fs::remove_file(&path).expect("the socket exists");
        assert!(!is_used(OwnedFd::from(client), Stdio::null()), "a server reads from the socket");
        drop((one, listener));
        let (read, write) = nix::unistd::pipe().expect("a pipe");
        assert!(!is_used(read, Stdio::null()), "the reading end of a pipe");
        drop(write);
        let network = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let client =
            std::net::TcpStream::connect(network.local_addr().expect("bound")).expect("a connection");
        assert!(!is_used(OwnedFd::from(client), Stdio::null()), "a connection");
    }
}
