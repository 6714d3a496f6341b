//! Measures how fast guard records, writes and verifies events: `cargo bench --bench transcript`. Every figure is a
//! median of one run.
//!
//! A row that exceeds the project's target is marked as missed. No benchmark fails, because a loaded machine is not a
//! bug.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use guard::run::transcript::{
    self, EventType, FILE, Redactor, Settings, Sink, Store, Stream, StreamRedactor,
};
use serde::Serialize;

#[derive(Serialize)]
struct Exec<'a> {
    path: &'a str,
    argv: &'a [&'a str],
    pid: u32,
    parent: u32,
    cwd: &'a str,
    decision: &'a str,
    rule: &'a str,
}

const EXEC: Exec<'static> = Exec {
    path: "/usr/bin/rustc",
    argv: &["rustc", "--edition=2024", "-C", "opt-level=1", "--crate-name", "guard", "src/lib.rs"],
    pid: 41_233,
    parent: 41_200,
    cwd: "/home/someone/project/worktrees/add-a-dark-mode",
    decision: "allow",
    rule: "default",
};
const MESSAGE: &str = "rustc --edition=2024 -C opt-level=1 --crate-name guard src/lib.rs";

fn main() {
    println!("{:<52} {:>14} {:>14}", "what", "median", "bar");
    // `finish` must run first, before other measurements keep the disk busy.
    finish();
    hot_path();
    sustained();
    latency();
    output();
    redaction();
    reading();
    listing();
}

fn row(what: &str, value: &str, bar: &str, held: bool) {
    println!("{what:<52} {value:>14} {bar:>14}{}", if held { "" } else { "  MISSED" });
}

fn show(time: Duration) -> String {
    if time < Duration::from_micros(1) {
        format!("{} ns", time.as_nanos())
    } else if time < Duration::from_millis(1) {
        format!("{:.2} µs", time.as_secs_f64() * 1e6)
    } else {
        format!("{:.2} ms", time.as_secs_f64() * 1e3)
    }
}

fn middle<T: PartialOrd + Copy>(mut values: Vec<T>) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).expect("comparable"));
    values[values.len() / 2]
}

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("guard-bench-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder for the benchmark");
    path
}

fn settings(folder: PathBuf) -> Settings {
    let secret = |index: usize| format!("s3cret-value-number-{index}-Qx7").into_bytes();
    Settings {
        folder,
        run_id: "0197f0a0-0000-7000-8000-000000000000".to_string(),
        limit_bytes: u64::MAX,
        reserve_bytes: 0,
        redact_values: (0..10).map(secret).collect(),
    }
}

/// Measures how long one `record` call blocks its caller: while the writer thread is awake (a call every 200 µs), and
/// after the thread has gone to sleep (a call every 1.2 s).
fn hot_path() {
    for (what, pause, bar) in [
        ("record, one every 200 µs (p50)", Duration::from_micros(200), 2.0),
        ("record, one every 1.2 s: the writer sleeps (p50)", Duration::from_millis(1200), 20.0),
    ] {
        let place = folder("hot");
        let (recorder, writer) = transcript::start(&settings(place.clone()), None).expect("a transcript");
        let rounds = if pause > Duration::from_millis(10) { 7 } else { 2_000 };
        let times: Vec<Duration> = (0..rounds)
            .map(|_| {
                std::thread::sleep(pause);
                let start = Instant::now();
                recorder.record(EventType::Exec, MESSAGE, &EXEC);
                start.elapsed()
            })
            .collect();
        writer.finish().expect("written");
        let time = middle(times);
        row(what, &show(time), &format!("≤ {bar} µs"), time.as_secs_f64() * 1e6 <= bar);
        let _ = std::fs::remove_dir_all(place);
    }
}

/// Measures the events per second of one thread and of four, from the first `record` to the closed file.
fn sustained() {
    for threads in [1, 4] {
        let rates: Vec<f64> = (0..5)
            .map(|_| {
                let place = folder("rate");
                let (recorder, writer) =
                    transcript::start(&settings(place.clone()), None).expect("a transcript");
                let each = 400_000 / threads;
                let start = Instant::now();
                std::thread::scope(|scope| {
                    for _ in 0..threads {
                        let recorder = recorder.clone();
                        scope.spawn(move || {
                            (0..each).for_each(|_| recorder.record(EventType::Exec, MESSAGE, &EXEC))
                        });
                    }
                });
                let head = writer.finish().expect("written");
                let rate = head.seq as f64 / start.elapsed().as_secs_f64();
                let _ = std::fs::remove_dir_all(place);
                rate
            })
            .collect();
        let rate = middle(rates);
        let what = format!("400,000 events from {threads} thread(s), to the closed file");
        row(&what, &format!("{rate:.0}/s"), "≥ 100000/s", rate >= 100_000.0);
    }
}

