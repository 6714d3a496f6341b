//! Any bytes as a file of git configuration: settings, never a panic, and no more of them than there are lines or brackets.
#![no_main]

use guard::workspace::findings::{effect, settings};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let found = settings(bytes);
    assert!(found.len() <= bytes.len());
    for setting in &found {
        assert!(
            setting
                .name
                .iter()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-')
        );
        let _ = effect(setting);
    }
});
