//! The tree of a shell text → its simple commands, each handed to the analysis with the state it would meet.

use std::collections::HashMap;

use super::super::analyze::{Analyzer, Refusal, Start, Stdin};
use super::super::arg::Arg;
use super::super::files;
use super::super::intent::{Access, Intent, Origin, PathUse};
use super::super::place::{Folder, base_name};
use super::super::wrapper::is_shell;
use super::ast::{
    AndOr, Command, Compound, CompoundKind, Piece, Redirection, RedirectionKind, Script, Simple, Word,
};
use super::builtin;
use super::expand::Expander;
use super::scope::{Scope, Value};

/// Functions called from each other deeper than this are not followed further.
const MOST_ACTIVE: usize = 16;

/// Goes through a parsed text. `start` tells where it stands, `scope` what its shell knows.
pub(crate) fn walk(
    analyzer: &mut Analyzer<'_>,
    text: &[u8],
    script: &Script,
    start: &Start,
    scope: &mut Scope,
) {
    let mut walker = Walker { analyzer, text, start, scope, functions: HashMap::new(), active: Vec::new() };
    walker.script(script, &start.stdin);
}

/// Bodies of functions by name, and the functions being walked.
type Functions<'w> = HashMap<&'w [u8], &'w Command>;

struct Walker<'w, 'a> {
    analyzer: &'w mut Analyzer<'a>,
    text: &'w [u8],
    start: &'w Start,
    scope: &'w mut Scope,
    functions: Functions<'w>,
    active: Vec<&'w [u8]>,
}

