//! Parses any bytes as a git configuration file. The parser must not panic, must return no more settings than the file
//! has bytes, and must normalize their names.
#![no_main]

use guard::git::review::findings::{effect, settings};
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
