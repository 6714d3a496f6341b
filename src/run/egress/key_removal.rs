//! Overwrites an API key in responses, even if it is split across chunks.
//!
//! An API, or a proxy in front of it, may echo the key: in an error message, a debugging header, a page that repeats
//! the request. The masker replaces it with asterisks, so that lengths do not change. It also finds the key in easily
//! reversible encodings (percent, hexadecimal, base64). It holds back only bytes at the end of a chunk that could be
//! the start of the key, so event streams pass without delay.

use hyper::body::Bytes;

use crate::run::transcript::base64;

/// The minimum length of a key, in bytes. guard does not overwrite shorter keys: they are words such as `none`, which
/// occur in many responses.
const SHORTEST_KEY: usize = 12;
/// The minimum length of an encoded form of the key, in bytes. Shorter forms would match unrelated text.
const SHORTEST_ENCODED: usize = 12;

/// The forms of a key to overwrite: the byte sequences of the key itself and of its encodings.
pub struct KeyForms {
    forms: Vec<Vec<u8>>,
    /// For each byte value, whether a form begins with it.
    begins: [bool; 256],
}

impl KeyForms {
    /// Computes the forms of a key; `None` if the key has fewer than 12 bytes and could be an ordinary word.
    pub fn new(key: &[u8]) -> Option<Self> {
        if key.len() < SHORTEST_KEY {
            return None;
        }
        let mut forms = vec![key.to_vec(), hex(key, b"0123456789abcdef"), hex(key, b"0123456789ABCDEF")];
        forms.extend([percent(key, b"0123456789ABCDEF"), percent(key, b"0123456789abcdef")]);
        for before in 0..3 {
            let encoded = inner_base64(key, before);
            forms.push(encoded.iter().map(|&letter| to_url_safe(letter)).collect());
            forms.push(encoded);
        }
        forms.retain(|form| form.len() >= SHORTEST_ENCODED);
        // Longest first: one form may be the prefix of another.
        forms.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        forms.dedup();
        let mut begins = [false; 256];
        for form in &forms {
            begins[usize::from(form[0])] = true;
        }
        Some(Self { forms, begins })
    }

    /// Overwrites every form of the key in a complete text. Returns whether it found any.
    pub fn mask_all(&self, text: &mut [u8]) -> bool {
        let (_, count) = self.mask(text, true);
        count > 0
    }

    /// Overwrites every form of the key in `text`. Returns the offset from which the remaining bytes could be the start
    /// of a form, and the number of forms found. With `is_last`, no more text follows.
    fn mask(&self, text: &mut [u8], is_last: bool) -> (usize, u64) {
        let (mut at, mut count) = (0, 0);
        while at < text.len() {
            let rest = &text[at..];
            if !self.begins[usize::from(rest[0])] {
                at += 1;
                continue;
            }
            // The rest of the text may be the beginning of a longer form, whose end follows in the next chunk.
            if !is_last && self.forms.iter().any(|form| form.len() > rest.len() && form.starts_with(rest)) {
                return (at, count);
            }
            if let Some(form) = self.forms.iter().find(|form| rest.starts_with(form)) {
                let end = at + form.len();
                text[at..end].fill(b'*');
                (at, count) = (end, count + 1);
            } else {
                at += 1;
            }
        }
        (at, count)
    }
}

fn hex(bytes: &[u8], digits: &[u8; 16]) -> Vec<u8> {
    bytes.iter().flat_map(|&byte| [digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]).collect()
}

/// Encodes bytes with percent-encoding, as in a URL.
fn percent(bytes: &[u8], digits: &[u8; 16]) -> Vec<u8> {
    let mut text = Vec::new();
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(byte);
        } else {
            text.push(b'%');
            text.extend(hex(&[byte], digits));
        }
    }
    text
}

/// Returns the characters of a base64 text that depend only on the key. Base64 encodes groups of three bytes; `before`
/// is the number of other bytes, from 0 to 2, that precede the key in its first group.
fn inner_base64(key: &[u8], before: usize) -> Vec<u8> {
    let mut bytes = vec![0; before];
    bytes.extend_from_slice(key);
    let whole = bytes.len() / 3 * 4;
    let letters = base64(&bytes).into_bytes();
    // Skip characters that contain bits of the preceding bytes.
    let first = [0, 2, 3][before.min(2)];
    letters[first..whole].to_vec()
}

fn to_url_safe(letter: u8) -> u8 {
    match letter {
        b'+' => b'-',
        b'/' => b'_',
        other => other,
    }
}

/// Overwrites the key in one response, chunk by chunk.
pub struct KeyMasker {
    forms: std::rc::Rc<KeyForms>,
    /// Bytes held back because they could be the start of a form of the key.
    held: Vec<u8>,
    /// How many occurrences of the key, in any form, were overwritten.
    pub count: u64,
}

impl KeyMasker {
    pub fn new(forms: std::rc::Rc<KeyForms>) -> Self {
        Self { forms, held: Vec::new(), count: 0 }
    }

    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Takes the next bytes of the response, and returns the bytes that can be sent now.
    pub fn feed(&mut self, bytes: Bytes) -> Bytes {
        let is_plain =
            self.held.is_empty() && !bytes.iter().any(|&byte| self.forms.begins[usize::from(byte)]);
        if is_plain {
            return bytes;
        }
        let mut text = std::mem::take(&mut self.held);
        text.extend_from_slice(&bytes);
        let (end, count) = self.forms.mask(&mut text, false);
        self.count += count;
        self.held = text.split_off(end);
        text.into()
    }

