//! The handle with which another thread stops a server.

use std::sync::Arc;

use tokio::sync::watch;

/// A handle that stops a server from another thread.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Stop {
    /// Asks the server to stop. Further calls have no effect.
    pub fn set(&self) {
        self.0.send_replace(true);
    }

    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) async fn wait(&self) {
        // This struct holds the sender, so the channel cannot be closed.
        let _ = self.0.subscribe().wait_for(|is_set| *is_set).await;
    }
}
