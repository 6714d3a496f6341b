//! Analyses one command: enforces the limits, and passes the command to the code for its program.
//!
//! The input is a [`Request`] with its [`Context`]; the output is an [`Analysis`]. Hostile input must not cause a
//! panic, and must not take more than linear time.

use std::rc::Rc;

use thiserror::Error;

use super::arg::{Arg, display_line_within};
use super::cwd::{Cwd, base_name};
use super::effects::Effects;
use super::env::Env;
use super::intent::{Access, Deferred, Intent, Origin, PathUse, Program};
use super::shell;
use super::shell::scope::{Scope, Value};
use super::shell::{ShellError, ShellErrorKind};
use super::{file_operands, git, wrapper};
use crate::text::terminal_text;

/// A command to analyse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A program and its arguments, as `execve` would receive them.
    Argv(Vec<Vec<u8>>),
    /// Text that a shell would run.
    Shell(Vec<u8>),
}

/// The state in which a command would run: its directory, environment, git configuration and writable paths.
#[derive(Debug, Clone, Default)]
pub struct Context {
    pub cwd: Cwd,
    /// The working tree of the task; `None` means the directory in which the command runs.
    pub worktree: Option<Vec<u8>>,
    /// The directories and files that the command may write, with symbolic links resolved; `None` means the home
    /// directory. The working tree and temporary directories always count as writable here, because the sandbox decides
    /// which of them the command may really write.
    pub writable: Option<Vec<Vec<u8>>>,
    /// The task's git directory, if it is not in the working tree.
    pub git_dir: Option<Vec<u8>>,
    /// The repositories in the run's private directories that are not the task's repository, as far as the caller
    /// knows them.
    pub other_repositories: Vec<Vec<u8>>,
    /// Whether to treat a nested git command in an unknown directory as if it ran in one of `other_repositories`. A
    /// caller may set this only if it judges the nested command again when that command starts, because the directory
    /// is known then.
    pub judged_again: bool,
    /// The user's home directory, to which `~` expands.
    pub home: Option<Vec<u8>>,
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// The git configuration that the caller knows, as (key, value), for example the value of `alias.x`.
    pub git_config: Vec<(Vec<u8>, Vec<u8>)>,
    /// The file to which `argv[0]` resolves through symbolic links, if the caller knows it.
    pub resolved: Option<Vec<u8>>,
    pub limits: Limits,
}

/// Limits that bound the time and memory of the analysis of hostile input.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The maximum size of the argv or the shell text to analyse, in bytes. With nested texts and expansions, the
    /// analysis examines at most 32 times as many bytes.
    pub bytes: usize,
    /// The maximum nesting of brackets, substitutions, wrappers and aliases together.
    pub depth: usize,
    /// The maximum number of program starts in one command.
    pub intents: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 4 << 20, depth: 64, intents: 20_000 }
    }
}

/// How many bytes the analysis may examine for each byte of [`Limits::bytes`]. Expansions and nested texts make the
/// examined text larger than the command.
const WORK_PER_BYTE: usize = 32;

/// The result of an analysis: the program starts that a command would cause, or why guard refuses it.
#[derive(Debug, Clone, Default)]
pub struct Analysis {
    /// The program starts that the analysis found, parents before their children.
    pub intents: Vec<Intent>,
    /// Why guard could not analyse the command. If set, guard denies the command, whatever intents it found.
    pub refusal: Option<Refusal>,
}

/// Why guard could not analyse a command.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    #[error("the command is empty")]
    Empty,
    #[error("argument {0} contains a NUL byte")]
    Nul(usize),
    /// The command exceeds [`Limits::bytes`], or its nested texts and expansions exceed 32 times this limit.
    #[error(
        "the command is longer than {0} bytes, or expands to more text than guard analyses for a command"
    )]
    TooLarge(usize),
    #[error("the command nests brackets, substitutions or other commands deeper than {0} levels")]
    TooDeep(usize),
    /// The command sets more variables that change the behaviour of programs, such as `GIT_…` and `PATH`, than the
    /// analysis tracks.
    #[error("the command exports more environment variables than guard can track")]
    TooManyVariables,
    #[error(
        "the shell option -k turns arguments of the form name=value into assignments; guard cannot analyse such a command"
    )]
    KeywordOption,
    /// The command defines an alias that could change how a shell parses the text after it.
    #[error(
        "guard cannot analyse an alias for a shell keyword, or one whose value contains `#` or `<<` or is not valid shell text"
    )]
    Alias,
    #[error("the command sets more than {0} different values for one git alias")]
    TooManyAliasValues(usize),
    #[error("the command starts more than {0} programs")]
    TooMany(usize),
    #[error("cannot parse the shell text: {error} in `{text}`")]
    Shell {
        error: ShellError,
        /// An excerpt of the text around the position of the error.
        text: String,
    },
}

