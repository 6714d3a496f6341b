//! A backend for unit tests: a function answers every call.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::backend::{BackendEvent, BackendStream, LlmBackend, LlmCall, LlmUsage};
use crate::work::research::error::LlmError;
use crate::work::research::sources::Retrieval;

/// The delay and the events with which the backend answers one call.
pub(crate) struct Answer {
    delay: Option<Duration>,
    events: VecDeque<Result<BackendEvent, LlmError>>,
}

impl Answer {
    pub(crate) fn text(text: &str) -> Self {
        let completed = BackendEvent::Completed { text: text.to_string(), interaction_id: None };
        Self { delay: Some(Duration::ZERO), events: VecDeque::from([Ok(completed)]) }
    }

    pub(crate) fn failing(error: LlmError) -> Self {
        Self { delay: Some(Duration::ZERO), events: VecDeque::from([Err(error)]) }
    }

    /// Creates an answer whose stream ends without the event that completes the answer.
    pub(crate) fn cut_off() -> Self {
        Self { delay: Some(Duration::ZERO), events: VecDeque::new() }
    }

    /// Creates an answer that never arrives.
    pub(crate) fn silent() -> Self {
        Self { delay: None, events: VecDeque::new() }
    }

    pub(crate) fn after(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    pub(crate) fn using(mut self, tokens: u64) -> Self {
        self.events.push_front(Ok(BackendEvent::Used(LlmUsage::tokens(tokens))));
        self
    }

    pub(crate) fn retrieving(mut self, retrieval: Retrieval) -> Self {
        self.events.push_front(Ok(BackendEvent::Retrieved(retrieval)));
        self
    }

    pub(crate) fn streaming(mut self, pieces: &[&str]) -> Self {
        for piece in pieces.iter().rev() {
            self.events.push_front(Ok(BackendEvent::Text((*piece).to_string())));
        }
        self
    }
}

pub(crate) type Calls = Arc<Mutex<Vec<LlmCall>>>;

struct Scripted<F> {
    answer: F,
    calls: Calls,
}

/// Returns a backend that answers call number N, counted from 0, with `answer(call, N)`, and the list of the calls that
/// it received.
pub(crate) fn scripted(
    answer: impl Fn(&LlmCall, usize) -> Answer + Send + Sync + 'static,
) -> (Arc<dyn LlmBackend>, Calls) {
    let calls = Calls::default();
    (Arc::new(Scripted { answer, calls: calls.clone() }), calls)
}

impl<F: Fn(&LlmCall, usize) -> Answer + Send + Sync> LlmBackend for Scripted<F> {
    fn start(&self, call: LlmCall) -> BackendStream {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = (self.answer)(&call, calls.len());
        calls.push(call);
        let Some(delay) = answer.delay else { return Box::pin(stream::pending()) };
        let events = async move {
            tokio::time::sleep(delay).await;
            stream::iter(answer.events)
        };
        Box::pin(stream::once(events).flatten())
    }
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.unwrap_or_else(|error| panic!("{error}")).block_on(work)
}
