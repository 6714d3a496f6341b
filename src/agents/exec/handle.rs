//! A handle to a running request, which provides a stream of events, and a result at the end.
//!
//! A buffer holds up to [`Running::MOST_EVENTS`] events and [`Running::MOST_BYTES`] bytes. A slow reader never blocks
//! the run: events that do not fit are dropped and counted in the result, and a marker event takes their place. The
//! handle can be polled on any async runtime; its blocking methods need no runtime.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};

use super::{Cancel, ExecRequest, ExecResult, Executor};
use crate::agents::adapter::AgentEvent;
use crate::run::outcome::ErrorKind;
use crate::run::transcript::EventType;

/// The events of a request; the last event contains the result. Dropping the stream early cancels the run.
pub type EventStream = Pin<Box<dyn Stream<Item = AgentEvent> + Send>>;

/// The type of the last event of an [`EventStream`]. The event's data is the result.
pub const RESULT: &str = EventType::ExecResult.as_str();
/// The type of the event that replaces dropped events. The event's data is `{"count": N}`, where N is the number of
/// dropped events.
pub const DROPPED: &str = EventType::ExecDropped.as_str();

/// A running request. Dropping it cancels the request: guard asks the run to end, and kills it with
/// everything it started if it does not end within seconds.
///
/// ```no_run
/// use guard::agents::exec::{ExecRequest, Executor};
///
/// # fn main() -> std::io::Result<()> {
/// let executor = Executor { guard: "/usr/bin/guard".into(), sessions: "/var/lib/me/sessions".into(), log: Vec::new() };
/// let mut running = executor.start(ExecRequest::new("add a dark mode toggle", "/work/app"));
/// for event in running.events() {
///     println!("{}: {}", event.event_type, event.message);
/// }
/// let result = running.wait();
/// println!("{}", if result.run.success { result.run.result } else { result.run.error.unwrap_or_default() });
/// # Ok(())
/// # }
/// ```
///
/// In asynchronous code, `Running` is a [`Stream`] that works on any runtime:
///
/// ```no_run
/// # use guard::agents::exec::{ExecRequest, Executor, ExecResult};
/// use futures_util::StreamExt;
///
/// # async fn ask(executor: Executor) -> ExecResult {
/// let mut running = executor.start(ExecRequest::new("which tests are missing?", "/work/app"));
/// while let Some(event) = running.next().await {
///     println!("{}", event.message);
/// }
/// running.finish().await
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping it cancels the request"]
pub struct Running {
    shared: Arc<Shared>,
    cancel: Cancel,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<(AgentEvent, usize)>,
    /// The approximate memory size of the buffered events.
    bytes: usize,
    /// The total number of events dropped since the request began.
    dropped: u64,
    /// The number of events dropped since an event last fit into the buffer.
    missing: u64,
    /// Whether the caller reads no more events, so that new ones are discarded.
    discards_events: bool,
    result: Option<Box<ExecResult>>,
    is_over: bool,
    waker: Option<Waker>,
}

