//! Any bytes as the beginning of a TLS connection: an answer that more bytes do not take back, and a name that could be one.
#![no_main]

use guard::egress::tls_client_hello::{Hello, LIMIT, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes);
    if let Hello::Named(name) = &whole {
        assert!(name.len() <= 253 && name.split('.').all(|label| !label.is_empty()));
        assert!(name.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()));
    }
    assert!(whole != Hello::Incomplete || bytes.len() < LIMIT);
    let half = read(&bytes[..bytes.len() / 2]);
    assert!(half == Hello::Incomplete || half == whole);
});
