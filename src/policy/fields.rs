//! The format of a policy file: every key, its kind and its meaning, in one table.
//!
//! The reader checks files against it and the published JSON Schema is made from it, so the two cannot differ. For each
//! section the table also makes the struct that the merge takes apart.

use super::reader::{Reader, Table};

/// One key of a table.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// One or two sentences for editors and documentation.
    pub(super) doc: &'static str,
}

/// What a key holds.
pub(super) enum Kind {
    /// A string.
    Text,
    /// A string or a list of strings.
    Texts,
    /// A list of strings.
    List,
    /// A list of port numbers.
    Ports,
    /// `true` or `false`.
    Flag,
    /// A whole number in a range.
    Number(i64, i64),
    /// An amount of money, with a fraction.
    Amount,
    /// `allow`, `ask` or `deny`.
    Action,
    /// One of a few words.
    Choice(&'static [&'static str]),
    /// A list of a few words; what one of them is, for messages.
    Choices(&'static [&'static str], &'static str),
    /// Effect classes by name.
    Effects,
    /// Commands: shell text, or lists of words.
    Commands,
    /// Names to strings.
    Map,
    /// A table with keys of its own.
    Table(&'static [Field]),
    /// `[[…]]`: tables with keys of their own.
    Tables(&'static [Field]),
}

const fn field(name: &'static str, kind: Kind, doc: &'static str) -> Field {
    Field { name, kind, doc }
}

/// The value of a key in a file, by its kind.
mod value {
    use super::super::model;
    use super::super::reader::At;

    pub(in crate::policy) type List = At<Vec<At<String>>>;
    pub(in crate::policy) type Ports = List;
    pub(in crate::policy) type Choices = List;
    pub(in crate::policy) type Text = At<String>;
    pub(in crate::policy) type Choice = At<String>;
    pub(in crate::policy) type Flag = At<bool>;
    pub(in crate::policy) type Number = At<i64>;
    pub(in crate::policy) type Amount = At<i64>;
    pub(in crate::policy) type Action = At<model::Action>;
    pub(in crate::policy) type Map = Vec<(At<String>, String)>;
}

/// Declares a section: its table of keys, and the struct that holds what a file says for each key. The merge takes that
/// struct apart without `..`, so a key that is not merged does not compile.
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
    "Let this section grant more than the policy it extends. Shown by `guard policy lint`.",
);

pub(super) static POLICY: &[Field] = &[
    field("version", Kind::Number(1, 1), "The version of this format: 1."),
    field("name", Kind::Text, "The policy's name. Lower-case letters, digits and dashes."),
    field("description", Kind::Text, "What the policy is for, in a sentence."),
    field("extends", Kind::Text, "The policy this one tightens: a name, or a path ending in `.toml`."),
    field(
        "default_action",
        Kind::Action,
        "What happens to programs that no rule speaks of. `allow` unless given; an extending policy can only tighten it.",
    ),
    field("filesystem", Kind::Table(FILESYSTEM), "What the agent's processes may read and write."),
    field("network", Kind::Table(NETWORK), "Which hosts they may reach."),
    field("environment", Kind::Table(ENVIRONMENT), "Which variables they get."),
    field("limits", Kind::Table(LIMITS), "How long and how much."),
    field("budget", Kind::Table(BUDGET), "How much of a model's API."),
    field("sandbox", Kind::Table(SANDBOX), "How the sandbox is built."),
    field("home", Kind::Table(HOME), "The run's own, private home."),
    field("toolchains", Kind::Table(TOOLCHAINS), "Compilers and package caches of the user's home."),
    field("worktree", Kind::Table(WORKTREE), "The working tree of a task."),
    field("git", Kind::Table(GIT), "git in the task's repository."),
    field(
        "command",
        Kind::Tables(COMMAND),
        "Rules, in order. A matching `deny` beats `ask` beats `allow`; of equals the first is named.",
    ),
];

section! {
    /// `[filesystem]`.
    FILESYSTEM, FilesystemSection, "filesystem" {
        read: List,
            "Folders and files that may be read. `{worktree}`, `{home}` (the run's own), `{tmp}`, `{system}`, `{toolchains}`, `{artifact}` (a role's document) and absolute paths.";
        write: List,
            "Folders and files that may be written.";
        execute: List,
            "Programs may be started only from these. Unless given, from everything that may be read or written.";
    }
}