impl<'w> Walker<'w, '_> {
    fn script(&mut self, script: &'w Script, stdin: &Stdin) {
        for list in &script.lists {
            if self.analyzer.is_refused() {
                return;
            }
            self.and_or(list, stdin);
        }
    }

    fn and_or(&mut self, list: &'w AndOr, stdin: &Stdin) {
        let mark = self.scope.mark();
        for (index, pipeline) in list.pipelines.iter().enumerate() {
            let before = self.scope.mark();
            self.pipeline(pipeline, stdin);
            // `cd x && git commit`: the folder holds for what follows in the list, and it is what will be judged.
            if index > 0 && !changes_folder_only(pipeline) {
                self.scope.blur_since(before);
            }
        }
        if list.background {
            self.scope.undo_to(mark);
        }
    }

    fn pipeline(&mut self, commands: &'w [Command], stdin: &Stdin) {
        if let [only] = commands {
            self.command(only, stdin);
            return;
        }
        let mut input = stdin.clone();
        for command in commands {
            let mark = self.scope.mark();
            self.command(command, &input);
            input = self.output_of(command, &input);
            self.scope.undo_to(mark);
        }
    }

    /// What a stage of a pipeline writes, where that is plain to see: `echo`, `printf`, `cat` of known text.
    fn output_of(&self, command: &Command, input: &Stdin) -> Stdin {
        let Command::Simple(simple) = command else { return Stdin::Unknown };
        if [b"echo".as_slice(), b"printf", b"cat", b"tee"]
            .iter()
            .any(|name| self.functions.contains_key(name))
        {
            return Stdin::Unknown;
        }
        let mut args = Vec::new();
        for word in &simple.words {
            self.expander().expand(word, &mut args);
        }
        let input = self.stdin_of(&simple.redirections, input);
        builtin::output(&args, &input)
    }

    fn command(&mut self, command: &'w Command, stdin: &Stdin) {
        match command {
            Command::Simple(simple) => self.simple(simple, stdin),
            Command::Compound(compound) => self.compound(compound, stdin),
            Command::Function { name, body } => {
                // Judged as if it were called, without believing that it was.
                let mark = self.scope.mark();
                self.call(name, body, stdin);
                self.scope.undo_to(mark);
                self.functions.insert(name, body);
            }
        }
    }

    /// Walks a function's body, unless it is being walked already.
    fn call(&mut self, name: &'w [u8], body: &'w Command, stdin: &Stdin) {
        if self.active.contains(&name) || self.analyzer.is_refused() {
            return;
        }
        if self.active.len() >= MOST_ACTIVE {
            self.analyzer.refuse(Refusal::TooDeep(MOST_ACTIVE));
            return;
        }
        self.active.push(name);
        self.command(body, stdin);
        self.active.pop();
    }

    fn compound(&mut self, compound: &'w Compound, stdin: &Stdin) {
        self.redirections(&compound.redirections);
        let stdin = self.stdin_of(&compound.redirections, stdin);
        for word in &compound.words {
            self.substitutions(word);
            // `[[ 'a[$(…)]' -eq 0 ]]`: a name's subscript is evaluated, quoted or not.
            for piece in &word.pieces {
                if let Piece::Literal { bytes, quoted: true } = piece {
                    builtin::evaluated_subscript(self.analyzer, bytes, self.start);
                }
            }
        }
        let mark = self.scope.mark();
        if let Some(variable) = &compound.variable {
            self.scope.set_variable(variable, Value::Unknown);
        }
        if compound.kind == CompoundKind::Loop {
            // A loop's second round sees what its first one set: nothing set inside is known inside.
            let mut changed = Changed::default();
            compound.bodies.iter().for_each(|body| changed.script(body));
            for name in changed.names {
                self.scope.set_variable(name, Value::Unknown);
            }
            if changed.folder {
                self.scope.set_folder(Folder::Unknown);
            }
        }
        for body in &compound.bodies {
            self.script(body, &stdin);
        }
        match compound.kind {
            CompoundKind::Subshell => self.scope.undo_to(mark),
            CompoundKind::Conditional | CompoundKind::Loop => self.scope.blur_since(mark),
            CompoundKind::Group | CompoundKind::Expression => {}
        }
        self.write_only_intent(&compound.redirections);
    }

    fn expander(&self) -> Expander<'_> {
        Expander { scope: self.scope, text: self.text, home: self.analyzer.context.home.as_deref() }
    }

    fn simple(&mut self, simple: &'w Simple, stdin: &Stdin) {
        for assignment in &simple.assignments {
            for word in &assignment.words {
                self.substitutions(word);
            }
        }
        for word in &simple.words {
            self.substitutions(word);
        }
        self.redirections(&simple.redirections);
        if simple.words.is_empty() {
            for assignment in &simple.assignments {
                let value = match (assignment.plain, assignment.words.last()) {
                    (true, Some(word)) => known_value(&self.expander().single(word)),
                    _ => Value::Unknown,
                };
                self.evaluated_later(&assignment.name, &value);
                if let (b"BASH_ALIASES" | b"BASH_CMDS", [name, command]) =
                    (assignment.name.as_slice(), assignment.words.as_slice())
                {
                    let (name, command) = (self.expander().single(name), self.expander().single(command));
                    if let (Some(name), Some(command)) = (name.known(), command.known()) {
                        self.scope.set_alias(name, Value::Known(command.to_vec()));
                    }
                }
                self.scope.set_variable(&assignment.name, value);
            }
            self.write_only_intent(&simple.redirections);
            return;
        }
        let mut args = Vec::with_capacity(simple.words.len());
        for word in &simple.words {
            self.expander().expand(word, &mut args);
        }
        if args.is_empty() {
            return;
        }
        let start = self.start_of(simple, stdin);
        if self.scope.overflowed {
            self.analyzer.refuse(Refusal::TooManyVariables);
        }
        // `x=1 eval …`: an assignment before a builtin that runs text is in force for it.
        if matches!(args[0].known(), Some(b"eval" | b"source" | b"." | b"command" | b"builtin")) {
            for assignment in &simple.assignments {
                self.scope.set_variable(&assignment.name, Value::Unknown);
            }
        }
        self.substituted_scripts(simple, &args, &start);
        if builtin::run(self.analyzer, self.scope, &args, &start) {
            return;
        }
        self.expand_alias(&args, &start);
        if let Some(name) = args[0].known()
            && let Some((&name, &body)) = self.functions.get_key_value(name)
        {
            // It may be the function or, elsewhere, a program of that name: both are judged.
            let input = start.stdin.clone();
            let mark = self.scope.mark();
            for parameter in b'1'..=b'9' {
                self.scope.set_variable(&[parameter], Value::Unknown);
            }
            self.call(name, body, &input);
            // `local` and its own parameters end with the call; what else it set is not followed.
            self.scope.blur_variables_since(mark);
        }
        self.analyzer.command(args, start);
    }

    /// `source <(echo …)`, `bash <(echo …)`: a script whose text is plain to see.
    fn substituted_scripts(&mut self, simple: &'w Simple, args: &[Arg], start: &Start) {
        let Some(name) = args[0].known() else { return };
        let reads_script = matches!(name, b"source" | b".") || is_shell(base_name(name));
        if !reads_script {
            return;
        }
        for word in &simple.words[1..] {
            let [Piece::Process(script)] = word.pieces.as_slice() else { continue };
            let [AndOr { pipelines, .. }] = script.lists.as_slice() else { continue };
            let [pipeline] = pipelines.as_slice() else { continue };
            let [command] = pipeline.as_slice() else { continue };
            if let Stdin::Text(text) = self.output_of(command, &Stdin::Unknown) {
                self.analyzer.shell_text_in(&text, start, self.scope);
            }
        }
    }

    /// Values that the shell itself runs: prompts and its tables of aliases.
    fn evaluated_later(&mut self, name: &[u8], value: &Value) {
        let Value::Known(text) = value else { return };
        match name {
            b"PS4" | b"PS1" | b"PS0" | b"PROMPT_COMMAND" => {
                builtin::evaluated(self.analyzer, text, self.start)
            }
            _ => builtin::evaluated_subscript(self.analyzer, text, self.start),
        }
    }

    /// The circumstances of a simple command: its assignments, standard input and redirected files.
    fn start_of(&mut self, simple: &Simple, stdin: &Stdin) -> Start {
        let mut start = Start {
            env: self.start.env.clone(),
            folder: self.scope.folder().clone(),
            stdin: self.stdin_of(&simple.redirections, stdin),
            parent: self.start.parent,
            origin: Origin::Shell,
            paths: Vec::new(),
            resolved: None,
            is_uncertain: false,
        };
        for (name, value) in self.scope.inherited() {
            match value {
                Value::Known(bytes) => start.env.set(name, Arg::exact(bytes.clone())),
                Value::Unknown => start.env.set(name, Arg::partial(Vec::new(), b"?", false)),
                Value::Unset => start.env.unset(name),
            }
        }
        // What an outer command set and this text set again.
        for name in self.start.env.assigned() {
            let Some(value) = self.scope.variable(&name).cloned().map(Value::into_arg) else { continue };
            // Only what changed: setting everything again at every level would double it at every level.
            if start.env.get(&[], &name).as_ref() != Some(&value) {
                start.env.set(&name, value);
            }
        }
        for assignment in &simple.assignments {
            let value = match assignment.words.last() {
                Some(word) if assignment.plain => self.expander().single(word),
                _ => Arg::partial(Vec::new(), b"?", false),
            };
            start.env.set(&assignment.name, value);
        }
        start.paths = self.redirected_paths(&simple.redirections);
        start.is_uncertain = simple.redirections.iter().any(|redirection| {
            let mut targets = Vec::new();
            self.expander().expand(&redirection.target, &mut targets);
            targets.iter().any(|target| !target.is_exact())
        });
        start
    }

    /// `alias g=git; g checkout main`: some shells expand it, so it is judged as if this one did.
    fn expand_alias(&mut self, args: &[Arg], start: &Start) {
        let Some(name) = args[0].known() else { return };
        let Some(Value::Known(value)) = self.scope.alias(name).cloned() else { return };
        if value.starts_with(name) && value.get(name.len()).is_none_or(|byte| *byte == b' ') {
            return;
        }
        let mut text = value;
        // A blank at its end makes the next word an alias too.
        let mut next_expands = text.ends_with(b" ");
        for arg in &args[1..] {
            text.push(b' ');
            let alias = arg.known().filter(|_| next_expands).and_then(|word| self.scope.alias(word));
            if let Some(Value::Known(value)) = alias {
                next_expands = value.ends_with(b" ");
                text.extend_from_slice(value);
                continue;
            }
            next_expands = false;
            match arg.known().map(String::from_utf8_lossy) {
                Some(word) => text.extend_from_slice(shell_words::quote(&word).as_bytes()),
                None => text.extend_from_slice(b"\"$1\""),
            }
        }
        let start = start.clone();
        let mut scope = self.scope.aliases_for(name, start.folder.clone());
        self.analyzer.nested(|analyzer| analyzer.shell_text_in(&text, &start, &mut scope));
    }

    /// The commands inside a word's substitutions, each in a subshell.
    fn substitutions(&mut self, word: &'w Word) {
        for piece in &word.pieces {
            match piece {
                Piece::Literal { .. } => {}
                Piece::Parameter { name, nested, .. } => {
                    for word in nested {
                        self.substitutions(word);
                    }
                    // `${x:=word}` sets it.
                    let operator =
                        nested.last().map(|word| &self.text[word.span.start.min(self.text.len())..]);
                    if operator.is_some_and(|text| text.starts_with(b"=") || text.starts_with(b":=")) {
                        self.scope.set_variable(name, Value::Unknown);
                    }
                }
                Piece::Command { script, .. } | Piece::Process(script) => {
                    let mark = self.scope.mark();
                    self.script(script, &Stdin::Inherited);
                    self.scope.undo_to(mark);
                }
                Piece::Arithmetic(word) | Piece::Pattern(word) => self.substitutions(word),
            }
        }
    }

    fn redirections(&mut self, redirections: &'w [Redirection]) {
        for redirection in redirections {
            self.substitutions(&redirection.target);
            if let Some(body) = redirection.body.get() {
                self.substitutions(body);
            }
        }
    }

    fn stdin_of(&self, redirections: &[Redirection], inherited: &Stdin) -> Stdin {
        let last = redirections.iter().rev().find(|redirection| match redirection.kind {
            RedirectionKind::Write => false,
            RedirectionKind::Duplicate => redirection.fd == Some(0),
            _ => redirection.fd.is_none_or(|fd| fd == 0),
        });
        let Some(last) = last else { return inherited.clone() };
        let word = match last.kind {
            RedirectionKind::HereDocument => last.body.get(),
            RedirectionKind::HereString => Some(&last.target),
            _ => None,
        };
        match word.map(|word| self.expander().single(word)) {
            Some(arg) => arg.known().map_or(Stdin::Unknown, |text| Stdin::Text(text.into())),
            None => Stdin::Unknown,
        }
    }

    fn redirected_paths(&self, redirections: &[Redirection]) -> Vec<PathUse> {
        let mut paths = Vec::new();
        for redirection in redirections {
            let access = match redirection.kind {
                RedirectionKind::Read => Access::Read,
                RedirectionKind::Write | RedirectionKind::ReadWrite | RedirectionKind::Duplicate => {
                    Access::Write
                }
                RedirectionKind::HereString | RedirectionKind::HereDocument => continue,
            };
            let mut targets = Vec::new();
            self.expander().expand(&redirection.target, &mut targets);
            let [target] = targets.as_slice() else { continue };
            let descriptor = |text: &[u8]| text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-');
            if redirection.kind == RedirectionKind::Duplicate && target.known().is_none_or(descriptor) {
                continue;
            }
            files::use_path(target, access, self.scope.folder(), self.analyzer.context, &mut paths);
        }
        paths
    }

    /// `> file` without a command, or around a compound one, still writes the file.
    fn write_only_intent(&mut self, redirections: &[Redirection]) {
        let paths = self.redirected_paths(redirections);
        if paths.is_empty() {
            return;
        }
        let redirected = paths.len();
        let mut intent = Intent {
            paths,
            redirected,
            parent: self.start.parent,
            origin: Origin::Shell,
            ..Intent::default()
        };
        intent.program.called = Arg::exact(b":".as_slice());
        intent.program.name = b":".to_vec();
        files::note_paths(&mut intent);
        self.analyzer.push(intent);
    }
}

