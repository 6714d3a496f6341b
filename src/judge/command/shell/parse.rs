//! The parser: builds commands from words by recursive descent, for the grammar of POSIX sh and bash.
//!
//! The parser takes linear time and bounded stack: every construct that can nest goes through [`Parser::nested`], so
//! 10,000 open brackets cause an error, not a stack overflow. It does not use a published grammar crate, because the
//! one that was tried went into an endless loop on sixteen unclosed `((`.

use super::ast::{AndOr, Command, Compound, CompoundKind, Redirection, Script, Simple, Word};
use super::error::{ShellError, ShellErrorKind};
use super::lex::{Place, is_meta, is_name_byte};
use super::redirect::PendingBody;

type Result<T> = std::result::Result<T, ShellError>;

/// Reserved words that end a list of commands when they occur in command position.
pub(super) const CLOSING: [&[u8]; 7] = [b"then", b"else", b"elif", b"fi", b"do", b"done", b"esac"];

/// Parses one shell text. `depth` is the number of constructs that are open at the current position, in this text and
/// in those that contain it.
pub(super) struct Parser<'a> {
    pub(super) src: &'a [u8],
    pub(super) pos: usize,
    depth: usize,
    max_depth: usize,
    pub(super) pending: Vec<PendingBody>,
    /// Whether shells disagree on where a string in the text ends.
    pub(super) is_ambiguous: bool,
}

/// Parses a whole shell text that is nested `depth` levels deep in other texts. Fails if the nesting, together with
/// `depth`, exceeds `max_depth`.
pub(crate) fn parse(text: &[u8], depth: usize, max_depth: usize) -> Result<Script> {
    Parser { src: text, pos: 0, depth, max_depth, pending: Vec::new(), is_ambiguous: false }.whole()
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

    /// Calls `inside` one nesting level deeper. Fails if that exceeds the depth limit.
    pub(super) fn nested<T>(&mut self, inside: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= self.max_depth {
            return Err(self.error(ShellErrorKind::TooDeep(self.max_depth)));
        }
        self.depth += 1;
        let result = inside(self);
        self.depth -= 1;
        result
    }

    /// Creates a parser for a text found inside this one (backquotes, here-documents).
    pub(super) fn child<'b>(&self, text: &'b [u8]) -> Parser<'b> {
        Parser {
            src: text,
            pos: 0,
            depth: self.depth,
            max_depth: self.max_depth,
            pending: Vec::new(),
            is_ambiguous: false,
        }
    }

    pub(super) fn subparse(&mut self, text: &[u8]) -> Result<Script> {
        self.child(text).whole()
    }

    fn whole(mut self) -> Result<Script> {
        let mut script = self.script()?;
        script.is_ambiguous = self.is_ambiguous;
        if self.pos < self.src.len() {
            return Err(self.unexpected());
        }
        // If the text ends before a here-document does, the shell uses the incomplete body.
        self.read_bodies()?;
        Ok(script)
    }

    /// Parses a list of commands, up to the end of the text, a `)`, a case separator or a closing reserved word.
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
        Ok(Script { lists, is_ambiguous: false })
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

    /// Skips blanks, comments and newlines. At each newline, reads the bodies of pending here-documents.
    pub(super) fn skip_newlines(&mut self) -> Result<()> {
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
        // `time` and `!` may occur without a command.
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

    /// Returns true if the reserved word `time` is at the current position. With options other than `-p`, `time` is
    /// the external program instead.
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

    /// If a compound command, or a function definition with the word `function`, begins at the current position, parses
    /// it. Otherwise returns `None`.
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

    /// Returns true if the reserved word `word` is at the current position, complete and unquoted.
    fn keyword_here(&self, word: &[u8]) -> bool {
        self.src[self.pos..].starts_with(word) && self.peek_at(word.len()).is_none_or(is_meta)
    }

    /// Skips newlines, then requires the reserved word or byte that closes a construct.
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
            self.refuse_split_name(start)?;
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
        // `for i in x; { …; }` is an old form that bash still accepts.
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

    /// Parses `[[ … ]]`. Keeps the words, among them `-f` and `==`, and skips `&&`, `<`, parentheses and the like.
    fn test(&mut self) -> Result<Compound> {
        let open = self.pos;
        let mut words = Vec::new();
        let mut parentheses = 0usize;
        loop {
            self.skip_newlines()?;
            match self.peek() {
                None => return Err(self.error_at(open, ShellErrorKind::Unterminated("`[[`"))),
                Some(b']') if parentheses == 0 && self.keyword_here(b"]]") => {
                    self.pos += 2;
                    return Ok(expression(words));
                }
                Some(b'<' | b'>') if self.peek_at(1) == Some(b'(') => words.push(self.word(Place::Test)?),
                Some(byte) if is_meta(byte) => {
                    // A regular expression may contain `]]` between its parentheses.
                    parentheses += usize::from(byte == b'(');
                    parentheses -= usize::from(byte == b')' && parentheses > 0);
                    self.pos += 1;
                }
                Some(_) => {
                    let word = self.word(Place::Test)?;
                    self.refuse_split_token(&word)?;
                    words.push(word);
                }
            }
        }
    }

    fn coproc(&mut self) -> Result<Command> {
        self.pos += 6;
        self.skip_blanks();
        // In `coproc NAME { …; }`, the name is not a command.
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
        Ok(Command::Compound(Box::new(bodies(
            CompoundKind::Subshell,
            vec![Script { lists: vec![list], is_ambiguous: false }],
        ))))
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
        self.refuse_split_name(start)?;
        let name = self.src[start..self.pos].to_vec();
        self.skip_blanks();
        if self.peek() == Some(b'(') {
            let open = self.pos;
            self.pos += 1;
            self.skip_blanks();
            if self.peek() == Some(b')') {
                self.pos += 1;
            } else {
                // In `function f ( … )`, the parenthesis begins the body.
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
            if self.peek() == Some(b'&') && self.peek_at(1) == Some(b'>') {
                simple.cut_at.get_or_insert(simple.words.len());
            }
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
                    let span = simple.words[0].span.clone();
                    if self.src[span.clone()].contains(&b'\\') {
                        return Err(
                            self.error_at(span.start, ShellErrorKind::Unexpected("function name".into()))
                        );
                    }
                    let name = self.src[span].to_vec();
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
                    // Array literals in arguments, such as `declare a=( … )` and `local b+=( … )`.
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
