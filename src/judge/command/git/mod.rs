//! Analyses git commands: global options, aliases, configuration, environment, and the effects of each verb.
//!
//! [`global_options`] parses the options before the verb. [`config`] determines which programs git runs, and what it
//! changes, because of configuration and variables. [`option_parser`] parses a verb's options, using the table in
//! [`options`]. [`verbs`] determines the effects of the verb. No module may treat an unknown verb as harmless.

mod config;
mod global_options;
mod option_parser;
mod options;
mod verbs;

use super::analyze::{Analyzer, Refusal, Start};
use super::arg::Arg;
use super::cwd;
use super::cwd::{Cwd, base_name, is_within};
use super::effects::Effects;
use super::file_operands;
use super::intent::{Access, Deferred, GitIntent, Intent, Origin};
use config::{Setting, Settings};
use global_options::{Global, Part};

/// How many different values for one alias the analysis judges. A command that sets more is refused.
const MOST_ALIAS_VALUES: usize = 8;

/// Returns all known git verbs, from which guard suggests the nearest one for a misspelt verb in a policy.
pub fn known_verbs() -> impl Iterator<Item = &'static str> + Clone {
    options::table().verbs().filter(|verb| !verb.contains(' '))
}

/// Returns true if guard knows this git verb, or this verb with a subcommand, such as `stash pop`.
pub fn is_known_verb(verb: &str) -> bool {
    options::table().contains(verb)
}

/// Returns true if a program name is `git`, or that of a program for one verb, such as `git-reset`.
pub(crate) fn is_git(name: &[u8]) -> bool {
    name == b"git" || name.strip_prefix(b"git-").is_some_and(verbs::is_known)
}

/// Returns how many bytes the caller's environment counts as, each time that the analysis examines it for a git
/// command.
pub(crate) fn environment_weight(environment: &[(Vec<u8>, Vec<u8>)]) -> usize {
    config::weight(environment)
}

/// Analyses `git …` or `git-verb …`.
pub(crate) fn analyze(analyzer: &mut Analyzer<'_>, args: Vec<Arg>, start: Start) {
    let mut settings = Settings::from_environment(&start.env, &analyzer.context.environment);
    settings.cwd = start.cwd.clone();
    if let Cwd::Known(cwd) = &start.cwd {
        settings.unresolved_cwd = Some(cwd.clone());
    }
    let called = args[0].known().map(base_name).unwrap_or_default();
    let (verb, rest) = match called.strip_prefix(b"git-") {
        // The name of a program such as `git-reset` contains the verb, and no global options precede it.
        Some(verb) if !verb.is_empty() => (Some(Arg::exact(verb)), 1),
        _ => {
            let global = Global::read(&args[1..], &start.cwd);
            let verb_at = global.verb_at + 1;
            settings.extend(global, &start.env, &analyzer.context.environment);
            (args.get(verb_at).cloned(), verb_at + 1)
        }
    };
    Git { analyzer, start, settings }.run(args, verb, rest);
}

/// Which repository a command operates on.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    /// The repository that git finds from its working directory. If options or variables name the run's own
    /// repository, that counts as found too.
    Found,
    /// The repository that git finds from its directory, but with an index, objects or a working tree outside of the
    /// task's repository.
    Mixed,
    /// A repository other than the task's, named by its git directory.
    Named(Vec<u8>),
    Unknown,
}

/// One git command, while the analysis resolves its aliases to a verb.
struct Git<'g, 'a> {
    analyzer: &'g mut Analyzer<'a>,
    start: Start,
    settings: Settings,
}

