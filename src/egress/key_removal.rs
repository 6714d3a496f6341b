//! Cuts a key out of what an API answers, in whatever pieces it comes.
//!
//! An API, or something before it, may repeat the key it was sent: in an error message, a debugging header, a page that
//! echoes the request. The key is overwritten with asterisks, so that lengths stay what they were; with it the forms that
//! are turned back without effort (percent-encoded, hexadecimal, base64). Nothing is held back but bytes at the end of a
//! piece that could be the beginning of one of these forms, so event streams pass without delay.

use hyper::body::Bytes;

use crate::transcript::base64;

/// Shorter keys are words such as `none`, which stand in many answers.
const SHORTEST: usize = 12;
/// Base64 of fewer letters than this could be anything.
const SHORTEST_ENCODED: usize = 12;

/// What is looked for.
pub struct Forms {
    forms: Vec<Vec<u8>>,
    /// Which bytes one of them begins with.
    begins: [bool; 256],
}

impl Forms {
    /// Of a key; `None` when it is too short to be told from other words.
    pub fn of(key: &[u8]) -> Option<Self> {
        if key.len() < SHORTEST {
            return None;
        }
        let mut forms = vec![key.to_vec(), hex(key, b"0123456789abcdef"), hex(key, b"0123456789ABCDEF")];
        forms.extend([percent(key, b"0123456789ABCDEF"), percent(key, b"0123456789abcdef")]);
        for before in 0..3 {
            let encoded = inner_base64(key, before);
            forms.push(encoded.iter().map(|&letter| url_safe(letter)).collect());
            forms.push(encoded);
        }
        forms.retain(|form| form.len() >= SHORTEST_ENCODED);
        // The longest first: one may begin like another.
        forms.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        forms.dedup();
        let mut begins = [false; 256];
        for form in &forms {
            begins[usize::from(form[0])] = true;
        }
        Some(Self { forms, begins })
    }

    /// Overwrites every form in a whole text. Whether there was one.
    pub fn cut_whole(&self, text: &mut [u8]) -> bool {
        let (_, count) = self.cut(text, true);
        count > 0
    }

