//! Patterns of policy rules, ready to match bytes.
//!
//! Non-ASCII text matches literally and by `*`; `?` and `[…]` are about single bytes.
//!
//! Nearly all are plain text and stars, matched without a regular expression. The rest go through `globset`, compiled
//! when first used: loading a policy must not pay for rules that never come up.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use globset::{Glob, GlobBuilder, GlobMatcher};

/// One pattern over a word: `*` stands for any text, `?` for one character, `[…]` and `{a,b}` as in shells.
#[derive(Debug, Clone)]
pub struct Pattern {
    written: String,
    form: Form,
}

#[derive(Debug, Clone)]
enum Form {
    Literal,
    Any,
    Prefix(usize),
    Suffix(usize),
    /// Plain text between several stars.
    Stars,
    Glob(Box<Lazy>),
}

#[derive(Debug, Clone)]
struct Lazy {
    glob: Glob,
    matcher: OnceLock<GlobMatcher>,
}

/// Longer patterns, and deeper alternatives, are no patterns people write; compiling them could fail or take long.
const LONGEST_PATTERN: usize = 256;
const MOST_BRACES: usize = 4;

/// Text that is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// It is too long.
    #[error("it is longer than {LONGEST_PATTERN} bytes")]
    TooLong,
    /// It has too many `{…}`.
    #[error("it has more than {MOST_BRACES} groups of alternatives")]
    TooManyAlternatives,
    /// A `[` without its `]`.
    #[error("a `[` is not closed; for the character itself write `[[]`")]
    UnclosedClass,
    /// Another mistake in a glob.
    #[error("{0}")]
    Glob(globset::ErrorKind),
    /// A path pattern that is relative.
    #[error("it must begin with `/`, `~` or `**/`; for a relative path write `**/NAME`")]
    Relative,
    /// A path pattern with a component that no path has.
    #[error("a path pattern has no empty, `.` or `..` components")]
    Component,
}

impl Lazy {
    fn new(text: &str, separators: bool) -> Result<Self, PatternError> {
        if text.len() > LONGEST_PATTERN {
            return Err(PatternError::TooLong);
        }
        if text.bytes().filter(|&byte| byte == b'{').count() > MOST_BRACES {
            return Err(PatternError::TooManyAlternatives);
        }
        let built = GlobBuilder::new(text)
            .literal_separator(separators)
            .backslash_escape(true)
            .empty_alternates(true)
            .build();
        built.map(|glob| Self { glob, matcher: OnceLock::new() }).map_err(|error| match error.kind() {
            globset::ErrorKind::UnclosedClass => PatternError::UnclosedClass,
            kind => PatternError::Glob(kind.clone()),
        })
    }

    fn matches(&self, bytes: &[u8]) -> bool {
        self.matcher.get_or_init(|| self.glob.compile_matcher()).is_match(Path::new(OsStr::from_bytes(bytes)))
    }
}

fn is_plain(text: &str) -> bool {
    !text.bytes().any(|byte| matches!(byte, b'*' | b'?' | b'[' | b']' | b'{' | b'}' | b'\\'))
}

impl Pattern {
    /// Reads a pattern; the error says what is wrong with it.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        Ok(Self { form: Self::form(text)?, written: text.to_string() })
    }

    fn form(text: &str) -> Result<Form, PatternError> {
        Ok(if is_plain(text) {
            Form::Literal
        } else if text == "*" {
            Form::Any
        } else if let Some(prefix) = text.strip_suffix('*').filter(|prefix| is_plain(prefix)) {
            Form::Prefix(prefix.len())
        } else if let Some(suffix) = text.strip_prefix('*').filter(|suffix| is_plain(suffix)) {
            Form::Suffix(suffix.len())
        } else if text.len() <= LONGEST_PATTERN && text.split('*').all(is_plain) {
            Form::Stars
        } else {
            Form::Glob(Box::new(Lazy::new(text, false)?))
        })
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// Whether the whole word matches.
    pub fn matches(&self, word: &[u8]) -> bool {
        let text = self.written.as_bytes();
        match &self.form {
            Form::Literal => text == word,
            Form::Any => true,
            Form::Prefix(length) => word.starts_with(&text[..*length]),
            Form::Suffix(length) => word.ends_with(&text[text.len() - length..]),
            Form::Stars => matches_stars(text, word),
            Form::Glob(lazy) => lazy.matches(word),
        }
    }
}

