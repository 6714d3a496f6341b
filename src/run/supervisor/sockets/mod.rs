//! Handles `connect`, `bind` and `listen`.
//!
//! The supervisor copies the address once, judges it, and performs the call itself on a duplicate of the caller's
//! socket. The kernel never reads the address from the caller's memory, so a change there after the check has no
//! effect.

mod address;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CString, OsStr};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::socket::{SockaddrStorage, getpeername, getsockopt, setsockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use serde::Serialize;

use self::address::{NAME_SERVICE, Target, is_loopback, is_name_server, loopback_instead_of, mapped, target};
use super::background::BackgroundResult;
use super::call_context::{CallContext, SandboxDenial};
use super::process_info::cwd_of;
use super::shim::protocol::CONTROL_NAME;
use crate::judge::decide::{INSTEAD_OF_HOST, NetworkRefusal, NetworkRules};
use crate::judge::policy::Host;
use crate::run::egress::{Peer, PeerRegistry, Purpose};
use crate::run::transcript::EventType;
use crate::sys::fs::{Walk, open_in};
use crate::sys::seccomp::{Notification, Reply};
use crate::sys::signals::CallTimer;
use crate::sys::socket;

/// Sockets that the run has bound: internet sockets by inode, unix sockets by name.
#[derive(Debug, Default)]
struct BoundSockets {
    inodes: HashSet<u64>,
    /// Maps the name that the kernel reports for a unix socket to the path that the run bound.
    names: HashMap<Vec<u8>, Vec<u8>>,
    /// The number of unix sockets that the run has bound so far, from which the next one gets its unique name.
    named: usize,
}

impl BoundSockets {
    /// Stores the path that the run bound for a unix socket, under the name that the kernel reports for the socket.
    /// Forgets all other names if there are [`MOST_SERVERS`] of them.
    fn remember_name(&mut self, name: Vec<u8>, path: Vec<u8>) {
        if self.names.len() >= MOST_SERVERS {
            self.names.clear();
        }
        self.names.insert(name, path);
        // Sockets with a forgotten name are still in use, so never start again from zero.
        self.named += 1;
    }
}

/// Returns a path fragment that does not change where a path leads and is unique for each number: the binary digits of
/// the number, written as `/` and `/.`.
fn unique_path_fragment(number: usize) -> String {
    let digits = (0..usize::BITS - number.leading_zeros()).rev();
    digits.map(|digit| if number >> digit & 1 == 1 { "/." } else { "/" }).collect()
}

/// The maximum number of bound internet sockets, and of bound unix sockets, that the supervisor remembers. It forgets
/// all of one kind when it has reached the limit.
const MOST_SERVERS: usize = 10_000;

/// The size of the largest socket address that the kernel accepts.
const LONGEST_ADDRESS: usize = 128;
/// The maximum number of connects that block at the same time; further ones fail with `EAGAIN`.
const MOST_WAITING: usize = 256;

static WAITING: AtomicUsize = AtomicUsize::new(0);

const fn denial(rule: &'static str, reason: &'static str, instead: &'static str) -> SandboxDenial<'static> {
    SandboxDenial { rule, reason, instead, allow_with: None }
}

const UNIX_OUTSIDE: SandboxDenial<'_> = denial(
    "sandbox.unix",
    "The run may not use unix sockets outside its own directories: they belong to other programs of the user.",
    "Work without this program, or say in your answer what you need it for.",
);
const UNIX_ABSTRACT: SandboxDenial<'_> = denial(
    "sandbox.unix",
    "The run may not use abstract unix sockets: they can belong to other programs of the user.",
    "Use a socket in the working tree or in $TMPDIR.",
);
const NETWORK: SandboxDenial<'_> =
    denial("sandbox.network", "The policy does not allow connections to this address.", INSTEAD_OF_HOST);
