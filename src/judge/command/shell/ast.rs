//! The syntax tree of a shell text, reduced to the parts that determine which commands the text runs.
//!
//! All text is bytes, because shell text need not be UTF-8. The tree stores the expressions of `[[ … ]]` and `(( …
//! ))`, `for` lists and `case` subjects as plain words, because only the substitutions in them can run commands.

use std::cell::OnceCell;
use std::ops::Range;
use std::rc::Rc;

/// A list of commands: a whole text, or the inside of a substitution or compound command.
#[derive(Debug, Default, Clone)]
pub(crate) struct Script {
    pub(crate) lists: Vec<AndOr>,
    /// Whether shells disagree on where a string in the text ends. Only set for a whole text.
    pub(crate) is_ambiguous: bool,
}

/// Pipelines joined by `&&` and `||`; all but the first run conditionally.
#[derive(Debug, Clone)]
pub(crate) struct AndOr {
    pub(crate) pipelines: Vec<Vec<Command>>,
    /// Whether the list ends with `&`, so that it runs in its own subshell.
    pub(crate) background: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Command {
    Simple(Simple),
    Compound(Box<Compound>),
    /// A function definition. The analysis judges the body as if the function were called.
    Function {
        name: Vec<u8>,
        body: Box<Command>,
    },
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Simple {
    pub(crate) assignments: Vec<Assignment>,
    pub(crate) words: Vec<Word>,
    pub(crate) redirections: Vec<Redirection>,
    /// The number of words before `&>`; `None` if there is no `&>`. Some shells parse `&>` as `&` and `>`.
    pub(crate) cut_at: Option<usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct Assignment {
    pub(crate) name: Vec<u8>,
    /// Whether this is a plain `name=value`: not an array, not an array element, not `+=`.
    pub(crate) plain: bool,
    /// The value, or the words of an array literal. The list also contains the words of a subscript, because they may
    /// contain substitutions.
    pub(crate) words: Vec<Word>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompoundKind {
    /// `( … )` and `coproc`: the commands run in a separate process, so they do not change the state of the
    /// surrounding shell.
    Subshell,
    /// `{ …; }`: the commands run in the same shell.
    Group,
    /// `if`, `case`: each body may run or not.
    Conditional,
    /// `for`, `while`, `until`, `select`: the body may run once, repeatedly or not at all.
    Loop,
    /// `[[ … ]]`, `(( … ))`: only the substitutions in the expression run commands.
    Expression,
}

#[derive(Debug, Clone)]
pub(crate) struct Compound {
    pub(crate) kind: CompoundKind,
    /// The words of a `for` list, of a `case` subject and its patterns, or of an expression.
    pub(crate) words: Vec<Word>,
    /// The variable that a `for` or `select` loop sets.
    pub(crate) variable: Option<Vec<u8>>,
    pub(crate) bodies: Vec<Script>,
    pub(crate) redirections: Vec<Redirection>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RedirectionKind {
    Read,
    Write,
    ReadWrite,
    /// `>&1`, `<&-`: a target that is a number or `-` is a descriptor, not a file.
    Duplicate,
    HereString,
    HereDocument,
}

#[derive(Debug, Clone)]
pub(crate) struct Redirection {
    pub(crate) kind: RedirectionKind,
    /// The descriptor that the redirection changes: the number before the operator, as in `2>`; 0 for `<&` and 1 for
    /// `>&` without a number; `u32::MAX` for `{name}`. `None` means the operator's default.
    pub(crate) fd: Option<u32>,
    /// The word after the operator: a file, a descriptor, a here-string, or the delimiter of a here-document.
    pub(crate) target: Word,
    /// The body of a here-document. The parser sets it later than the other fields, because the body begins only
    /// after the next newline.
    pub(crate) body: Rc<OnceCell<Word>>,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Word {
    pub(crate) pieces: Vec<Piece>,
    /// The position of the word in the parsed text.
    pub(crate) span: Range<usize>,
}

#[derive(Debug, Clone)]
pub(crate) enum Piece {
    Literal {
        bytes: Vec<u8>,
        quoted: bool,
    },
    /// A parameter expansion: `$name`, `${name}`, `${name…}`. `plain` is true if the shell uses the value unchanged.
    /// `nested` contains the words after an operator such as `:-`.
    Parameter {
        name: Vec<u8>,
        plain: bool,
        quoted: bool,
        nested: Vec<Word>,
    },
    /// A command substitution: `$( … )` or backquotes.
    Command {
        script: Script,
        quoted: bool,
    },
    /// A process substitution: `<( … )` or `>( … )`.
    Process(Script),
    /// An arithmetic expansion, `$(( … ))` or `$[ … ]`, whose value is a number. The word contains the substitutions in
    /// the expression.
    Arithmetic(Word),
    /// An extended glob such as `@( … )`, which matches file names. The word contains the substitutions in the pattern.
    Pattern(Word),
}