section! {
    /// `[network]`.
    NETWORK, NetworkSection, "network" {
        allow: List,
            "Hosts that may be reached: `name`, `*.suffix`, `10.0.0.0/8`, each with ports (`:443`, `:80,443`, `:8000-8100`, `:*`; 80 and 443 unless given). `GET,HEAD name/path` allows only such requests in the clear, `raw name:22` a connection that is not TLS. Addresses of private nets are reached only when they are named as such.";
        deny: List,
            "Hosts that may not be reached, whatever allows them; written like `allow`.";
        presets: Choices(&super::preset::PRESET_NAMES, "preset"),
            "Hosts and gateways by name: what `guard policy presets` lists.";
        resolve: Map,
            "Addresses of names, instead of what DNS says: `\"git.example.org\" = \"10.1.2.3\"`.";
        loopback: Flag,
            "Whether servers the agent starts on loopback may be reached by it.";
        listen: Ports,
            "Ports that servers of the run may listen on, on loopback only: `0.0.0.0` and `::` are narrowed to it. Not needed with `loopback = true`, which allows every port.";
    }
}

section! {
    /// `[environment]`.
    ENVIRONMENT, EnvironmentSection, "environment" {
        pass: List,
            "Names (with `*`) of variables handed to the agent.";
        set: Map,
            "Variables with fixed values.";
        redact: List,
            "Names (with `*`) of variables whose values never reach a record.";
    }
}

section! {
    /// `[limits]`.
    LIMITS, LimitsSection, "limits" {
        idle_seconds: Number(0, 86_400),
            "End a run that has been silent for so long; 0 is never. Not in force when standard input is a terminal.";
        total_seconds: Number(0, 604_800),
            "End a run after so long; 0 is never. Not in force when standard input is a terminal.";
        processes: Number(1, 65_536),
            "Processes alive at once.";
        open_files: Number(16, 1_048_576),
            "Open files per process.";
        memory_mib: Number(16, 16_777_216),
            "Memory of the whole run, at most three quarters of the machine's; in force where a cgroup can be made.";
        file_mib: Number(1, 16_777_216),
            "Size of one written file.";
        output_mib: Number(1, 1_048_576),
            "Output of a run that is kept.";
        connections: Number(1, 65_536),
            "Connections to the network at once. 512 unless given.";
        upload_mib: Number(1, 16_777_216),
            "Sent to the network by the whole run.";
        download_mib: Number(1, 16_777_216),
            "Received from the network by the whole run.";
        network_kib_per_second: Number(1, 16_777_216),
            "The speed of the network, both ways together.";
        command_bytes: Number(1024, 67_108_864),
            "Largest command that is analysed; a larger one is denied.";
        command_depth: Number(4, 64),
            "Deepest nesting of a command; a deeper one is denied.";
    }
}

section! {
    /// `[budget]`.
    BUDGET, BudgetSection, "budget" {
        max_tokens: Number(1, 1_000_000_000_000),
            "Tokens of a model, questions and answers together.";
        max_requests: Number(1, 1_000_000_000),
            "Requests to a model.";
        max_cost: Amount,
            "Money, by the prices in the user's `config.toml`; a model without a price is then not asked.";
    }
}

section! {
    /// `[sandbox]`.
    SANDBOX, SandboxSection, "sandbox" {
        namespaces: Choice(&["auto", "require", "off"]),
            "`auto` (unless given): namespaces of the run's own where the machine allows them. `require`: no run without them. `off`: none.";
        verify_exec: Flag,
            "Judge a program again at its exec stop, so that a racing thread wins nothing. `true` unless given.";
    }
}

section! {
    /// `[home]`.
    HOME, HomeSection, "home" {
        import: List,
            "Files of the user's home that are copied into the run's: `~/.gitconfig`. They are named in full, and none unless given.";
    }
}

section! {
    /// `[toolchains]`.
    TOOLCHAINS, ToolchainsSection, "toolchains" {
        detect: Choices(&super::model::TOOLCHAINS, "toolchain"),
            "Toolchains in the user's home that are found and granted read-only; all unless given, `[]` for none.";
        caches: Choice(&["shared", "private"]),
            "`shared` (unless given): the user's package caches can be read, under a writable layer of the run's own. `private`: empty caches of the run's own.";
    }
}