impl Git<'_, '_> {
    /// Analyses the command. `args` is the whole command; the verb's own arguments begin at `rest`.
    fn run(mut self, args: Vec<Arg>, verb: Option<Arg>, rest: usize) {
        let mut intent = Intent { git: Some(GitIntent::default()), ..Intent::default() };
        let Some(verb) = verb else {
            // `git` without a verb and `git --version` only print something.
            intent.effects = Effects::GIT_READS;
            set_verb(&mut intent, b"help", None);
            self.finish(intent, args);
            return;
        };
        let Some(name) = verb.known().map(<[u8]>::to_vec) else {
            intent.effects = Effects::GIT_UNKNOWN;
            intent.deferred = Some(Deferred::Verb);
            self.finish(intent, args);
            return;
        };
        let own = args.get(rest..).unwrap_or_default().to_vec();
        let known = verbs::is_known(&name);
        let aliases = self.aliases(&name);
        if !known && !aliases.is_empty() {
            for value in &aliases {
                self.expand_alias(intent.clone(), args.clone(), &name, value, &own);
            }
            return;
        }
        let (name, own) = match own.first().and_then(Arg::known) {
            // `git checkout --help` means `git help checkout`; `git checkout -h` prints the usage.
            Some(b"--help") => (b"help".to_vec(), vec![verb]),
            Some(b"-h") if own.len() == 1 && known => (b"help".to_vec(), vec![verb]),
            _ => (name, own),
        };
        let meaning = verbs::meaning(&name, &own);
        intent.effects = meaning.effects;
        for (path, access) in &meaning.paths {
            file_operands::use_path(
                path,
                *access,
                &self.settings.cwd,
                self.analyzer.context,
                &mut intent.paths,
            );
        }
        let may_be_option =
            |arg: &Arg| arg.prefix().is_empty() || arg.prefix().starts_with(b"-") || arg.splits();
        if own.iter().any(|arg| !arg.is_exact() && may_be_option(arg)) {
            intent.deferred = Some(Deferred::Arguments);
        }
        set_verb(&mut intent, &name, meaning.subcommand.clone());
        let place = self.place(meaning.makes.as_ref());
        let unresolved_place = self.unresolved_place(meaning.makes.as_ref());
        let names_git_dir = matches!(self.target(), Target::Named(_));
        if let Some(git) = &mut intent.git {
            git.flags = meaning.flags;
            git.refs = meaning.refs;
            // `-c remote.NAME.fetch=…` and the like choose the refs that a fetch or push changes.
            let sets_remote = || {
                self.settings.list.iter().any(|setting| {
                    setting.key.get(..7).is_some_and(|start| start.eq_ignore_ascii_case(b"remote."))
                })
            };
            git.has_unnamed_refs = meaning.has_unnamed_refs
                || matches!(name.as_slice(), b"fetch" | b"pull" | b"push") && sets_remote();
            git.makes_repository = meaning.makes.is_some();
            git.place = place;
            git.unresolved_place = unresolved_place;
            git.names_git_dir = names_git_dir;
        }
        let programs = meaning.programs;
        let nested_git = meaning.nested_git;
        let index = self.finish(intent, args);
        let inside = self.inside(index, Origin::Git);
        for program in programs {
            self.run_text(index, &program, &inside);
        }
        if !nested_git.is_empty() {
            let command = [vec![Arg::from("git")], nested_git].concat();
            self.analyzer.command(command, inside.clone());
        }
        // Newer git versions allow aliases for some builtin verbs, so judge the verb and the alias.
        if known {
            let words = [vec![Arg::from("git"), Arg::exact(name.clone())], own.clone()].concat();
            for value in self.aliases(&name) {
                let intent = Intent { git: Some(GitIntent::default()), ..Intent::default() };
                self.expand_alias(intent, words.clone(), &name, &value, &own);
            }
        }
    }

    /// Returns the values of `alias.NAME` that options and variables set, or else the value that the caller knows from
    /// configuration files. The analysis judges all of them, because it does not determine which one git uses. Refuses
    /// the command if there are more than [`MOST_ALIAS_VALUES`].
    fn aliases(&mut self, name: &[u8]) -> Vec<Arg> {
        let is_alias = |key: &[u8]| {
            let rest =
                key.get(..6).filter(|section| section.eq_ignore_ascii_case(b"alias.")).map(|_| &key[6..]);
            rest.is_some_and(|rest| {
                let rest = rest.strip_suffix(b".command").unwrap_or(rest);
                rest.eq_ignore_ascii_case(name)
            })
        };
        let mut values: Vec<Arg> = Vec::new();
        let set = self.settings.list.iter().filter(|setting| is_alias(&setting.key));
        for setting in set {
            if values.contains(&setting.value) {
                continue;
            }
            if values.len() == MOST_ALIAS_VALUES {
                self.analyzer.refuse(Refusal::TooManyAliasValues(MOST_ALIAS_VALUES));
                break;
            }
            values.push(setting.value.clone());
        }
        let supplied = self.analyzer.context.git_config.iter().rev().find(|(key, _)| is_alias(key));
        if values.is_empty() {
            values.extend(supplied.map(|(_, value)| Arg::exact(value.clone())));
        }
        values
    }

