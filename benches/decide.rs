//! Measures how fast guard judges a command: `cargo bench`. Every figure is a median, or a ratio of two medians from
//! the same run of the benchmark.
//!
//! A row that exceeds the project's target is marked as missed. No benchmark fails, because a loaded machine is not a
//! bug.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::hint::black_box;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use guard::judge::command::{Context, Cwd, Request};
use guard::judge::decide::{self, judge};
use guard::judge::policy::{Policy, PolicyDirs, load};

fn main() {
    // The allocator returns a large block to the kernel when the block is freed, unless an even larger block was freed
    // before. This first allocation is that larger block. Without it, page faults would slow down only one of the two
    // input sizes that the growth rows compare.
    drop(black_box(vec![0u8; 24 << 20]));
    let folders = PolicyDirs::default();
    let policy = load("strict", &folders).expect("the built-in policy loads");
    println!("{:<44} {:>12} {:>12}", "what", "median", "bar");

    row(
        "policy load (strict), with its examples",
        median(60, || drop(decide::load("strict", &folders, true))),
        ms(5.0),
    );
    row("policy load (strict), without", median(200, || drop(load("strict", &folders))), ms(1.0));
    row("policy load (auditor: three files)", median(200, || drop(load("auditor", &folders))), ms(3.0));

    let argv = |words: &[&str]| Request::Argv(words.iter().map(|word| word.as_bytes().to_vec()).collect());
    let shell = |text: &str| Request::Shell(text.as_bytes().to_vec());
    let us = |micros: f64| Some(Duration::from_secs_f64(micros / 1e6));
    row(
        "plain argv: cargo test --all -- --nocapture",
        judged(&policy, &argv(&["cargo", "test", "--all", "--", "--nocapture"])),
        us(10.0),
    );
    row(
        "plain argv: python3 -m pytest -q tests",
        judged(&policy, &argv(&["python3", "-m", "pytest", "-q", "tests"])),
        us(10.0),
    );
    row("git: status --short", judged(&policy, &argv(&["git", "status", "--short"])), us(20.0));
    row(
        "git: commit -am message",
        judged(&policy, &argv(&["git", "commit", "-am", "fix the parser"])),
        us(20.0),
    );
    row(
        "git: log --oneline -n 5 --graph main",
        judged(&policy, &argv(&["git", "log", "--oneline", "-n", "5", "--graph", "main"])),
        us(20.0),
    );
    row("git: checkout main (denied)", judged(&policy, &argv(&["git", "checkout", "main"])), us(20.0));
    row(
        "shell: cd && cargo test 2>&1 | tail",
        judged(&policy, &shell("cd src && cargo test --all 2>&1 | tail -n 20")),
        us(100.0),
    );
    row(
        "shell: for loop with grep and sed",
        judged(
            &policy,
            &shell(
                "for f in $(ls *.rs); do if grep -q foo \"$f\"; then sed -i 's/foo/bar/' \"$f\"; fi; done",
            ),
        ),
        us(100.0),
    );
    row(
        "shell: env -i bash -xc 'git switch main'",
        judged(&policy, &shell("true && env -i bash -xc \"g\\\"\\\"it switch main\"")),
        us(100.0),
    );

    println!("\n{:<44} {:>12} {:>12} {:>8}", "growth (double the input, bar 2.2×)", "half", "whole", "ratio");
    growth(
        "19,000 simple commands",
        |size| Request::Shell(b"echo a b c; ".repeat((size * 19_000) >> 20)),
        &policy,
    );
    growth(
        "one quoted word of 1 MiB",
        |size| Request::Shell([b"echo '".as_slice(), &vec![b'a'; size], b"'"].concat()),
        &policy,
    );
    growth(
        "1 MiB of words",
        |size| Request::Shell([b"echo ".as_slice(), &b"word ".repeat(size / 5)].concat()),
        &policy,
    );
    growth(
        "4,700 pipelines and lists",
        |size| Request::Shell(b"a | b && c || d; ".repeat((size * 4_700) >> 20)),
        &policy,
    );
    growth(
        "19,000 here-documents",
        |size| Request::Shell(b"cat <<A\nsome text of a document\nA\n".repeat((size * 19_000) >> 20)),
        &policy,
    );
    growth("a commit message of 1 MiB", |size| argv(&["git", "commit", "-m", &"x".repeat(size)]), &policy);
    growth(
        "52,000 operands for git",
        |size| {
            let mut words = vec![b"git".to_vec(), b"add".to_vec()];
            words.extend((0..size / 20).map(|index| format!("src/file-number-{index}").into_bytes()));
            Request::Argv(words)
        },
        &policy,
    );

    stream();
    process();
}

