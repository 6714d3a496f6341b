//! Forwards bytes in both directions between the run and a host, after a check of the client's first bytes.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::sys::socket::{Shutdown, shutdown};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use super::proxy_state::ByteCounter;
use super::tls_client_hello;
use super::tls_client_hello::Hello;
use crate::judge::decide::NetworkRefusal;
use crate::judge::policy::Host;

/// Time limit for receiving the whole TLS ClientHello.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a tunnel may be idle before it is closed.
const IDLE: Duration = Duration::from_secs(15 * 60);
/// How long a tunnel may be idle if one side has already closed its direction.
const HALF_IDLE: Duration = Duration::from_secs(60);
/// The maximum number of bytes per read.
const BUFFER_SIZE: usize = 256 << 10;
/// After a read of at least this many bytes, the tunnel switches to `splice`, so that the kernel moves the bytes.
const SPLICE_THRESHOLD: usize = 64 << 10;
/// After 64 successive reads that each return fewer bytes than this, the tunnel switches from `splice` back to normal
/// reads.
const SMALL_READ: usize = 4 << 10;
const PIPE_SIZE: i32 = 256 << 10;

thread_local! {
    /// One buffer that all tunnels share: it never holds data across an await.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER_SIZE].into_boxed_slice());
}

/// The result of checking the client's first bytes.
pub(super) enum FirstBytes {
    /// The bytes are valid. The variant contains them, because they must still be forwarded.
    Valid(Vec<u8>),
    /// The client sent no valid ClientHello, or its ClientHello does not name the allowed host.
    Refused(NetworkRefusal),
    /// The client disconnected, or did not send a ClientHello in time.
    Closed,
}

/// Reads the client's first bytes, which must be a TLS ClientHello with the name of the allowed host. If the host is an
/// address, the ClientHello must contain no name. `early` holds bytes that have already arrived, together with the
/// request for the tunnel.
pub(super) async fn check_first_bytes(client: &TcpStream, early: Vec<u8>, host: &Host) -> FirstBytes {
    let mut bytes = early;
    let refused = |reason: String| {
        let instead =
            "Use TLS with the name of the requested host, or ask the user to allow the host as `raw`.";
        FirstBytes::Refused(NetworkRefusal::new("network.tls", reason, instead))
    };
    let deadline = Instant::now() + FIRST_BYTES_TIMEOUT;
    loop {
        match (tls_client_hello::read(&bytes), host) {
            (Hello::Incomplete, _) => {}
            (Hello::Named(name), Host::Name(asked)) if name == *asked => return FirstBytes::Valid(bytes),
            (Hello::Nameless, Host::Address(_)) => return FirstBytes::Valid(bytes),
            (Hello::Named(name), _) => {
                return refused(format!(
                    "The tunnel was requested for {host}, but the TLS client names {name}."
                ));
            }
            (Hello::Nameless, Host::Name(_)) => {
                return refused(format!(
                    "The tunnel was requested for {host}, but the TLS client names no host."
                ));
            }
            (Hello::Hidden, _) => {
                return refused(format!(
                    "The tunnel was requested for {host}, but the TLS client encrypts the host name (ECH)."
                ));
            }
            (Hello::NotTls | Hello::Malformed, _) => {
                return refused(format!(
                    "The client did not begin the tunnel to {host} with a valid TLS ClientHello."
                ));
            }
        }
        let Ok(Ok(())) = tokio::time::timeout_at(deadline, client.readable()).await else {
            return FirstBytes::Closed;
        };
        let read = BUFFER.with_borrow_mut(|buffer| {
            let read = client.try_read(&mut buffer[..16 << 10]);
            if let Ok(count) = read {
                bytes.extend_from_slice(&buffer[..count]);
            }
            read
        });
        match read {
            Ok(0) => return FirstBytes::Closed,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return FirstBytes::Closed,
        }
    }
}

/// Decides when a tunnel is idle, from the time when bytes were last forwarded and whether one side has closed.
struct IdleClock {
    last: Cell<Instant>,
    is_half_closed: Cell<bool>,
}

/// Forwards both directions until both sides have closed, an error occurs, the run reaches a traffic limit, or the
/// tunnel is idle for too long. Before that, sends the bytes `up` to the host and `down` to the client.
pub(super) async fn carry(
    client: &TcpStream,
    server: &TcpStream,
    up: &[u8],
    down: &[u8],
    byte_counter: &Rc<ByteCounter>,
) {
    let idle_clock = IdleClock { last: Cell::new(Instant::now()), is_half_closed: Cell::new(false) };
    let both = async {
        let count_up = |count| byte_counter.count_sent(count);
        let count_down = |count| byte_counter.count_received(count);
        let upwards = carry_one_way(client, server, up, count_up, &idle_clock, byte_counter);
        let downwards = carry_one_way(server, client, down, count_down, &idle_clock, byte_counter);
        tokio::join!(upwards, downwards)
    };
    tokio::select! {
        _ = both => {}
        () = until_idle(&idle_clock) => {}
    }
}

