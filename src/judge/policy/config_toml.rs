//! Reads the user's configuration, `$XDG_CONFIG_HOME/guard/config.toml`: API gateways with the sources of their keys,
//! prices of models, agents, defaults of `guard run`, how long guard keeps its records, the store of the batch queue,
//! and settings of conversations and research. Also parses the configuration of a project, `.guard/config.toml`, which
//! has only defaults of `guard run`.
//!
//! guard accepts settings of gateways only from the user: such a setting decides which program guard runs outside the
//! sandbox to get a key, and which server receives the key.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use toml::de::{DeTable, DeValue};

/// The maximum size of the configuration file, in bytes. A larger file is rejected.
const LARGEST: u64 = 1 << 20;
/// The valid values of `max_prompt_tokens`. guard does not automatically summarise a conversation with fewer than 5,000
/// tokens, so a prompt must have room for that many. guard uses at most 900,000 tokens of a model's context.
const PROMPT_TOKENS: RangeInclusive<usize> = 5_000..=900_000;

/// The user's configuration.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Settings for API gateways, by the name of the gateway: `gemini`, `openai`, `anthropic`, `github`.
    #[serde(default)]
    pub gateway: BTreeMap<String, GatewayConfig>,
    /// The prices of models, by name. Each name matches all models whose names begin with it; the longest match
    /// applies.
    #[serde(default)]
    pub prices: BTreeMap<String, Price>,
    /// Settings for agents, by the name of the agent: `claude`, `codex`, `gemini`.
    #[serde(default)]
    pub agent: BTreeMap<String, AgentConfig>,
    /// The defaults of `guard run`, for options that are not on its command line.
    #[serde(default)]
    pub run: RunDefaults,
    /// How long guard keeps the records of runs, and snapshots for `guard undo`. Without this table, only `guard runs
    /// prune` deletes records.
    #[serde(default)]
    pub state: StateConfig,
    /// Where `guard batch` and `guard worker` store their queue of tasks.
    #[serde(default)]
    pub batch: BatchConfig,
    /// The size of prompts in conversations, and the model that summarises them.
    #[serde(default)]
    pub conversation: ConversationConfig,
    /// The defaults of `guard research`, for options that are not on its command line.
    #[serde(default)]
    pub research: ResearchDefaults,
}

/// Settings of conversations in which guard puts the history into the prompts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConversationConfig {
    /// The maximum size of a prompt in estimated tokens, from 5000 to 900000. Default: 16000.
    pub max_prompt_tokens: Option<usize>,
    /// The model that summarises the older messages of conversations with Gemini. Default: `gemini-2.5-flash`.
    pub summary_model: Option<String>,
}

/// Defaults of `guard research`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResearchDefaults {
    /// The model, if the command line names neither a model nor an agent. Default: `gemini-3-flash-preview`.
    pub model: Option<String>,
}

/// Where guard stores the queue of the tasks of batches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BatchConfig {
    /// The URL of the database that stores the queue, `"postgres://…"`. Default: a file in guard's state directory.
    pub store: Option<String>,
}

/// Which finished runs guard deletes automatically, with their transcripts, and the size and age of the snapshots for
/// `guard undo`. guard checks the runs at most once an hour, after a run, and keeps runs whose worktree or commits exist
/// nowhere else. It checks the snapshots after each run that has one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StateConfig {
    /// Delete runs that ended longer ago than this: seconds, or a duration such as `"30d"`; 0 means no limit.
    pub keep: Option<TimeLimit>,
    /// Delete the oldest runs when all runs together take more than this many MiB; 0 means no limit.
    pub keep_mib: Option<u64>,
    /// The maximum size in MiB of the files that guard copies before a run that works in your directory itself, apart
    /// from files that git ignores; 0 means no snapshots. Default: 1024.
    pub snapshot_mib: Option<u64>,
    /// The same for files that git ignores. Default: 256.
    pub snapshot_ignored_mib: Option<u64>,
    /// Delete snapshots that are older than this: seconds, or a duration such as `"14d"`; 0 means no limit. Default: 14
    /// days.
    pub keep_snapshots: Option<TimeLimit>,
    /// Delete the oldest snapshots when all together take more than this many MiB; 0 means no limit. Default: 4096.
    pub keep_snapshots_mib: Option<u64>,
}

impl StateConfig {
    /// Returns the maximum number of bytes to copy for a snapshot: of files that git does not ignore, and of files that
    /// it ignores. Returns `None` if the user wants no snapshots.
    pub fn snapshot_bytes(&self) -> Option<(u64, u64)> {
        let bytes = |mib: u64| mib.saturating_mul(1 << 20);
        let most = bytes(self.snapshot_mib.unwrap_or(1024));
        (most > 0).then(|| (most, bytes(self.snapshot_ignored_mib.unwrap_or(256))))
    }

