//! The memory that requests on their way may take, together: however many connections a run opens, what guard holds of them
//! is bounded.
//!
//! A request that says its length reserves all of it before a byte is read, and waits for that in the order of arrival. It
//! holds nothing while it waits, so requests never wait for one another in a circle. One that does not say its length takes
//! more as it comes, never waits while it holds some, and is refused where nothing is left.

use std::sync::Arc;

use hyper::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that all requests and answers of a run may hold together.
pub(super) const MOST: usize = 128 << 20;
/// The smallest part that is counted.
const UNIT: usize = 1 << 10;

/// What is left.
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

    /// Waits for so much. More than there is at all is never had: callers bound what they ask for.
    pub(super) async fn reserve(&self, bytes: usize) -> Option<Reserved> {
        self.free.clone().acquire_many_owned(units(bytes)).await.ok().map(Reserved)
    }

    /// So much, if it is there.
    pub(super) fn try_reserve(&self, bytes: usize) -> Option<Reserved> {
        self.free.clone().try_acquire_many_owned(units(bytes)).ok().map(Reserved)
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

/// A part of the budget; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Reserved(OwnedSemaphorePermit);

impl Reserved {
    /// More of it.
    pub(super) fn add(&mut self, other: Self) {
        self.0.merge(other.0);
    }
}

/// A body with its part of the budget, which goes back with the last reference to the bytes.
struct Held {
    bytes: Vec<u8>,
    _reserved: Reserved,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes that hold their part of the budget as long as they are there.
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
