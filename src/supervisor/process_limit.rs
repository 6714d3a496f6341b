//! Holds a run to its number of processes where the kernel does not: root's are not counted by `RLIMIT_NPROC`, and in most
//! containers no cgroup can be made.
//!
//! Every fork asks. The processes of the run are counted by walking `/proc` from its init process; as many forks as were
//! left then are allowed without counting again, because processes that end only make the number smaller. A process that
//! forks at the moment of the count is missed, so a run can have up to twice its limit for a moment, never more.

use std::time::{Duration, Instant};

/// How long a run at its limit is refused forks before it is counted again.
const PAUSE: Duration = Duration::from_millis(10);

/// What is known of a run's number of processes.
#[derive(Debug, Default)]
pub(crate) struct Forks {
    /// Forks that may be made before the next count.
    left: u64,
    /// When the run was last counted and found at its limit.
    full: Option<Instant>,
}

impl Forks {
    /// Whether the run may have one more process or thread, which it then has.
    pub(crate) fn may_fork(&mut self, limit: u64, first_process: i32) -> bool {
        if self.left == 0 && self.full.is_none_or(|since| since.elapsed() >= PAUSE) {
            self.left = limit.saturating_sub(tasks_below(first_process, limit));
            self.full = (self.left == 0).then(Instant::now);
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

/// Processes and threads below a process, which is not counted itself. Stops counting at `most`.
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
        // Nothing was forked in fact: the second count finds as much room as the first.
        assert_eq!(allowed, 2000);
    }
}
