//! The patterns of common credentials: a prefix, the characters that may follow, and their minimum number.
//!
//! Each pattern depends only on the text from the credential's first byte on (and a little context before it), and at
//! most `SETTLED` bytes decide whether it matches. A stream therefore gives the same result however it is cut into
//! pieces, and matching takes linear time on any input.

/// With this many bytes of text it is certain whether a pattern matches.
const SETTLED: usize = 4096;
/// The minimum number of bytes after a private key header. With fewer, the text only mentions a key.
const KEY_BODY: usize = 16;
/// Maximum length of the label in the last line of a private key, such as `RSA PRIVATE KEY`.
const LONGEST_LABEL: usize = 64;

/// The result of matching the patterns at one position of a text.
#[derive(Debug, Clone, Copy)]
pub(super) enum Measure {
    No,
    /// A credential begins at the position: this many bytes, and all following bytes that belong to the [`Tail`].
    Yes(usize, Tail),
    /// A credential lies between these two offsets, which count from the position.
    Within(usize, usize),
    /// The text ends too early to decide whether a credential begins at the position.
    More,
}

/// Which bytes belong to a credential in addition to those that sufficed to recognise it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tail {
    None,
    Run(fn(u8) -> bool),
    /// All lines of a private key, up to and including its `-----END` line.
    Key,
}

/// How far the [`Tail`] of a credential extends in one piece of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// The tail ends before the byte at this offset.
    Ends(usize),
    /// The tail includes this many bytes, and may continue in the next piece.
    GoesOn(usize),
}

struct Run {
    prefix: &'static [u8],
    letters: fn(u8) -> bool,
    least: usize,
    /// True if the prefix could also be the end of an ordinary word. The pattern then matches only at the start of a
    /// word, and only if the text after the prefix does not look like ordinary words.
    needs_word_start: bool,
}

const fn run(prefix: &'static [u8], letters: fn(u8) -> bool, least: usize) -> Run {
    Run { prefix, letters, least, needs_word_start: false }
}

const RUNS: &[Run] = &[
    run(b"AIza", url64, 35),
    run(b"AKIA", capital, 16),
    run(b"ASIA", capital, 16),
    run(b"GOCSPX-", url64, 20),
    run(b"dckr_pat_", url64, 20),
    run(b"ghp_", alphanumeric, 30),
    run(b"gho_", alphanumeric, 30),
    run(b"ghu_", alphanumeric, 30),
    run(b"ghs_", alphanumeric, 30),
    run(b"ghr_", alphanumeric, 30),
    run(b"github_pat_", word, 22),
    run(b"glpat-", url64, 20),
    run(b"hf_", alphanumeric, 30),
    run(b"npm_", alphanumeric, 36),
    run(b"pypi-AgE", url64, 30),
    Run { prefix: b"sk-", letters: url64, least: 20, needs_word_start: true },
    run(b"sk_live_", alphanumeric, 16),
    run(b"sk_test_", alphanumeric, 16),
    run(b"xoxa-", url64, 10),
    run(b"xoxb-", url64, 10),
    run(b"xoxe-", url64, 10),
    run(b"xoxp-", url64, 10),
    run(b"xoxr-", url64, 10),
    run(b"xoxs-", url64, 10),
    run(b"ya29.", url64, 20),
];

/// For each first byte, the index of its first pattern in `RUNS`, where patterns with the same first byte are
/// adjacent.
const FIRST: [u8; 256] = {
    let mut first = [RUNS.len() as u8; 256];
    let mut index = RUNS.len();
    while index > 0 {
        index -= 1;
        first[RUNS[index].prefix[0] as usize] = index as u8;
    }
    first
};

/// Maximum length of `USER:PASSWORD` in a URL.
const LONGEST_USER: usize = 1024;

const BEARER: &[u8] = b"bearer";
const KEY_BEGIN: &[u8] = b"-----BEGIN ";
const KEY_END: &[u8] = b"-----END ";

/// Returns the first two bytes of each pattern that [`measure`] recognises.
pub(super) fn beginnings() -> impl Iterator<Item = [u8; 2]> {
    let fixed = [*b"ey", *b"--", *b"Be", *b"be", *b"BE", *b":/"];
    RUNS.iter().map(|run| [run.prefix[0], run.prefix[1]]).chain(fixed)
}

