//! How much a transcript may hold, and the count of what it left out.
//!
//! Output goes first: past the bound it is left out. Other events go in up to twice the bound. What tells the end of a
//! run, and what was left out, always goes in.

use serde::Serialize;

/// What kind of event asks to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Output,
    Event,
    /// `run.…` and `transcript.…`.
    Always,
}

impl Class {
    pub(super) fn of(event_type: &str) -> Self {
        let always = event_type.starts_with("run.") || event_type.starts_with("transcript.");
        if always { Self::Always } else { Self::Event }
    }
}

/// What was left out.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Dropped {
    pub(super) output_events: u64,
    pub(super) output_bytes: u64,
    pub(super) events: u64,
    pub(super) event_bytes: u64,
}

/// What becomes of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Write,
    /// The first of its class that is left out: say so.
    Cut,
    Drop,
}

#[derive(Debug)]
pub(super) struct Bound {
    pub(super) limit: u64,
    pub(super) written: u64,
    pub(super) dropped: Dropped,
    output_cut: bool,
    events_cut: bool,
}

impl Bound {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, written: 0, dropped: Dropped::default(), output_cut: false, events_cut: false }
    }

    /// Asks for room for an event whose text has this many bytes; counts it when there is none.
    pub(super) fn admit(&mut self, class: Class, bytes: usize) -> Admission {
        let (limit, cut) = match class {
            Class::Always => return Admission::Write,
            Class::Output => (self.limit, &mut self.output_cut),
            Class::Event => (self.limit.saturating_mul(2), &mut self.events_cut),
        };
        let bytes = bytes as u64;
        // Once cut, always cut: a transcript with holes of chance would look complete where it is not.
        if !*cut && self.written.saturating_add(bytes) <= limit {
            return Admission::Write;
        }
        let dropped = &mut self.dropped;
        let (events, sum) = match class {
            Class::Output => (&mut dropped.output_events, &mut dropped.output_bytes),
            _ => (&mut dropped.events, &mut dropped.event_bytes),
        };
        *events += 1;
        *sum += bytes;
        if std::mem::replace(cut, true) { Admission::Drop } else { Admission::Cut }
    }

    pub(super) fn output_is_cut(&self) -> bool {
        self.output_cut
    }
}
