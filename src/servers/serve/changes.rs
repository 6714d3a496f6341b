//! Notifies all waiting requests when the queue may have changed. One thread watches the queue for all of them, and
//! only while a request waits.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::servers::http::Stop;
use crate::work::batch::OpenQueue;

/// The maximum time between two notifications: a waiting request checks the queue at least this often.
const LONGEST_WATCH: Duration = Duration::from_secs(1);
/// The minimum time between two checks of the queue by one request. A queue with small tasks changes hundreds of
/// times a second.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the thread sleeps after it could not use the queue.
const PAUSE: Duration = Duration::from_secs(1);

/// A handle to the thread that watches the queue.
pub(super) struct Changes {
    watched: Arc<Watched>,
    thread: Thread,
}

/// The state that the watching thread shares with the waiting requests.
struct Watched {
    changes: watch::Sender<u64>,
    is_over: AtomicBool,
}

/// A request that waits until the queue of batches changes.
pub(super) struct Waiter {
    receiver: watch::Receiver<u64>,
    last_look: Instant,
}

impl Changes {
    /// Starts the thread that watches the queue. It ends when the returned value is dropped.
    pub(super) fn watch(open: OpenQueue) -> io::Result<Self> {
        let watched = Arc::new(Watched { changes: watch::Sender::new(0), is_over: AtomicBool::new(false) });
        let of_thread = watched.clone();
        let builder = std::thread::Builder::new().name("changes".to_string());
        let handle = builder.spawn(move || watch_queue(&open, &of_thread))?;
        Ok(Self { watched, thread: handle.thread().clone() })
    }

    /// Subscribes to changes of the queue. The caller must check the queue after this call, because the returned value
    /// reports only changes that happen after the call.
    pub(super) fn subscribe(&self) -> Waiter {
        let receiver = self.watched.changes.subscribe();
        self.thread.unpark();
        Waiter { receiver, last_look: Instant::now() }
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.watched.is_over.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

fn watch_queue(open: &OpenQueue, watched: &Watched) {
    let mut connection = None;
    while !watched.is_over.load(Ordering::Relaxed) {
        if watched.changes.receiver_count() == 0 {
            std::thread::park();
            continue;
        }
        let queue = match connection.take() {
            Some(queue) => Ok(queue),
            None => open(),
        };
        match queue.and_then(|mut queue| queue.wait(LONGEST_WATCH).map(|()| queue)) {
            Ok(queue) => connection = Some(queue),
            // The waiting requests check the queue themselves, and report its failure to their clients.
            Err(_) => std::thread::sleep(PAUSE),
        }
        watched.changes.send_modify(|count| *count += 1);
    }
}

impl Waiter {
    /// Waits until the queue may have changed, until the deadline, or until the server stops. Returns false if the
    /// deadline has passed or the server stops, so that the caller gives up.
    pub(super) async fn wait(&mut self, deadline: Instant, stop: &Stop) -> bool {
        let changed = async {
            let _ = self.receiver.changed().await;
            tokio::time::sleep_until(self.last_look + LOOK_EVERY).await;
        };
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep_until(deadline) => {}
            () = stop.wait() => {}
        }
        self.last_look = Instant::now();
        self.last_look < deadline && !stop.is_set()
    }
}
