//! The callers' end: an event is serialised into a shared buffer under a mutex, and that is all.
//!
//! The caller is the thread that judges what the agent starts, so nothing here waits for the disk, and the writer is
//! woken by a system call only when it sleeps or much has come. The buffer is bounded: who is far ahead of the disk
//! waits, output first.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::event::{Stream, now};
use super::event_type::EventType;

/// Output waits while this much is waiting to be written.
const ROOM_FOR_OUTPUT: usize = 2 << 20;
/// Other events wait while this much is.
const ROOM: usize = 8 << 20;
/// From here on the writer is told not to linger.
const MUCH: usize = 256 << 10;
/// Longer output is cut into events of this size.
const PIECE: usize = 64 << 10;

/// An event whose data is JSON already.
#[derive(Debug)]
pub struct Prepared {
    message: String,
    data: Vec<u8>,
}

impl Prepared {
    /// Prepares an event; `data` should serialise to a JSON object.
    pub fn new(message: String, data: &impl Serialize) -> Self {
        let data = serde_json::to_vec(data)
            .unwrap_or_else(|error| format!("{{\"data_lost\":{:?}}}", error.to_string()).into_bytes());
        Self { message, data }
    }

    /// Puts words before its message.
    pub fn prefixed(&self, words: &str) -> String {
        format!("{words}{}", self.message)
    }

    /// The data as a JSON value, to add to it.
    pub fn data(&self) -> serde_json::Value {
        serde_json::from_slice(&self.data).unwrap_or_default()
    }
}

/// Records events. Cheap to clone, for any thread.
#[derive(Clone)]
pub struct Recorder {
    pub(super) shared: Arc<Shared>,
}

impl Recorder {
    /// Records an event. `data` should serialise to a JSON object; `run.…` types are the caller's first and last words.
    pub fn record(&self, event_type: EventType, message: &str, data: &impl Serialize) {
        self.push(event_type, message, |bytes| {
            let split = bytes.len();
            if let Err(error) = serde_json::to_writer(&mut *bytes, data) {
                // The event itself is worth more than its data.
                bytes.truncate(split);
                let said = serde_json::json!({ "data_lost": error.to_string() }).to_string();
                bytes.extend_from_slice(said.as_bytes());
            }
        });
    }

    /// Records an event that was prepared before, so that recording it takes no longer than copying it.
    pub fn record_prepared(&self, event_type: EventType, prepared: &Prepared) {
        self.push(event_type, &prepared.message, |bytes| bytes.extend_from_slice(&prepared.data));
    }

    fn push(&self, event_type: EventType, message: &str, write_data: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.shared.with_room(ROOM);
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

    /// Records what the agent printed. Waits while the writer is far behind.
    pub fn output(&self, stream: Stream, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            if self.shared.output_cut.load(Ordering::Relaxed) {
                self.shared.uncounted.events.fetch_add(1, Ordering::Relaxed);
                self.shared.uncounted.bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
                continue;
            }
            let mut state = self.shared.with_room(ROOM_FOR_OUTPUT);
            if state.closed {
                return;
            }
            let batch = &mut state.batch;
            let start = batch.bytes.len();
            batch.bytes.extend_from_slice(piece);
            let end = batch.bytes.len();
            batch.entries.push(Entry { time: now(), kind: Kind::Output(stream), start, split: start, end });
            if self.shared.hurries() && !state.told {
                self.shared.nudge(&mut state);
            } else {
                self.shared.wake(&mut state);
            }
        }
    }

    /// From here on output is written at once: somebody watches it. Whoever prints it waits for nobody, so waking the
    /// writer costs nothing that matters; other events still wait for company.
    pub fn hurry(&self) {
        self.shared.hurries.store(true, Ordering::Relaxed);
    }

    /// The bound that the transcript has reached, in bytes. The run must end then: what is not recorded does not run.
    pub fn full_at(&self) -> Option<u64> {
        Some(self.shared.full_at.load(Ordering::Acquire)).filter(|&limit| limit > 0)
    }

    /// Why nothing is recorded any more: the disk is full, … The run must end then.
    pub fn failure(&self) -> Option<String> {
        if !self.shared.failed.load(Ordering::Acquire) {
            return None;
        }
        self.shared.lock().failure.clone()
    }
}