    /// Returns how long to keep snapshots, in seconds, and their maximum size together, in bytes. 0 means no limit.
    pub fn kept_snapshots(&self) -> (u64, u64) {
        let seconds = self.keep_snapshots.map_or(14 * 24 * 60 * 60, |keep| keep.0);
        (seconds, self.keep_snapshots_mib.unwrap_or(4096).saturating_mul(1 << 20))
    }
}

/// Defaults of `guard run`: in your configuration, and in a project's `.guard/config.toml`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunDefaults {
    /// The name or the path of the policy. A project can only use a built-in policy or its own `.guard/policy.toml`.
    pub policy: Option<String>,
    /// Network presets, in addition to the policy's: `["rust", "node"]`.
    pub presets: Vec<String>,
    /// Whether runs get the dependencies of your checkout (`node_modules`, virtual environments). Default: `true`.
    pub deps: Option<bool>,
    /// Untracked files of your checkout that guard copies into the worktree of each run.
    pub copy: Vec<String>,
    /// Untracked files of your checkout that guard links into the worktree of each run, read-only.
    pub link: Vec<String>,
    /// The prefix of the branches of runs, such as `task/`.
    pub branch_prefix: Option<String>,
    /// End a run that has been idle for this long: seconds, or a duration such as `"5m"`; 0 means no limit.
    pub timeout: Option<TimeLimit>,
    /// End a run after this long: seconds, or a duration such as `"30m"`; 0 means no limit.
    pub max_duration: Option<TimeLimit>,
}

/// A time limit in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimit(pub u64);

impl TimeLimit {
    /// Parses seconds, or a number with the unit `s`, `m`, `h`, `d` or `w`. `None` for any other text, and for a limit
    /// that does not fit in 64 bits.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let unit = text.chars().next_back()?;
        let factor = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3_600,
            'd' => 86_400,
            'w' => 7 * 86_400,
            _ if unit.is_ascii_digit() => return text.parse().ok().map(Self),
            _ => return None,
        };
        text[..text.len() - 1].trim().parse::<u64>().ok()?.checked_mul(factor).map(Self)
    }
}

impl<'de> Deserialize<'de> for TimeLimit {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        let parsed = match &value {
            toml::Value::Integer(seconds) => u64::try_from(*seconds).ok().map(Self),
            toml::Value::String(text) => Self::parse(text),
            _ => None,
        };
        parsed
            .ok_or_else(|| serde::de::Error::custom("write seconds, or a duration such as \"5m\" or \"2h\""))
    }
}

impl JsonSchema for TimeLimit {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TimeLimit".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["integer", "string"] })
    }
}

/// A project's configuration, `.guard/config.toml` in its repository.
///
/// guard reads it from the commit at which a run starts, so that an agent cannot change its own configuration. The
/// configuration can restrict what the user allows. Settings that would allow more need the user's confirmation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProjectConfig {
    /// The defaults of `guard run` in this repository, for options that are not on its command line.
    pub run: RunDefaults,
}

impl ProjectConfig {
    /// Parses the text of a project's `.guard/config.toml`. Fails if the text is not valid TOML, has unknown keys, or
    /// names a policy file other than the project's own.
    pub fn parse(text: &str) -> Result<Self, ConfigProblem> {
        let config: Self = toml::from_str(text)
            .map_err(|error| ConfigProblem::Toml(error.to_string().trim_end().to_string()))?;
        if let Some(policy) = config.run.policy.as_deref()
            && policy != super::PROJECT_POLICY
            && (policy.contains('/') || policy.ends_with(".toml"))
        {
            return Err(ConfigProblem::ProjectPolicy(policy.to_string()));
        }
        Ok(config)
    }

    /// Returns the number of the line that sets `policy` in the text of a project's configuration, counted from 1.
    /// `None` if no line does, or if the text is not valid TOML.
    pub fn policy_line(text: &str) -> Option<usize> {
        let table = DeTable::parse(text).ok()?;
        let (_, run) = table.get_ref().iter().find(|(name, _)| name.get_ref() == "run")?;
        let DeValue::Table(entries) = run.get_ref() else { return None };
        let (key, _) = entries.iter().find(|(name, _)| name.get_ref() == "policy")?;
        let before = text.get(..key.span().start)?;
        Some(before.matches('\n').count() + 1)
    }
}

/// Settings for the runs of one agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// Whether runs get a copy of your login. With a copy, the agent can read the login's tokens. Default: `none`.
    pub login: LoginUse,
}

