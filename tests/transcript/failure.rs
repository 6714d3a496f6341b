//! A disk that is full, an observer that panics, many callers at once: told, never waited for.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use guard::transcript::{self, Outcome, Sink, Stream, check};
use serde_json::json;

use super::{events, path, settings, start};
use crate::support::Scratch;

struct Device(std::fs::File);

impl Write for Device {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Device {
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn wait_for(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_full_disk_is_told_and_blocks_nobody() {
    let scratch = Scratch::new("full");
    let seen = Arc::new(Mutex::new(0));
    let observer = {
        let seen = seen.clone();
        Box::new(move |_: &transcript::Line<'_>| *seen.lock().unwrap() += 1)
    };
    let full = Box::new(Device(OpenOptions::new().write(true).open("/dev/full").unwrap()));
    let (recorder, writer) = transcript::start_on(full, &settings(&scratch), Some(observer)).unwrap();
    assert_eq!(recorder.failure(), None);
    recorder.record("exec", "one", &json!({}));
    wait_for(|| recorder.failure().is_some());
    assert!(recorder.failure().unwrap().contains("No space left"), "{:?}", recorder.failure());
    for _ in 0..64 {
        recorder.output(Stream::Stdout, &vec![b'x'; 1 << 20]);
    }
    recorder.record("run.finished", "", &json!({}));
    let error = writer.finish().unwrap_err();
    assert!(error.to_string().contains("No space left"), "{error}");
    assert!(*seen.lock().unwrap() > 64, "the observer goes on");
}

#[test]
fn an_observer_that_panics_blocks_nobody() {
    let scratch = Scratch::new("panic");
    let observer = Box::new(|_: &transcript::Line<'_>| panic!("this panic belongs to a test"));
    let (recorder, writer) = transcript::start(&settings(&scratch), Some(observer)).unwrap();
    recorder.record("exec", "one", &json!({}));
    for _ in 0..64 {
        recorder.output(Stream::Stdout, &vec![b'x'; 1 << 20]);
    }
    wait_for(|| recorder.failure().is_some());
    assert!(writer.finish().is_err());
}

struct Panics;

impl serde::Serialize for Panics {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("this panic belongs to a test")
    }
}

#[test]
fn data_that_panics_costs_its_own_event_only() {
    let scratch = Scratch::new("panicking-data");
    let (recorder, writer) = start(&scratch);
    recorder.record("exec", "before", &json!({}));
    let other = recorder.clone();
    assert!(std::thread::spawn(move || other.record("exec", "lost", &Panics)).join().is_err());
    recorder.record("exec", "after", &json!({}));
    writer.finish().unwrap();
    let messages: Vec<String> = events(&scratch).into_iter().map(|event| event.message).collect();
    assert_eq!(messages, ["before", "after"]);
}

#[test]
fn an_existing_transcript_is_never_written_over() {
    let scratch = Scratch::new("exists");
    super::short_run(&scratch);
    let error = transcript::start(&settings(&scratch), None).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
}

#[test]
fn only_the_user_can_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("mode");
    super::short_run(&scratch);
    assert_eq!(std::fs::metadata(path(&scratch)).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn many_threads_lose_nothing_and_observers_see_what_is_written() {
    let scratch = Scratch::new("threads");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observer = {
        let seen = seen.clone();
        Box::new(move |line: &transcript::Line<'_>| {
            assert!(line.data.starts_with('{'));
            seen.lock().unwrap().extend_from_slice(&[line.json, b"\n"].concat());
        })
    };
    let (recorder, writer) = transcript::start(&settings(&scratch), Some(observer)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let recorder = recorder.clone();
            scope.spawn(move || {
                for index in 0..2_000 {
                    recorder.record("exec", "", &json!({ "thread": thread, "index": index }));
                    if index % 50 == 0 {
                        recorder.output(Stream::Stdout, &[b'o'; 5_000]);
                    }
                }
            });
        }
    });
    recorder.record("run.finished", "", &json!({}));
    writer.finish().unwrap();
    assert_eq!(check(&path(&scratch)).unwrap().outcome, Outcome::Complete);
    let events = events(&scratch);
    for thread in 0..8 {
        let own = events.iter().filter(|event| event.data["thread"] == json!(thread));
        let indices: Vec<u64> = own.map(|event| event.data["index"].as_u64().unwrap()).collect();
        assert!(indices.iter().copied().eq(0..2_000), "thread {thread}");
    }
    assert_eq!(*seen.lock().unwrap(), std::fs::read(path(&scratch)).unwrap());
}

#[test]
fn a_line_reaches_the_file_soon_without_anyone_asking() {
    let scratch = Scratch::new("soon");
    let (recorder, writer) = start(&scratch);
    for round in 1..=3 {
        recorder.record("exec", "now", &json!({}));
        let start = Instant::now();
        wait_for(|| events(&scratch).len() == round);
        // Ten milliseconds are meant; the rest is for a machine that is busy with other tests.
        assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
        // Long enough for the writer to fall asleep once.
        std::thread::sleep(Duration::from_millis(if round == 1 { 1_200 } else { 20 }));
    }
    drop(writer);
}
