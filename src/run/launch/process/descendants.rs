//! Lists and kills the descendants of a process by reading `/proc`. guard uses this to measure the CPU time of a run,
//! and to kill the remaining processes of a run whose init was killed. The list can miss a process that is forked
//! meanwhile, so callers repeat the call.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Returns the process ids of all descendants of the process `root`.
pub(crate) fn list(root: i32) -> Vec<i32> {
    let mut found: Vec<i32> = Vec::new();
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for thread in threads.flatten() {
            let Ok(text) = std::fs::read_to_string(thread.path().join("children")) else { continue };
            for child in text.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()) {
                if !found.contains(&child) {
                    found.push(child);
                    next.push(child);
                }
            }
        }
    }
    found
}

/// Sends SIGKILL once to every descendant of a process.
pub(crate) fn kill_all(root: i32) {
    for pid in list(root) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}
