//! Finds the processes of a run: by their parent, or by a mark in their arguments or environment variables.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Returns the first process of a run's command, which is the child of the run's init process. Waits until it exists.
pub(crate) fn agent_process(of_guard: i32, started: Instant) -> i32 {
    loop {
        for init in children(of_guard).iter().filter(|child| is_guard(child)) {
            // A git that guard has just forked still has guard's arguments, but has no child.
            if let Some(agent) = children(init).first() {
                return agent.parse().unwrap();
            }
        }
        assert!(started.elapsed() < Duration::from_secs(180), "{of_guard} has started nothing");
        std::thread::yield_now();
    }
}

/// Returns the init process of a guard. Before init, guard briefly starts git as another child.
pub(crate) fn init_process(of_guard: i32, started: Instant) -> i32 {
    loop {
        // A git that guard has just forked still has guard's arguments for a moment, so this checks twice.
        let is_init = |child: &&String| {
            is_guard(child) && {
                std::thread::sleep(Duration::from_millis(10));
                is_guard(child)
            }
        };
        if let Some(init) = children(of_guard).iter().find(is_init) {
            return init.parse().unwrap();
        }
        assert!(started.elapsed() < Duration::from_secs(180), "{of_guard} has started nothing");
        std::thread::yield_now();
    }
}

/// Returns the children of a guard process that run guard too, or that it has just forked.
pub(crate) fn guard_children(of_guard: i32) -> Vec<i32> {
    let is_guard = |child: &String| is_guard(child);
    children(of_guard).into_iter().filter(is_guard).filter_map(|child| child.parse().ok()).collect()
}

/// Returns true if the process runs guard, or was forked by guard and has not executed a program yet.
fn is_guard(process: &str) -> bool {
    let argv = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    argv.split(|byte| *byte == 0).next().is_some_and(|program| program.ends_with(b"guard"))
}

fn children(of: impl std::fmt::Display) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    text.split_whitespace().map(str::to_string).collect()
}

/// Returns a unique word (a mark), which tests put into the arguments of a process to find the process and its
/// descendants.
pub(crate) fn unique_mark() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("GUARD_TEST_MARK=m{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the processes whose arguments or environment contain the word `mark`, each with a description.
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

/// Fails if a process whose arguments or environment contain the word `mark` is still alive after this time.
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