    /// Analyses the expansion of an alias. If the value begins with `!`, the rest is shell text to which the arguments
    /// are appended; any other value is a list of arguments for git itself. If the value is unknown or has an unclosed
    /// quote, adds an intent with an unknown verb.
    fn expand_alias(&mut self, mut intent: Intent, args: Vec<Arg>, name: &[u8], value: &Arg, own: &[Arg]) {
        set_verb(&mut intent, name, None);
        let Some(text) = value.known().map(<[u8]>::to_vec) else {
            intent.effects = Effects::GIT_UNKNOWN;
            intent.deferred = Some(Deferred::Configuration);
            self.finish(intent, args);
            return;
        };
        intent.effects = Effects::NONE;
        if let Some(git) = &mut intent.git {
            git.is_alias = true;
        }
        if let Some(shell) = text.strip_prefix(b"!") {
            let mut script = shell.to_vec();
            for arg in own {
                script.push(b' ');
                match arg.known() {
                    Some(word) => {
                        // Quote the argument: a shell changes no byte between single quotes.
                        script.push(b'\'');
                        for &byte in word {
                            if byte == b'\'' {
                                script.extend_from_slice(b"'\\''");
                            } else {
                                script.push(byte);
                            }
                        }
                        script.push(b'\'');
                    }
                    None => script.extend_from_slice(b"\"$1\""),
                }
            }
            intent.effects.add(Effects::GIT_RUNS_PROGRAM);
            let index = self.finish(intent, args);
            let inside = self.inside(index, Origin::Alias);
            self.analyzer.shell_text(&script, &inside);
            return;
        }
        let Some(words) = split_alias(&text) else {
            intent.effects = Effects::GIT_UNKNOWN;
            self.finish(intent, args);
            return;
        };
        let index = self.finish(intent, args);
        let mut command = vec![Arg::from("git")];
        // The settings of the outer command also apply to the alias, so insert them before the alias's words.
        for Setting { key, value } in &self.settings.list {
            if let Some(value) = value.known() {
                command.push(Arg::from("-c"));
                command.push(Arg::exact([key, b"=".as_slice(), value].concat()));
            }
        }
        if let Cwd::Known(cwd) = &self.settings.cwd {
            command.push(Arg::from("-C"));
            command.push(Arg::exact(cwd.clone()));
        }
        command.extend(words.into_iter().map(Arg::exact));
        command.extend_from_slice(own);
        let mut inside = self.start.inside(index, Origin::Alias);
        inside.cwd = self.settings.cwd.clone();
        if self.target() != Target::Found {
            inside.env.set(b"GIT_DIR", Arg::partial(Vec::new(), b"?", false));
        }
        self.analyzer.command(command, inside);
    }

    /// Adds the effects that do not depend on the verb to the intent. Then adds the intent to the analysis, with the
    /// programs that git runs because of its configuration. Returns the index of the intent.
    fn finish(&mut self, mut intent: Intent, args: Vec<Arg>) -> usize {
        const CHANGES: Effects = Effects::GIT_INDEX
            .with(Effects::GIT_WORKTREE)
            .with(Effects::GIT_COMMITS)
            .with(Effects::GIT_AMENDS)
            .with(Effects::GIT_REWRITES)
            .with(Effects::GIT_SWITCHES)
            .with(Effects::GIT_REFS)
            .with(Effects::GIT_STASH)
            .with(Effects::GIT_CONFIG)
            .with(Effects::GIT_OBJECTS)
            .with(Effects::GIT_REPOSITORY);
        const READS: Effects = Effects::GIT_READS.with(Effects::FS_READS).with(Effects::FS_WRITES);
        let is_alias = intent.git.as_ref().is_some_and(|git| git.is_alias);
        if self.is_other(&intent) {
            intent.effects.add(Effects::GIT_OTHER);
        } else if intent.effects.intersects(CHANGES)
            && (self.target() != Target::Found || self.is_elsewhere())
        {
            intent.effects.add(Effects::GIT_ELSEWHERE);
        }
        let is_unplaced = intent.effects.intersects(Effects::GIT_OTHER)
            && intent.git.as_ref().is_some_and(|git| git.place.is_none());
        if is_unplaced {
            intent.deferred.get_or_insert(Deferred::Cwd);
        }
        if intent.effects.intersects(CHANGES)
            && self.settings.cwd == Cwd::Unknown
            && self.analyzer.context.cwd != Cwd::Unknown
        {
            intent.deferred.get_or_insert(Deferred::Cwd);
        }
        if !is_alias {
            // A command that only reads runs no hooks, so it cannot skip any.
            if self.settings.changes_hooks && !intent.effects.is_within(READS) {
                intent.effects.add(Effects::GIT_SKIPS_HOOKS);
            }
            intent.effects.add(self.settings.effects);
        }
        for (path, access) in &self.settings.writes {
            file_operands::use_path(
                path,
                *access,
                &self.settings.cwd,
                self.analyzer.context,
                &mut intent.paths,
            );
        }
        file_operands::note_paths(&mut intent);
        if self.settings.effects.intersects(Effects::GIT_FOREIGN_CONFIG) {
            intent.deferred.get_or_insert(Deferred::Configuration);
        }
        let programs = if is_alias { Vec::new() } else { std::mem::take(&mut self.settings.programs) };
        if !programs.is_empty() {
            intent.effects.add(Effects::GIT_RUNS_PROGRAM);
        }
        let index = self.analyzer.finish(intent, args, &self.start);
        let inside = self.inside(index, Origin::Git);
        for program in programs {
            self.run_text(index, &program, &inside);
        }
        index
    }