/// Decides whether a credential begins at the offset `at`. With `last`, no more text follows, and the result is
/// never `More`.
pub(super) fn measure(text: &[u8], at: usize, last: bool) -> Measure {
    let here = &text[at..text.len().min(at + SETTLED)];
    // Beyond the window the result is `No`: it must not depend on how much text happens to be available.
    let more = if last || here.len() == SETTLED { Measure::No } else { Measure::More };
    match here[0] {
        b'e' => token(text, at, here, more),
        b'-' => key(here, more),
        b':' => address(here, more),
        b'B' | b'b' => bearer(text, at, here, more),
        _ => runs(text, at, here, more),
    }
}

fn runs(text: &[u8], at: usize, here: &[u8], more: Measure) -> Measure {
    let mut answer = Measure::No;
    for run in
        RUNS[usize::from(FIRST[usize::from(here[0])])..].iter().take_while(|run| run.prefix[0] == here[0])
    {
        if here.len() > 1 && run.prefix[1] != here[1] {
            continue;
        }
        match prefix(here, run.prefix, more) {
            Measure::No => continue,
            Measure::More => {
                answer = more;
                continue;
            }
            Measure::Yes(..) | Measure::Within(..) => {}
        }
        if run.needs_word_start && !begins_a_word(text, at) {
            continue;
        }
        let body = &here[run.prefix.len()..];
        let length = length(body, run.letters);
        let settled = match run.needs_word_start {
            false => (length >= run.least).then_some(run.least),
            true => body[..length]
                .iter()
                .position(|&byte| is_unlike_words(byte))
                .map(|seen| run.least.max(seen + 1)),
        };
        match settled {
            Some(settled) if settled <= length => {
                return Measure::Yes(run.prefix.len() + settled, Tail::Run(run.letters));
            }
            _ if length == body.len() => answer = more,
            _ => {}
        }
    }
    answer
}

/// Matches a JSON web token: `eyJ….….…`.
fn token(text: &[u8], at: usize, here: &[u8], more: Measure) -> Measure {
    match prefix(here, b"eyJ", more) {
        Measure::Yes(..) if begins_a_word(text, at) => {}
        Measure::Yes(..) => return Measure::No,
        other => return other,
    }
    let header = length(here, url64);
    let Some(dot) = here.get(header) else { return more };
    if *dot != b'.' || header < 8 {
        return Measure::No;
    }
    let payload = length(&here[header + 1..], url64);
    match payload {
        4.. => Measure::Yes(header + 5, Tail::Run(dotted64)),
        _ if header + 1 + payload == here.len() => more,
        _ => Measure::No,
    }
}

/// Matches `Bearer TOKEN`, in upper or lower case, if the token is not an ordinary word.
fn bearer(text: &[u8], at: usize, here: &[u8], more: Measure) -> Measure {
    let known = here.len().min(BEARER.len());
    if !here[..known].eq_ignore_ascii_case(&BEARER[..known]) || !begins_a_word(text, at) {
        return Measure::No;
    }
    let blanks = length(&here[known..], |byte| byte == b' ' || byte == b'\t');
    let body = &here[known + blanks..];
    if known < BEARER.len() || body.is_empty() {
        return more;
    }
    let length = length(body, credential);
    let digit = body[..length].iter().position(u8::is_ascii_digit);
    match digit.map(|seen| (seen + 1).max(16)) {
        Some(settled) if blanks > 0 && settled <= length => {
            Measure::Yes(known + blanks + settled, Tail::Run(credential))
        }
        _ if blanks > 0 && length == body.len() => more,
        _ => Measure::No,
    }
}

/// Matches the credentials in a URL: `://USER:PASSWORD@`.
fn address(here: &[u8], more: Measure) -> Measure {
    match prefix(here, b"://", more) {
        Measure::Yes(..) => {}
        other => return other,
    }
    let body = &here[3..];
    let length = length(&body[..body.len().min(LONGEST_USER)], |byte| {
        byte.is_ascii_graphic() && !b"/@\"'<>`\\".contains(&byte)
    });
    let password = body[..length].iter().position(|&byte| byte == b':').map(|at| at + 1);
    match (body.get(length), password.filter(|at| *at < length)) {
        (Some(b'@'), Some(password)) => Measure::Within(3 + password, 3 + length),
        (None, _) if length < LONGEST_USER => more,
        _ => Measure::No,
    }
}

