//! Parses the TOML text of one policy file and collects every problem in it.
//!
//! Parsing continues after an error, so that the user sees all problems at once.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostic::{Diagnostic, Source};
use super::keys;
use super::keys::{
    BudgetSection, EnvironmentSection, Field, FilesystemSection, GitSection, HomeSection, Kind,
    LimitsSection, NetworkSection, SandboxSection, ToolchainsSection, WorktreeSection,
};
use super::model::{Action, Conditions, Example, ExampleCommand, PathAccess};
use super::pattern::{PathPattern, Pattern};
use super::value_parsers::KeyValue;
use crate::judge::command::{CLASSES, Effects, is_known_verb, known_verbs};

/// The names of the placeholders that paths in a policy may contain, such as `{worktree}`.
const PLACEHOLDERS: [&str; 6] = ["worktree", "home", "tmp", "system", "toolchains", "artifact"];

/// The maximum number of rules in a file. More rules would make every decision slow, and nobody could review them.
const MOST_RULES: usize = 1000;

/// The maximum size of a policy file, in bytes. A larger file is rejected.
pub const LARGEST_FILE: usize = 1 << 20;

/// A value with the byte range of its text in the policy file.
#[derive(Debug, Clone)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) span: Range<usize>,
}

/// The parsed content of one policy file.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) name: Option<Located<String>>,
    pub(super) description: String,
    pub(super) extends: Option<Located<String>>,
    pub(super) default_action: Option<Located<Action>>,
    pub(super) filesystem: FilesystemSection,
    pub(super) network: NetworkSection,
    pub(super) environment: EnvironmentSection,
    pub(super) limits: LimitsSection,
    pub(super) budget: BudgetSection,
    pub(super) sandbox: SandboxSection,
    pub(super) home: HomeSection,
    pub(super) toolchains: ToolchainsSection,
    pub(super) worktree: WorktreeSection,
    pub(super) git: GitSection,
    pub(super) rules: Vec<FileRule>,
    /// Whether a rule has an error in its id, action, reason or conditions, or the file has too many rules. guard then
    /// does not check the examples.
    pub(super) has_broken_rules: bool,
    /// Whether the text is not valid TOML.
    pub(super) is_damaged: bool,
}

#[derive(Debug)]
pub(super) struct FileRule {
    pub(super) id: Located<String>,
    pub(super) action: Action,
    pub(super) reason: String,
    pub(super) instead: String,
    pub(super) when: Conditions,
    pub(super) examples: Vec<Example>,
    pub(super) overrides: bool,
    pub(super) lifts: Vec<Located<String>>,
}

/// Parses a policy file. Returns everything that could be parsed even if there are problems, but nothing of a file that
/// is larger than [`LARGEST_FILE`].
pub(super) fn read(source: &Source) -> (File, Vec<Diagnostic>) {
    let mut reader = Reader { source, problems: Vec::new(), absences: Vec::new() };
    let mut file = File::default();
    if source.text.len() > LARGEST_FILE {
        reader.error(0..0, format!("the file is larger than {LARGEST_FILE} bytes"), "", None);
        return (file, reader.problems);
    }
    let (table, errors) = DeTable::parse_recoverable(&source.text);
    file.is_damaged = !errors.is_empty();
    for error in errors {
        let span = error.span().unwrap_or(0..0);
        reader.error(
            span,
            error.message().lines().next().unwrap_or("invalid TOML").to_string(),
            "here",
            None,
        );
    }
    reader.policy(table.get_ref(), &mut file);
    if file.is_damaged {
        // Invalid TOML may hide keys that then seem to be missing, so do not report missing keys.
        let mut index = 0..;
        let absences = reader.absences;
        reader.problems.retain(|_| index.next().is_some_and(|index| !absences.contains(&index)));
    }
    (file, reader.problems)
}

pub(super) struct Reader<'s> {
    pub(super) source: &'s Source,
    pub(super) problems: Vec<Diagnostic>,
    /// The indices in `problems` of the errors that report a missing key.
    absences: Vec<usize>,
}

pub(super) type Table<'t> = DeTable<'t>;

