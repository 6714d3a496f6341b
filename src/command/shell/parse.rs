//! Words to commands: the grammar of POSIX sh and bash, by recursive descent.
//!
//! Linear in the text, bounded in depth: every construct that can nest goes through [`Parser::nested`], so 10,000 open
//! brackets are an error, not a stack overflow. A published grammar crate was tried first: sixteen unclosed `((` made
//! it run for ever, which a judge of hostile text cannot afford.

use std::cell::OnceCell;
use std::rc::Rc;

use super::ast::{
    AndOr, Assignment, Command, Compound, CompoundKind, Piece, Redirection, RedirectionKind, Script, Simple,
    Word,
};
use super::error::{ShellError, ShellErrorKind};
use super::lex::{Pieces, Place, is_meta, is_name_byte, is_name_start};

type Result<T> = std::result::Result<T, ShellError>;

/// Words that end a list of commands when they stand where a command would begin.
const CLOSING: [&[u8]; 7] = [b"then", b"else", b"elif", b"fi", b"do", b"done", b"esac"];

/// A here-document whose body is still to come.
pub(super) struct PendingBody {
    delimiter: Vec<u8>,
    strip_tabs: bool,
    expand: bool,
    body: Rc<OnceCell<Word>>,
}

/// Reads one text. `depth` counts the constructs open around the cursor, also those of the texts around this one.
pub(super) struct Parser<'a> {
    pub(super) src: &'a [u8],
    pub(super) pos: usize,
    depth: usize,
    max_depth: usize,
    pub(super) pending: Vec<PendingBody>,
}

/// Parses a whole text whose surroundings are already `depth` levels deep.
pub(crate) fn parse(text: &[u8], depth: usize, max_depth: usize) -> Result<Script> {
    Parser { src: text, pos: 0, depth, max_depth, pending: Vec::new() }.whole()
}

impl<'a> Parser<'a> {
    pub(super) fn peek(&self) -> Option<u8> {
        self.src.get(self.pos).copied()
    }

    pub(super) fn peek_at(&self, offset: usize) -> Option<u8> {
        self.src.get(self.pos + offset).copied()
    }

    pub(super) fn error(&self, kind: ShellErrorKind) -> ShellError {
        ShellError { at: self.pos.min(self.src.len()), kind }
    }

    pub(super) fn error_at(&self, at: usize, kind: ShellErrorKind) -> ShellError {
        ShellError { at, kind }
    }

    pub(super) fn unexpected(&self) -> ShellError {
        let kind = match self.peek() {
            None => ShellErrorKind::Unexpected("end of text".into()),
            Some(b'\n') => ShellErrorKind::Unexpected("newline".into()),
            Some(0) => ShellErrorKind::Nul,
            Some(_) => {
                let rest = &self.src[self.pos..];
                let length = rest.iter().skip(1).take(15).take_while(|&&byte| !is_meta(byte)).count() + 1;
                ShellErrorKind::Unexpected(format!("`{}`", String::from_utf8_lossy(&rest[..length])))
            }
        };
        self.error(kind)
    }

    pub(super) fn expect_byte(&mut self, byte: u8, what: &'static str) -> Result<()> {
        if self.peek() == Some(byte) {
            self.pos += 1;
            Ok(())
        } else {
            Err(self.error(ShellErrorKind::Expected(what)))
        }
    }

    /// Runs `inside` one level deeper.
    pub(super) fn nested<T>(&mut self, inside: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= self.max_depth {
            return Err(self.error(ShellErrorKind::TooDeep(self.max_depth)));
        }
        self.depth += 1;
        let result = inside(self);
        self.depth -= 1;
        result
    }

