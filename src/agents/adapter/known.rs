//! The adapter format: one TOML file in `policies/agents/` describes one agent CLI.
//!
//! These types deserialize those files and choose an adapter by name or by program. They hold data only; the
//! other modules of `agent` interpret it. A detail of one particular CLI belongs in its TOML file, never in
//! the code.

use std::collections::BTreeMap;
use std::path::Path;

use crate::run::outcome::ErrorKind;
use crate::run::transcript::EventType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::judge::policy::{Config, ConfigError};

/// The format of an agent CLI's standard output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OutputFormat {
    /// One JSON object per line while the agent works. The last line reports success or failure.
    #[default]
    StreamJson,
    /// A single JSON object when the agent has finished.
    Json,
    /// Plain text. It does not report success, so exit code 0 together with a non-empty answer counts as success.
    Text,
}

impl OutputFormat {
    /// Returns the name of the format in requests and adapters.
    pub fn name(self) -> &'static str {
        match self {
            Self::StreamJson => "stream-json",
            Self::Json => "json",
            Self::Text => "text",
        }
    }
}

/// Everything guard knows about one agent CLI, read from its TOML file in `policies/agents/`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// The adapter's name, which is the file name without its extension.
    #[serde(skip)]
    pub name: String,
    pub description: String,
    /// File names of the CLI's executable, by which `of_program` recognises it.
    pub programs: Vec<String>,
    /// Whether guard's own tests run the real CLI.
    pub is_tested: bool,
    /// The oldest supported version of the CLI, and why older versions do not work.
    pub oldest: Option<MinimumVersion>,
    /// The newest version of the CLI with which guard was tested.
    pub newest: Option<String>,
    /// The npm package of the CLI; its `package.json` states the installed version.
    pub package: Option<String>,
    /// Network presets that the CLI needs.
    #[serde(default)]
    pub presets: Vec<String>,
    /// The model to use when the request names none.
    pub model: Option<String>,
    /// The model that summarises long conversations, which should be cheap and fast. `None` means the CLI's
    /// default model.
    pub summary_model: Option<String>,
    /// Model aliases: the name used in a request → the name that the CLI expects.
    #[serde(default)]
    pub models: BTreeMap<String, String>,
    pub start: Start,
    #[serde(default)]
    pub command_line: CommandLine,
    /// Which files of the CLI's home directory `guard run` keeps for the next run in the same repository.
    #[serde(default)]
    pub history: History,
    /// How guard reads the CLI's output in the `stream-json` format.
    pub stream: Stream,
    /// How guard reads the single object that the CLI prints in the `json` format.
    pub object: Option<EventRule>,
    /// The error kind that each exit code of the CLI indicates.
    #[serde(default)]
    pub exits: BTreeMap<String, ErrorKind>,
    /// The error kinds that known phrases in the CLI's error message or standard error indicate. A phrase in the error
    /// message takes precedence over the exit code, and the exit code over a phrase in standard error.
    #[serde(default)]
    pub message: Vec<MessageRule>,
    #[serde(default)]
    pub quota: Quota,
    /// How the CLI logs in with an account instead of an API key, if it can.
    pub login: Option<Login>,
    /// Whether this run uses the account login instead of an API key. Set by [`Adapter::configured`].
    #[serde(skip)]
    pub uses_login: bool,
}

/// A login with an account instead of an API key. guard copies the login into runs only if the user has enabled that.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The credential file, relative to the home directory.
    pub file: String,
    /// Values in the credential file that the CLI replaces when it refreshes the login, as JSON keys separated by dots.
    pub refreshed: Vec<String>,
    /// Instructions for the user on how to log in.
    pub how: String,
    /// Hosts that the CLI contacts directly when it uses the login. They replace the adapter's network presets.
    pub hosts: Vec<String>,
    /// Replacements in the text of the home files when the login is used: the text to find → its replacement.
    #[serde(default)]
    pub replace: BTreeMap<String, String>,
}

/// The oldest supported version of a CLI.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MinimumVersion {
    /// The number of the oldest version that works.
    pub version: String,
    /// What earlier versions lack, as text for an error message.
    pub reason: String,
}