impl Reader<'_> {
    fn policy(&mut self, table: &Table<'_>, file: &mut File) {
        self.check_keys(table, keys::POLICY, "a policy");
        match find(table, "version") {
            Some(value) => {
                self.number(value, 1, 1);
            }
            None => self.absent(
                0..0,
                "`version` is missing".into(),
                "",
                Some("begin the file with `version = 1`".into()),
            ),
        }
        file.name = find(table, "name").and_then(|value| self.text(value));
        match &file.name {
            None if find(table, "name").is_none() => {
                self.absent(0..0, "`name` is missing".into(), "", Some("add `name = \"…\"`".into()));
            }
            Some(name) if !is_policy_name(&name.value) => {
                let span = name.span.clone();
                self.error(
                    span,
                    "a policy name must consist of 1 to 64 lower-case letters, digits and dashes".into(),
                    "invalid name",
                    None,
                );
            }
            _ => {}
        }
        file.description = find(table, "description")
            .and_then(|value| self.text(value))
            .map(|text| text.value)
            .unwrap_or_default();
        file.extends = find(table, "extends").and_then(|value| self.text(value));
        file.default_action = find(table, "default_action").and_then(|value| self.action(value));
        file.filesystem = FilesystemSection::parse(self, table);
        file.network = NetworkSection::parse(self, table);
        file.environment = EnvironmentSection::parse(self, table);
        file.limits = LimitsSection::parse(self, table);
        file.budget = BudgetSection::parse(self, table);
        file.sandbox = SandboxSection::parse(self, table);
        file.home = HomeSection::parse(self, table);
        file.toolchains = ToolchainsSection::parse(self, table);
        file.worktree = WorktreeSection::parse(self, table);
        file.git = GitSection::parse(self, table);
        let Some(rules) = find(table, "command") else { return };
        let DeValue::Array(list) = rules.get_ref() else {
            self.wrong_type(rules, "a list of rules; write `[[command]]`");
            return;
        };
        if list.len() > MOST_RULES {
            let message = format!("the policy has {} rules; the maximum is {MOST_RULES}", list.len());
            self.error(rules.span(), message, "too many rules", None);
            file.has_broken_rules = true;
            return;
        }
        for item in list {
            match item.get_ref() {
                DeValue::Table(rule) => match self.rule(rule, item.span()) {
                    Some(rule) => file.rules.push(rule),
                    None => file.has_broken_rules = true,
                },
                _ => self.wrong_type(item, "a rule; write `[[command]]`"),
            }
        }
        self.unique_ids(&file.rules);
    }

    /// Reports an error about a missing key, and adds the index of that error to `absences`.
    fn absent(&mut self, span: Range<usize>, message: String, label: &str, help: Option<String>) {
        self.absences.push(self.problems.len());
        self.error(span, message, label, help);
    }

    fn unique_ids(&mut self, rules: &[FileRule]) {
        let mut seen: std::collections::HashMap<&String, &Range<usize>> = std::collections::HashMap::new();
        for rule in rules {
            if let Some(first) = seen.get(&rule.id.value).copied() {
                let line = self.source.locate(first.start).line;
                self.error(
                    rule.id.span.clone(),
                    format!("the id `{}` is used twice", rule.id.value),
                    "second use",
                    Some(format!("the rule in line {line} already has this id; choose another id")),
                );
            } else {
                seen.insert(&rule.id.value, &rule.id.span);
            }
        }
    }

    /// Returns a section's table, and reports unknown keys in it. `None` if the file does not have the section, or if
    /// the section is not a table.
    pub(super) fn section_table<'t, 'i>(
        &mut self,
        file: &'t Table<'i>,
        name: &str,
        fields: &'static [Field],
    ) -> Option<&'t Table<'i>> {
        let value = find(file, name)?;
        let DeValue::Table(table) = value.get_ref() else {
            self.wrong_type(value, "a table");
            return None;
        };
        self.check_keys(table, fields, &format!("[{name}]"));
        Some(table)
    }

    /// Parses the value of a key in a section, and reports invalid entries of a list. `None` if the section does not
    /// have the key, or if the value has the wrong type.
    pub(super) fn section_key<T: KeyValue>(
        &mut self,
        table: &Table<'_>,
        section: &str,
        key: &str,
        kind: &Kind,
    ) -> Option<T> {
        let value = find(table, key)?;
        let read = T::read(self, kind, value)?;
        if matches!(kind, Kind::List) {
            read.items().iter().for_each(|item| self.check_grant(section, key, item));
        }
        Some(read)
    }

    pub(super) fn section_overrides(&mut self, table: &Table<'_>) -> bool {
        find(table, "override").and_then(|value| self.flag(value)).is_some_and(|flag| flag.value)
    }

    /// Reports an entry of a section's list that is invalid or could never match.
    fn check_grant(&mut self, section: &str, key: &str, item: &Located<String>) {
        let text = item.value.as_str();
        let problem = match (section, key) {
            ("filesystem", _) => {
                let placeholder = text.strip_prefix('{').and_then(|rest| rest.split_once('}'));
                let climbs = text.split('/').any(|part| part == "..");
                match placeholder {
                    Some((name, _)) if !PLACEHOLDERS.contains(&name) => {
                        self.unknown_word(
                            item.span.clone(),
                            "placeholder",
                            name,
                            PLACEHOLDERS.iter().copied(),
                        );
                        return;
                    }
                    Some((_, rest)) if (rest.is_empty() || rest.starts_with('/')) && !climbs => return,
                    None if text.starts_with('/') && !climbs => return,
                    _ => {
                        "a path must be absolute or begin with a placeholder such as `{worktree}`, and must not contain `..`"
                    }
                }
            }
            ("network", "allow" | "deny") => {
                let Err(problem) = super::HostEntry::parse(text) else { return };
                let help = "such as `example.org`, `*.example.org:443`, `10.0.0.0/8:22`, `GET,HEAD example.org/path`";
                self.error(
                    item.span.clone(),
                    problem.to_string(),
                    "invalid host entry",
                    Some(help.to_string()),
                );
                return;
            }
            ("home", "import") if !is_file_of_the_home(text) => {
                "an import must begin with `~/` and name one file, without `..` and wildcards"
            }
            ("worktree", _) if !is_inside_the_worktree(text) => {
                "the path must be relative to the worktree, without `..` and outside `.git`"
            }
            ("git", "trailers") if text.contains('\n') || !text.contains(": ") => {
                "write a trailer as `Name: value` on one line"
            }
            _ => return,
        };
        self.error(item.span.clone(), problem.to_string(), "invalid entry", None);
    }

    fn rule(&mut self, table: &Table<'_>, span: Range<usize>) -> Option<FileRule> {
        self.check_keys(table, keys::COMMAND, "[[command]]");
        let before = self.problems.len();
        let id = self.required(table, "id", &span).filter(|id| self.is_rule_id(id));
        let action = match find(table, "action") {
            Some(value) => self.action(value),
            None => {
                self.missing("action", &span);
                None
            }
        };
        let reason = self.required(table, "reason", &span);
        let when = self.conditions(table, &span);
        let broken = self.problems.len() > before;
        let examples = self.examples(table);
        let instead = find(table, "instead").and_then(|value| self.text(value)).map(|text| text.value);
        let overrides =
            find(table, "override").and_then(|value| self.flag(value)).is_some_and(|flag| flag.value);
        let lifts = self.condition(table, "lifts");
        if broken {
            return None;
        }
        Some(FileRule {
            id: id?,
            action: action?.value,
            reason: reason?.value,
            instead: instead.unwrap_or_default(),
            when,
            examples,
            overrides,
            lifts,
        })
    }

    /// Returns true if a rule id is valid; reports an error if it is not. Ids appear in messages and tables, and some
    /// names are reserved for guard itself.
    fn is_rule_id(&mut self, id: &Located<String>) -> bool {
        let fits = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'_')
        };
        if id.value.len() > 64 || !id.value.bytes().all(fits) {
            let message =
                "a rule id must consist of 1 to 64 lower-case letters, digits, dots, dashes and underscores"
                    .to_string();
            self.error(id.span.clone(), message, "invalid id", None);
            return false;
        }
        if matches!(id.value.as_str(), "default" | "git.default" | "deferred")
            || id.value.starts_with("input.")
        {
            let message = format!("the id `{}` is reserved for guard itself", id.value);
            self.error(id.span.clone(), message, "choose another id", None);
            return false;
        }
        true
    }

    fn missing(&mut self, key: &str, span: &Range<usize>) {
        let header = span.start..(span.start + "[[command]]".len()).min(span.end.max(span.start));
        self.absent(header, format!("a rule needs `{key}`"), "this rule has none", None);
    }

    fn required(
        &mut self,
        table: &Table<'_>,
        key: &'static str,
        span: &Range<usize>,
    ) -> Option<Located<String>> {
        let Some(value) = find(table, key) else {
            self.missing(key, span);
            return None;
        };
        let text = self.text(value)?;
        if text.value.trim().is_empty() {
            self.error(text.span.clone(), format!("`{key}` is empty"), "must contain text", None);
            return None;
        }
        Some(text)
    }

    fn conditions(&mut self, table: &Table<'_>, span: &Range<usize>) -> Conditions {
        let mut when = Conditions {
            programs: self.patterns(table, "program"),
            verbs: self.verbs(table),
            subcommands: self.patterns(table, "subcommand"),
            flags: self.flag_names(table, "flags"),
            unless_flags: self.flag_names(table, "unless_flags"),
            args: self.patterns(table, "args"),
            unless_args: self.patterns(table, "unless_args"),
            variables: self.patterns(table, "variables"),
            refs: self.patterns(table, "refs"),
            effects: self.effects(table, "effects"),
            only_effects: self.effects(table, "only_effects"),
            ..Conditions::default()
        };
        when.paths = self.path_patterns(table, "paths");
        when.unless_paths = self.path_patterns(table, "unless_paths");
        if let Some(value) = find(table, "access")
            && let Some(text) = self.text(value)
        {
            when.access = match text.value.as_str() {
                "read" => PathAccess::Read,
                "write" => PathAccess::Write,
                "any" => PathAccess::Any,
                other => {
                    self.unknown_word(
                        text.span.clone(),
                        "access",
                        other,
                        ["read", "write", "any"].into_iter(),
                    );
                    PathAccess::Any
                }
            };
        }
        if let Some(access) =
            find(table, "access").filter(|_| when.paths.is_empty() && when.unless_paths.is_empty())
        {
            self.error(
                access.span(),
                "`access` has no effect without `paths` or `unless_paths`".into(),
                "has no effect",
                None,
            );
        }
        let names_git =
            when.programs.is_empty() || when.programs.iter().any(|pattern| pattern.matches(b"git"));
        if let Some(program) = find(table, "program").filter(|_| !when.verbs.is_empty() && !names_git) {
            self.error(
                program.span(),
                "`verb` matches only git, but `program` names another program".into(),
                "omit `program`",
                None,
            );
        }
        let condition_keys = [
            "program",
            "verb",
            "subcommand",
            "flags",
            "args",
            "paths",
            "effects",
            "only_effects",
            "variables",
            "refs",
        ];
        if !condition_keys.iter().any(|key| find(table, key).is_some()) {
            self.absent(
                span.start..span.start + "[[command]]".len(),
                "a rule needs a condition".into(),
                "would match every command",
                Some("add `program`, `verb`, `args`, `paths` or `effects`; to match everything write `program = \"*\"`".into()),
            );
        }
        when
    }

    /// Parses the patterns of a condition. Reports an empty list or an empty pattern as an error, because it could be
    /// read as matching everything or nothing. Only conditions on arguments may have empty patterns.
    fn condition(&mut self, table: &Table<'_>, key: &'static str) -> Vec<Located<String>> {
        let Some(value) = find(table, key) else { return Vec::new() };
        let Some(texts) = self.texts(value) else { return Vec::new() };
        let may_be_empty_word = matches!(key, "args" | "unless_args");
        let empty = texts.iter().find(|text| text.value.is_empty() && !may_be_empty_word);
        if let Some(span) =
            empty.map(|text| text.span.clone()).or_else(|| texts.is_empty().then(|| value.span()))
        {
            let help = "omit the key, or write `*` to match anything";
            self.error(span, format!("`{key}` is empty"), "matches nothing", Some(help.to_string()));
        }
        texts
    }

    fn patterns(&mut self, table: &Table<'_>, key: &'static str) -> Vec<Pattern> {
        let texts = self.condition(table, key);
        let mut patterns = Vec::with_capacity(texts.len());
        for text in texts {
            match Pattern::new(&text.value) {
                Ok(pattern) => patterns.push(pattern),
                Err(problem) => {
                    self.error(text.span, format!("invalid pattern: {problem}"), "this pattern", None)
                }
            }
        }
        patterns
    }

    fn path_patterns(&mut self, table: &Table<'_>, key: &'static str) -> Vec<PathPattern> {
        let mut patterns = Vec::new();
        for text in self.condition(table, key) {
            match PathPattern::new(&text.value) {
                Ok(pattern) => patterns.push(pattern),
                Err(problem) => {
                    self.error(text.span, format!("invalid path pattern: {problem}"), "this pattern", None)
                }
            }
        }
        patterns
    }

    /// Parses git verbs. Reports a literal verb or subcommand that guard does not know, because the rule would never
    /// match.
    fn verbs(&mut self, table: &Table<'_>) -> Vec<Pattern> {
        let mut patterns = Vec::new();
        for text in self.condition(table, "verb") {
            let verb = text.value.split(' ').next().unwrap_or_default();
            let is_plain = |text: &str| !text.contains(['*', '?', '[', '{']);
            // guard's table of git options does not list the subcommands of these two verbs.
            let open = matches!(verb, "bisect" | "maintenance");
            if verb == "git" {
                let help = format!("write `{}`", text.value.trim_start_matches("git").trim_start());
                self.error(text.span, "`verb` must not include `git`".into(), "omit `git`", Some(help));
            } else if is_plain(verb) && !is_known_verb(verb) {
                self.unknown_word(text.span, "git verb", verb, known_verbs());
            } else if is_plain(&text.value) && !open && !is_known_verb(&text.value) {
                self.error(
                    text.span,
                    format!("git {verb} has no subcommand `{}`", text.value[verb.len()..].trim_start()),
                    "expected a verb and one of its subcommands",
                    None,
                );
            } else {
                match Pattern::new(&text.value) {
                    Ok(pattern) => patterns.push(pattern),
                    Err(problem) => {
                        self.error(text.span, format!("invalid pattern: {problem}"), "this pattern", None)
                    }
                }
            }
        }
        patterns
    }

    fn flag_names(&mut self, table: &Table<'_>, key: &'static str) -> Vec<String> {
        let texts = self.condition(table, key);
        let about_git = find(table, "verb").is_some();
        let mut flags = Vec::with_capacity(texts.len());
        for text in texts {
            if text.value.contains(['*', '=']) || text.value == "--" {
                let help = "give only the name of the option; match its value with `args`";
                self.error(
                    text.span,
                    format!("`{}` is not the name of an option", text.value),
                    "never matches",
                    Some(help.to_string()),
                );
            } else if about_git && has_long_name(&text.value) {
                let help = "guard compares long names, so that a rule matches every spelling of an option";
                self.error(
                    text.span,
                    "write the long name of this git option".into(),
                    "short form",
                    Some(help.to_string()),
                );
            } else if text.value.starts_with('-') && text.value.len() > 1 {
                flags.push(text.value);
            } else {
                self.error(
                    text.span,
                    "an option must begin with `-`".into(),
                    "not an option",
                    Some("match arguments with `args`".into()),
                );
            }
        }
        flags
    }

    fn effects(&mut self, table: &Table<'_>, key: &'static str) -> Option<Effects> {
        find(table, key)?;
        let texts = self.condition(table, key);
        let mut effects = Effects::NONE;
        for text in texts {
            match Effects::named(&text.value) {
                Some(effect) => effects.add(effect),
                None => self.unknown_word(
                    text.span,
                    "effect class",
                    &text.value,
                    CLASSES.iter().map(|(name, ..)| *name),
                ),
            }
        }
        Some(effects)
    }

    fn examples(&mut self, table: &Table<'_>) -> Vec<Example> {
        let mut examples = Vec::new();
        let Some(value) = find(table, "examples") else { return examples };
        let DeValue::Table(inner) = value.get_ref() else {
            self.wrong_type(value, "a table; write `examples.deny = […]`");
            return examples;
        };
        self.check_keys(inner, keys::EXAMPLES, "examples");
        for action in [Action::Allow, Action::Ask, Action::Deny] {
            let Some(value) = find(inner, action.name()) else { continue };
            let DeValue::Array(list) = value.get_ref() else {
                self.wrong_type(value, "a list of commands");
                continue;
            };
            for item in list {
                let command = match item.get_ref() {
                    DeValue::String(text) => Some(ExampleCommand::Shell(text.to_string())),
                    DeValue::Array(_) => self.list(item).map(|words| {
                        ExampleCommand::Argv(words.into_iter().map(|word| word.value).collect())
                    }),
                    _ => {
                        self.wrong_type(item, "a command: shell text, or a list of arguments");
                        None
                    }
                };
                examples.extend(command.map(|command| Example { action, command, span: item.span() }));
            }
        }
        examples
    }
}

