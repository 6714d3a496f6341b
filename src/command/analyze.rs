//! The analysis of one command: limits, and the way from a program's name to the code that knows what it means.

use std::rc::Rc;

use thiserror::Error;

use super::arg::{Arg, display_line_within};
use super::cwd::{Cwd, base_name};
use super::effects::Effects;
use super::env::Env;
use super::intent::{Access, Deferred, Intent, Origin, PathUse, Program};
use super::shell::scope::{Scope, Value};
use super::shell::{self, ShellError, ShellErrorKind};
use super::{file_operands, git, wrapper};
use crate::terminal_text;

/// A command to understand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A program and its arguments, as `execve` would get them.
    Argv(Vec<Vec<u8>>),
    /// Text for a shell.
    Shell(Vec<u8>),
}

/// What surrounds the command.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// The directory it would run in.
    pub folder: Cwd,
    /// The working tree the task owns; the directory itself when not given.
    pub worktree: Option<Vec<u8>>,
    /// Directories and files it may write, links resolved; the working tree and the home when not given. Directories for
    /// temporary files count as writable in any case: which of them are the run's own is the kernel's business.
    pub writable: Option<Vec<Vec<u8>>>,
    /// The task's own git directory, where it does not lie in the working tree.
    pub git_folder: Option<Vec<u8>>,
    /// Directories of repositories inside the run's own places that are not the task's, as far as the caller has looked.
    pub other_repositories: Vec<Vec<u8>>,
    /// A git command whose directory is not known here is judged as one in such a repository: the caller will judge it again
    /// when it runs, and then the directory is known.
    pub judged_again: bool,
    /// The home directory, to resolve `~`.
    pub home: Option<Vec<u8>>,
    /// The environment it would run with.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// git configuration the caller knows of (`alias.x` → value …).
    pub git_config: Vec<(Vec<u8>, Vec<u8>)>,
    /// The file that `argv[0]` leads to, symbolic links resolved, where the caller knows it.
    pub resolved: Option<Vec<u8>>,
    /// Bounds of the analysis.
    pub limits: Limits,
}

/// Bounds that keep the analysis of hostile input short.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of argv and shell text together, nested texts counted again.
    pub bytes: usize,
    /// Constructs open at once: brackets, substitutions, wrappers, aliases.
    pub depth: usize,
    /// Program starts in one command.
    pub intents: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 4 << 20, depth: 64, intents: 20_000 }
    }
}

/// What is looked at may be larger than the command, by expansions and nesting, but only so many times.
const WORK_PER_BYTE: usize = 32;

/// Everything a command would do.
#[derive(Debug, Clone, Default)]
pub struct Analysis {
    /// The program starts found, containing ones before contained ones.
    pub intents: Vec<Intent>,
    /// Why the command could not be understood. It is denied then, whatever else was found.
    pub refusal: Option<Refusal>,
}

/// A command that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No program at all.
    #[error("the command is empty")]
    Empty,
    /// A NUL byte in an argument.
    #[error("argument {0} contains a NUL byte")]
    Nul(usize),
    /// Over [`Limits::bytes`].
    #[error("the command is larger than {0} bytes")]
    TooLarge(usize),
    /// Over [`Limits::depth`].
    #[error("commands are nested deeper than {0} levels")]
    TooDeep(usize),
    /// More variables that programs inherit than are followed.
    #[error("the command sets more variables for its programs than are followed")]
    TooManyVariables,
    /// An alias that could turn the text after it into something else.
    #[error("an alias of a reserved word, or one with a comment in it, is not followed")]
    Alias,
    /// Over [`Limits::intents`].
    #[error("the command starts more than {0} programs")]
    TooMany(usize),
    /// Shell text that is not grammatical.
    #[error("shell text cannot be parsed: {error} in `{text}`")]
    Shell {
        /// What was wrong, and where.
        error: ShellError,
        /// The text around that place.
        text: String,
    },
}

