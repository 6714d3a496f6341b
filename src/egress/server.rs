//! The network thread: accepts connections on the listeners, identifies the peer, and passes each connection to the
//! proxy, the DNS server or a gateway.
//!
//! The thread serves all connections of one run on a single-threaded runtime. It must never serve a connection that the
//! supervisor has not announced ([`PeerRegistry`]).

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::net::TcpListener as StdListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use super::budget::{Budget, Spent};
use super::dial::{Dialer, UpstreamProxy};
use super::gateway::{GatewayPlan, RunningGateway};
use super::host_stats::HostStats;
use super::listeners::{Peer, PeerRegistry, Purpose};
use super::memory_budget::MemoryBudget;
use super::response_body::ProxiedBody;
use super::upstream::load_tls_config;
use super::{dns, proxy, tunnel};
use crate::decide::{NetworkRefusal, NetworkRules, host_option};
use crate::outcome::HostTraffic;
use crate::transcript::{EventType, Recorder};

/// Default limit on simultaneous connections.
const DEFAULT_MAX_CONNECTIONS: usize = 512;
/// The descriptor limit is raised to at most this value, which is enough for the connections of any policy.
const MAX_DESCRIPTORS: u64 = 1 << 18;
/// Time limit for receiving request headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Size limit of request headers, and of the read buffer of a connection.
pub(super) const LARGEST_HEADERS: usize = 64 << 10;

/// Network limits of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of simultaneous connections; `None` means 512.
    pub connections: Option<usize>,
    /// Maximum number of bytes that the run may send; `None` means no limit, as for the following limits.
    pub upload: Option<u64>,
    /// Maximum number of bytes that the run may receive.
    pub download: Option<u64>,
    /// Maximum transfer rate of all connections together, sent and received bytes added.
    pub bytes_per_second: Option<u64>,
}

/// Which service a listener provides.
pub enum ListenerKind {
    /// The proxy, through which the run reaches every host that the rules allow.
    Proxy,
    /// The gateway to one API, with its configuration.
    Gateway(Box<GatewayPlan>),
}

/// A loopback listener that is bound but not served yet.
pub struct BoundListener {
    /// The service that the listener provides.
    pub kind: ListenerKind,
    /// The listening socket.
    pub listener: StdListener,
}

/// Everything that the network thread needs to serve a run.
pub struct ProxyConfig {
    /// The listeners; the first is the proxy's.
    pub listeners: Vec<BoundListener>,
    /// The registry in which the supervisor announces the run's connections.
    pub peer_registry: Arc<PeerRegistry>,
    /// The hosts that the run may reach.
    pub rules: Arc<NetworkRules>,
    /// The upstream proxy of this machine, if one is configured.
    pub proxy: UpstreamProxy,
    /// Limits on the run's connections and traffic.
    pub bounds: Bounds,
    /// Limits on the run's model usage, and the usage so far.
    pub budget: Budget,
    /// Receives an event for every connection, request, refusal and error.
    pub recorder: Recorder,
    /// Incremented on all traffic, so that guard does not end a run as idle while it has traffic.
    pub activity: Arc<AtomicU64>,
    /// Set when a gateway refuses a request because of a model budget: the budget is used up, or the cost is limited
    /// and the price of the model is unknown. guard then ends the run.
    pub exhausted: Arc<AtomicBool>,
}

impl ProxyConfig {
    /// Returns the proxy's listening socket.
    ///
    /// # Panics
    ///
    /// Panics if there are no listeners; every run has a proxy.
    pub fn proxy_listener(&self) -> BorrowedFd<'_> {
        self.listeners[0].listener.as_fd()
    }
}

/// Network statistics of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Traffic per host and port.
    pub rows: Vec<HostTraffic>,
    /// Model usage: requests, tokens and cost.
    pub spent: Spent,
    /// The number of refused connections and requests.
    pub refusals: u64,
}

/// A handle to the running network thread.
pub struct Handle {
    thread: JoinHandle<Traffic>,
    end: oneshot::Sender<()>,
}

impl Handle {
    /// Stops the thread, closes every connection and returns the run's totals. The totals are zero if the thread
    /// panicked. Call this method when no process of the run is left.
    pub fn finish(self) -> Traffic {
        let _ = self.end.send(());
        self.thread.join().unwrap_or_default()
    }
}