/// Returns the approximate size of a JSON value in memory, in bytes.
fn weight(value: &Value) -> usize {
    let inner = match value {
        Value::String(text) => text.len(),
        Value::Array(all) => all.iter().map(weight).sum(),
        Value::Object(all) => all.iter().map(|(name, value)| name.len() + weight(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    inner + size_of::<Value>()
}

impl State {
    fn push(&mut self, event: AgentEvent) {
        if self.discards_events {
            return;
        }
        let weight = size_of::<AgentEvent>() + event.message.len() + weight(&event.data);
        let is_room = self.events.len() < Running::MOST_EVENTS && self.bytes + weight <= Running::MOST_BYTES;
        if !is_room && !self.events.is_empty() {
            self.dropped += 1;
            self.missing += 1;
            return;
        }
        self.mark_missing();
        self.bytes += weight;
        self.events.push_back((event, weight));
    }

    /// Inserts a marker event in place of the dropped events.
    fn mark_missing(&mut self) {
        let count = std::mem::take(&mut self.missing);
        if count > 0 {
            let message =
                format!("the caller read the events too slowly, so guard dropped some of them: {count}");
            self.events.push_back((AgentEvent::new(DROPPED, message, json!({ "count": count })), 0));
        }
    }

    fn pop(&mut self) -> Option<AgentEvent> {
        let (event, weight) = self.events.pop_front()?;
        self.bytes -= weight;
        Some(event)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, work: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        work(&mut state);
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_all();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Marks the request as over when this value is dropped: at the end of the request's thread, even after a panic.
struct Ends(Arc<Shared>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.change(|state| state.is_over = true);
    }
}

impl Executor {
    /// Starts a request in a new thread and returns a handle to it.
    pub fn start(&self, request: ExecRequest) -> Running {
        let running = Running { shared: Arc::default(), cancel: Cancel::default() };
        let (executor, shared, cancel) = (self.clone(), running.shared.clone(), running.cancel.clone());
        let ends = Ends(shared.clone());
        let work = move || {
            let ends = ends;
            let on_event = &mut |event: AgentEvent| ends.0.change(|state| state.push(event));
            let mut result = Box::new(executor.execute(&request, &cancel, on_event));
            shared.change(|state| {
                state.mark_missing();
                result.events.dropped = state.dropped;
                state.result = Some(result);
            });
        };
        // If no thread can be created, the closure is dropped, and dropping `Ends` marks the request as over.
        let _ = std::thread::Builder::new().name("request".to_string()).spawn(work);
        running
    }
}

impl Running {
    /// The maximum number of buffered events.
    pub const MOST_EVENTS: usize = 1024;
    /// The approximate maximum size of the buffered events, in bytes. A single event may be larger.
    pub const MOST_BYTES: usize = 16 << 20;

    /// Cancels the request. The result still arrives, with the error kind `cancelled`.
    pub fn cancel(&self) {
        self.cancel.set();
    }

    /// Iterates over the events until the request ends. Blocks until the next event is available.
    pub fn events(&mut self) -> impl Iterator<Item = AgentEvent> + '_ {
        std::iter::from_fn(|| {
            let is_quiet = |state: &mut State| state.events.is_empty() && !state.is_over;
            let waited = self.shared.changed.wait_while(self.shared.lock(), is_quiet);
            waited.unwrap_or_else(PoisonError::into_inner).pop()
        })
    }

    /// Blocks until the request ends, and returns its result. Unread events are discarded.
    pub fn wait(self) -> ExecResult {
        self.stop_listening();
        let waited = self.shared.changed.wait_while(self.shared.lock(), |state| !state.is_over);
        result_of(&mut waited.unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits in asynchronous code until the request ends, and returns its result. Unread events are discarded.
    pub async fn finish(self) -> ExecResult {
        self.stop_listening();
        poll_fn(|context| {
            let mut state = self.shared.lock();
            if !state.is_over {
                state.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(result_of(&mut state))
        })
        .await
    }

    /// Returns the events as a boxed stream whose last event, [`RESULT`], holds the result.
    pub fn boxed(self) -> EventStream {
        let events = stream::unfold(Some(self), |running| async {
            let mut running = running?;
            if let Some(event) = running.next().await {
                return Some((event, Some(running)));
            }
            let result = running.wait();
            let message = result.run.error.clone().unwrap_or_else(|| "done".to_string());
            let data = serde_json::to_value(&result).unwrap_or_default();
            Some((AgentEvent::new(RESULT, message, data), None))
        });
        Box::pin(events.fuse())
    }

    fn stop_listening(&self) {
        let mut state = self.shared.lock();
        state.discards_events = true;
        state.events.clear();
        state.bytes = 0;
    }
}

fn result_of(state: &mut State) -> ExecResult {
    let problem =
        "guard's request thread ended without a result; please report this to the maintainers of guard";
    let broken = || Box::new(ExecResult::refused(ErrorKind::Internal, problem));
    *state.result.take().unwrap_or_else(broken)
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop_listening();
        if !self.shared.lock().is_over {
            self.cancel.set();
        }
    }
}

impl Stream for Running {
    type Item = AgentEvent;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<AgentEvent>> {
        let mut state = self.shared.lock();
        match state.pop() {
            Some(event) => Poll::Ready(Some(event)),
            None if state.is_over => Poll::Ready(None),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> AgentEvent {
        AgentEvent::new(EventType::AgentMessage, text, json!({ "content": text }))
    }

    #[test]
    fn what_finds_no_room_is_dropped_counted_and_marked() {
        let mut state = State::default();
        for number in 0..Running::MOST_EVENTS + 10 {
            state.push(event(&number.to_string()));
        }
        assert_eq!((state.dropped, state.events.len()), (10, Running::MOST_EVENTS));
        assert_eq!(state.pop().map(|event| event.message), Some("0".to_string()));
        assert_eq!(state.pop().map(|event| event.message), Some("1".to_string()));
        state.push(event("later"));
        let last: Vec<_> = std::iter::from_fn(|| state.pop()).collect();
        let [.., before, mark, after] = last.as_slice() else { panic!("{last:?}") };
        assert_eq!(before.message, (Running::MOST_EVENTS - 1).to_string());
        assert_eq!((mark.event_type.as_str(), &mark.data["count"]), (DROPPED, &json!(10)));
        assert_eq!(after.message, "later");
        assert_eq!((state.bytes, state.missing), (0, 0));
    }

    #[test]
    fn few_large_events_find_no_room_either() {
        let mut state = State::default();
        let large = event(&"x".repeat(Running::MOST_BYTES / 3));
        for _ in 0..4 {
            state.push(large.clone());
        }
        assert_eq!((state.dropped, state.events.len()), (3, 1));
        // An event larger than the whole buffer is still delivered if the buffer is empty.
        state.pop();
        state.push(event(&"x".repeat(Running::MOST_BYTES)));
        assert_eq!(state.dropped, 3);
    }
}
