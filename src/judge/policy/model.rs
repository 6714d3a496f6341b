//! The merged and checked policy, as the other modules use it.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::diagnostic::{Diagnostic, Location, Source};
use super::pattern::{PathPattern, Pattern};
use crate::judge::command::{Effects, Limits as CommandLimits};

/// The decision about a command, ordered from loose to tight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Allow,
    /// guard asks the user; without a terminal to ask on, it denies the command.
    Ask,
    Deny,
}

impl Action {
    /// Returns the keyword used in policies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }

    /// Parses the keyword used in policies; `None` for any other word.
    pub(super) fn named(word: &str) -> Option<Self> {
        [Self::Allow, Self::Ask, Self::Deny].into_iter().find(|known| known.name() == word)
    }
}

/// Toolchains that guard can detect in the user's home directory.
pub const TOOLCHAINS: [&str; 5] = ["rust", "node", "python", "go", "java"];

/// A policy, merged with all policies that it extends.
#[derive(Debug, Clone)]
pub struct Policy {
    pub name: String,
    pub description: String,
    /// The names of the policies that this policy extends, nearest first.
    pub extends: Vec<String>,
    /// The texts of the policy files from which this policy was merged, beginning with the one that extends no other.
    pub sources: Vec<Source>,
    /// The action for programs that no rule matches.
    pub default_action: DefaultAction,
    /// The action for git commands that no rule matches.
    pub git_default_action: DefaultAction,
    /// The action for git commands that no rule matches, in repositories that the run itself has created in its
    /// private directories.
    pub git_other_action: DefaultAction,
    /// All rules. Those of extended policies come before this policy's own. A rule with `override` has the position of
    /// the rule that it replaces.
    pub rules: Vec<Rule>,
    pub filesystem: Filesystem,
    pub network: Network,
    pub environment: Environment,
    pub limits: Limits,
    pub budget: Budget,
    pub sandbox: Sandbox,
    pub home: Home,
    pub toolchains: Toolchains,
    pub worktree: Worktree,
    pub git: Git,
    /// Warnings and notes from loading. None of them prevents the use of the policy.
    pub remarks: Vec<Diagnostic>,
}

/// A default action, and which policy file sets it.
#[derive(Debug, Clone)]
pub struct DefaultAction {
    pub action: Action,
    /// Where a policy file sets the action; `None` if the action is guard's built-in default.
    pub place: Option<Place>,
}

/// The byte range of a setting or a rule in one of the policy's source files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The index of the source in [`Policy::sources`].
    pub source: usize,
    /// The byte range in the text of the source file.
    pub span: Range<usize>,
}

#[derive(Debug, Clone)]
pub struct Rule {
    /// The id of the rule, which is unique in the policy.
    pub id: String,
    pub action: Action,
    /// The reason for the rule, which guard shows to the agent.
    pub reason: String,
    /// Advice for the agent on what to do instead of the refused command; empty if the rule gives none.
    pub instead: String,
    pub when: Conditions,
    pub place: Place,
    /// Whether the rule may allow what a default action denies. This is true for the rules of the policy that extends
    /// no other, and for rules with `override` or `lifts`.
    pub lifts_default: bool,
    /// Whether the policy file marks the rule with `override` or `lifts`. Such a rule may loosen the extended policy:
    /// replace or lift one of its rules, or allow what its default denies.
    pub is_override: bool,
    /// The ids of rules, inherited from the policy that this one extends, which guard ignores for the commands that this
    /// rule matches.
    pub lifts: Vec<String>,
    /// Example commands with the decisions that the policy must make.
    pub examples: Vec<Example>,
}

impl Rule {
    /// Returns true if the rule is limited to git in the repository that the run works on, because the rule matches git
    /// verbs or effects. Rules about programs, files and variables apply in every repository, and so does a rule that
    /// names `git.other`.
    pub fn is_about_the_task(&self) -> bool {
        let when = &self.when;
        let names_other = when.effects.is_some_and(|effects| effects.intersects(Effects::GIT_OTHER));
        let of_git =
            |effects: Option<Effects>| effects.is_some_and(|set| set.intersects(Effects::ALL_OF_GIT));
        let speaks_of_git = !when.verbs.is_empty() || of_git(when.effects) || of_git(when.only_effects);
        speaks_of_git && !names_other
    }
}

/// A test of a rule: a command, and the decision that the policy must make about it.
#[derive(Debug, Clone)]
pub struct Example {
    pub action: Action,
    pub command: ExampleCommand,
    /// The byte range of the example in the rule's source.
    pub span: Range<usize>,
}