/// Starts the network thread, which serves the listeners until [`Handle::finish`] is called or the handle is dropped.
pub fn start(config: ProxyConfig) -> io::Result<Handle> {
    let (end, ended) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(16)
        .thread_name("lookup")
        .build()?;
    raise_descriptor_limit();
    let work = move || {
        // The thread needs no capabilities, even if root started guard.
        let _ = crate::sys::process::drop_effective_capabilities();
        let connections = LocalSet::new();
        let state = connections.block_on(&runtime, serve(config, ended));
        // Dropping the open connections counts and records them, so the totals are read afterwards.
        drop(connections);
        let traffic = state.traffic();
        // Do not wait for DNS lookups that are still running.
        runtime.shutdown_background();
        traffic
    };
    let thread = std::thread::Builder::new().name("network".to_string()).spawn(work)?;
    Ok(Handle { thread, end })
}

/// Raises the descriptor limit of this process, and ignores errors. A connection takes two descriptors and the usual
/// limit is 1024, so the supervisor could run out of the descriptors that it needs for its replies. The run has already
/// started and keeps its own limit.
fn raise_descriptor_limit() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let _ = setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(MAX_DESCRIPTORS)), hard);
}

/// State shared by all connections of a run.
pub(super) struct ProxyState {
    pub(super) dialer: Dialer,
    pub(super) host_stats: HostStats,
    pub(super) budget: Budget,
    pub(super) recorder: Recorder,
    pub(super) memory: MemoryBudget,
    peer_registry: Arc<PeerRegistry>,
    bounds: Bounds,
    activity: Arc<AtomicU64>,
    exhausted: Arc<AtomicBool>,
    open: Cell<usize>,
    up: Cell<u64>,
    down: Cell<u64>,
    refusals: Cell<u64>,
    unknown_peers: Cell<u64>,
    /// The last refused DNS lookup: who made it, and the name.
    last_lookup: RefCell<Option<(Peer, String)>>,
    /// The earliest time at which the bytes forwarded so far comply with the rate limit.
    due: Cell<Option<Instant>>,
}

impl ProxyState {
    /// Counts a refusal and records it as an event.
    pub(super) fn refused(&self, peer: Peer, host: &str, port: u16, what: &str, rule: &str, reason: &str) {
        self.refusals.set(self.refusals.get() + 1);
        self.host_stats.update(host, port, |row| row.refused += 1);
        let data = json!({
            "pid": peer.tid, "what": what, "host": host, "port": port, "rule": rule, "reason": reason,
            "allow_with": host_option(rule, host, port),
        });
        self.recorder.record(EventType::DenyNetwork, &format!("{what}: {reason}"), &data);
    }

    /// Stores this refused lookup as the last one. Returns true if it differs from the previous one in name or peer, so
    /// that a repeated lookup is recorded only once.
    pub(super) fn is_new_refused_lookup(&self, peer: Peer, name: &str) -> bool {
        let now = (peer, name.to_string());
        let before = self.last_lookup.replace(Some(now));
        before.is_none_or(|(last_peer, last_name)| last_peer != peer || last_name != name)
    }

    /// Returns the synthetic address (one that stands for a host name) that guard's DNS server gives for a name;
    /// `None` if the name is new and the run has reached its limit of names.
    pub(super) fn address_of(&self, name: &str) -> Option<std::net::Ipv4Addr> {
        self.peer_registry.address_of(name)
    }

    fn traffic(&self) -> Traffic {
        Traffic { rows: self.host_stats.rows(), spent: self.budget.spent(), refusals: self.refusals.get() }
    }

    /// Makes guard end the run, because a gateway has refused a request because of a model budget.
    pub(super) fn exhaust(&self) {
        self.exhausted.store(true, Ordering::Release);
    }

    pub(super) fn new_byte_counter(self: &Rc<Self>, host: &str, port: u16, peer: Peer) -> Rc<ByteCounter> {
        Rc::new(ByteCounter {
            state: self.clone(),
            host: host.to_string(),
            port,
            peer,
            up: Cell::new(0),
            down: Cell::new(0),
            requests: Cell::new(0),
            limit_reached: Cell::new(false),
        })
    }
}

/// Counts the bytes of one connection or request against the limits of the run, and adds them to the statistics on
/// drop.
pub(super) struct ByteCounter {
    state: Rc<ProxyState>,
    host: String,
    port: u16,
    peer: Peer,
    up: Cell<u64>,
    down: Cell<u64>,
    requests: Cell<u64>,
    limit_reached: Cell<bool>,
}