const NOT_LOOPBACK: SandboxDenial<'_> = denial(
    "sandbox.network",
    "Programs of the run may listen on loopback only, not on other interfaces.",
    "Listen on 127.0.0.1.",
);
const ANY_PORT: SandboxDenial<'_> = denial(
    "sandbox.network",
    "Listening on a port that the kernel chooses needs `loopback = true` in the policy.",
    "Use a socket in the working tree, or ask the user for `loopback = true`.",
);
const NOT_BOUND: SandboxDenial<'_> = denial(
    "sandbox.network",
    "A program must bind an internet socket to a loopback address before it listens. Otherwise the socket would listen on \
     every interface.",
    "Bind the socket to 127.0.0.1 and a port.",
);
const FAMILY: SandboxDenial<'_> = denial(
    "sandbox.network",
    "Runs cannot use sockets of this address family.",
    "Use TCP, or a unix socket in the working tree.",
);
const INSTEAD_OF_PORT: &str = "Test without a server on this port, or ask the user for the port.";

/// Sockets of services that C libraries ask about users and names, and that get messages for the system log. Programs
/// that cannot connect to them work without them, so guard records such a denial without telling the program.
const OPTIONAL_SERVICES: [&str; 6] =
    ["/run/systemd/", "/run/nscd/", "/var/run/nscd/", "/run/dbus/", "/var/run/dbus/", "/dev/log"];

pub(crate) struct SocketHandler {
    bound: BoundSockets,
    /// The ports of guard's proxy and gateways. Before a connection of the run reaches one of them, the supervisor
    /// registers the connection here, so that the proxy knows which connections come from the run.
    peer_registry: Arc<PeerRegistry>,
    /// The network rules by which the supervisor judges the connections of programs that do not use the proxy.
    rules: Arc<NetworkRules>,
    /// Path of the control socket that shims connect to.
    control: PathBuf,
    /// Loopback port to which guard's self-test (the canary) tries to connect. The supervisor must deny this connect.
    canary_port: u16,
    /// Whether programs of the run may listen on any loopback port and connect to each other there.
    loopback: bool,
    /// Loopback ports that programs of the run may listen on even without `loopback`.
    listen: Vec<u16>,
}

impl SocketHandler {
    pub(crate) fn new(
        peer_registry: Arc<PeerRegistry>,
        rules: Arc<NetworkRules>,
        control: PathBuf,
        canary_port: u16,
        loopback: bool,
        listen: Vec<u16>,
    ) -> Self {
        let bound = BoundSockets::default();
        Self { bound, peer_registry, rules, control, canary_port, loopback, listen }
    }

    /// Handles a connect call. Returns `None` if the supervisor replies later, or need not reply because the caller is
    /// gone.
    pub(crate) fn connect(
        &mut self,
        context: &mut CallContext,
        notification: &Notification,
    ) -> Option<Reply> {
        let (fd, address) = match socket_call(context, notification) {
            Ok(call) => call,
            Err(error) => return Some(error_reply(&error)),
        };
        let Some(target) = target(&address) else { return Some(Reply::Error(libc::EINVAL)) };
        match target {
            Target::UnixPath(path) => self.connect_unix(context, notification, fd, &path),
            Target::UnixAbstract => {
                Some(deny_socket_call(context, notification, "connect", "an abstract socket", &UNIX_ABSTRACT))
            }
            Target::Internet(to) => self.connect_internet(context, notification, fd, address, to),
            Target::Unspecified => Some(reply_for(socket::connect(fd.as_fd(), &address))),
            Target::Route | Target::Other => Some(deny_socket_call(
                context,
                notification,
                "connect",
                "an address of an unsupported family",
                &FAMILY,
            )),
        }
    }