    fn skips_hooks(&self) -> bool {
        self.settings.changes_hooks || self.settings.effects.intersects(Effects::GIT_SKIPS_HOOKS)
    }

    /// Returns the state in which git would start a program for this command: the state of the command itself, in the
    /// directory after `-C`, with hooks disabled if the command skips them, and with the intent at `index` as the
    /// parent.
    fn inside(&self, index: usize, origin: Origin) -> Start {
        let mut inside = self.start.inside(index, origin);
        inside.cwd = self.settings.cwd.clone();
        if self.skips_hooks() {
            config::hand_on_skipped_hooks(&mut inside.env, &self.analyzer.context.environment);
        }
        inside
    }

    fn run_text(&mut self, index: usize, program: &Arg, inside: &Start) {
        match program.known() {
            Some(text) if text.iter().all(u8::is_ascii_whitespace) => {}
            Some(text) => {
                // Remove the variables that name the program, so that the analysis does not evaluate them again.
                let mut inside = inside.clone();
                let base = &self.analyzer.context.environment;
                inside.env = config::without_programs(&inside.env, base);
                if self.skips_hooks() {
                    config::hand_on_skipped_hooks(&mut inside.env, base);
                }
                self.analyzer.shell_text_of_git(text, &inside);
            }
            None => {
                if let Some(intent) = self.analyzer.intents.get_mut(index) {
                    intent.deferred.get_or_insert(Deferred::Text);
                }
            }
        }
    }

    /// Returns true if the command operates on one of the context's `other_repositories`. Also returns true for a
    /// nested command whose directory is unknown, if the context's `judged_again` permits this assumption.
    fn is_other(&self, intent: &Intent) -> bool {
        let context = self.analyzer.context;
        let Some(git) = &intent.git else { return false };
        match &git.place {
            Some(place) => context.other_repositories.iter().any(|root| is_within(place, root)),
            None => {
                let is_found = matches!(self.target(), Target::Found | Target::Mixed);
                // The caller judges only nested commands a second time, when their programs start.
                let is_nested = self.start.parent.is_some();
                context.judged_again && is_nested && is_found && !git.is_alias && !self.names_common_dir()
            }
        }
    }

    /// Determines which repository the variables and options name. Ignores parts of the task's own repository,
    /// because naming them, as git does for its hooks, changes nothing.
    fn target(&self) -> Target {
        if self.settings.redirected {
            return Target::Unknown;
        }
        let context = self.analyzer.context;
        let is_below = |path: &[u8], root: Option<&Vec<u8>>| root.is_some_and(|root| is_within(path, root));
        let mut target = Target::Found;
        let mut has_foreign_parts = false;
        for (part, value) in &self.settings.named {
            let path = value.known().and_then(|path| self.settings.cwd.resolve(path));
            let Some(path) = path.filter(|path| path.len() <= cwd::LONGEST_PATH) else {
                return Target::Unknown;
            };
            let is_tasks = match part {
                Part::WorkTree => is_below(&path, context.worktree.as_ref()),
                Part::GitDir | Part::CommonDir | Part::Inner => is_below(&path, context.git_dir.as_ref()),
            };
            match part {
                _ if is_tasks => {}
                Part::GitDir => target = Target::Named(path),
                Part::WorkTree | Part::CommonDir | Part::Inner => has_foreign_parts = true,
            }
        }
        if target == Target::Found && has_foreign_parts { Target::Mixed } else { target }
    }

