//! Decides whether a silent run is working, by the CPU time of every process below its init.
//!
//! A compiler can be silent for minutes, and so can an agent that waits for a model that never answers. CPU use tells
//! them apart. The kernel adds the time of an ended process to the parent that reaped it, so between two samples only
//! the time of processes that nobody reaped is lost.

use std::time::{Duration, Instant};

use crate::launch::process::descendants;

/// The time between two samples. They are taken only while nothing else shows that the run is alive.
const PAUSE: Duration = Duration::from_millis(500);
/// At least one part in this many of one CPU's time counts as work. Timers of an idle process use less.
const PART: u32 = 50;
/// On an overloaded machine a working process may get less than that. So a run that is runnable in this many samples in
/// a row counts as working, too.
const WAITING: u32 = 5;
/// `/proc` reports CPU time in hundredths of a second, whatever the kernel's own clock.
const TICK: Duration = Duration::from_millis(10);

/// The CPU use of a run since it was last seen working.
#[derive(Debug, Default)]
pub(crate) struct CpuActivity {
    since: Option<Sample>,
    last: Option<Instant>,
    /// The number of samples in a row in which a process was runnable.
    wanting: u32,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    time: Instant,
    used: Duration,
    /// A process is running or runnable.
    wants: bool,
}

impl CpuActivity {
    /// Starts over, because something else has shown that the run is alive. The next sample is not taken at once,
    /// because a short run needs none. It is taken early enough that a second one, which can show work, comes before
    /// the shortest limit of one second.
    pub(crate) fn reset(&mut self, now: Instant) {
        *self = Self { last: Some(now.checked_sub(PAUSE / 2).unwrap_or(now)), ..Self::default() };
    }

    /// Whether the next sample is due.
    fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now.duration_since(last) >= PAUSE)
    }

    /// Whether the processes below `root` have worked since they were last seen working. Samples only when one is due.
    pub(crate) fn goes_on(&mut self, root: i32, now: Instant) -> bool {
        if !self.is_due(now) {
            return false;
        }
        self.last = Some(now);
        let mut look = Sample { time: now, used: Duration::ZERO, wants: false };
        for pid in std::iter::once(root).chain(descendants::of(root)) {
            let text = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
            let (wants, used) = time_in(&String::from_utf8_lossy(&text)).unwrap_or_default();
            look.used += used;
            look.wants |= wants;
        }
        self.see(look)
    }

    fn see(&mut self, look: Sample) -> bool {
        let Some(since) = self.since else {
            self.since = Some(look);
            return false;
        };
        let elapsed = look.time.duration_since(since.time);
        self.wanting = if look.wants { self.wanting + 1 } else { 0 };
        let works = is_work(elapsed, look.used.saturating_sub(since.used)) || self.wanting >= WAITING;
        // The total shrinks when a process ends that nobody reaps.
        let used = since.used.min(look.used);
        self.since = Some(if works { look } else { Sample { used, ..since } });
        works
    }
}

fn is_work(elapsed: Duration, used: Duration) -> bool {
    used * PART >= elapsed
}

/// Whether a process is runnable, and the CPU time of it and its reaped children.
fn time_in(stat: &str) -> Option<(bool, Duration)> {
    // The name may contain parentheses and blanks, so the kernel's own fields begin after the last parenthesis.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut words = rest.split_whitespace();
    let wants = words.next()? == "R";
    let ticks = words.skip(10).take(4).map_while(|word| word.parse::<u32>().ok());
    Some((wants, TICK * ticks.sum::<u32>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_read_whatever_the_name() {
        for name in ["sh", "a b", "x) R 1 1 1", "(((", ""] {
            let stat = format!("7 ({name}) S 1 7 7 0 -1 4194304 100 0 0 0 3 4 5 6 20 0 1 0 100 1000 10");
            assert_eq!(time_in(&stat), Some((false, Duration::from_millis(180))), "{name}");
        }
        assert_eq!(time_in("7 (sh) R 1 7"), Some((true, Duration::ZERO)));
        assert_eq!((time_in(""), time_in("7 (sh)")), (None, None));
    }

    #[test]
    fn two_looks_come_before_the_shortest_limit() {
        let (began, mut work) = (Instant::now(), CpuActivity::default());
        let after = |milliseconds: u64| began + Duration::from_millis(milliseconds);
        work.reset(began);
        assert!(!work.is_due(after(10)) && work.is_due(after(250)));
        work.last = Some(after(250));
        assert!(!work.is_due(after(740)) && work.is_due(after(750)));
    }

    #[test]
    fn a_fiftieth_of_a_processor_is_work_however_unevenly_it_comes() {
        let second = Duration::from_secs(1);
        assert!(is_work(second, second) && is_work(second, Duration::from_millis(20)));
        assert!(!is_work(second, Duration::from_millis(10)) && !is_work(second, Duration::ZERO));
        let (began, mut work) = (Instant::now(), CpuActivity::default());
        let mut at = |milliseconds: u64, used: u64| {
            let time = began + Duration::from_millis(milliseconds);
            work.see(Sample { time, used: Duration::from_millis(used), wants: false })
        };
        assert!(!at(0, 500), "a first look tells nothing");
        // One tick in a second and a half is a timer; more is work.
        assert!(!at(500, 500) && !at(1000, 510) && !at(1500, 510) && at(1600, 540));
        // Counted anew from there. Time that vanished is not subtracted from later work.
        assert!(!at(2100, 540) && !at(2600, 100) && at(2700, 140));
    }

    #[test]
    fn what_wants_a_processor_and_gets_none_is_at_work() {
        let (time, used) = (Instant::now(), Duration::ZERO);
        let mut work = CpuActivity::default();
        work.see(Sample { time, used, wants: true });
        let mut seen = |number: u32, wants| work.see(Sample { time: time + PAUSE * number, used, wants });
        assert!((1..WAITING).all(|number| !seen(number, true)) && seen(WAITING, true));
        assert!(!seen(WAITING + 1, false) && !seen(WAITING + 2, true), "once is chance");
    }
}