    /// Connects the caller's socket to a listener of the proxy or of a gateway, or to a server of the run. Connects it
    /// to the proxy instead if the address belongs to a DNS server or to a host that the policy allows. Denies
    /// everything else.
    fn connect_internet(
        &mut self,
        context: &mut CallContext,
        notification: &Notification,
        fd: OwnedFd,
        address: Vec<u8>,
        to: SocketAddr,
    ) -> Option<Reply> {
        let peer_registry = self.peer_registry.clone();
        if peer_registry.is_listener(to) {
            return self.connect_to_listener(context, notification, fd, address, Purpose::Listener);
        }
        if is_loopback(to.ip()) && to.port() == self.canary_port {
            // This is the canary's connect. Deny it, but do not record it as an action of the agent.
            return Some(Reply::Error(libc::EACCES));
        }
        if let Some(server) = self.run_server_address(to) {
            record_socket_call(context, EventType::Connect, notification.tid, &to.to_string());
            let address = if server == to { address } else { socket::internet_address(server) };
            return connect_later(context, notification, fd, address, None);
        }
        let purpose = if to.port() == NAME_SERVICE && is_name_server(to.ip()) {
            Purpose::Lookup
        } else {
            let host = peer_registry.host_at(to.ip());
            match (self.rules.judge_connect(&host, to.port()), &host) {
                (Ok(()), _) => Purpose::Direct(host, to.port()),
                (Err(refusal), Host::Address(address)) => {
                    peer_registry.count_refused(&host.to_string(), to.port());
                    let denial = match refusal.rule {
                        "network.deny" => {
                            SandboxDenial { rule: refusal.rule, reason: &refusal.reason, ..NETWORK }
                        }
                        _ => {
                            let allow_with = refusal.option(&host.to_string(), to.port());
                            SandboxDenial { allow_with, ..NETWORK }
                        }
                    };
                    // Clients that connect to `localhost` try both loopback addresses.
                    let subject = match address.is_loopback() {
                        true => format!("loopback:{}", to.port()),
                        false => to.to_string(),
                    };
                    let what = format!("connect to {to}");
                    context.deny_and_explain(EventType::DenyConnect, notification, &subject, &what, &denial);
                    return Some(Reply::Error(libc::EACCES));
                }
                (Err(refusal), Host::Name(name)) => {
                    peer_registry.count_refused(name, to.port());
                    deny_host(context, notification, name, to.port(), &refusal);
                    return Some(Reply::Error(libc::EACCES));
                }
            }
        };
        let proxy = match to.ip() {
            IpAddr::V4(_) => peer_registry.proxy(),
            IpAddr::V6(_) => mapped(peer_registry.proxy()),
        };
        self.connect_to_listener(context, notification, fd, socket::internet_address(proxy), purpose)
    }

    /// Connects to a listener of the proxy or of a gateway. Registers the connection's local address, so that the
    /// listener knows that the connection comes from the run.
    fn connect_to_listener(
        &mut self,
        context: &mut CallContext,
        notification: &Notification,
        fd: OwnedFd,
        address: Vec<u8>,
        purpose: Purpose,
    ) -> Option<Reply> {
        let local = |fd: &OwnedFd| match target(&socket::local_address(fd.as_fd()).ok()?)? {
            Target::Internet(from) if from.port() != 0 => Some(from),
            _ => None,
        };
        let peer = Peer { tid: notification.tid, thread: context.shared_pidfd(notification) };
        let reply = self.peer_registry.announce(peer, purpose, || {
            // Do not register a socket that is already connected, or a connect that fails: the listener would take the
            // next process with that local port for the run.
            let was_connected = getpeername::<SockaddrStorage>(fd.as_raw_fd()).is_ok();
            let reply = connect_at_once(fd.as_fd(), &address);
            let is_connecting =
                matches!(reply, None | Some(Reply::Value(_) | Reply::Error(libc::EINPROGRESS)));
            (reply, local(&fd).filter(|_| is_connecting && !was_connected))
        });
        // No reply means that the accept queue is full. The connection is registered already, and another thread
        // continues the connect.
        reply.or_else(|| connect_later(context, notification, fd, address, None))
    }

    fn connect_unix(
        &mut self,
        context: &mut CallContext,
        notification: &Notification,
        fd: OwnedFd,
        path: &[u8],
    ) -> Option<Reply> {
        let is_control = path == CONTROL_NAME.as_bytes();
        let object = if is_control {
            // This is the control socket. Recognise it by its name alone, whatever file the caller has at that
            // path.
            open_below(fd.as_fd(), self.control.as_os_str().as_bytes(), true)
        } else {
            self.open_unix_socket(context, notification, path)
        };
        let object = match object {
            Ok(object) => object,
            Err(error) => return Some(error_reply(&error)),
        };
        // Connect through the descriptor, so that the supervisor connects to the object that it has judged.
        let through = format!("/proc/self/fd/{}", object.as_raw_fd());
        let Some(address) = socket::unix_address(through.as_bytes()) else {
            return Some(Reply::Error(libc::EINVAL));
        };
        if is_control {
            // Try without another thread first, so that a shim can always ask, however many connects of the run
            // are blocked.
            if let Some(reply) = connect_at_once(fd.as_fd(), &address) {
                return Some(reply);
            }
        } else if !context.is_waiting(notification) {
            // Another thread may have got this thread id while the supervisor opened the path.
            return None;
        } else if context.identities().is_in_writable_mount(notification.tid, object.as_fd()) {
            record_socket_call(context, EventType::Connect, notification.tid, &String::from_utf8_lossy(path));
        } else {
            let shown = String::from_utf8_lossy(path);
            return Some(deny_socket_call(context, notification, "connect", &shown, &UNIX_OUTSIDE));
        }
        connect_later(context, notification, fd, address, Some(object))
    }

