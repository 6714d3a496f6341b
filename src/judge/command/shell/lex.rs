//! The lexer: turns characters into words, with quoting, expansions and here-documents.
//!
//! The same parser parses `$(…)` and process substitutions in place, so it does not scan their text again for each
//! nesting level. It parses the text between backquotes, the bodies of here-documents and single-quoted text in
//! arithmetic separately. The nesting limit bounds the look-ahead of [`Parser::is_arithmetic`]; the look-ahead for
//! assignments covers at most 1,024 bytes.

use super::ast::{Piece, Script, Word};
use super::error::{ShellError, ShellErrorKind};
use super::parse::Parser;

type Result<T> = std::result::Result<T, ShellError>;

/// The context of a word, which determines what ends it and which characters are special.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A word of a command.
    Command,
    /// A word between `[[` and `]]`.
    Test,
    /// A word between `${` and `}`; `quoted` if the expansion is inside double quotes.
    Braced { quoted: bool },
    /// The subscript of an array element, which ends at `]`.
    Subscript,
}

pub(super) fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// Returns true if a byte ends an unquoted word.
pub(super) fn is_meta(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'|' | b'&' | b';' | b'(' | b')' | b'<' | b'>')
}

pub(super) fn is_name_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

pub(super) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Collects the pieces of a word, and merges adjacent literals that have the same quoting.
#[derive(Default)]
pub(super) struct Pieces(Vec<Piece>);

impl Pieces {
    pub(super) fn literal(&mut self, bytes: &[u8], is_quoted: bool) {
        if let Some(Piece::Literal { bytes: last, quoted }) = self.0.last_mut()
            && *quoted == is_quoted
        {
            last.extend_from_slice(bytes);
            return;
        }
        self.push(Piece::Literal { bytes: bytes.to_vec(), quoted: is_quoted });
    }

    fn push(&mut self, piece: Piece) {
        // Nearly every word has one piece. A vector's default capacity of four would waste most of the tree's memory.
        if self.0.is_empty() {
            self.0.reserve_exact(1);
        }
        self.0.push(piece);
    }

    pub(super) fn into_word(self, start: usize, end: usize) -> Word {
        Word { pieces: self.0, span: start..end }
    }
}

