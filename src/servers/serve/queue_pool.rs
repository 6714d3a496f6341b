//! A pool of connections to the queue. Calls to the queue block, so the pool runs them on threads for blocking work.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::error::ApiError;
use crate::work::batch::{OpenQueue, Queue, QueueError};

const MOST_CONNECTIONS: usize = 8;
/// How long a request waits for a free connection.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connections to the queue. The pool opens them when requests need them, and reuses them.
pub(super) struct QueuePool {
    idle: Arc<Idle>,
    permits: Arc<Semaphore>,
}

struct Idle {
    open: OpenQueue,
    queues: Mutex<Vec<Box<dyn Queue>>>,
}

impl QueuePool {
    pub(super) fn new(open: OpenQueue) -> Self {
        let idle = Idle { open, queues: Mutex::default() };
        Self { idle: Arc::new(idle), permits: Arc::new(Semaphore::new(MOST_CONNECTIONS)) }
    }

    /// Calls `work` with a connection to the queue. Fails if no connection becomes free within `PATIENCE`. If `work`
    /// fails, the pool does not use the connection again, unless the reason is a reused idempotency key.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Queue) -> Result<T, QueueError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let free = tokio::time::timeout(PATIENCE, self.permits.clone().acquire_owned()).await;
        let Ok(Ok(permit)) = free else {
            return Err(ApiError::overloaded("all connections to the queue are in use; try again"));
        };
        let idle = self.idle.clone();
        let done = tokio::task::spawn_blocking(move || {
            let done = idle.run(work);
            drop(permit);
            done
        });
        match done.await {
            Ok(done) => done.map_err(ApiError::from),
            Err(error) => Err(ApiError::internal(format!("a call to the queue was aborted: {error}"))),
        }
    }
}

impl Idle {
    fn run<T>(&self, work: impl FnOnce(&mut dyn Queue) -> Result<T, QueueError>) -> Result<T, QueueError> {
        let kept = self.with(Vec::pop);
        let mut queue = match kept {
            Some(queue) => queue,
            None => (self.open)()?,
        };
        let done = work(&mut *queue);
        if matches!(done, Ok(_) | Err(QueueError::KeyReused(_))) {
            self.with(|queues| queues.push(queue));
        }
        done
    }

    fn with<T>(&self, work: impl FnOnce(&mut Vec<Box<dyn Queue>>) -> T) -> T {
        work(&mut self.queues.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