/// What a loop's body may change: variables and the folder.
#[derive(Default)]
struct Changed<'w> {
    names: Vec<&'w [u8]>,
    folder: bool,
}

impl<'w> Changed<'w> {
    fn script(&mut self, script: &'w Script) {
        for command in script.lists.iter().flat_map(|list| &list.pipelines).flatten() {
            self.command(command);
        }
    }

    fn command(&mut self, command: &'w Command) {
        match command {
            Command::Simple(simple) => {
                let names = simple.assignments.iter().map(|assignment| assignment.name.as_slice());
                self.names.extend(names.filter(|_| simple.words.is_empty()));
                if let Some([Piece::Literal { bytes, .. }]) =
                    simple.words.first().map(|word| word.pieces.as_slice())
                {
                    self.folder |= matches!(bytes.as_slice(), b"cd" | b"pushd" | b"popd");
                }
            }
            Command::Compound(compound) => compound.bodies.iter().for_each(|body| self.script(body)),
            Command::Function { .. } => {}
        }
    }
}

fn known_value(arg: &Arg) -> Value {
    arg.known().map_or(Value::Unknown, |bytes| Value::Known(bytes.to_vec()))
}

/// `a && cd b && c`: a `cd` in the middle of a list is what the rest of the list counts on.
fn changes_folder_only(pipeline: &[Command]) -> bool {
    let [Command::Simple(simple)] = pipeline else { return false };
    let Some(word) = simple.words.first() else { return false };
    matches!(word.pieces.as_slice(), [Piece::Literal { bytes, .. }] if matches!(bytes.as_slice(), b"cd" | b"pushd" | b"export"))
}