async fn until_idle(idle_clock: &IdleClock) {
    loop {
        let limit = if idle_clock.is_half_closed.get() { HALF_IDLE } else { IDLE };
        let end = idle_clock.last.get() + limit;
        if Instant::now() >= end {
            return;
        }
        // Wake up at least once a minute, because one side may have closed in the meantime, and the shorter idle limit
        // then applies.
        sleep_until(end.min(Instant::now() + HALF_IDLE)).await;
    }
}

async fn carry_one_way(
    from: &TcpStream,
    to: &TcpStream,
    first: &[u8],
    count: impl Fn(usize) -> bool,
    idle_clock: &IdleClock,
    byte_counter: &Rc<ByteCounter>,
) {
    let carried = async {
        if !first.is_empty() {
            if !count(first.len()) {
                return Err(io::Error::other("the run has reached a traffic limit of its policy"));
            }
            send(to, first).await?;
        }
        loop {
            from.readable().await?;
            let step = BUFFER.with_borrow_mut(|buffer| -> io::Result<Step> {
                let read = match from.try_read(buffer) {
                    Ok(0) => return Ok(Step::End),
                    Ok(read) => read,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Step::Wait),
                    Err(error) => return Err(error),
                };
                if !count(read) {
                    return Err(io::Error::other("the run has reached a traffic limit of its policy"));
                }
                let written = match to.try_write(&buffer[..read]) {
                    Ok(written) => written,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                    Err(error) => return Err(error),
                };
                Ok(match read {
                    SPLICE_THRESHOLD.. => Step::LargeRead(buffer[written..read].to_vec()),
                    _ if written == read => Step::Done,
                    _ => Step::Unwritten(buffer[written..read].to_vec()),
                })
            })?;
            idle_clock.last.set(Instant::now());
            match step {
                Step::End => return Ok(()),
                Step::Wait => continue,
                Step::Done => {}
                Step::Unwritten(rest) => send(to, &rest).await?,
                Step::LargeRead(rest) => {
                    send(to, &rest).await?;
                    if let Ok(pipe) = Pipe::new()
                        && pipe.carry(from, to, &count, idle_clock, byte_counter).await?
                    {
                        return Ok(());
                    }
                }
            }
            byte_counter.pace().await;
        }
    };
    let result = carried.await;
    idle_clock.is_half_closed.set(true);
    idle_clock.last.set(Instant::now());
    // If the source has sent everything, close only this direction. After an error, close both connections.
    let how = if result.is_ok() { Shutdown::Write } else { Shutdown::Both };
    let _ = shutdown(to.as_raw_fd(), how);
    if result.is_err() {
        let _ = shutdown(from.as_raw_fd(), Shutdown::Both);
    }
}

enum Step {
    Done,
    Wait,
    Unwritten(Vec<u8>),
    /// A large read, after which more data is likely to follow. The bytes must still be forwarded.
    LargeRead(Vec<u8>),
    End,
}

/// A pipe through which the kernel moves bytes between two sockets (`splice`).
struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
}

impl Pipe {
    fn new() -> io::Result<Self> {
        let (out, into) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // A smaller pipe is only slower, so errors are ignored.
        let _ = fcntl(&into, FcntlArg::F_SETPIPE_SZ(PIPE_SIZE));
        Ok(Self { out, into })
    }

    /// Moves bytes through the pipe as long as reads are large. Returns true if the source has reached its end. Returns
    /// false after many small reads, with an empty pipe.
    async fn carry(
        &self,
        from: &TcpStream,
        to: &TcpStream,
        count: &impl Fn(usize) -> bool,
        idle_clock: &IdleClock,
        byte_counter: &ByteCounter,
    ) -> io::Result<bool> {
        let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
        let fill =
            || splice(from, None, &self.into, None, PIPE_SIZE as usize, flags).map_err(io::Error::from);
        let (mut held, mut small_reads) = (0, 0);
        while held > 0 || small_reads < 64 {
            // Fill the pipe while it is being drained, so that neither side waits for the other. `WouldBlock` refers
            // to the socket only if the pipe is empty: a full pipe gives the same error.
            let filled = match fill() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && held == 0 => {
                    from.readable().await?;
                    from.try_io(Interest::READABLE, fill)
                }
                other => other,
            };
            match filled {
                // If the pipe still holds bytes, the loop drains it first; `splice` then reports the end of the
                // source again.
                Ok(0) if held == 0 => return Ok(true),
                Ok(count_read) => {
                    if count_read > 0 && !count(count_read) {
                        return Err(io::Error::other("the run has reached a traffic limit of its policy"));
                    }
                    held += count_read;
                    small_reads = if count_read < SMALL_READ { small_reads + 1 } else { 0 };
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            idle_clock.last.set(Instant::now());
            if held > 0 {
                let empty = || splice(&self.out, None, to, None, held, flags).map_err(io::Error::from);
                to.writable().await?;
                match to.try_io(Interest::WRITABLE, empty) {
                    Ok(moved) => held -= moved,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            byte_counter.pace().await;
        }
        Ok(false)
    }
}

async fn send(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends a message from guard to the client. Gives up after five seconds if the client does not read it.
pub(super) async fn send_briefly(to: &TcpStream, bytes: &[u8]) {
    let _ = timeout(Duration::from_secs(5), send(to, bytes)).await;
}
