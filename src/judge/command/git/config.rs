//! Configuration and environment variables that change what git does: which programs it runs, which files it writes,
//! and which repository it uses.

use std::collections::HashMap;

use super::super::arg::Arg;
use super::super::env::Env;
use super::super::intent::Access;
use super::NamedPath;
use super::global_options::{Global, Part};
use crate::judge::command::cwd::Cwd;
use crate::judge::command::effects::Effects;

/// One configuration setting that applies to a command.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) key: Vec<u8>,
    pub(super) value: Arg,
}

/// The settings, besides the verb and its arguments, that change what the git command does.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) list: Vec<Setting>,
    pub(super) cwd: Cwd,
    /// The directory in which the command runs, with every `..` kept, as the kernel receives it; see
    /// [`Global::unresolved_cwd`].
    pub(super) unresolved_cwd: Option<Vec<u8>>,
    /// Whether the command uses another repository in a way that the analysis does not track.
    pub(super) redirected: bool,
    /// Parts of a repository whose paths are set by variables, `--git-dir` or `--work-tree`.
    pub(super) named: Vec<(Part, Arg)>,
    /// Whether git uses hooks other than the repository's, or no hooks at all. This matters for verbs that run hooks.
    pub(super) changes_hooks: bool,
    pub(super) effects: Effects,
    /// Shell texts of the commands that git may run because of these settings.
    pub(super) programs: Vec<Arg>,
    pub(super) writes: Vec<NamedPath>,
}

type Base = [(Vec<u8>, Vec<u8>)];

fn is_relevant(name: &[u8]) -> bool {
    name.starts_with(b"GIT_") || matches!(name, b"EDITOR" | b"VISUAL" | b"PAGER" | b"SSH_ASKPASS")
}

/// Returns true if the value of an environment variable is a command that git runs.
fn names_program(name: &[u8]) -> bool {
    matches!(
        name,
        b"GIT_EDITOR"
            | b"GIT_SEQUENCE_EDITOR"
            | b"GIT_PAGER"
            | b"GIT_EXTERNAL_DIFF"
            | b"GIT_SSH"
            | b"GIT_SSH_COMMAND"
            | b"GIT_ASKPASS"
            | b"GIT_PROXY_COMMAND"
            | b"EDITOR"
            | b"VISUAL"
            | b"PAGER"
            | b"SSH_ASKPASS"
    )
}

/// Disables hooks in the environment of the commands that git starts. Callers do this if hooks are disabled for git
/// itself, because git passes its own `-c` settings to its children.
pub(super) fn hand_on_skipped_hooks(env: &mut Env, base: &Base) {
    const NAME: &[u8] = b"GIT_CONFIG_PARAMETERS";
    const OFF: &[u8] = b"'core.hooksPath=/dev/null'";
    match env.get(base, NAME) {
        None => env.set(NAME, Arg::exact(OFF)),
        Some(known) => {
            // Leave an unknown value as it is: the analysis assumes that such a value disables the hooks.
            if let Some(text) = known.known() {
                env.set(NAME, Arg::exact([text, b" ", OFF].concat()));
            }
        }
    }
}

/// Returns the environment for the analysis of the programs that git starts, without the variables that name programs
/// directly or through configuration. If such a program is git again, the variables would lead the analysis to the same
/// programs without end. An alias that only these variables define is then unknown, and guard denies it.
pub(super) fn without_programs(env: &Env, base: &Base) -> Env {
    let repeats = |name: &[u8]| names_program(name) || name.starts_with(b"GIT_CONFIG_");
    let mut without = env.clone();
    for (name, _) in env.select(base, repeats) {
        without.unset(&name);
    }
    without
}

/// Returns how many bytes a call of [`Settings::from_environment`] counts as, towards the number of bytes that the
/// analysis may examine.
pub(super) fn weight(base: &Base) -> usize {
    let weight = |(name, value): &(Vec<u8>, Vec<u8>)| match is_relevant(name) {
        true => 256 + name.len() + value.len(),
        false => 4,
    };
    base.iter().map(weight).fold(0, usize::saturating_add)
}

