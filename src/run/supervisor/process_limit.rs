//! Enforces the process limit of a run where the kernel does not: `RLIMIT_NPROC` does not apply to root, and most
//! containers cannot create cgroups.
//!
//! The supervisor gets a notification for every fork. It counts the run's processes and threads by walking `/proc` from
//! init. Then it allows as many forks as the limit leaves room for before it counts again: exits in the meantime only
//! lower the number. The count can miss a process that forks meanwhile, so a run can briefly have up to twice its
//! limit, but never more.

use std::time::{Duration, Instant};

/// When a run is at its limit, the supervisor denies forks for this long before it counts the processes again.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(crate) struct Forks {
    /// The number of forks that the supervisor still allows before it counts the processes again.
    left: u64,
    /// The time of the last count, if that count found the run at its limit.
    full: Option<Instant>,
}

impl Forks {
    /// Returns true if the run may create one more process or thread. If so, counts it as created. `limit` is the run's
    /// process limit.
    pub(crate) fn may_fork(&mut self, limit: u64, init_pid: i32) -> bool {
        if self.left == 0 && self.full.is_none_or(|since| since.elapsed() >= PAUSE) {
            self.left = limit.saturating_sub(tasks_below(init_pid, limit));
            self.full = (self.left == 0).then(Instant::now);
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

/// Counts the processes and threads that descend from a process, without the process itself. Stops counting soon after
/// the count has reached `most`.
fn tasks_below(root: i32, most: u64) -> u64 {
    let mut count = 0;
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            count += u64::from(pid != root);
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            next.extend(children.split_whitespace().filter_map(|word| word.parse::<i32>().ok()));
        }
        if count >= most {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_children_are_counted() {
        let own = std::process::id() as i32;
        let mut child = std::process::Command::new("sleep").arg("10").spawn().expect("there is sleep");
        let below = tasks_below(own, 1000);
        let capped = tasks_below(own, 1);
        let _ = child.kill();
        let _ = child.wait();
        assert!(below >= 1, "{below}");
        assert_eq!(capped, 1);
    }

    #[test]
    fn a_run_at_its_limit_is_refused() {
        let own = std::process::id() as i32;
        let mut child = std::process::Command::new("sleep").arg("10").spawn().expect("there is sleep");
        let mut forks = Forks::default();
        assert!(!forks.may_fork(1, own));
        let _ = child.kill();
        let _ = child.wait();
        let mut forks = Forks::default();
        let allowed = (0..2000).filter(|_| forks.may_fork(1000, own)).count();
        // Nothing was actually forked: the second count finds as much room as the first.
        assert_eq!(allowed, 2000);
    }
}
