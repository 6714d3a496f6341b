//! The producer side of a transcript: callers serialize events into a shared buffer under a mutex.
//!
//! A caller may be the thread that judges what the agent starts. Therefore a caller usually does not wait for the disk,
//! and makes a system call to wake the writer only if the writer sleeps or if much data is pending. The size of the
//! buffer is limited: if the disk is much slower than the callers, those that record output wait first, and then those
//! that record other events.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::event::{Stream, now};
use super::event_type::EventType;

/// While this many bytes wait to be written, callers that record output must wait.
const MAX_PENDING_OUTPUT: usize = 2 << 20;
/// While this many bytes wait to be written, callers that record other events must wait.
const MAX_PENDING: usize = 8 << 20;
/// When this many bytes wait to be written, the caller wakes the writer at once.
const WAKE_THRESHOLD: usize = 256 << 10;
/// Maximum size of the output in one event, in bytes. Longer output is split into several events.
const OUTPUT_CHUNK: usize = 64 << 10;

/// An event whose data is already serialized as JSON.
#[derive(Debug)]
pub struct Prepared {
    message: String,
    data: Vec<u8>,
}

impl Prepared {
    /// Prepares an event. `data` should serialize to a JSON object.
    pub fn new(message: String, data: &impl Serialize) -> Self {
        let data = serde_json::to_vec(data)
            .unwrap_or_else(|error| format!("{{\"data_lost\":{:?}}}", error.to_string()).into_bytes());
        Self { message, data }
    }

    /// Returns the event's message with `prefix` before it.
    pub fn prefixed(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.message)
    }

    /// Returns the event's data as a JSON value, for callers that add fields to it.
    pub fn data(&self) -> serde_json::Value {
        serde_json::from_slice(&self.data).unwrap_or_default()
    }
}

/// Records events from any thread. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    pub(super) shared: Arc<Shared>,
}

impl Recorder {
    /// Records an event. `data` should serialize to a JSON object. The caller must record `run.started` first and
    /// `run.finished` last. Waits while the writer is far behind. Does nothing after the transcript has ended.
    pub fn record(&self, event_type: EventType, message: &str, data: &impl Serialize) {
        self.push(event_type, message, |bytes| {
            let split = bytes.len();
            if let Err(error) = serde_json::to_writer(&mut *bytes, data) {
                // Keep the event even if its data cannot be serialized.
                bytes.truncate(split);
                let lost = serde_json::json!({ "data_lost": error.to_string() }).to_string();
                bytes.extend_from_slice(lost.as_bytes());
            }
        });
    }

    /// Records a prepared event. Recording is fast, because the data is already serialized.
    pub fn record_prepared(&self, event_type: EventType, prepared: &Prepared) {
        self.push(event_type, &prepared.message, |bytes| bytes.extend_from_slice(&prepared.data));
    }

    fn push(&self, event_type: EventType, message: &str, write_data: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.shared.with_room(MAX_PENDING);
        if state.closed {
            return;
        }
        let batch = &mut state.batch;
        let start = batch.bytes.len();
        batch.bytes.extend_from_slice(message.as_bytes());
        let split = batch.bytes.len();
        write_data(&mut batch.bytes);
        let end = batch.bytes.len();
        batch.entries.push(Entry { time: now(), kind: Kind::Event(event_type), start, split, end });
        self.shared.wake(&mut state);
    }

    /// Records output of the agent. Waits while the writer is far behind.
    pub fn output(&self, stream: Stream, bytes: &[u8]) {
        for piece in bytes.chunks(OUTPUT_CHUNK) {
            if self.shared.output_cut.load(Ordering::Relaxed) {
                self.shared.uncounted.events.fetch_add(1, Ordering::Relaxed);
                self.shared.uncounted.bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
                continue;
            }
            let mut state = self.shared.with_room(MAX_PENDING_OUTPUT);
            if state.closed {
                return;
            }
            let batch = &mut state.batch;
            let start = batch.bytes.len();
            batch.bytes.extend_from_slice(piece);
            let end = batch.bytes.len();
            batch.entries.push(Entry { time: now(), kind: Kind::Output(stream), start, split: start, end });
            if self.shared.output_is_immediate() && !state.notified {
                self.shared.notify_writer(&mut state);
            } else {
                self.shared.wake(&mut state);
            }
        }
    }

    /// Makes the writer write output at once from now on, because a user watches it. Other events are still batched.
    /// The thread that records output then wakes the writer each time, which takes longer. That delays nothing else,
    /// because no other thread waits for the thread that records output.
    pub fn write_output_immediately(&self) {
        self.shared.output_is_immediate.store(true, Ordering::Relaxed);
    }

    /// Returns the size limit that the transcript has reached, in bytes; `None` if the transcript is smaller than the
    /// limit. Once the limit is reached, the caller must end the run, because nothing may run unrecorded.
    pub fn full_at(&self) -> Option<u64> {
        Some(self.shared.full_at.load(Ordering::Acquire)).filter(|&limit| limit > 0)
    }

    /// Returns why recording has failed, for example because the disk is full; `None` if it works. After a failure the
    /// caller must end the run.
    pub fn failure(&self) -> Option<String> {
        if !self.shared.failed.load(Ordering::Acquire) {
            return None;
        }
        self.shared.lock().failure.clone()
    }
}

/// The state shared by the recorders and the writer.
#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Wakes the writer when there are events to write.
    work: Condvar,
    /// Wakes callers when there is room in the buffer, or when the writer has finished a batch.
    room: Condvar,
    failed: AtomicBool,
    /// Whether the writer writes output at once instead of batching it.
    output_is_immediate: AtomicBool,
    /// True if the transcript has reached the size limit for output: from then on callers only count output and do
    /// not copy it into the buffer.
    pub(super) output_cut: AtomicBool,
    pub(super) uncounted: Uncounted,
    /// The size limit that the transcript has reached, in bytes; 0 if it has not reached a limit.
    pub(super) full_at: AtomicU64,
}

