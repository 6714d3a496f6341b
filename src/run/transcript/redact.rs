//! Replaces secrets in text by `[redacted]`.
//!
//! Secrets are exact values, in each form that they may take (verbatim, JSON-escaped, with a terminal's line
//! ends), and everything that matches a common credential pattern. The scan is a single pass: a bitmap finds
//! byte pairs that can begin a secret, and only there does it compare. A stream gives the same result however
//! it is cut into pieces. Text without secrets must never change, and no input may cause a panic.

use super::credential_patterns;
use super::credential_patterns::{Measure, Reach, Tail};

/// The text that replaces a secret.
pub const MARK: &str = "[redacted]";

/// Minimum length of a value to redact, in bytes. Shorter values would match ordinary words.
const SHORTEST: usize = 6;
/// Maximum length of the redacted bytes after a credential's first part. Without this limit, a program could hide
/// any amount of output behind a credential prefix.
const LONGEST_TAIL: usize = 64 << 10;
/// If fewer bytes than this are held back as the possible beginning of a secret value, they are shown when the
/// output pauses, because so short a match is probably accidental.
const SHOWN_OF_VALUE: usize = 4;
/// If fewer bytes than this are held back as the possible beginning of a credential pattern, they are shown when the
/// output pauses. The number is larger than [`SHOWN_OF_VALUE`], because the first bytes of a pattern are mostly a
/// public prefix.
const SHOWN_OF_SHAPE: usize = 13;

/// The secrets of one run, in a form that can be searched for quickly.
pub struct Redactor {
    /// The bit `first << 8 | second` is set if a secret can begin with these two bytes.
    pairs: Box<[u64; 1024]>,
    firsts: [bool; 256],
    /// The secret values in all their forms, sorted by first byte, longer ones first.
    values: Vec<Vec<u8>>,
    /// For each byte, the range in `values` of the values that begin with it.
    buckets: Box<[(u32, u32); 256]>,
    digits: bool,
}

enum Found {
    Nothing,
    /// The start and end of the first secret, and which of the bytes after it to redact as well.
    Secret(usize, usize, Tail),
    /// Whether a secret begins at the offset in the first field depends on text that has not arrived. The second field
    /// is a number of bytes: if the output pauses while fewer bytes are held back, they may be shown.
    Undecided(usize, usize),
}

impl Redactor {
    /// Creates a redactor for the values `secrets`, without white space around them, and for common credential
    /// patterns. Ignores values with fewer than six bytes, which would match ordinary words.
    pub fn new(secrets: &[Vec<u8>]) -> Self {
        let mut values: Vec<Vec<u8>> = secrets
            .iter()
            .map(|secret| secret.trim_ascii())
            .filter(|secret| secret.len() >= SHORTEST)
            .flat_map(forms)
            .collect();
        values.sort_by(|a, b| a[0].cmp(&b[0]).then(b.len().cmp(&a.len())).then(a.cmp(b)));
        values.dedup();
        let mut redactor = Self {
            pairs: Box::new([0; 1024]),
            firsts: [false; 256],
            buckets: Box::new([(0, 0); 256]),
            digits: values.iter().any(|value| value.iter().all(|&byte| in_number(byte))),
            values: Vec::new(),
        };
        let beginnings =
            values.iter().map(|value| [value[0], value[1]]).chain(credential_patterns::beginnings());
        for [first, second] in beginnings {
            let pair = usize::from(first) << 8 | usize::from(second);
            redactor.pairs[pair / 64] |= 1 << (pair % 64);
            redactor.firsts[usize::from(first)] = true;
        }
        for (index, value) in (0u32..).zip(&values) {
            let bucket = &mut redactor.buckets[usize::from(value[0])];
            *bucket = (if bucket.1 == 0 { index } else { bucket.0 }, index + 1);
        }
        redactor.values = values;
        redactor
    }

    /// Appends `text` with its secrets redacted to `out`. If it has no secrets, appends nothing and returns false.
    pub fn text(&self, text: &[u8], out: &mut Vec<u8>) -> bool {
        if matches!(self.scan(text, 0, true), Found::Nothing) {
            return false;
        }
        StreamRedactor::default().push(self, text, true, out);
        true
    }