    /// Opens the unix socket at a path, which the kernel resolves as it would for the caller.
    fn open_unix_socket(
        &mut self,
        context: &mut CallContext,
        notification: &Notification,
        path: &[u8],
    ) -> io::Result<OwnedFd> {
        let known = self.bound.names.get(path).map_or(path, Vec::as_slice);
        // An absolute path needs no current directory.
        let cwd = if known.starts_with(b"/") { Some("/".into()) } else { cwd_of(notification.tid) };
        let cwd = cwd.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        context.identities().open(notification.tid, &cwd, known, true)
    }

    /// Handles a bind call: performs it for a unix socket in a directory that the run may write, for a loopback port on
    /// which the run may listen, and for a netlink route socket. Denies everything else.
    pub(crate) fn bind(&mut self, context: &mut CallContext, notification: &Notification) -> Reply {
        let (fd, address) = match socket_call(context, notification) {
            Ok(call) => call,
            Err(error) => return error_reply(&error),
        };
        let Some(target) = target(&address) else { return Reply::Error(libc::EINVAL) };
        match target {
            Target::UnixPath(path) => self.bind_unix(context, notification, fd.as_fd(), &path),
            Target::UnixAbstract => {
                deny_socket_call(context, notification, "bind", "an abstract socket", &UNIX_ABSTRACT)
            }
            Target::Internet(at) => self.bind_internet(context, notification, fd.as_fd(), &address, at),
            Target::Route => reply_for(socket::bind(fd.as_fd(), &address)),
            Target::Unspecified | Target::Other => deny_socket_call(
                context,
                notification,
                "bind",
                "an address of an unsupported family",
                &FAMILY,
            ),
        }
    }

    fn may_listen(&self, port: u16) -> bool {
        self.loopback || self.listen.contains(&port)
    }