    /// Returns the bytes that are still held back. Call it at the end of the response.
    pub fn finish(&mut self) -> Bytes {
        let mut text = std::mem::take(&mut self.held);
        let (_, count) = self.forms.mask(&mut text, true);
        self.count += count;
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    const KEY: &str = "sk-key+0123456789/abcdef";

    fn forms() -> Rc<KeyForms> {
        Rc::new(KeyForms::new(KEY.as_bytes()).expect("it is long enough"))
    }

    fn mask(text: &str, piece: usize) -> String {
        let mut key_masker = KeyMasker::new(forms());
        let mut out = Vec::new();
        for bytes in text.as_bytes().chunks(piece) {
            out.extend(key_masker.feed(Bytes::copy_from_slice(bytes)));
        }
        out.extend(key_masker.finish());
        String::from_utf8(out).expect("it was text")
    }

    #[test]
    fn a_form_that_begins_another_is_cut_in_pieces_as_in_one() {
        // All base64 forms of this key in the URL-safe alphabet consist of `_` only.
        let key = [0xff; 12];
        let forms = Rc::new(KeyForms::new(&key).expect("it is long enough"));
        for letters in 1..40 {
            let text = "_".repeat(letters);
            let mut whole = text.clone().into_bytes();
            forms.mask_all(&mut whole);
            for piece in 1..40 {
                let mut key_masker = KeyMasker::new(Rc::clone(&forms));
                let pieces = text.as_bytes().chunks(piece);
                let mut out: Vec<u8> =
                    pieces.flat_map(|bytes| key_masker.feed(Bytes::copy_from_slice(bytes))).collect();
                out.extend(key_masker.finish());
                assert_eq!(out, whole, "{letters} letters in pieces of {piece}");
            }
        }
    }

    proptest::proptest! {
        /// A body that arrives in pieces must be masked exactly as the whole body would be. Keys and bodies consist of
        /// few different bytes, so that many forms begin alike and overlap.
        #[test]
        fn pieces_are_cut_as_the_whole(
            key in proptest::collection::vec(proptest::sample::select(vec![0xff, 0x00, b'*', b'_', b'a']), 12..24),
            parts in proptest::collection::vec((0_usize..12, 0_usize..40), 0..12),
            piece in 1_usize..50,
        ) {
            let Some(forms) = KeyForms::new(&key) else { return Ok(()) };
            let part = |(form, length): &(usize, usize)| {
                let form = &forms.forms[form % forms.forms.len()];
                form[..form.len().min(*length)].to_vec()
            };
            let body: Vec<u8> = parts.iter().flat_map(part).collect();
            let mut whole = body.clone();
            forms.mask_all(&mut whole);
            let mut key_masker = KeyMasker::new(Rc::new(forms));
            let mut out: Vec<u8> =
                body.chunks(piece).flat_map(|bytes| key_masker.feed(Bytes::copy_from_slice(bytes))).collect();
            out.extend(key_masker.finish());
            proptest::prop_assert_eq!(out, whole);
        }
    }

    #[test]
    fn every_form_is_cut_in_whatever_pieces_it_comes() {
        let mut texts = vec![KEY.to_string(), "sk-key%2B0123456789%2Fabcdef".to_string()];
        texts.push(KEY.bytes().map(|byte| format!("{byte:02X}")).collect());
        for text in &texts {
            for piece in 1..40 {
                let done = mask(&format!("a{text}b"), piece);
                assert_eq!(done, format!("a{}b", "*".repeat(text.len())), "{piece}");
            }
        }
        for before in ["", "x", "xy", "Bearer "] {
            for after in ["", "z", "yz"] {
                let encoded = base64(format!("{before}{KEY}{after}").as_bytes());
                for piece in [1, 5, 100] {
                    let done = mask(&encoded, piece);
                    assert_eq!(done.len(), encoded.len());
                    assert!(done.matches('*').count() + 12 >= KEY.len() * 4 / 3, "{encoded} → {done}");
                }
            }
        }
        // The first text has the start of the key without its rest; the second has such a start directly before
        // the whole key.
        assert_eq!(mask("sk-ke sk-keysk-key", 3), "sk-ke sk-keysk-key");
        assert_eq!(mask(&format!("sk-ke{KEY}"), 4), format!("sk-ke{}", "*".repeat(KEY.len())));
    }

    #[test]
    fn nothing_is_held_back_that_cannot_be_the_key() {
        let mut key_masker = KeyMasker::new(forms());
        for event in ["data: {\"text\":\"hello\"}\n\n", "data: sk-\n\n"] {
            assert_eq!(key_masker.feed(Bytes::from_static(event.as_bytes())), event);
            assert_eq!(key_masker.held(), 0);
        }
        assert_eq!(key_masker.feed(Bytes::from_static(b"data: sk-key")), "data: ");
        assert_eq!(key_masker.finish(), "sk-key");
        assert!(KeyForms::new(b"none").is_none());
    }
}
