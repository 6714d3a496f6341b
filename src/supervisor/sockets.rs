//! Handles `connect`, `bind` and `listen`.
//!
//! The supervisor copies the address once, judges it, and performs the call itself on a duplicate of the caller's
//! socket. The kernel never reads the address from the caller's memory, so a change there after the check has no
//! effect.

use std::collections::{HashMap, HashSet};
use std::ffi::{CString, OsStr};
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::socket::sockopt::{Ipv6V6Only, SendTimeout};
use nix::sys::socket::{SockaddrStorage, getpeername, getsockopt, setsockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use serde::Serialize;

use super::event_loop::{AsyncReply, AsyncResult, Supervisor, folder_of};
use super::shim::protocol::CONTROL_NAME;
use crate::decide::NetworkRefusal;
use crate::egress::{Peer, Purpose};
use crate::policy::{Host, plain};
use crate::sys::fs::{Walk, open_in};
use crate::sys::seccomp::{Notification, Reply};
use crate::sys::socket;
use crate::transcript::EventType;

/// Sockets that the run has bound: internet sockets by inode, unix sockets by name.
#[derive(Debug, Default)]
pub(crate) struct BoundSockets {
    inodes: HashSet<u64>,
    /// From the name the kernel reports for a unix socket to the path the run used.
    names: HashMap<Vec<u8>, Vec<u8>>,
}

/// A no-op path fragment that is unique for each number: its binary digits as `/` and `/.`.
fn mark(number: usize) -> String {
    let digits = (0..usize::BITS - number.leading_zeros()).rev();
    digits.map(|digit| if number >> digit & 1 == 1 { "/." } else { "/" }).collect()
}

/// The set is cleared when it reaches this size.
const MOST_SERVERS: usize = 10_000;

/// The largest address the kernel accepts.
const LONGEST_ADDRESS: usize = 128;
/// Connects that may block at once; further ones get `EAGAIN`.
const MOST_WAITING: usize = 256;

static WAITING: AtomicUsize = AtomicUsize::new(0);

/// What a socket address refers to.
enum Target {
    /// A unix socket at a path, as the caller wrote it.
    UnixPath(Vec<u8>),
    /// An abstract or unnamed unix socket.
    UnixAbstract,
    Internet(SocketAddr),
    /// `AF_UNSPEC`: dissolves a connection.
    Unspecified,
    /// A netlink route socket without multicast subscriptions.
    Route,
    Other,
}

fn target(address: &[u8]) -> Option<Target> {
    let body = address.get(2..).unwrap_or_default();
    let port = || body.first_chunk::<2>().map(|bytes| u16::from_be_bytes(*bytes));
    Some(match socket::family(address)? {
        libc::AF_UNSPEC => Target::Unspecified,
        libc::AF_UNIX => match body.first() {
            None | Some(0) => Target::UnixAbstract,
            Some(_) => Target::UnixPath(body.split(|&byte| byte == 0).next()?.to_vec()),
        },
        libc::AF_INET => {
            let ip: [u8; 4] = *body.get(2..)?.first_chunk()?;
            Target::Internet(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(ip)), port()?))
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = *body.get(6..)?.first_chunk()?;
            Target::Internet(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(ip)), port()?))
        }
        libc::AF_NETLINK => {
            let groups = body.get(6..)?.first_chunk::<4>()?;
            if *groups == [0; 4] { Target::Route } else { Target::Other }
        }
        _ => Target::Other,
    })
}

fn is_loopback(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
    }
}

/// The DNS port.
const NAME_SERVICE: u16 = 53;
/// Read at most this much of `/etc/resolv.conf`.
const LONGEST_CONFIGURATION: u64 = 64 << 10;

/// Whether C libraries send DNS queries to this address: `/etc/resolv.conf` lists it, or it is the default. Read
/// every time, because the file changes with the machine's networks.
fn is_name_server(ip: IpAddr) -> bool {
    let mut text = String::new();
    if let Ok(file) = std::fs::File::open("/etc/resolv.conf") {
        let _ = file.take(LONGEST_CONFIGURATION).read_to_string(&mut text);
    }
    let ip = plain(ip);
    ip == Ipv4Addr::LOCALHOST || name_servers(&text).any(|server| server == ip)
}

