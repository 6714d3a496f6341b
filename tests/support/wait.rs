//! Waits for something that another process does.

use std::path::Path;
use std::time::{Duration, Instant};

/// The time limit for a condition, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until the condition holds. Fails the test if it does not within three minutes.
#[track_caller]
pub(crate) fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(PATIENCE, condition), "not within {PATIENCE:?}: {what}");
}

#[track_caller]
pub(crate) fn wait_for_file(path: &Path) {
    wait_until(&format!("{} exists", path.display()), || path.exists());
}

/// Returns true if the condition holds at some time within the limit.
pub(crate) fn holds_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
