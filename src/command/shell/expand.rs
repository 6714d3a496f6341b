//! Expands words to arguments: removes quotes, expands braces, substitutes known variables, and marks everything else
//! as unknown.

use super::super::arg::Arg;
use super::ast::{Piece, Word};
use super::scope::{Scope, Value};
use crate::command::cwd::Cwd;

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
    /// Something that is known only at run time.
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
        // A double-quoted string begins with an empty literal.
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

    /// Expands `"$@"` if the positional parameters are known. Returns false if they are not.
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

    /// Expands a word without splitting or globbing: in assignments, here-strings, `case`, redirections.
    pub(super) fn single(&self, word: &Word) -> Arg {
        let mut bytes = Vec::new();
        for atom in self.atoms(word) {
            match atom {
                Atom::Byte { byte, .. } => bytes.push(byte),
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
                    atoms.extend(rest.iter().map(|&byte| Atom::Byte { byte, quoted: *quoted }));
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

    /// Expands `~` and `~/…` to the home directory if it is known. `~user` is not expanded.
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

    /// Returns true if unquoted values are split at blanks, which is the case unless IFS was changed.
    fn splits_at_blanks(&self) -> bool {
        self.scope.variable(b"IFS").is_none() && !self.scope.is_untrusted()
    }

    /// Splits a word into arguments after brace expansion. Arguments with globs become unknown.
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
        // An empty result is no argument, unless the word has quotes.
        let has_quotes = word.pieces.iter().any(|piece| {
            matches!(piece, Piece::Literal { quoted: true, .. } | Piece::Parameter { quoted: true, .. })
        });
        if started || has_quotes {
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

/// Expands the braces of a word. Returns false if there would be too many results. Iterative, so that nesting uses no
/// stack.
fn braces(atoms: &[Atom], out: &mut Vec<Vec<Atom>>) -> bool {
    if !atoms.iter().any(|atom| plain(atom, b'{')) {
        out.push(atoms.to_vec());
        return true;
    }
    // Work list in order: the word, and the offset at which to look for the next brace.
    let mut work = std::collections::VecDeque::from([(atoms.to_vec(), 0usize)]);
    let mut steps = 0usize;
    while let Some((word, from)) = work.pop_front() {
        steps += word.len() + 1;
        if steps > MOST_ALTERNATIVES * 64 || out.len() + work.len() > MOST_ALTERNATIVES {
            return false;
        }
        let Some((open, parts, close)) = next_brace(&word, from) else {
            out.push(word);
            continue;
        };
        for part in parts.into_iter().rev() {
            let mut next = Vec::with_capacity(word.len());
            next.extend_from_slice(&word[..open]);
            next.extend_from_slice(&part);
            next.extend_from_slice(&word[close + 1..]);
            work.push_front((next, open));
        }
    }
    true
}

/// Finds the next `{…}` that contains alternatives or a sequence. Returns its start, its parts and its end.
fn next_brace(word: &[Atom], from: usize) -> Option<(usize, Vec<Vec<Atom>>, usize)> {
    // Match all braces in one pass, so that `{{{{…` stays linear.
    let mut stack: Vec<(usize, Vec<usize>)> = Vec::new();
    let mut best: Option<(usize, Vec<Vec<Atom>>, usize)> = None;
    for (at, atom) in word.iter().enumerate().skip(from) {
        if plain(atom, b'{') {
            stack.push((at, Vec::new()));
        } else if plain(atom, b',') {
            if let Some((_, commas)) = stack.last_mut() {
                commas.push(at);
            }
        } else if plain(atom, b'}')
            && let Some((open, commas)) = stack.pop()
        {
            let parts = if commas.is_empty() {
                sequence(&word[open + 1..at])
            } else {
                let mut parts = Vec::new();
                let mut start = open + 1;
                for comma in commas.into_iter().chain([at]) {
                    parts.push(word[start..comma].to_vec());
                    start = comma + 1;
                }
                Some(parts)
            };
            if let Some(parts) = parts
                && best.as_ref().is_none_or(|(first, ..)| open < *first)
            {
                best = Some((open, parts, at));
            }
            if stack.is_empty() && best.is_some() {
                return best;
            }
        }
    }
    best
}

/// Expands a brace sequence such as `a..e`, `1..9` or `01..10..2`.
fn sequence(inner: &[Atom]) -> Option<Vec<Vec<Atom>>> {
    let mut text = String::new();
    for atom in inner {
        match atom {
            Atom::Byte { byte, quoted: false }
                if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-') =>
            {
                text.push(*byte as char);
            }
            _ => return None,
        }
    }
    let mut fields = text.split("..");
    let (first, last, step) = (fields.next()?, fields.next()?, fields.next());
    if fields.next().is_some() {
        return None;
    }
    let step =
        step.map_or(Some(1), |step| step.parse::<i64>().ok().map(|step| step.unsigned_abs().max(1)))?;
    let item = |text: String| text.bytes().map(|byte| Atom::Byte { byte, quoted: true }).collect::<Vec<_>>();
    let range = |from: i64, to: i64, show: &dyn Fn(i64) -> String| {
        let count = (from.abs_diff(to) / step).min(MOST_ALTERNATIVES as u64 + 1);
        let sign: i64 = if from <= to { 1 } else { -1 };
        (0..=count).map(|index| item(show(from + sign * (index * step) as i64))).collect::<Vec<_>>()
    };
    match (first.as_bytes(), last.as_bytes()) {
        ([from], [to]) if from.is_ascii_alphabetic() && to.is_ascii_alphabetic() => {
            Some(range(i64::from(*from), i64::from(*to), &|value| {
                char::from(value.clamp(0, 127) as u8).to_string()
            }))
        }
        _ => {
            let (from, to) = (first.parse::<i32>().ok()?, last.parse::<i32>().ok()?);
            let padded = [first, last]
                .iter()
                .any(|text| text.trim_start_matches('-').starts_with('0') && text.len() > 1);
            let width = if padded { first.len().max(last.len()) } else { 0 };
            Some(range(i64::from(from), i64::from(to), &|value| format!("{value:0width$}")))
        }
    }
}