section! {
    /// `[worktree]`.
    WORKTREE, WorktreeSection, "worktree" {
        root: Text,
            "The folder for the worktrees of tasks: absolute, or from the repository's folder. `../.worktrees` unless given.";
        copy: List,
            "Untracked files and folders of the user's worktree that a task gets a copy of: `.env.test`, `node_modules`.";
        link_readonly: List,
            "Untracked files and folders of the user's worktree that a task can read, through a link.";
    }
}

section! {
    /// `[git]`.
    GIT, GitSection, "git" {
        default_action: Action,
            "What happens to git commands that no rule speaks of. `deny` unless given.";
        other_action: Choice(&["allow", "ask", "deny"]),
            "What happens to git in repositories that are made inside the run's own places (a test's, in `$TMPDIR`): there only rules about programs, files and variables hold, and those that name the effect `git.other`. `deny` unless given.";
        branch_prefix: Text,
            "What the branches of tasks begin with.";
        trailers: List,
            "Trailers added to the agent's commits.";
        sign: Flag,
            "Whether the agent's commits are signed.";
        identity: Text,
            "Who the agent's commits are by, `Name <mail>`; the user unless given.";
        hooks: Flag,
            "Whether the user's hooks run for the agent's commits. `true` unless given.";
        receive_mib: Number(1, 1_048_576),
            "The most that is received from a run, in MiB of packed objects. 512 unless given.";
    }
}

pub(super) static COMMAND: &[Field] = &[
    field("id", Kind::Text, "The rule's name in messages, unique in a policy: `git.switch`."),
    field("action", Kind::Action, "What happens to a command the rule matches."),
    field("reason", Kind::Text, "Why, in words the agent and people read."),
    field("instead", Kind::Text, "What to do instead."),
    field(
        "program",
        Kind::Texts,
        "Names of programs (`*` for any text), or paths when they contain a slash.",
    ),
    field(
        "verb",
        Kind::Texts,
        "git verbs, after aliases: `checkout`, `stash pop`, `remote *`. Implies `program = \"git\"`.",
    ),
    field(
        "subcommand",
        Kind::Texts,
        "The first word that is no option, of programs that have such (`npm publish`, `apt install`).",
    ),
    field(
        "flags",
        Kind::Texts,
        "Any of these options is given. git's are full names (`--amend` also matches `--amen`).",
    ),
    field("unless_flags", Kind::Texts, "None of these options is given."),
    field("args", Kind::Texts, "Any argument matches one of these patterns."),
    field("unless_args", Kind::Texts, "No argument matches any of these patterns."),
    field(
        "paths",
        Kind::Texts,
        "A file the command is known to use matches: `/etc/**`, `**/.git/**`, `~/.ssh/**`. `{outside}` is everything that it writes and that is below nothing the run may write.",
    ),
    field(
        "unless_paths",
        Kind::Texts,
        "Not when every file it is known to use in that way matches one of these.",
    ),
    field(
        "access",
        Kind::Choice(&["read", "write", "any"]),
        "Which use of `paths` counts: `any` unless given.",
    ),
    field("effects", Kind::Effects, "The command has any of these effects."),
    field("only_effects", Kind::Effects, "The command has no effects but these."),
    field("variables", Kind::Texts, "Any of these variables is set just for the command."),
    field("refs", Kind::Texts, "It would create, move or delete a ref that matches."),
    field(
        "override",
        Kind::Flag,
        "Replace the rule of this id in the policy extended, or lift its default action. Shown by `guard policy lint`.",
    ),
    field(
        "examples",
        Kind::Table(EXAMPLES),
        "Commands with the decision they must get; checked whenever the policy loads.",
    ),
];

pub(super) static EXAMPLES: &[Field] = &[
    field("allow", Kind::Commands, "Commands this policy allows."),
    field("ask", Kind::Commands, "Commands this policy asks about."),
    field("deny", Kind::Commands, "Commands this policy denies."),
];

/// The name of a known key or word that is close to what was written.
pub(crate) fn nearest<'a>(written: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = written.chars().count() / 3 + 1;
    let distance = |name: &str| strsim::damerau_levenshtein(&written.to_lowercase(), name);
    // A very long word is nobody's slip of the finger.
    if written.len() > 64 {
        return None;
    }
    known.map(|name| (distance(name), name)).filter(|(edits, _)| *edits <= limit).min().map(|(_, name)| name)
}