/// How runs may use your login with an agent: a subscription or account, instead of an API key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LoginUse {
    /// Runs do not get the login.
    #[default]
    None,
    /// Each run gets a copy of the credential file, which the agent can read. guard copies refreshed tokens back.
    Copy,
}

/// The address of one API and the source of its key. Set at most one of the three `key_` settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GatewayConfig {
    /// The base URL of the API. The agent's usual variable, such as `GOOGLE_GEMINI_BASE_URL`, takes precedence.
    pub upstream: Option<String>,
    /// The name of the environment variable that contains the key, if it is not the API's usual one, such as
    /// `GEMINI_API_KEY`.
    pub key_variable: Option<String>,
    /// A file that contains the key. Only its owner may have access to it (mode 600). `~/` is the home directory.
    pub key_file: Option<PathBuf>,
    /// A command that prints the key, as a list of arguments. guard runs it outside the sandbox.
    pub key_command: Option<Vec<String>>,
}

/// The price of a million tokens, in the currency of `max_cost`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Price of a million input tokens.
    pub input: f64,
    /// Price of a million output tokens.
    pub output: f64,
    /// Price of a million cached input tokens. Default: the price of other input tokens.
    pub cached: Option<f64>,
}

/// The error for a configuration file that guard cannot use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot use the configuration {}: {problem}", path.display())]
pub struct ConfigError {
    pub path: PathBuf,
    pub problem: ConfigProblem,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigProblem {
    #[error("{0}")]
    Unreadable(String),
    #[error("the path is not a regular file, or the file is larger than 1 MiB")]
    NoPlainFile,
    /// The text is not valid TOML, or has unknown keys.
    #[error("{0}")]
    Toml(String),
    #[error("unknown gateway `{name}`; known gateways: {}", known.join(", "))]
    UnknownGateway {
        /// The name in the section's header, which is not the name of a gateway.
        name: String,
        /// The names of the gateways that exist.
        known: Vec<&'static str>,
    },
    #[error("[gateway.{0}]: set only one of key_variable, key_file and key_command")]
    SeveralKeys(String),
    #[error("[gateway.{0}]: key_command is empty; give a list of arguments: [\"pass\", \"show\", \"key\"]")]
    EmptyCommand(String),
    #[error("policy = {0:?}: a project can only name a built-in policy or its own `.guard/policy.toml`")]
    ProjectPolicy(String),
    #[error("[prices.\"{0}\"]: a price must be a number that is not negative")]
    Price(String),
    #[error(
        "[conversation]: max_prompt_tokens is {0}; it must be from {least} to {most}",
        least = PROMPT_TOKENS.start(),
        most = PROMPT_TOKENS.end()
    )]
    PromptTokens(usize),
    #[error("{key}: {name:?} is not a valid model name")]
    Model {
        /// The table and the name of the key.
        key: &'static str,
        /// The value of the key.
        name: String,
    },
}

impl Config {
    /// Returns the path of the configuration file, derived from `XDG_CONFIG_HOME` or `HOME`; `None` if neither is
    /// usable.
    pub fn place() -> Option<PathBuf> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = set("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
        base.or_else(|| set("HOME").map(|home| home.join(".config")))
            .map(|base| base.join("guard/config.toml"))
    }

