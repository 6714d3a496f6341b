//! The processes of a run, found by a mark in their arguments or variables.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The first child of a process, which may still have to come.
pub(crate) fn first_child(of: i32, started: Instant) -> i32 {
    wait_for_child(of, started, |_| true)
}

/// The init process of a guard. guard also starts git, for a moment, before it starts init.
pub(crate) fn init_process(of: i32, started: Instant) -> i32 {
    let is_guard = |child: &str| {
        let argv = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        argv.split(|byte| *byte == 0).next().is_some_and(|program| program.ends_with(b"guard"))
    };
    // A git that has just been forked still has guard's arguments.
    wait_for_child(of, started, |child| {
        is_guard(child) && {
            std::thread::sleep(Duration::from_millis(10));
            is_guard(child)
        }
    })
}

fn wait_for_child(of: i32, started: Instant, is_meant: impl Fn(&str) -> bool) -> i32 {
    let children = format!("/proc/{of}/task/{of}/children");
    loop {
        let text = std::fs::read_to_string(&children).unwrap_or_default();
        if let Some(child) = text.split_whitespace().find(|child| is_meant(child)) {
            return child.parse().unwrap();
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{of} has no child");
        std::thread::yield_now();
    }
}

/// A word that no other process has.
pub(crate) fn unique_mark() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("GUARD_TEST_MARK=m{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Processes with this mark in their words or variables, with what they are.
pub(crate) fn marked_processes(mark: &str) -> Vec<(i32, String)> {
    let needle = [mark.as_bytes(), b"\0"].concat();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let argv = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let variables = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let has = |bytes: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        if has(&argv) || has(&variables) {
            found.push((pid, String::from_utf8_lossy(&argv).replace('\0', " ")));
        }
    }
    found
}

/// Fails if a process with this mark is left when the time is over.
pub(crate) fn expect_no_process_left(mark: &str, within: Duration) {
    let deadline = Instant::now() + within;
    loop {
        let left = marked_processes(mark);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left running: {left:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
