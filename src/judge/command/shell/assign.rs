//! Parses assignments, with or without a command after them: `name=value`, subscripts, arrays.

use super::ast::{Assignment, Word};
use super::error::{ShellError, ShellErrorKind};
use super::lex::{Place, is_meta, is_name_byte, is_name_start};
use super::parse::{CLOSING, Parser};

type Result<T> = std::result::Result<T, ShellError>;

impl Parser<'_> {
    /// Rejects a reserved word, an assignment or a `{fd}>` that a line continuation splits. The split does not change
    /// the meaning, so people write it only to hide something.
    pub(super) fn refuse_split_token(&self, word: &Word) -> Result<()> {
        let raw = &self.src[word.span.clone()];
        if !raw.windows(2).any(|window| window == b"\\\n") {
            return Ok(());
        }
        let joined = without_continuations(raw);
        let name = joined.iter().take_while(|&&byte| is_name_byte(byte)).count();
        let assigns = name > 0 && matches!(joined.get(name), Some(b'=' | b'+' | b'['));
        let names_descriptor = joined.first() == Some(&b'{') && matches!(self.peek(), Some(b'<' | b'>'));
        let opening = [
            b"if".as_slice(),
            b"while",
            b"until",
            b"for",
            b"select",
            b"case",
            b"coproc",
            b"function",
            b"{",
            b"[[",
            b"!",
            b"time",
        ];
        let reserved = joined == b"]]"
            || opening.contains(&joined.as_slice())
            || CLOSING.contains(&joined.as_slice())
            || joined == b"}";
        if assigns || names_descriptor || reserved {
            return Err(self.error_at(
                word.span.start,
                ShellErrorKind::Unexpected("line continuation inside a token".into()),
            ));
        }
        Ok(())
    }

    /// Rejects a name that a line continuation splits. The name extends from `start` to the current position.
    pub(super) fn refuse_split_name(&self, start: usize) -> Result<()> {
        if self.src[start..self.pos].contains(&b'\\') {
            return Err(
                self.error_at(start, ShellErrorKind::Unexpected("line continuation inside a token".into()))
            );
        }
        Ok(())
    }

    /// If an assignment begins at the current position, parses it: `name=value`, `name+=value`, `name[…]=value` or
    /// `name=( … )`. Otherwise returns `None` and consumes nothing.
    pub(super) fn assignment(&mut self) -> Result<Option<Assignment>> {
        if !self.peek().is_some_and(is_name_start) {
            return Ok(None);
        }
        let name_length = self.src[self.pos..].iter().take_while(|&&byte| is_name_byte(byte)).count();
        let after = self.pos + name_length;
        let mut words = Vec::new();
        let mut plain = true;
        let start = self.pos;
        match self.src.get(after) {
            Some(b'=') => self.pos = after + 1,
            Some(b'+') if self.src.get(after + 1) == Some(&b'=') => {
                plain = false;
                self.pos = after + 2;
            }
            Some(b'[') => {
                let Some(close) = self.subscript_end(after + 1) else {
                    // If `]=` follows further on, `a[1 …` is an assignment that is too long or too unusual to parse.
                    let near = &self.src[after..self.src.len().min(after + 1024)];
                    if near.windows(2).any(|window| window == b"]=" || window == b"]+") {
                        return Err(self.error(ShellErrorKind::Unexpected("subscript".into())));
                    }
                    return Ok(None);
                };
                let operator = match (self.src.get(close + 1), self.src.get(close + 2)) {
                    (Some(b'='), _) => 1,
                    (Some(b'+'), Some(b'=')) => 2,
                    _ => return Ok(None),
                };
                plain = false;
                self.pos = after + 1;
                words.push(self.nested(|parser| parser.word(Place::Subscript))?);
                self.expect_byte(b']', "`]`")?;
                self.pos += operator;
            }
            _ => return Ok(None),
        }
        let name = self.src[start..after].to_vec();
        if self.peek() == Some(b'(') {
            plain = false;
            words.extend(self.array()?);
        } else {
            words.push(self.word(Place::Command)?);
        }
        Ok(Some(Assignment { name, plain, words }))
    }

    /// Returns the offset of the `]` that closes a subscript, respecting quotes and nested brackets; `None` if there is
    /// none on this line within 256 bytes. `a[x y` without a `]` is an ordinary word.
    pub(super) fn subscript_end(&self, from: usize) -> Option<usize> {
        let mut level = 0usize;
        let mut at = from;
        while let Some(&byte) = self.src.get(at) {
            match byte {
                b'\n' => return None,
                b'\\' => at += 1,
                b'\'' | b'"' => at += 1 + self.src[at + 1..].iter().position(|&other| other == byte)?,
                b'[' => level += 1,
                b']' if level == 0 => return Some(at),
                b']' => level -= 1,
                _ => {}
            }
            at += 1;
            // Nobody writes longer subscripts, and the limit keeps the time for `a[a[a[…` linear.
            if at - from > 256 {
                return None;
            }
        }
        None
    }

    /// Parses the words of `( … )` after `name=`.
    pub(super) fn array(&mut self) -> Result<Vec<Word>> {
        let open = self.pos;
        self.pos += 1;
        self.nested(|parser| {
            let mut words = Vec::new();
            loop {
                parser.skip_newlines()?;
                match parser.peek() {
                    None => return Err(parser.error_at(open, ShellErrorKind::Unterminated("array"))),
                    Some(b')') => {
                        parser.pos += 1;
                        return Ok(words);
                    }
                    Some(b'<' | b'>') if parser.peek_at(1) == Some(b'(') => {
                        words.push(parser.word(Place::Command)?)
                    }
                    Some(byte) if is_meta(byte) => return Err(parser.unexpected()),
                    Some(b'[') => {
                        parser.pos += 1;
                        words.push(parser.nested(|parser| parser.word(Place::Subscript))?);
                        parser.expect_byte(b']', "`]`")?;
                        words.push(parser.word(Place::Command)?);
                    }
                    Some(_) => words.push(parser.word(Place::Command)?),
                }
            }
        })
    }
}

/// Removes line continuations, so that continued lines are joined.
pub(super) fn without_continuations(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.windows(2).position(|window| window == b"\\\n") {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at + 2..];
    }
    out.extend_from_slice(rest);
    out
}
