//! The network thread: accepts connections on the listeners, identifies the client, and dispatches to the proxy, the
//! DNS server or a gateway.
//!
//! It serves all connections of one run on a single-threaded runtime. It must never serve a client that the
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
use super::dial::{CompanyProxy, Dialer};
use super::gateway::{GatewayPlan, Service};
use super::host_stats::HostStats;
use super::listeners::{Peer, PeerRegistry, Purpose};
use super::memory_budget::Memory;
use super::response_body::Carried;
use super::upstream::trust;
use super::{dns, proxy, tunnel};
use crate::decide::{NetworkRefusal, NetworkRules};
use crate::outcome::HostTraffic;
use crate::transcript::{EventType, Recorder};

/// Default limit on simultaneous connections.
const USUAL_CONNECTIONS: usize = 512;
/// Descriptor limit that is enough for any policy.
const ENOUGH_DESCRIPTORS: u64 = 1 << 18;
/// Time limit for receiving request headers.
const HEADERS: Duration = Duration::from_secs(30);
/// Size limit of request headers, and of a connection's buffer.
pub(super) const LARGEST_HEADERS: usize = 64 << 10;

/// Network limits of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Simultaneous connections.
    pub connections: Option<usize>,
    /// Total bytes sent.
    pub upload: Option<u64>,
    /// Total bytes received.
    pub download: Option<u64>,
    /// Transfer rate of both directions together.
    pub bytes_per_second: Option<u64>,
}

/// What a listener serves.
pub enum Door {
    /// The proxy, for every host that the rules allow.
    Proxy,
    /// The gateway to one API.
    Gateway(Box<GatewayPlan>),
}

/// A listening socket with what it serves.
pub struct OpenedListeners {
    /// What the socket serves.
    pub door: Door,
    /// The listening socket.
    pub listener: StdListener,
}

/// Inputs of the network thread.
pub struct ProxyConfig {
    /// The listeners, the proxy first.
    pub opened: Vec<OpenedListeners>,
    /// The connections that the supervisor has announced.
    pub doors: Arc<PeerRegistry>,
    /// The hosts that the run may reach.
    pub rules: Arc<NetworkRules>,
    /// The upstream proxy of this machine.
    pub proxy: CompanyProxy,
    /// Network limits.
    pub bounds: Bounds,
    /// Model usage limits.
    pub budget: Budget,
    /// Receives an event for every request and refusal.
    pub recorder: Recorder,
    /// Incremented with all traffic, so that a busy run does not count as idle.
    pub activity: Arc<AtomicU64>,
    /// Set when a request was refused because a budget is used up. The run is then ended.
    pub exhausted: Arc<AtomicBool>,
}

impl ProxyConfig {
    /// The proxy's listening socket.
    ///
    /// # Panics
    ///
    /// Panics if there are no listeners; every run has a proxy.
    pub fn proxy_listener(&self) -> BorrowedFd<'_> {
        self.opened[0].listener.as_fd()
    }
}

/// What a run transferred.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Traffic per host.
    pub rows: Vec<HostTraffic>,
    /// Model usage.
    pub spent: Spent,
    /// How many refusals were recorded.
    pub refusals: u64,
}

/// The running network thread.
pub struct Handle {
    thread: JoinHandle<Traffic>,
    end: oneshot::Sender<()>,
}

impl Handle {
    /// Stops the thread and closes every connection. Call it when no process of the run is left.
    pub fn finish(self) -> Traffic {
        let _ = self.end.send(());
        self.thread.join().unwrap_or_default()
    }
}

/// Starts the network thread.
pub fn start(setting: ProxyConfig) -> io::Result<Handle> {
    let (end, ended) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(16)
        .thread_name("lookup")
        .build()?;
    make_room();
    let work = move || {
        // The thread needs no capabilities, even if root started guard.
        let _ = crate::sys::process::drop_effective_capabilities();
        let connections = LocalSet::new();
        let task_store = connections.block_on(&runtime, serve(setting, ended));
        // Dropping the open connections counts and records them, so the totals are read afterwards.
        drop(connections);
        let traffic = task_store.traffic();
        // Do not wait for DNS lookups that are still running.
        runtime.shutdown_background();
        traffic
    };
    let thread = std::thread::Builder::new().name("network".to_string()).spawn(work)?;
    Ok(Handle { thread, end })
}

