//! Limits the size of a transcript, and counts what is dropped.
//!
//! ```text
//!   0 ─────────── limit ─────────── 2 × limit ─────────── + reserve ─────────── + reserve
//!     everything       │ no output       │ "full": the run ends    │ only refusals,      │ only `run.…`
//!                                        │ what was under way      │ findings, git events │ and `transcript.…`
//!                                        │ is still written
//! ```
//!
//! Output is dropped first. When other events have filled the transcript up to twice the limit, guard ends the run, so
//! that nothing runs unrecorded. The reserves hold events that were in progress at that time and those found at the end
//! of the run. Sizes are those of the written lines, after redaction and escaping.

use super::event_type::EventType;
use serde::Serialize;

/// The class of an event, which determines the transcript size up to which it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Output,
    Event,
    /// Events that a reviewer must see: `deny.…`, `finding`, `git.…`.
    Important,
    /// `run.…` and `transcript.…` events, which are always written.
    Always,
}

impl Class {
    pub(super) fn of(event_type: EventType) -> Self {
        let event_type = event_type.as_str();
        let begins_with = |names: &[&str]| names.iter().any(|name| event_type.starts_with(name));
        if begins_with(&["run.", "transcript."]) {
            Self::Always
        } else if begins_with(&["deny.", "finding", "git."]) {
            Self::Important
        } else {
            Self::Event
        }
    }
}

/// The numbers of events and bytes that were dropped because of the size limit.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Dropped {
    pub(super) output_events: u64,
    pub(super) output_bytes: u64,
    pub(super) events: u64,
    pub(super) event_bytes: u64,
}

/// Whether an event is written or dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Write,
    /// Drop the event, and record that the transcript is incomplete from here on, because this is the first event of
    /// its class that is dropped.
    Cut,
    Drop,
}

#[derive(Debug)]
pub(super) struct SizeLimit {
    pub(super) limit: u64,
    reserve: u64,
    pub(super) written: u64,
    pub(super) dropped: Dropped,
    output_cut: bool,
    events_cut: bool,
    important_cut: bool,
    full: bool,
}

impl SizeLimit {
    pub(super) fn new(limit: u64, reserve: u64) -> Self {
        Self {
            limit,
            reserve,
            written: 0,
            dropped: Dropped::default(),
            output_cut: false,
            events_cut: false,
            important_cut: false,
            full: false,
        }
    }

    /// Returns the transcript size at which the run must end, in bytes.
    pub(super) fn full_at(&self) -> u64 {
        self.limit.saturating_mul(2)
    }

    /// Returns the transcript size up to which events of a class are written, in bytes.
    pub(super) fn limit_of(&self, class: Class) -> u64 {
        match class {
            Class::Output => self.limit,
            Class::Event => self.full_at().saturating_add(self.reserve),
            Class::Important => self.full_at().saturating_add(self.reserve.saturating_mul(2)),
            Class::Always => u64::MAX,
        }
    }

    /// True if a line of this length makes the transcript full. Returns true only once per transcript.
    pub(super) fn becomes_full(&mut self, class: Class, length: usize) -> bool {
        matches!(class, Class::Event | Class::Important)
            && self.written.saturating_add(length as u64) > self.full_at()
            && !std::mem::replace(&mut self.full, true)
    }

    /// Decides whether a line of `length` bytes may be written. If not, adds one event, and the `bytes` of its data
    /// before encoding, to the totals of what was dropped.
    pub(super) fn admit(&mut self, class: Class, length: usize, bytes: usize) -> Admission {
        let limit = self.limit_of(class);
        let cut = match class {
            Class::Always => return Admission::Write,
            Class::Output => &mut self.output_cut,
            Class::Event => &mut self.events_cut,
            Class::Important => &mut self.important_cut,
        };
        // Once cut, a class stays cut: a transcript with random gaps would look complete where it is not.
        if !*cut && self.written.saturating_add(length as u64) <= limit {
            return Admission::Write;
        }
        let dropped = &mut self.dropped;
        let (events, sum) = match class {
            Class::Output => (&mut dropped.output_events, &mut dropped.output_bytes),
            _ => (&mut dropped.events, &mut dropped.event_bytes),
        };
        *events += 1;
        *sum += bytes as u64;
        if std::mem::replace(cut, true) { Admission::Drop } else { Admission::Cut }
    }

    pub(super) fn output_is_cut(&self) -> bool {
        self.output_cut
    }
}
