//! The network thread: accepts connections on the listeners, identifies the peer, and passes each connection to the
//! proxy, the DNS server or a gateway.
//!
//! The thread serves all connections of one run on a single-threaded runtime. It must never serve a connection that the
//! supervisor has not announced ([`PeerRegistry`]).

use std::io;
use std::net::TcpListener as StdListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use super::budget::Budget;
use super::dial::{Dialer, UpstreamProxy};
use super::gateway::{GatewayPlan, RunningGateway};
use super::http_server::{HEADER_TIMEOUT, serve_http};
use super::listeners::{Peer, PeerRegistry, Purpose};
use super::proxy_state::{Bounds, ConnectionPermit, ProxyState, Traffic};
use super::upstream::load_tls_config;
use super::{dns, proxy, tunnel};
use crate::judge::decide::{NetworkRefusal, NetworkRules};
use crate::run::transcript::{EventType, Recorder};

/// The descriptor limit is raised to at most this value, which is enough for the connections of any policy.
const MAX_DESCRIPTORS: u64 = 1 << 18;

pub enum ListenerKind {
    /// The proxy, through which the run reaches every host that the rules allow.
    Proxy,
    Gateway(Box<GatewayPlan>),
}

/// A loopback listener that is bound but not served yet.
pub struct BoundListener {
    pub kind: ListenerKind,
    pub listener: StdListener,
}

/// Everything that the network thread needs to serve a run.
pub struct ProxyConfig {
    /// The listeners; the first is the proxy's.
    pub listeners: Vec<BoundListener>,
    /// The registry in which the supervisor announces the run's connections.
    pub peer_registry: Arc<PeerRegistry>,
    pub rules: Arc<NetworkRules>,
    /// The upstream proxy of this machine, if one is configured.
    pub proxy: UpstreamProxy,
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

async fn serve(config: ProxyConfig, ended: oneshot::Receiver<()>) -> Rc<ProxyState> {
    let ProxyConfig { listeners, peer_registry, rules, proxy, bounds, budget, recorder, activity, exhausted } =
        config;
    let port = |bound: &BoundListener| bound.listener.local_addr().map(|address| address.port()).unwrap_or(0);
    let dialer = Dialer { rules, proxy, listener_ports: listeners.iter().map(port).collect() };
    let state = ProxyState::new(dialer, peer_registry, bounds, budget, recorder, activity, exhausted);
    let state = Rc::new(state);
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
            let what = "open another connection";
            let reason = "The run has reached its limit of simultaneous connections.";
            let refusal = NetworkRefusal::new("network.limit", reason, "");
            state.refused(&peer, "(any)", 0, what, &refusal);
            let state = state.clone();
            tokio::task::spawn_local(async move {
                state.explain(&peer, "(any)", &refusal.line(what)).await;
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
        Backend::Proxy => proxy::serve_session(stream, proxy::Session::new(state, peer, permit)).await,
        Backend::Gateway(gateway) => {
            let answer = |request| {
                let (gateway, state, peer) = (gateway.clone(), state.clone(), peer.clone());
                async move { gateway.answer(state, peer, request).await }
            };
            serve_http(stream, answer).await;
        }
    }
}