/// How a CLI reports when an exhausted quota is available again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Phrases in the output of the agent's CLI after which it says how long to wait before a retry.
    #[serde(default)]
    pub wait_after: Vec<String>,
    /// Phrases in the CLI's output that say that the daily quota is used up.
    #[serde(default)]
    pub daily: Vec<String>,
    /// The time zone in which the daily quota resets at midnight.
    pub day_begins_in: Option<String>,
}

/// How guard starts an agent's CLI: its arguments, sessions, environment and home files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The CLI's arguments. Placeholders are `{prompt}`, `{model}`, `{approval}`, `{format}`, and `{session}`, which
    /// marks where the session arguments go (before all others if it is absent). If no model is set, an argument with
    /// `{model}` is dropped together with the option before it. The argument `{approval}` is dropped if its value is
    /// empty.
    pub arguments: Vec<String>,
    /// The arguments that replace `{format}`, for each format the CLI supports.
    pub formats: BTreeMap<OutputFormat, Vec<String>>,
    /// Prompt prefixes that the CLI would interpret as one of its own commands, each with the replacement
    /// that makes it plain text.
    #[serde(default)]
    pub leading: BTreeMap<String, String>,
    /// The values that replace `{approval}`.
    #[serde(default)]
    pub approval: Approval,
    /// The prompt argument to use when the real prompt is too long for a command line and goes to standard
    /// input instead.
    pub long_prompt: Option<String>,
    /// Additional arguments that begin a session; `{session}` is its id. Empty if the CLI chooses session ids
    /// itself, in which case guard reads the id from the output.
    #[serde(default)]
    pub begin_session: Vec<String>,
    /// Additional arguments that resume a session; `{session}` is the CLI's own id of the session.
    #[serde(default)]
    pub resume_session: Vec<String>,
    /// Paths in the home directory that guard saves between the turns of a session.
    #[serde(default)]
    pub keep: Vec<String>,
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    #[serde(default)]
    pub home_file: Vec<HomeFile>,
}

/// How `guard run` interprets the command lines that users write for a CLI.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommandLine {
    /// First arguments (subcommands) with which the CLI does not contact a model. For these, guard adds no arguments
    /// and requires no key.
    pub other_commands: Vec<String>,
    /// Arguments, such as `-p`, with which the CLI never waits for a person. If the user gives one of them, guard
    /// treats the run as unattended even when it has a terminal.
    pub unattended: Vec<String>,
    pub add: Vec<AddedArguments>,
    /// Options whose value is the name of an output format.
    pub format_options: Vec<String>,
    /// Options that select an output format without a value: the option → the format.
    pub format_flags: BTreeMap<String, OutputFormat>,
    /// Variables of [`Start::environment`] that guard does not set when the CLI runs on a terminal, so that the
    /// user's own values apply.
    pub of_the_terminal: Vec<String>,
}

/// Arguments that guard inserts before the user's arguments, and the conditions for doing so.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddedArguments {
    pub arguments: Vec<String>,
    /// The arguments are not inserted if the user has given one of these options.
    #[serde(default)]
    pub unless: Vec<String>,
    #[serde(default)]
    pub only_unattended: bool,
}

/// Which files of a CLI's home directory `guard run` keeps for the next run in the same repository. A CLI stores its
/// conversations under the path of the working directory, which is different in every run, so guard restores the files
/// under the path of the new run's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct History {
    /// Directories to keep, relative to the home directory. `{directory-name}` is the working directory as
    /// the CLI encodes it in a file name: every character other than an ASCII letter or digit becomes a dash.
    pub keep: Vec<String>,
    /// Patterns for the files in these directories that are conversations, relative to the home directory. guard keeps no
    /// other files: the CLI would obey some of them in a later run, such as its memory.
    pub conversations: Vec<String>,
    /// Files that associate the current working directory with the CLI's history. `{directory}` is the
    /// working directory, `{directory-json}` the same as a JSON string.
    pub home_file: Vec<HomeFile>,
}

/// The values of `{approval}`: the CLI's argument for whether to ask the user before it acts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// The value with which the CLI acts without asking.
    pub yolo: String,
    pub asks: String,
}