impl Settings {
    pub(super) fn from_environment(env: &Env, base: &Base) -> Self {
        let mut settings = Self::default();
        if env.is_untouched() && base.is_empty() {
            return settings;
        }
        let variables = env.select(base, is_relevant);
        for (name, value) in &variables {
            settings.variable(name, value);
        }
        let values: HashMap<&[u8], &Arg> =
            variables.iter().map(|(name, value)| (name.as_slice(), value)).collect();
        let value_of = |wanted: &[u8]| values.get(wanted).copied();
        if let Some(count) = value_of(b"GIT_CONFIG_COUNT") {
            // git rejects counts that it cannot represent. Nobody needs more than a few hundred settings.
            let count =
                count.known().and_then(|text| std::str::from_utf8(text).ok()?.trim().parse::<usize>().ok());
            if count.is_none_or(|count| count > MOST_SETTINGS) {
                // There are too many settings to examine, or their number is unknown until run time. Some of them may
                // disable hooks.
                settings.effects.add(Effects::GIT_FOREIGN_CONFIG.with(Effects::GIT_SKIPS_HOOKS));
            }
            for index in 0..count.unwrap_or(0).min(MOST_SETTINGS) {
                let key = value_of(format!("GIT_CONFIG_KEY_{index}").as_bytes());
                let value = value_of(format!("GIT_CONFIG_VALUE_{index}").as_bytes()).cloned();
                match key.and_then(Arg::known) {
                    Some(key) => settings.configure(key.to_vec(), value.unwrap_or_default()),
                    None => settings.effects.add(Effects::GIT_FOREIGN_CONFIG),
                }
            }
        }
        if let Some(parameters) = value_of(b"GIT_CONFIG_PARAMETERS") {
            match parameters.known().and_then(quoted_settings) {
                Some(list) => {
                    list.into_iter().for_each(|(key, value)| settings.configure(key, Arg::exact(value)))
                }
                None => settings.effects.add(Effects::GIT_FOREIGN_CONFIG.with(Effects::GIT_SKIPS_HOOKS)),
            }
        }
        // With another home directory, git reads another configuration file.
        if env.assigned().iter().any(|name| matches!(name.as_slice(), b"HOME" | b"XDG_CONFIG_HOME")) {
            settings.effects.add(Effects::GIT_FOREIGN_CONFIG);
        }
        settings
    }

    /// Adds the settings in the command's own global options, and sets `cwd` to the directory after `-C` is applied.
    pub(super) fn extend(&mut self, global: Global, env: &Env, base: &Base) {
        self.cwd = global.cwd;
        self.unresolved_cwd = global.unresolved_cwd;
        self.redirected |= global.redirected;
        // An option takes precedence over the environment variable for the same part.
        self.named.retain(|(part, _)| global.named.iter().all(|(given, _)| given != part));
        self.named.extend(global.named);
        if global.foreign_exec_path || global.unknown_config {
            self.effects.add(Effects::GIT_FOREIGN_CONFIG);
        }
        for (key, variable) in global.config_env {
            let value =
                env.get(base, &variable).unwrap_or_else(|| Arg::partial(Vec::new(), &variable, false));
            self.configure(key, value);
        }
        for (key, value) in global.config {
            self.configure(key, value);
        }
    }

