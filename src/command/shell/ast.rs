//! The tree of a shell text: only what is needed to know which commands it would run.
//!
//! Everything is bytes: shell text need not be UTF-8. Expressions of `[[ … ]]`, `(( … ))`, `for` lists and `case`
//! subjects are kept as plain words, because all that matters there is what their substitutions run.

use std::cell::OnceCell;
use std::ops::Range;
use std::rc::Rc;

/// A list of commands: a whole text, or the inside of a substitution or compound command.
#[derive(Debug, Default, Clone)]
pub(crate) struct Script {
    pub(crate) lists: Vec<AndOr>,
    /// Shells differ about where a string in it ends (set on whole texts only).
    pub(crate) is_ambiguous: bool,
}

/// Pipelines joined by `&&` and `||`; all but the first run conditionally.
#[derive(Debug, Clone)]
pub(crate) struct AndOr {
    pub(crate) pipelines: Vec<Vec<Command>>,
    /// Ended by `&`: runs in a subshell of its own.
    pub(crate) background: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Command {
    Simple(Simple),
    Compound(Box<Compound>),
    /// A function definition: its body is judged as if it were called.
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
    /// How many words stood before `&>`, which some shells read as `&` and `>`.
    pub(crate) cut_at: Option<usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct Assignment {
    pub(crate) name: Vec<u8>,
    /// Plain `name=value`: not an array element, not `+=`.
    pub(crate) plain: bool,
    /// The value, or the words of an array literal; a subscript's words come along for their substitutions.
    pub(crate) words: Vec<Word>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompoundKind {
    /// `( … )` and `coproc`: own process, changes of state stay inside.
    Subshell,
    /// `{ …; }`: the same shell.
    Group,
    /// `if`, `case`: may run.
    Conditional,
    /// `for`, `while`, `until`, `select`: may run, once or often.
    Loop,
    /// `[[ … ]]`, `(( … ))`: only the substitutions in it run.
    Expression,
}

#[derive(Debug, Clone)]
pub(crate) struct Compound {
    pub(crate) kind: CompoundKind,
    /// Words of a `for` list, a `case` subject and its patterns, an expression.
    pub(crate) words: Vec<Word>,
    /// The variable a `for` or `select` sets.
    pub(crate) variable: Option<Vec<u8>>,
    pub(crate) bodies: Vec<Script>,
    pub(crate) redirections: Vec<Redirection>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RedirectionKind {
    Read,
    Write,
    ReadWrite,
    /// `>&1`, `<&-`: a descriptor, not a file, when the target is a number or `-`.
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
    /// The body of a here-document: it is read at the next newline, after this node was made.
    pub(crate) body: Rc<OnceCell<Word>>,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Word {
    pub(crate) pieces: Vec<Piece>,
    /// Where it stands in the text that was parsed.
    pub(crate) span: Range<usize>,
}

#[derive(Debug, Clone)]
pub(crate) enum Piece {
    Literal {
        bytes: Vec<u8>,
        quoted: bool,
    },
    /// `$name`, `${name}`, `${name…}`: `plain` when the value is used as it is. `nested` are the words inside an operator.
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
    /// `$(( … ))` and `$[ … ]`: a number; the word carries the substitutions in it.
    Arithmetic(Word),
    /// An extended glob `@( … )`: matches files, the word carries the substitutions in it.
    Pattern(Word),
}