/// The command of an example, in one of the two forms that a policy file can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExampleCommand {
    Shell(String),
    Argv(Vec<String>),
}

/// The conditions of a rule. The rule matches if all of them hold; an empty list sets no condition.
#[derive(Debug, Clone, Default)]
pub struct Conditions {
    /// The condition holds if the program's name or path matches one of these patterns.
    pub programs: Vec<Pattern>,
    /// The condition holds if the git verb, or the verb with a space and its subcommand, matches one of these patterns.
    pub verbs: Vec<Pattern>,
    /// The condition holds if the first argument that is not an option matches one of these patterns.
    pub subcommands: Vec<Pattern>,
    /// The condition holds if any of these options is given.
    pub flags: Vec<String>,
    /// The condition holds if none of these options is given.
    pub unless_flags: Vec<String>,
    /// The condition holds if any argument of the command matches one of these patterns.
    pub args: Vec<Pattern>,
    /// The condition holds if no argument of the command matches any of these patterns.
    pub unless_args: Vec<Pattern>,
    /// The condition holds if any path that the command is known to use matches one of these patterns.
    pub paths: Vec<PathPattern>,
    /// The condition fails if guard knows paths that the command uses and each of them matches at least one of these
    /// patterns. Devices such as `/dev/null` do not count.
    pub unless_paths: Vec<PathPattern>,
    pub access: PathAccess,
    /// The condition holds if the command has any of these effects.
    pub effects: Option<Effects>,
    /// The condition holds if the command has no effects other than these.
    pub only_effects: Option<Effects>,
    /// The condition holds if the name of any environment variable that the command text itself sets, as in
    /// `NAME=value git …`, matches one of these patterns.
    pub variables: Vec<Pattern>,
    /// The condition holds if any git ref that the command would change matches one of these patterns.
    pub refs: Vec<Pattern>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PathAccess {
    Read,
    Write,
    #[default]
    Any,
}

/// The files that a run may use.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Filesystem {
    pub read: Vec<String>,
    pub write: Vec<String>,
    /// Paths from which the run may execute programs. `None` means everything that the run may read or write.
    pub execute: Option<Vec<String>>,
}

impl Filesystem {
    /// Returns the paths from which the run may execute programs, without duplicates: `execute`, or else `read` and
    /// `write`.
    pub fn executable(&self) -> Vec<&str> {
        let mut names: Vec<&str> = match &self.execute {
            Some(names) => names.iter().map(String::as_str).collect(),
            None => self.read.iter().chain(&self.write).map(String::as_str).collect(),
        };
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(*name));
        names
    }
}

/// The hosts that a run may reach.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Network {
    /// Entries for allowed hosts, see [`HostEntry`](super::HostEntry).
    pub allow: Vec<String>,
    /// Entries for denied hosts. A host that matches both lists is denied.
    pub deny: Vec<String>,
    /// The names of network presets, which allow hosts and gateways.
    pub presets: Vec<String>,
    /// Host names that guard resolves to fixed addresses.
    pub resolve: Vec<(String, std::net::IpAddr)>,
    /// Whether programs of the run may listen on any loopback port and connect to servers that the run itself started
    /// on loopback.
    pub loopback: bool,
    /// Loopback ports that the run's servers may listen on even without `loopback`.
    pub listen: Vec<u16>,
}

/// Limits on the use of a model's API. `None` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Budget {
    /// The maximum number of tokens, input and output together.
    pub max_tokens: Option<u64>,
    /// The maximum number of requests that use tokens.
    pub max_requests: Option<u64>,
    /// The maximum cost, in millionths of the currency of the price list.
    pub max_cost_micros: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Environment {
    /// Variables passed through from the user's environment.
    pub pass: Vec<String>,
    /// Variables set to fixed values.
    pub set: Vec<(String, String)>,
    /// The variables whose values guard never writes to the transcript.
    pub redact: Vec<String>,
}

/// The resource limits that a policy sets for a run. If a limit has no entry, guard's default for it applies, if there
/// is one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Limits {
    /// The key and the value of each limit that the policy or an extended policy sets.
    pub values: Vec<(&'static str, i64)>,
}

impl Limits {
    pub fn get(&self, key: &str) -> Option<i64> {
        self.values.iter().find(|(known, _)| *known == key).map(|&(_, value)| value)
    }
}

