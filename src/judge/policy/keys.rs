//! The format of a policy file: every key, its kind and its meaning, in one table.
//!
//! The parser checks files against this table, and guard generates the published JSON Schema from it, so the two
//! always agree. For each section, the `section!` macro also generates the struct that the merge destructures.

use super::parse::{Reader, Table};

/// One key of a TOML table in a policy file.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// The description of the key, in one or two sentences, for editors and documentation.
    pub(super) doc: &'static str,
}

/// The type of a key's value.
pub(super) enum Kind {
    /// A string.
    Text,
    /// A string or a list of strings.
    Texts,
    /// A list of strings.
    List,
    Ports,
    /// `true` or `false`.
    Flag,
    /// A whole number in a range.
    Number(i64, i64),
    /// An amount of money, with a fraction.
    Amount,
    /// `allow`, `ask` or `deny`.
    Action,
    /// A string that must be one of these keywords.
    Choice(&'static [&'static str]),
    /// A list of these keywords. The second field is what messages call one keyword, such as `toolchain`.
    Choices(&'static [&'static str], &'static str),
    /// The name of an effect class, or a list of names.
    Effects,
    /// A list of commands, each as shell text or as an argv.
    Commands,
    /// A table from names to strings.
    Map,
    /// A table with these keys.
    Table(&'static [Field]),
    /// `[[…]]`: a list of tables with these keys.
    Tables(&'static [Field]),
}

const fn field(name: &'static str, kind: Kind, doc: &'static str) -> Field {
    Field { name, kind, doc }
}

/// The Rust type of a key's value for each [`Kind`].
mod value {
    use super::super::model;
    use crate::judge::policy::parse::Located;

    pub(in crate::judge::policy) type List = Located<Vec<Located<String>>>;
    pub(in crate::judge::policy) type Ports = List;
    pub(in crate::judge::policy) type Choices = List;
    pub(in crate::judge::policy) type Text = Located<String>;
    pub(in crate::judge::policy) type Choice = Located<String>;
    pub(in crate::judge::policy) type Flag = Located<bool>;
    pub(in crate::judge::policy) type Number = Located<i64>;
    pub(in crate::judge::policy) type Amount = Located<i64>;
    pub(in crate::judge::policy) type Action = Located<model::Action>;
    pub(in crate::judge::policy) type Map = Vec<(Located<String>, String)>;
}

/// Declares a section: its table of keys, and the struct with the parsed value of each key. The merge destructures that
/// struct without `..`, so a key that is not merged fails to compile.
macro_rules! section {
    (
        $(#[$doc:meta])*
        $table:ident, $section:ident, $name:literal {
            $($key:ident: $kind:ident $(($($argument:expr),+))?, $key_doc:literal;)+
        }
    ) => {
        pub(super) static $table: &[Field] =
            &[$(field(stringify!($key), Kind::$kind $(($($argument),+))?, $key_doc),)+ OVERRIDE_SECTION];

        $(#[$doc])*
        #[derive(Debug, Default)]
        pub(super) struct $section {
            $(pub(super) $key: Option<value::$kind>,)+
            pub(super) overrides: bool,
        }

        impl $section {
            pub(super) fn parse(reader: &mut Reader<'_>, file: &Table<'_>) -> Self {
                let Some(table) = reader.section_table(file, $name, $table) else { return Self::default() };
                Self {
                    $($key: reader.section_key(
                        table, $name, stringify!($key), &Kind::$kind $(($($argument),+))?,
                    ),)+
                    overrides: reader.section_overrides(table),
                }
            }
        }
    };
}

const OVERRIDE_SECTION: Field = field(
    "override",
    Kind::Flag,
    "Let this section grant more than the extended policy. `guard policy lint` lists it.",
);

pub(super) static POLICY: &[Field] = &[
    field("version", Kind::Number(1, 1), "The version of the policy format. It must be 1."),
    field("name", Kind::Text, "The policy's name: at most 64 lower-case letters, digits and dashes."),
    field("description", Kind::Text, "What the policy is for, in a sentence."),
    field(
        "extends",
        Kind::Text,
        "The policy that this one extends: a name, or a path that ends in `.toml`. A policy allows more than the one that it extends only by `override` and `lifts`.",
    ),
    field(
        "default_action",
        Kind::Action,
        "The action for programs that no rule matches. Default: `allow`. A policy that extends another can only tighten it.",
    ),
    field("filesystem", Kind::Table(FILESYSTEM), "What the agent's processes may read and write."),
    field("network", Kind::Table(NETWORK), "Which hosts the agent's processes may reach."),
    field("environment", Kind::Table(ENVIRONMENT), "Which environment variables the agent's processes get."),
    field("limits", Kind::Table(LIMITS), "Limits of time and resources."),
    field("budget", Kind::Table(BUDGET), "Limits for the use of a model's API."),
    field("sandbox", Kind::Table(SANDBOX), "How the sandbox is built."),
    field("home", Kind::Table(HOME), "The run's private home directory."),
    field(
        "toolchains",
        Kind::Table(TOOLCHAINS),
        "Toolchains and package caches in the user's home directory.",
    ),
    field("worktree", Kind::Table(WORKTREE), "The worktree of a run."),
    field("git", Kind::Table(GIT), "git in the run's repository."),
    field(
        "command",
        Kind::Tables(COMMAND),
        "Rules. A matching `deny` beats `ask`, which beats `allow`. If several matching rules have the same action, the message names the first of them.",
    ),
];

section! {
    FILESYSTEM, FilesystemSection, "filesystem" {
        read: List,
            "Directories and files the run may read: absolute paths, `{worktree}`, `{home}` (the run's private home directory), `{tmp}`, `{system}`, `{toolchains}`, `{artifact}` (the documents that a step of a task writes).";
        write: List,
            "Directories and files the run may write, in the same form as for `read`.";
        execute: List,
            "Directories and files from which programs may be started. Default: everything the run may read or write.";
    }
}

section! {
    NETWORK, NetworkSection, "network" {
        allow: List,
            "Hosts the run may reach: `name`, `*.suffix`, `10.0.0.0/8`, with optional ports (`:443`, `:80,443`, `:8000-8100`, `:*`; default 80 and 443). `GET,HEAD name/path` allows only such plain HTTP requests; `raw name:22` allows a connection that is not TLS. guard refuses a name that resolves to a private address, unless that address is listed too or `resolve` assigns it to the name.";
        deny: List,
            "Hosts the run may not reach, even if `allow` matches them. The format is the same as in `allow`.";
        presets: Choices(&super::preset::PRESET_NAMES, "preset"),
            "Named sets of hosts and gateways; `guard policy presets` lists them.";
        resolve: Map,
            "Fixed addresses of host names, which guard uses instead of DNS: `\"git.example.org\" = \"10.1.2.3\"`.";
        loopback: Flag,
            "Let the run start servers on any loopback port and connect to them.";
        listen: Ports,
            "Ports that servers of the run may use, on loopback only: `0.0.0.0` and `::` become loopback. Not needed with `loopback = true`.";
    }
}

section! {
    ENVIRONMENT, EnvironmentSection, "environment" {
        pass: List,
            "Names of variables to pass to the run; `*` matches any text.";
        set: Map,
            "Variables with fixed values.";
        redact: List,
            "Names of variables whose values are redacted in transcripts; `*` matches any text.";
    }
}

section! {
    LIMITS, LimitsSection, "limits" {
        idle_seconds: Number(0, 86_400),
            "End a run that has been idle for this long; 0 means no limit. Not enforced if standard input is a terminal.";
        total_seconds: Number(0, 604_800),
            "End a run after this long; 0 means no limit. Not enforced if standard input is a terminal.";
        processes: Number(1, 65_536),
            "The maximum number of processes at once.";
        open_files: Number(16, 1_048_576),
            "The maximum number of open files per process.";
        memory_mib: Number(16, 16_777_216),
            "The maximum memory of the whole run, at most three quarters of the machine's. Enforced where guard can create a cgroup.";
        file_mib: Number(1, 16_777_216),
            "The maximum size of a file that the run writes.";
        output_mib: Number(1, 1_048_576),
            "The maximum amount of output that guard records in the transcript.";
        connections: Number(1, 65_536),
            "The maximum number of network connections at once. Default: 512.";
        upload_mib: Number(1, 16_777_216),
            "The maximum amount of data that the whole run may send over the network.";
        download_mib: Number(1, 16_777_216),
            "The maximum amount of data that the whole run may receive over the network.";
        network_kib_per_second: Number(1, 16_777_216),
            "The maximum network bandwidth, both directions together.";
        command_bytes: Number(1024, 67_108_864),
            "The size in bytes of the largest command that guard analyses; guard denies larger commands.";
        command_depth: Number(4, 64),
            "The deepest nesting of brackets, substitutions and wrapped commands that guard analyses; guard denies commands with deeper nesting.";
    }
}

section! {
    BUDGET, BudgetSection, "budget" {
        max_tokens: Number(1, 1_000_000_000_000),
            "The maximum number of tokens, input and output together.";
        max_requests: Number(1, 1_000_000_000),
            "The maximum number of requests to a model.";
        max_cost: Amount,
            "The maximum cost, by the prices in `config.toml`. guard refuses requests to a model without a price.";
    }
}

section! {
    SANDBOX, SandboxSection, "sandbox" {
        namespaces: Choice(&["auto", "require", "off"]),
            "`auto` (default): use namespaces where the machine allows them. `require`: do not run without them. `off`: do not use them.";
        verify_exec: Flag,
            "Check every program a second time after its exec, before it runs, so that a thread cannot swap the arguments between check and exec. Default: `true`.";
    }
}

section! {
    HOME, HomeSection, "home" {
        import: List,
            "Files of the user's home directory to copy into the private one, such as `~/.gitconfig`. No patterns. Default: none.";
    }
}

section! {
    TOOLCHAINS, ToolchainsSection, "toolchains" {
        detect: Choices(&super::model::TOOLCHAINS, "toolchain"),
            "Toolchains to find in the user's home directory, which the run may then read and execute. Default: all; `[]` means none.";
        caches: Choice(&["shared", "private"]),
            "`shared` (default): the run reads the user's package caches, under a private writable layer. `private`: the run has empty caches.";
    }
}

section! {
    WORKTREE, WorktreeSection, "worktree" {
        root: Text,
            "The directory for worktrees: absolute, or relative to the repository. Default: `../.worktrees`.";
        copy: List,
            "Untracked files and directories of the user's working tree to copy into the worktree, such as `.env.test`.";
        link_readonly: List,
            "Untracked files and directories of the user's working tree that the run may read, through a link.";
    }
}

section! {
    GIT, GitSection, "git" {
        default_action: Action,
            "The action for git commands that no rule matches. Default: `deny`.";
        other_action: Choice(&["allow", "ask", "deny"]),
            "The action for git in repositories that the run creates itself, such as a test's in `$TMPDIR`. There only rules about programs, files and variables apply, and those that name the effect `git.other`. Default: `deny`.";
        branch_prefix: Text,
            "The prefix of the names of runs' branches; it must end in `/`. Default: `task/`.";
        trailers: List,
            "Trailers to add to the agent's commits, each as `Name: value`.";
        sign: Flag,
            "Sign the agent's commits. Default: `false`.";
        identity: Text,
            "The author of the agent's commits, `Name <mail>`. Default: the user.";
        hooks: Flag,
            "Run the user's hooks for the agent's commits. Default: `true`.";
        receive_mib: Number(1, 1_048_576),
            "The maximum size of the commits that guard receives from a run, in MiB of packed objects. Default: 512.";
    }
}

pub(super) static COMMAND: &[Field] = &[
    field("id", Kind::Text, "The rule's name in messages, unique in a policy: `git.switch`."),
    field("action", Kind::Action, "The action for a command that the rule matches."),
    field("reason", Kind::Text, "Why the rule exists, shown to the agent and to the user."),
    field("instead", Kind::Text, "What to do instead, shown with the reason."),
    field(
        "program",
        Kind::Texts,
        "Names of programs (`*` matches any text), or paths if they contain a slash.",
    ),
    field(
        "verb",
        Kind::Texts,
        "git verbs, after aliases: `checkout`, `stash pop`, `remote *`. Implies `program = \"git\"`.",
    ),
    field(
        "subcommand",
        Kind::Texts,
        "The rule matches only if one of these is the first argument that is not an option (`publish` in `npm publish`).",
    ),
    field(
        "flags",
        Kind::Texts,
        "The rule matches only if the command has one of these options. For git, write full names: `--amend` also matches the abbreviation `--amen`.",
    ),
    field("unless_flags", Kind::Texts, "The rule matches only if the command has none of these options."),
    field("args", Kind::Texts, "The rule matches only if an argument matches one of these patterns."),
    field("unless_args", Kind::Texts, "The rule matches only if no argument matches any of these patterns."),
    field(
        "paths",
        Kind::Texts,
        "The rule matches only if the command uses a file that one of these patterns matches: `/etc/**`, `**/.git/**`, `~/.ssh/**`. `{outside}` matches files that the command writes outside the directories that the run may write.",
    ),
    field(
        "unless_paths",
        Kind::Texts,
        "The rule does not match if guard knows at least one file that the command uses, and every known file matches one of these patterns.",
    ),
    field(
        "access",
        Kind::Choice(&["read", "write", "any"]),
        "Whether `paths` and `unless_paths` consider only files that the command reads, only files that it writes, or both. Default: `any`.",
    ),
    field("effects", Kind::Effects, "The rule matches only if the command has one of these effects."),
    field(
        "only_effects",
        Kind::Effects,
        "The rule matches only if the command has no other effects than these.",
    ),
    field(
        "variables",
        Kind::Texts,
        "The rule matches only if one of these variables is set for this command alone, as in `NAME=VALUE git commit`.",
    ),
    field(
        "refs",
        Kind::Texts,
        "The rule matches only if the command would create, move or delete a git ref that one of these patterns matches. A rule that denies or asks also matches if guard cannot tell which refs the command changes, as with `git update-ref --stdin`. A rule that allows matches only if the patterns match all of them.",
    ),
    field(
        "override",
        Kind::Flag,
        "Replace the rule with this id in the extended policy, or loosen its default action. `guard policy lint` lists it.",
    ),
    field(
        "lifts",
        Kind::Texts,
        "Ids of rules in the extended policy that do not apply to a command this rule matches. Only for rules with `allow` or `ask`. Loosens the extended policy, as `override` does; `guard policy lint` lists it.",
    ),
    field(
        "examples",
        Kind::Table(EXAMPLES),
        "Commands with the decision they must get. guard checks them whenever it loads the policy.",
    ),
];

pub(super) static EXAMPLES: &[Field] = &[
    field("allow", Kind::Commands, "Commands that this policy must allow."),
    field("ask", Kind::Commands, "Commands that this policy must ask about."),
    field("deny", Kind::Commands, "Commands that this policy must deny."),
];

/// Returns the known name that is most similar to the written one, for "did you mean" hints; `None` if no known name is
/// similar enough.
pub(crate) fn nearest<'a>(written: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = written.chars().count() / 3 + 1;
    let distance = |name: &str| strsim::damerau_levenshtein(&written.to_lowercase(), name);
    // A very long word is not a typing error, and the comparison would be slow.
    if written.len() > 64 {
        return None;
    }
    known.map(|name| (distance(name), name)).filter(|(edits, _)| *edits <= limit).min().map(|(_, name)| name)
}