/// Raises the descriptor limit. A connection takes two descriptors and the usual limit is 1024, so the supervisor,
/// which needs some for every reply, could run out. The run has already started and keeps its limit.
fn make_room() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let _ = setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(ENOUGH_DESCRIPTORS)), hard);
}

/// State shared by all connections of a run.
pub(super) struct ProxyState {
    pub(super) dialer: Dialer,
    pub(super) ledger: HostStats,
    pub(super) budget: Budget,
    pub(super) recorder: Recorder,
    pub(super) memory: Memory,
    doors: Arc<PeerRegistry>,
    bounds: Bounds,
    activity: Arc<AtomicU64>,
    exhausted: Arc<AtomicBool>,
    open: Cell<usize>,
    up: Cell<u64>,
    down: Cell<u64>,
    refusals: Cell<u64>,
    outsiders: Cell<u64>,
    /// The last refused DNS lookup.
    last_lookup: RefCell<Option<(Peer, String)>>,
    /// When the bytes carried so far are due, according to the rate limit.
    due: Cell<Option<Instant>>,
}

impl ProxyState {
    /// Records a refusal.
    pub(super) fn refused(&self, visitor: Peer, host: &str, port: u16, what: &str, rule: &str, reason: &str) {
        self.refusals.set(self.refusals.get() + 1);
        self.ledger.note(host, port, |row| row.refused += 1);
        let data = json!({ "pid": visitor.tid, "what": what, "host": host, "port": port, "rule": rule, "reason": reason });
        self.recorder.record(EventType::DenyNetwork, &format!("{what}: {reason}"), &data);
    }

    /// Whether this refused lookup differs from the previous one in name or program.
    pub(super) fn is_another_lookup(&self, visitor: Peer, name: &str) -> bool {
        let now = (visitor, name.to_string());
        let before = self.last_lookup.replace(Some(now));
        before.is_none_or(|(who, what)| who != visitor || what != name)
    }

    /// The synthetic address of a name.
    pub(super) fn address_of(&self, name: &str) -> Option<std::net::Ipv4Addr> {
        self.doors.address_of(name)
    }

    fn traffic(&self) -> Traffic {
        Traffic { rows: self.ledger.rows(), spent: self.budget.spent(), refusals: self.refusals.get() }
    }

    /// Requests the end of the run, because a budget is used up.
    pub(super) fn exhaust(&self) {
        self.exhausted.store(true, Ordering::Release);
    }

    pub(super) fn meter(self: &Rc<Self>, host: &str, port: u16, visitor: Peer) -> Rc<ByteCounter> {
        Rc::new(ByteCounter {
            task_store: self.clone(),
            host: host.to_string(),
            port,
            visitor,
            up: Cell::new(0),
            down: Cell::new(0),
            requests: Cell::new(0),
            is_cut: Cell::new(false),
        })
    }
}

/// Counts the bytes of one connection.
pub(super) struct ByteCounter {
    task_store: Rc<ProxyState>,
    host: String,
    port: u16,
    visitor: Peer,
    up: Cell<u64>,
    down: Cell<u64>,
    requests: Cell<u64>,
    is_cut: Cell<bool>,
}

impl ByteCounter {
    /// Counts bytes to be sent; `false` if that exceeds the limit.
    pub(super) fn up(&self, count: usize) -> bool {
        self.add(count, &self.up, &self.task_store.up, self.task_store.bounds.upload, "sent")
    }

    /// Counts received bytes; `false` if that exceeds the limit.
    pub(super) fn down(&self, count: usize) -> bool {
        self.add(count, &self.down, &self.task_store.down, self.task_store.bounds.download, "received")
    }