    /// Overwrites every form, and says from where on the rest could be the beginning of one, and how many there were.
    fn cut(&self, text: &mut [u8], is_last: bool) -> (usize, u64) {
        let (mut at, mut count) = (0, 0);
        while at < text.len() {
            let rest = &text[at..];
            if !self.begins[usize::from(rest[0])] {
                at += 1;
                continue;
            }
            // A longer form may begin with a shorter one, and its end may still come.
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

/// Two digits for each byte.
fn hex(bytes: &[u8], digits: &[u8; 16]) -> Vec<u8> {
    bytes.iter().flat_map(|&byte| [digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]).collect()
}

/// As in an address.
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

/// The letters of base64 that depend on the key alone, when so many bytes of its group come before it.
fn inner_base64(key: &[u8], before: usize) -> Vec<u8> {
    let mut bytes = vec![0; before];
    bytes.extend_from_slice(key);
    let whole = bytes.len() / 3 * 4;
    let letters = base64(&bytes).into_bytes();
    // A letter that takes bits of what comes before is not the key's own.
    let first = [0, 2, 3][before.min(2)];
    letters[first..whole].to_vec()
}

fn url_safe(letter: u8) -> u8 {
    match letter {
        b'+' => b'-',
        b'/' => b'_',
        other => other,
    }
}

/// Cuts one answer.
pub struct Cutter {
    forms: std::rc::Rc<Forms>,
    /// What could be the beginning of a form.
    held: Vec<u8>,
    /// How many were cut.
    pub count: u64,
}

impl Cutter {
    /// For one answer.
    pub fn new(forms: std::rc::Rc<Forms>) -> Self {
        Self { forms, held: Vec::new(), count: 0 }
    }

    /// Bytes that are held back.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// The next bytes of the answer → those that can go on.
    pub fn feed(&mut self, bytes: Bytes) -> Bytes {
        let is_plain =
            self.held.is_empty() && !bytes.iter().any(|&byte| self.forms.begins[usize::from(byte)]);
        if is_plain {
            return bytes;
        }
        let mut text = std::mem::take(&mut self.held);
        text.extend_from_slice(&bytes);
        let (end, count) = self.forms.cut(&mut text, false);
        self.count += count;
        self.held = text.split_off(end);
        text.into()
    }

    /// What was held back, when nothing more comes.
    pub fn rest(&mut self) -> Bytes {
        let mut text = std::mem::take(&mut self.held);
        let (_, count) = self.forms.cut(&mut text, true);
        self.count += count;
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    const KEY: &str = "sk-key+0123456789/abcdef";

    fn forms() -> Rc<Forms> {
        Rc::new(Forms::of(KEY.as_bytes()).expect("it is long enough"))
    }

    fn cut(text: &str, piece: usize) -> String {
        let mut cutter = Cutter::new(forms());
        let mut out = Vec::new();
        for bytes in text.as_bytes().chunks(piece) {
            out.extend(cutter.feed(Bytes::copy_from_slice(bytes)));
        }
        out.extend(cutter.rest());
        String::from_utf8(out).expect("it was text")
    }

    #[test]
    fn a_form_that_begins_another_is_cut_in_pieces_as_in_one() {
        // All forms of such a key in base64 begin alike.
        let key = [0xff; 12];
        let forms = Rc::new(Forms::of(&key).expect("it is long enough"));
        for letters in 1..40 {
            let text = "_".repeat(letters);
            let mut whole = text.clone().into_bytes();
            forms.cut_whole(&mut whole);
            for piece in 1..40 {
                let mut cutter = Cutter::new(Rc::clone(&forms));
                let pieces = text.as_bytes().chunks(piece);
                let mut out: Vec<u8> =
                    pieces.flat_map(|bytes| cutter.feed(Bytes::copy_from_slice(bytes))).collect();
                out.extend(cutter.rest());
                assert_eq!(out, whole, "{letters} letters in pieces of {piece}");
            }
        }
    }

    #[test]
    fn every_form_is_cut_in_whatever_pieces_it_comes() {
        let mut texts = vec![KEY.to_string(), "sk-key%2B0123456789%2Fabcdef".to_string()];
        texts.push(KEY.bytes().map(|byte| format!("{byte:02X}")).collect());
        for text in &texts {
            for piece in 1..40 {
                let done = cut(&format!("a{text}b"), piece);
                assert_eq!(done, format!("a{}b", "*".repeat(text.len())), "{piece}");
            }
        }
        for before in ["", "x", "xy", "Bearer "] {
            for after in ["", "z", "yz"] {
                let encoded = base64(format!("{before}{KEY}{after}").as_bytes());
                for piece in [1, 5, 100] {
                    let done = cut(&encoded, piece);
                    assert_eq!(done.len(), encoded.len());
                    assert!(done.matches('*').count() + 12 >= KEY.len() * 4 / 3, "{encoded} → {done}");
                }
            }
        }
        // A beginning that comes to nothing, and a key right behind one.
        assert_eq!(cut("sk-ke sk-keysk-key", 3), "sk-ke sk-keysk-key");
        assert_eq!(cut(&format!("sk-ke{KEY}"), 4), format!("sk-ke{}", "*".repeat(KEY.len())));
    }

    #[test]
    fn nothing_is_held_back_that_cannot_be_the_key() {
        let mut cutter = Cutter::new(forms());
        for event in ["data: {\"text\":\"hello\"}\n\n", "data: sk-\n\n"] {
            assert_eq!(cutter.feed(Bytes::from_static(event.as_bytes())), event);
            assert_eq!(cutter.held(), 0);
        }
        assert_eq!(cutter.feed(Bytes::from_static(b"data: sk-key")), "data: ");
        assert_eq!(cutter.rest(), "sk-key");
        assert!(Forms::of(b"none").is_none());
    }
}