/// Analyses a command. Returns a result for every input, in time linear in the input's size.
pub fn analyze(request: &Request, context: &Context) -> Analysis {
    let mut analyzer = Analyzer {
        context,
        intents: Vec::new(),
        refusal: None,
        fuel: context.limits.bytes.saturating_mul(WORK_PER_BYTE),
        environment_weight: git::environment_weight(&context.environment),
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
                let start = Start { origin: Origin::Shell, cwd: context.cwd.clone(), ..Start::default() };
                analyzer.shell_text(text, &start);
            }
        }
    }
    Analysis { intents: analyzer.intents, refusal: analyzer.refusal }
}

/// What a program would read from standard input.
#[derive(Debug, Clone, Default)]
pub(crate) enum Stdin {
    /// The standard input of the caller, not the output of another command.
    #[default]
    Inherited,
    /// Text that is fully known: a here-document, a here-string, the output of `echo`. Reference-counted, because the
    /// stages of a pipeline share it.
    Text(Rc<[u8]>),
    /// Text that is known only at run time.
    Unknown,
}

/// The state in which a command starts: its environment, directory, standard input and parent. The command is the one
/// that the caller asked about, or a command nested in that one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Start {
    pub(crate) env: Env,
    pub(crate) cwd: Cwd,
    pub(crate) stdin: Stdin,
    pub(crate) parent: Option<usize>,
    pub(crate) origin: Origin,
    /// Files that the command's redirections use.
    pub(crate) paths: Vec<PathUse>,
    /// The file to which the program resolves. `None` for nested commands, because the caller resolves only the
    /// program of the command that it asks about. Exception: if a wrapper runs the program under another name
    /// (`exec -a NAME FILE`), this is the file as written in the wrapper's arguments.
    pub(crate) resolved: Option<Vec<u8>>,
    /// Whether the target of at least one of the command's redirections is known only at run time.
    pub(crate) is_uncertain: bool,
}

impl Start {
    /// Returns the state in which a nested command starts: the environment, directory and standard input of `self`,
    /// with the intent at index `parent` as its parent.
    pub(crate) fn inside(&self, parent: usize, origin: Origin) -> Self {
        Self {
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            stdin: self.stdin.clone(),
            parent: Some(parent),
            origin,
            paths: Vec::new(),
            resolved: None,
            is_uncertain: false,
        }
    }
}

/// Analyses one command, and collects its intents.
pub(crate) struct Analyzer<'a> {
    pub(crate) context: &'a Context,
    pub(crate) intents: Vec<Intent>,
    refusal: Option<Refusal>,
    /// The number of bytes of text that the analysis may still examine.
    fuel: usize,
    /// The number of bytes that the analysis subtracts from `fuel` for each git command, because it examines the
    /// caller's environment for each of them.
    environment_weight: usize,
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

    /// Calls `inside` one nesting level deeper, or refuses the command if the depth limit is reached. Does nothing if
    /// the command is already refused.
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
            cwd: self.context.cwd.clone(),
            resolved: self.context.resolved.clone(),
            ..Start::default()
        };
        self.command(args, start);
    }

    /// Adds an intent and returns its index, which nested intents store as their parent. If there are already too many
    /// intents, refuses the command and returns the index of the last one.
    pub(crate) fn push(&mut self, intent: Intent) -> usize {
        if self.intents.len() >= self.context.limits.intents {
            self.refuse(Refusal::TooMany(self.context.limits.intents));
        } else {
            self.intents.push(intent);
        }
        self.intents.len().saturating_sub(1)
    }

    /// Marks an intent as one that the supervisor must judge again when the program starts. If the intent already has a
    /// reason for this, keeps that reason.
    pub(crate) fn defer(&mut self, index: usize, why: Deferred) {
        if let Some(intent) = self.intents.get_mut(index) {
            intent.deferred.get_or_insert(why);
        }
    }

    /// Parses shell text and analyses every command in it, as a new shell would run it. Refuses text with a syntax
    /// error.
    pub(crate) fn shell_text(&mut self, text: &[u8], start: &Start) {
        self.shell_text_in(text, start, &mut self.new_scope(start));
    }

    /// Analyses shell text that runs in a shell with a known state, such as the text of `eval`.
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

    /// Analyses text that git passes to a shell (`GIT_EDITOR='echo message >'`). git appends `"$@"` to the text, which
    /// stands for the arguments that git adds. This function appends it only if the text does not parse without it.
    pub(crate) fn shell_text_of_git(&mut self, text: &[u8], start: &Start) {
        let (depth, limit) = (self.depth, self.context.limits.depth);
        let is_whole = |text: &[u8]| shell::parse(text, depth, limit).is_ok();
        let completed = [text, b" \"$@\""].concat();
        let text = if !is_whole(text) && is_whole(&completed) { &completed } else { text };
        self.shell_text(text, start);
    }

    /// Analyses text in a language that resembles shell. Text that does not parse as shell is ignored.
    pub(crate) fn shell_text_if_readable(&mut self, text: &[u8], start: &Start) {
        if shell::parse(text, self.depth, self.context.limits.depth).is_ok() {
            self.shell_text(text, start);
        }
    }

    fn new_scope(&self, start: &Start) -> Scope {
        let mut scope = Scope::new(start.cwd.clone());
        if !start.env.is_untouched() {
            for (name, value) in start.env.select(&[], |_| true) {
                let value = value.known().map_or(Value::Unknown, |bytes| Value::Known(bytes.to_vec()));
                scope.set_variable(&name, value);
            }
        }
        scope
    }

    /// Analyses one simple command, one nesting level deeper, with the code for its program. If the program's name is
    /// unknown, marks the intent as deferred.
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
            if self.burn(self.environment_weight) {
                git::analyze(self, args, start);
            }
        } else if let Some(kind) = wrapper::find(&name) {
            wrapper::analyze(self, kind, args, &start);
        } else {
            let mut intent = Intent::default();
            if args.iter().any(|arg| !arg.is_exact()) {
                intent.deferred = Some(Deferred::Arguments);
            }
            file_operands::describe(&name, &args, &start.cwd, self.context, &mut intent);
            self.finish(intent, args, &start);
        }
    }

    /// Sets the fields that all intents have in common, and adds the intent to the analysis. Returns the intent's
    /// index, or 0 if the command is too large.
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
            let path = match start.resolved.as_deref().or(called.known()) {
                Some(file) if start.resolved.is_some() && file.starts_with(b"/") => Some(file.to_vec()),
                // After `exec -a NAME`, the resolved file may be relative, or a name that the shell looks up in PATH.
                Some(file) if file.contains(&b'/') => start.cwd.resolve(file),
                _ => None,
            };
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

