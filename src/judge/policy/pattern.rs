//! The patterns in policy rules, which are matched against bytes because arguments and paths need not be UTF-8.
//!
//! Non-ASCII text in a pattern matches only itself, and `*` matches any bytes; `?` and `[…]` match single bytes.
//!
//! Nearly all patterns consist of literal text and stars, and are matched without a regular expression. guard
//! compiles the others with `globset` on first use, so that loading a policy takes no time for rules that are never
//! evaluated.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use globset::{Glob, GlobBuilder, GlobMatcher};

/// A pattern for one word. `*` matches any text, `?` one byte; `[…]` and `{a,b}` work as in shells.
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
    /// Literal pieces of text with stars between or around them, unless one of the simpler forms above fits.
    Stars,
    Glob(Box<Lazy>),
}

#[derive(Debug, Clone)]
struct Lazy {
    glob: Glob,
    matcher: OnceLock<GlobMatcher>,
}

/// The maximum length of a pattern that guard compiles with `globset`. guard rejects longer ones, and those with more
/// than `MOST_BRACES` groups of alternatives, because compiling them could fail or take long.
const LONGEST_PATTERN: usize = 256;
const MOST_BRACES: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    #[error("the pattern is longer than {LONGEST_PATTERN} bytes")]
    TooLong,
    #[error("the pattern has more than {MOST_BRACES} groups of alternatives")]
    TooManyAlternatives,
    #[error("a `[` is not closed; for the character itself write `[[]`")]
    UnclosedClass,
    /// The pattern has another error that `globset` reports.
    #[error("{0}")]
    Glob(globset::ErrorKind),
    #[error("a path pattern must begin with `/`, `~` or `**/`; for a relative path write `**/NAME`")]
    Relative,
    #[error("a path pattern must not have empty, `.` or `..` components")]
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

    /// Returns the pattern as written in the policy.
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// Returns true if the pattern matches the whole word.
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

/// Returns true if a word consists of the pattern's pieces in order, with any text at the stars. It is enough to try
/// the first position at which each piece fits, because only the last piece is anchored to the end.
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

/// The pattern that matches every path outside the paths that the run may write.
const OUTSIDE: &str = "{outside}";

/// A pattern for a path. `**` crosses directories, `*` does not, a leading `~` is a home directory.
#[derive(Debug, Clone)]
pub struct PathPattern {
    written: String,
    /// Whether the pattern begins with `~`. The rest of the pattern then matches below any home directory.
    below_home: bool,
    form: PathForm,
}

#[derive(Debug, Clone)]
enum PathForm {
    Literal(String),
    /// `X/**`: X and everything below it.
    Below(String),
    /// `/X*`: every path that begins with `/X` and has no slash after that.
    Stem(String),
    /// `**/NAME` and `**/NAME/**`: the last component, or any component, has that name.
    Component {
        name: String,
        last: bool,
    },
    Glob {
        whole: Box<Lazy>,
        directory: Option<Box<Lazy>>,
    },
}

impl PathPattern {
    /// Parses a path pattern. Ignores slashes at its end.
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
        } else if let Some(directory) = rest.strip_suffix("/**").filter(|directory| is_plain(directory)) {
            PathForm::Below(directory.to_string())
        } else if let Some(stem) = rest.strip_suffix('*').filter(|stem| is_plain(stem)) {
            PathForm::Stem(stem.to_string())
        } else if let Some(name) = rest.strip_prefix("**/").filter(|name| single(name)) {
            PathForm::Component { name: name.to_string(), last: true }
        } else if let Some(name) =
            rest.strip_prefix("**/").and_then(|rest| rest.strip_suffix("/**")).filter(|name| single(name))
        {
            PathForm::Component { name: name.to_string(), last: false }
        } else {
            // `X/**` matches X and everything below it, even if X contains wildcards.
            let directory = rest.strip_suffix("/**").filter(|directory| !directory.is_empty());
            let directory = directory.map(|directory| Lazy::new(directory, true)).transpose()?;
            PathForm::Glob { whole: Box::new(Lazy::new(rest, true)?), directory: directory.map(Box::new) }
        };
        Ok(Self { written: text.to_string(), below_home, form })
    }

    /// Returns the pattern as written in the policy.
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// Returns true if this is the pattern that matches every path outside the paths that the run may write.
    pub fn means_outside(&self) -> bool {
        self.written == OUTSIDE
    }

    /// Returns true if a path matches the pattern. `below_home` is the offset in `path` at which the part below the
    /// home directory begins. If the caller does not know it, `~` in the pattern stands for `/root` and for every
    /// `/home/NAME`.
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
            Self::Below(directory) => {
                path.strip_prefix(directory.as_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
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
            Self::Glob { whole, directory } => {
                whole.matches(path) || directory.as_ref().is_some_and(|directory| directory.matches(path))
            }
        }
    }
}

/// Returns the part of a path below `/root` or `/home/NAME`, for any user NAME; `None` for a path elsewhere.
fn below_usual_home(path: &[u8]) -> Option<&[u8]> {
    if let Some(rest) = path.strip_prefix(b"/root") {
        return (rest.is_empty() || rest[0] == b'/').then_some(rest);
    }
    let rest = path.strip_prefix(b"/home/")?;
    let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
    (end > 0).then(|| &rest[end..])
}
