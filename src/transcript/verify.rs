//! A transcript → is it what was written? Every hash, number and name, to the last line.
//!
//! The chain shows a change in any line but the last and any line that is missing inside. Somebody who can write the
//! file can also make the whole chain anew: against that only the head helps, which `guard` printed when the run ended.

use std::io::{self, Read};
use std::path::Path;

use super::chain::{self, BEGINNING};
use super::event::Event;
use super::event_type::EventType;
use super::reader::{Reader, Step};
use super::writer::Head;

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The run named in the first line.
    pub run_id: String,
    /// How it stands.
    pub outcome: Outcome,
    /// The last line that is in order.
    pub head: Head,
    /// What the transcript itself says was left out of it, because it reached its bound.
    pub left_out: Option<String>,
}

/// How a transcript stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// In order from the first line to the end of the run.
    Complete,
    /// In order, but the run's end is missing; so many bytes of an unfinished line follow.
    Unfinished {
        /// Bytes after the last newline.
        partial: usize,
    },
    /// Something was changed.
    Broken {
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        problem: Problem,
    },
}

/// What can be wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// No event.
    #[error("{0}")]
    NotAnEvent(String),
    /// The chain is broken: this line or the one before was changed, or one between them is missing.
    #[error(
        "it does not follow from the line before: prev is {found}, the hash of the line before is {expected}"
    )]
    Chain {
        /// In the file.
        found: String,
        /// The hash of the line before.
        expected: String,
    },
    /// A wrong number.
    #[error("its seq is {found} and should be {expected}")]
    Number {
        /// In the file.
        found: u64,
        /// One more than the line before.
        expected: u64,
    },
    /// From another run.
    #[error("it belongs to another run, {0}")]
    OtherRun(String),
    /// The run had ended.
    #[error("it stands after the end of the run")]
    AfterTheEnd,
}

/// Checks a file.
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
