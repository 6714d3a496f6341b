// slow
//! Many clients send large request bodies at once. guard must buffer them within one memory budget for all requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::run_options::{Options, probe};
use crate::support::{TestEnvironment, in_every_environment, peak_memory};

const KEY: &str = "AIzaOnlyForTheApi-27182818284590";
/// The number of simultaneous requests. Each has `MIB` mebibytes, and `CHUNKED` of them do not announce their size.
const COUNT: u64 = 12;
const MIB: u64 = 40;
const CHUNKED: u64 = 2;
/// The allowed memory: guard itself, 128 MiB of bodies, the buffers for inspecting one body, and the socket buffers.
const MOST_MIB: u64 = 280;

/// An API that accepts connections, and reads nothing until the test tells it to.
struct Busy {
    port: u16,
    is_free: Arc<AtomicBool>,
}

impl Busy {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_free = Arc::new(AtomicBool::new(false));
        let free = Arc::clone(&is_free);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let free = Arc::clone(&free);
                std::thread::spawn(move || answer(&stream, &free));
            }
        });
        Self { port, is_free }
    }
}

fn answer(stream: &TcpStream, is_free: &AtomicBool) {
    while !is_free.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut from = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if from.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        if std::io::copy(&mut from.by_ref().take(length), &mut std::io::sink()).is_err() {
            return;
        }
        let text = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        if (&*stream).write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

/// Sends the requests. Returns a description of what went wrong, if anything did.
fn attacked(environment: &TestEnvironment) -> Option<String> {
    let api = Busy::new();
    let script = probe("faults.py");
    let options = Options::default().and(&["--policy", "strict", "--preset", "gemini", "--json"]).probing();
    let (count, mib, chunked) = (COUNT.to_string(), MIB.to_string(), CHUNKED.to_string());
    let words = ["python3", script.to_str().unwrap(), "bulk", &count, &mib, &chunked];
    let mut command = environment.guard_run(&options.words(), &words);
    command
        .env("GEMINI_API_KEY", KEY)
        .env("GOOGLE_GEMINI_BASE_URL", format!("http://127.0.0.1:{}", api.port));
    let started = Instant::now();
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let guard = child.id();
    // The API reads nothing, so guard's memory grows until the budget is full. Waits until it stops growing.
    let (mut peak, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_millis(1500) && started.elapsed() < Duration::from_secs(20) {
        let now = peak_memory(guard) >> 10;
        if now > peak + 4 {
            (peak, since) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    api.is_free.store(true, Ordering::SeqCst);
    let watched = std::thread::spawn(move || {
        let mut peak = 0;
        loop {
            match peak_memory(guard) >> 10 {
                0 => return peak,
                now => peak = peak.max(now),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let outcome = environment.collect_outcome(child, started);
    let peak = peak.max(watched.join().unwrap());
    let said: Value =
        serde_json::from_str(&outcome.printed()).unwrap_or_else(|_| panic!("{:#}", outcome.result));
    // Requests that announce their size must wait for free budget and then succeed.
    let served = said["lines"]["HTTP/1.1 200 OK"].as_u64().unwrap_or(0);
    let holds = (60..MOST_MIB).contains(&peak) && served == COUNT - CHUNKED;
    (!holds).then(|| format!("{}: {peak} MiB held, {served} served: {said}", environment.name()))
}

#[test]
fn concurrent_requests_share_one_memory_budget() {
    let failures = std::cell::RefCell::new(Vec::new());
    in_every_environment(|environment| failures.borrow_mut().extend(attacked(environment)));
    let failures = failures.into_inner();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