    /// Appends `json` to `out`, with the secrets in its strings and numbers redacted; the result is valid JSON.
    /// Returns false if the nesting is deeper than `deepest`.
    pub(super) fn json(&self, json: &[u8], deepest: usize, out: &mut Vec<u8>) -> bool {
        let (mut at, mut depth) = (0, 0usize);
        while let Some(&byte) = json.get(at) {
            let end = match byte {
                b'"' => {
                    let end = string_end(json, at);
                    self.string(&json[at..end], out);
                    end
                }
                b'0'..=b'9' | b'-' if self.digits => {
                    let end =
                        at + json[at..].iter().position(|&byte| !in_number(byte)).unwrap_or(json.len() - at);
                    self.number(&json[at..end], out);
                    end
                }
                _ => {
                    match byte {
                        b'{' | b'[' => depth += 1,
                        b'}' | b']' => depth = depth.saturating_sub(1),
                        _ => {}
                    }
                    if depth > deepest {
                        return false;
                    }
                    // White space between values has no meaning, and a newline would end the event's line.
                    if !byte.is_ascii_whitespace() {
                        out.push(byte);
                    }
                    at + 1
                }
            };
            at = end;
        }
        true
    }

    /// Redacts a JSON string literal, which includes its quotes, and appends the result to `out`.
    fn string(&self, literal: &[u8], out: &mut Vec<u8>) {
        let body = &literal[1..literal.len() - 1];
        let decoded: Option<String> =
            body.contains(&b'\\').then(|| serde_json::from_slice(literal).unwrap_or_default());
        let body = decoded.as_ref().map_or(body, |text| text.as_bytes());
        let mut clean = Vec::new();
        if self.text(body, &mut clean) {
            // A value that is not UTF-8 can match in the middle of a character.
            super::chain::quote(&String::from_utf8_lossy(&clean), out);
        } else {
            out.extend_from_slice(literal);
        }
    }

    fn number(&self, literal: &[u8], out: &mut Vec<u8>) {
        if self.text(literal, &mut Vec::new()) {
            super::chain::quote(MARK, out);
        } else {
            out.extend_from_slice(literal);
        }
    }

    /// Finds the first secret that begins at or after the offset `from`.
    fn scan(&self, text: &[u8], from: usize, last: bool) -> Found {
        let mut at = from;
        while let Some(found) = self.candidate(&text[at..]) {
            at += found;
            match self.secret_at(text, at, last) {
                Measure::No => at += 1,
                Measure::More => return Found::Undecided(at, self.shown_when_idle(&text[at..])),
                Measure::Yes(length, tail) => return Found::Secret(at, at + length, tail),
                Measure::Within(start, end) => return Found::Secret(at + start, at + end, Tail::None),
            }
        }
        match text[at..].last() {
            Some(&byte) if !last && self.firsts[usize::from(byte)] => {
                Found::Undecided(text.len() - 1, SHOWN_OF_VALUE)
            }
            _ => Found::Nothing,
        }
    }

    /// Returns the offset of the first byte pair that can begin a secret; `None` if there is none. Must be fast,
    /// because it inspects every byte of output.
    fn candidate(&self, text: &[u8]) -> Option<usize> {
        let mut bytes = text.iter();
        let mut pair = u16::from(*bytes.next()?);
        bytes.position(|&byte| {
            pair = pair << 8 | u16::from(byte);
            self.pairs[usize::from(pair >> 6)] >> (pair & 63) & 1 == 1
        })
    }

    fn shown_when_idle(&self, here: &[u8]) -> usize {
        let begins = self.values.iter().any(|value| value.starts_with(here));
        if begins { SHOWN_OF_VALUE } else { SHOWN_OF_SHAPE }
    }

    fn secret_at(&self, text: &[u8], at: usize, last: bool) -> Measure {
        let here = &text[at..];
        let (first, end) = self.buckets[usize::from(here[0])];
        for value in &self.values[first as usize..end as usize] {
            if here.get(1).is_some_and(|second| *second != value[1]) {
                continue;
            }
            if here.starts_with(value) {
                return Measure::Yes(value.len(), Tail::None);
            }
            if !last && value.starts_with(here) {
                return Measure::More;
            }
        }
        credential_patterns::measure(text, at, last)
    }
}