/// Whether a word is the pattern's pieces in their order, with anything at the stars between them. The first place where
/// a piece fits is always good enough, because only the last piece is tied to the end.
fn matches_stars(pattern: &[u8], word: &[u8]) -> bool {
    let mut pieces = pattern.split(|&byte| byte == b'*');
    let first = pieces.next().unwrap_or_default();
    let last = pieces.next_back().unwrap_or_default();
    let Some(rest) = word.strip_prefix(first) else { return false };
    let Some(mut rest) = rest.strip_suffix(last) else { return false };
    for piece in pieces.filter(|piece| !piece.is_empty()) {
        let Some(at) = rest.windows(piece.len()).position(|window| window == piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    true
}

/// The pattern for every path that is below nothing the run may write.
const OUTSIDE: &str = "{outside}";

/// A pattern over a path: `**` crosses directories, `*` does not, a leading `~` is a home directory.
#[derive(Debug, Clone)]
pub struct PathPattern {
    written: String,
    /// The pattern begins with `~`: what follows is matched below any home directory.
    below_home: bool,
    form: PathForm,
}

#[derive(Debug, Clone)]
enum PathForm {
    Literal(String),
    /// `X/**`: X and everything below it.
    Below(String),
    /// `/X*`: the rest of one component.
    Stem(String),
    /// `**/NAME` and `**/NAME/**`: any component of that name, the last one or any.
    Component {
        name: String,
        last: bool,
    },
    Glob {
        whole: Box<Lazy>,
        folder: Option<Box<Lazy>>,
    },
}

impl PathPattern {
    /// Reads a pattern; the error says what is wrong with it.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        if text == OUTSIDE {
            let form = PathForm::Literal(text.to_string());
            return Ok(Self { written: text.to_string(), below_home: false, form });
        }
        let (below_home, rest) = match text.strip_prefix('~') {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => (true, rest),
            _ => (false, text),
        };
        if !rest.is_empty() && !rest.starts_with('/') && !rest.starts_with("**/") {
            return Err(PatternError::Relative);
        }
        let rest = if rest.len() > 1 { rest.trim_end_matches('/') } else { rest };
        if rest != "/" && rest.split('/').skip(1).any(|part| matches!(part, "" | "." | "..")) {
            return Err(PatternError::Component);
        }
        let single = |name: &str| is_plain(name) && !name.contains('/');
        let form = if is_plain(rest) {
            PathForm::Literal(rest.to_string())
        } else if let Some(folder) = rest.strip_suffix("/**").filter(|folder| is_plain(folder)) {
            PathForm::Below(folder.to_string())
        } else if let Some(stem) = rest.strip_suffix('*').filter(|stem| is_plain(stem)) {
            PathForm::Stem(stem.to_string())
        } else if let Some(name) = rest.strip_prefix("**/").filter(|name| single(name)) {
            PathForm::Component { name: name.to_string(), last: true }
        } else if let Some(name) =
            rest.strip_prefix("**/").and_then(|rest| rest.strip_suffix("/**")).filter(|name| single(name))
        {
            PathForm::Component { name: name.to_string(), last: false }
        } else {
            // `X/**` is X and what is below it, however X is spelled.
            let folder = rest.strip_suffix("/**").filter(|folder| !folder.is_empty());
            let folder = folder.map(|folder| Lazy::new(folder, true)).transpose()?;
            PathForm::Glob { whole: Box::new(Lazy::new(rest, true)?), folder: folder.map(Box::new) }
        };
        Ok(Self { written: text.to_string(), below_home, form })
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// Whether it stands for every path that is below nothing the run may write.
    pub fn means_outside(&self) -> bool {
        self.written == OUTSIDE
    }

    /// Whether a path matches; `below_home` is where its part below the home directory begins, if the caller knows.
    pub fn matches(&self, path: &[u8], below_home: Option<usize>) -> bool {
        if !self.below_home {
            return self.form.matches(path);
        }
        let known = below_home.and_then(|at| path.get(at..));
        known.or_else(|| below_usual_home(path)).is_some_and(|rest| self.form.matches(rest))
    }
}

impl PathForm {
    fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Literal(text) => path == text.as_bytes(),
            Self::Below(folder) => {
                path.strip_prefix(folder.as_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
            }
            Self::Stem(stem) => path.strip_prefix(stem.as_bytes()).is_some_and(|rest| !rest.contains(&b'/')),
            Self::Component { name, last } => {
                let mut parts = path.split(|&byte| byte == b'/');
                if *last {
                    parts.next_back() == Some(name.as_bytes())
                } else {
                    parts.any(|part| part == name.as_bytes())
                }
            }
            Self::Glob { whole, folder } => {
                whole.matches(path) || folder.as_ref().is_some_and(|folder| folder.matches(path))
            }
        }
    }
}

/// The part of a path below `/root` or `/home/NAME`: homes, whoever's they are.
fn below_usual_home(path: &[u8]) -> Option<&[u8]> {
    if let Some(rest) = path.strip_prefix(b"/root") {
        return (rest.is_empty() || rest[0] == b'/').then_some(rest);
    }
    let rest = path.strip_prefix(b"/home/")?;
    let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
    (end > 0).then(|| &rest[end..])
}