fn name_servers(configuration: &str) -> impl Iterator<Item = IpAddr> {
    configuration.lines().filter_map(|line| {
        let address = line.trim_start().strip_prefix("nameserver")?;
        let address = address.strip_prefix([' ', '\t'])?.split_whitespace().next()?;
        // Drop the interface of a link-local address.
        address.split('%').next()?.parse().ok().map(plain)
    })
}

/// An IPv4 address in its IPv6-mapped form.
fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// The loopback address to bind instead of the requested one; `None` for addresses of other interfaces. A dual-stack
/// `::` becomes 127.0.0.1: most clients use that, and those that use `localhost` try both.
fn narrowed(fd: BorrowedFd<'_>, at: SocketAddr) -> Option<SocketAddr> {
    let here = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), at.port());
    match at.ip() {
        ip if is_loopback(ip) => Some(at),
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Some(here),
        IpAddr::V6(ip) if ip.to_ipv4_mapped() == Some(Ipv4Addr::UNSPECIFIED) => Some(mapped(here)),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => match getsockopt(&fd, Ipv6V6Only) {
            Ok(false) => Some(mapped(here)),
            Ok(true) | Err(_) => Some(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), at.port())),
        },
        _ => None,
    }
}

/// Why a socket call is denied: rule and reason.
type Refusal<'r> = (&'static str, &'r str);

const UNIX_OUTSIDE: Refusal<'_> =
    ("sandbox.unix", "Sockets outside the task's own directories lead to other programs of the user.");
const UNIX_ABSTRACT: Refusal<'_> = ("sandbox.unix", "Abstract sockets lead to other programs of the user.");
const NETWORK: Refusal<'_> = ("sandbox.network", "The policy grants no network there.");
const ELSEWHERE: Refusal<'_> = ("sandbox.network", "Servers of the run listen on loopback only.");
const ANY_PORT: Refusal<'_> =
    ("sandbox.network", "The policy lets servers listen on ports of any number only with `loopback = true`.");
const FAMILY: Refusal<'_> = ("sandbox.network", "Sockets of this kind are not part of the task.");