/// What callers and the writer share.
#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// The writer waits here.
    work: Condvar,
    /// Callers wait here for room, or for the writer to be done.
    room: Condvar,
    failed: AtomicBool,
    /// Output is not kept waiting.
    hurries: AtomicBool,
    /// The bound was reached: output is counted and not even copied.
    pub(super) output_cut: AtomicBool,
    pub(super) uncounted: Uncounted,
    /// The bound that was reached; 0 before that.
    pub(super) full_at: AtomicU64,
}

/// Output that callers left out.
#[derive(Default)]
pub(super) struct Uncounted {
    pub(super) events: AtomicU64,
    pub(super) bytes: AtomicU64,
}

#[derive(Default)]
struct State {
    batch: Batch,
    /// The writer sleeps until somebody wakes it.
    asleep: bool,
    /// It was told that much has come.
    told: bool,
    /// The writer has taken something, and is not done with it.
    busy: bool,
    /// Callers that wait for room, or for the writer to be done.
    waiting: usize,
    closing: bool,
    /// The end is to survive a power failure.
    durably: bool,
    /// Nothing is taken any more.
    closed: bool,
    failure: Option<String>,
}

/// Events that wait to be written.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) entries: Vec<Entry>,
}

/// Where an event stands in the bytes of its batch: message or output up to `split`, data up to `end`.
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

/// What a writer that waited finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    Work,
    /// Nothing came in this time.
    Quiet,
    Closing,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in a caller's `Serialize` leaves bytes that no entry names; nothing else can be half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_room(&self, room: usize) -> MutexGuard<'_, State> {
        self.wait_while(|state| state.batch.bytes.len() >= room)
    }

    /// A caller's wait, for the writer, which is told.
    fn wait_while(&self, reason: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while reason(&state) && !state.closed {
            state.waiting += 1;
            self.nudge(&mut state);
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        state
    }

    /// Waits until everything that was recorded is written and was seen.
    pub(super) fn catch_up(&self) {
        drop(self.wait_while(|state| state.busy || !state.batch.entries.is_empty()));
    }

    /// The writer comes back for more.
    fn is_done(&self, state: &mut State) {
        state.busy = false;
        if state.waiting > 0 {
            self.room.notify_all();
        }
    }

    fn wake(&self, state: &mut State) {
        if state.asleep || (state.batch.bytes.len() >= MUCH && !state.told) {
            self.nudge(state);
        }
    }

    fn nudge(&self, state: &mut State) {
        state.asleep = false;
        state.told = true;
        self.work.notify_one();
    }

    fn hurries(&self) -> bool {
        self.hurries.load(Ordering::Relaxed)
    }

    /// Asks the writer to write what there is.
    pub(super) fn hasten(&self) {
        self.nudge(&mut self.lock());
    }

    /// Asks the writer to write what there is and end.
    pub(super) fn close(&self, durably: bool) {
        let mut state = self.lock();
        state.closing = true;
        state.durably = durably;
        self.nudge(&mut state);
    }

    pub(super) fn closes_durably(&self) -> bool {
        self.lock().durably
    }

    /// From here on events are neither taken nor waited for.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.room.notify_all();
    }

    /// Nothing can be written any more, because of this.
    pub(super) fn fail_for(&self, error: &std::io::Error) {
        self.fail(format!("the transcript cannot be written: {error}"));
    }

    /// Nothing can be written any more. Events are still taken, for the observer.
    pub(super) fn fail(&self, why: String) {
        let mut state = self.lock();
        state.failure.get_or_insert(why);
        self.failed.store(true, Ordering::Release);
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// The writer's wait: until an event comes, however long it takes.
    pub(super) fn sleep(&self) {
        let mut state = self.lock();
        self.is_done(&mut state);
        if state.batch.entries.is_empty() && !state.closing {
            state.asleep = true;
        }
        while state.asleep {
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        // Being woken is no reason to hurry, unless somebody watches: what comes now comes in bursts.
        state.told = state.closing || state.batch.bytes.len() >= MUCH || self.hurries();
    }

    /// The writer's wait before it begins: this long, less when much comes or the end.
    pub(super) fn pause(&self, time: Duration) {
        let state = self.lock();
        drop(self.work.wait_timeout_while(state, time, |state| !state.told && !state.closing));
    }

    /// The writer's wait: this long, less when much comes or the end. Takes what came in exchange for an empty batch.
    pub(super) fn linger(&self, time: Duration, batch: &mut Batch) -> Waited {
        let mut state = self.lock();
        self.is_done(&mut state);
        let (mut state, _) = self
            .work
            .wait_timeout_while(state, time, |state| !state.told && !state.closing)
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut state.batch, batch);
        state.told = false;
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
