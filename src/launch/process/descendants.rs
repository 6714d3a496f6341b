//! Every process below one, by asking `/proc`: for kernels without scoped signals, and for the supervisor's own check.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The processes below one, nearest first.
pub(crate) fn of(root: i32) -> Vec<i32> {
    let mut found: Vec<i32> = Vec::new();
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for thread in threads.flatten() {
            let Ok(text) = std::fs::read_to_string(thread.path().join("children")) else { continue };
            for child in text.split_whitespace().filter_map(|word| word.parse::<i32>().ok()) {
                if !found.contains(&child) {
                    found.push(child);
                    next.push(child);
                }
            }
        }
    }
    found
}

/// Kills them, once.
pub(crate) fn kill_all(root: i32) {
    for pid in of(root) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}