struct Arrivals(Arc<Mutex<Vec<Instant>>>);

impl Write for Arrivals {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("one at a time").push(Instant::now());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Arrivals {
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Measures the time from `record` to `write(2)`.
fn latency() {
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let place = folder("latency");
    let sink = Box::new(Arrivals(arrivals.clone()));
    let (recorder, writer) =
        transcript::start_on(sink, &settings(place.clone()), None).expect("a transcript");
    let mut times = Vec::new();
    for _ in 0..40 {
        let start = Instant::now();
        recorder.record(EventType::Exec, MESSAGE, &EXEC);
        std::thread::sleep(Duration::from_millis(30));
        let seen = arrivals.lock().expect("one at a time").last().copied();
        times.push(seen.map_or(Duration::MAX, |seen| seen.saturating_duration_since(start)));
    }
    drop(writer);
    times.sort();
    let worst = times[times.len() - 2];
    row("from record to write(2) (p95)", &show(worst), "≤ 12 ms", worst <= Duration::from_millis(12));
    let _ = std::fs::remove_dir_all(place);
}

/// Measures a whole transcript of three events, which is what a run of `/bin/true` writes.
fn finish() {
    let times: Vec<(Duration, Duration)> = (0..101)
        .map(|_| {
            let place = folder("short");
            let start = Instant::now();
            let (recorder, writer) = transcript::start(&settings(place.clone()), None).expect("a transcript");
            (0..3).for_each(|_| recorder.record(EventType::Exec, MESSAGE, &EXEC));
            let recorded = start.elapsed();
            writer.finish().expect("written");
            let whole = start.elapsed();
            let _ = std::fs::remove_dir_all(place);
            (recorded, whole)
        })
        .collect();
    let started = middle(times.iter().map(|time| time.0).collect());
    let whole = middle(times.iter().map(|time| time.1).collect());
    row("start and three events", &show(started), "≤ 200 µs", started <= Duration::from_micros(200));
    row("start, three events, durable finish", &show(whole), "", true);
}

/// Records 1 GiB of output, and measures the memory that this takes.
fn output() {
    let line = b"   Compiling serde v1.0.228 \x1b[32m(/home/someone/project)\x1b[0m warning: unused `x`\r\n";
    let chunk: Vec<u8> = line.iter().copied().cycle().take(32 << 10).collect();
    let place = folder("output");
    let before = resident();
    let (recorder, writer) = transcript::start(&settings(place.clone()), None).expect("a transcript");
    let start = Instant::now();
    let mut peak = 0;
    for index in 0..(1usize << 30) / chunk.len() {
        recorder.output(Stream::Terminal, &chunk);
        if index % 256 == 0 {
            peak = peak.max(resident());
        }
    }
    let rate = 1024.0 / start.elapsed().as_secs_f64();
    let head = writer.finish().expect("written");
    row("1 GiB of output, written in full", &format!("{rate:.0} MiB/s"), "≥ 100 MiB/s", rate >= 100.0);
    let grown = peak.saturating_sub(before);
    row("  memory it took", &format!("{} MiB", grown >> 20), "≤ 16 MiB", grown <= 16 << 20);
    let path = place.join(FILE);
    let start = Instant::now();
    transcript::check(&path).expect("readable");
    let rate = (head.bytes >> 20) as f64 / start.elapsed().as_secs_f64();
    row("check of it", &format!("{rate:.0} MiB/s"), "≥ 100 MiB/s", rate >= 100.0);
    let _ = std::fs::remove_dir_all(place);

    let place = folder("forgotten");
    let sink = Box::new(Arrivals(Arc::default()));
    let (recorder, writer) =
        transcript::start_on(sink, &settings(place.clone()), None).expect("a transcript");
    let start = Instant::now();
    (0..(1usize << 28) / chunk.len()).for_each(|_| recorder.output(Stream::Terminal, &chunk));
    writer.finish().expect("written");
    let rate = 256.0 / start.elapsed().as_secs_f64();
    row("256 MiB of output, without a disk", &format!("{rate:.0} MiB/s"), "≥ 100 MiB/s", rate >= 100.0);
    let _ = std::fs::remove_dir_all(place);

    let place = folder("bounded");
    let bounded = Settings { limit_bytes: 16 << 20, ..settings(place.clone()) };
    let (recorder, writer) = transcript::start(&bounded, None).expect("a transcript");
    let start = Instant::now();
    (0..(1usize << 30) / chunk.len()).for_each(|_| recorder.output(Stream::Terminal, &chunk));
    let rate = 1024.0 / start.elapsed().as_secs_f64();
    writer.finish().expect("written");
    row("1 GiB of output, bound of 16 MiB", &format!("{rate:.0} MiB/s"), "≥ 1000 MiB/s", rate >= 1000.0);
    let _ = std::fs::remove_dir_all(place);
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

/// Measures redaction alone, on ordinary text and on the text that takes longest. The time per byte of the latter
/// must not grow with its length.
fn redaction() {
    let redactor = Redactor::new(&settings(PathBuf::new()).redact_values);
    let whole = 8 << 20;
    for (what, unit) in [
        ("redact 8 MiB: compiler output", "   Compiling serde v1.0.228 warning: unused variable `sk`\n"),
        ("redact 8 MiB: eyJeyJeyJ…", "eyJ"),
        ("redact 8 MiB: eyJaaaaa.eyJ…", "eyJaaaaaaaaaaaa.a "),
        ("redact 8 MiB: -----BEGIN PRIVATE KEY…", "-----BEGIN PRIVATE KEY-----\nAAAAAAAAAAAAAAAAAAA("),
        ("redact 8 MiB: sk-sk-sk-…", "sk-"),
        ("redact 8 MiB: bearer bearer …", "bearer "),
        ("redact 8 MiB: beginnings of a value", "s3cret-value-number-"),
    ] {
        let text: Vec<u8> = unit.bytes().cycle().take(whole).collect();
        let times: Vec<Duration> = (0..5)
            .map(|_| {
                let mut stream = StreamRedactor::default();
                let mut out = Vec::with_capacity(64 << 10);
                let start = Instant::now();
                for piece in text.chunks(16 << 10) {
                    stream.push(&redactor, piece, false, &mut out);
                    out.clear();
                }
                start.elapsed()
            })
            .collect();
        let rate = 8.0 / middle(times).as_secs_f64();
        row(what, &format!("{rate:.0} MiB/s"), "≥ 25 MiB/s", rate >= 25.0);
    }
}

fn reading() {
    let place = folder("read");
    let (recorder, writer) = transcript::start(&settings(place.clone()), None).expect("a transcript");
    (0..200_000).for_each(|_| recorder.record(EventType::Exec, MESSAGE, &EXEC));
    let head = writer.finish().expect("written");
    let start = Instant::now();
    transcript::check(&place.join(FILE)).expect("readable");
    let rate = head.seq as f64 / start.elapsed().as_secs_f64();
    row("check of 200,000 events", &format!("{rate:.0}/s"), "≥ 100000/s", rate >= 100_000.0);
    let _ = std::fs::remove_dir_all(place);
}

fn listing() {
    let place = folder("list");
    for index in 0..2_000 {
        let run = place.join(format!("run-{index}"));
        std::fs::create_dir(&run).expect("a folder");
        let (recorder, writer) = transcript::start(&settings(run), None).expect("a transcript");
        recorder.record(
            EventType::RunStarted,
            "",
            &serde_json::json!({ "command": ["true"], "policy": "strict" }),
        );
        recorder.record(EventType::RunFinished, "", &serde_json::json!({ "exit_code": 0, "denials": [] }));
        drop(writer);
    }
    let start = Instant::now();
    let runs = Store::new(place.clone()).list().expect("listed").len();
    let time = start.elapsed();
    row(&format!("list of {runs} runs"), &show(time), "≤ 200 ms", time <= Duration::from_millis(200));
    let _ = std::fs::remove_dir_all(place);
}
