//! Measures how long the history of a conversation takes to build prompts, as medians: `cargo bench --bench history`.
//!
//! A row that exceeds the project's target is marked as missed. No benchmark fails, because a loaded machine is not a
//! bug.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use guard::agents::history::{Applied, GeminiHistoryManager, HistoryConfig, Role};

const MESSAGES: usize = 10_000;

fn main() {
    println!("{:<52} {:>10} {:>10}", format!("{MESSAGES} messages of 1 KiB"), "median", "bar");
    let history = conversation();
    row("prompt without a summary", 10, median(101, || drop(black_box(history.build_prompt("next")))));
    let mebibyte = "some text\n".repeat((1 << 20) / 10);
    row(
        "prompt with a new message of 1 MiB",
        50,
        median(21, || drop(black_box(history.build_prompt(&mebibyte)))),
    );

    let mut planned = history.clone();
    row("plan of a compaction", 200, median(11, || drop(black_box(history.plan_compaction()))));
    let plan = planned.maybe_compress().expect("ten thousand messages are compacted");
    let answer = || Ok("The user and the assistant discussed a parser.".to_string());
    row(
        "use of a summary",
        2_000,
        median(5, || drop(black_box(history.clone().apply_summary(&plan, answer())))),
    );
    assert!(matches!(planned.apply_summary(&plan, answer()), Applied::Accepted(_)));
    row("prompt with a summary", 10, median(101, || drop(black_box(planned.build_prompt("next")))));

    let restore = || {
        let parts = (planned.messages().to_vec(), planned.summary().cloned());
        drop(black_box(GeminiHistoryManager::from_parts(HistoryConfig::default(), parts.0, parts.1)));
    };
    row("continuation of the stored conversation", 200, median(11, restore));
}

/// Returns a conversation whose messages contain paths, names and requirements, which compaction extracts.
fn conversation() -> GeminiHistoryManager {
    let mut history = GeminiHistoryManager::new(HistoryConfig::default());
    for index in 0..MESSAGES {
        let role = if index % 2 == 0 { Role::User } else { Role::Assistant };
        let line =
            format!("Look at `Parser{index}` in src/file{index}.rs, it must not fail on line {index}.\n");
        history.add_message(role, line.repeat(1024 / line.len()));
    }
    history
}

fn median(samples: usize, mut work: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..samples)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[samples / 2]
}

fn row(what: &str, bar_ms: u64, median: Duration) {
    let missed = if median > Duration::from_millis(bar_ms) { "  MISSED" } else { "" };
    println!("{what:<52} {:>7.2} ms {:>7} ms{missed}", median.as_secs_f64() * 1e3, format!("≤ {bar_ms}"));
}
