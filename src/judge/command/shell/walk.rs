//! Traverses the syntax tree of a shell text and passes each simple command to the analysis, with the state in which
//! it would run.

use std::collections::HashMap;

use super::super::analyze::{Analyzer, Refusal, Start, Stdin};
use super::super::arg::Arg;
use super::super::intent::{Access, Deferred, Intent, Origin, PathUse};
use super::super::wrapper::is_shell;
use super::ast::{
    AndOr, Command, Compound, CompoundKind, Piece, Redirection, RedirectionKind, Script, Simple, Word,
};
use super::builtin;
use super::expand::Expander;
use super::scope::{Scope, Value};
use crate::judge::command::cwd::{Cwd, base_name};
use crate::judge::command::file_operands;

/// The maximum nesting of function calls. guard refuses a command with deeper nesting.
const MOST_ACTIVE: usize = 16;

/// Passes every command of the shell text `text`, whose syntax tree is `script`, to the analyzer. `start` is the
/// environment, directory and standard input of the shell that runs the text, and `scope` is its state.
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

/// The bodies of the functions that are defined so far, by name.
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
        let mut conditional_cwd = false;
        for (index, pipeline) in list.pipelines.iter().enumerate() {
            let before = self.scope.mark();
            self.pipeline(pipeline, stdin);
            // In `make && cd x && git commit`, the directory applies to the rest of the list.
            if index > 0 && only_changes_directory(pipeline) {
                conditional_cwd = true;
            } else if index > 0 {
                self.scope.blur_since(before);
            }
        }
        if conditional_cwd {
            self.scope.set_cwd(Cwd::Unknown);
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

    /// Returns the output of a stage of a pipeline if the stage is `echo`, `printf`, `cat` or `tee` with known text;
    /// otherwise the output is unknown.
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
                // Judge the body as if the function were called here, and then undo its changes, because the call may
                // never happen. Judge the body once with the current values of variables and once without any, because
                // they may have other values at the call. From then on, the scope trusts no values.
                let mark = self.scope.mark();
                if !self.scope.is_untrusted() {
                    self.call(name, body, stdin);
                    self.scope.undo_to(mark);
                    self.scope.distrust();
                }
                self.call(name, body, stdin);
                self.scope.undo_to(mark);
                self.functions.insert(name, body);
            }
        }
    }

    /// Traverses the body of a called function, unless this is a recursive call. Refuses the command if more than
    /// `MOST_ACTIVE` calls are nested.
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
            // In `[[ 'a[$(…)]' -eq 0 ]]`, the shell evaluates the subscript of a name even if it is quoted.
            for piece in &word.pieces {
                if let Piece::Literal { bytes, quoted: true } = piece {
                    builtin::evaluated_subscript(self.analyzer, bytes, self.start);
                }
            }
        }
        let mark = self.scope.mark();
        if compound.kind == CompoundKind::Expression {
            compound.words.iter().for_each(|word| self.forget_named(word));
            self.plain_commands(compound);
        }
        if let Some(variable) = &compound.variable {
            self.scope.set_variable(variable, Value::Unknown);
        }
        if compound.kind == CompoundKind::Loop {
            // The second iteration of a loop runs with the variables that the first one set, so every variable that
            // the body sets is unknown in the body.
            let mut changed = Changed::default();
            compound.bodies.iter().for_each(|body| changed.script(body));
            for name in changed.names {
                self.scope.set_variable(name, Value::Unknown);
            }
            if changed.cwd {
                self.scope.set_cwd(Cwd::Unknown);
            }
            if changed.anything {
                self.scope.distrust();
            }
        }
        for (index, body) in compound.bodies.iter().enumerate() {
            self.script(body, &stdin);
            // What one branch sets does not apply in another branch. The condition of an `if`, however, always runs
            // first.
            let is_condition = compound.words.is_empty() && index == 0;
            if compound.kind == CompoundKind::Conditional && !is_condition {
                self.scope.blur_since(mark);
            }
        }
        match compound.kind {
            CompoundKind::Subshell => self.scope.undo_to(mark),
            CompoundKind::Conditional | CompoundKind::Loop => self.scope.blur_since(mark),
            CompoundKind::Group | CompoundKind::Expression => {}
        }
        self.write_only_intent(&compound.redirections);
    }

    /// Marks the variables named in an arithmetic text as unknown, because the text may set them: `((x=1))`.
    fn forget_named(&mut self, word: &Word) {
        for piece in &word.pieces {
            let Piece::Literal { bytes, .. } = piece else { continue };
            for name in bytes.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_') {
                if self.scope.variable(name).is_some() {
                    self.scope.set_variable(name, Value::Unknown);
                }
            }
        }
    }

    /// Judges the text of `((git checkout main))` as commands too, because some shells parse it as arithmetic and
    /// others as nested subshells. A text with two adjacent words cannot be arithmetic, so only such texts are judged.
    fn plain_commands(&mut self, compound: &Compound) {
        let [word] = compound.words.as_slice() else { return };
        let text = self.text.get(word.span.clone()).unwrap_or_default();
        let mut words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let is_name = |word: &[u8]| word[0].is_ascii_alphabetic() || word[0] == b'/';
        if let (Some(first), Some(second)) = (words.next(), words.next())
            && is_name(first)
            && (is_name(second) || second[0] == b'-' && second.len() > 1)
        {
            let text = text.to_vec();
            self.analyzer.shell_text_if_readable(&text, self.start);
        }
    }

    fn expander(&self) -> Expander<'_> {
        Expander { scope: self.scope, text: self.text, home: self.analyzer.context.home.as_deref() }
    }

    fn simple(&mut self, simple: &'w Simple, stdin: &Stdin) {
        let bodies = simple.redirections.iter().filter_map(|redirection| redirection.body.get());
        let weight: usize = bodies.map(|body| body.span.len()).sum();
        // For each command, the analysis searches the variables that surrounding commands have set, so count them as
        // examined bytes.
        let around = 8 * self.start.env.weight();
        if !self.analyzer.burn(weight + around + 64 * (1 + simple.words.len() + simple.assignments.len())) {
            return;
        }
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
                if assignment.name == b"BASH_ARGV0" {
                    self.scope.set_variable(b"0", Value::Unknown);
                }
                if !assignment.plain {
                    for word in &assignment.words {
                        let element = known_value(&self.expander().single(word));
                        self.evaluated_later(&assignment.name, &element);
                    }
                }
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
        let mut second_command = None;
        for (index, word) in simple.words.iter().enumerate() {
            if simple.cut_at == Some(index) && index > 0 {
                second_command = Some(args.len());
            }
            self.expander().expand(word, &mut args);
        }
        if args.is_empty() {
            return;
        }
        // In `a &>f b`, some shells start `a` in the background and then run `b`.
        if let Some(at) = second_command {
            let start = Start {
                parent: self.start.parent,
                origin: Origin::Shell,
                cwd: self.scope.cwd().clone(),
                ..Start::default()
            };
            self.analyzer.command(args[at..].to_vec(), start);
        }
        let start = self.start_of(simple, stdin);
        // Some shells keep an assignment that precedes a builtin or a function, so the variable's value is unknown
        // afterwards.
        for assignment in &simple.assignments {
            if self.scope.variable(&assignment.name).is_some() {
                self.scope.set_variable(&assignment.name, Value::Unknown);
            }
        }
        if self.scope.overflowed {
            self.analyzer.refuse(Refusal::TooManyVariables);
        }
        // `x=1 eval …`: an assignment before a builtin that runs text applies to that text.
        if matches!(args[0].known(), Some(b"eval" | b"source" | b"." | b"command" | b"builtin")) {
            for assignment in &simple.assignments {
                self.scope.set_variable(&assignment.name, Value::Unknown);
            }
        }
        for (name, value) in start.env.select(&[], |name| matches!(name, b"BASH_ENV" | b"ENV")) {
            let _ = name;
            if let Some(text) = value.known() {
                builtin::evaluated(self.analyzer, text, self.start);
            }
        }
        self.substituted_scripts(simple, &args, &start);
        self.expand_alias(&args, &start);
        if builtin::run(self.analyzer, self.scope, &args, &start) {
            return;
        }
        if let Some(name) = args[0].known()
            && let Some((&name, &body)) = self.functions.get_key_value(name)
        {
            for text in args[1..].iter().filter_map(Arg::known) {
                builtin::evaluated_subscript(self.analyzer, text, self.start);
            }
            // Judge the function and also a program of this name: another shell may run the program.
            let input = start.stdin.clone();
            let mark = self.scope.mark();
            for parameter in b'1'..=b'9' {
                self.scope.set_variable(&[parameter], Value::Unknown);
            }
            self.call(name, body, &input);
            // `local` variables and the positional parameters end with the call. Other variables that the function
            // set become unknown.
            self.scope.blur_variables_since(mark);
        }
        self.analyzer.command(args, start);
    }

    /// Handles `source <(echo …)` and `bash <(echo …)`, which run a script whose text is known.
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

    /// Analyses the substitutions in a value that the shell itself may evaluate later: all of them if the variable is a
    /// prompt, and otherwise only if the value contains a subscript.
    fn evaluated_later(&mut self, name: &[u8], value: &Value) {
        let Value::Known(text) = value else { return };
        match name {
            b"PS4" | b"PS1" | b"PS0" | b"PROMPT_COMMAND" => {
                builtin::evaluated(self.analyzer, text, self.start)
            }
            _ => builtin::evaluated_subscript(self.analyzer, text, self.start),
        }
    }

    /// Returns the state in which a simple command starts: the environment with the command's assignments, the
    /// directory, standard input and the redirected files.
    fn start_of(&mut self, simple: &Simple, stdin: &Stdin) -> Start {
        let mut start = Start {
            env: self.start.env.clone(),
            cwd: self.scope.cwd().clone(),
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
        // Update the variables that a surrounding command set and this text has changed.
        for name in self.start.env.assigned() {
            let Some(value) = self.scope.variable(&name).cloned().map(Value::into_arg) else { continue };
            // Set only changed variables: setting all of them again would double the overlay at every nesting level.
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

    /// Judges `g checkout main` after `alias g=git` as if the alias were expanded, because some shells expand it.
    fn expand_alias(&mut self, args: &[Arg], start: &Start) {
        let Some(name) = args[0].known() else { return };
        let value = match self.scope.alias(name).cloned() {
            Some(Value::Known(value)) => value,
            None => return,
            Some(_) => {
                // The value of the alias is unknown, because it has two definitions or is too long.
                let intent = Intent { deferred: Some(Deferred::Text), ..Intent::default() };
                self.analyzer.finish(intent, args.to_vec(), start);
                return;
            }
        };
        let mut text = value;
        // If an alias ends in a blank, the shell also expands aliases in the next word.
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
        let mut scope = self.scope.aliases_for(name, start.cwd.clone());
        self.analyzer.nested(|analyzer| analyzer.shell_text_in(&text, &start, &mut scope));
    }

    /// Traverses the commands in the substitutions of a word, each in its own subshell. Marks as unknown the variables
    /// that the expansions in the word may set.
    fn substitutions(&mut self, word: &'w Word) {
        for piece in &word.pieces {
            match piece {
                Piece::Literal { .. } => {}
                Piece::Parameter { name, nested, .. } => {
                    for word in nested {
                        self.substitutions(word);
                    }
                    // `${x:=word}` sets x; `${!n:=word}` sets the variable that n names.
                    let operator = nested.last().and_then(|word| word.pieces.first());
                    if let Some(Piece::Literal { bytes, .. }) = operator
                        && (bytes.starts_with(b"=") || bytes.starts_with(b":="))
                    {
                        self.scope.set_variable(name, Value::Unknown);
                        self.scope.distrust();
                    }
                }
                Piece::Command { script, .. } | Piece::Process(script) => {
                    let mark = self.scope.mark();
                    self.script(script, &Stdin::Inherited);
                    self.scope.undo_to(mark);
                }
                Piece::Arithmetic(word) => {
                    self.forget_named(word);
                    self.substitutions(word);
                }
                Piece::Pattern(word) => self.substitutions(word),
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
            file_operands::use_path(target, access, self.scope.cwd(), self.analyzer.context, &mut paths);
        }
        paths
    }

    /// Adds an intent for redirections without a simple command: `> file` alone, or a redirection of a compound
    /// command, still writes the file.
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
        file_operands::note_paths(&mut intent);
        self.analyzer.push(intent);
    }
}

const MOST_CHANGED: usize = 4096;

/// The variables and the directory that the body of a loop may change.
#[derive(Default)]
struct Changed<'w> {
    names: Vec<&'w [u8]>,
    cwd: bool,
    /// Whether the body contains a command that can set any variable, such as `eval`.
    anything: bool,
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
                if self.names.len() < MOST_CHANGED {
                    self.names.extend(names.filter(|_| simple.words.is_empty()));
                } else {
                    self.anything = true;
                }
                if let Some([Piece::Literal { bytes, .. }]) =
                    simple.words.first().map(|word| word.pieces.as_slice())
                {
                    let name = bytes.as_slice();
                    let any = [
                        b"read".as_slice(),
                        b"printf",
                        b"export",
                        b"declare",
                        b"typeset",
                        b"local",
                        b"readonly",
                        b"eval",
                        b"source",
                        b".",
                        b"command",
                        b"builtin",
                        b"mapfile",
                        b"readarray",
                        b"getopts",
                        b"let",
                        b"set",
                        b"shift",
                        b"unset",
                        b"trap",
                    ];
                    self.anything |= any.contains(&name);
                    self.cwd |= matches!(
                        name,
                        b"cd" | b"pushd" | b"popd" | b"command" | b"builtin" | b"eval" | b"source" | b"."
                    );
                }
            }
            Command::Compound(compound) => {
                self.names.extend(compound.variable.as_deref());
                compound.bodies.iter().for_each(|body| self.script(body));
            }
            Command::Function { .. } => self.anything = true,
        }
    }
}

fn known_value(arg: &Arg) -> Value {
    arg.known().map_or(Value::Unknown, |bytes| Value::Known(bytes.to_vec()))
}

/// Returns true if a pipeline is nothing but a `cd` or `pushd`. The working directory after it in an `&&` list is
/// certain: in `a && cd b && c`, the command `c` runs only if the `cd` succeeded, so `c` runs in `b`.
fn only_changes_directory(pipeline: &[Command]) -> bool {
    let [Command::Simple(simple)] = pipeline else { return false };
    let Some(word) = simple.words.first() else { return false };
    matches!(word.pieces.as_slice(), [Piece::Literal { bytes, .. }] if matches!(bytes.as_slice(), b"cd" | b"pushd"))
}