    /// A parser for a text found inside this one (backquotes, here-documents).
    pub(super) fn child<'b>(&self, text: &'b [u8]) -> Parser<'b> {
        Parser { src: text, pos: 0, depth: self.depth, max_depth: self.max_depth, pending: Vec::new() }
    }

    pub(super) fn subparse(&mut self, text: &[u8]) -> Result<Script> {
        self.child(text).whole()
    }

    fn whole(mut self) -> Result<Script> {
        let script = self.script()?;
        if self.pos < self.src.len() {
            return Err(self.unexpected());
        }
        // A here-document that the text's end cut short: the shell takes what there is.
        self.read_bodies()?;
        Ok(script)
    }

    /// A list of commands, up to the end, a `)`, a case separator or a closing reserved word.
    pub(super) fn script(&mut self) -> Result<Script> {
        let mut lists = Vec::new();
        loop {
            self.skip_newlines()?;
            if self.at_list_end() {
                break;
            }
            let mut list = self.and_or()?;
            self.skip_blanks();
            match self.peek() {
                Some(b';') if !matches!(self.peek_at(1), Some(b';' | b'&')) => self.pos += 1,
                Some(b'&') => {
                    list.background = true;
                    self.pos += 1;
                }
                Some(b'\n' | b'#') | None => {}
                Some(_) if self.at_list_end() => {}
                Some(_) => return Err(self.unexpected()),
            }
            lists.push(list);
        }
        Ok(Script { lists })
    }

    fn at_list_end(&self) -> bool {
        match self.peek() {
            None | Some(b')') => true,
            Some(b';') => matches!(self.peek_at(1), Some(b';' | b'&')),
            Some(b'}') => self.keyword_here(b"}"),
            Some(byte) if byte.is_ascii_lowercase() => CLOSING.iter().any(|word| self.keyword_here(word)),
            Some(_) => false,
        }
    }

    /// Blanks, comments and newlines; here-document bodies are read at each newline.
    fn skip_newlines(&mut self) -> Result<()> {
        loop {
            self.skip_blanks();
            self.skip_comment();
            if self.peek() == Some(b'\n') {
                self.pos += 1;
                self.read_bodies()?;
            } else {
                return Ok(());
            }
        }
    }

    fn and_or(&mut self) -> Result<AndOr> {
        let mut pipelines = vec![self.pipeline()?];
        loop {
            self.skip_blanks();
            match (self.peek(), self.peek_at(1)) {
                (Some(b'&'), Some(b'&')) | (Some(b'|'), Some(b'|')) => {
                    self.pos += 2;
                    self.skip_newlines()?;
                    pipelines.push(self.pipeline()?);
                }
                _ => return Ok(AndOr { pipelines, background: false }),
            }
        }
    }

    fn pipeline(&mut self) -> Result<Vec<Command>> {
        let mut prefixed = false;
        loop {
            self.skip_blanks();
            if self.keyword_here(b"!") || (self.peek() == Some(b'!') && self.peek_at(1) == Some(b'(')) {
                self.pos += 1;
            } else if self.time_keyword_here() {
                self.pos += 4;
                self.skip_blanks();
                for option in [b"-p".as_slice(), b"--"] {
                    if self.keyword_here(option) {
                        self.pos += option.len();
                        self.skip_blanks();
                    }
                }
            } else {
                break;
            }
            prefixed = true;
        }
        // `time` and `!` may stand alone.
        if prefixed && matches!(self.peek(), None | Some(b'\n' | b';' | b')' | b'&' | b'|')) {
            return Ok(Vec::new());
        }
        let mut commands = vec![self.command()?];
        loop {
            self.skip_blanks();
            if self.peek() != Some(b'|') || self.peek_at(1) == Some(b'|') {
                return Ok(commands);
            }
            self.pos += if self.peek_at(1) == Some(b'&') { 2 } else { 1 };
            self.skip_newlines()?;
            commands.push(self.command()?);
        }
    }

    /// `time` with other options than `-p` is the program, not the reserved word.
    fn time_keyword_here(&self) -> bool {
        if !self.keyword_here(b"time") {
            return false;
        }
        let rest = &self.src[self.pos + 4..];
        let word = &rest[rest.iter().take_while(|&&byte| byte == b' ' || byte == b'\t').count()..];
        let end = word.iter().position(|&byte| is_meta(byte)).unwrap_or(word.len());
        !word.starts_with(b"-") || matches!(&word[..end], b"-p" | b"--")
    }

    fn command(&mut self) -> Result<Command> {
        self.nested(|parser| {
            parser.skip_blanks();
            let Some(compound) = parser.compound()? else { return parser.simple() };
            Ok(compound)
        })
    }

    /// A compound command or function definition, if one begins here.
    fn compound(&mut self) -> Result<Option<Command>> {
        let mut compound = match self.peek() {
            Some(b'(') if self.peek_at(1) == Some(b'(') && self.is_arithmetic(self.pos + 2) => {
                self.pos += 2;
                let word = self.balanced(b'(', b')', "arithmetic command")?;
                self.expect_byte(b')', "`))`")?;
                expression(vec![word])
            }
            Some(b'(') => {
                self.pos += 1;
                let body = self.script()?;
                self.close(b")")?;
                bodies(CompoundKind::Subshell, vec![body])
            }
            Some(b'{') if self.keyword_here(b"{") => {
                self.pos += 1;
                let body = self.script()?;
                self.close(b"}")?;
                bodies(CompoundKind::Group, vec![body])
            }
            Some(b'[') if self.keyword_here(b"[[") => {
                self.pos += 2;
                self.test()?
            }
            Some(b'i') if self.keyword_here(b"if") => self.if_clause()?,
            Some(b'w') if self.keyword_here(b"while") => self.loop_clause(5)?,
            Some(b'u') if self.keyword_here(b"until") => self.loop_clause(5)?,
            Some(b'f') if self.keyword_here(b"for") => self.for_clause(3)?,
            Some(b's') if self.keyword_here(b"select") => self.for_clause(6)?,
            Some(b'c') if self.keyword_here(b"case") => self.case_clause()?,
            Some(b'c') if self.keyword_here(b"coproc") => return self.coproc().map(Some),
            Some(b'f') if self.keyword_here(b"function") => return self.function().map(Some),
            _ => return Ok(None),
        };
        self.trailing_redirections(&mut compound.redirections)?;
        Ok(Some(Command::Compound(Box::new(compound))))
    }

    fn trailing_redirections(&mut self, redirections: &mut Vec<Redirection>) -> Result<()> {
        loop {
            self.skip_blanks();
            match self.redirection()? {
                Some(redirection) => redirections.push(redirection),
                None => return Ok(()),
            }
        }
    }

    /// Whether the reserved word stands here, whole and unquoted.
    fn keyword_here(&self, word: &[u8]) -> bool {
        self.src[self.pos..].starts_with(word) && self.peek_at(word.len()).is_none_or(is_meta)
    }

    /// Newlines, then the reserved word or byte that must come.
    fn close(&mut self, word: &'static [u8]) -> Result<()> {
        self.skip_newlines()?;
        let here = if word == b")" { self.peek() == Some(b')') } else { self.keyword_here(word) };
        if here {
            self.pos += word.len();
            return Ok(());
        }
        if self.peek().is_none() {
            return Err(self.error(ShellErrorKind::Unterminated(match word {
                b")" => "subshell",
                b"}" => "group",
                b"fi" | b"then" => "`if`",
                b"do" | b"done" => "loop",
                b"esac" => "`case`",
                _ => "command",
            })));
        }
        Err(self.unexpected())
    }

    fn if_clause(&mut self) -> Result<Compound> {
        let mut parts = Vec::new();
        self.pos += 2;
        loop {
            parts.push(self.script()?);
            self.close(b"then")?;
            parts.push(self.script()?);
            if self.keyword_here(b"elif") {
                self.pos += 4;
                continue;
            }
            if self.keyword_here(b"else") {
                self.pos += 4;
                parts.push(self.script()?);
            }
            self.close(b"fi")?;
            return Ok(bodies(CompoundKind::Conditional, parts));
        }
    }

    fn loop_clause(&mut self, keyword: usize) -> Result<Compound> {
        self.pos += keyword;
        let condition = self.script()?;
        self.close(b"do")?;
        let body = self.script()?;
        self.close(b"done")?;
        Ok(bodies(CompoundKind::Loop, vec![condition, body]))
    }

    fn for_clause(&mut self, keyword: usize) -> Result<Compound> {
        self.pos += keyword;
        self.skip_blanks();
        let mut words = Vec::new();
        let mut variable = None;
        if self.peek() == Some(b'(') && self.peek_at(1) == Some(b'(') {
            self.pos += 2;
            words.push(self.balanced(b'(', b')', "`for ((`")?);
            self.expect_byte(b')', "`))`")?;
        } else {
            let start = self.pos;
            while self.peek().is_some_and(|byte| !is_meta(byte)) {
                self.pos += 1;
            }
            variable = Some(self.src[start..self.pos].to_vec());
            self.skip_newlines()?;
            if self.keyword_here(b"in") {
                self.pos += 2;
                self.words_until_separator(&mut words)?;
            }
        }
        self.skip_blanks();
        if self.peek() == Some(b';') {
            self.pos += 1;
        }
        self.skip_newlines()?;
        // `for i in x; { …; }` is an old spelling that bash still takes.
        let closing: (&'static [u8], &'static [u8]) =
            if self.keyword_here(b"{") { (b"{", b"}") } else { (b"do", b"done") };
        self.close(closing.0)?;
        let body = self.script()?;
        self.close(closing.1)?;
        Ok(Compound {
            kind: CompoundKind::Loop,
            words,
            variable,
            bodies: vec![body],
            redirections: Vec::new(),
        })
    }

    fn words_until_separator(&mut self, words: &mut Vec<Word>) -> Result<()> {
        loop {
            self.skip_blanks();
            match self.peek() {
                None | Some(b'\n' | b';' | b'#') => return Ok(()),
                Some(b'<' | b'>') if self.peek_at(1) == Some(b'(') => words.push(self.word(Place::Command)?),
                Some(byte) if is_meta(byte) => return Err(self.unexpected()),
                Some(_) => words.push(self.word(Place::Command)?),
            }
        }
    }

    fn case_clause(&mut self) -> Result<Compound> {
        self.pos += 4;
        self.skip_newlines()?;
        let mut words = vec![self.word(Place::Command)?];
        self.skip_newlines()?;
        if !self.keyword_here(b"in") {
            return Err(self.error(ShellErrorKind::Expected("`in`")));
        }
        self.pos += 2;
        let mut parts = Vec::new();
        loop {
            self.skip_newlines()?;
            if self.keyword_here(b"esac") {
                self.pos += 4;
                break;
            }
            if self.peek() == Some(b'(') {
                self.pos += 1;
            }
            loop {
                self.skip_blanks();
                let before = self.pos;
                words.push(self.word(Place::Command)?);
                if self.pos == before {
                    return Err(self.unexpected());
                }
                self.skip_blanks();
                match self.peek() {
                    Some(b'|') => self.pos += 1,
                    Some(b')') => break,
                    _ => return Err(self.unexpected()),
                }
            }
            self.pos += 1;
            parts.push(self.script()?);
            self.skip_newlines()?;
            if self.peek() == Some(b';') {
                self.pos += if self.src[self.pos..].starts_with(b";;&") { 3 } else { 2 };
            } else if !self.keyword_here(b"esac") {
                return Err(self.unexpected());
            }
        }
        Ok(Compound {
            kind: CompoundKind::Conditional,
            words,
            variable: None,
            bodies: parts,
            redirections: Vec::new(),
        })
    }

    /// `[[ … ]]`: only its words matter, operators and parentheses are skipped.
    fn test(&mut self) -> Result<Compound> {
        let open = self.pos;
        let mut words = Vec::new();
        loop {
            self.skip_newlines()?;
            match self.peek() {
                None => return Err(self.error_at(open, ShellErrorKind::Unterminated("`[[`"))),
                Some(b']') if self.keyword_here(b"]]") => {
                    self.pos += 2;
                    return Ok(expression(words));
                }
                Some(b'<' | b'>') if self.peek_at(1) == Some(b'(') => words.push(self.word(Place::Test)?),
                Some(byte) if is_meta(byte) => self.pos += 1,
                Some(_) => words.push(self.word(Place::Test)?),
            }
        }
    }

    fn coproc(&mut self) -> Result<Command> {
        self.pos += 6;
        self.skip_blanks();
        // `coproc NAME { …; }`: the name is not a command.
        let start = self.pos;
        while self.peek().is_some_and(is_name_byte) {
            self.pos += 1;
        }
        self.skip_blanks();
        let named = self.pos > start
            && (self.peek() == Some(b'(')
                || [b"{".as_slice(), b"while", b"until", b"for", b"if", b"case", b"[["]
                    .iter()
                    .any(|word| self.keyword_here(word)));
        if !named {
            self.pos = start;
        }
        let inner = self.command()?;
        let list = AndOr { pipelines: vec![vec![inner]], background: false };
        Ok(Command::Compound(Box::new(bodies(CompoundKind::Subshell, vec![Script { lists: vec![list] }]))))
    }

    fn function(&mut self) -> Result<Command> {
        self.pos += 8;
        self.skip_blanks();
        let start = self.pos;
        while self.peek().is_some_and(|byte| !is_meta(byte)) {
            self.pos += 1;
        }
        if self.pos == start {
            return Err(self.error(ShellErrorKind::Expected("a function name")));
        }
        let name = self.src[start..self.pos].to_vec();
        self.skip_blanks();
        if self.peek() == Some(b'(') {
            let open = self.pos;
            self.pos += 1;
            self.skip_blanks();
            if self.peek() == Some(b')') {
                self.pos += 1;
            } else {
                // `function f ( … )`: the parenthesis is the body.
                self.pos = open;
            }
        }
        self.function_body(name)
    }

    fn function_body(&mut self, name: Vec<u8>) -> Result<Command> {
        self.skip_newlines()?;
        let body = self.command()?;
        Ok(Command::Function { name, body: Box::new(body) })
    }

    fn simple(&mut self) -> Result<Command> {
        let mut simple = Simple::default();
        loop {
            self.skip_blanks();
            if let Some(redirection) = self.redirection()? {
                simple.redirections.push(redirection);
                continue;
            }
            match self.peek() {
                None | Some(b'\n' | b';' | b'&' | b'|' | b')') => break,
                Some(b'#') => {
                    self.skip_comment();
                    break;
                }
                Some(b'(') => {
                    let defines = simple.words.len() == 1
                        && simple.assignments.is_empty()
                        && simple.redirections.is_empty();
                    self.pos += 1;
                    self.skip_blanks();
                    if !defines || self.peek() != Some(b')') {
                        return Err(self.unexpected());
                    }
                    self.pos += 1;
                    let name = self.src[simple.words[0].span.clone()].to_vec();
                    return self.function_body(name);
                }
                Some(b'<' | b'>') => simple.words.push(self.word(Place::Command)?),
                Some(_) if simple.words.is_empty() => match self.assignment()? {
                    Some(assignment) => simple.assignments.push(assignment),
                    None => {
                        let word = self.word(Place::Command)?;
                        self.refuse_split_token(&word)?;
                        simple.words.push(word);
                    }
                },
                Some(_) => {
                    let word = self.word(Place::Command)?;
                    simple.words.push(word);
                    // `declare a=( … )`, `local b+=( … )`.
                    if self.peek() == Some(b'(') && self.pos > 0 && self.src[self.pos - 1] == b'=' {
                        let elements = self.array()?;
                        simple.words.extend(elements);
                    }
                }
            }
        }
        if simple.words.is_empty() && simple.assignments.is_empty() && simple.redirections.is_empty() {
            return Err(self.unexpected());
        }
        Ok(Command::Simple(simple))
    }

    /// A reserved word, an assignment or `{fd}>` cut by a line continuation: it means what it means without the cut, and
    /// nobody writes it but to hide something.
    fn refuse_split_token(&self, word: &Word) -> Result<()> {
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
        let reserved =
            opening.contains(&joined.as_slice()) || CLOSING.contains(&joined.as_slice()) || joined == b"}";
        if assigns || names_descriptor || reserved {
            return Err(self.error_at(
                word.span.start,
                ShellErrorKind::Unexpected("line continuation inside a token".into()),
            ));
        }
        Ok(())
    }

    /// `name=value`, `name+=value`, `name[…]=value`, `name=( … )`, if one begins here.
    fn assignment(&mut self) -> Result<Option<Assignment>> {
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
                    // `a[1 …` that ends in `]=` further on is an assignment too large or too odd to follow.
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

    /// The `]` of a subscript that stays on this line, quotes respected. `a[x y` is an ordinary word otherwise.
    fn subscript_end(&self, from: usize) -> Option<usize> {
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
            // Longer subscripts are not written by people; the bound keeps `a[a[a[…` linear.
            if at - from > 256 {
                return None;
            }
        }
        None
    }

    /// The words of `( … )` after `name=`.
    fn array(&mut self) -> Result<Vec<Word>> {
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

    /// A redirection, if one begins here: `>f`, `2>&1`, `{fd}<f`, `&>f`, `<<EOF`, `<<<text`. Not `<(`.
    fn redirection(&mut self) -> Result<Option<Redirection>> {
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
        self.skip_blanks();
        let before = self.pos;
        let target = self.word(Place::Command)?;
        if self.pos == before {
            return Err(self.unexpected());
        }
        // `{name}<file` opens a new descriptor, `<&3` is standard input, `>&2` standard output.
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

    /// A here-document's delimiter is its word with the quotes taken off and nothing expanded: `<<"$X"` waits for a
    /// line that says `$X`. Also tells whether anything was quoted.
    fn delimiter(&self, word: &Word) -> (Vec<u8>, bool) {
        let plain = |piece: &Piece| matches!(piece, Piece::Literal { .. });
        let mut text = Vec::new();
        let mut quoted = false;
        if word.pieces.iter().all(plain) {
            for piece in &word.pieces {
                if let Piece::Literal { bytes, quoted: is_quoted } = piece {
                    text.extend_from_slice(bytes);
                    quoted |= *is_quoted;
                }
            }
            return (text, quoted);
        }
        let mut rest = self.src[word.span.clone()].iter();
        while let Some(&byte) = rest.next() {
            match byte {
                b'\'' | b'"' => quoted = true,
                b'\\' => {
                    quoted = true;
                    text.extend(rest.next());
                }
                _ => text.push(byte),
            }
        }
        (text, quoted)
    }

    fn read_bodies(&mut self) -> Result<()> {
        for pending in std::mem::take(&mut self.pending) {
            let mut text = Vec::new();
            // Whether the line before ended in a backslash: shells differ on whether it continues a delimiter.
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
                if pending.expand && continued {
                    let joined = [&text[logical_start..text.len() - 2], line].concat();
                    if line == pending.delimiter
                        || joined.ends_with(&pending.delimiter)
                            && without_continuations(&joined) == pending.delimiter
                    {
                        let what = "end of a here-document behind a backslash".to_string();
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
            // Set exactly once: the cell was made with this entry.
            let _ = pending.body.set(word);
        }
        Ok(())
    }
}

fn without_continuations(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.windows(2).position(|window| window == b"\\\n") {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at + 2..];
    }
    out.extend_from_slice(rest);
    out
}

fn expression(words: Vec<Word>) -> Compound {
    Compound {
        kind: CompoundKind::Expression,
        words,
        variable: None,
        bodies: Vec::new(),
        redirections: Vec::new(),
    }
}

fn bodies(kind: CompoundKind, bodies: Vec<Script>) -> Compound {
    Compound { kind, words: Vec::new(), variable: None, bodies, redirections: Vec::new() }
}
