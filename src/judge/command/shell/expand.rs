//! Expands words to arguments: removes quotes, expands braces, substitutes known variables, and marks everything else
//! as unknown.

use std::ops::Range;

use super::super::arg::Arg;
use super::ast::{Piece, Word};
use super::scope::{Scope, Value};
use crate::judge::command::cwd::Cwd;

/// The maximum number of alternatives in a brace expansion. The analysis treats an expansion with more alternatives
/// as unknown until run time.
const MOST_ALTERNATIVES: usize = 1024;

/// The maximum length of a word after its variables are substituted. The analysis treats a longer word as unknown.
const LONGEST_WORD: usize = 64 * 1024;

/// Expands words, given the known variables and the home directory.
pub(super) struct Expander<'a> {
    pub(super) scope: &'a Scope,
    /// The text to which the spans of the words refer, for showing a word as written.
    pub(super) text: &'a [u8],
    pub(super) home: Option<&'a [u8]>,
}

/// One element of a word during expansion.
#[derive(Debug, Clone)]
enum Atom {
    Byte {
        byte: u8,
        quoted: bool,
    },
    /// A pair of quotes. A word with quotes is an argument, even if it is empty.
    Quotes,
    /// A part whose value is known only at run time.
    Hole {
        splits: bool,
    },
    /// The value of an unquoted expansion, which the shell splits at blanks.
    Split(Vec<u8>),
}

