//! Limits the memory of all requests in flight together, however many connections a run opens.
//!
//! A request with a known length reserves all of it before the first byte is read, and waits in order of arrival. It
//! holds nothing while it waits, so requests cannot deadlock. A request of unknown length reserves more as it
//! arrives. It never waits while it holds memory, and is refused if nothing is left.

use std::sync::Arc;

use hyper::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that all requests and responses of a run may hold together.
pub(super) const MOST: usize = 128 << 20;
/// Granularity of reservations.
const UNIT: usize = 1 << 10;

/// The shared memory budget.
pub(super) struct Memory {
    free: Arc<Semaphore>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(MOST)
    }
}

impl Memory {
    fn new(most: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(most / UNIT)) }
    }

    /// Waits for a reservation. More than the whole budget would wait forever, so callers limit what they ask for.
    pub(super) async fn reserve(&self, bytes: usize) -> Option<Reserved> {
        self.free.clone().acquire_many_owned(units(bytes)).await.ok().map(Reserved)
    }

    /// Reserves memory if it is available now.
    pub(super) fn try_reserve(&self, bytes: usize) -> Option<Reserved> {
        self.free.clone().try_acquire_many_owned(units(bytes)).ok().map(Reserved)
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

/// A reservation, released on drop.
#[derive(Debug)]
pub(super) struct Reserved(OwnedSemaphorePermit);

impl Reserved {
    /// Merges another reservation into this one.
    pub(super) fn add(&mut self, other: Self) {
        self.0.merge(other.0);
    }
}

/// A body with its reservation, released with the last reference to the bytes.
struct Held {
    bytes: Vec<u8>,
    _reserved: Reserved,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Wraps bytes so that they keep their reservation as long as they exist.
pub(super) fn held(bytes: Vec<u8>, reserved: Reserved) -> Bytes {
    Bytes::from_owner(Held { bytes, _reserved: reserved })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_there_again() {
        let memory = Memory::new(10 * UNIT);
        let mut first = memory.try_reserve(5 * UNIT).expect("there is room");
        assert!(memory.try_reserve(6 * UNIT).is_none());
        first.add(memory.try_reserve(5 * UNIT - 1).expect("there is room"));
        assert!(memory.try_reserve(1).is_none());
        let bytes = held(vec![1, 2, 3], first);
        let part = bytes.slice(1..2);
        drop(bytes);
        assert!(memory.try_reserve(1).is_none(), "a part of the bytes is still there");
        drop(part);
        assert!(memory.try_reserve(10 * UNIT).is_some());
    }
}
