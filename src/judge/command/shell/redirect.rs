//! Parses redirections and here-documents.

use std::cell::OnceCell;
use std::rc::Rc;

use super::assign::without_continuations;
use super::ast::{Redirection, RedirectionKind, Word};
use super::error::{ShellError, ShellErrorKind};
use super::lex::{Pieces, Place, is_name_byte};
use super::parse::Parser;

type Result<T> = std::result::Result<T, ShellError>;

/// A here-document whose body the parser has not read yet.
pub(super) struct PendingBody {
    delimiter: Vec<u8>,
    strip_tabs: bool,
    expand: bool,
    body: Rc<OnceCell<Word>>,
}

impl Parser<'_> {
    /// If a redirection begins at the current position, parses it: `>f`, `2>&1`, `{fd}<f`, `&>f`, `<<EOF`, `<<<text`.
    /// Otherwise returns `None`. A process substitution `<(` is not a redirection.
    pub(super) fn redirection(&mut self) -> Result<Option<Redirection>> {
        let begin = self.pos;
        let mut at = begin;
        let mut fd = None;
        match self.src.get(at) {
            Some(b'0'..=b'9') => {
                while self.src.get(at).is_some_and(u8::is_ascii_digit) {
                    at += 1;
                }
                fd = std::str::from_utf8(&self.src[self.pos..at]).ok().and_then(|digits| digits.parse().ok());
            }
            Some(b'{') => {
                let length = self.src[at + 1..].iter().take_while(|&&byte| is_name_byte(byte)).count();
                if length == 0 || self.src.get(at + 1 + length) != Some(&b'}') {
                    return Ok(None);
                }
                at += length + 2;
            }
            Some(b'&') if self.src.get(at + 1) == Some(&b'>') => at += 1,
            _ => {}
        }
        let rest = &self.src[at.min(self.src.len())..];
        let operators: [(&[u8], RedirectionKind); 11] = [
            (b"<<<", RedirectionKind::HereString),
            (b"<<-", RedirectionKind::HereDocument),
            (b"<<", RedirectionKind::HereDocument),
            (b"<>", RedirectionKind::ReadWrite),
            (b"<&", RedirectionKind::Duplicate),
            (b">>", RedirectionKind::Write),
            (b">&", RedirectionKind::Duplicate),
            (b">|", RedirectionKind::Write),
            (b">", RedirectionKind::Write),
            (b"<", RedirectionKind::Read),
            (b"", RedirectionKind::Read),
        ];
        let Some(&(operator, kind)) = operators.iter().find(|(operator, _)| rest.starts_with(operator))
        else {
            return Ok(None);
        };
        if operator.is_empty() || (operator.len() == 1 && rest.get(1) == Some(&b'(')) {
            return Ok(None);
        }
        self.pos = at + operator.len();
        if self.src[self.pos..].starts_with(b"\\\n") {
            // A shell would join `<<` with a `-` on the next line to one operator, so refuse the line continuation.
            return Err(self.error(ShellErrorKind::Unexpected("line continuation inside a token".into())));
        }
        self.skip_blanks();
        let before = self.pos;
        let target = self.word(Place::Command)?;
        if self.pos == before {
            return Err(self.unexpected());
        }
        // `{name}<file` opens a new descriptor. Without a number, `<&3` redirects standard input and `>&2` standard
        // output.
        match (self.src[begin], kind) {
            (b'{', _) => fd = Some(u32::MAX),
            (_, RedirectionKind::Duplicate) if fd.is_none() => fd = Some(u32::from(operator == b">&")),
            _ => {}
        }
        let body = Rc::new(OnceCell::new());
        if kind == RedirectionKind::HereDocument {
            let (delimiter, quoted) = self.delimiter(&target);
            let strip_tabs = operator == b"<<-";
            self.pending.push(PendingBody { delimiter, strip_tabs, expand: !quoted, body: Rc::clone(&body) });
        }
        Ok(Some(Redirection { kind, fd, target, body }))
    }

    /// Returns the delimiter of a here-document and whether any part of it is quoted. The delimiter is the word after
    /// `<<` with quotes removed and nothing expanded, so `<<"$X"` ends at a line `$X`.
    pub(super) fn delimiter(&self, word: &Word) -> (Vec<u8>, bool) {
        let mut text = Vec::new();
        let mut quote = None;
        let mut quoted = false;
        let mut rest = self.src[word.span.clone()].iter().copied().peekable();
        while let Some(byte) = rest.next() {
            match (byte, quote) {
                (_, Some(end)) if byte == end => quote = None,
                (b'\'' | b'"', None) => {
                    quote = Some(byte);
                    quoted = true;
                }
                (b'\\', None) => {
                    quoted = true;
                    text.extend(rest.next());
                }
                (b'\\', Some(b'"')) if matches!(rest.peek(), Some(b'$' | b'`' | b'"' | b'\\')) => {
                    text.extend(rest.next())
                }
                _ => text.push(byte),
            }
        }
        (text, quoted)
    }

    pub(super) fn read_bodies(&mut self) -> Result<()> {
        for pending in std::mem::take(&mut self.pending) {
            let mut text = Vec::new();
            // Whether the previous line ended in a backslash. Shells disagree on whether such a line can continue
            // into the delimiter.
            let mut continued = false;
            let mut logical_start = 0;
            while self.pos < self.src.len() {
                let rest = &self.src[self.pos..];
                let length = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
                let mut line = &rest[..length];
                if pending.strip_tabs {
                    let tabs = line.iter().take_while(|&&byte| byte == b'\t').count();
                    line = &line[tabs..];
                }
                self.pos += (length + 1).min(rest.len());
                let short = text.len() - logical_start <= 4 * pending.delimiter.len() + 16;
                if pending.expand && continued && (short || line == pending.delimiter) {
                    let joined = [&text[logical_start..text.len() - 2], line].concat();
                    if line == pending.delimiter
                        || joined.ends_with(&pending.delimiter)
                            && without_continuations(&joined) == pending.delimiter
                    {
                        let what = "here-document delimiter after a line continuation".to_string();
                        return Err(self.error(ShellErrorKind::Unexpected(what)));
                    }
                }
                if line == pending.delimiter {
                    break;
                }
                if !continued {
                    logical_start = text.len();
                }
                continued = line.iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1;
                text.extend_from_slice(line);
                text.push(b'\n');
            }
            let word = if pending.expand {
                self.nested(|parser| parser.here_body(&text))?
            } else {
                let mut pieces = Pieces::default();
                pieces.literal(&text, true);
                pieces.into_word(0, text.len())
            };
            // Cannot fail: the cell was created with this entry and is set only here.
            let _ = pending.body.set(word);
        }
        Ok(())
    }
}