impl Expander<'_> {
    /// Expands a word and appends the resulting arguments to `out`.
    pub(super) fn expand(&self, word: &Word, out: &mut Vec<Arg>) {
        // Fast path: nearly every word of a command line is one plain literal.
        if let [Piece::Literal { bytes, quoted }] = word.pieces.as_slice()
            && (*quoted || !bytes.iter().any(|&byte| is_active(byte)))
        {
            out.push(Arg::exact(bytes.clone()));
            return;
        }
        // The parser puts an empty literal at the beginning of a double-quoted string. Skip that literal.
        let pieces = match word.pieces.as_slice() {
            [Piece::Literal { bytes, quoted: true }, rest @ ..] if bytes.is_empty() => rest,
            pieces => pieces,
        };
        if let [Piece::Parameter { name, plain: true, quoted, .. }] = pieces
            && (name == b"@" || name == b"*" && !quoted)
            && self.positional(out, *quoted)
        {
            return;
        }
        let atoms = self.atoms(word);
        let mut words = Vec::new();
        if !braces(&atoms, &mut words) {
            out.push(Arg::partial(Vec::new(), self.written(word), true));
            return;
        }
        for atoms in words {
            self.split(&atoms, word, out);
        }
    }

    /// Expands `$@` or `$*` to the positional parameters. Returns false, and adds nothing, if there are no parameters,
    /// if one of them is unknown, or if the shell would split an unquoted one or use it as a glob.
    fn positional(&self, out: &mut Vec<Arg>, quoted: bool) -> bool {
        let before = out.len();
        for index in 1..10u8 {
            match self.scope.variable(&[b'0' + index]) {
                Some(Value::Known(value))
                    if quoted || value.iter().all(|byte| !b" \t\n*?[".contains(byte)) =>
                {
                    out.push(Arg::exact(value.clone()));
                }
                Some(Value::Known(_) | Value::Unknown | Value::Unset) => {
                    out.truncate(before);
                    return false;
                }
                None => break,
            }
        }
        out.len() > before
    }

    /// Expands a word without splitting or globbing: in assignments, here-strings, `case`, redirections. The result is
    /// known only up to the first part whose value is unknown.
    pub(super) fn single(&self, word: &Word) -> Arg {
        let mut bytes = Vec::new();
        for atom in self.atoms(word) {
            match atom {
                Atom::Byte { byte, .. } => bytes.push(byte),
                Atom::Quotes => {}
                Atom::Split(value) => bytes.extend_from_slice(&value),
                Atom::Hole { .. } => return Arg::partial(bytes, self.written(word), false),
            }
        }
        Arg::exact(bytes)
    }

    fn written(&self, word: &Word) -> &[u8] {
        self.text.get(word.span.clone()).unwrap_or(b"\xE2\x80\xA6")
    }

    fn atoms(&self, word: &Word) -> Vec<Atom> {
        let mut atoms = Vec::new();
        let plain_literal = |index: usize| match word.pieces.get(index) {
            Some(Piece::Literal { bytes, quoted: false }) => bytes.as_slice(),
            _ => b"",
        };
        let has_brace = (0..word.pieces.len()).any(|index| plain_literal(index).contains(&b'{'));
        // bash expands braces first, so `$x{y,z}` is `$xy $xz`.
        let brace_follows =
            |index: usize| has_brace && matches!(plain_literal(index + 1), [b'{' | b',' | b'}', ..]);
        for (index, piece) in word.pieces.iter().enumerate() {
            if atoms.len() > LONGEST_WORD {
                atoms.push(Atom::Hole { splits: true });
                return atoms;
            }
            match piece {
                Piece::Literal { bytes, quoted } => {
                    let mut rest = bytes.as_slice();
                    if index == 0 && !quoted && rest.first() == Some(&b'~') {
                        rest = self.tilde(rest, word.pieces.len() > 1, &mut atoms);
                    }
                    if *quoted && rest.is_empty() {
                        atoms.push(Atom::Quotes);
                    }
                    atoms.extend(rest.iter().map(|&byte| Atom::Byte { byte, quoted: *quoted }));
                }
                Piece::Parameter { quoted: false, .. } if brace_follows(index) => {
                    atoms.push(Atom::Hole { splits: true });
                }
                Piece::Parameter { name, plain, quoted, .. } => match (plain, self.scope.trusted(name)) {
                    (true, Some(Value::Known(value))) if *quoted => {
                        atoms.extend(value.iter().map(|&byte| Atom::Byte { byte, quoted: true }));
                    }
                    (true, Some(Value::Known(value))) if self.splits_at_blanks() => {
                        atoms.push(Atom::Split(value.clone()))
                    }
                    (true, None) if name == b"HOME" => {
                        let home = self.home.unwrap_or(b"~");
                        atoms.extend(home.iter().map(|&byte| Atom::Byte { byte, quoted: true }));
                    }
                    (true, None) if name == b"PWD" && matches!(self.scope.cwd(), Cwd::Known(_)) => {
                        if let Cwd::Known(cwd) = self.scope.cwd() {
                            atoms.extend(cwd.iter().map(|&byte| Atom::Byte { byte, quoted: true }));
                        }
                    }
                    _ => atoms.push(Atom::Hole { splits: !quoted || name == b"@" }),
                },
                Piece::Command { quoted, .. } => atoms.push(Atom::Hole { splits: !quoted }),
                Piece::Process(_) | Piece::Arithmetic(_) => atoms.push(Atom::Hole { splits: false }),
                Piece::Pattern(_) => atoms.push(Atom::Hole { splits: true }),
            }
        }
        atoms
    }

    /// Appends the expansion of a leading `~` to `atoms`, and returns the rest of the word. Leaves `~user` as it is,
    /// and also `~` if the home directory is not known.
    fn tilde<'b>(&self, rest: &'b [u8], more_pieces: bool, atoms: &mut Vec<Atom>) -> &'b [u8] {
        let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
        if end != 1 || (end == rest.len() && more_pieces) {
            return rest;
        }
        // A value of HOME that the text sets takes precedence.
        let home = match self.scope.trusted(b"HOME") {
            Some(Value::Known(home)) => home.as_slice(),
            Some(_) => {
                atoms.push(Atom::Hole { splits: false });
                return &rest[1..];
            }
            None => self.home.unwrap_or(b"~"),
        };
        atoms.extend(home.iter().map(|&byte| Atom::Byte { byte, quoted: true }));
        &rest[1..]
    }

    /// Returns true if the shell splits unquoted values at blanks. Returns false if this is not certain, because the
    /// text sets IFS or because the scope no longer trusts values.
    fn splits_at_blanks(&self) -> bool {
        self.scope.variable(b"IFS").is_none() && !self.scope.is_untrusted()
    }

    /// Splits a word into arguments after brace expansion. Stops at the first glob or unknown part, because the rest of
    /// the word, and how many arguments it becomes, may be unknown.
    fn split(&self, atoms: &[Atom], word: &Word, out: &mut Vec<Arg>) {
        let mut bytes = Vec::new();
        let mut started = false;
        let globs = is_glob(atoms);
        for atom in atoms {
            match atom {
                Atom::Byte { byte, quoted } => {
                    if globs && !quoted && matches!(byte, b'*' | b'?' | b'[') {
                        out.push(Arg::partial(bytes, self.written(word), true));
                        return;
                    }
                    bytes.push(*byte);
                    started = true;
                }
                Atom::Quotes => started = true,
                Atom::Hole { splits } => {
                    out.push(Arg::partial(bytes, self.written(word), *splits));
                    return;
                }
                Atom::Split(value) => {
                    if value.iter().any(|byte| matches!(byte, b'*' | b'?' | b'[')) {
                        out.push(Arg::partial(bytes, self.written(word), true));
                        return;
                    }
                    for &byte in value {
                        if matches!(byte, b' ' | b'\t' | b'\n') {
                            if started {
                                out.push(Arg::exact(std::mem::take(&mut bytes)));
                                started = false;
                            }
                        } else {
                            bytes.push(byte);
                            started = true;
                        }
                    }
                }
            }
        }
        // A word that expands to nothing is no argument, unless it contains quotes.
        if started {
            out.push(Arg::exact(bytes));
        }
    }
}

