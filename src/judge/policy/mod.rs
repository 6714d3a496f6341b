//! Parses policies: TOML in, [`Policy`] out.
//!
//! This module finds a policy by name or path, merges the policies that it extends, and checks the result. Every part
//! keeps its location in the source. The caller gets either a policy or all problems at once, rendered with carets.
//! This module never starts a process and never judges a command; `decide` runs the examples.
#![forbid(unsafe_code)]

/// The path of a project's policy, relative to the root of its repository.
pub const PROJECT_POLICY: &str = ".guard/policy.toml";
/// The path of a project's configuration, relative to the root of its repository.
pub const PROJECT_CONFIG: &str = ".guard/config.toml";

mod builtin;
mod config_toml;
mod diagnostic;
mod diff;
mod edit;
mod host;
mod ip_classes;
mod keys;
mod load;
mod merge;
mod model;
mod parse;
mod pattern;
mod preset;
mod schema;
mod sections;
mod value_parsers;

pub use builtin::BUILT_IN;
pub use config_toml::{
    AgentConfig, BatchConfig, Config, ConfigError, ConfigProblem, ConversationConfig, GatewayConfig,
    LoginUse, Price, ProjectConfig, ResearchDefaults, RunDefaults, StateConfig, TimeLimit, is_model_name,
};
pub use diagnostic::{Diagnostic, Location, Severity, Source};
pub use diff::{described, diff, execute};
pub use edit::{EditError, add_rule, add_to_list, new_file};
pub use host::{Host, HostAccess, HostEntry, HostEntryError, HostError};
pub use ip_classes::{special_class, unmap_ipv4};
pub use load::{PolicyDirs, PolicyError, extend, extended_file, find, load, load_source, load_with_problems};
pub use model::{
    Action, Budget, Caches, Conditions, DefaultAction, Environment, Example, ExampleCommand, Filesystem, Git,
    Home, Limits, Namespaces, Network, PathAccess, Place, Policy, Rule, Sandbox, TOOLCHAINS, Toolchains,
    Worktree,
};
pub use parse::LARGEST_FILE;
pub use pattern::{PathPattern, Pattern, PatternError};
pub use preset::{
    Answer, Call, Forbid, GATEWAYS, Gateway, KEY_VARIABLES, ModelPlace, PRESETS, Preset, PresetHost,
    PresetName, Refusals, ToolRules, UsagePlaces, gateway, key_variables, preset,
};
pub use schema::schema;
pub use sections::is_branch_prefix;
