//! Checks any bytes as the body of an API request. A body in which the gateway finds nothing forbidden must not contain
//! a forbidden key.
#![no_main]

use std::sync::LazyLock;

use guard::run::egress::fuzzing::request;
use guard::judge::policy::{GATEWAYS, Gateway, gateway};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

static KNOWN: LazyLock<Vec<Gateway>> =
    LazyLock::new(|| GATEWAYS.iter().filter_map(|(name, _)| gateway(name)).collect());

/// Returns true if one of these keys is anywhere in the value.
fn has_key(value: &Value, keys: &[String]) -> bool {
    match value {
        Value::Object(fields) => fields.iter().any(|(key, value)| keys.contains(key) || has_key(value, keys)),
        Value::Array(items) => items.iter().any(|item| has_key(item, keys)),
        _ => false,
    }
}

// The first byte selects the gateway.
fuzz_target!(|bytes: &[u8]| {
    let [which, body @ ..] = bytes else { return };
    let gateway = &KNOWN[usize::from(*which) % KNOWN.len()];
    let Some((model, forbidden)) = request(gateway, body) else { return };
    assert!(model.is_none_or(|model| model.len() <= 256));
    if forbidden.is_some() {
        return;
    }
    // serde_json may reject a number as too large that guard's own parser accepts.
    let Ok(value) = serde_json::from_slice::<Value>(body) else { return };
    for rule in gateway.forbid.iter().filter(|rule| !rule.only_addresses) {
        assert!(!has_key(&value, &rule.keys), "{value}");
    }
});
