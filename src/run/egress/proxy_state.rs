//! What all connections of a run share: limits, statistics, and the counters of open connections and forwarded bytes.

use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::budget::{Budget, Spent};
use super::dial::Dialer;
use super::host_stats::HostStats;
use super::listeners::{Peer, PeerRegistry};
use super::memory_budget::MemoryBudget;
use crate::judge::decide::NetworkRefusal;
use crate::run::outcome::HostTraffic;
use crate::run::transcript::{EventType, Recorder};
use crate::sys::process_stderr::MAX_DELAY;

const DEFAULT_MAX_CONNECTIONS: usize = 512;

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

/// Network statistics of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    pub rows: Vec<HostTraffic>,
    /// Model usage: requests, tokens and cost.
    pub spent: Spent,
    pub refusals: u64,
}

/// State shared by all connections of a run.
pub(super) struct ProxyState {
    pub(super) dialer: Dialer,
    pub(super) host_stats: HostStats,
    pub(super) budget: Budget,
    pub(super) recorder: Recorder,
    pub(super) memory: MemoryBudget,
    pub(super) peer_registry: Arc<PeerRegistry>,
    bounds: Bounds,
    activity: Arc<AtomicU64>,
    exhausted: Arc<AtomicBool>,
    open: Cell<usize>,
    up: Cell<u64>,
    down: Cell<u64>,
    refusals: Cell<u64>,
    /// How many connections came from processes outside the run.
    pub(super) unknown_peers: Cell<u64>,
    /// The last refused DNS lookup: the id of the thread that made it, and the name.
    last_lookup: RefCell<Option<(i32, String)>>,
    /// The earliest time at which the bytes forwarded so far comply with the rate limit.
    due: Cell<Option<Instant>>,
}

impl ProxyState {
    pub(super) fn new(
        dialer: Dialer,
        peer_registry: Arc<PeerRegistry>,
        bounds: Bounds,
        budget: Budget,
        recorder: Recorder,
        activity: Arc<AtomicU64>,
        exhausted: Arc<AtomicBool>,
    ) -> Self {
        Self {
            dialer,
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
        }
    }

    /// Counts a refusal and records it as an event.
    pub(super) fn refused(&self, peer: &Peer, host: &str, port: u16, what: &str, refusal: &NetworkRefusal) {
        self.refusals.set(self.refusals.get() + 1);
        self.host_stats.update(host, port, |row| row.refused += 1);
        let message = format!("{what}: {}", refusal.reason);
        let data = refusal.event_data(peer.tid, what, host, port);
        self.recorder.record(EventType::DenyNetwork, &message, &data);
    }

    /// Writes a line about a refusal to the standard error of the process that made the request, unless guard has told
    /// this process about the host already. Call this before the reply to the process: the line then precedes the
    /// message that the process itself prints. Waits at most [`MAX_DELAY`].
    pub(super) async fn explain(&self, peer: &Peer, host: &str, line: &str) {
        let Some(thread) = &peer.thread else { return };
        let Some(stderr) = self.peer_registry.notices().stderr_for(peer.tid, thread.as_fd(), host) else {
            return;
        };
        let (done, written) = tokio::sync::oneshot::channel();
        stderr.write_later(line, move || {
            let _ = done.send(());
        });
        let _ = tokio::time::timeout(MAX_DELAY, written).await;
    }

    /// Stores this refused lookup as the last one. Returns true if it differs from the previous one in name or peer, so
    /// that a repeated lookup is recorded only once.
    pub(super) fn is_new_refused_lookup(&self, peer: &Peer, name: &str) -> bool {
        let now = (peer.tid, name.to_string());
        let before = self.last_lookup.replace(Some(now));
        before.is_none_or(|(last_tid, last_name)| last_tid != peer.tid || last_name != name)
    }

    /// Returns the synthetic address (one that stands for a host name) that guard's DNS server gives for a name;
    /// `None` if the name is new and the run has reached its limit of names.
    pub(super) fn address_of(&self, name: &str) -> Option<std::net::Ipv4Addr> {
        self.peer_registry.address_of(name)
    }

    pub(super) fn traffic(&self) -> Traffic {
        Traffic { rows: self.host_stats.rows(), spent: self.budget.spent(), refusals: self.refusals.get() }
    }

    /// Makes guard end the run, because a gateway has refused a request because of a model budget.
    pub(super) fn exhaust(&self) {
        self.exhausted.store(true, Ordering::Release);
    }

    pub(super) fn new_byte_counter(self: &Rc<Self>, host: &str, port: u16, peer: &Peer) -> Rc<ByteCounter> {
        Rc::new(ByteCounter {
            state: self.clone(),
            host: host.to_string(),
            port,
            peer: peer.clone(),
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
                let refusal = NetworkRefusal::new("network.limit", reason, "");
                self.state.refused(&self.peer, &self.host, self.port, &what, &refusal);
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
pub(super) struct ConnectionPermit(Rc<ProxyState>);

impl ConnectionPermit {
    pub(super) fn take(state: &Rc<ProxyState>) -> Option<Self> {
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

/// A shared [`ConnectionPermit`]. A tunnel keeps a clone, because it outlives the request that opened it.
pub(super) type SharedPermit = Rc<dyn std::any::Any>;