impl Supervisor {
    /// The caller's socket and the address it passed.
    fn socket_call(&mut self, notification: &Notification) -> io::Result<(OwnedFd, Vec<u8>)> {
        let [_, address, length, ..] = notification.arguments;
        let length = (length as u32) as usize;
        if length > LONGEST_ADDRESS {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.remote.attach(notification.tid);
        let address = self.remote.bytes(address, length)?;
        Ok((self.socket(notification)?, address))
    }

    /// The caller's socket.
    fn socket(&mut self, notification: &Notification) -> io::Result<OwnedFd> {
        self.descriptor(notification, notification.arguments[0] as i32)
    }

    /// Handles a connect; `None` if the reply follows later.
    pub(crate) fn connect(&mut self, notification: &Notification) -> Option<Reply> {
        let (fd, address) = match self.socket_call(notification) {
            Ok(call) => call,
            Err(error) => return Some(failed(&error)),
        };
        let Some(target) = target(&address) else { return Some(Reply::Error(libc::EINVAL)) };
        match target {
            Target::UnixPath(path) => self.connect_unix(notification, fd, &path),
            Target::UnixAbstract => {
                Some(self.refuse_socket(notification, "connect", "an abstract socket", UNIX_ABSTRACT))
            }
            Target::Internet(to) => self.connect_internet(notification, fd, address, to),
            Target::Unspecified => Some(done(socket::connect(fd.as_fd(), &address))),
            Target::Route | Target::Other => {
                Some(self.refuse_socket(notification, "connect", "another kind of socket", FAMILY))
            }
        }
    }

    /// Connects to an egress listener of guard, to a server of the run, or through the proxy to a host the policy
    /// allows.
    fn connect_internet(
        &mut self,
        notification: &Notification,
        fd: OwnedFd,
        address: Vec<u8>,
        to: SocketAddr,
    ) -> Option<Reply> {
        let doors = self.setting.doors.clone();
        if doors.lead_to(to) {
            return self.connect_to_door(notification, fd, address, Purpose::Listener);
        }
        if is_loopback(to.ip()) && to.port() == self.setting.canary_port {
            // The canary. Denied, but not recorded as an action of the agent.
            return Some(Reply::Error(libc::EACCES));
        }
        if let Some(server) = self.own_server(to) {
            self.note(EventType::Connect, notification.tid, &to.to_string());
            let address = if server == to { address } else { socket::internet_address(server) };
            return self.connect_later(notification, fd, address, None);
        }
        let purpose = if to.port() == NAME_SERVICE && is_name_server(to.ip()) {
            Purpose::Lookup
        } else {
            let host = doors.host_at(to.ip());
            match (self.setting.rules.judge_connect(&host, to.port()), &host) {
                (Ok(()), _) => Purpose::Direct(host, to.port()),
                (Err(_), Host::Address(_)) => {
                    doors.count_refused(&host.to_string(), to.port());
                    return Some(self.refuse_socket(notification, "connect", &to.to_string(), NETWORK));
                }
                (Err(refusal), Host::Name(name)) => {
                    doors.count_refused(name, to.port());
                    self.refuse_host(notification.tid, name, to.port(), &refusal);
                    return Some(Reply::Error(libc::EACCES));
                }
            }
        };
        let proxy = match to.ip() {
            IpAddr::V4(_) => doors.proxy(),
            IpAddr::V6(_) => mapped(doors.proxy()),
        };
        self.connect_to_door(notification, fd, socket::internet_address(proxy), purpose)
    }

    /// Records a denied host of a program without proxy support, as the proxy does.
    fn refuse_host(&mut self, tid: i32, host: &str, port: u16, refusal: &NetworkRefusal) {
        self.counts.refusals += 1;
        let what = format!("connect to {host}:{port}");
        let NetworkRefusal { rule, reason, .. } = refusal;
        let data = serde_json::json!({
            "pid": tid, "what": what, "host": host, "port": port, "rule": rule, "reason": reason,
        });
        self.setting.recorder.record(EventType::DenyNetwork, &format!("{what}: {reason}"), &data);
    }

    /// Connects to an egress listener and registers the local port, so that the listener can tell the run from other
    /// clients.
    fn connect_to_door(
        &mut self,
        notification: &Notification,
        fd: OwnedFd,
        address: Vec<u8>,
        purpose: Purpose,
    ) -> Option<Reply> {
        let local = |fd: &OwnedFd| match target(&socket::local_address(fd.as_fd()).ok()?)? {
            Target::Internet(from) if from.port() != 0 => Some(from),
            _ => None,
        };
        let visitor = Peer { tid: notification.tid };
        let reply = self.setting.doors.announce(visitor, purpose, || {
            // Do not register a socket that is already connected, or a connect that fails: the next user of that
            // local port would be taken for the run.
            let is_there = getpeername::<SockaddrStorage>(fd.as_raw_fd()).is_ok();
            let reply = connect_at_once(fd.as_fd(), &address);
            let comes = matches!(reply, None | Some(Reply::Value(_) | Reply::Error(libc::EINPROGRESS)));
            (reply, local(&fd).filter(|_| comes && !is_there))
        });
        // The accept queue is full. The connection is registered by now and continues on another thread.
        reply.or_else(|| self.connect_later(notification, fd, address, None))
    }

    fn connect_unix(&mut self, notification: &Notification, fd: OwnedFd, path: &[u8]) -> Option<Reply> {
        let is_control = path == CONTROL_NAME.as_bytes();
        let object = if is_control {
            // The control socket, recognised by its name alone, whatever file the caller has at that path.
            open_below(fd.as_fd(), self.setting.control.as_os_str().as_bytes(), true)
        } else {
            self.open_server(notification, path)
        };
        let object = match object {
            Ok(object) => object,
            Err(error) => return Some(failed(&error)),
        };
        // Connect through the descriptor, so that the judged object is the one connected to.
        let through = format!("/proc/self/fd/{}", object.as_raw_fd());
        let Some(address) = socket::unix_address(through.as_bytes()) else {
            return Some(Reply::Error(libc::EINVAL));
        };
        if is_control {
            // Try at once, so that a shim can always ask, however many connects of the run are blocked.
            if let Some(reply) = connect_at_once(fd.as_fd(), &address) {
                return Some(reply);
            }
        } else if !self.is_waiting(notification) {
            // The thread id may have been reused while the path was opened.
            return None;
        } else if self.identities.is_own(notification.tid, object.as_fd()) {
            self.note(EventType::Connect, notification.tid, &String::from_utf8_lossy(path));
        } else {
            let shown = String::from_utf8_lossy(path);
            return Some(self.refuse_socket(notification, "connect", &shown, UNIX_OUTSIDE));
        }
        self.connect_later(notification, fd, address, Some(object))
    }

    /// Opens the unix socket that a path means to the caller.
    fn open_server(&mut self, notification: &Notification, path: &[u8]) -> io::Result<OwnedFd> {
        let known = self.servers.names.get(path).map_or(path, Vec::as_slice);
        // An absolute path needs no current directory.
        let folder = if known.starts_with(b"/") { Some("/".into()) } else { folder_of(notification.tid) };
        let folder = folder.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        self.identities.open(notification.tid, &folder, known, true)
    }

    /// Connects on a separate thread if the connect may block.
    fn connect_later(
        &mut self,
        notification: &Notification,
        fd: OwnedFd,
        address: Vec<u8>,
        object: Option<OwnedFd>,
    ) -> Option<Reply> {
        // If one connect blocks, others may too. Then the supervisor does not try one on its own thread.
        if WAITING.load(Ordering::Acquire) == 0
            && let Some(reply) = connect_at_once(fd.as_fd(), &address)
        {
            return Some(reply);
        }
        if WAITING.fetch_add(1, Ordering::AcqRel) >= MOST_WAITING {
            WAITING.fetch_sub(1, Ordering::AcqRel);
            return Some(Reply::Error(libc::EAGAIN));
        }
        let (sender, wake) = self.later();
        let id = notification.id;
        let work = move || {
            let result = AsyncResult::Reply(done(socket::connect(fd.as_fd(), &address)));
            drop(object);
            WAITING.fetch_sub(1, Ordering::AcqRel);
            let _ = sender.send(AsyncReply { id, result });
            let _ = wake.write(1);
        };
        match std::thread::Builder::new().name("connect".to_string()).stack_size(64 << 10).spawn(work) {
            Ok(_) => None,
            Err(_) => {
                WAITING.fetch_sub(1, Ordering::AcqRel);
                Some(Reply::Error(libc::EAGAIN))
            }
        }
    }

    /// Handles a bind.
    pub(crate) fn bind(&mut self, notification: &Notification) -> Option<Reply> {
        let (fd, address) = match self.socket_call(notification) {
            Ok(call) => call,
            Err(error) => return Some(failed(&error)),
        };
        let Some(target) = target(&address) else { return Some(Reply::Error(libc::EINVAL)) };
        Some(match target {
            Target::UnixPath(path) => self.bind_unix(notification, fd.as_fd(), &path),
            Target::UnixAbstract => {
                self.refuse_socket(notification, "bind", "an abstract socket", UNIX_ABSTRACT)
            }
            Target::Internet(at) => self.bind_internet(notification, fd.as_fd(), &address, at),
            Target::Route => done(socket::bind(fd.as_fd(), &address)),
            Target::Unspecified | Target::Other => {
                self.refuse_socket(notification, "bind", "another kind of socket", FAMILY)
            }
        })
    }

    /// Whether a server of the run may use this loopback port.
    fn may_listen(&self, port: u16) -> bool {
        self.setting.loopback || self.setting.listen.contains(&port)
    }

    /// Binds on loopback only; a wildcard address is narrowed to loopback.
    fn bind_internet(
        &mut self,
        notification: &Notification,
        fd: BorrowedFd<'_>,
        address: &[u8],
        at: SocketAddr,
    ) -> Reply {
        let narrowed = narrowed(fd, at);
        match narrowed {
            Some(narrowed) if self.may_listen(at.port()) => {
                if narrowed == at {
                    self.note(EventType::Bind, notification.tid, &at.to_string());
                    return self.bind_port(fd, address);
                }
                self.note(EventType::Bind, notification.tid, &format!("{at}, narrowed to {narrowed}"));
                self.bind_port(fd, &socket::internet_address(narrowed))
            }
            None => self.refuse_socket(notification, "bind", &at.to_string(), ELSEWHERE),
            Some(_) if at.port() == 0 => self.refuse_socket(notification, "bind", &at.to_string(), ANY_PORT),
            Some(_) => {
                let reason = format!(
                    "The policy lets no server listen there; `--listen {0}` or `[network] listen = [{0}]` would.",
                    at.port()
                );
                self.refuse_socket(notification, "bind", &at.to_string(), (NETWORK.0, &reason))
            }
        }
    }

    /// The address at which a server of the run would receive this connection, if it may have one there.
    fn own_server(&self, to: SocketAddr) -> Option<SocketAddr> {
        if !is_loopback(to.ip()) || !self.may_listen(to.port()) {
            return None;
        }
        if self.is_own_server(to) {
            return Some(to);
        }
        // A server that asked for `::` was narrowed to 127.0.0.1.
        let other = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), to.port());
        (to.ip() == Ipv6Addr::LOCALHOST && self.is_own_server(other)).then(|| mapped(other))
    }

    /// Whether this connection would reach a socket bound by the run, and not one of somebody else on the same port.
    fn is_own_server(&self, to: SocketAddr) -> bool {
        let to = match to.ip() {
            IpAddr::V6(ip) => SocketAddr::new(ip.to_ipv4_mapped().map_or(to.ip(), IpAddr::V4), to.port()),
            IpAddr::V4(_) => to,
        };
        socket::listener_at(to).is_ok_and(|inode| inode != 0 && self.servers.inodes.contains(&inode))
    }

    fn bind_port(&mut self, fd: BorrowedFd<'_>, address: &[u8]) -> Reply {
        let bound = socket::bind(fd, address);
        if bound.is_ok()
            && let Ok(found) = nix::sys::stat::fstat(fd)
        {
            if self.servers.inodes.len() >= MOST_SERVERS {
                self.servers.inodes.clear();
            }
            self.servers.inodes.insert(found.st_ino);
        }
        done(bound)
    }

    fn bind_unix(&mut self, notification: &Notification, fd: BorrowedFd<'_>, path: &[u8]) -> Reply {
        let shown = String::from_utf8_lossy(path).into_owned();
        let Some(folder) = folder_of(notification.tid) else { return Reply::Error(libc::ESRCH) };
        let full = folder.join(OsStr::from_bytes(path));
        let (Some(parent), Some(name)) = (full.parent(), full.file_name()) else {
            return Reply::Error(libc::EINVAL);
        };
        let object =
            match self.identities.open(notification.tid, Path::new("/"), parent.as_os_str().as_bytes(), true)
            {
                Ok(object) => object,
                Err(error) => return failed(&error),
            };
        if !self.is_waiting(notification) {
            // The thread id may have been reused while the path was opened. The caller is gone, so the reply does not
            // matter.
            return Reply::Error(libc::ESRCH);
        }
        if !self.identities.is_own(notification.tid, object.as_fd()) {
            return self.refuse_socket(notification, "bind", &shown, UNIX_OUTSIDE);
        }
        // `getsockname` reports the path that was bound. A unique path per socket keeps them apart, and `names` maps
        // it back to the path the run used.
        if self.servers.names.len() >= MOST_SERVERS {
            self.servers.names.clear();
        }
        let mark = mark(self.servers.names.len());
        let mut through = format!("/proc/self/fd/{}{mark}/", object.as_raw_fd()).into_bytes();
        through.extend_from_slice(name.as_bytes());
        let Some(address) = socket::unix_address(&through) else { return Reply::Error(libc::ENAMETOOLONG) };
        self.note(EventType::Bind, notification.tid, &shown);
        let bound = socket::bind(fd, &address);
        if bound.is_ok() {
            self.servers.names.insert(through, full.into_os_string().into_encoded_bytes());
        }
        done(bound)
    }

    /// Handles a listen. Only a socket bound by the supervisor may listen: an unbound one would get a port on every
    /// address, and so would one that was connected and disconnected, which keeps its port.
    pub(crate) fn listen(&mut self, notification: &Notification) -> Option<Reply> {
        let [_, backlog, ..] = notification.arguments;
        let fd = match self.socket(notification) {
            Ok(fd) => fd,
            Err(error) => return Some(failed(&error)),
        };
        let local = socket::local_address(fd.as_fd()).unwrap_or_default();
        if let Some(Target::Internet(_)) = target(&local)
            && !nix::sys::stat::fstat(&fd).is_ok_and(|found| self.servers.inodes.contains(&found.st_ino))
        {
            return Some(self.refuse_socket(notification, "listen", "a port of any number", ANY_PORT));
        }
        Some(done(socket::listen(fd.as_fd(), backlog as i32)))
    }

    fn refuse_socket(
        &mut self,
        notification: &Notification,
        call: &str,
        to: &str,
        refusal: Refusal<'_>,
    ) -> Reply {
        let (rule, reason) = refusal;
        let event = if call == "connect" { EventType::DenyConnect } else { EventType::DenyBind };
        self.refuse(event, notification.tid, &format!("{call} to {to}"), rule, reason);
        Reply::Error(libc::EACCES)
    }

    fn note(&self, event_type: EventType, tid: i32, to: &str) {
        self.setting.recorder.record(event_type, to, &SocketData { pid: tid, to });
    }
}

