//! A policy as the rest of the program sees it: merged, checked, ready to be asked.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::diagnostic::{Diagnostic, Location, Source};
use super::pattern::{PathPattern, Pattern};
use crate::command::{Effects, Limits as CommandLimits};

/// What happens to a command. The order is from loose to tight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It runs.
    Allow,
    /// A person decides; without one it is denied.
    Ask,
    /// It does not run.
    Deny,
}

impl Action {
    /// The word used in policies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }

    /// What a word of a policy means.
    pub(super) fn named(word: &str) -> Option<Self> {
        [Self::Allow, Self::Ask, Self::Deny].into_iter().find(|known| known.name() == word)
    }
}

/// Every toolchain that can be looked for in the user's home.
pub const TOOLCHAINS: [&str; 5] = ["rust", "node", "python", "go", "java"];

/// A policy with everything it extends merged in.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// Names of the policies it extends, nearest first.
    pub extends: Vec<String>,
    /// The texts it was made from, the root of the chain first.
    pub sources: Vec<Source>,
    /// What happens to programs no rule speaks of.
    pub default_action: Default,
    /// What happens to git commands no rule speaks of.
    pub git_default_action: Default,
    /// What happens to git commands in repositories that are not the task's, inside the run's own places, where no rule
    /// speaks of such.
    pub git_other_action: Default,
    /// Rules, those of the root of the chain first.
    pub rules: Vec<Rule>,
    /// Files.
    pub filesystem: Filesystem,
    /// Hosts.
    pub network: Network,
    /// Variables.
    pub environment: Environment,
    /// Bounds.
    pub limits: Limits,
    /// Bounds of what a model's API is used for.
    pub budget: Budget,
    /// How the sandbox is built.
    pub sandbox: Sandbox,
    /// The run's private home.
    pub home: Home,
    /// What of the user's home programs are built with.
    pub toolchains: Toolchains,
    /// The task's working tree.
    pub worktree: Worktree,
    /// git.
    pub git: Git,
    /// Warnings and notes from loading: nothing that keeps it from being used.
    pub remarks: Vec<Diagnostic>,
}

/// A default action and where it was set.
#[derive(Debug, Clone)]
pub struct Default {
    /// The action.
    pub action: Action,
    /// The key that set it: an index into the policy's sources and the bytes there.
    pub place: Option<Place>,
}

/// A span in one of a policy's sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Index into [`Policy::sources`].
    pub source: usize,
    /// Bytes of the source.
    pub span: Range<usize>,
}

/// One rule.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Its name.
    pub id: String,
    /// What it says.
    pub action: Action,
    /// Why.
    pub reason: String,
    /// What to do instead.
    pub instead: String,
    /// When it applies.
    pub when: Conditions,
    /// Where it stands.
    pub place: Place,
    /// Whether it may lift a default: true in the root of a chain, and for overrides.
    pub lifts_default: bool,
    /// It replaces a rule, or lifts a default, of the policy extended.
    pub is_override: bool,
    /// Commands with the decisions they must get.
    pub examples: Vec<Example>,
}

impl Rule {
    /// Whether it speaks of git in the task's repository: by verbs, options or effects of git. Rules about programs,
    /// files and variables hold in every repository, and so does one that names `git.other`.
    pub fn is_about_the_task(&self) -> bool {
        let when = &self.when;
        let names_other = when.effects.is_some_and(|effects| effects.intersects(Effects::GIT_OTHER));
        let of_git =
            |effects: Option<Effects>| effects.is_some_and(|set| set.intersects(Effects::ALL_OF_GIT));
        let speaks_of_git = !when.verbs.is_empty() || of_git(when.effects) || of_git(when.only_effects);
        speaks_of_git && !names_other
    }
}

/// A command with its expected decision.
#[derive(Debug, Clone)]
pub struct Example {
    /// What the policy must say.
    pub action: Action,
    /// The command.
    pub command: ExampleCommand,
    /// Where it stands in the rule's source.
    pub span: Range<usize>,
}

/// The command of an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExampleCommand {
    /// Shell text.
    Shell(String),
    /// Words.
    Argv(Vec<String>),
}

/// When a rule applies: all conditions that are given must hold.
#[derive(Debug, Clone, std::default::Default)]
pub struct Conditions {
    /// Program names or paths.
    pub programs: Vec<Pattern>,
    /// git verbs, with a subcommand after a blank where one is meant.
    pub verbs: Vec<Pattern>,
    /// The first word that is no option.
    pub subcommands: Vec<Pattern>,
    /// Any of these options.
    pub flags: Vec<String>,
    /// None of these options.
    pub unless_flags: Vec<String>,
    /// Any argument.
    pub args: Vec<Pattern>,
    /// No argument.
    pub unless_args: Vec<Pattern>,
    /// Any known path.
    pub paths: Vec<PathPattern>,
    /// Not when every known path matches.
    pub unless_paths: Vec<PathPattern>,
    /// Which use of the paths counts.
    pub access: PathAccess,
    /// Any of these effects.
    pub effects: Option<Effects>,
    /// No effects but these.
    pub only_effects: Option<Effects>,
    /// Any variable set just for the command.
    pub variables: Vec<Pattern>,
    /// Any ref it would change.
    pub refs: Vec<Pattern>,
}

/// Which use of a path a rule speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, std::default::Default)]
pub enum PathAccess {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Both.
    #[default]
    Any,
}