    /// Returns true if `GIT_COMMON_DIR` is set to a directory other than the git directory. git then takes refs from
    /// that directory, so the path of the git directory does not tell which repository the refs belong to. If the
    /// variable names the git directory itself, git only ignores a `commondir` file in it.
    fn names_common_dir(&self) -> bool {
        let named = |wanted: Part| {
            let values = self.settings.named.iter().filter(move |(part, _)| *part == wanted);
            values.map(|(_, value)| value.known().map(<[u8]>::to_vec))
        };
        let git_dirs: Vec<_> = named(Part::GitDir).collect();
        let is_same = |common: Option<Vec<u8>>| common.is_some() && git_dirs == [common];
        !named(Part::CommonDir).all(is_same)
    }

    /// Returns the directory whose repository the command operates on; `None` if it is unknown. `makes` is the path of
    /// the repository if the command creates one.
    fn place(&self, makes: Option<&Option<Vec<u8>>>) -> Option<Vec<u8>> {
        if self.names_common_dir() {
            return None;
        }
        let cwd = match (self.target(), makes) {
            (Target::Unknown, _) => return None,
            (Target::Named(path), _) => return Some(path),
            (Target::Found | Target::Mixed, None) => self.settings.cwd.clone(),
            (Target::Found | Target::Mixed, Some(target)) => self.settings.cwd.enter(target.as_deref()?),
        };
        match cwd {
            Cwd::Known(place) => Some(place),
            Cwd::Unknown => None,
        }
    }

    /// Returns the directory whose repository the command operates on, as git passes the path to the kernel: with every
    /// `..` kept, because the kernel follows symbolic links before it resolves `..`. `None` if the directory is
    /// unknown. `makes` is the path of the repository if the command creates one.
    fn unresolved_place(&self, makes: Option<&Option<Vec<u8>>>) -> Option<Vec<u8>> {
        let cwd = self.settings.unresolved_cwd.as_ref()?;
        match (self.target(), makes) {
            (Target::Unknown, _) => None,
            (Target::Named(_), _) => {
                let is_git_dir = |(part, _): &&(Part, Arg)| *part == Part::GitDir;
                let (_, value) = self.settings.named.iter().rev().find(is_git_dir)?;
                Some(cwd::join(cwd, value.known()?))
            }
            (Target::Found | Target::Mixed, None) => Some(cwd.clone()),
            (Target::Found | Target::Mixed, Some(target)) => Some(cwd::join(cwd, target.as_deref()?)),
        }
    }

    fn is_elsewhere(&self) -> bool {
        let context = self.analyzer.context;
        match (&context.worktree, &context.cwd) {
            (Some(root), _) | (None, Cwd::Known(root)) => self.settings.cwd.is_outside(root),
            _ => false,
        }
    }
}

/// Splits the value of an alias into words as git does: only blanks, both kinds of quotes, and backslashes are special.
/// Returns `None` if a quote is not closed.
fn split_alias(text: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut quote = None;
    let mut rest = text.iter().copied();
    while let Some(byte) = rest.next() {
        match (byte, quote) {
            (_, Some(end)) if byte == end => quote = None,
            (b'\'' | b'"', None) => {
                quote = Some(byte);
                word.get_or_insert_default();
            }
            (b'\\', None | Some(b'"')) => word.get_or_insert_default().push(rest.next()?),
            (_, None) if byte.is_ascii_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

fn set_verb(intent: &mut Intent, verb: &[u8], subcommand: Option<Vec<u8>>) {
    if let Some(git) = &mut intent.git {
        git.verb = verb.to_vec();
        git.subcommand = subcommand;
    }
}

/// A file that an option, an operand, a variable or a setting of a git command names, and how git accesses the file.
pub(super) type NamedPath = (Arg, Access);
