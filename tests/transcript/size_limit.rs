//! A transcript must not grow beyond its limit, and must say what it left out.

use guard::run::transcript::{self, EventType, Outcome, Settings, Stream, check};
use serde_json::json;

use super::{events, path, settings, types};
use crate::support::Scratch;

#[test]
fn output_is_dropped_before_events_and_the_end_is_always_recorded() {
    const LIMIT: u64 = 200_000;
    let scratch = Scratch::new("bound");
    let settings = Settings { limit_bytes: LIMIT, ..settings(&scratch) };
    let (recorder, writer) = transcript::start(&settings, None).unwrap();
    recorder.record(EventType::RunStarted, "", &json!({}));
    for _ in 0..300 {
        recorder.output(Stream::Stdout, &[b'x'; 1000]);
    }
    recorder.record(EventType::DenyExec, "still in", &json!({ "rule": "r", "reason": "why" }));
    for _ in 0..500 {
        recorder.record(EventType::Exec, &"y".repeat(1000), &json!({}));
    }
    recorder.record(EventType::RunFinished, "the end", &json!({ "exit_code": 0 }));
    let head = writer.finish().unwrap();

    let events = events(&scratch);
    let count = |wanted: &str| events.iter().filter(|event| event.event_type == wanted).count();
    assert_eq!(count("transcript.cut"), 2, "one for output, one for events");
    assert_eq!((count("deny.exec"), count("transcript.dropped"), count("run.finished")), (1, 1, 1));
    assert_eq!(types(&events)[events.len() - 2..], ["transcript.dropped", "run.finished"]);
    let last_output = events.iter().rposition(|event| event.event_type == "output").unwrap();
    assert_eq!(events[last_output + 1].event_type, "transcript.cut");
    assert_eq!(events[last_output + 1].data["dropped"], "output");

    let dropped = &events[events.len() - 2].data;
    assert_eq!(dropped["output_events"], json!(300 - count("output")));
    assert_eq!(dropped["events"], json!(500 - count("exec")));
    assert!(count("output") > 100 && count("output") < 200, "{}", count("output"));
    assert!(head.bytes > LIMIT && head.bytes < 2 * LIMIT + 5_000, "{}", head.bytes);
    assert_eq!(check(&path(&scratch)).unwrap().outcome, Outcome::Complete);
}

/// A transcript is full at twice its limit. guard must then record an event that says so, and still record refusals and
/// findings after it.
#[test]
fn full_transcript_records_the_limit_and_later_refusals() {
    const LIMIT: u64 = 20_000;
    let scratch = Scratch::new("full");
    let settings = Settings { limit_bytes: LIMIT, reserve_bytes: 10_000, ..settings(&scratch) };
    let (recorder, writer) = transcript::start(&settings, None).unwrap();
    recorder.record(EventType::RunStarted, "", &json!({}));
    assert_eq!(recorder.full_at(), None);
    // Each control character takes six bytes in a line of the transcript.
    for _ in 0..100 {
        recorder.record(EventType::Exec, &"\u{1}".repeat(100), &json!({}));
    }
    writer.catch_up();
    assert_eq!(recorder.full_at(), Some(2 * LIMIT));
    recorder.record(EventType::DenyExec, "refused", &json!({ "rule": "r" }));
    recorder.record(EventType::Finding, "found", &json!({}));
    recorder.record(EventType::GitReceived, "received", &json!({}));
    recorder.record(EventType::Note, "of no importance", &json!({}));
    recorder.record(EventType::RunFinished, "the end", &json!({}));
    let head = writer.finish().unwrap();
    let events = events(&scratch);
    let types = types(&events);
    let full = types.iter().position(|kind| *kind == "transcript.full").unwrap();
    let before: u64 = 2 * LIMIT;
    assert_eq!(types.iter().filter(|kind| **kind == "transcript.full").count(), 1);
    assert!(types[full + 1..].contains(&"exec"), "what was under way is written: {types:?}");
    assert_eq!(
        types[types.len() - 6..],
        ["transcript.cut", "deny.exec", "finding", "git.received", "transcript.dropped", "run.finished"]
    );
    assert!(head.bytes > before && head.bytes < before + 10_000 + 3_000, "{}", head.bytes);
    let check = check(&path(&scratch)).unwrap();
    assert_eq!(check.outcome, Outcome::Complete);
    assert!(check.left_out.unwrap().contains("other events"));
}

#[test]
fn small_output_after_the_limit_is_not_recorded() {
    let scratch = Scratch::new("slip");
    let settings = Settings { limit_bytes: 2_000, ..settings(&scratch) };
    let (recorder, writer) = transcript::start(&settings, None).unwrap();
    recorder.output(Stream::Stdout, &[b'x'; 3_000]);
    recorder.output(Stream::Stdout, b"small\n");
    recorder.record(EventType::Exec, &"y".repeat(5_000), &json!({}));
    recorder.record(EventType::Exec, "small", &json!({}));
    writer.finish().unwrap();
    let events = events(&scratch);
    assert_eq!(types(&events), ["transcript.cut", "transcript.full", "transcript.cut", "transcript.dropped"]);
    assert_eq!(events[3].data["output_events"], 2);
    assert_eq!(events[3].data["events"], 2);
}

#[test]
fn transcript_below_its_limit_has_no_limit_event() {
    let scratch = Scratch::new("unbound");
    super::short_run(&scratch);
    assert!(types(&events(&scratch)).iter().all(|kind| !kind.starts_with("transcript.")));
}

#[test]
fn output_over_the_limit_uses_neither_memory_nor_disk() {
    let scratch = Scratch::new("flood");
    let settings = Settings { limit_bytes: 1 << 20, ..settings(&scratch) };
    let (recorder, writer) = transcript::start(&settings, None).unwrap();
    let chunk = vec![b'z'; 1 << 20];
    for _ in 0..256 {
        recorder.output(Stream::Terminal, &chunk);
    }
    let head = writer.finish().unwrap();
    assert!(head.bytes < 2 << 20, "{}", head.bytes);
    let events = events(&scratch);
    let kept: u64 =
        events.iter().filter_map(|event| event.output()).map(|(_, bytes)| bytes.len() as u64).sum();
    let dropped = events.last().unwrap().data["output_bytes"].as_u64().unwrap();
    // guard counts the event that exceeded the limit by its JSON text, which is a few bytes longer than the output in
    // it.
    assert!((kept + dropped).abs_diff(256 << 20) < 100, "{kept} + {dropped}");
}

#[test]
fn events_too_large_or_deep_to_read_are_shortened() {
    let scratch = Scratch::new("huge");
    let (recorder, writer) = super::start(&scratch);
    let mut deep = json!(0);
    for _ in 0..120 {
        deep = json!([deep]);
    }
    recorder.record(EventType::Exec, &"é".repeat(100_000), &json!({ "argv": "a".repeat(9 << 20) }));
    recorder.record(EventType::Exec, "deep", &deep);
    recorder.record(
        EventType::Exec,
        "keys that are no text",
        &std::collections::BTreeMap::from([(Some([1u8]), 1)]),
    );
    writer.finish().unwrap();
    let events = events(&scratch);
    assert!(events[0].message.len() < 70_000 && events[0].message.ends_with('…'));
    assert!(events[0].data["data_bytes"].as_u64().unwrap() > 9 << 20);
    assert!(events[0].data["data_beginning"].as_str().unwrap().starts_with("{\"argv\":\"aaa"));
    assert_eq!(events[1].data, json!({ "data_lost": "nested too deep" }));
    assert!(events[2].data["data_lost"].is_string());
}