/// Analyses a command. Total: any input gives an answer, in time linear in its size.
pub fn analyze(request: &Request, context: &Context) -> Analysis {
    let mut analyzer = Analyzer {
        context,
        intents: Vec::new(),
        refusal: None,
        fuel: context.limits.bytes.saturating_mul(WORK_PER_BYTE),
        depth: 0,
    };
    let size = match request {
        Request::Argv(argv) => argv.iter().map(|arg| arg.len() + 1).sum(),
        Request::Shell(text) => text.len(),
    };
    if size > context.limits.bytes {
        analyzer.refuse(Refusal::TooLarge(context.limits.bytes));
        return Analysis { intents: Vec::new(), refusal: analyzer.refusal };
    }
    match request {
        Request::Argv(argv) => analyzer.argv(argv),
        Request::Shell(text) => {
            if text.iter().all(u8::is_ascii_whitespace) {
                analyzer.refuse(Refusal::Empty);
            } else {
                let start =
                    Start { origin: Origin::Shell, folder: context.folder.clone(), ..Start::default() };
                analyzer.shell_text(text, &start);
            }
        }
    }
    Analysis { intents: analyzer.intents, refusal: analyzer.refusal }
}

/// What a program would find on standard input.
#[derive(Debug, Clone, Default)]
pub(crate) enum Stdin {
    /// Whatever the caller has; not a command's output.
    #[default]
    Inherited,
    /// A text that is fully known: a here-document, a here-string, the output of `echo`. Shared along a pipeline.
    Text(Rc<[u8]>),
    /// Something only known when it runs.
    Unknown,
}

/// The circumstances a nested command starts in.
#[derive(Debug, Clone, Default)]
pub(crate) struct Start {
    pub(crate) env: Env,
    pub(crate) folder: Cwd,
    pub(crate) stdin: Stdin,
    pub(crate) parent: Option<usize>,
    pub(crate) origin: Origin,
    /// Files its redirections use.
    pub(crate) paths: Vec<PathUse>,
    /// The resolved file of its program, known for the asked command only.
    pub(crate) resolved: Option<Vec<u8>>,
    /// Where its redirections lead is only known when it runs.
    pub(crate) is_uncertain: bool,
}

impl Start {
    /// The same circumstances for a command inside intent `parent`.
    pub(crate) fn inside(&self, parent: usize, origin: Origin) -> Self {
        Self {
            env: self.env.clone(),
            folder: self.folder.clone(),
            stdin: self.stdin.clone(),
            parent: Some(parent),
            origin,
            paths: Vec::new(),
            resolved: None,
            is_uncertain: false,
        }
    }
}

/// The state of one analysis.
pub(crate) struct Analyzer<'a> {
    pub(crate) context: &'a Context,
    pub(crate) intents: Vec<Intent>,
    refusal: Option<Refusal>,
    /// Bytes of text that may still be looked at.
    fuel: usize,
    pub(crate) depth: usize,
}