    /// Binds a socket to a loopback port on which programs of the run may listen. Replaces a wildcard address by a
    /// loopback address. Denies all other addresses and ports.
    fn bind_internet(
        &mut self,
        context: &mut CallContext,
        notification: &Notification,
        fd: BorrowedFd<'_>,
        address: &[u8],
        at: SocketAddr,
    ) -> Reply {
        let narrowed = loopback_instead_of(fd, at);
        match narrowed {
            Some(narrowed) if self.may_listen(at.port()) => {
                if narrowed == at {
                    record_socket_call(context, EventType::Bind, notification.tid, &at.to_string());
                    return self.bind_port(fd, address);
                }
                record_socket_call(
                    context,
                    EventType::Bind,
                    notification.tid,
                    &format!("{at}, bound to {narrowed} instead"),
                );
                self.bind_port(fd, &socket::internet_address(narrowed))
            }
            None => deny_socket_call(context, notification, "bind", &at.to_string(), &NOT_LOOPBACK),
            // Python's urllib3 binds this address to find out whether the machine has IPv6, and works without it. So do
            // not tell the program.
            Some(_) if at == SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0) => {
                let what = format!("bind to {at}");
                let SandboxDenial { rule, reason, .. } = ANY_PORT;
                context.record_denial_by_sandbox(EventType::DenyBind, notification.tid, &what, rule, reason);
                Reply::Error(libc::EACCES)
            }
            Some(_) if at.port() == 0 => {
                deny_socket_call(context, notification, "bind", &at.to_string(), &ANY_PORT)
            }
            Some(_) => {
                let reason = format!(
                    "The policy does not allow listening on this port; use `--listen {0}` or `[network] listen = [{0}]`.",
                    at.port()
                );
                let denial = SandboxDenial {
                    rule: NETWORK.rule,
                    reason: &reason,
                    instead: INSTEAD_OF_PORT,
                    allow_with: Some(format!("--listen {}", at.port())),
                };
                deny_socket_call(context, notification, "bind", &at.to_string(), &denial)
            }
        }
    }

    /// Returns the address to connect to, if a server of the run listens at `to` and the policy allows such
    /// connections; otherwise `None`.
    fn run_server_address(&self, to: SocketAddr) -> Option<SocketAddr> {
        if !is_loopback(to.ip()) || !self.may_listen(to.port()) {
            return None;
        }
        if self.is_run_server(to) {
            return Some(to);
        }
        // If a server asked to bind `::`, the supervisor may have bound it to 127.0.0.1 instead.
        let other = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), to.port());
        (to.ip() == Ipv6Addr::LOCALHOST && self.is_run_server(other)).then(|| mapped(other))
    }

    /// Returns true if a connection to this address would reach a socket that the run has bound, and not a socket of
    /// some other program on the same port.
    fn is_run_server(&self, to: SocketAddr) -> bool {
        let to = match to.ip() {
            IpAddr::V6(ip) => SocketAddr::new(ip.to_ipv4_mapped().map_or(to.ip(), IpAddr::V4), to.port()),
            IpAddr::V4(_) => to,
        };
        socket::listener_at(to).is_ok_and(|inode| inode != 0 && self.bound.inodes.contains(&inode))
    }

    fn bind_port(&mut self, fd: BorrowedFd<'_>, address: &[u8]) -> Reply {
        let bound = socket::bind(fd, address);
        if bound.is_ok()
            && let Ok(found) = nix::sys::stat::fstat(fd)
        {
            if self.bound.inodes.len() >= MOST_SERVERS {
                self.bound.inodes.clear();
            }
            self.bound.inodes.insert(found.st_ino);
        }
        reply_for(bound)
    }

    fn bind_unix(
        &mut self,
        context: &mut CallContext,
        notification: &Notification,
        fd: BorrowedFd<'_>,
        path: &[u8],
    ) -> Reply {
        let shown = String::from_utf8_lossy(path).into_owned();
        let Some(cwd) = cwd_of(notification.tid) else { return Reply::Error(libc::ESRCH) };
        let full = cwd.join(OsStr::from_bytes(path));
        let (Some(parent), Some(name)) = (full.parent(), full.file_name()) else {
            return Reply::Error(libc::EINVAL);
        };
        let object = match context.identities().open(
            notification.tid,
            Path::new("/"),
            parent.as_os_str().as_bytes(),
            true,
        ) {
            Ok(object) => object,
            Err(error) => return error_reply(&error),
        };
        if !context.is_waiting(notification) {
            // Another thread may have got this thread id while the supervisor opened the path. The caller is gone, so
            // the reply does not matter.
            return Reply::Error(libc::ESRCH);
        }
        if !context.identities().is_in_writable_mount(notification.tid, object.as_fd()) {
            return deny_socket_call(context, notification, "bind", &shown, &UNIX_OUTSIDE);
        }
        // `getsockname` reports the path that the supervisor binds, not the path that the run used. So bind each socket
        // at a unique path, and store in `names` which path of the run it stands for.
        let mark = unique_path_fragment(self.bound.named);
        let mut through = format!("/proc/self/fd/{}{mark}/", object.as_raw_fd()).into_bytes();
        through.extend_from_slice(name.as_bytes());
        let Some(address) = socket::unix_address(&through) else { return Reply::Error(libc::ENAMETOOLONG) };
        record_socket_call(context, EventType::Bind, notification.tid, &shown);
        let bound = socket::bind(fd, &address);
        if bound.is_ok() {
            self.bound.remember_name(through, full.into_os_string().into_encoded_bytes());
        }
        reply_for(bound)
    }

    /// Handles a listen call. An internet socket may listen only if the supervisor has bound it. An unbound socket
    /// would listen on every address, and so would a socket that was connected and disconnected, which keeps its port.
    /// A unix socket may not listen on an abstract name, which every process of the machine can connect to: the kernel
    /// gives one to a socket with `SO_PASSCRED` that connects.
    pub(crate) fn listen(&self, context: &mut CallContext, notification: &Notification) -> Reply {
        let [_, backlog, ..] = notification.arguments;
        let fd = match socket_of(context, notification) {
            Ok(fd) => fd,
            Err(error) => return error_reply(&error),
        };
        let local = socket::local_address(fd.as_fd()).unwrap_or_default();
        if let Some(Target::Internet(_)) = target(&local)
            && !nix::sys::stat::fstat(&fd).is_ok_and(|found| self.bound.inodes.contains(&found.st_ino))
        {
            return deny_socket_call(
                context,
                notification,
                "listen",
                "a port that the kernel chooses",
                &NOT_BOUND,
            );
        }
        if let Some(Target::UnixAbstract) = target(&local) {
            // Like the kernel, refuse to listen on a socket without a name. The kernel could give it one meanwhile.
            if local.len() <= size_of::<libc::sa_family_t>() {
                return Reply::Error(libc::EINVAL);
            }
            return deny_socket_call(context, notification, "listen", "an abstract socket", &UNIX_ABSTRACT);
        }
        reply_for(socket::listen(fd.as_fd(), backlog as i32))
    }
}