    fn variable(&mut self, name: &[u8], value: &Arg) {
        match name {
            b"GIT_DIR" => self.named.push((Part::GitDir, value.clone())),
            b"GIT_WORK_TREE" => self.named.push((Part::WorkTree, value.clone())),
            b"GIT_COMMON_DIR" => self.named.push((Part::CommonDir, value.clone())),
            b"GIT_INDEX_FILE" | b"GIT_OBJECT_DIRECTORY" => {
                self.named.push((Part::Inner, value.clone()));
            }
            // The value is a list of directories. No single path represents it, so record the root directory instead.
            b"GIT_ALTERNATE_OBJECT_DIRECTORIES" => self.named.push((Part::Inner, Arg::from("/"))),
            // With this variable, newer git versions can store refs elsewhere. If the value is only the name of a
            // format, the refs stay in place.
            b"GIT_REFERENCE_BACKEND" if matches!(value.known(), Some(b"files" | b"reftable")) => {}
            b"GIT_NAMESPACE"
            | b"GIT_SHALLOW_FILE"
            | b"GIT_GRAFT_FILE"
            | b"GIT_REPLACE_REF_BASE"
            | b"GIT_REFERENCE_BACKEND" => {
                self.redirected = true;
            }
            b"GIT_CONFIG" | b"GIT_CONFIG_GLOBAL" | b"GIT_CONFIG_SYSTEM" | b"GIT_TEMPLATE_DIR"
                if !matches!(value.known(), Some(b"/dev/null" | b"")) =>
            {
                self.effects.add(Effects::GIT_FOREIGN_CONFIG);
            }
            b"GIT_EXEC_PATH" => self.effects.add(Effects::GIT_FOREIGN_CONFIG),
            // `git submodule` sets this variable for its children. The value 0 only restricts protocols.
            b"GIT_PROTOCOL_FROM_USER" if value.known() == Some(b"0") => {}
            // An empty list of protocols allows none.
            b"GIT_ALLOW_PROTOCOL"
                if value.known().is_some_and(|list| !list.iter().any(u8::is_ascii_alphanumeric)) => {}
            b"GIT_ALLOW_PROTOCOL" | b"GIT_PROTOCOL_FROM_USER" => self.effects.add(Effects::GIT_REMOTE),
            _ if names_program(name) => self.programs.push(value.clone()),
            _ if value.prefix().starts_with(b"/")
                && (name.starts_with(b"GIT_TRACE") || name.starts_with(b"GIT_REDIRECT_")) =>
            {
                self.writes.push((value.clone(), Access::Write));
            }
            _ => {}
        }
    }

    fn configure(&mut self, key: Vec<u8>, value: Arg) {
        match use_of(&key) {
            // Coding agents switch these features off when they query a repository, so that git starts no other
            // program.
            Use::Maintenance | Use::Remote if switches_off(&key, &value) => {}
            Use::Program => self.programs.push(value.clone()),
            Use::ProgramUnlessBoolean if !is_boolean(value.prefix()) => self.programs.push(value.clone()),
            Use::ShellProgram => {
                if let Some(b'!') = value.prefix().first() {
                    self.programs.push(value.skip(1));
                }
            }
            Use::Hooks => self.changes_hooks = true,
            Use::Redirect => self.redirected = true,
            // The file may contain any setting, also one that skips the hooks.
            Use::Include => {
                self.effects.add(Effects::GIT_FOREIGN_CONFIG);
                self.changes_hooks = true;
            }
            Use::Maintenance => self.effects.add(Effects::GIT_OBJECTS),
            Use::Remote => self.effects.add(Effects::GIT_REMOTE),
            Use::WritesTo => self.writes.push((value.clone(), Access::Write)),
            Use::ProgramUnlessBoolean | Use::Other => {}
        }
        self.list.push(Setting { key, value });
    }
}

/// The maximum number of settings in the environment that the analysis examines individually.
const MOST_SETTINGS: usize = 512;

/// Parses `'key=value' 'key'='value' …`, the form in which git passes `-c` settings to its children. Returns `None` if
/// the text does not have that form.
fn quoted_settings(text: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    /// Parses one quoted string, in which `'\''` stands for a quote. Returns the string and the rest of the text.
    fn quoted(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
        let mut rest = text.strip_prefix(b"'")?;
        let mut out = Vec::new();
        loop {
            let end = rest.iter().position(|&byte| byte == b'\'')?;
            out.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            match rest.strip_prefix(b"\\").filter(|after| matches!(after.first(), Some(b'\'' | b'!'))) {
                Some(after) => {
                    out.push(after[0]);
                    rest = after[1..].strip_prefix(b"'")?;
                }
                None => return Some((out, rest)),
            }
        }
    }
    let mut list = Vec::new();
    let mut rest = text.trim_ascii();
    while !rest.is_empty() {
        let (first, after) = quoted(rest)?;
        rest = after;
        if let Some(after) = rest.strip_prefix(b"=") {
            let (value, after) =
                if after.starts_with(b"'") { quoted(after)? } else { (b"true".to_vec(), after) };
            list.push((first, value));
            rest = after;
        } else {
            let equals = first.iter().position(|&byte| byte == b'=');
            let (key, value) =
                equals.map_or((first.as_slice(), b"true".as_slice()), |at| (&first[..at], &first[at + 1..]));
            // In this form git ignores white space around the key.
            list.push((key.trim_ascii().to_vec(), value.to_vec()));
        }
        rest = rest.trim_ascii_start();
    }
    Some(list)
}