fn find<'t, 'i>(table: &'t Table<'i>, key: &str) -> Option<&'t Spanned<DeValue<'i>>> {
    table.get(key)
}

fn is_inside_the_worktree(text: &str) -> bool {
    let plain = |part: &str| !matches!(part, "" | "." | ".." | ".git");
    text.trim_end_matches('/').split('/').all(plain)
}

/// Returns true if a text is `~/` followed by the path of one file. Wildcards are not accepted, because they could
/// match files that the user has not reviewed.
fn is_file_of_the_home(text: &str) -> bool {
    let is_name = |part: &str| !matches!(part, "" | "." | "..");
    let fits = |byte: u8| !byte.is_ascii_control() && !b"*?[]{}".contains(&byte);
    text.strip_prefix("~/").is_some_and(|rest| rest.split('/').all(is_name) && rest.bytes().all(fits))
}

/// Returns true if a flag is a short option for which git verbs also have a long form, such as `-f` for `--force`.
fn has_long_name(flag: &str) -> bool {
    matches!(flag, "-m" | "-n" | "-f" | "-d" | "-a" | "-q" | "-v" | "-s" | "-F" | "-p" | "-l")
}

/// Returns true if a name consists of 1 to 64 lower-case letters, digits and dashes.
pub(super) fn is_policy_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}
