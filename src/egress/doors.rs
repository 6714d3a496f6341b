//! The ports on loopback that a run may connect to, and who is let in.
//!
//! A port is open to everybody on the machine, other users included, and behind a gateway lies a key. So whoever comes in
//! must have been announced by the supervisor, which makes the run's connections and knows their other end.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use crate::policy::plain;

/// Connections that were announced and never came; then they are forgotten, the oldest ways first.
const MOST_ANNOUNCED: usize = 4096;

/// Who comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visitor {
    /// The thread that connected.
    pub tid: i32,
}

/// The run's doors.
#[derive(Debug, Default)]
pub struct Doors {
    ports: Vec<u16>,
    announced: Mutex<HashMap<SocketAddr, Visitor>>,
}

impl Doors {
    /// Doors at these ports of 127.0.0.1.
    pub fn new(ports: Vec<u16>) -> Self {
        Self { ports, announced: Mutex::default() }
    }

    /// Whether an address is one of them.
    pub fn lead_to(&self, to: SocketAddr) -> bool {
        plain(to.ip()) == IpAddr::from([127, 0, 0, 1]) && self.ports.contains(&to.port())
    }

    /// Connects for the run. `connect` says where the connection comes from; nobody is let in while it is under way, so
    /// that it cannot come in before it is known.
    pub fn announce<T>(&self, visitor: Visitor, connect: impl FnOnce() -> (T, Option<SocketAddr>)) -> T {
        let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        let (result, from) = connect();
        if let Some(from) = from {
            if announced.len() >= MOST_ANNOUNCED {
                announced.clear();
            }
            announced.insert(SocketAddr::new(plain(from.ip()), from.port()), visitor);
        }
        result
    }

    /// Who a connection belongs to, once; `None` for anybody who is not of the run.
    pub(super) fn let_in(&self, from: SocketAddr) -> Option<Visitor> {
        let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        announced.remove(&SocketAddr::new(plain(from.ip()), from.port()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_announced_come_in_and_once() {
        let doors = Doors::new(vec![4000]);
        let address = |text: &str| text.parse().unwrap_or_else(|_| panic!("{text}"));
        assert!(
            doors.lead_to(address("127.0.0.1:4000")) && doors.lead_to(address("[::ffff:127.0.0.1]:4000"))
        );
        for other in ["127.0.0.1:4001", "127.0.0.2:4000", "[::1]:4000", "0.0.0.0:4000", "10.0.0.1:4000"] {
            assert!(!doors.lead_to(address(other)), "{other}");
        }
        let from = address("127.0.0.1:5000");
        assert_eq!(doors.let_in(from), None);
        doors.announce(Visitor { tid: 7 }, || ((), Some(from)));
        assert_eq!(doors.let_in(from), Some(Visitor { tid: 7 }));
        assert_eq!(doors.let_in(from), None);
    }
}