/// Returns a duplicate of the caller's socket, and the raw address that the caller passed. Fails if the address is
/// longer than the kernel accepts.
fn socket_call(context: &mut CallContext, notification: &Notification) -> io::Result<(OwnedFd, Vec<u8>)> {
    let [_, address, length, ..] = notification.arguments;
    let length = (length as u32) as usize;
    if length > LONGEST_ADDRESS {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let address = context.memory_of(notification.tid).bytes(address, length)?;
    Ok((socket_of(context, notification)?, address))
}

/// Returns a duplicate of the caller's socket.
fn socket_of(context: &mut CallContext, notification: &Notification) -> io::Result<OwnedFd> {
    context.duplicate_descriptor(notification, notification.arguments[0] as i32)
}

/// Connects a socket and returns the reply. If the connect would block, a separate thread continues it and sends the
/// reply, and this function returns `None`. Fails with `EAGAIN` if [`MOST_WAITING`] connects block already. `object` is
/// the descriptor that `address` names, which must stay open until the connect has ended.
fn connect_later(
    context: &mut CallContext,
    notification: &Notification,
    fd: OwnedFd,
    address: Vec<u8>,
    object: Option<OwnedFd>,
) -> Option<Reply> {
    // If another connect is blocked, this one may block too, so do not try it on the supervisor thread.
    if WAITING.load(Ordering::Acquire) == 0
        && let Some(reply) = connect_at_once(fd.as_fd(), &address)
    {
        return Some(reply);
    }
    if WAITING.fetch_add(1, Ordering::AcqRel) >= MOST_WAITING {
        WAITING.fetch_sub(1, Ordering::AcqRel);
        return Some(Reply::Error(libc::EAGAIN));
    }
    let background = context.background().clone();
    let id = notification.id;
    let work = move || {
        let reply = reply_for(socket::connect(fd.as_fd(), &address));
        drop(object);
        WAITING.fetch_sub(1, Ordering::AcqRel);
        background.send(BackgroundResult::Reply(id, reply));
    };
    match std::thread::Builder::new().name("connect".to_string()).stack_size(64 << 10).spawn(work) {
        Ok(_) => None,
        Err(_) => {
            WAITING.fetch_sub(1, Ordering::AcqRel);
            Some(Reply::Error(libc::EAGAIN))
        }
    }
}

/// Records the denied connect of a program without proxy support, in the same form as the proxy would record it, and
/// tells the program about it.
fn deny_host(
    context: &mut CallContext,
    notification: &Notification,
    host: &str,
    port: u16,
    refusal: &NetworkRefusal,
) {
    let what = format!("connect to {host}:{port}");
    let data = refusal.event_data(notification.tid, &what, host, port);
    context.record_denial(EventType::DenyNetwork, &format!("{what}: {}", refusal.reason), &data);
    context.explain(notification, host, &refusal.line(&what));
}

fn deny_socket_call(
    context: &mut CallContext,
    notification: &Notification,
    call: &str,
    to: &str,
    denial: &SandboxDenial<'_>,
) -> Reply {
    let event = if call == "connect" { EventType::DenyConnect } else { EventType::DenyBind };
    let what = if call == "listen" { format!("listen on {to}") } else { format!("{call} to {to}") };
    if OPTIONAL_SERVICES.iter().any(|service| to.starts_with(service)) {
        context.record_denial_by_sandbox(event, notification.tid, &what, denial.rule, denial.reason);
    } else {
        context.deny_and_explain(event, notification, &what, &what, denial);
    }
    Reply::Error(libc::EACCES)
}

fn record_socket_call(context: &CallContext, event_type: EventType, tid: i32, to: &str) {
    context.record(event_type, to, &SocketData { pid: tid, to });
}

#[derive(Serialize)]
struct SocketData<'a> {
    pid: i32,
    to: &'a str,
}

