//! Limits the total memory of all requests in flight, however many connections a run opens.
//!
//! A request of known length reserves all its memory before its first byte is read. Requests wait for memory in order
//! of arrival and hold none while they wait, so they cannot deadlock. A request of unknown length reserves more memory
//! as data arrives. Such a request never waits while it holds memory: if none is left, the gateway refuses it.

use std::sync::Arc;

use hyper::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limit on the bytes that all requests and responses of a run may hold in memory together.
pub(super) const MAX_BYTES: usize = 128 << 20;
/// Reservations are multiples of this number of bytes.
const UNIT: usize = 1 << 10;

/// The memory that all requests of a run share.
pub(super) struct MemoryBudget {
    free: Arc<Semaphore>,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self::new(MAX_BYTES)
    }
}

impl MemoryBudget {
    fn new(most: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(most / UNIT)) }
    }

    /// Waits until this much memory is available and reserves it. A caller must never request more than the whole
    /// budget, because it would wait forever. Never returns `None`, because nothing closes the semaphore.
    pub(super) async fn reserve(&self, bytes: usize) -> Option<Reservation> {
        self.free.clone().acquire_many_owned(units(bytes)).await.ok().map(Reservation)
    }

    /// Reserves memory if it is available now, and returns `None` otherwise. Never waits.
    pub(super) fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        self.free.clone().try_acquire_many_owned(units(bytes)).ok().map(Reservation)
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

/// A reservation of memory, which is released on drop.
#[derive(Debug)]
pub(super) struct Reservation(OwnedSemaphorePermit);

impl Reservation {
    pub(super) fn add(&mut self, other: Self) {
        self.0.merge(other.0);
    }
}

struct ReservedBytes {
    bytes: Vec<u8>,
    _reserved: Reservation,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Combines bytes with the reservation for their memory, which is released with the last reference to the bytes.
pub(super) fn with_reservation(bytes: Vec<u8>, reserved: Reservation) -> Bytes {
    Bytes::from_owner(ReservedBytes { bytes, _reserved: reserved })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_there_again() {
        let memory = MemoryBudget::new(10 * UNIT);
        let mut first = memory.try_reserve(5 * UNIT).expect("there is room");
        assert!(memory.try_reserve(6 * UNIT).is_none());
        first.add(memory.try_reserve(5 * UNIT - 1).expect("there is room"));
        assert!(memory.try_reserve(1).is_none());
        let bytes = with_reservation(vec![1, 2, 3], first);
        let part = bytes.slice(1..2);
        drop(bytes);
        assert!(memory.try_reserve(1).is_none(), "a part of the bytes is still there");
        drop(part);
        assert!(memory.try_reserve(10 * UNIT).is_some());
    }
}