impl Analyzer<'_> {
    pub(crate) fn refuse(&mut self, refusal: Refusal) {
        self.refusal.get_or_insert(refusal);
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.refusal.is_some()
    }

    pub(crate) fn burn(&mut self, bytes: usize) -> bool {
        match self.fuel.checked_sub(bytes) {
            Some(left) => {
                self.fuel = left;
                true
            }
            None => {
                self.refuse(Refusal::TooLarge(self.context.limits.bytes));
                false
            }
        }
    }

    /// Runs `inside` one level deeper, or refuses.
    pub(crate) fn nested(&mut self, inside: impl FnOnce(&mut Self)) {
        if self.is_refused() {
            return;
        }
        if self.depth >= self.context.limits.depth {
            self.refuse(Refusal::TooDeep(self.context.limits.depth));
            return;
        }
        self.depth += 1;
        inside(self);
        self.depth -= 1;
    }

    fn argv(&mut self, argv: &[Vec<u8>]) {
        if argv.first().is_none_or(Vec::is_empty) {
            self.refuse(Refusal::Empty);
            return;
        }
        if let Some(index) = argv.iter().position(|arg| arg.contains(&0)) {
            self.refuse(Refusal::Nul(index));
            return;
        }
        let args = argv.iter().map(|arg| Arg::exact(arg.clone())).collect();
        let start = Start {
            folder: self.context.folder.clone(),
            resolved: self.context.resolved.clone(),
            ..Start::default()
        };
        self.command(args, start);
    }

    /// Adds an intent; its index is the parent of what it contains.
    pub(crate) fn push(&mut self, intent: Intent) -> usize {
        if self.intents.len() >= self.context.limits.intents {
            self.refuse(Refusal::TooMany(self.context.limits.intents));
        } else {
            self.intents.push(intent);
        }
        self.intents.len().saturating_sub(1)
    }

    /// Marks an intent as judged again when it runs.
    pub(crate) fn defer(&mut self, index: usize, why: Deferred) {
        if let Some(intent) = self.intents.get_mut(index) {
            intent.deferred.get_or_insert(why);
        }
    }

    /// Shell text found somewhere: parsed, and every command in it analysed.
    pub(crate) fn shell_text(&mut self, text: &[u8], start: &Start) {
        self.shell_text_in(text, start, &mut self.new_scope(start));
    }

    /// Shell text that runs in a shell whose state is already known (`eval`).
    pub(crate) fn shell_text_in(&mut self, text: &[u8], start: &Start, scope: &mut Scope) {
        if !self.burn(text.len() + 1) {
            return;
        }
        self.nested(|analyzer| match shell::parse(text, analyzer.depth, analyzer.context.limits.depth) {
            Ok(script) => {
                let first = analyzer.intents.len();
                shell::walk::walk(analyzer, text, &script, start, scope);
                if script.is_ambiguous {
                    analyzer.defer(first, Deferred::Text);
                }
            }
            Err(ShellError { kind: ShellErrorKind::TooDeep(levels), .. }) => {
                analyzer.refuse(Refusal::TooDeep(levels))
            }
            Err(error) => {
                let text = excerpt(text, error.at);
                analyzer.refuse(Refusal::Shell { error, text });
            }
        });
    }

    /// Text that git gives to a shell with `"$@"` behind it, for the words it adds (`GIT_EDITOR='echo message >'`).
    pub(crate) fn shell_text_of_git(&mut self, text: &[u8], start: &Start) {
        let (depth, limit) = (self.depth, self.context.limits.depth);
        let is_whole = |text: &[u8]| shell::parse(text, depth, limit).is_ok();
        let completed = [text, b" \"$@\""].concat();
        let text = if !is_whole(text) && is_whole(&completed) { &completed } else { text };
        self.shell_text(text, start);
    }

    /// Text of a language that only resembles ours: judged as far as it can be read.
    pub(crate) fn shell_text_if_readable(&mut self, text: &[u8], start: &Start) {
        if shell::parse(text, self.depth, self.context.limits.depth).is_ok() {
            self.shell_text(text, start);
        }
    }

    fn new_scope(&self, start: &Start) -> Scope {
        let mut scope = Scope::new(start.folder.clone());
        if !start.env.is_untouched() {
            for (name, value) in start.env.select(&[], |_| true) {
                let value = value.known().map_or(Value::Unknown, |bytes| Value::Known(bytes.to_vec()));
                scope.set_variable(&name, value);
            }
        }
        scope
    }

    /// One simple command: the program decides who knows its meaning.
    pub(crate) fn command(&mut self, args: Vec<Arg>, start: Start) {
        if !self.burn(start.env.weight()) {
            return;
        }
        self.nested(|analyzer| analyzer.dispatch(args, start));
    }

    fn dispatch(&mut self, args: Vec<Arg>, start: Start) {
        let Some(first) = args.first() else { return };
        let Some(called) = first.known() else {
            let intent = Intent {
                effects: Effects::RUN_DYNAMIC,
                deferred: Some(Deferred::Program),
                ..Intent::default()
            };
            self.finish(intent, args, &start);
            return;
        };
        let name = program_name(called, start.resolved.as_deref());
        if git::is_git(&name) {
            git::analyze(self, args, start);
        } else if let Some(kind) = wrapper::find(&name) {
            wrapper::analyze(self, kind, args, &start);
        } else {
            let mut intent = Intent::default();
            if args.iter().any(|arg| !arg.is_exact()) {
                intent.deferred = Some(Deferred::Arguments);
            }
            file_operands::describe(&name, &args, &start.folder, self.context, &mut intent);
            self.finish(intent, args, &start);
        }
    }

    /// Fills in what every intent has and adds it.
    pub(crate) fn finish(&mut self, mut intent: Intent, mut args: Vec<Arg>, start: &Start) -> usize {
        let weight = args.iter().map(|arg| arg.prefix().len() + 48).sum();
        if !self.burn(weight) {
            return 0;
        }
        if start.is_uncertain {
            intent.deferred.get_or_insert(Deferred::Arguments);
        }
        if start.env.assigned().iter().any(|name| makes_programs_run(name)) {
            intent.deferred.get_or_insert(Deferred::Configuration);
        }
        if !args.is_empty() {
            let called = args.remove(0);
            let name = called
                .known()
                .map(|called| program_name(called, start.resolved.as_deref()))
                .unwrap_or_default();
            let path = start.resolved.clone().or_else(|| {
                let called = called.known().filter(|called| called.contains(&b'/'))?;
                start.folder.resolve(called)
            });
            intent.program = Program { name, called, path };
        }
        intent.args = args;
        if !start.paths.is_empty() {
            intent.paths.extend_from_slice(&start.paths);
            intent.redirected = start.paths.len();
            file_operands::note_paths(&mut intent);
        }
        intent.variables = start.env.assigned();
        intent.parent = start.parent;
        intent.origin = start.origin;
        self.push(intent)
    }
}

