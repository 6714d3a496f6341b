//! The loopback ports a run may connect to, and the check of who connects.
//!
//! Every process on the machine can connect to a loopback port, other users' included, and a gateway adds a key to
//! requests. So a listener accepts only connections that the supervisor has announced: it makes the run's connections
//! itself and knows their local address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::synthetic_addresses::Names;
use crate::policy::{Host, plain};

/// Limit on announced connections that were never accepted. At the limit all of them are forgotten.
const MOST_ANNOUNCED: usize = 4096;
/// How many refused hosts are counted individually.
const MOST_REFUSED: usize = 1000;

/// The client of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The thread of the run that connected.
    pub tid: i32,
}

/// What the client of a connection meant to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// The proxy or a gateway, by its port.
    Listener,
    /// A DNS server.
    Lookup,
    /// This host and port: the program does not use the proxy.
    Direct(Host, u16),
}

/// The listeners of a run and the connections announced for them.
#[derive(Debug, Default)]
pub struct PeerRegistry {
    /// The listening ports, the proxy's first.
    ports: Vec<u16>,
    announced: Mutex<HashMap<SocketAddr, (Peer, Purpose)>>,
    /// Names that were looked up, with their synthetic addresses.
    names: Mutex<Names>,
    /// Hosts that the supervisor refused to connect to, with counts.
    refused: Mutex<HashMap<(String, u16), u64>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PeerRegistry {
    /// Creates a registry for these ports of 127.0.0.1; the first is the proxy's.
    pub fn new(ports: Vec<u16>) -> Self {
        Self { ports, ..Self::default() }
    }

    /// The proxy's address.
    pub fn proxy(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports.first().copied().unwrap_or_default()))
    }

    /// The synthetic address of a name; `None` if the run has looked up too many names.
    pub(super) fn address_of(&self, name: &str) -> Option<Ipv4Addr> {
        locked(&self.names).address_of(name)
    }

    /// The host an address stands for: a name if the address is synthetic, otherwise the address itself.
    pub fn host_at(&self, address: IpAddr) -> Host {
        let address = plain(address);
        match locked(&self.names).name_at(address) {
            Some(name) => Host::Name(name.to_string()),
            None => Host::Address(address),
        }
    }

    /// Counts a connection that the supervisor refused.
    pub fn count_refused(&self, host: &str, port: u16) {
        let mut refused = locked(&self.refused);
        if refused.len() < MOST_REFUSED || refused.contains_key(&(host.to_string(), port)) {
            *refused.entry((host.to_string(), port)).or_default() += 1;
        }
    }

    /// The refused connections: (host, port, count).
    pub fn refused(&self) -> Vec<(String, u16, u64)> {
        let refused = locked(&self.refused);
        refused.iter().map(|((host, port), count)| (host.clone(), *port, *count)).collect()
    }

    /// Whether an address is one of the listeners.
    pub fn lead_to(&self, to: SocketAddr) -> bool {
        plain(to.ip()) == IpAddr::from([127, 0, 0, 1]) && self.ports.contains(&to.port())
    }

    /// Connects for the run and announces the connection. `connect` returns its local address. The lock is held
    /// meanwhile, so that the connection cannot be accepted before it is announced.
    pub fn announce<T>(
        &self,
        visitor: Peer,
        purpose: Purpose,
        connect: impl FnOnce() -> (T, Option<SocketAddr>),
    ) -> T {
        let mut announced = locked(&self.announced);
        let (result, from) = connect();
        if let Some(from) = from {
            if announced.len() >= MOST_ANNOUNCED {
                announced.clear();
            }
            announced.insert(SocketAddr::new(plain(from.ip()), from.port()), (visitor, purpose));
        }
        result
    }

    /// Takes the announcement of an accepted connection: its client and purpose. `None` if it is not from the run.
    pub(super) fn let_in(&self, from: SocketAddr) -> Option<(Peer, Purpose)> {
        locked(&self.announced).remove(&SocketAddr::new(plain(from.ip()), from.port()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_announced_come_in_and_once() {
        let doors = PeerRegistry::new(vec![4000]);
        let address = |text: &str| text.parse().unwrap_or_else(|_| panic!("{text}"));
        assert!(
            doors.lead_to(address("127.0.0.1:4000")) && doors.lead_to(address("[::ffff:127.0.0.1]:4000"))
        );
        for other in ["127.0.0.1:4001", "127.0.0.2:4000", "[::1]:4000", "0.0.0.0:4000", "10.0.0.1:4000"] {
            assert!(!doors.lead_to(address(other)), "{other}");
        }
        let from = address("127.0.0.1:5000");
        assert_eq!(doors.let_in(from), None);
        doors.announce(Peer { tid: 7 }, Purpose::Lookup, || ((), Some(from)));
        assert_eq!(doors.let_in(from), Some((Peer { tid: 7 }, Purpose::Lookup)));
        assert_eq!(doors.let_in(from), None);
    }

    #[test]
    fn refused_hosts_are_counted_up_to_a_bound() {
        let doors = PeerRegistry::new(vec![4000]);
        for number in 0..2 * MOST_REFUSED {
            doors.count_refused(&format!("{number}.example"), 80);
        }
        doors.count_refused("0.example", 80);
        let refused = doors.refused();
        assert_eq!(refused.len(), MOST_REFUSED);
        assert!(refused.contains(&("0.example".to_string(), 80, 2)));
    }
}