    /// Reads a configuration file. A missing file is an empty configuration.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let bad = |problem: ConfigProblem| ConfigError { path: path.to_path_buf(), problem };
        let data = match std::fs::metadata(path) {
            Ok(data) => data,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(bad(ConfigProblem::Unreadable(error.to_string()))),
        };
        if !data.is_file() || data.len() > LARGEST {
            return Err(bad(ConfigProblem::NoPlainFile));
        }
        let text = std::fs::read_to_string(path)
            .map_err(|error| bad(ConfigProblem::Unreadable(error.to_string())))?;
        Self::parse(&text).map_err(bad)
    }

    /// Parses and checks the text of a configuration file. Reports only the first problem.
    pub fn parse(text: &str) -> Result<Self, ConfigProblem> {
        let config: Self = toml::from_str(text)
            .map_err(|error| ConfigProblem::Toml(error.to_string().trim_end().to_string()))?;
        for (name, gateway) in &config.gateway {
            if super::gateway(name).is_none() {
                let known = super::GATEWAYS.iter().map(|(name, _)| *name).collect();
                return Err(ConfigProblem::UnknownGateway { name: name.clone(), known });
            }
            let sources =
                [gateway.key_variable.is_some(), gateway.key_file.is_some(), gateway.key_command.is_some()];
            if sources.iter().filter(|given| **given).count() > 1 {
                return Err(ConfigProblem::SeveralKeys(name.clone()));
            }
            if gateway.key_command.as_ref().is_some_and(Vec::is_empty) {
                return Err(ConfigProblem::EmptyCommand(name.clone()));
            }
        }
        let is_price = |price: &f64| price.is_finite() && *price >= 0.0;
        for (model, price) in &config.prices {
            if ![price.input, price.output, price.cached.unwrap_or(0.0)].iter().all(is_price) {
                return Err(ConfigProblem::Price(model.clone()));
            }
        }
        if let Some(tokens) =
            config.conversation.max_prompt_tokens.filter(|tokens| !PROMPT_TOKENS.contains(tokens))
        {
            return Err(ConfigProblem::PromptTokens(tokens));
        }
        for (key, name) in [
            ("[conversation] summary_model", &config.conversation.summary_model),
            ("[research] model", &config.research.model),
        ] {
            if let Some(name) = name.as_ref().filter(|name| !is_model_name(name)) {
                return Err(ConfigProblem::Model { key, name: name.clone() });
            }
        }
        Ok(config)
    }

    /// Returns true if runs of this agent get a copy of the user's login.
    pub fn copies_login(&self, agent: &str) -> bool {
        self.agent.get(agent).is_some_and(|agent| agent.login == LoginUse::Copy)
    }

    /// Returns the price of a model: the entry with the longest name that the model's name begins with. `None` if there
    /// is no such entry.
    pub fn price(&self, model: &str) -> Option<Price> {
        let known = self.prices.iter().filter(|(name, _)| model.starts_with(name.as_str()));
        known.max_by_key(|(name, _)| name.len()).map(|(_, price)| *price)
    }
}

/// The maximum length of the name of a model, in bytes.
const LONGEST_MODEL_NAME: usize = 200;

/// Returns true if a text can be the name of a model on a command line.
pub fn is_model_name(name: &str) -> bool {
    let is_wrong = |character: char| character.is_whitespace() || character.is_control();
    (1..=LONGEST_MODEL_NAME).contains(&name.len()) && !name.starts_with('-') && !name.contains(is_wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration() {
        let config = Config::parse(
            "[gateway.gemini]\nkey_file = \"/k\"\n[prices.\"gemini-2.5\"]\ninput = 1\noutput = 2.5\n[prices.\"gemini-2.5-flash\"]\ninput = 0.1\noutput = 0.2\n",
        )
        .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.price("gemini-2.5-flash-001").map(|price| price.input), Some(0.1));
        assert_eq!(config.price("gemini-2.5-pro").map(|price| price.output), Some(2.5));
        assert_eq!(config.price("other"), None);
    }

    #[test]
    fn the_line_that_names_a_projects_policy_is_found() {
        for (text, line) in [
            ("[run]\n# policy = \"a\"\n\npolicy = \"strict\"\n", Some(4)),
            ("run.policy = \"strict\"\n", Some(1)),
            ("[run]\n# policy = \"strict\"\ndeps = true\n", None),
            ("policy = \"strict\"\n", None),
            ("[run\npolicy = \"strict\"\n", None),
        ] {
            assert_eq!(ProjectConfig::policy_line(text), line, "{text}");
        }
    }

    #[test]
    fn names_of_models() {
        let (longest, too_long) = ("m".repeat(200), "m".repeat(201));
        for good in ["gemini-2.5-flash", "vendor/model:tag@1", longest.as_str()] {
            assert!(is_model_name(good), "{good}");
        }
        for bad in ["", "--yolo", "a b", "a\u{a0}b", "a\u{7}", "a\0", too_long.as_str()] {
            assert!(!is_model_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("[gateway.gemni]\n", "gemni"),
            ("[gateway.gemini]\nkey = 1\n", "unknown field"),
            ("[gateway.gemini]\nkey_file = \"a\"\nkey_variable = \"b\"\n", "one of"),
            ("[gateway.gemini]\nkey_command = []\n", "list of arguments"),
            ("[prices.x]\ninput = -1\noutput = 0\n", "not negative"),
            ("[prices.x]\ninput = nan\noutput = 0\n", "not negative"),
            ("[state]\nkeep = \"soon\"\n", "such as"),
            ("[state]\nkeep_mib = -1\n", "keep_mib"),
            ("[conversation]\nmax_prompt_tokens = 4999\n", "must be from 5000 to 900000"),
            ("[conversation]\nmax_prompt_tokens = -1\n", "max_prompt_tokens"),
            ("[conversation]\nsummary_model = \"\"\n", "[conversation] summary_model: \"\" is not"),
            ("[conversation]\nmodel = \"m\"\n", "unknown field"),
            ("[research]\nmodel = \"--yolo\"\n", "[research] model: \"--yolo\" is not"),
            ("[[[", "TOML parse error"),
        ] {
            let error = Config::parse(text).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
