//! The loopback ports a run may connect to, and the check that a connection comes from the run.
//!
//! Every process on the machine can connect to a loopback port, even processes of other users, and a gateway adds a key
//! to requests. So a listener serves only connections that the supervisor has announced. The supervisor makes the
//! connections on behalf of the run, so it knows their local addresses.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::refusal_notices::RefusalNotices;
use super::synthetic_addresses::SyntheticAddresses;
use crate::judge::policy::{Host, unmap_ipv4};

/// Maximum number of connections that the supervisor has announced and no listener has accepted. When it is
/// reached, the registry forgets all of them.
const MOST_ANNOUNCED: usize = 4096;
/// Limit on the pairs of a host and a port in the statistics of refusals. Refusals of further pairs are not counted.
const MOST_REFUSED: usize = 1000;

/// The thread of the run that opened a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The id of the thread, as the kernel reported it to the supervisor.
    pub tid: i32,
    /// A pidfd of the thread or its process, through which guard finds the thread's standard error.
    pub thread: Option<Arc<OwnedFd>>,
}

/// What the process that opened a connection wanted to reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// The proxy or a gateway: the process connected to that listener itself.
    Listener,
    /// A DNS server of the machine; the supervisor redirected the connection to guard's DNS server.
    Lookup,
    /// This host and port. The program does not use the proxy, so the supervisor redirected its connection to the
    /// proxy.
    Direct(Host, u16),
}

/// The listeners of a run, and the connections that the supervisor has announced to them.
#[derive(Debug, Default)]
pub struct PeerRegistry {
    /// The ports of the listeners; the first is the proxy's.
    ports: Vec<u16>,
    /// The connections that no listener has accepted yet, by their local addresses.
    announced: Mutex<HashMap<SocketAddr, (Peer, Purpose)>>,
    /// The names that the run has looked up, and the synthetic address (one that stands for a host name) that guard's
    /// DNS server returned for each.
    names: Mutex<SyntheticAddresses>,
    /// How many connections the supervisor refused, by host and port.
    refused: Mutex<HashMap<(String, u16), u64>>,
    notices: RefusalNotices,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PeerRegistry {
    /// Creates a registry for listeners on these ports of 127.0.0.1; the first is the proxy's.
    pub fn new(ports: Vec<u16>) -> Self {
        Self { ports, ..Self::default() }
    }

    pub fn notices(&self) -> &RefusalNotices {
        &self.notices
    }

    /// Returns the address of the proxy's listener. The port is 0 if the registry has no listeners.
    pub fn proxy(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports.first().copied().unwrap_or_default()))
    }

    /// Returns the synthetic address (one that stands for a host name) that guard's DNS server gives for a name;
    /// `None` if the name is new and the run has reached its limit of names.
    pub(super) fn address_of(&self, name: &str) -> Option<Ipv4Addr> {
        lock(&self.names).address_of(name)
    }

    /// Returns the host that an address refers to: the name for which guard's DNS server returned this
    /// synthetic address, or else the address itself.
    pub fn host_at(&self, address: IpAddr) -> Host {
        let address = unmap_ipv4(address);
        match lock(&self.names).name_at(address) {
            Some(name) => Host::Name(name.to_string()),
            None => Host::Address(address),
        }
    }

    /// Counts a connection to this host and port that the supervisor refused. Ignores new pairs of a host and a port if
    /// `MOST_REFUSED` are already counted.
    pub fn count_refused(&self, host: &str, port: u16) {
        let mut refused = lock(&self.refused);
        if refused.len() < MOST_REFUSED || refused.contains_key(&(host.to_string(), port)) {
            *refused.entry((host.to_string(), port)).or_default() += 1;
        }
    }

    /// Returns the connections that the supervisor refused: (host, port, count).
    pub fn refused(&self) -> Vec<(String, u16, u64)> {
        let refused = lock(&self.refused);
        refused.iter().map(|((host, port), count)| (host.clone(), *port, *count)).collect()
    }

    pub fn is_listener(&self, to: SocketAddr) -> bool {
        unmap_ipv4(to.ip()) == IpAddr::from([127, 0, 0, 1]) && self.ports.contains(&to.port())
    }

    /// Calls `connect`, which opens a connection on behalf of the run and returns its local address, and announces the
    /// connection. Holds the registry's lock during the call, so that the listener cannot look up the connection before
    /// it is announced.
    pub fn announce<T>(
        &self,
        peer: Peer,
        purpose: Purpose,
        connect: impl FnOnce() -> (T, Option<SocketAddr>),
    ) -> T {
        let mut announced = lock(&self.announced);
        let (result, from) = connect();
        if let Some(from) = from {
            if announced.len() >= MOST_ANNOUNCED {
                announced.clear();
            }
            announced.insert(SocketAddr::new(unmap_ipv4(from.ip()), from.port()), (peer, purpose));
        }
        result
    }

    /// Removes and returns the announcement of a connection that a listener accepted from the address `from`. `None` if
    /// the connection does not come from the run, or the registry has forgotten its announcement.
    pub(super) fn take_announced(&self, from: SocketAddr) -> Option<(Peer, Purpose)> {
        lock(&self.announced).remove(&SocketAddr::new(unmap_ipv4(from.ip()), from.port()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_announced_come_in_and_once() {
        let peer_registry = PeerRegistry::new(vec![4000]);
        let address = |text: &str| text.parse().unwrap_or_else(|_| panic!("{text}"));
        assert!(
            peer_registry.is_listener(address("127.0.0.1:4000"))
                && peer_registry.is_listener(address("[::ffff:127.0.0.1]:4000"))
        );
        for other in ["127.0.0.1:4001", "127.0.0.2:4000", "[::1]:4000", "0.0.0.0:4000", "10.0.0.1:4000"] {
            assert!(!peer_registry.is_listener(address(other)), "{other}");
        }
        let from = address("127.0.0.1:5000");
        let take = || peer_registry.take_announced(from).map(|(peer, purpose)| (peer.tid, purpose));
        assert_eq!(take(), None);
        peer_registry.announce(Peer { tid: 7, thread: None }, Purpose::Lookup, || ((), Some(from)));
        assert_eq!(take(), Some((7, Purpose::Lookup)));
        assert_eq!(take(), None);
    }

    #[test]
    fn refused_hosts_are_counted_up_to_a_bound() {
        let peer_registry = PeerRegistry::new(vec![4000]);
        for number in 0..2 * MOST_REFUSED {
            peer_registry.count_refused(&format!("{number}.example"), 80);
        }
        peer_registry.count_refused("0.example", 80);
        let refused = peer_registry.refused();
        assert_eq!(refused.len(), MOST_REFUSED);
        assert!(refused.contains(&("0.example".to_string(), 80, 2)));
    }
}
