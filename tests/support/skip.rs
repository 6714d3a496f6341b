//! Tests that cannot run here.

use std::io::Write;
use std::sync::Mutex;

/// Prints once that something is not tested here, and why. Fails the test where `CI` is set: there everything is tested.
#[track_caller]
pub(crate) fn skip(what: &str, why: &str) {
    let line = format!("SKIP: {what}: {why}");
    assert!(std::env::var_os("CI").is_none(), "{line}");
    static PRINTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut printed = PRINTED.lock().unwrap();
    if !printed.contains(&line) {
        // Not with eprintln!: the test runner would hide it.
        let _ = writeln!(std::io::stderr(), "{line}");
        printed.push(line);
    }
}
