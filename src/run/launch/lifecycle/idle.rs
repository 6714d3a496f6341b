//! Decides whether a run without output is working, by the CPU time of init and all its descendants.
//!
//! A compiler can work for minutes without output, while an agent that waits for a model that never answers also has no
//! output. CPU use distinguishes these cases. When a parent reaps a process, the kernel adds the CPU time of that
//! process to the parent's, so a sample lacks only the time of ended processes whose parent ignores SIGCHLD.

use std::time::{Duration, Instant};

use crate::run::launch::process::descendants;

/// The time between two samples of the run's CPU time. guard takes samples only while the run shows no other
/// activity.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// A run counts as working if it uses at least `1 / MIN_SHARE_DIVISOR` of the elapsed time as CPU time. The timers of
/// an idle process use less.
const MIN_SHARE_DIVISOR: u32 = 50;
/// A run also counts as working if a process was runnable in this many consecutive samples: on an overloaded machine,
/// a working process may get less CPU time than [`MIN_SHARE_DIVISOR`] requires.
const RUNNABLE_SAMPLES: u32 = 5;
/// The unit in which `/proc` reports CPU time: a hundredth of a second, whatever the frequency of the kernel's timer.
const TICK: Duration = Duration::from_millis(10);

/// The CPU use of a run since guard last found that it was working.
#[derive(Debug, Default)]
pub(crate) struct CpuActivity {
    /// The earlier sample with which guard compares the next one.
    since: Option<Sample>,
    /// The time when guard took the last sample.
    last: Option<Instant>,
    /// The number of consecutive samples in which a process was runnable.
    runnable_samples: u32,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    time: Instant,
    /// The CPU time that all processes of the run have used so far.
    used: Duration,
    /// True if a process of the run is running or waits for a CPU.
    is_runnable: bool,
}

impl CpuActivity {
    /// Starts over, because activity other than CPU use has shown that the run is alive. The next sample is due after
    /// half an interval: not at once, because a short run needs no sample, but early enough for a second sample, which
    /// can show work, before the shortest idle limit of one second.
    pub(crate) fn reset(&mut self, now: Instant) {
        *self = Self { last: Some(now.checked_sub(SAMPLE_INTERVAL / 2).unwrap_or(now)), ..Self::default() };
    }

    fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now.duration_since(last) >= SAMPLE_INTERVAL)
    }

    /// Takes a sample if one is due. Returns true if the sample shows that `root` or a descendant has worked since
    /// guard last found work. Returns false if no sample is due, or if this is the first one.
    pub(crate) fn has_worked(&mut self, root: i32, now: Instant) -> bool {
        if !self.is_due(now) {
            return false;
        }
        self.last = Some(now);
        let mut sample = Sample { time: now, used: Duration::ZERO, is_runnable: false };
        for pid in std::iter::once(root).chain(descendants::list(root)) {
            let text = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
            let (is_runnable, used) = parse_stat(&String::from_utf8_lossy(&text)).unwrap_or_default();
            sample.used += used;
            sample.is_runnable |= is_runnable;
        }
        self.add(sample)
    }

    /// Returns true if the run has worked since guard last found work: it has used enough CPU time, or a process was
    /// runnable in `RUNNABLE_SAMPLES` consecutive samples. Returns false for the first sample, which it just stores.
    fn add(&mut self, sample: Sample) -> bool {
        let Some(since) = self.since else {
            self.since = Some(sample);
            return false;
        };
        let elapsed = sample.time.duration_since(since.time);
        self.runnable_samples = if sample.is_runnable { self.runnable_samples + 1 } else { 0 };
        let is_working = is_work(elapsed, sample.used.saturating_sub(since.used))
            || self.runnable_samples >= RUNNABLE_SAMPLES;
        // The total decreases when a process ends whose parent ignores SIGCHLD: the kernel then adds its CPU time to no
        // other process.
        let used = since.used.min(sample.used);
        self.since = Some(if is_working { sample } else { Sample { used, ..since } });
        is_working
    }
}

fn is_work(elapsed: Duration, used: Duration) -> bool {
    used * MIN_SHARE_DIVISOR >= elapsed
}

/// Parses `/proc/PID/stat`. Returns whether the process is runnable, and the CPU time of the process and its reaped
/// children; `None` if the text has another form.
fn parse_stat(stat: &str) -> Option<(bool, Duration)> {
    // The process name may contain parentheses and blanks, so the other fields begin after the last parenthesis.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let is_runnable = fields.next()? == "R";
    let ticks = fields.skip(10).take(4).map_while(|field| field.parse::<u32>().ok());
    Some((is_runnable, TICK * ticks.sum::<u32>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_parsed_whatever_the_process_name() {
        for name in ["sh", "a b", "x) R 1 1 1", "(((", ""] {
            let stat = format!("7 ({name}) S 1 7 7 0 -1 4194304 100 0 0 0 3 4 5 6 20 0 1 0 100 1000 10");
            assert_eq!(parse_stat(&stat), Some((false, Duration::from_millis(180))), "{name}");
        }
        assert_eq!(parse_stat("7 (sh) R 1 7"), Some((true, Duration::ZERO)));
        assert_eq!((parse_stat(""), parse_stat("7 (sh)")), (None, None));
    }

    #[test]
    fn two_samples_are_due_before_the_shortest_limit() {
        let (began, mut work) = (Instant::now(), CpuActivity::default());
        let after = |milliseconds: u64| began + Duration::from_millis(milliseconds);
        work.reset(began);
        assert!(!work.is_due(after(10)) && work.is_due(after(250)));
        work.last = Some(after(250));
        assert!(!work.is_due(after(740)) && work.is_due(after(750)));
    }

    #[test]
    fn a_fiftieth_of_a_cpu_is_work_however_unevenly_it_is_used() {
        let second = Duration::from_secs(1);
        assert!(is_work(second, second) && is_work(second, Duration::from_millis(20)));
        assert!(!is_work(second, Duration::from_millis(10)) && !is_work(second, Duration::ZERO));
        let (began, mut work) = (Instant::now(), CpuActivity::default());
        let mut at = |milliseconds: u64, used: u64| {
            let time = began + Duration::from_millis(milliseconds);
            work.add(Sample { time, used: Duration::from_millis(used), is_runnable: false })
        };
        assert!(!at(0, 500), "a first sample shows nothing");
        // One tick in a second and a half is the work of a timer; more ticks are real work.
        assert!(!at(500, 500) && !at(1000, 510) && !at(1500, 510) && at(1600, 540));
        // guard compares these samples with the one at 1600 ms. A decrease of the total is not subtracted from later
        // work.
        assert!(!at(2100, 540) && !at(2600, 100) && at(2700, 140));
    }

    #[test]
    fn a_process_that_waits_for_a_cpu_is_working() {
        let (time, used) = (Instant::now(), Duration::ZERO);
        let mut work = CpuActivity::default();
        work.add(Sample { time, used, is_runnable: true });
        let mut is_working = |number: u32, is_runnable| {
            work.add(Sample { time: time + SAMPLE_INTERVAL * number, used, is_runnable })
        };
        assert!((1..RUNNABLE_SAMPLES).all(|number| !is_working(number, true)));
        assert!(is_working(RUNNABLE_SAMPLES, true));
        assert!(!is_working(RUNNABLE_SAMPLES + 1, false));
        assert!(!is_working(RUNNABLE_SAMPLES + 2, true), "one runnable sample is not enough");
    }
}