/// Returns true if a byte has a special meaning in an unquoted literal.
fn is_active(byte: u8) -> bool {
    matches!(byte, b'*' | b'?' | b'[' | b'{' | b'~')
}

/// Returns true if a word is a glob. `[` alone is not a glob but the name of the test command; a glob also has the
/// closing `]`.
fn is_glob(atoms: &[Atom]) -> bool {
    let unquoted = |wanted: &[u8]| {
        atoms.iter().any(|atom| matches!(atom, Atom::Byte { byte, quoted: false } if wanted.contains(byte)))
    };
    unquoted(b"*?") || (unquoted(b"[") && unquoted(b"]"))
}

fn plain(atom: &Atom, wanted: u8) -> bool {
    matches!(atom, Atom::Byte { byte, quoted: false } if *byte == wanted)
}

/// The maximum number of bytes that an expansion of braces examines or copies.
const MOST_BRACE_STEPS: usize = 1 << 20;

/// The maximum length of a brace sequence such as `1..9`. The analysis treats a longer one as unknown.
const LONGEST_SEQUENCE: usize = 80;

/// An unfinished result of a brace expansion: the atoms at its start, and the ranges of the word that follow. The range
/// to expand next is the last one in `rest`.
struct Unfinished {
    done: Vec<Atom>,
    rest: Vec<Range<usize>>,
}

