//! The sessions of HTTP clients. When the maximum number is open, the server closes an idle session to make room for a
//! new one.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::combinators::BoxBody;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use rmcp::transport::streamable_http_server::session::SessionManager;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;

/// The maximum number of simultaneous sessions.
pub(super) const MOST: usize = 64;
/// How long a session may be idle before the server closes it.
const LONGEST_SILENCE: Duration = Duration::from_secs(30 * 60);
/// How long a session without a connection must be idle before the server may close it to make room for a new one.
const SILENCE: Duration = Duration::from_secs(60);

/// All sessions of this server, and when each was last used.
pub(super) struct Sessions {
    pub(super) manager: Arc<LocalSessionManager>,
    used: Mutex<HashMap<String, Use>>,
    /// A lock that is held while a session is opened, so that counting the sessions and opening one are atomic.
    pub(super) opening: tokio::sync::Mutex<()>,
}

struct Use {
    last: Instant,
    connections: usize,
}

impl Sessions {
    pub(super) fn new() -> Arc<Self> {
        let mut manager = LocalSessionManager::default();
        manager.session_config.keep_alive = Some(LONGEST_SILENCE);
        Arc::new(Self {
            manager: Arc::new(manager),
            used: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut HashMap<String, Use>) -> T) -> T {
        work(&mut self.used.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true if another session can be opened. If the maximum number is open, first closes the session without a
    /// connection that has been idle longest, provided that it has been idle for more than `SILENCE`.
    pub(super) async fn make_room(&self) -> bool {
        let open: Vec<Arc<str>> = self.manager.sessions.read().await.keys().cloned().collect();
        self.with(|used| used.retain(|id, _| open.iter().any(|open| **open == **id)));
        if open.len() < MOST {
            return true;
        }
        let silent = self.with(|used| {
            let silent = used.iter().filter(|(_, at)| at.connections == 0 && at.last.elapsed() > SILENCE);
            silent.min_by_key(|(_, at)| at.last).map(|(id, _)| Arc::<str>::from(id.as_str()))
        });
        let Some(id) = silent else { return false };
        self.manager.close_session(&id).await.is_ok()
    }

    /// Marks a session as in use until the returned permit is dropped. Returns `None` if there is no such session.
    pub(super) async fn mark_in_use(self: &Arc<Self>, id: &str) -> Option<SessionPermit> {
        if !self.manager.sessions.read().await.contains_key(id) {
            return None;
        }
        self.with(|used| {
            let at = used.entry(id.to_string()).or_insert(Use { last: Instant::now(), connections: 0 });
            at.connections += 1;
        });
        Some(SessionPermit { sessions: self.clone(), id: id.to_string() })
    }
}

/// Marks a session as in use until this value is dropped.
pub(super) struct SessionPermit {
    sessions: Arc<Sessions>,
    id: String,
}

impl Drop for SessionPermit {
    fn drop(&mut self) {
        self.sessions.with(|used| {
            if let Some(at) = used.get_mut(&self.id) {
                (at.connections, at.last) = (at.connections.saturating_sub(1), Instant::now());
            }
        });
    }
}

/// The body of a response. The response's session counts as in use until the body is dropped.
pub(super) struct Answer {
    pub(super) body: BoxBody<Bytes, Infallible>,
    pub(super) _in_use: Option<SessionPermit>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_was_silent_longest_makes_room() {
        let sessions = Sessions::new();
        let mut open = Vec::new();
        for _ in 0..MOST {
            assert!(sessions.make_room().await);
            open.push(sessions.manager.create_session().await.unwrap_or_else(|error| panic!("{error}")));
            drop(sessions.mark_in_use(&open[open.len() - 1].0).await);
        }
        assert!(!sessions.make_room().await, "none has been silent for long");
        let backdate = |at: usize, seconds: u64| {
            sessions.with(|used| {
                if let Some(used) = used.get_mut(&*open[at].0) {
                    used.last = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap_or(used.last);
                }
            });
        };
        backdate(3, 61);
        backdate(5, 62);
        backdate(7, 63);
        // A session with an open connection is not idle.
        let in_use = sessions.mark_in_use(&open[7].0).await;
        backdate(7, 63);
        for at in [5, 3] {
            assert!(sessions.make_room().await);
            let left = sessions.manager.sessions.read().await;
            assert!(!left.contains_key(&open[at].0) && left.contains_key(&open[7].0));
            drop(left);
            open[at] = sessions.manager.create_session().await.unwrap_or_else(|error| panic!("{error}"));
        }
        assert!(!sessions.make_room().await);
        drop(in_use);
        assert!(sessions.mark_in_use("nobody").await.is_none());
    }
}
