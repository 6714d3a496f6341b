//! Decides whether guard retries after a failed attempt, and how long it waits before the retry.
//!
//! guard never retries after an attempt that left changes behind.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::ExecRequest;
use super::attempt_outcome::AttemptOutcome;
use crate::agents::adapter::Wait;
use crate::run::outcome::{ErrorDetail, ErrorKind};

const LONGEST_WAIT: Duration = Duration::from_secs(2);
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// What to do after a failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    Again(Duration),
    /// Do not retry. Holds the reason if the request would have allowed another retry.
    Stop(Option<String>),
}

/// Decides whether to retry after an attempt. `retries` is the number of retries already made.
pub(super) fn next(outcome: &AttemptOutcome, retries: u32, request: &ExecRequest) -> Next {
    let is_timeout = matches!(outcome.error_kind(), Some(ErrorKind::IdleTimeout | ErrorKind::Timeout));
    let may_retry =
        outcome.error_kind().is_some_and(may_be_temporary) && (request.retry_timeouts || !is_timeout);
    if !may_retry || retries >= request.max_retries {
        return Next::Stop(None);
    }
    // A second attempt could undo or repeat the changes of the first.
    if let Some(work) = outcome.left_work() {
        return Next::Stop(Some(format!(
            "guard did not retry, because the attempt left work behind ({work}) that a retry could repeat or undo"
        )));
    }
    let backoff = FIRST_WAIT.saturating_mul(1 << retries.min(8)).min(LONGEST_WAIT);
    match outcome.wait() {
        None => Next::Again(backoff),
        Some(Wait::For(time)) if *time <= LONGEST_WAIT => Next::Again(backoff.max(*time)),
        Some(Wait::For(time)) => Next::Stop(Some(format!(
            "guard did not retry, because the model API asks for a wait of {} seconds, and guard waits at most {}",
            seconds(*time),
            LONGEST_WAIT.as_secs()
        ))),
        Some(Wait::NextDay(zone)) => Next::Stop(Some(format!(
            "guard did not retry, because the daily quota of the model API is used up; it resets at midnight{}",
            zone.as_ref().map(|zone| format!(" in {zone}")).unwrap_or_default()
        ))),
    }
}

fn may_be_temporary(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::IdleTimeout | ErrorKind::Timeout | ErrorKind::UpstreamError | ErrorKind::RateLimited
    )
}

/// Converts a duration to seconds, rounded up.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// Records in the error detail when another attempt can succeed.
pub(super) fn set_wait(detail: &mut ErrorDetail, wait: &Wait, now: Timestamp) {
    let at = match wait {
        Wait::For(time) => SignedDuration::try_from(*time).ok().and_then(|time| now.checked_add(time).ok()),
        // If this machine has no time zone database, only the text message remains.
        Wait::NextDay(zone) => zone.as_ref().and_then(|zone| next_day(now, zone).ok()),
    };
    let left = match wait {
        Wait::For(time) => Some(*time),
        Wait::NextDay(_) => at.and_then(|at| Duration::try_from(at.duration_since(now)).ok()),
    };
    detail.retry_after_s = left.map(seconds);
    detail.retry_at = at.map(|at| at.to_string());
}

