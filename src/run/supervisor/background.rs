//! Results of threads that do blocking work for the supervisor: a connect, a question to the user, a lazy resource.
//!
//! Each such thread has a [`BackgroundSender`]. The supervisor thread receives the results in its event loop.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use nix::sys::eventfd::EventFd;

use super::question::UserAnswer;
use crate::sys::seccomp::Reply;

pub(crate) enum BackgroundResult {
    /// The reply to the seccomp notification with this id.
    Reply(u64, Reply),
    UserAnswered(UserAnswer),
    /// A thread has created a lazy resource, which guard creates when a program first needs it. The value is the index
    /// of the resource.
    ResourceReady(usize),
}

/// Sends a result to the supervisor thread and wakes it.
#[derive(Clone)]
pub(crate) struct BackgroundSender {
    sender: Sender<BackgroundResult>,
    wake: Arc<EventFd>,
}

impl BackgroundSender {
    /// Creates a sender that wakes the supervisor through `wake`, and the receiver of the results.
    pub(crate) fn new(wake: Arc<EventFd>) -> (Self, Receiver<BackgroundResult>) {
        let (sender, receiver) = channel();
        (Self { sender, wake }, receiver)
    }

    pub(crate) fn send(&self, result: BackgroundResult) {
        let _ = self.sender.send(result);
        let _ = self.wake.write(1);
    }
}