/// The amount of output that callers dropped without passing it to the writer.
#[derive(Default)]
pub(super) struct Uncounted {
    pub(super) events: AtomicU64,
    pub(super) bytes: AtomicU64,
}

#[derive(Default)]
struct State {
    batch: Batch,
    /// True while the writer sleeps until a caller wakes it.
    asleep: bool,
    /// True if a caller has asked the writer to write at once.
    notified: bool,
    /// True while the writer is writing a batch that it has taken.
    busy: bool,
    /// The number of callers that are waiting for room in the buffer or for the writer to finish.
    waiting: usize,
    closing: bool,
    /// True if the writer must call fsync before it ends.
    sync_at_end: bool,
    /// True if no more events are accepted.
    closed: bool,
    failure: Option<String>,
}

/// Events that wait to be written.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) entries: Vec<Entry>,
}

/// The position of an event in [`Batch::bytes`]: the message or output ends at `split`, and the data ends at `end`.
pub(super) struct Entry {
    pub(super) time: i64,
    pub(super) kind: Kind,
    pub(super) start: usize,
    pub(super) split: usize,
    pub(super) end: usize,
}

pub(super) enum Kind {
    Event(EventType),
    Output(Stream),
}

/// Why [`Shared::take_batch`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    Work,
    /// No event arrived within the given time.
    Quiet,
    Closing,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in a caller's `Serialize` leaves bytes that no entry refers to; no other state can be
        // inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_room(&self, room: usize) -> MutexGuard<'_, State> {
        self.wait_while(|state| state.batch.bytes.len() >= room)
    }

    /// While `reason` is true and the transcript is not closed, wakes the writer and blocks the calling thread.
    fn wait_while(&self, reason: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while reason(&state) && !state.closed {
            state.waiting += 1;
            self.notify_writer(&mut state);
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        state
    }

    /// Blocks until everything recorded so far is written and the observer has received it.
    pub(super) fn catch_up(&self) {
        drop(self.wait_while(|state| state.busy || !state.batch.entries.is_empty()));
    }

    /// Marks the writer's current batch as finished, and wakes the callers that wait for that.
    fn finish_batch(&self, state: &mut State) {
        state.busy = false;
        if state.waiting > 0 {
            self.room.notify_all();
        }
    }

    fn wake(&self, state: &mut State) {
        if state.asleep || (state.batch.bytes.len() >= WAKE_THRESHOLD && !state.notified) {
            self.notify_writer(state);
        }
    }

    fn notify_writer(&self, state: &mut State) {
        state.asleep = false;
        state.notified = true;
        self.work.notify_one();
    }

    fn output_is_immediate(&self) -> bool {
        self.output_is_immediate.load(Ordering::Relaxed)
    }

    /// Wakes the writer thread, so that it writes the pending events immediately.
    pub(super) fn write_now(&self) {
        self.notify_writer(&mut self.lock());
    }

    /// Asks the writer to write all pending events and then to end.
    pub(super) fn close(&self, sync_at_end: bool) {
        let mut state = self.lock();
        state.closing = true;
        state.sync_at_end = sync_at_end;
        self.notify_writer(&mut state);
    }

    pub(super) fn syncs_at_end(&self) -> bool {
        self.lock().sync_at_end
    }

    /// Rejects all further events, and wakes all waiting callers.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.room.notify_all();
    }

    /// Marks recording as failed because of an I/O error.
    pub(super) fn fail_for(&self, error: &std::io::Error) {
        self.fail(error.to_string());
    }

    /// Marks recording as failed for the reason `why`. Events are still accepted and passed to the observer.
    pub(super) fn fail(&self, why: String) {
        let mut state = self.lock();
        state.failure.get_or_insert(why);
        self.failed.store(true, Ordering::Release);
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// Blocks the writer's thread without a time limit until an event arrives.
    pub(super) fn sleep(&self) {
        let mut state = self.lock();
        self.finish_batch(&mut state);
        if state.batch.entries.is_empty() && !state.closing {
            state.asleep = true;
        }
        while state.asleep {
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        // Events usually come in bursts, so a wake-up alone does not make the writer write at once, unless a
        // user watches.
        state.notified =
            state.closing || state.batch.bytes.len() >= WAKE_THRESHOLD || self.output_is_immediate();
    }

    /// Blocks the writer's thread for up to `time`, or less if much data is pending or the transcript closes. The
    /// thread calls this once, before it takes its first batch of events.
    pub(super) fn pause(&self, time: Duration) {
        let state = self.lock();
        drop(self.work.wait_timeout_while(state, time, |state| !state.notified && !state.closing));
    }

    /// Blocks the writer's thread for up to `time`, or less if much data is pending or the transcript closes. Then
    /// swaps the pending events with `batch`, which must be empty.
    pub(super) fn take_batch(&self, time: Duration, batch: &mut Batch) -> Waited {
        let mut state = self.lock();
        self.finish_batch(&mut state);
        let (mut state, _) = self
            .work
            .wait_timeout_while(state, time, |state| !state.notified && !state.closing)
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut state.batch, batch);
        state.notified = false;
        if state.waiting > 0 {
            self.room.notify_all();
        }
        state.busy = !batch.entries.is_empty();
        match state.busy {
            true => Waited::Work,
            false if state.closing => {
                state.closed = true;
                self.room.notify_all();
                Waited::Closing
            }
            false => Waited::Quiet,
        }
    }
}