/// Files a run may use.
#[derive(Debug, Clone, PartialEq, Eq, std::default::Default, Serialize)]
pub struct Filesystem {
    /// May be read.
    pub read: Vec<String>,
    /// May be written.
    pub write: Vec<String>,
    /// Where programs may be started from. `None` is everything that may be read or written.
    pub execute: Option<Vec<String>>,
}

impl Filesystem {
    /// Where programs may be started from, in either case. Each name once.
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

/// Hosts a run may reach.
#[derive(Debug, Clone, PartialEq, Eq, std::default::Default, Serialize)]
pub struct Network {
    /// Entries, see [`HostEntry`](super::HostEntry).
    pub allow: Vec<String>,
    /// Entries that beat those.
    pub deny: Vec<String>,
    /// Hosts and gateways by name.
    pub presets: Vec<String>,
    /// Names with the address they have here.
    pub resolve: Vec<(String, std::net::IpAddr)>,
    /// Own servers on loopback.
    pub loopback: bool,
    /// Ports on loopback that own servers may listen on, also without `loopback`.
    pub listen: Vec<u16>,
}

/// Bounds of what a model's API is used for. `None` is unbounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, std::default::Default, Serialize)]
pub struct Budget {
    /// Questions and answers together.
    pub max_tokens: Option<u64>,
    /// Requests that use tokens.
    pub max_requests: Option<u64>,
    /// Millionths of the prices' currency.
    pub max_cost_micros: Option<u64>,
}

/// Variables a run gets.
#[derive(Debug, Clone, PartialEq, Eq, std::default::Default, Serialize)]
pub struct Environment {
    /// Handed on.
    pub pass: Vec<String>,
    /// Set.
    pub set: Vec<(String, String)>,
    /// Never recorded.
    pub redact: Vec<String>,
}

/// Bounds of a run. `None` is unbounded.
#[derive(Debug, Clone, PartialEq, Eq, std::default::Default, Serialize)]
pub struct Limits {
    /// By key, in the order of the format.
    pub values: Vec<(&'static str, i64)>,
}

impl Limits {
    /// The value of a key, if one is set.
    pub fn get(&self, key: &str) -> Option<i64> {
        self.values.iter().find(|(known, _)| *known == key).map(|&(_, value)| value)
    }
}

/// How the sandbox is built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sandbox {
    /// Namespaces of the run's own.
    pub namespaces: Namespaces,
    /// Whether a program is judged again at its exec stop.
    pub verify_exec: bool,
}

impl std::default::Default for Sandbox {
    fn default() -> Self {
        Self { namespaces: Namespaces::Auto, verify_exec: true }
    }
}

/// Whether a run gets namespaces of its own. The order is from loose to tight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Namespaces {
    /// It gets none.
    Off,
    /// It gets them where the machine allows that.
    Auto,
    /// It does not start without them.
    Require,
}

impl Namespaces {
    /// The word used in policies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Require => "require",
        }
    }

    /// What a word of a policy means.
    pub(super) fn named(word: &str) -> Option<Self> {
        [Self::Off, Self::Auto, Self::Require].into_iter().find(|known| known.name() == word)
    }
}

/// The run's private home.
#[derive(Debug, Clone, PartialEq, Eq, std::default::Default, Serialize)]
pub struct Home {
    /// Files of the user's home that are copied into it, each beginning with `~/`.
    pub import: Vec<String>,
}

/// What of the user's home programs are built with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Toolchains {
    /// Those that are looked for: names from [`TOOLCHAINS`].
    pub detect: Vec<String>,
    /// The package caches.
    pub caches: Caches,
}

impl std::default::Default for Toolchains {
    fn default() -> Self {
        Self { detect: TOOLCHAINS.map(str::to_string).to_vec(), caches: Caches::Shared }
    }
}

/// Which package caches a run sees. The order is from loose to tight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Caches {
    /// The user's, readable, under a writable layer of the run's own.
    Shared,
    /// Empty ones of its own.
    Private,
}

impl Caches {
    /// The word used in policies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Private => "private",
        }
    }

    /// What a word of a policy means.
    pub(super) fn named(word: &str) -> Option<Self> {
        [Self::Shared, Self::Private].into_iter().find(|known| known.name() == word)
    }
}

/// The working tree of a task.
#[derive(Debug, Clone, PartialEq, Eq, std::default::Default, Serialize)]
pub struct Worktree {
    /// The directory for worktrees.
    pub root: Option<String>,
    /// Untracked paths a task gets a copy of.
    pub copy: Vec<String>,
    /// Untracked paths a task can read through a link.
    pub link_readonly: Vec<String>,
}

/// git in the task's repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Git {
    /// What task branches begin with.
    pub branch_prefix: String,
    /// Trailers for commits.
    pub trailers: Vec<String>,
    /// Whether commits are signed.
    pub sign: bool,
    /// Who commits: (name, mail); the user unless given.
    pub identity: Option<(String, String)>,
    /// Whether the user's hooks run.
    pub hooks: bool,
    /// The most that is received from a run, in MiB.
    pub receive_mib: i64,
}

impl std::default::Default for Git {
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
    /// The tighter of two, bound by bound.
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
    /// The bounds for analysing a command under this policy.
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

    /// Where something stands, for people.
    pub fn locate(&self, place: &Place) -> Location {
        self.sources[place.source].locate(place.span.start)
    }

    /// The root-to-leaf index of the policy's own text.
    pub fn own_source(&self) -> usize {
        self.sources.len() - 1
    }
}