/// What git does with the value of a configuration key.
enum Use {
    /// The value is a command that git runs.
    Program,
    /// The value is a command that git runs, unless it is a boolean.
    ProgramUnlessBoolean,
    /// If the value begins with `!`, the rest of it is a command that git runs.
    ShellProgram,
    /// The key determines which hooks git runs: their directory, or whether one of them is enabled.
    Hooks,
    /// The key selects another working tree.
    Redirect,
    /// The key makes git read further configuration from a file.
    Include,
    /// The key determines when objects are packed and pruned.
    Maintenance,
    /// The key determines where and how git reaches other repositories.
    Remote,
    /// The value is a directory that git writes to.
    WritesTo,
    Other,
}

fn use_of(key: &[u8]) -> Use {
    let key = key.to_ascii_lowercase();
    let section = key.split(|&byte| byte == b'.').next().unwrap_or_default();
    let name = key.rsplit(|&byte| byte == b'.').next().unwrap_or_default();
    match (section, name) {
        (b"core", b"fsmonitor") => Use::ProgramUnlessBoolean,
        (b"core", b"hookspath") => Use::Hooks,
        (b"core", b"worktree") => Use::Redirect,
        (
            b"core",
            b"pager" | b"editor" | b"sshcommand" | b"askpass" | b"gitproxy" | b"alternaterefscommand",
        ) => Use::Program,
        (b"sequence", b"editor") | (b"diff", b"external" | b"command" | b"textconv") => Use::Program,
        (b"pager", _) => Use::ProgramUnlessBoolean,
        (b"difftool" | b"mergetool" | b"browser" | b"man" | b"guitool", b"cmd" | b"path") => Use::Program,
        (b"merge", b"driver") | (b"filter", b"clean" | b"smudge" | b"process") => Use::Program,
        (b"gpg", b"program" | b"defaultkeycommand") | (b"interactive", b"difffilter") => Use::Program,
        (b"trailer", b"command" | b"cmd") | (b"uploadpack", b"packobjectshook") => Use::Program,
        (b"tar", b"command") | (b"web", b"browser") | (b"instaweb", b"httpd" | b"browser") => Use::Program,
        (b"remote", b"uploadpack" | b"receivepack") => Use::Program,
        (b"sendemail", b"sendmailcmd" | b"tocmd" | b"cccmd" | b"headercmd" | b"smtpserver") => Use::Program,
        (b"credential", b"helper") | (b"submodule", b"update") => Use::ShellProgram,
        (b"hook", b"command") => Use::Program,
        // These keys determine which of the hooks in the configuration git runs, and when.
        (b"hook", b"enabled" | b"event") => Use::Hooks,
        (b"gc" | b"maintenance", _) => Use::Maintenance,
        (b"remote", b"url" | b"pushurl" | b"vcs" | b"promisor")
        | (b"url", b"insteadof" | b"pushinsteadof") => Use::Remote,
        (b"protocol" | b"extensions", _) => Use::Remote,
        (b"format", b"outputdirectory") => Use::WritesTo,
        (b"include" | b"includeif", b"path") | (b"init", b"templatedir") => Use::Include,
        _ => Use::Other,
    }
}

/// Returns true if a setting switches automatic packing off, or forbids a protocol.
fn switches_off(key: &[u8], value: &Arg) -> bool {
    let value = value.known().unwrap_or(b"?").to_ascii_lowercase();
    match key.to_ascii_lowercase().as_slice() {
        b"gc.auto" | b"maintenance.auto" => matches!(value.as_slice(), b"0" | b"false" | b"no" | b"off"),
        key => key.starts_with(b"protocol.") && key.ends_with(b".allow") && value == b"never",
    }
}

fn is_boolean(value: &[u8]) -> bool {
    let value = value.to_ascii_lowercase();
    matches!(value.as_slice(), b"" | b"true" | b"false" | b"yes" | b"no" | b"on" | b"off" | b"0" | b"1")
}
