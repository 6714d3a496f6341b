//! The ports on loopback that a run may connect to, and who is let in.
//!
//! A port is open to everybody on the machine, other users included, and behind a gateway lies a key. So whoever comes in
//! must have been announced by the supervisor, which makes the run's connections and knows their other end.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::synthetic_addresses::Names;
use crate::policy::{Host, plain};

/// Connections that were announced and never came; then they are forgotten, the oldest ways first.
const MOST_ANNOUNCED: usize = 4096;
/// Refused hosts that are counted one by one; more are not.
const MOST_REFUSED: usize = 1000;

/// Who comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The thread that connected.
    pub tid: i32,
}

/// What the program at the other end of a connection believes to speak to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// The proxy or a gateway, whose port it asked for.
    Listener,
    /// A name server.
    Lookup,
    /// This host and port: the program knows no proxy.
    Direct(Host, u16),
}

/// The run's doors.
#[derive(Debug, Default)]
pub struct PeerRegistry {
    /// The proxy's comes first.
    ports: Vec<u16>,
    announced: Mutex<HashMap<SocketAddr, (Peer, Purpose)>>,
    /// Names that were looked up, with the addresses that stand for them.
    names: Mutex<Names>,
    /// What the supervisor refused to connect to, and how often.
    refused: Mutex<HashMap<(String, u16), u64>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PeerRegistry {
    /// Doors at these ports of 127.0.0.1; the first is the proxy's.
    pub fn new(ports: Vec<u16>) -> Self {
        Self { ports, ..Self::default() }
    }

    /// Where the proxy listens.
    pub fn proxy(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports.first().copied().unwrap_or_default()))
    }

    /// The address that stands for a name inside the run; `None` when the run has looked up too many.
    pub(super) fn address_of(&self, name: &str) -> Option<Ipv4Addr> {
        locked(&self.names).address_of(name)
    }

    /// What an address means that the run connects to: a name where the address stands for one.
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

    /// What was counted: (host, port, how often).
    pub fn refused(&self) -> Vec<(String, u16, u64)> {
        let refused = locked(&self.refused);
        refused.iter().map(|((host, port), count)| (host.clone(), *port, *count)).collect()
    }

    /// Whether an address is one of them.
    pub fn lead_to(&self, to: SocketAddr) -> bool {
        plain(to.ip()) == IpAddr::from([127, 0, 0, 1]) && self.ports.contains(&to.port())
    }

    /// Connects for the run. `connect` says where the connection comes from; nobody is let in while it is under way, so
    /// that it cannot come in before it is known.
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

    /// Who a connection belongs to and what it is for, once; `None` for anybody who is not of the run.
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