fn ms(millis: f64) -> Option<Duration> {
    Some(Duration::from_secs_f64(millis / 1e3))
}

fn context() -> Context {
    Context { cwd: Cwd::Known(b"/work/tree".to_vec()), ..Context::default() }
}

fn row(what: &str, median: Duration, bar: Option<Duration>) {
    let verdict = match bar {
        Some(bar) if median > bar => "  MISSED",
        _ => "",
    };
    println!(
        "{what:<44} {:>12} {:>12}{verdict}",
        show(median),
        bar.map_or(String::new(), |bar| format!("≤ {}", show(bar)))
    );
}

fn show(time: Duration) -> String {
    if time < Duration::from_millis(1) {
        format!("{:.1} µs", time.as_secs_f64() * 1e6)
    } else {
        format!("{:.2} ms", time.as_secs_f64() * 1e3)
    }
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

/// Returns the median time of one judgement. Measures many judgements together, because one is shorter than the clock
/// resolution.
fn judged(policy: &Policy, request: &Request) -> Duration {
    const BATCH: u32 = 50;
    let context = context();
    let batch = || {
        for _ in 0..BATCH {
            let _ = black_box(judge(policy, black_box(request), &context));
        }
    };
    median(101, batch) / BATCH
}

fn growth(what: &str, make: impl Fn(usize) -> Request, policy: &Policy) {
    let context = context();
    let (small, large) = (make(512 << 10), make(1 << 20));
    // The two inputs alternate, so that a change of the machine's speed affects both.
    let mut times = (Vec::new(), Vec::new());
    for _ in 0..21 {
        times.0.push(median(1, || drop(black_box(judge(policy, &small, &context)))));
        times.1.push(median(1, || drop(black_box(judge(policy, &large, &context)))));
    }
    times.0.sort();
    times.1.sort();
    let (small, large) = (times.0[10], times.1[10]);
    let ratio = large.as_secs_f64() / small.as_secs_f64();
    let missed = if ratio > 2.2 { "  MISSED" } else { "" };
    println!("{what:<44} {:>12} {:>12} {ratio:>7.2}×{missed}", show(small), show(large));
}

/// Measures how many commands per second `guard check --stdin` judges. The input is the commands of
/// `fixtures/commands/`, repeated.
fn stream() {
    let mut lines = Vec::new();
    for corpus in ["everyday", "git-verbs", "lookalikes"] {
        let path = format!("{}/fixtures/commands/{corpus}.txt", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("the corpora are in the repository");
        lines.extend(
            text.lines().filter_map(|line| line.split_once('\t')).map(|(_, command)| format!("{command}\n")),
        );
    }
    let input: String = lines.concat().repeat(40);
    let count = input.lines().count();
    let mut rates: Vec<f64> = (0..5)
        .map(|_| {
            let start = Instant::now();
            let mut child = Command::new(env!("CARGO_BIN_EXE_guard"))
                .args(["check", "--stdin"])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .expect("guard starts");
            child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("guard reads");
            child.wait().expect("guard ends");
            count as f64 / start.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    let missed = if rates[2] < 50_000.0 { "  MISSED" } else { "" };
    println!(
        "\n{:<44} {:>10.0}/s {:>12}{missed}",
        "guard check --stdin, commands per second", rates[2], "≥ 50000/s"
    );
}

/// Compares the run time of a `guard check` process with that of `/bin/true`. The two take turns.
fn process() {
    let mut times = (Vec::new(), Vec::new());
    let run = |program: &str, args: &[&str]| {
        let start = Instant::now();
        Command::new(program).args(args).stdout(Stdio::null()).status().expect("it starts");
        start.elapsed()
    };
    for _ in 0..201 {
        times.0.push(run("/bin/true", &[]));
        times
            .1
            .push(run(env!("CARGO_BIN_EXE_guard"), &["check", "--policy", "strict", "--", "git", "status"]));
    }
    times.0.sort();
    times.1.sort();
    let ratio = times.1[100].as_secs_f64() / times.0[100].as_secs_f64();
    let missed = if ratio > 3.0 { "  MISSED" } else { "" };
    println!(
        "{:<44} {:>12} {:>12}{missed}",
        "guard check as a process (/bin/true)",
        format!("{} ({})", show(times.1[100]), show(times.0[100])),
        format!("{ratio:.2}× ≤ 3×")
    );
}