impl Parser<'_> {
    /// Skips blanks and line continuations, but not newlines.
    pub(super) fn skip_blanks(&mut self) {
        loop {
            match self.peek() {
                Some(byte) if is_blank(byte) => self.pos += 1,
                Some(b'\\') if self.peek_at(1) == Some(b'\n') => self.pos += 2,
                _ => return,
            }
        }
    }

    pub(super) fn skip_comment(&mut self) {
        if self.peek() == Some(b'#') {
            while self.peek().is_some_and(|byte| byte != b'\n') {
                self.pos += 1;
            }
        }
    }

    /// Parses the word that begins at the current position. Returns a word without pieces, and consumes nothing, if no
    /// word begins there.
    pub(super) fn word(&mut self, place: Place) -> Result<Word> {
        let start = self.pos;
        let mut pieces = Pieces::default();
        let mut closing_quote = None;
        while let Some(byte) = self.peek() {
            match byte {
                0 => return Err(self.error(ShellErrorKind::Nul)),
                b'<' | b'>'
                    if self.peek_at(1) == Some(b'(')
                        && place != Place::Subscript
                        && place != (Place::Braced { quoted: true }) =>
                {
                    self.pos += 2;
                    let script = self.substitution("process substitution")?;
                    pieces.push(Piece::Process(script));
                }
                b'?' | b'*' | b'+' | b'@' | b'!'
                    if self.peek_at(1) == Some(b'(') && matches!(place, Place::Command | Place::Test) =>
                {
                    self.pos += 2;
                    let inner = self.balanced(b'(', b')', "extended glob")?;
                    pieces.push(Piece::Pattern(inner));
                }
                _ if is_meta(byte) && matches!(place, Place::Command | Place::Test) => break,
                b'}' if matches!(place, Place::Braced { .. }) => break,
                b']' if place == Place::Subscript => break,
                b'[' if place == Place::Subscript => {
                    pieces.literal(b"[", false);
                    self.pos += 1;
                    let inner = self.nested(|parser| parser.word(Place::Subscript))?;
                    pieces.0.extend(inner.pieces);
                    self.expect_byte(b']', "`]`")?;
                    pieces.literal(b"]", false);
                }
                b'\\' => self.backslash(&mut pieces, matches!(place, Place::Braced { quoted: true }))?,
                b'\'' if place == (Place::Braced { quoted: true }) => {
                    // When shells search for the closing brace, some pair these single quotes and others do not.
                    let rest = &self.src[self.pos + 1..];
                    let inside = rest.iter().position(|&byte| byte == b'\'').map(|end| &rest[..end]);
                    let differs =
                        |inside: &[u8]| inside.iter().any(|byte| matches!(byte, b'"' | b'}' | b'`'));
                    if closing_quote == Some(self.pos) {
                        closing_quote = None;
                    } else if inside.is_none_or(differs) {
                        return Err(self.error(ShellErrorKind::Unexpected("quote inside \"${…}\"".into())));
                    } else {
                        closing_quote = inside.map(|inside| self.pos + 1 + inside.len());
                    }
                    pieces.literal(b"'", true);
                    self.pos += 1;
                }
                b'\'' if place == Place::Subscript => self.evaluated_quote(&mut pieces)?,
                b'\'' => self.single_quoted(&mut pieces)?,
                b'"' => self.double_quoted(&mut pieces)?,
                b'`' => self.backquoted(&mut pieces, matches!(place, Place::Braced { quoted: true }))?,
                b'$' => self.dollar(&mut pieces, matches!(place, Place::Braced { quoted: true }))?,
                _ => {
                    let run = self.plain_run(place);
                    pieces.literal(&self.src[self.pos..self.pos + run], false);
                    self.pos += run;
                }
            }
        }
        Ok(pieces.into_word(start, self.pos))
    }

    /// Returns the number of bytes at the current position that have no special meaning. The first byte always counts.
    fn plain_run(&self, place: Place) -> usize {
        let rest = &self.src[self.pos..];
        let special = |byte: u8| {
            matches!(byte, 0 | b'\\' | b'\'' | b'"' | b'`' | b'$' | b'?' | b'*' | b'+' | b'@' | b'!')
                || match place {
                    Place::Command | Place::Test => is_meta(byte),
                    Place::Braced { .. } => matches!(byte, b'}' | b'<' | b'>'),
                    Place::Subscript => matches!(byte, b'[' | b']'),
                }
        };
        1 + rest[1..].iter().position(|&byte| special(byte)).unwrap_or(rest.len() - 1)
    }

    fn backslash(&mut self, pieces: &mut Pieces, in_double_quotes: bool) -> Result<()> {
        match self.peek_at(1) {
            Some(b'\n') => self.pos += 2,
            Some(0) => return Err(self.error(ShellErrorKind::Nul)),
            Some(next) if in_double_quotes && !matches!(next, b'$' | b'`' | b'"' | b'\\' | b'}') => {
                pieces.literal(&[b'\\', next], true);
                self.pos += 2;
            }
            Some(next) => {
                pieces.literal(&[next], true);
                self.pos += 2;
            }
            // A backslash at the end of the text is literal.
            None => {
                pieces.literal(b"\\", true);
                self.pos += 1;
            }
        }
        Ok(())
    }

    fn single_quoted(&mut self, pieces: &mut Pieces) -> Result<()> {
        let start = self.pos + 1;
        let Some(length) = self.src[start..].iter().position(|&byte| byte == b'\'') else {
            return Err(self.error(ShellErrorKind::Unterminated("single quote")));
        };
        let text = &self.src[start..start + length];
        if text.contains(&0) {
            return Err(self.error(ShellErrorKind::Nul));
        }
        pieces.literal(text, true);
        self.pos = start + length + 1;
        Ok(())
    }

    /// Parses `'…'` in arithmetic and subscripts, where the shell evaluates the text despite the quotes.
    fn evaluated_quote(&mut self, pieces: &mut Pieces) -> Result<()> {
        let start = self.pos + 1;
        let Some(length) = self.src[start..].iter().position(|&byte| byte == b'\'') else {
            return Err(self.error(ShellErrorKind::Unterminated("single quote")));
        };
        let text = &self.src[start..start + length];
        let word = self.nested(|parser| parser.here_body(text))?;
        pieces.literal(b"", true);
        pieces.0.extend(word.pieces);
        self.pos = start + length + 1;
        Ok(())
    }

    fn double_quoted(&mut self, pieces: &mut Pieces) -> Result<()> {
        let open = self.pos;
        self.pos += 1;
        pieces.literal(b"", true);
        self.nested(|parser| {
            loop {
                match parser.peek() {
                    None => return Err(parser.error_at(open, ShellErrorKind::Unterminated("double quote"))),
                    Some(b'"') => {
                        parser.pos += 1;
                        return Ok(());
                    }
                    Some(_) => parser.expandable(pieces, true)?,
                }
            }
        })
    }

    /// Parses one element inside double quotes (`in_quotes`) or an expanded here-document.
    fn expandable(&mut self, pieces: &mut Pieces, in_quotes: bool) -> Result<()> {
        match self.src[self.pos] {
            0 => Err(self.error(ShellErrorKind::Nul)),
            b'\\' => {
                match self.peek_at(1) {
                    Some(b'\n') => {}
                    Some(next @ (b'$' | b'`' | b'\\')) => pieces.literal(&[next], true),
                    Some(b'"') if in_quotes => pieces.literal(b"\"", true),
                    Some(next) => pieces.literal(&[b'\\', next], true),
                    None => {
                        pieces.literal(b"\\", true);
                        self.pos += 1;
                        return Ok(());
                    }
                }
                self.pos += 2;
                Ok(())
            }
            b'`' => self.backquoted(pieces, in_quotes),
            b'$' => self.dollar(pieces, true),
            _ => {
                let rest = &self.src[self.pos..];
                let special =
                    |byte: u8| matches!(byte, 0 | b'\\' | b'`' | b'$') || (in_quotes && byte == b'"');
                let run = 1 + rest[1..].iter().position(|&byte| special(byte)).unwrap_or(rest.len() - 1);
                pieces.literal(&rest[..run], true);
                self.pos += run;
                Ok(())
            }
        }
    }

    /// Parses `` `…` ``. After backslashes are removed, the content is parsed as a separate text.
    fn backquoted(&mut self, pieces: &mut Pieces, quoted: bool) -> Result<()> {
        let open = self.pos;
        self.pos += 1;
        let mut inner = Vec::new();
        loop {
            match self.peek() {
                None => return Err(self.error_at(open, ShellErrorKind::Unterminated("backquote"))),
                Some(b'`') => break,
                Some(b'\\') => {
                    match self.peek_at(1) {
                        Some(next @ (b'$' | b'`' | b'\\')) => inner.push(next),
                        Some(b'"') if quoted => inner.push(b'"'),
                        Some(next) => inner.extend_from_slice(&[b'\\', next]),
                        None => {}
                    }
                    self.pos += 2;
                }
                Some(byte) => {
                    inner.push(byte);
                    self.pos += 1;
                }
            }
            if self.pos > self.src.len() {
                return Err(self.error_at(open, ShellErrorKind::Unterminated("backquote")));
            }
        }
        self.pos += 1;
        let script = self.nested(|parser| parser.subparse(&inner))?;
        pieces.push(Piece::Command { script, quoted });
        Ok(())
    }

    fn dollar(&mut self, pieces: &mut Pieces, quoted: bool) -> Result<()> {
        match self.peek_at(1) {
            // The shell joins continued lines before it expands words, so the next line could begin any expansion.
            Some(b'\\') if self.peek_at(2) == Some(b'\n') => Err(self.cut_token()),
            Some(b'(') if self.peek_at(2) == Some(b'(') && self.is_arithmetic(self.pos + 3) => {
                self.pos += 3;
                let word = self.balanced(b'(', b')', "arithmetic expansion")?;
                self.expect_byte(b')', "`))`")?;
                pieces.push(Piece::Arithmetic(word));
                Ok(())
            }
            Some(b'(') => {
                self.pos += 2;
                let script = self.substitution("command substitution")?;
                pieces.push(Piece::Command { script, quoted });
                Ok(())
            }
            Some(b'[') => {
                self.pos += 2;
                let word = self.nested(|parser| parser.word(Place::Subscript))?;
                self.expect_byte(b']', "`]`")?;
                pieces.push(Piece::Arithmetic(word));
                Ok(())
            }
            Some(b'{') => {
                self.pos += 2;
                // `${ cmd; }` and `${| cmd; }` run commands in newer versions of bash.
                if self.peek().is_some_and(|byte| is_blank(byte) || byte == b'\n' || byte == b'|') {
                    self.pos += 1;
                    let script = self.nested(|parser| {
                        let script = parser.script()?;
                        parser.skip_blanks();
                        parser.expect_byte(b'}', "`}`")?;
                        Ok(script)
                    })?;
                    pieces.push(Piece::Command { script, quoted });
                    return Ok(());
                }
                self.nested(|parser| parser.braced_parameter(pieces, quoted))
            }
            Some(b'\'') if !quoted => self.ansi_quoted(pieces),
            Some(b'"') if !quoted => {
                self.pos += 1;
                self.double_quoted(pieces)
            }
            Some(byte) if is_name_start(byte) => {
                let start = self.pos + 1;
                let length = self.src[start..].iter().take_while(|&&byte| is_name_byte(byte)).count();
                let name = self.src[start..start + length].to_vec();
                self.pos = start + length;
                if self.src[self.pos..].starts_with(b"\\\n") && self.peek_at(2).is_some_and(is_name_byte) {
                    return Err(self.cut_token());
                }
                pieces.push(Piece::Parameter { name, plain: true, quoted, nested: Vec::new() });
                Ok(())
            }
            Some(byte @ (b'0'..=b'9' | b'@' | b'*' | b'#' | b'?' | b'-' | b'$' | b'!')) => {
                self.pos += 2;
                pieces.push(Piece::Parameter { name: vec![byte], plain: true, quoted, nested: Vec::new() });
                Ok(())
            }
            _ => {
                pieces.literal(b"$", true);
                self.pos += 1;
                Ok(())
            }
        }
    }

    fn cut_token(&self) -> ShellError {
        self.error(ShellErrorKind::Unexpected("line continuation inside a token".into()))
    }

    /// Parses a braced expansion after `${`: the name, then everything up to the closing brace, which may contain
    /// substitutions.
    fn braced_parameter(&mut self, pieces: &mut Pieces, quoted: bool) -> Result<()> {
        let open = self.pos;
        if self.peek() == Some(b'!') || (self.peek() == Some(b'#') && self.peek_at(1) != Some(b'}')) {
            self.pos += 1;
        }
        let indirect = self.pos > open;
        let start = self.pos;
        while self.peek().is_some_and(is_name_byte) {
            self.pos += 1;
        }
        if self.pos == start
            && self.peek().is_some_and(|byte| matches!(byte, b'@' | b'*' | b'#' | b'?' | b'-' | b'$' | b'!'))
        {
            self.pos += 1;
        }
        let name = self.src[start..self.pos].to_vec();
        let mut nested = Vec::new();
        if self.peek() == Some(b'[') {
            self.pos += 1;
            nested.push(self.nested(|parser| parser.word(Place::Subscript))?);
            self.expect_byte(b']', "`]`")?;
        }
        let plain = !indirect && nested.is_empty() && self.peek() == Some(b'}');
        // After an operator for default values, the rules of the surrounding double quotes apply. Patterns and
        // substitutions have their own quoting rules.
        let keeps_quotes = matches!(self.peek(), Some(b':' | b'-' | b'=' | b'+' | b'?'));
        let operator = self.nested(|parser| parser.word(Place::Braced { quoted: quoted && keeps_quotes }))?;
        // `${x:'…'}` is arithmetic, where quotes do not prevent evaluation.
        let raw = &self.src[operator.span.clone()];
        let slices = raw.first() == Some(&b':') && !matches!(raw.get(1), Some(b'-' | b'=' | b'+' | b'?'));
        if slices && raw.contains(&b'\'') {
            return Err(self.error(ShellErrorKind::Unexpected("quote in a substring expansion".into())));
        }
        nested.push(operator);
        if self.peek() != Some(b'}') {
            return Err(self.error_at(open, ShellErrorKind::Unterminated("parameter expansion")));
        }
        self.pos += 1;
        pieces.push(Piece::Parameter { name, plain, quoted, nested });
        Ok(())
    }

    /// Parses `$'…'` with its escapes.
    fn ansi_quoted(&mut self, pieces: &mut Pieces) -> Result<()> {
        let open = self.pos;
        self.pos += 2;
        let mut text = Vec::new();
        loop {
            match self.peek() {
                None => return Err(self.error_at(open, ShellErrorKind::Unterminated("$'…' quote"))),
                Some(0) => return Err(self.error(ShellErrorKind::Nul)),
                Some(b'\'') => break,
                Some(b'\\') => {
                    self.pos += 1;
                    // A shell without `$'…'` would end the string at the first quote.
                    self.is_ambiguous |= self.peek() == Some(b'\'');
                    self.ansi_escape(&mut text);
                }
                Some(byte) => {
                    text.push(byte);
                    self.pos += 1;
                }
            }
        }
        self.pos += 1;
        // The shell truncates such a string at an escaped NUL (`\0`, `\x00`).
        if let Some(end) = text.iter().position(|&byte| byte == 0) {
            text.truncate(end);
        }
        pieces.literal(&text, true);
        Ok(())
    }

    fn ansi_escape(&mut self, text: &mut Vec<u8>) {
        let Some(byte) = self.peek() else {
            text.push(b'\\');
            return;
        };
        self.pos += 1;
        match byte {
            b'a' => text.push(7),
            b'b' => text.push(8),
            b'e' | b'E' => text.push(27),
            b'f' => text.push(12),
            b'n' => text.push(b'\n'),
            b'r' => text.push(b'\r'),
            b't' => text.push(b'\t'),
            b'v' => text.push(11),
            b'\\' | b'\'' | b'"' | b'?' => text.push(byte),
            b'0'..=b'7' => {
                self.pos -= 1;
                text.push((self.digits(8, 3).unwrap_or(0) & 0xff) as u8);
            }
            b'x' => match self.digits(16, 2) {
                Some(value) => text.push((value & 0xff) as u8),
                None => text.extend_from_slice(b"\\x"),
            },
            b'u' | b'U' => match self.digits(16, if byte == b'u' { 4 } else { 8 }) {
                Some(value) => {
                    let mut buffer = [0; 4];
                    let decoded = char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER);
                    text.extend_from_slice(decoded.encode_utf8(&mut buffer).as_bytes());
                }
                None => text.extend_from_slice(&[b'\\', byte]),
            },
            b'c' => {
                if let Some(control) = self.peek() {
                    // The shell finds the closing quote before it interprets the escape: `\c\'` does not end
                    // the string.
                    self.pos += if control == b'\\' && self.peek_at(1).is_some() { 2 } else { 1 };
                    text.push(control & 0x1f);
                }
            }
            other => text.extend_from_slice(&[b'\\', other]),
        }
    }

    fn digits(&mut self, radix: u32, most: usize) -> Option<u32> {
        let mut value: Option<u32> = None;
        for _ in 0..most {
            let Some(digit) = self.peek().and_then(|byte| (byte as char).to_digit(radix)) else { break };
            value = Some(value.unwrap_or(0).wrapping_mul(radix).wrapping_add(digit));
            self.pos += 1;
        }
        value
    }

    /// Parses everything up to the `close` byte that matches an `open` byte, which the caller has consumed, as one word
    /// with expansions. `what` is the name of the construct in errors. In every construct other than an extended glob,
    /// single quotes do not prevent evaluation.
    pub(super) fn balanced(&mut self, open: u8, close: u8, what: &'static str) -> Result<Word> {
        let arithmetic = what != "extended glob";
        let start = self.pos;
        let mut pieces = Pieces::default();
        let mut level = 0usize;
        self.nested(|parser| {
            loop {
                match parser.peek() {
                    None => return Err(parser.error_at(start, ShellErrorKind::Unterminated(what))),
                    Some(0) => return Err(parser.error(ShellErrorKind::Nul)),
                    Some(byte) if byte == close && level == 0 => break,
                    Some(b'\\') => parser.backslash(&mut pieces, false)?,
                    Some(b'\'') if arithmetic => parser.evaluated_quote(&mut pieces)?,
                    Some(b'\'') => parser.single_quoted(&mut pieces)?,
                    Some(b'"') => parser.double_quoted(&mut pieces)?,
                    Some(b'`') => parser.backquoted(&mut pieces, false)?,
                    Some(b'$') => parser.dollar(&mut pieces, false)?,
                    Some(byte) => {
                        if byte == open {
                            level += 1;
                        } else if byte == close {
                            level -= 1;
                        }
                        pieces.literal(&[byte], false);
                        parser.pos += 1;
                    }
                }
            }
            Ok(())
        })?;
        let word = pieces.into_word(start, self.pos);
        self.pos += 1;
        Ok(word)
    }

    /// Parses a substitution after `$(`, `<(` or `>(`: the script and the closing parenthesis.
    fn substitution(&mut self, what: &'static str) -> Result<Script> {
        let open = self.pos;
        // The bodies of the surrounding line's here-documents begin after that line, not after a newline in the
        // substitution.
        let waiting = std::mem::take(&mut self.pending);
        let script = self.nested(Parser::script)?;
        let unread = std::mem::replace(&mut self.pending, waiting);
        if !unread.is_empty() {
            // Shells disagree on where the body of a here-document is if the substitution ends before it.
            return Err(self.error(ShellErrorKind::Unterminated("here-document in a substitution")));
        }
        match self.peek() {
            Some(b')') => {
                self.pos += 1;
                Ok(script)
            }
            None => Err(self.error_at(open, ShellErrorKind::Unterminated(what))),
            Some(_) => Err(self.unexpected()),
        }
    }

    /// Returns true if the text after `((` is arithmetic: it then closes with `))`. Otherwise it is a subshell inside
    /// a subshell. The look-ahead scans the text at most once for each open nesting level, and the number of levels
    /// is limited.
    pub(super) fn is_arithmetic(&self, from: usize) -> bool {
        let mut level = 0usize;
        let mut at = from;
        while let Some(&byte) = self.src.get(at) {
            match byte {
                b'\\' => at += 1,
                b'\'' => match self.src[at + 1..].iter().position(|&byte| byte == b'\'') {
                    Some(length) => at += length + 1,
                    None => return false,
                },
                b'"' => {
                    at += 1;
                    while self.src.get(at).is_some_and(|&byte| byte != b'"') {
                        at += if self.src[at] == b'\\' { 2 } else { 1 };
                    }
                }
                b'(' => level += 1,
                b')' if level == 0 => return self.src.get(at + 1) == Some(&b')'),
                b')' => level -= 1,
                _ => {}
            }
            at += 1;
        }
        false
    }

    /// Parses a text in which the shell performs expansions: the body of a here-document with an unquoted delimiter, or
    /// single-quoted text in arithmetic.
    pub(super) fn here_body(&mut self, text: &[u8]) -> Result<Word> {
        let mut inner = self.child(text);
        let mut pieces = Pieces::default();
        while inner.peek().is_some() {
            inner.expandable(&mut pieces, false)?;
        }
        Ok(pieces.into_word(0, text.len()))
    }
}