/// A file that guard creates in the run's private home directory.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HomeFile {
    /// The path of the file, relative to the home directory.
    pub path: String,
    /// The content of the file. `{NAME-port}` is the loopback port of the gateway NAME, and `{directory}` is the run's
    /// working tree, escaped for a double-quoted string.
    pub text: String,
    /// Replacements in `text` when a person uses the CLI on a terminal: the text to find → its replacement.
    #[serde(default)]
    pub on_terminal: BTreeMap<String, String>,
}

impl HomeFile {
    /// Returns the content of the file for a CLI that a person uses on a terminal.
    pub fn terminal_text(&self) -> String {
        self.on_terminal.iter().fold(self.text.clone(), |text, (part, other)| text.replace(part, other))
    }
}

/// How guard reads a CLI's output that has one JSON object on each line.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// The JSON key whose value is the kind of the line.
    pub kind_key: String,
    pub event: Vec<EventRule>,
}

/// What one kind of output line means. A path in a rule consists of keys separated by dots; a number is an index into a
/// list. Several paths separated by `|` are alternatives: the first that leads to a value counts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventRule {
    /// The kind of line that the rule applies to.
    pub kind: String,
    /// An additional condition on the line. If several rules match a line, the first one applies.
    pub when: Option<When>,
    /// The type of the event that guard reports for the line.
    pub becomes: EventType,
    /// The JSON path of the text that becomes the event's message.
    pub text: Option<String>,
    /// The JSON path of the session id in the line.
    pub session: Option<String>,
    /// The text is appended to the agent's answer if this condition holds.
    pub answer_when: Option<When>,
    /// Whether the line discards the answer collected so far, because that was intermediate output.
    #[serde(default)]
    pub restarts_answer: bool,
    /// The path of the complete answer. If a path is given but the line has no value there, the run did not succeed.
    pub answer: Option<String>,
    /// Whether a line of this kind is the last one of the output.
    #[serde(default)]
    pub is_last: bool,
    /// The conditions that must all hold for the line to report success.
    #[serde(default)]
    pub success_when: Vec<When>,
    /// A path that must have no value for the line to report success.
    pub success_unless: Option<String>,
    /// The path of the error message in the line.
    pub error: Option<String>,
    /// The path of the usage figures in the line.
    pub usage: Option<String>,
}

/// A condition: the value at a path must equal a given value.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// The path of the value to compare.
    pub key: String,
    pub value: Value,
}

/// An error kind, and the phrases in a message that indicate it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageRule {
    /// The phrases, of which at least one must occur in the message. Case is ignored.
    pub contains: Vec<String>,
    pub kind: ErrorKind,
}

/// The name and TOML text of every built-in adapter.
pub const AGENTS: [(&str, &str); 4] = [
    ("gemini", include_str!("../../../policies/agents/gemini.toml")),
    ("claude", include_str!("../../../policies/agents/claude.toml")),
    ("codex", include_str!("../../../policies/agents/codex.toml")),
    ("agy", include_str!("../../../policies/agents/agy.toml")),
];

/// Returns the built-in adapter with this name; `None` if there is none.
pub fn named(name: &str) -> Option<Adapter> {
    let (name, text) = AGENTS.iter().find(|(known, _)| *known == name)?;
    let adapter: Adapter = toml::from_str(text).ok()?;
    Some(Adapter { name: (*name).to_string(), ..adapter })
}

/// Returns the adapter for a program, chosen by the program's file name; `None` if the program belongs to no adapter.
pub fn of_program(program: &Path) -> Option<Adapter> {
    let name = program.file_name()?.to_str()?;
    // Parsing takes about 5 % of the time of a launch, so parse only texts that name the program.
    let quoted = format!("\"{name}\"");
    AGENTS
        .iter()
        .filter(|(_, text)| {
            text.lines().any(|line| line.starts_with("programs = ") && line.contains(&quoted))
        })
        .filter_map(|(agent, _)| named(agent))
        .find(|adapter| adapter.programs.iter().any(|known| known == name))
}