/// Expands the braces of a word as bash does. Returns false if there would be too many results, or if the analysis
/// cannot determine them. The function is iterative, so that deep nesting uses no stack.
fn braces(word: &[Atom], out: &mut Vec<Vec<Atom>>) -> bool {
    if !word.iter().any(|atom| plain(atom, b'{')) {
        out.push(word.to_vec());
        return true;
    }
    let mut steps = 0;
    // The unfinished results, in reverse order: the one that comes first in `out` is the last in this list.
    let whole = 0..word.len();
    let mut work = vec![Unfinished { done: Vec::new(), rest: vec![whole] }];
    while let Some(Unfinished { mut done, mut rest }) = work.pop() {
        let Some(range) = rest.pop() else {
            out.push(done);
            continue;
        };
        let brace = next_brace(word, range.clone(), &mut steps);
        steps += size(&word[range.clone()]);
        if steps > MOST_BRACE_STEPS {
            return false;
        }
        let Some((open, close)) = brace else {
            done.extend_from_slice(&word[range]);
            work.push(Unfinished { done, rest });
            continue;
        };
        done.extend_from_slice(&word[range.start..open]);
        if close + 1 < range.end {
            rest.push(close + 1..range.end);
        }
        let Some(parts) = brace_parts(word, open, close) else { return false };
        // Check the limits before copying.
        steps += parts.len() * (size(&done) + rest.len() + 1);
        if steps > MOST_BRACE_STEPS || out.len() + work.len() + parts.len() > MOST_ALTERNATIVES {
            return false;
        }
        for part in parts.into_iter().rev() {
            let (mut done, mut rest) = (done.clone(), rest.clone());
            match part {
                Part::Range(range) => rest.push(range),
                Part::Text(text) => done.extend(text),
            }
            work.push(Unfinished { done, rest });
        }
    }
    true
}

/// Returns the number of bytes of some atoms.
fn size(atoms: &[Atom]) -> usize {
    let size = |atom: &Atom| match atom {
        Atom::Split(value) => value.len() + 1,
        _ => 1,
    };
    atoms.iter().map(size).sum()
}

/// One of the parts that a brace expands to.
enum Part {
    /// A range of the word, which may contain braces.
    Range(Range<usize>),
    /// Text without braces.
    Text(Vec<Atom>),
}

/// Returns what the braces at `open` and `close` expand to; `None` if the analysis cannot tell.
fn brace_parts(word: &[Atom], open: usize, close: usize) -> Option<Vec<Part>> {
    let inner = open + 1..close;
    if word[inner.clone()].iter().any(|atom| plain(atom, b',')) {
        return Some(alternatives(word, inner).into_iter().map(Part::Range).collect());
    }
    // Whether bash sees a comma in quotes here depends on the kind of quotes.
    if word[inner.clone()].iter().any(|atom| matches!(atom, Atom::Byte { byte: b',', .. })) {
        return None;
    }
    match sequence(&word[inner]) {
        Sequence::Items(items) => Some(items.into_iter().map(Part::Text).collect()),
        Sequence::Unknown => None,
        // bash leaves braces without a comma and without a valid sequence as they are.
        Sequence::Invalid => Some(vec![Part::Text(word[open..=close].to_vec())]),
    }
}

/// Finds the first `{` of a range that has a matching `}`. As in bash, `{}` at the start of the range is plain text.
/// Adds the number of examined atoms to `steps`. `None` if there is no such brace, or if `steps` exceeds
/// `MOST_BRACE_STEPS`.
fn next_brace(word: &[Atom], range: Range<usize>, steps: &mut usize) -> Option<(usize, usize)> {
    let is_empty_pair = |at: usize| {
        at == range.start && word[at + 1..range.end].first().is_some_and(|atom| plain(atom, b'}'))
    };
    for open in range.clone().filter(|&at| plain(&word[at], b'{') && !is_empty_pair(at)) {
        if *steps > MOST_BRACE_STEPS {
            return None;
        }
        let close = closing_brace(word, open + 1..range.end);
        *steps += close.unwrap_or(range.end) - open;
        if let Some(close) = close {
            return Some((open, close));
        }
    }
    None
}