/// Returns true if an environment variable can make common programs run a program, or load code, that the command does
/// not name.
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

/// Returns true if this program file contains several programs and runs the one by whose name it is called.
fn acts_by_name(file: &[u8]) -> bool {
    file == b"coreutils" || wrapper::is_multi_call(file)
}

/// Returns the name by which guard judges a program: the name of the resolved file, if the caller knows it, because a
/// link called `ls` to git is git. If the file contains several programs, such as busybox, guard judges the program by
/// the name in the command.
fn program_name(called: &[u8], resolved: Option<&[u8]>) -> Vec<u8> {
    let called = base_name(called);
    match resolved.map(base_name) {
        Some(file) if !file.is_empty() && file != called => {
            let by_name = if file == b"git" { git::is_git(called) } else { acts_by_name(file) };
            // busybox ignores the hyphen with which login marks a shell.
            let plain = if acts_by_name(file) { called.strip_prefix(b"-").unwrap_or(called) } else { called };
            if by_name { plain.to_vec() } else { file.to_vec() }
        }
        _ => called.to_vec(),
    }
}

/// Returns a short excerpt of a text around an offset, for messages.
fn excerpt(text: &[u8], at: usize) -> String {
    let start = at.saturating_sub(30);
    let end = (at + 30).min(text.len());
    let cut = String::from_utf8_lossy(text.get(start..end).unwrap_or_default());
    let line = terminal_text::one_line(&cut);
    format!("{}{}{}", if start > 0 { "…" } else { "" }, line.trim(), if end < text.len() { "…" } else { "" })
}

impl Intent {
    /// Returns the command of this intent, with its redirections, as one line. Of a command of more than 200 bytes, the
    /// line contains only the beginning, the end and the git verb.
    pub fn line(&self) -> String {
        const MOST: usize = 200;
        self.line_within(MOST, "not shown")
    }

    /// Returns the command of this intent as one line, for a user who must decide about the command. Only a command of
    /// more than 64 KiB is shortened; the line then advises the user to refuse it.
    pub fn whole_line(&self) -> String {
        const MOST: usize = 64 << 10;
        self.line_within(MOST, "not shown, so answer no")
    }

    fn line_within(&self, most: usize, note: &str) -> String {
        let words = || std::iter::once(&self.program.called).chain(&self.args);
        let mut line = display_line_within(words(), most, note);
        for used in &self.paths[self.paths.len() - self.redirected.min(self.paths.len())..] {
            line.push_str(if used.access == Access::Read { " < " } else { " > " });
            line.push_str(&display_line_within([&Arg::exact(used.path.clone())], most, note));
        }
        // The omitted part may contain the verb, so add it.
        match &self.git {
            Some(git) if words().map(|word| word.prefix().len() + 1).sum::<usize>() > most => {
                format!("git {}: {line}", terminal_text::replace(&git.name()))
            }
            _ => line,
        }
    }
}
