//! The syntax tree of a shell text, reduced to what determines which commands it runs.
//!
//! All text is bytes, because shell text need not be UTF-8. Expressions of `[[ … ]]`, `(( … ))`, `for` lists
//! and `case` subjects are stored as plain words, because only the substitutions in them matter.

use std::cell::OnceCell;
use std::ops::Range;
use std::rc::Rc;

/// A list of commands: a whole text, or the inside of a substitution or compound command.
#[derive(Debug, Default, Clone)]
pub(crate) struct Script {
    pub(crate) lists: Vec<AndOr>,
    /// Shells disagree on where a string in it ends (set on whole texts only).
    pub(crate) is_ambiguous: bool,
}

/// Pipelines joined by `&&` and `||`; all but the first run conditionally.
#[derive(Debug, Clone)]
pub(crate) struct AndOr {
    pub(crate) pipelines: Vec<Vec<Command>>,
    /// The list ends with `&`, so it runs in its own subshell.
    pub(crate) background: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Command {
    Simple(Simple),
    Compound(Box<Compound>),
    /// A function definition. Its body is judged as if it were called.
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
    /// How many words precede `&>`, which some shells parse as `&` and `>`.
    pub(crate) cut_at: Option<usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct Assignment {
    pub(crate) name: Vec<u8>,
    /// A plain `name=value`: not an array element, not `+=`.
    pub(crate) plain: bool,
    /// The value, or the words of an array literal; the words of a subscript are included for their
    /// substitutions.
    pub(crate) words: Vec<Word>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompoundKind {
    /// `( … )` and `coproc`: a separate process, so changes of state stay inside.
    Subshell,
    /// `{ …; }`: the same shell.
    Group,
    /// `if`, `case`: may run.
    Conditional,
    /// `for`, `while`, `until`, `select`: may run, once or repeatedly.
    Loop,
    /// `[[ … ]]`, `(( … ))`: only the substitutions in it run.
    Expression,
}

#[derive(Debug, Clone)]
pub(crate) struct Compound {
    pub(crate) kind: CompoundKind,
    /// The words of a `for` list, of a `case` subject and its patterns, or of an expression.
    pub(crate) words: Vec<Word>,
    /// The variable that a `for` or `select` sets.
    pub(crate) variable: Option<Vec<u8>>,
    pub(crate) bodies: Vec<Script>,
    pub(crate) redirections: Vec<Redirection>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RedirectionKind {
    Read,
    Write,
    ReadWrite,
    /// `>&1`, `<&-`: a descriptor, not a file, if the target is a number or `-`.
    Duplicate,
    HereString,
    HereDocument,
}

#[derive(Debug, Clone)]
pub(crate) struct Redirection {
    pub(crate) kind: RedirectionKind,
    /// The descriptor written before the operator.
    pub(crate) fd: Option<u32>,
    /// The target word; for a here-document the delimiter.
    pub(crate) target: Word,
    /// The body of a here-document, which is read at the next newline, after this node was created.
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
    /// `$name`, `${name}`, `${name…}`. `plain` means that the value is used unchanged. `nested` holds the
    /// words inside an operator.
    Parameter {
        name: Vec<u8>,
        plain: bool,
        quoted: bool,
        nested: Vec<Word>,
    },
    /// `$( … )` and backquotes.
    Command {
        script: Script,
        quoted: bool,
    },
    /// `<( … )` and `>( … )`.
    Process(Script),
    /// `$(( … ))` and `$[ … ]`: a number. The word holds the substitutions in it.
    Arithmetic(Word),
    /// An extended glob `@( … )`, which matches files. The word holds the substitutions in it.
    Pattern(Word),
}
