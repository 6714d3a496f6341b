//! Carries bytes both ways between the run and a host, after checking how the connection begins.

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

use super::server::ByteCounter;
use super::tls_client_hello;
use super::tls_client_hello::Hello;
use crate::decide::NetworkRefusal;
use crate::policy::Host;

/// Time limit for the first bytes.
const BEGINNING: Duration = Duration::from_secs(30);
/// A tunnel that is idle for this long is closed.
const IDLE: Duration = Duration::from_secs(15 * 60);
/// The idle limit once one side has closed.
const HALF_IDLE: Duration = Duration::from_secs(60);
/// Bytes per read.
const SCRATCH: usize = 256 << 10;
/// After a read of at least this size the kernel moves the bytes (splice).
const MUCH: usize = 64 << 10;
/// After many reads smaller than this the tunnel returns to normal reads.
const LITTLE: usize = 4 << 10;
/// Pipe size for splice.
const PIPE: i32 = 256 << 10;

thread_local! {
    /// One buffer for all tunnels: it never holds data across an await.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// The result of checking the client's first bytes.
pub(super) enum Beginning {
    /// Valid; these bytes must be forwarded.
    Fine(Vec<u8>),
    /// The client does not use the protocol or name that was allowed.
    Refused(NetworkRefusal),
    /// The client sent nothing or disconnected.
    Nothing,
}

/// Requires TLS with the allowed host's name. `early` holds bytes that came with the request.
pub(super) async fn beginning(client: &TcpStream, early: Vec<u8>, host: &Host) -> Beginning {
    let mut bytes = early;
    let refused = |reason: String| {
        let instead = "Speak TLS with the name you asked for, or have the policy say `raw` for it.";
        Beginning::Refused(NetworkRefusal::new("network.tls", reason, instead))
    };
    let deadline = Instant::now() + BEGINNING;
    loop {
        match (tls_client_hello::read(&bytes), host) {
            (Hello::Incomplete, _) => {}
            (Hello::Named(name), Host::Name(asked)) if name == *asked => return Beginning::Fine(bytes),
            (Hello::Nameless, Host::Address(_)) => return Beginning::Fine(bytes),
            (Hello::Named(name), _) => {
                return refused(format!("The tunnel is to {host}, and TLS in it asks for {name}."));
            }
            (Hello::Nameless, Host::Name(_)) => {
                return refused(format!("The tunnel is to {host}, and TLS in it names nobody."));
            }
            (Hello::Hidden, _) => {
                return refused(format!(
                    "The tunnel is to {host}, and TLS in it hides whom it asks for (ECH)."
                ));
            }
            (Hello::NotTls | Hello::Malformed, _) => {
                return refused(format!("What begins in the tunnel to {host} is not TLS."));
            }
        }
        let Ok(Ok(())) = tokio::time::timeout_at(deadline, client.readable()).await else {
            return Beginning::Nothing;
        };
        let read = BUFFER.with_borrow_mut(|buffer| {
            let read = client.try_read(&mut buffer[..16 << 10]);
            if let Ok(count) = read {
                bytes.extend_from_slice(&buffer[..count]);
            }
            read
        });
        match read {
            Ok(0) => return Beginning::Nothing,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Beginning::Nothing,
        }
    }
}

/// When data last moved, and whether one side has closed.
struct Pulse {
    last: Cell<Instant>,
    is_half: Cell<bool>,
}

/// Carries both directions until both sides have closed.
pub(super) async fn carry(
    client: &TcpStream,
    server: &TcpStream,
    up: &[u8],
    down: &[u8],
    meter: &Rc<ByteCounter>,
) {
    let pulse = Pulse { last: Cell::new(Instant::now()), is_half: Cell::new(false) };
    let both = async {
        let upwards = one_way(client, server, up, |count| meter.up(count), &pulse, meter);
        let downwards = one_way(server, client, down, |count| meter.down(count), &pulse, meter);
        tokio::join!(upwards, downwards)
    };
    tokio::select! {
        _ = both => {}
        () = until_idle(&pulse) => {}
    }
}

async fn until_idle(pulse: &Pulse) {
    loop {
        let patience = if pulse.is_half.get() { HALF_IDLE } else { IDLE };
        let end = pulse.last.get() + patience;
        if Instant::now() >= end {
            return;
        }
        // Wake up now and then: the shorter idle limit may have started meanwhile.
        sleep_until(end.min(Instant::now() + HALF_IDLE)).await;
    }
}

async fn one_way(
    from: &TcpStream,
    to: &TcpStream,
    first: &[u8],
    count: impl Fn(usize) -> bool,
    pulse: &Pulse,
    meter: &Rc<ByteCounter>,
) {
    let carried = async {
        if !first.is_empty() {
            if !count(first.len()) {
                return Err(io::Error::other("a limit is reached"));
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
                    return Err(io::Error::other("a limit is reached"));
                }
                let written = match to.try_write(&buffer[..read]) {
                    Ok(written) => written,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                    Err(error) => return Err(error),
                };
                Ok(match read {
                    MUCH.. => Step::Much(buffer[written..read].to_vec()),
                    _ if written == read => Step::Done,
                    _ => Step::Left(buffer[written..read].to_vec()),
                })
            })?;
            pulse.last.set(Instant::now());
            match step {
                Step::End => return Ok(()),
                Step::Wait => continue,
                Step::Done => {}
                Step::Left(rest) => send(to, &rest).await?,
                Step::Much(rest) => {
                    send(to, &rest).await?;
                    if let Ok(pipe) = Pipe::new()
                        && pipe.carry(from, to, &count, pulse, meter).await?
                    {
                        return Ok(());
                    }
                }
            }
            meter.pace().await;
        }
    };
    let result = carried.await;
    pulse.is_half.set(true);
    pulse.last.set(Instant::now());
    // Forward the end of one direction; on an error close both.
    let how = if result.is_ok() { Shutdown::Write } else { Shutdown::Both };
    let _ = shutdown(to.as_raw_fd(), how);
    if result.is_err() {
        let _ = shutdown(from.as_raw_fd(), Shutdown::Both);
    }
}

