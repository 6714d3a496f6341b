//! A disk is full or broken, an observer panics, or many callers record at once. The transcript must report this, and
//! must never block its callers.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use guard::run::transcript::{self, EventType, Outcome, Sink, Stream, check};
use serde_json::json;

use super::{events, path, settings, start};
use crate::support::{Scratch, wait_until};

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

#[test]
fn full_disk_is_reported_and_does_not_block() {
    let scratch = Scratch::new("full");
    let seen = Arc::new(Mutex::new(0));
    let observer = {
        let seen = seen.clone();
        Box::new(move |_: &transcript::Line<'_>| *seen.lock().unwrap() += 1)
    };
    let full = Box::new(Device(OpenOptions::new().write(true).open("/dev/full").unwrap()));
    let (recorder, writer) = transcript::start_on(full, &settings(&scratch), Some(observer)).unwrap();
    assert_eq!(recorder.failure(), None);
    recorder.record(EventType::Exec, "one", &json!({}));
    wait_until("the failure is reported", || recorder.failure().is_some());
    assert!(recorder.failure().unwrap().contains("No space left"), "{:?}", recorder.failure());
    for _ in 0..64 {
        recorder.output(Stream::Stdout, &vec![b'x'; 1 << 20]);
    }
    recorder.record(EventType::RunFinished, "", &json!({}));
    let error = writer.finish().unwrap_err();
    assert!(error.to_string().contains("No space left"), "{error}");
    assert!(*seen.lock().unwrap() > 64, "the observer goes on");
}

#[test]
fn panicking_observer_does_not_block() {
    let scratch = Scratch::new("panic");
    let observer = Box::new(|_: &transcript::Line<'_>| panic!("this panic belongs to a test"));
    let (recorder, writer) = transcript::start(&settings(&scratch), Some(observer)).unwrap();
    recorder.record(EventType::Exec, "one", &json!({}));
    for _ in 0..64 {
        recorder.output(Stream::Stdout, &vec![b'x'; 1 << 20]);
    }
    wait_until("the failure is reported", || recorder.failure().is_some());
    writer.catch_up();
    assert!(writer.finish().is_err());
}

/// A disk that records how much was written before each sync, and that can fail.
struct Disk {
    bytes: usize,
    kept: Arc<Mutex<Vec<usize>>>,
    is_broken: bool,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Disk {
    fn sync(&mut self) -> io::Result<()> {
        self.kept.lock().unwrap().push(self.bytes);
        if self.is_broken { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
    }
}

#[test]
fn first_and_last_events_are_synced_to_disk() {
    let scratch = Scratch::new("durable");
    let kept = Arc::new(Mutex::new(Vec::new()));
    let disk = |is_broken| Box::new(Disk { bytes: 0, kept: kept.clone(), is_broken });
    let (recorder, writer) = transcript::start_on(disk(false), &settings(&scratch), None).unwrap();
    recorder.record(EventType::RunStarted, "", &json!({}));
    writer.write_now();
    wait_until("the first event is synced", || kept.lock().unwrap().len() == 1);
    for _ in 0..100 {
        recorder.record(EventType::Exec, "one", &json!({}));
        writer.write_now();
    }
    recorder.record(EventType::RunFinished, "", &json!({}));
    let head = writer.finish().unwrap();
    let times = kept.lock().unwrap().clone();
    let [first, last] = times[..] else { panic!("{times:?}") };
    assert!((first as u64) < head.bytes && last as u64 == head.bytes, "{times:?} {head:?}");
    // If the first sync fails, guard must report the failure, even if the last sync succeeds.
    let (recorder, writer) = transcript::start_on(disk(true), &settings(&scratch), None).unwrap();
    recorder.record(EventType::RunStarted, "", &json!({}));
    wait_until("the failure is reported", || recorder.failure().is_some());
    assert!(writer.finish().is_err());
}

#[test]
fn catch_up_waits_until_the_observer_has_seen_everything() {
    let scratch = Scratch::new("catch-up");
    let seen = Arc::new(Mutex::new(0));
    let observer = {
        let seen = seen.clone();
        Box::new(move |_: &transcript::Line<'_>| {
            std::thread::sleep(Duration::from_micros(300));
            *seen.lock().unwrap() += 1;
        })
    };
    let (recorder, writer) = transcript::start(&settings(&scratch), Some(observer)).unwrap();
    writer.catch_up();
    for round in 1..=50 {
        for _ in 0..7 {
            recorder.record(EventType::Exec, "one", &json!({}));
        }
        writer.catch_up();
        assert_eq!(*seen.lock().unwrap(), 7 * round);
    }
    // `catch_up` must also wait for the observer if the writer thread has gone to sleep.
    std::thread::sleep(Duration::from_millis(1500));
    writer.catch_up();
    recorder.record(EventType::Exec, "last", &json!({}));
    writer.catch_up();
    assert_eq!(*seen.lock().unwrap(), 351);
    writer.finish().unwrap();
}

struct Panics;

impl serde::Serialize for Panics {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("this panic belongs to a test")
    }
}

#[test]
fn panic_during_serialization_loses_only_its_event() {
    let scratch = Scratch::new("panicking-data");
    let (recorder, writer) = start(&scratch);
    recorder.record(EventType::Exec, "before", &json!({}));
    let other = recorder.clone();
    assert!(std::thread::spawn(move || other.record(EventType::Exec, "lost", &Panics)).join().is_err());
    recorder.record(EventType::Exec, "after", &json!({}));
    writer.finish().unwrap();
    let messages: Vec<String> = events(&scratch).into_iter().map(|event| event.message).collect();
    assert_eq!(messages, ["before", "after"]);
}

#[test]
fn existing_transcript_is_never_overwritten() {
    let scratch = Scratch::new("exists");
    super::short_run(&scratch);
    let error = transcript::start(&settings(&scratch), None).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
}

#[test]
fn transcript_is_readable_only_by_the_user() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("mode");
    super::short_run(&scratch);
    assert_eq!(std::fs::metadata(path(&scratch)).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn events_of_many_threads_are_all_written_and_observed() {
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
                    recorder.record(EventType::Exec, "", &json!({ "thread": thread, "index": index }));
                    if index % 50 == 0 {
                        recorder.output(Stream::Stdout, &[b'o'; 5_000]);
                    }
                }
            });
        }
    });
    recorder.record(EventType::RunFinished, "", &json!({}));
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
fn event_reaches_the_file_soon_without_a_flush() {
    let scratch = Scratch::new("soon");
    let (recorder, writer) = start(&scratch);
    for round in 1..=3 {
        recorder.record(EventType::Exec, "now", &json!({}));
        let start = Instant::now();
        wait_until("the event is in the file", || events(&scratch).len() == round);
        // The goal is ten milliseconds. The limit is higher, because other tests may keep the machine busy.
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        // In the first round the pause is long enough for the writer thread to go to sleep.
        std::thread::sleep(Duration::from_millis(if round == 1 { 1_200 } else { 20 }));
    }
    drop(writer);
}