/// How long the supervisor thread may block on one connect before it uses a separate thread.
const AT_ONCE: Duration = Duration::from_millis(2);

/// How long a connect can block the supervisor thread if the caller changes the flags or the timeout of its socket in
/// the meantime.
const INTERRUPT_AFTER: Duration = Duration::from_millis(10);

thread_local! {
    static CALL_TIMER: RefCell<Option<CallTimer>> = const { RefCell::new(None) };
}

/// Connects almost without blocking. A local connect succeeds at once unless the accept queue of the peer is full.
/// Returns `None` if the connect would block; a second connect on the same socket then continues where this one
/// stopped.
fn connect_at_once(fd: BorrowedFd<'_>, address: &[u8]) -> Option<Reply> {
    let flags = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GETFL).unwrap_or(0);
    if flags & libc::O_NONBLOCK != 0 {
        let result = connect_interruptibly(fd, address)?;
        return Some(reply_for(result));
    }
    let before = getsockopt(&fd, SendTimeout).ok()?;
    let brief = TimeVal::microseconds(AT_ONCE.as_micros() as i64);
    setsockopt(&fd, SendTimeout, &brief).ok()?;
    let result = connect_interruptibly(fd, address);
    let _ = setsockopt(&fd, SendTimeout, &before);
    let result = result?;
    match result.as_ref().err().and_then(io::Error::raw_os_error) {
        Some(libc::EAGAIN | libc::EINPROGRESS | libc::EALREADY) => None,
        _ => Some(reply_for(result)),
    }
}

/// Connects. Returns `None` if that takes longer than [`INTERRUPT_AFTER`], or if guard cannot set a timer.
fn connect_interruptibly(fd: BorrowedFd<'_>, address: &[u8]) -> Option<io::Result<()>> {
    let result = CALL_TIMER.with_borrow_mut(|timer| {
        if timer.is_none() {
            *timer = CallTimer::new().ok();
        }
        timer.as_mut()?.limit(INTERRUPT_AFTER, || socket::connect(fd, address)).ok()
    })?;
    let is_interrupted = |error: &io::Error| error.kind() == io::ErrorKind::Interrupted;
    (!result.as_ref().is_err_and(is_interrupted)).then_some(result)
}

fn reply_for(result: io::Result<()>) -> Reply {
    match result {
        Ok(()) => Reply::Value(0),
        Err(error) => error_reply(&error),
    }
}

fn error_reply(error: &io::Error) -> Reply {
    Reply::Error(error.raw_os_error().unwrap_or(libc::EACCES))
}

/// Opens a path below a directory with `O_PATH`, without following magic links of `/proc`. Follows a symlink at the end
/// of the path only if `follow` is true.
pub(crate) fn open_below(directory: BorrowedFd<'_>, path: &[u8], follow: bool) -> io::Result<OwnedFd> {
    let path = CString::new(path)?;
    open_in(directory, &path, Walk::NoMagic, follow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_unique_when_others_are_forgotten() {
        let mut bound = BoundSockets::default();
        let mut all = HashSet::new();
        for number in 0..2 * MOST_SERVERS + 10 {
            let name = unique_path_fragment(bound.named);
            assert!(all.insert(name.clone()), "{number}: {name} was used before");
            bound.remember_name(name.into_bytes(), Vec::new());
            assert!(bound.names.len() <= MOST_SERVERS);
        }
    }
}