/// Matches a private key: `-----BEGIN … PRIVATE KEY-----` and the lines after it.
fn key(here: &[u8], more: Measure) -> Measure {
    match prefix(here, KEY_BEGIN, more) {
        Measure::Yes(..) => {}
        other => return other,
    }
    let label = length(&here[KEY_BEGIN.len()..], label);
    let end = KEY_BEGIN.len() + label;
    match prefix(&here[end..], b"-----", more) {
        Measure::Yes(..) => {}
        other => return other,
    }
    let label = &here[KEY_BEGIN.len()..end];
    if !label.ends_with(b"PRIVATE KEY") && !label.ends_with(b"PRIVATE KEY BLOCK") {
        return Measure::No;
    }
    let body = &here[end + 5..];
    match length(&body[..body.len().min(KEY_BODY)], armour) {
        KEY_BODY => Measure::Yes(end + 5, Tail::Key),
        length if length == body.len() => more,
        _ => Measure::No,
    }
}

/// Returns `Yes` if the text begins with the prefix, and `more` if the text ends before that is certain.
fn prefix(here: &[u8], prefix: &[u8], more: Measure) -> Measure {
    if here.starts_with(prefix) {
        Measure::Yes(prefix.len(), Tail::None)
    } else if prefix.starts_with(here) {
        more
    } else {
        Measure::No
    }
}

impl Tail {
    /// Returns how many bytes at the beginning of `text` belong to the tail.
    pub(super) fn reach(self, text: &[u8], last: bool) -> Reach {
        match self {
            Self::None => Reach::Ends(0),
            Self::Run(letters) => match length(text, letters) {
                whole if whole == text.len() => Reach::GoesOn(whole),
                part => Reach::Ends(part),
            },
            Self::Key => key_reach(text, last),
        }
    }
}

fn key_reach(text: &[u8], last: bool) -> Reach {
    let body = length(text, armour);
    let mut from = 0;
    while let Some(dash) = text[from..body].iter().position(|&byte| byte == b'-').map(|found| from + found) {
        let here = &text[dash..];
        if !last && KEY_END.starts_with(here) {
            return Reach::GoesOn(dash);
        }
        if here.starts_with(KEY_END) {
            let label = KEY_END.len() + length(&here[KEY_END.len()..], label).min(LONGEST_LABEL);
            let dashes = length(&here[label..], |byte| byte == b'-').min(5);
            if !last && dashes < 5 && label + dashes == here.len() {
                return Reach::GoesOn(dash);
            }
            return Reach::Ends(dash + label + dashes);
        }
        from = dash + 1;
    }
    if body == text.len() { Reach::GoesOn(body) } else { Reach::Ends(body) }
}

/// True if a word begins at the offset `at`. The letters of an escape sequence, a colour code or a percent code
/// directly before it do not count as part of the word.
fn begins_a_word(text: &[u8], at: usize) -> bool {
    let before = &text[at.saturating_sub(CONTEXT)..at];
    let Some((&last, rest)) = before.split_last() else { return true };
    if !url64(last) {
        return true;
    }
    let escape = rest.last() == Some(&b'\\') && b"nrtbfv".contains(&last);
    let percent = rest.len() >= 2 && rest[rest.len() - 2] == b'%' && last.is_ascii_hexdigit();
    let colour = last == b'm' && {
        let numbers = rest.iter().rev().take_while(|byte| byte.is_ascii_digit() || **byte == b';').count();
        rest.len() > numbers && rest[rest.len() - 1 - numbers] == b'['
    };
    escape || percent || colour
}

/// The number of bytes before a position that [`measure`] examines as context.
pub(super) const CONTEXT: usize = 24;

fn length(text: &[u8], letters: impl Fn(u8) -> bool) -> usize {
    text.iter().position(|&byte| !letters(byte)).unwrap_or(text.len())
}

fn alphanumeric(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn capital(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}

fn word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn url64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

fn dotted64(byte: u8) -> bool {
    url64(byte) || byte == b'.' || byte == b'='
}

fn credential(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte)
}

fn label(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b' '
}

fn armour(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/=\r\n\t -:,\\".contains(&byte)
}

fn is_unlike_words(byte: u8) -> bool {
    byte.is_ascii_digit() || byte.is_ascii_uppercase()
}