/// Variables that make common programs run something else.
fn makes_programs_run(name: &[u8]) -> bool {
    name.ends_with(b"PAGER")
        || name.ends_with(b"_OPTIONS")
        || name.ends_with(b"OPT")
        || matches!(
            name,
            b"LESSOPEN"
                | b"LESSCLOSE"
                | b"BROWSER"
                | b"BASH_ENV"
                | b"ENV"
                | b"MAKEFLAGS"
                | b"GNUMAKEFLAGS"
                | b"PYTHONSTARTUP"
                | b"RUSTC_WRAPPER"
                | b"LD_PRELOAD"
                | b"LD_AUDIT"
                | b"LD_LIBRARY_PATH"
                | b"PATH"
                | b"VIMINIT"
                | b"EXINIT"
        )
}

/// Programs that act by the name they are called with.
fn acts_by_name(file: &[u8]) -> bool {
    file == b"coreutils" || wrapper::is_multi_call(file)
}

/// The name a program is judged by: the resolved file's where it is known (a link called `ls` to git is git), except
/// for programs that themselves go by the name they were called with.
fn program_name(called: &[u8], resolved: Option<&[u8]>) -> Vec<u8> {
    let called = base_name(called);
    match resolved.map(base_name) {
        Some(file) if !file.is_empty() && file != called => {
            let by_name = if file == b"git" { git::is_git(called) } else { acts_by_name(file) };
            if by_name { called.to_vec() } else { file.to_vec() }
        }
        _ => called.to_vec(),
    }
}

/// A little text around an offset, for messages.
fn excerpt(text: &[u8], at: usize) -> String {
    let start = at.saturating_sub(30);
    let end = (at + 30).min(text.len());
    let cut = String::from_utf8_lossy(text.get(start..end).unwrap_or_default());
    let line = terminal_text::one_line(&cut);
    format!("{}{}{}", if start > 0 { "…" } else { "" }, line.trim(), if end < text.len() { "…" } else { "" })
}

impl Intent {
    /// The command of this intent as one line; of a long one the beginning, the end, and what git would do.
    pub fn line(&self) -> String {
        const MOST: usize = 200;
        self.line_within(MOST, "not shown")
    }

    /// The whole command as one line, for a person who decides about it.
    pub fn whole_line(&self) -> String {
        const MOST: usize = 64 << 10;
        self.line_within(MOST, "not shown: answer no")
    }

    fn line_within(&self, most: usize, said: &str) -> String {
        let words = || std::iter::once(&self.program.called).chain(&self.args);
        let mut line = display_line_within(words(), most, said);
        for used in &self.paths[self.paths.len() - self.redirected.min(self.paths.len())..] {
            line.push_str(if used.access == Access::Read { " < " } else { " > " });
            line.push_str(&display_line_within([&Arg::exact(used.path.clone())], most, said));
        }
        // The verb may stand in the part that is left out.
        match &self.git {
            Some(git) if words().map(|word| word.prefix().len() + 1).sum::<usize>() > most => {
                format!("git {}: {line}", terminal_text::replace(&git.name()))
            }
            _ => line,
        }
    }
}
