//! The trait that every research agent implements, and the stream of updates that it returns.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};
use tokio::sync::mpsc;

use super::error::AgentError;
use super::llm::LlmClient;
use super::update::AgentUpdate;

/// The updates of a run, in the order in which they happen. If the run fails, the last item is the error. Dropping the
/// stream cancels the run, and ends every process that the run started.
pub type UpdateStream = Pin<Box<dyn Stream<Item = Result<AgentUpdate, AgentError>> + Send>>;

/// The context that every research agent receives. It contains no settings for a particular kind of agent: the
/// constructor of the agent takes those.
#[derive(Clone)]
#[non_exhaustive]
pub struct AgentContext {
    pub llm: Arc<LlmClient>,
}

impl AgentContext {
    pub fn new(llm: Arc<LlmClient>) -> Self {
        Self { llm }
    }
}

/// A research agent: answers a query, and reports updates while it works.
pub trait Agent: Send + Sync {
    /// Returns a short name, such as `deep_research`.
    fn name(&self) -> &str;

    /// Returns one sentence that says what the agent does.
    fn description(&self) -> &str;

    /// Starts to work on a query. Must be called in a tokio runtime whose timer is enabled. The work proceeds only
    /// while the caller reads the stream, so a slow reader slows the agent down.
    fn execute(&self, query: &str, context: AgentContext) -> UpdateStream;
}

/// The maximum number of unread updates. When it is reached, the agent waits for the reader.
pub const CHANNEL_CAPACITY: usize = 10;

/// Sends the updates of a run to the reader of its stream.
#[derive(Debug, Clone)]
pub struct UpdateSender(mpsc::Sender<AgentUpdate>);

impl UpdateSender {
    /// Sends an update. Waits while there are [`CHANNEL_CAPACITY`] unread updates. Does nothing if the reader
    /// is gone.
    pub async fn send(&self, update: AgentUpdate) {
        let _ = self.0.send(update).await;
    }
}

/// Returns a stream of the updates that `work` sends. The stream polls `work` itself, so dropping the stream
/// drops `work` and everything that it owns.
pub fn update_stream<F>(work: impl FnOnce(UpdateSender) -> F) -> UpdateStream
where
    F: Future<Output = Result<(), AgentError>> + Send + 'static,
{
    let (sender, updates) = mpsc::channel(CHANNEL_CAPACITY);
    let state = Driven { work: Some(Box::pin(work(UpdateSender(sender)))), updates, error: None };
    Box::pin(stream::unfold(state, Driven::next).fuse())
}

type Work = Pin<Box<dyn Future<Output = Result<(), AgentError>> + Send>>;

/// Work that sends updates, and that is polled while a reader waits for an update.
struct Driven {
    work: Option<Work>,
    updates: mpsc::Receiver<AgentUpdate>,
    error: Option<AgentError>,
}

impl Driven {
    /// Returns the next update, and at the end the error with which the work failed.
    async fn next(mut self) -> Option<(Result<AgentUpdate, AgentError>, Self)> {
        if let Some(work) = &mut self.work {
            let result = tokio::select! {
                biased;
                Some(update) = self.updates.recv() => return Some((Ok(update), self)),
                result = work => result,
            };
            self.work = None;
            self.error = result.err();
            // Tasks that outlive the work may still hold a sender. Discard what they send.
            self.updates.close();
        }
        match self.updates.recv().await {
            Some(update) => Some((Ok(update), self)),
            None => self.error.take().map(|error| (Err(error), self)),
        }
    }
}

/// Returns the next update of a stream; `None` if the stream has ended.
pub async fn next_update(stream: &mut UpdateStream) -> Option<Result<AgentUpdate, AgentError>> {
    stream.next().await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use serde_json::json;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap_or_else(|e| panic!("{e}"))
    }

    fn numbered(number: usize) -> AgentUpdate {
        AgentUpdate::new("n", number.to_string(), json!({}))
    }

    #[test]
    fn a_reader_gets_all_updates_and_then_the_error() {
        runtime().block_on(async {
            let mut stream = update_stream(|updates| async move {
                for number in 0..25 {
                    updates.send(numbered(number)).await;
                }
                Err(AgentError::Cancelled)
            });
            for number in 0..25 {
                let update = next_update(&mut stream).await;
                assert!(matches!(&update, Some(Ok(update)) if update.message == number.to_string()));
            }
            assert_eq!(next_update(&mut stream).await, Some(Err(AgentError::Cancelled)));
            assert_eq!(next_update(&mut stream).await, None);
            assert_eq!(next_update(&mut stream).await, None);
        });
    }

    #[test]
    fn a_slow_reader_slows_the_work() {
        runtime().block_on(async {
            let sent = Arc::new(AtomicUsize::new(0));
            let counter = sent.clone();
            let mut stream = update_stream(|updates| async move {
                for number in 0..100 {
                    updates.send(numbered(number)).await;
                    counter.fetch_add(1, Ordering::SeqCst);
                }
                Ok(())
            });
            assert_eq!(sent.load(Ordering::SeqCst), 0);
            assert!(next_update(&mut stream).await.is_some());
            assert!(sent.load(Ordering::SeqCst) <= CHANNEL_CAPACITY + 1);
        });
    }

    #[test]
    fn dropping_the_stream_drops_the_work() {
        struct Owned(Arc<AtomicUsize>);
        impl Drop for Owned {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        runtime().block_on(async {
            let dropped = Arc::new(AtomicUsize::new(0));
            let owned = Owned(dropped.clone());
            let mut stream = update_stream(|updates| async move {
                let _owned = owned;
                updates.send(numbered(0)).await;
                std::future::pending::<()>().await;
                Ok(())
            });
            assert!(next_update(&mut stream).await.is_some());
            assert_eq!(dropped.load(Ordering::SeqCst), 0);
            drop(stream);
            assert_eq!(dropped.load(Ordering::SeqCst), 1);
        });
    }
}