impl Adapter {
    /// Applies the user's configuration: selects the account login instead of an API key if the user has enabled that.
    #[must_use]
    pub fn configured(mut self, config: &Config) -> Self {
        let Some(login) = self.login.clone().filter(|_| config.copies_login(&self.name)) else { return self };
        self.uses_login = true;
        self.presets.clear();
        for file in &mut self.start.home_file {
            for (part, other) in &login.replace {
                file.text = file.text.replace(part, other);
            }
        }
        self
    }

    /// Applies the configuration file of the user who runs this process, if there is one. Fails if the file cannot be
    /// read or is not valid.
    pub fn configured_by_user(self) -> Result<Self, ConfigError> {
        let config = Config::place().map_or_else(|| Ok(Config::default()), |place| Config::read(&place));
        config.map(|config| self.configured(&config))
    }

    /// Returns the hosts that the CLI contacts directly instead of through a gateway; none unless it uses an account
    /// login.
    pub fn hosts(&self) -> Vec<String> {
        self.login.iter().filter(|_| self.uses_login).flat_map(|login| login.hosts.clone()).collect()
    }

    pub fn has_sessions(&self) -> bool {
        !self.start.resume_session.is_empty()
    }

    /// Returns true if the CLI chooses session ids itself instead of accepting one from guard.
    pub fn chooses_session_ids(&self) -> bool {
        self.has_sessions() && self.start.begin_session.is_empty()
    }

    pub(super) fn kind_of_exit(&self, code: i32) -> Option<ErrorKind> {
        self.exits.get(&code.to_string()).copied()
    }

    /// Returns the error kind of the adapter's first rule with a phrase that occurs in `text`; `None` if there is none.
    pub(super) fn kind_of_message(&self, text: &str) -> Option<ErrorKind> {
        let text = text.to_lowercase();
        let matches =
            |rule: &&MessageRule| rule.contains.iter().any(|part| text.contains(&part.to_lowercase()));
        self.message.iter().find(matches).map(|rule| rule.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_adapter_can_be_read() {
        for (name, text) in AGENTS {
            let adapter: Adapter = toml::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(adapter.stream.event.iter().any(|event| event.is_last), "{name} never ends");
            let asks = |place: &str| adapter.start.arguments.iter().any(|word| word.contains(place));
            assert!(asks("{prompt}") && asks("{format}"), "{name} is asked nothing");
            let formats = &adapter.start.formats;
            assert!(formats.contains_key(&OutputFormat::StreamJson), "{name}");
            assert_eq!(formats.contains_key(&OutputFormat::Json), adapter.object.is_some(), "{name}");
            assert!(adapter.exits.keys().all(|code| code.parse::<u8>().is_ok()), "{name}");
            let mut kinds =
                adapter.exits.values().copied().chain(adapter.message.iter().map(|rule| rule.kind));
            assert!(kinds.all(|kind| kind != ErrorKind::Unrecognized), "{name}");
            assert!(
                adapter.presets.iter().all(|preset| crate::judge::policy::preset(preset).is_some()),
                "{name}"
            );
            for part in adapter.login.iter().flat_map(|login| login.replace.keys()) {
                let files = &adapter.start.home_file;
                assert!(files.iter().any(|file| file.text.contains(part.as_str())), "{name}: {part}");
            }
            for file in &adapter.start.home_file {
                let differs = file.terminal_text() != file.text;
                assert_eq!(differs, !file.on_terminal.is_empty(), "{name}: {}", file.path);
                assert!(
                    file.on_terminal.keys().all(|part| file.text.contains(part.as_str())),
                    "{name}: {}",
                    file.path
                );
            }
        }
    }

    #[test]
    fn programs_are_known_by_their_names() {
        let agent = |program: &str| of_program(Path::new(program)).map(|adapter| adapter.name);
        for program in ["gemini", "/usr/bin/gemini", "./node_modules/.bin/gemini"] {
            assert_eq!(agent(program).as_deref(), Some("gemini"), "{program}");
        }
        for program in ["/usr/bin/bash", "gemini.sh", "gemini/run", "", "/"] {
            assert_eq!(agent(program), None, "{program}");
        }
    }
}