fn next_day(now: Timestamp, zone: &str) -> Result<Timestamp, jiff::Error> {
    Ok(now.in_tz(zone)?.tomorrow()?.start_of_day()?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::adapter::Conclusion;
    use crate::run::outcome::{Commit, RunResult};

    fn outcome(kind: ErrorKind, wait: Option<Wait>) -> AttemptOutcome {
        let result = RunResult { exit_code: Some(1), ..RunResult::default() };
        let error = Some((kind, "words".to_string()));
        let conclusion = Some(Conclusion { error, wait, ..Conclusion::default() });
        AttemptOutcome { result, conclusion, messages: Vec::new(), stderr: String::new(), notes: Vec::new() }
    }

    /// Calls the tested function with a request that allows this number of retries.
    fn next(outcome: &AttemptOutcome, retries: u32, max_retries: u32) -> Next {
        super::next(outcome, retries, &ExecRequest { max_retries, ..ExecRequest::new("", "/") })
    }

    #[test]
    fn a_caller_that_shortens_its_prompt_gets_no_retry_of_the_long_one() {
        let request = ExecRequest { retry_timeouts: false, ..ExecRequest::new("", "/") };
        for kind in [ErrorKind::IdleTimeout, ErrorKind::Timeout] {
            assert_eq!(super::next(&outcome(kind, None), 0, &request), Next::Stop(None), "{kind}");
        }
        assert_eq!(super::next(&outcome(ErrorKind::UpstreamError, None), 0, &request), again(500));
    }

    fn again(milliseconds: u64) -> Next {
        Next::Again(Duration::from_millis(milliseconds))
    }

    #[test]
    fn the_wait_doubles_up_to_two_seconds() {
        let failed = outcome(ErrorKind::UpstreamError, None);
        let waits: Vec<Next> = (0..6).map(|retries| next(&failed, retries, 6)).collect();
        assert_eq!(waits, [500, 1000, 2000, 2000, 2000, 2000].map(again));
        assert_eq!(next(&failed, 6, 6), Next::Stop(None));
        assert_eq!(next(&failed, 0, 0), Next::Stop(None));
    }

    #[test]
    fn only_what_may_pass() {
        for kind in
            [ErrorKind::IdleTimeout, ErrorKind::Timeout, ErrorKind::UpstreamError, ErrorKind::RateLimited]
        {
            assert_eq!(next(&outcome(kind, None), 0, 1), again(500), "{kind}");
        }
        for kind in [
            ErrorKind::CommandNotFound,
            ErrorKind::InvalidInput,
            ErrorKind::AuthError,
            ErrorKind::ConfigError,
            ErrorKind::PolicyDenied,
            ErrorKind::SessionLost,
            ErrorKind::TurnLimit,
            ErrorKind::BudgetExhausted,
            ErrorKind::MemoryExhausted,
            ErrorKind::Cancelled,
            ErrorKind::Internal,
        ] {
            assert_eq!(next(&outcome(kind, None), 0, 9), Next::Stop(None), "{kind}");
        }
    }

    #[test]
    fn a_quota_is_waited_for_as_long_as_a_retry_may() {
        let wait = |milliseconds| Some(Wait::For(Duration::from_millis(milliseconds)));
        assert_eq!(next(&outcome(ErrorKind::RateLimited, wait(100)), 0, 1), again(500));
        assert_eq!(next(&outcome(ErrorKind::RateLimited, wait(1500)), 0, 1), again(1500));
        assert_eq!(next(&outcome(ErrorKind::RateLimited, wait(2000)), 0, 1), again(2000));
        for long in [wait(2001), wait(39_000), Some(Wait::NextDay(None))] {
            let next = next(&outcome(ErrorKind::RateLimited, long), 0, 1);
            assert!(matches!(&next, Next::Stop(Some(why)) if why.contains("did not retry")), "{next:?}");
        }
    }

    #[test]
    fn work_that_was_left_is_said() {
        let mut failed = outcome(ErrorKind::UpstreamError, None);
        failed.result.commits = vec![Commit::default(), Commit::default()];
        let stop = next(&failed, 0, 1);
        assert!(matches!(&stop, Next::Stop(Some(why)) if why.contains("2 commits")), "{stop:?}");
    }

    #[test]
    fn when_it_is_there_again() {
        let now: Timestamp = "2026-11-15T18:00:00Z".parse().unwrap_or_default();
        let mut detail = ErrorDetail::default();
        set_wait(&mut detail, &Wait::For(Duration::from_millis(38_200)), now);
        assert_eq!(
            (detail.retry_after_s, detail.retry_at.as_deref()),
            (Some(39), Some("2026-11-15T18:00:38.2Z"))
        );
        set_wait(&mut detail, &Wait::NextDay(Some("America/Los_Angeles".into())), now);
        if now.in_tz("America/Los_Angeles").is_ok() {
            assert_eq!(
                (detail.retry_after_s, detail.retry_at.as_deref()),
                (Some(14 * 3600), Some("2026-11-16T08:00:00Z"))
            );
        }
        set_wait(&mut detail, &Wait::NextDay(Some("No/Such".into())), now);
        assert_eq!((detail.retry_after_s, detail.retry_at), (None, None));
    }
}
