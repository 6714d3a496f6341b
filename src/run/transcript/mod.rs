//! Writes the events of a run as hash-chained lines to an append-only file, the transcript. Also reads, verifies and
//! stores transcripts.
//!
//! Every run has one file, `transcript.jsonl`, written outside the sandbox by one thread. Callers append to a
//! buffer under a mutex ([`Recorder`]); the thread redacts, chains and writes ([`Writer`]). A line is an
//! [`Event`], which is also the only schema for the live display, replay and reports. The caller must record
//! [`EventType::RunStarted`] first and [`EventType::RunFinished`] last. A file without that last line belongs
//! to a run that was interrupted.
//!
//! This module must never write a secret to disk, queue without bound, call fsync while the agent waits, or
//! change a line after writing it.

mod base64;
mod chain;
mod credential_patterns;
mod event;
mod event_type;
mod output;
mod reader;
mod recorder;
mod redact;
mod size_limit;
mod store;
mod verify;
mod writer;

pub use base64::{base64, decode as decode_base64};
pub use event::{Event, Stream};
pub use event_type::EventType;
pub use reader::{LONGEST_LINE, Reader, Step};
pub use recorder::{Prepared, Recorder};
pub use redact::{MARK, Redactor, StreamRedactor};
pub use store::{FILE, FindError, Run, RunState, StateDirError, Store, runs_dir};
pub use verify::{Check, Outcome, Problem, check};
pub use writer::{Head, Line, Observer, Settings, Sink, Writer, create, prepare, start, start_on};
