//! Records and reads transcripts, and checks the file and the result of its verification.

mod chain;
mod earlier_versions;
mod failure;
mod killed;
mod output;
mod reader;
mod redact;
mod size_limit;
mod store;

use std::path::PathBuf;

use guard::run::transcript::{self, Event, EventType, FILE, Reader, Recorder, Settings, Step, Writer};
use serde_json::json;

use crate::support::Scratch;

pub(crate) const RUN: &str = "0197f0a0-1111-7222-8333-444455556666";

pub(crate) fn settings(scratch: &Scratch) -> Settings {
    Settings {
        folder: scratch.0.clone(),
        run_id: RUN.to_string(),
        limit_bytes: u64::MAX,
        reserve_bytes: 0,
        redact_values: Vec::new(),
    }
}

pub(crate) fn start(scratch: &Scratch) -> (Recorder, Writer) {
    transcript::start(&settings(scratch), None).unwrap()
}

pub(crate) fn path(scratch: &Scratch) -> PathBuf {
    scratch.0.join(FILE)
}

pub(crate) fn events(scratch: &Scratch) -> Vec<Event> {
    let mut reader = Reader::open(&path(scratch)).unwrap();
    let mut events = Vec::new();
    loop {
        match reader.step().unwrap() {
            Step::Event(event) => events.push(*event),
            Step::Bad(why) => panic!("{why}"),
            Step::End { partial } => {
                assert_eq!(partial, 0);
                return events;
            }
        }
    }
}

pub(crate) fn types(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.event_type.as_str()).collect()
}

/// Writes a transcript of six events.
pub(crate) fn short_run(scratch: &Scratch) -> transcript::Head {
    let (recorder, writer) = start(scratch);
    recorder.record(
        EventType::RunStarted,
        "guard run -- make",
        &json!({ "command": ["make"], "policy": "strict" }),
    );
    for index in 0..4 {
        recorder.record(
            EventType::Exec,
            &format!("cc -c {index}.c"),
            &json!({ "index": index, "path": "/usr/bin/cc" }),
        );
    }
    recorder.record(
        EventType::RunFinished,
        "exit 0",
        &json!({ "success": true, "exit_code": 0, "denials": [] }),
    );
    writer.finish().unwrap()
}
