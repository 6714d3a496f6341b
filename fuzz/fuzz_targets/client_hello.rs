//! Parses any bytes as the beginning of a TLS connection. More bytes must not change a decision that the parser made,
//! and a name that it returns must be a possible host name.
#![no_main]

use guard::run::egress::tls_client_hello::{Hello, LIMIT, read};
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