#[derive(Serialize)]
struct SocketData<'a> {
    pid: i32,
    to: &'a str,
}

/// How long the supervisor may block on one connect.
const AT_ONCE: Duration = Duration::from_millis(2);

/// Connects without blocking, which succeeds locally unless the peer's queue is full. `None` if it would block: a
/// second connect on the same socket then continues where this one stopped.
fn connect_at_once(fd: BorrowedFd<'_>, address: &[u8]) -> Option<Reply> {
    let flags = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GETFL).unwrap_or(0);
    if flags & libc::O_NONBLOCK != 0 {
        return Some(done(socket::connect(fd, address)));
    }
    let before = getsockopt(&fd, SendTimeout).ok()?;
    let brief = TimeVal::microseconds(AT_ONCE.as_micros() as i64);
    setsockopt(&fd, SendTimeout, &brief).ok()?;
    let result = socket::connect(fd, address);
    let _ = setsockopt(&fd, SendTimeout, &before);
    match result.as_ref().err().and_then(io::Error::raw_os_error) {
        Some(libc::EAGAIN | libc::EINPROGRESS | libc::EALREADY) => None,
        _ => Some(done(result)),
    }
}

fn done(result: io::Result<()>) -> Reply {
    match result {
        Ok(()) => Reply::Value(0),
        Err(error) => failed(&error),
    }
}

fn failed(error: &io::Error) -> Reply {
    Reply::Error(error.raw_os_error().unwrap_or(libc::EACCES))
}

/// Opens a path below a directory with `O_PATH`.
pub(crate) fn open_below(folder: BorrowedFd<'_>, path: &[u8], follow: bool) -> io::Result<OwnedFd> {
    let path = CString::new(path)?;
    open_in(folder, &path, Walk::NoMagic, follow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_of_a_configuration() {
        let text = "# nameserver 9.9.9.9\nnameserver 10.0.0.53\n nameserver\tfe80::1%eth0 \nsearch a\nnameserverx 1.2.3.4\n\
                    nameserver ::ffff:10.0.0.54\nnameserver nonsense\n";
        let found: Vec<String> = name_servers(text).map(|ip| ip.to_string()).collect();
        assert_eq!(found, ["10.0.0.53", "fe80::1", "10.0.0.54"]);
    }
}
