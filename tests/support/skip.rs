//! Reports tests that cannot run on this machine.

use std::io::Write;
use std::sync::Mutex;

/// Prints once that a test is skipped because a program or a privilege is missing. Fails the test if `CI` is set,
/// because `scripts/setup` installs everything there.
#[track_caller]
pub(crate) fn skip(what: &str, why: &str) {
    assert!(std::env::var_os("CI").is_none(), "SKIP: {what}: {why}");
    skip_unsupported(what, why);
}

/// Prints once that something is not tested because this machine cannot do it: the kernel lacks a feature, or a
/// container forbids it. CI does not fail, because no installation could change that.
pub(crate) fn skip_unsupported(what: &str, why: &str) {
    static PRINTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let line = format!("SKIP: {what}: {why}");
    let mut printed = PRINTED.lock().unwrap();
    if !printed.contains(&line) {
        // `eprintln!` would not do, because the test runner captures its output.
        let _ = writeln!(std::io::stderr(), "{line}");
        printed.push(line);
    }
}