impl ByteCounter {
    /// Counts bytes that are about to be sent. If the run's total would exceed the upload limit, counts nothing,
    /// records a refusal the first time, and returns `false`.
    pub(super) fn count_sent(&self, count: usize) -> bool {
        self.add(count, &self.up, &self.state.up, self.state.bounds.upload, "sent")
    }

    /// Counts received bytes. If the run's total would exceed the download limit, counts nothing, records a refusal the
    /// first time, and returns `false`.
    pub(super) fn count_received(&self, count: usize) -> bool {
        self.add(count, &self.down, &self.state.down, self.state.bounds.download, "received")
    }

    /// Subtracts bytes that were counted as sent but were not sent after all.
    pub(super) fn uncount_sent(&self, count: usize) {
        self.up.set(self.up.get().saturating_sub(count as u64));
        self.state.up.set(self.state.up.get().saturating_sub(count as u64));
    }

    pub(super) fn count_request(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    /// Returns the bytes of this connection or request so far: (sent, received).
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.up.get(), self.down.get())
    }

    /// Returns the refusal to report if a traffic limit was reached on this connection; `None` otherwise.
    pub(super) fn limit_refusal(&self) -> Option<NetworkRefusal> {
        let reason = "The run has reached the upload or download limit of its policy.";
        self.limit_reached.get().then(|| NetworkRefusal::new("network.limit", reason, ""))
    }

    fn add(
        &self,
        count: usize,
        own: &Cell<u64>,
        all: &Cell<u64>,
        limit: Option<u64>,
        direction: &str,
    ) -> bool {
        let count = count as u64;
        let total = all.get() + count;
        if let Some(limit) = limit.filter(|limit| total > *limit) {
            if !self.limit_reached.replace(true) {
                let reason =
                    format!("The run has reached the policy's limit of {} MiB {direction}.", limit >> 20);
                let what = format!("{}:{}", self.host, self.port);
                self.state.refused(self.peer, &self.host, self.port, &what, "network.limit", &reason);
            }
            return false;
        }
        own.set(own.get() + count);
        all.set(total);
        self.state.activity.fetch_add(1, Ordering::Relaxed);
        if let Some(speed) = self.state.bounds.bytes_per_second {
            let now = Instant::now();
            let from = self.state.due.get().map_or(now, |due| due.max(now));
            self.state.due.set(Some(from + Duration::from_secs_f64(count as f64 / speed as f64)));
        }
        true
    }

    /// Waits until the rate limit allows further bytes.
    pub(super) async fn pace(&self) {
        // Sleep only if the transfer is well ahead of the rate limit, because many short sleeps would cost CPU
        // time.
        let ahead = Duration::from_millis(5);
        if let Some(due) = self.state.due.get().filter(|due| *due > Instant::now() + ahead) {
            tokio::time::sleep_until(due.into()).await;
        }
    }
}

impl Drop for ByteCounter {
    fn drop(&mut self) {
        let (up, down, requests) = (self.up.get(), self.down.get(), self.requests.get());
        self.state.host_stats.update(&self.host, self.port, |row| {
            row.bytes_up += up;
            row.bytes_down += down;
            row.requests += requests;
        });
    }
}

/// Counts one connection against the connection limit until the permit is dropped.
struct ConnectionPermit(Rc<ProxyState>);

impl ConnectionPermit {
    fn take(state: &Rc<ProxyState>) -> Option<Self> {
        let most = state.bounds.connections.unwrap_or(DEFAULT_MAX_CONNECTIONS);
        if state.open.get() >= most {
            return None;
        }
        state.open.set(state.open.get() + 1);
        Some(Self(state.clone()))
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
    }
}

