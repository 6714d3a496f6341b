//! Each line of a transcript contains the hash of the previous one. guard must detect every change of a line.

use guard::cli::SCHEMAS;
use guard::run::transcript::{Check, EventType, Outcome, Problem, check};
use serde_json::{Value, json};

use super::{RUN, events, path, short_run, start};
use crate::support::Scratch;

fn check_bytes(bytes: &[u8]) -> Check {
    let scratch = Scratch::new("check");
    check(&scratch.write("transcript.jsonl", bytes)).unwrap()
}

fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect()
}

fn broken_at(bytes: &[u8]) -> Option<u64> {
    match check_bytes(bytes).outcome {
        Outcome::Broken { line, .. } => Some(line),
        _ => None,
    }
}

#[test]
fn lines_have_the_documented_keys_and_chain_to_the_previous_line() {
    let scratch = Scratch::new("chain");
    let head = short_run(&scratch);
    let bytes = std::fs::read(path(&scratch)).unwrap();
    assert_eq!(head.bytes, bytes.len() as u64);
    let mut before = "0".repeat(64);
    for (index, line) in bytes.strip_suffix(b"\n").unwrap().split(|&byte| byte == b'\n').enumerate() {
        let value: Value = serde_json::from_slice(line).unwrap();
        let keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = ["event_type", "message", "timestamp", "data", "run_id", "seq", "prev"];
        expected.sort_unstable();
        let mut keys = keys;
        keys.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(value["seq"], json!(index + 1));
        assert_eq!(value["run_id"], RUN);
        assert_eq!(value["prev"], json!(before));
        before = sha256(line);
    }
    assert_eq!(head.hash, before);
    let schema = SCHEMAS.iter().find(|(name, _)| *name == "event.schema.json").unwrap().1();
    let schema = jsonschema::validator_for(&schema).unwrap();
    for line in lines(&bytes) {
        assert!(schema.is_valid(&serde_json::from_slice(&line).unwrap()));
    }
    assert!(!schema.is_valid(&json!({ "event_type": "exec" })));
    let found = check(&path(&scratch)).unwrap();
    assert_eq!((found.outcome, found.head, found.run_id.as_str()), (Outcome::Complete, head, RUN));
}

/// Returns the hash from the system's `sha256sum`, which is independent of guard's implementation.
fn sha256(bytes: &[u8]) -> String {
    use std::io::Write;
    let mut child = std::process::Command::new("sha256sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap()[..64].to_string()
}

#[test]
fn flipped_byte_is_found_anywhere() {
    let scratch = Scratch::new("flip");
    let head = short_run(&scratch);
    let bytes = std::fs::read(path(&scratch)).unwrap();
    let last_line = bytes.len() - lines(&bytes).last().unwrap().len();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        let found = check_bytes(&changed);
        if at < last_line {
            assert!(matches!(found.outcome, Outcome::Broken { .. }), "byte {at}: {:?}", found.outcome);
        } else {
            // No later line contains the hash of the last line. A change of the last line must make it invalid, or
            // must change the head that the verification returns.
            assert!(found.outcome != Outcome::Complete || found.head != head, "byte {at} of the last line");
        }
    }
}

#[test]
fn dropped_swapped_inserted_and_foreign_lines_are_found() {
    let scratch = Scratch::new("lines");
    short_run(&scratch);
    let lines = lines(&std::fs::read(path(&scratch)).unwrap());
    for dropped in 0..lines.len() - 1 {
        let mut left = lines.clone();
        left.remove(dropped);
        assert_eq!(broken_at(&left.concat()), Some(dropped as u64 + 1), "without line {}", dropped + 1);
    }
    for first in 0..lines.len() - 1 {
        let mut swapped = lines.clone();
        swapped.swap(first, first + 1);
        assert_eq!(broken_at(&swapped.concat()), Some(first as u64 + 1));
    }
    for place in 1..=lines.len() {
        let mut more = lines.clone();
        more.insert(place, lines[place - 1].clone());
        assert_eq!(broken_at(&more.concat()), Some(place as u64 + 1));
    }
    let renamed = String::from_utf8(lines[2].clone()).unwrap().replace(RUN, "another");
    let found = check_bytes(&[lines[0].clone(), lines[1].clone(), renamed.into_bytes()].concat());
    assert_eq!(found.outcome, Outcome::Broken { line: 3, problem: Problem::OtherRun("another".to_string()) });
    let garbage = check_bytes(&[lines[0].as_slice(), b"not json\n"].concat());
    assert!(matches!(garbage.outcome, Outcome::Broken { line: 2, problem: Problem::NotAnEvent(_) }));
}

#[test]
fn sequence_gap_is_found_despite_recomputed_hashes() {
    let mut prev = "0".repeat(64);
    let mut file = Vec::new();
    for seq in [1, 2, 4] {
        let line = json!({ "event_type": "exec", "run_id": RUN, "seq": seq, "prev": prev }).to_string();
        prev = sha256(line.as_bytes());
        file.extend_from_slice(line.as_bytes());
        file.push(b'\n');
    }
    let problem = Problem::Number { found: 4, expected: 3 };
    assert_eq!(check_bytes(&file).outcome, Outcome::Broken { line: 3, problem });
}

#[test]
fn truncated_file_is_read_to_its_last_complete_line() {
    let scratch = Scratch::new("cut");
    short_run(&scratch);
    let bytes = std::fs::read(path(&scratch)).unwrap();
    for length in 0..bytes.len() {
        let kept = &bytes[..length];
        let complete = kept.iter().filter(|&&byte| byte == b'\n').count();
        let partial = length - kept.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let found = check_bytes(kept);
        assert_eq!(found.outcome, Outcome::Unfinished { partial }, "at {length}");
        assert_eq!(found.head.seq, complete as u64);
    }
}

#[test]
fn event_times_are_utc_microseconds_and_never_decrease() {
    let scratch = Scratch::new("times");
    let (recorder, writer) = start(&scratch);
    let before = jiff::Timestamp::now();
    for _ in 0..1000 {
        recorder.record(EventType::Note, "", &json!({}));
    }
    writer.finish().unwrap();
    let after = jiff::Timestamp::now();
    let events = events(&scratch);
    let times: Vec<jiff::Timestamp> = events.iter().map(|event| event.time().unwrap()).collect();
    assert!(times.is_sorted());
    let slack = jiff::SignedDuration::from_micros(1);
    assert!(times[0] >= before - slack && times[999] <= after + slack);
    for event in events {
        assert_eq!(event.timestamp.len(), "2026-01-02T03:04:05.678901Z".len(), "{}", event.timestamp);
    }
}

#[test]
fn events_after_the_end_are_not_written() {
    let scratch = Scratch::new("late");
    let (recorder, writer) = start(&scratch);
    recorder.record(EventType::RunStarted, "", &json!({}));
    recorder.record(EventType::RunFinished, "", &json!({}));
    recorder.record(EventType::Exec, "too late", &json!({}));
    writer.finish().unwrap();
    recorder.record(EventType::Exec, "much too late", &json!({}));
    assert_eq!(super::types(&events(&scratch)), ["run.started", "run.finished"]);
    assert_eq!(check(&path(&scratch)).unwrap().outcome, Outcome::Complete);
}
