//! Verifies a transcript: the hash, the sequence number and the run id of every line.
//!
//! The hash chain reveals a change to any line but the last, and any missing line before the end. A process
//! that can write the file can also recompute the whole chain. Only the head hash that `guard` printed at the
//! end of the run protects against that.

use std::io::{self, Read};
use std::path::Path;

use super::chain;
use super::chain::BEGINNING;
use super::event::Event;
use super::event_type::EventType;
use super::reader::{Reader, Step};
use super::writer::Head;

/// The result of verifying a transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The run id in the first line of the transcript; empty if that line is missing or invalid.
    pub run_id: String,
    pub outcome: Outcome,
    /// The sequence number and hash of the last line before the first invalid one, and the size of the lines up to it.
    pub head: Head,
    /// What was dropped because of the size limit, as the transcript itself reports it; `None` if nothing was
    /// dropped.
    pub left_out: Option<String>,
}

/// Whether a transcript is intact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every line is valid, and the last event of the run is present.
    Complete,
    /// Every line is valid, but the last event, `run.finished`, is missing. An incomplete line may follow.
    Unfinished {
        /// The number of bytes after the last newline, that is, of the incomplete line.
        partial: usize,
    },
    /// A line was changed or is missing.
    Broken {
        /// The number of the first invalid line, from 1.
        line: u64,
        problem: Problem,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The line is not an event; the text says why.
    #[error("{0}")]
    NotAnEvent(String),
    /// The chain is broken: this line or the one before was changed, or a line between them is missing.
    #[error("the hash chain is broken: `prev` is {found}, but the hash of the line before is {expected}")]
    Chain {
        /// The value of `prev` in this line.
        found: String,
        /// The actual hash of the line before.
        expected: String,
    },
    /// The line has the wrong sequence number.
    #[error("the sequence number of the line is {found}, but must be {expected}")]
    Number {
        /// The sequence number in this line.
        found: u64,
        /// The sequence number of the line before, plus one.
        expected: u64,
    },
    /// The line has the id of another run.
    #[error("the line belongs to another run, {0}")]
    OtherRun(String),
    /// The line comes after the last event of the run, `run.finished`.
    #[error("the line follows the last event of the run, `run.finished`")]
    AfterTheEnd,
}

/// Verifies the transcript file at `path`, up to its first invalid line. Fails only if the file cannot be read.
pub fn check(path: &Path) -> io::Result<Check> {
    check_all(Reader::open(path)?)
}

fn check_all<R: Read>(mut reader: Reader<R>) -> io::Result<Check> {
    let mut run_id: Option<String> = None;
    let mut head = Head { seq: 0, hash: chain::text(&BEGINNING), bytes: 0 };
    let mut finished = false;
    let mut left_out = None;
    let outcome = loop {
        let problem = match reader.step()? {
            Step::End { partial: 0 } if finished => break Outcome::Complete,
            Step::End { partial } if !finished => break Outcome::Unfinished { partial },
            Step::End { .. } => Problem::AfterTheEnd,
            Step::Bad(why) => Problem::NotAnEvent(why),
            Step::Event(event) => match wrong(&event, &head, run_id.as_deref(), finished) {
                Some(problem) => problem,
                None => {
                    let line = reader.line();
                    head.seq = event.seq;
                    head.hash = chain::text(&chain::hash(line));
                    head.bytes += line.len() as u64 + 1;
                    finished = event.event_type == EventType::RunFinished;
                    if event.event_type == EventType::TranscriptDropped {
                        left_out = Some(event.message);
                    }
                    run_id.get_or_insert(event.run_id);
                    continue;
                }
            },
        };
        break Outcome::Broken { line: head.seq + 1, problem };
    };
    Ok(Check { run_id: run_id.unwrap_or_default(), outcome, head, left_out })
}

fn wrong(event: &Event, head: &Head, run_id: Option<&str>, finished: bool) -> Option<Problem> {
    if finished {
        return Some(Problem::AfterTheEnd);
    }
    if run_id.is_some_and(|run_id| run_id != event.run_id) {
        return Some(Problem::OtherRun(event.run_id.clone()));
    }
    if event.seq != head.seq + 1 {
        return Some(Problem::Number { found: event.seq, expected: head.seq + 1 });
    }
    let chained = event.prev == head.hash;
    (!chained).then(|| Problem::Chain { found: event.prev.clone(), expected: head.hash.clone() })
}
