//! Redacts the API key in a response that consists of any bytes, cut anywhere. The response must keep its length, and
//! the key must not be in it.
#![no_main]

use std::rc::Rc;

use guard::run::egress::key_removal::{KeyForms, KeyMasker};
use libfuzzer_sys::fuzz_target;

// The first byte sets the length of the pieces, and the second one the length of the key. Then come the key and the
// response.
fuzz_target!(|bytes: &[u8]| {
    let [pieces, length, rest @ ..] = bytes else { return };
    let length = 12 + usize::from(length % 32);
    if rest.len() < length {
        return;
    }
    let (key, body) = rest.split_at(length);
    let Some(forms) = KeyForms::new(key) else { return };
    let mut whole = body.to_vec();
    forms.mask_all(&mut whole);
    let mut masker = KeyMasker::new(Rc::new(forms));
    let mut cut = Vec::new();
    for piece in body.chunks(1 + usize::from(*pieces)) {
        cut.extend_from_slice(&masker.feed(piece.to_vec().into()));
        assert!(masker.held() < 3 * length);
    }
    cut.extend_from_slice(&masker.finish());
    assert_eq!(cut, whole);
    assert_eq!(cut.len(), body.len());
    // If the key itself contains asterisks, the asterisks of the redaction can form the key again.
    assert!(key.contains(&b'*') || !cut.windows(length).any(|window| window == key));
});
