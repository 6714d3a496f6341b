//! Stops asking a summary model that keeps failing, and tries it again later.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// After this many failures in a row, guard drops old messages from prompts instead of asking the model for a
/// summary.
const FAILURES: u32 = 2;
/// How long guard waits after the last failure before it asks the model again.
const PAUSE: Duration = Duration::from_secs(300);

/// Counts the failures of the summary model and decides whether guard may ask the model. Closed: guard may ask.
/// Open, after two failures in a row: guard must not ask. Half open, five minutes after the last failure: guard
/// may ask once, and the result closes or opens the breaker again.
///
/// The breaker reads no clock. The caller passes times as durations since any fixed point, such as the Unix
/// epoch, so that another process can continue with a stored breaker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CircuitBreaker {
    failures: u32,
    last_failure: Duration,
}

/// Whether a [`CircuitBreaker`] lets guard ask the summary model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// guard may ask the model.
    Closed,
    /// guard must not ask the model.
    Open,
    /// guard may ask the model once, to find out whether it works again.
    HalfOpen,
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self { failures: 0, last_failure: Duration::ZERO }
    }
}

impl CircuitBreaker {
    /// Returns the state at the time `now`. If `now` is before the last failure because the clock was set back,
    /// the state is `HalfOpen`, so that the breaker does not stay open.
    pub fn state(&self, now: Duration) -> BreakerState {
        if self.failures < FAILURES {
            return BreakerState::Closed;
        }
        match now.checked_sub(self.last_failure) {
            Some(since) if since < PAUSE => BreakerState::Open,
            _ => BreakerState::HalfOpen,
        }
    }

    /// Returns whether guard may ask the model at the time `now`.
    pub fn allows(&self, now: Duration) -> bool {
        self.state(now) != BreakerState::Open
    }

    /// Records a usable answer of the model, which closes the breaker.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Records a failure of the model and returns whether the breaker is now open.
    pub fn failed(&mut self, now: Duration) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.last_failure = now;
        self.failures >= FAILURES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000_000);

    #[test]
    fn two_failures_open_it_and_a_success_between_them_does_not_count() {
        let mut breaker = CircuitBreaker::default();
        assert_eq!(breaker.state(NOW), BreakerState::Closed);
        assert!(!breaker.failed(NOW));
        assert!(breaker.allows(NOW));
        breaker.succeeded();
        assert!(!breaker.failed(NOW));
        assert!(breaker.failed(NOW));
        assert_eq!(breaker.state(NOW), BreakerState::Open);
    }

    #[test]
    fn it_is_half_open_after_the_pause_and_one_answer_decides() {
        let mut breaker = CircuitBreaker::default();
        breaker.failed(NOW);
        breaker.failed(NOW);
        assert!(!breaker.allows(NOW + PAUSE - Duration::from_millis(1)));
        assert_eq!(breaker.state(NOW + PAUSE), BreakerState::HalfOpen);
        assert!(breaker.failed(NOW + PAUSE), "one more failure opens it again");
        assert!(!breaker.allows(NOW + PAUSE * 2 - Duration::from_millis(1)));
        assert!(breaker.allows(NOW + PAUSE * 2));
        breaker.succeeded();
        assert_eq!(breaker.state(NOW + PAUSE * 2), BreakerState::Closed);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_keep_it_open() {
        let mut breaker = CircuitBreaker::default();
        breaker.failed(NOW);
        breaker.failed(NOW);
        assert_eq!(breaker.state(Duration::ZERO), BreakerState::HalfOpen);
    }
}