/// How guard builds the sandbox of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sandbox {
    pub namespaces: Namespaces,
    /// Whether the supervisor stops each program after the kernel has loaded it (the exec stop), and judges it again.
    pub verify_exec: bool,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self { namespaces: Namespaces::Auto, verify_exec: true }
    }
}

/// Whether a run gets private namespaces, ordered from loose to tight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Namespaces {
    Off,
    /// The run gets private namespaces if the machine supports them.
    Auto,
    /// The run does not start without private namespaces.
    Require,
}

impl Namespaces {
    /// Returns the keyword used in policies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Require => "require",
        }
    }

    /// Parses the keyword used in policies; `None` for any other word.
    pub(super) fn named(word: &str) -> Option<Self> {
        [Self::Off, Self::Auto, Self::Require].into_iter().find(|known| known.name() == word)
    }
}

/// The run's private home directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Home {
    /// Files to copy from the user's home directory, each beginning with `~/`.
    pub import: Vec<String>,
}

/// Toolchains and package caches from the user's home directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Toolchains {
    /// The toolchains to detect: names from [`TOOLCHAINS`].
    pub detect: Vec<String>,
    pub caches: Caches,
}

impl Default for Toolchains {
    fn default() -> Self {
        Self { detect: TOOLCHAINS.map(str::to_string).to_vec(), caches: Caches::Shared }
    }
}

/// Which package caches a run can use, ordered from loose to tight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Caches {
    /// The user's caches, read-only, with a writable overlay that is private to the run.
    Shared,
    /// Caches that are private to the run and empty at the start.
    Private,
}

impl Caches {
    /// Returns the keyword used in policies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Private => "private",
        }
    }

    /// Parses the keyword used in policies; `None` for any other word.
    pub(super) fn named(word: &str) -> Option<Self> {
        [Self::Shared, Self::Private].into_iter().find(|known| known.name() == word)
    }
}

/// Settings of the worktree that a run works in.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Worktree {
    /// The directory in which guard creates the worktrees of runs; `None` means the default directory.
    pub root: Option<String>,
    /// Untracked paths that guard copies into the worktree.
    pub copy: Vec<String>,
    /// Untracked paths that the run can read through a symbolic link in the worktree.
    pub link_readonly: Vec<String>,
}

/// Settings of git in the repository that a run works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Git {
    pub branch_prefix: String,
    /// Trailers to add to commit messages.
    pub trailers: Vec<String>,
    /// Whether git signs the commits of a run.
    pub sign: bool,
    /// The name and email address with which git commits in a run; the user's own if absent.
    pub identity: Option<(String, String)>,
    /// Whether git runs the user's hooks for the commits of a run.
    pub hooks: bool,
    /// The maximum amount of data that guard receives from a run's private repository, in MiB.
    pub receive_mib: i64,
}

impl Default for Git {
    fn default() -> Self {
        Self {
            branch_prefix: "task/".to_string(),
            trailers: Vec::new(),
            sign: false,
            identity: None,
            hooks: true,
            receive_mib: 512,
        }
    }
}

impl Budget {
    /// Combines two budgets, using the lower limit for each field. A field is unlimited only if it is unlimited in
    /// both.
    pub fn tightened(self, other: Self) -> Self {
        let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        Self {
            max_tokens: least(self.max_tokens, other.max_tokens),
            max_requests: least(self.max_requests, other.max_requests),
            max_cost_micros: least(self.max_cost_micros, other.max_cost_micros),
        }
    }
}

impl Policy {
    /// Returns the limits on the analysis of a command. A limit that this policy does not set has its default. The
    /// nesting depth is never above its default.
    pub fn command_limits(&self) -> CommandLimits {
        let defaults = CommandLimits::default();
        let limit = |key: &str, default: usize| {
            self.limits.get(key).and_then(|value| usize::try_from(value).ok()).unwrap_or(default)
        };
        CommandLimits {
            bytes: limit("command_bytes", defaults.bytes),
            depth: limit("command_depth", defaults.depth).min(defaults.depth),
            intents: defaults.intents,
        }
    }

    /// Returns the file, line and column of a place in the policy's sources.
    pub fn locate(&self, place: &Place) -> Location {
        self.sources[place.source].locate(place.span.start)
    }

    /// Returns the index in [`Policy::sources`] of this policy's own text, which is not inherited from an extended
    /// policy.
    pub fn own_source(&self) -> usize {
        self.sources.len() - 1
    }
}