/// Returns the forms in which a secret value can appear in a transcript: unchanged, with a terminal's line ends, and
/// escaped once or twice as a JSON string.
fn forms(secret: &[u8]) -> Vec<Vec<u8>> {
    let escaped = |bytes: &[u8]| {
        let text = serde_json::to_string(&String::from_utf8_lossy(bytes)).unwrap_or_default();
        text.as_bytes().get(1..text.len().saturating_sub(1)).unwrap_or_default().to_vec()
    };
    let mut forms = vec![secret.to_vec()];
    if secret.contains(&b'\n') {
        let lines: Vec<&[u8]> = secret.split(|&byte| byte == b'\n').collect();
        forms.push(lines.join(b"\r\n".as_slice()));
    }
    if std::str::from_utf8(secret).is_ok() {
        let once = escaped(secret);
        forms.push(escaped(&once));
        forms.push(once);
    }
    forms
}

fn in_number(byte: u8) -> bool {
    byte.is_ascii_digit() || b"+-.eE".contains(&byte)
}

/// Returns the offset after the closing quote of the string literal that begins at `at`. The JSON must be valid: it
/// comes from guard's own serializer.
fn string_end(json: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while let Some(&byte) = json.get(end) {
        end += match byte {
            b'"' => return end + 1,
            b'\\' => 2,
            _ => 1,
        };
    }
    json.len()
}

/// Redacts one stream that arrives in pieces.
#[derive(Default)]
pub struct StreamRedactor {
    /// Bytes to scan again together with the next piece: first some bytes that are known not to belong to a secret,
    /// because the text before a secret can matter, and then the bytes that may belong to one.
    held: Vec<u8>,
    /// The offset in `held` of the first byte that may belong to a secret.
    settled: usize,
    /// The offset in `held` up to which the bytes were already emitted.
    shown: usize,
    /// If the output pauses while fewer bytes than this may belong to a secret, these bytes may be shown.
    patience: usize,
    /// A redacted credential that may continue in the next piece, and how many bytes of its tail were consumed.
    tail: Option<(Tail, usize)>,
}

impl StreamRedactor {
    /// Processes a piece of the stream, and appends the text that can be shown to `out`. With `last`, nothing is
    /// held back.
    pub fn push(&mut self, redactor: &Redactor, piece: &[u8], last: bool, out: &mut Vec<u8>) {
        self.held.extend_from_slice(piece);
        let mut text = std::mem::take(&mut self.held);
        let (mut at, mut shown) = (self.settled, self.shown);
        let keep = loop {
            if let Some((tail, taken)) = self.tail {
                let most = LONGEST_TAIL.saturating_sub(taken).min(text.len() - at);
                let within = &text[at..at + most];
                let whole = most == text.len() - at;
                match tail.reach(within, last || !whole) {
                    Reach::GoesOn(length) if whole && taken + length < LONGEST_TAIL => {
                        self.tail = Some((tail, taken + length));
                        at += length;
                        shown = text.len();
                        break at;
                    }
                    Reach::GoesOn(length) | Reach::Ends(length) => at += length,
                }
                self.tail = None;
                shown = shown.max(at);
            }
            match redactor.scan(&text, at, last) {
                Found::Nothing => {
                    out.extend_from_slice(&text[shown.min(text.len())..]);
                    shown = text.len();
                    break text.len();
                }
                Found::Undecided(from, patience) => {
                    self.patience = patience;
                    out.extend_from_slice(&text[shown.min(from)..from]);
                    shown = shown.max(from);
                    break from;
                }
                Found::Secret(from, to, tail) => {
                    out.extend_from_slice(&text[shown.min(from)..from]);
                    out.extend_from_slice(MARK.as_bytes());
                    at = to;
                    shown = shown.max(to);
                    self.tail = Some((tail, 0));
                }
            }
        };
        let before = keep.saturating_sub(credential_patterns::CONTEXT);
        text.drain(..before);
        self.held = text;
        self.settled = keep - before;
        self.shown = shown - before;
    }

    /// Appends the held-back bytes to `out`, unless they match so much of a secret that the match is unlikely to be a
    /// coincidence. The caller must call this when nothing has arrived for a while.
    pub fn show(&mut self, out: &mut Vec<u8>) {
        if self.waits() {
            out.extend_from_slice(&self.held[self.shown..]);
            self.shown = self.held.len();
        }
    }

    /// True if [`Self::show`] would append something.
    pub fn waits(&self) -> bool {
        self.shown < self.held.len() && self.held.len() - self.settled < self.patience
    }
}