async fn serve(config: ProxyConfig, ended: oneshot::Receiver<()>) -> Rc<ProxyState> {
    let ProxyConfig { listeners, peer_registry, rules, proxy, bounds, budget, recorder, activity, exhausted } =
        config;
    let port = |bound: &BoundListener| bound.listener.local_addr().map(|address| address.port()).unwrap_or(0);
    let state = Rc::new(ProxyState {
        dialer: Dialer { rules, proxy, listener_ports: listeners.iter().map(port).collect() },
        host_stats: HostStats::default(),
        budget,
        recorder,
        memory: MemoryBudget::default(),
        peer_registry,
        bounds,
        activity,
        exhausted,
        open: Cell::new(0),
        up: Cell::new(0),
        down: Cell::new(0),
        refusals: Cell::new(0),
        unknown_peers: Cell::new(0),
        last_lookup: RefCell::default(),
        due: Cell::new(None),
    });
    let wants_tls =
        |bound: &BoundListener| matches!(&bound.kind, ListenerKind::Gateway(plan) if plan.upstream.is_tls);
    let tls_config = match listeners.iter().any(wants_tls).then(load_tls_config) {
        Some(Ok(tls_config)) => Some(tls_config),
        Some(Err(error)) => {
            state.recorder.record(EventType::GatewayError, &error.to_string(), &json!({}));
            None
        }
        None => None,
    };
    for BoundListener { kind, listener } in listeners {
        let backend = match kind {
            ListenerKind::Proxy => Backend::Proxy,
            ListenerKind::Gateway(plan) => {
                Backend::Gateway(Rc::new(RunningGateway::new(*plan, tls_config.clone())))
            }
        };
        let listener = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
        match listener {
            Ok(listener) => {
                tokio::task::spawn_local(accept_connections(listener, backend, state.clone()));
            }
            Err(error) => state.recorder.record(EventType::GatewayError, &error.to_string(), &json!({})),
        }
    }
    // A dropped sender also means that the run is over.
    let _ = ended.await;
    state
}

#[derive(Clone)]
enum Backend {
    Proxy,
    Gateway(Rc<RunningGateway>),
}

async fn accept_connections(listener: TcpListener, backend: Backend, state: Rc<ProxyState>) {
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // guard may have no descriptors left: wait, because a connection may close.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let Some((peer, purpose)) = state.peer_registry.take_announced(from) else {
            state.unknown_peers.set(state.unknown_peers.get() + 1);
            if state.unknown_peers.get() <= 10 {
                let data = json!({ "from": from.to_string() });
                state.recorder.record(
                    EventType::NetworkOutsider,
                    "guard refused a connection from a process outside the run to the run's proxy or gateway",
                    &data,
                );
            }
            continue;
        };
        let _ = stream.set_nodelay(true);
        let Some(permit) = ConnectionPermit::take(&state) else {
            state.refused(
                peer,
                "(any)",
                0,
                "open another connection",
                "network.limit",
                "The run has reached its limit of simultaneous connections.",
            );
            tokio::task::spawn_local(async move {
                tunnel::send_briefly(&stream, b"HTTP/1.1 503 guard: too many connections at once\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
            });
            continue;
        };
        let (backend, state) = (backend.clone(), state.clone());
        tokio::task::spawn_local(async move {
            let permit = Rc::new(permit);
            match (&backend, purpose) {
                (Backend::Proxy, Purpose::Lookup) => dns::serve(stream, state, peer).await,
                (Backend::Proxy, Purpose::Direct(host, port)) => {
                    proxy::direct(stream, state, peer, permit, host, port).await;
                }
                (Backend::Proxy | Backend::Gateway(_), _) => {
                    serve_connection(stream, backend, state, peer, permit).await;
                }
            }
        });
    }
}

/// A shared [`ConnectionPermit`]. A tunnel keeps a clone, because it outlives the request that opened it.
pub(super) type SharedPermit = Rc<dyn std::any::Any>;

async fn serve_connection(
    stream: TcpStream,
    backend: Backend,
    state: Rc<ProxyState>,
    peer: Peer,
    permit: Rc<ConnectionPermit>,
) {
    if let Backend::Proxy = backend {
        let mut first = [0u8; 1];
        match tokio::time::timeout(HEADER_TIMEOUT, stream.peek(&mut first)).await {
            Ok(Ok(1..)) if first[0] == 5 => return proxy::socks(stream, state, peer).await,
            Ok(Ok(1..)) => {}
            _ => return,
        }
    }
    match backend {
        Backend::Proxy => serve_session(stream, proxy::Session::new(state, peer, permit)).await,
        Backend::Gateway(gateway) => {
            let answer = |request| {
                let (gateway, state) = (gateway.clone(), state.clone());
                async move { gateway.answer(state, peer, request).await }
            };
            serve_http(stream, answer).await;
        }
    }
}

/// Serves the HTTP requests of one connection to the proxy.
pub(super) async fn serve_session(stream: TcpStream, session: proxy::Session) {
    let session = Rc::new(session);
    serve_http(stream, |request| session.clone().answer(request)).await;
}

async fn serve_http<A>(stream: TcpStream, answer: impl Fn(Request<Incoming>) -> A)
where
    A: Future<Output = Response<ProxiedBody>> + 'static,
{
    let service = service_fn(|request| {
        let answered = answer(request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(LARGEST_HEADERS)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
}