enum Step {
    Done,
    Wait,
    Left(Vec<u8>),
    /// A large read: more data is likely to follow.
    Much(Vec<u8>),
    End,
}

/// A pipe through which the kernel moves bytes between sockets (splice).
struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
}

impl Pipe {
    fn new() -> io::Result<Self> {
        let (out, into) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // A smaller pipe is only slower, so errors are ignored.
        let _ = fcntl(&into, FcntlArg::F_SETPIPE_SZ(PIPE));
        Ok(Self { out, into })
    }

    /// Moves bytes while reads are large. Returns whether the source has ended.
    async fn carry(
        &self,
        from: &TcpStream,
        to: &TcpStream,
        count: &impl Fn(usize) -> bool,
        pulse: &Pulse,
        meter: &ByteCounter,
    ) -> io::Result<bool> {
        let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
        let fill = || splice(from, None, &self.into, None, PIPE as usize, flags).map_err(io::Error::from);
        let (mut held, mut little) = (0, 0);
        while held > 0 || little < 64 {
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
                // The end is read again once the pipe is empty.
                Ok(0) if held == 0 => return Ok(true),
                Ok(count_read) => {
                    if count_read > 0 && !count(count_read) {
                        return Err(io::Error::other("a limit is reached"));
                    }
                    held += count_read;
                    little = if count_read < LITTLE { little + 1 } else { 0 };
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            pulse.last.set(Instant::now());
            if held > 0 {
                let empty = || splice(&self.out, None, to, None, held, flags).map_err(io::Error::from);
                to.writable().await?;
                match to.try_io(Interest::WRITABLE, empty) {
                    Ok(moved) => held -= moved,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            meter.pace().await;
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

/// Sends a message from guard, and gives up after a short time.
pub(super) async fn say(to: &TcpStream, bytes: &[u8]) {
    let _ = timeout(Duration::from_secs(5), send(to, bytes)).await;
}