    /// Takes back bytes that were not sent after all.
    pub(super) fn unsent(&self, count: usize) {
        self.up.set(self.up.get().saturating_sub(count as u64));
        self.task_store.up.set(self.task_store.up.get().saturating_sub(count as u64));
    }

    pub(super) fn request(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    /// Bytes sent and received so far.
    pub(super) fn moved(&self) -> (u64, u64) {
        (self.up.get(), self.down.get())
    }

    /// The refusal, if a limit of the policy is reached.
    pub(super) fn cut(&self) -> Option<NetworkRefusal> {
        let reason = "A bound of the policy on what is sent or received is reached.";
        self.is_cut.get().then(|| NetworkRefusal::new("network.limit", reason, ""))
    }

    fn add(&self, count: usize, own: &Cell<u64>, all: &Cell<u64>, limit: Option<u64>, word: &str) -> bool {
        let count = count as u64;
        let total = all.get() + count;
        if let Some(limit) = limit.filter(|limit| total > *limit) {
            if !self.is_cut.replace(true) {
                let reason = format!("The policy's bound of {} MiB {word} is reached.", limit >> 20);
                let what = format!("{}:{}", self.host, self.port);
                self.task_store.refused(self.visitor, &self.host, self.port, &what, "network.limit", &reason);
            }
            return false;
        }
        own.set(own.get() + count);
        all.set(total);
        self.task_store.activity.fetch_add(1, Ordering::Relaxed);
        if let Some(speed) = self.task_store.bounds.bytes_per_second {
            let now = Instant::now();
            let from = self.task_store.due.get().map_or(now, |due| due.max(now));
            self.task_store.due.set(Some(from + Duration::from_secs_f64(count as f64 / speed as f64)));
        }
        true
    }

    /// Waits as long as the rate limit requires.
    pub(super) async fn pace(&self) {
        // Sleep only if more than a little ahead.
        let ahead = Duration::from_millis(5);
        if let Some(due) = self.task_store.due.get().filter(|due| *due > Instant::now() + ahead) {
            tokio::time::sleep_until(due.into()).await;
        }
    }
}

impl Drop for ByteCounter {
    fn drop(&mut self) {
        let (up, down, requests) = (self.up.get(), self.down.get(), self.requests.get());
        self.task_store.ledger.note(&self.host, self.port, |row| {
            row.bytes_up += up;
            row.bytes_down += down;
            row.requests += requests;
        });
    }
}

/// A slot of the connection limit, released on drop.
struct ConnectionPermit(Rc<ProxyState>);

impl ConnectionPermit {
    fn take(task_store: &Rc<ProxyState>) -> Option<Self> {
        let most = task_store.bounds.connections.unwrap_or(USUAL_CONNECTIONS);
        if task_store.open.get() >= most {
            return None;
        }
        task_store.open.set(task_store.open.get() + 1);
        Some(Self(task_store.clone()))
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
    }
}

async fn serve(setting: ProxyConfig, ended: oneshot::Receiver<()>) -> Rc<ProxyState> {
    let ProxyConfig { opened, doors, rules, proxy, bounds, budget, recorder, activity, exhausted } = setting;
    let port =
        |opened: &OpenedListeners| opened.listener.local_addr().map(|address| address.port()).unwrap_or(0);
    let task_store = Rc::new(ProxyState {
        dialer: Dialer { rules, proxy, own_ports: opened.iter().map(port).collect() },
        ledger: HostStats::default(),
        budget,
        recorder,
        memory: Memory::default(),
        doors,
        bounds,
        activity,
        exhausted,
        open: Cell::new(0),
        up: Cell::new(0),
        down: Cell::new(0),
        refusals: Cell::new(0),
        outsiders: Cell::new(0),
        last_lookup: RefCell::default(),
        due: Cell::new(None),
    });
    let wants_tls =
        |opened: &OpenedListeners| matches!(&opened.door, Door::Gateway(plan) if plan.upstream.is_tls);
    let trusted = match opened.iter().any(wants_tls).then(trust) {
        Some(Ok(trusted)) => Some(trusted),
        Some(Err(error)) => {
            task_store.recorder.record(EventType::GatewayError, &error.to_string(), &json!({}));
            None
        }
        None => None,
    };
    for OpenedListeners { door, listener } in opened {
        let behind = match door {
            Door::Proxy => Behind::Proxy,
            Door::Gateway(plan) => Behind::Gateway(Rc::new(Service::new(*plan, trusted.clone()))),
        };
        let listener = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
        match listener {
            Ok(listener) => {
                tokio::task::spawn_local(receive(listener, behind, task_store.clone()));
            }
            Err(error) => task_store.recorder.record(EventType::GatewayError, &error.to_string(), &json!({})),
        }
    }
    // A dropped sender also means that the run is over.
    let _ = ended.await;
    task_store
}

#[derive(Clone)]
enum Behind {
    Proxy,
    Gateway(Rc<Service>),
}

async fn receive(listener: TcpListener, behind: Behind, task_store: Rc<ProxyState>) {
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Out of descriptors: wait until a connection closes.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let Some((visitor, purpose)) = task_store.doors.let_in(from) else {
            task_store.outsiders.set(task_store.outsiders.get() + 1);
            if task_store.outsiders.get() <= 10 {
                let data = json!({ "from": from.to_string() });
                task_store.recorder.record(
                    EventType::NetworkOutsider,
                    "somebody who is not of the run was turned away",
                    &data,
                );
            }
            continue;
        };
        let _ = stream.set_nodelay(true);
        let Some(seat) = ConnectionPermit::take(&task_store) else {
            task_store.refused(
                visitor,
                "(any)",
                0,
                "one more connection",
                "network.limit",
                "Too many connections at once.",
            );
            tokio::task::spawn_local(async move {
                tunnel::say(&stream, b"HTTP/1.1 503 guard: too many connections at once\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
            });
            continue;
        };
        let (behind, task_store) = (behind.clone(), task_store.clone());
        tokio::task::spawn_local(async move {
            let seat = Rc::new(seat);
            match (&behind, purpose) {
                (Behind::Proxy, Purpose::Lookup) => dns::serve(stream, task_store, visitor).await,
                (Behind::Proxy, Purpose::Direct(host, port)) => {
                    proxy::direct(stream, task_store, visitor, seat, host, port).await;
                }
                (Behind::Proxy | Behind::Gateway(_), _) => {
                    handle(stream, behind, task_store, visitor, seat).await;
                }
            }
        });
    }
}

/// Keeps the connection slot occupied while a tunnel outlives its request.
pub(super) type Kept = Rc<dyn std::any::Any>;

async fn handle(
    stream: TcpStream,
    behind: Behind,
    task_store: Rc<ProxyState>,
    visitor: Peer,
    seat: Rc<ConnectionPermit>,
) {
    if let Behind::Proxy = behind {
        let mut first = [0u8; 1];
        match tokio::time::timeout(HEADERS, stream.peek(&mut first)).await {
            Ok(Ok(1..)) if first[0] == 5 => return proxy::socks(stream, task_store, visitor).await,
            Ok(Ok(1..)) => {}
            _ => return,
        }
    }
    match behind {
        Behind::Proxy => serve_session(stream, proxy::Session::new(task_store, visitor, seat)).await,
        Behind::Gateway(service) => {
            let answer = |request| {
                let (service, task_store) = (service.clone(), task_store.clone());
                async move { service.answer(task_store, visitor, request).await }
            };
            serve_http(stream, answer).await;
        }
    }
}

/// Serves HTTP requests with a proxy session.
pub(super) async fn serve_session(stream: TcpStream, session: proxy::Session) {
    let session = Rc::new(session);
    serve_http(stream, |request| session.clone().answer(request)).await;
}

async fn serve_http<A>(stream: TcpStream, answer: impl Fn(Request<Incoming>) -> A)
where
    A: Future<Output = Response<Carried>> + 'static,
{
    let service = service_fn(|request| {
        let answered = answer(request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(LARGEST_HEADERS)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
}