/// Finds the `}` that closes a brace whose contents begin at the start of the range. As in bash, this is the first
/// `}` outside nested braces that comes after a comma or `..`: `{x},git}` is `x}` and `git`.
fn closing_brace(word: &[Atom], range: Range<usize>) -> Option<usize> {
    let (mut level, mut has_parts) = (0usize, false);
    let end = range.end;
    let is_at = |at: usize, byte: u8| at < end && plain(&word[at], byte);
    for at in range {
        if is_at(at, b'{') {
            level += 1;
        } else if is_at(at, b'}') {
            match level {
                0 if has_parts => return Some(at),
                0 => {}
                _ => level -= 1,
            }
        } else if level == 0 {
            let is_sequence = || is_at(at, b'.') && is_at(at + 1, b'.') && !is_at(at + 2, b'}');
            has_parts |= is_at(at, b',') || is_sequence();
        }
    }
    None
}

/// Splits the contents of a brace at the commas outside nested braces.
fn alternatives(word: &[Atom], inner: Range<usize>) -> Vec<Range<usize>> {
    let (mut parts, mut start, mut level) = (Vec::new(), inner.start, 0usize);
    for at in inner.clone() {
        if plain(&word[at], b'{') {
            level += 1;
        } else if plain(&word[at], b'}') {
            level = level.saturating_sub(1);
        } else if plain(&word[at], b',') && level == 0 {
            parts.push(start..at);
            start = at + 1;
        }
    }
    parts.push(start..inner.end);
    parts
}

/// What the contents of a brace without commas mean.
enum Sequence {
    Items(Vec<Vec<Atom>>),
    /// The contents may be a sequence, but the analysis does not compute its items.
    Unknown,
    /// The contents are not a sequence, so bash leaves the brace as it is.
    Invalid,
}

/// Expands a brace sequence such as `a..e`, `1..9` or `01..10..2`.
fn sequence(inner: &[Atom]) -> Sequence {
    if inner.len() > LONGEST_SEQUENCE {
        return Sequence::Unknown;
    }
    let mut text = String::new();
    for atom in inner {
        match atom {
            Atom::Byte { byte, quoted: false }
                if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+') =>
            {
                text.push(*byte as char);
            }
            _ => return Sequence::Invalid,
        }
    }
    let fields: Vec<&str> = text.split("..").collect();
    let (first, last, step) = match fields[..] {
        [first, last] => (first, last, "1"),
        [first, last, step] => (first, last, step),
        _ => return Sequence::Invalid,
    };
    let Ok(step) = step.parse::<i64>() else { return Sequence::Invalid };
    let step = step.unsigned_abs().max(1);
    let item = |text: String| text.bytes().map(|byte| Atom::Byte { byte, quoted: true }).collect::<Vec<_>>();
    let range = |from: i64, to: i64, show: &dyn Fn(i64) -> String| {
        let count = (from.abs_diff(to) / step).min(MOST_ALTERNATIVES as u64 + 1);
        let value = |index: u64| {
            let distance = (index * step) as i64;
            if from <= to { from.wrapping_add(distance) } else { from.wrapping_sub(distance) }
        };
        Sequence::Items((0..=count).map(|index| item(show(value(index)))).collect())
    };
    match (first.as_bytes(), last.as_bytes()) {
        ([from], [to]) if from.is_ascii_alphabetic() && to.is_ascii_alphabetic() => {
            // The characters between `Z` and `a` have special meanings in the shell.
            if from.is_ascii_uppercase() != to.is_ascii_uppercase() {
                return Sequence::Unknown;
            }
            range(i64::from(*from), i64::from(*to), &|value| char::from(value as u8).to_string())
        }
        _ => {
            let (Ok(from), Ok(to)) = (first.parse::<i64>(), last.parse::<i64>()) else {
                return Sequence::Invalid;
            };
            let is_padded = |text: &str| {
                text.starts_with('0') && text.len() > 1 || text.starts_with("-0") && text.len() > 2
            };
            let width = if is_padded(first) || is_padded(last) { first.len().max(last.len()) } else { 0 };
            range(from, to, &|value| format!("{value:0width$}"))
        }
    }
}
