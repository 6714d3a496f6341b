//! What is known of a CLI: the shape of the files in `policies/agents/`.

use std::collections::BTreeMap;
use std::path::Path;

use crate::outcome::ErrorKind;
use crate::transcript::EventType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::policy::{Config, ConfigError};

/// How a CLI prints what it does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OutputFormat {
    /// An object on each line as it goes on, the last one saying how it ended.
    #[default]
    StreamJson,
    /// One object at the end.
    Json,
    /// Words for people. Nothing in them says that all went well: the code and an answer must do.
    Text,
}

impl OutputFormat {
    /// As a request names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::StreamJson => "stream-json",
            Self::Json => "json",
            Self::Text => "text",
        }
    }
}

/// Everything that is special about one CLI.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// Its name; the file's.
    #[serde(skip)]
    pub name: String,
    /// What it is.
    pub description: String,
    /// Names of the program.
    pub programs: Vec<String>,
    /// The project's tests drive the real program.
    pub is_tested: bool,
    /// The oldest version that can be driven, and why.
    pub oldest: Option<Oldest>,
    /// The newest that was tried.
    pub newest: Option<String>,
    /// The package that says its version.
    pub package: Option<String>,
    /// Network presets it needs.
    #[serde(default)]
    pub presets: Vec<String>,
    /// The model, unless one is asked for.
    pub model: Option<String>,
    /// Models that are asked for by another name than their own.
    #[serde(default)]
    pub models: BTreeMap<String, String>,
    /// How it is started.
    pub start: Start,
    /// The command lines that users write for it.
    #[serde(default)]
    pub command_line: CommandLine,
    /// What `guard run` keeps of its home for the next run in the same repository.
    #[serde(default)]
    pub history: History,
    /// How its output is read in the format `stream-json`.
    pub stream: Stream,
    /// How its one object is read in the format `json`.
    pub object: Option<EventRule>,
    /// What its exit codes mean.
    #[serde(default)]
    pub exits: BTreeMap<String, ErrorKind>,
    /// What its words mean, where its code says nothing.
    #[serde(default)]
    pub message: Vec<MessageRule>,
    /// How it says when a quota is there again.
    #[serde(default)]
    pub quota: Quota,
    /// A login that is no key.
    pub login: Option<Login>,
    /// The login is used instead of a key.
    #[serde(skip)]
    pub uses_login: bool,
}

/// A login with an account instead of a key, for users who let runs copy it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The credential file, below the home directory.
    pub file: String,
    /// Values in it that the CLI replaces when it refreshes the login: JSON keys with dots between.
    pub refreshed: Vec<String>,
    /// How a person logs in.
    pub how: String,
    /// Hosts that the CLI then talks to itself, instead of the adapter's network presets.
    pub hosts: Vec<String>,
    /// Parts of the home files' texts, and what stands there instead.
    #[serde(default)]
    pub replace: BTreeMap<String, String>,
}

/// The oldest version that can be driven.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Oldest {
    /// Its number.
    pub version: String,
    /// What the ones before it lack.
    pub reason: String,
}

/// How a CLI says when a quota is there again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// After these words comes the time to wait.
    #[serde(default)]
    pub wait_after: Vec<String>,
    /// These words say that a day's quota is used up.
    #[serde(default)]
    pub daily: Vec<String>,
    /// The time zone at whose midnight the next day's quota begins.
    pub day_begins_in: Option<String>,
}

/// How a CLI is started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// Its arguments: `{prompt}`, `{model}`, `{approval}`, `{format}`, and `{session}` where the arguments of a session go
    /// (before all others unless it is there). A pair that names a model is left out where there is none, and so is a word
    /// that comes to nothing.
    pub arguments: Vec<String>,
    /// What stands for `{format}`, for each format it has.
    pub formats: BTreeMap<OutputFormat, Vec<String>>,
    /// Beginnings by which it would take a prompt for a command of its own, and what makes text of them.
    #[serde(default)]
    pub leading: BTreeMap<String, String>,
    /// Words for `{approval}`.
    #[serde(default)]
    pub approval: Approval,
    /// What the prompt is when the real one is too long for a command line and goes to standard input.
    pub long_prompt: Option<String>,
    /// More arguments for a session that begins: `{session}` is its id. A CLI that chooses the id of a session itself has
    /// none of them; the id is then taken from its output.
    #[serde(default)]
    pub begin_session: Vec<String>,
    /// More for one that goes on; `{session}` is the id the CLI knows it by.
    #[serde(default)]
    pub resume_session: Vec<String>,
    /// What of the home is a session's.
    #[serde(default)]
    pub keep: Vec<String>,
    /// Variables.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Files of the private home.
    #[serde(default)]
    pub home_file: Vec<HomeFile>,
}

/// The command lines that users write for a CLI, as far as `guard run` must understand them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommandLine {
    /// First arguments with which it does something else than talk to a model: nothing is added, and it needs no key.
    pub other_commands: Vec<String>,
    /// Arguments by which nobody watches it, whatever it is connected to.
    pub unattended: Vec<String>,
    /// Arguments that guard puts before the user's.
    pub add: Vec<AddedArguments>,
    /// Options whose value is the name of an output format, and options that stand for one.
    pub format_options: Vec<String>,
    /// Options that choose an output format by themselves.
    pub format_flags: BTreeMap<String, OutputFormat>,
    /// Variables of [`Start::environment`] that are the user's own where there is a terminal.
    pub of_the_terminal: Vec<String>,
}

/// Arguments that guard puts before the user's.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddedArguments {
    /// What is added.
    pub arguments: Vec<String>,
    /// Not when the user has written one of these.
    #[serde(default)]
    pub unless: Vec<String>,
    /// Only when nobody watches.
    #[serde(default)]
    pub only_unattended: bool,
}

/// What `guard run` keeps of a CLI's home for the next run in the same repository. CLIs file conversations under the directory
/// they were held in; every run has another one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct History {
    /// Files and directories below the home. `{directory-name}` stands for the working directory as the CLI writes it in the
    /// name of a file: everything but letters and digits is a dash.
    pub keep: Vec<String>,
    /// Files that tell the CLI that this directory is the one of its history. `{directory}` stands for the working
    /// directory, `{directory-json}` for the same as a JSON string.
    pub home_file: Vec<HomeFile>,
}

/// Words by which a CLI is told whether to ask.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// It asks nobody.
    pub yolo: String,
    /// It would ask.
    pub asks: String,
}

/// A file of the private home.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HomeFile {
    /// From the home.
    pub path: String,
    /// What is in it. `{NAME-port}` stands for the port on loopback of the gateway NAME, and `{directory}` for the working
    /// tree of the run, escaped as inside a string in double quotes.
    pub text: String,
    /// Parts of the text that are others when a person uses the CLI on a terminal.
    #[serde(default)]
    pub on_terminal: BTreeMap<String, String>,
}

impl HomeFile {
    /// What is in it, for a CLI that a person uses on a terminal.
    pub fn terminal_text(&self) -> String {
        self.on_terminal.iter().fold(self.text.clone(), |text, (part, other)| text.replace(part, other))
    }
}

/// How a CLI's output is read: a JSON object on each line.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// The key that says what a line is.
    pub kind_key: String,
    /// Lines that are known.
    pub event: Vec<EventRule>,
}

/// What one kind of line means. Values are found by keys with dots between; a number is a place in a list, and of several
/// paths with `|` between them the first that leads to something counts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventRule {
    /// The kind.
    pub kind: String,
    /// Only lines for which this holds. The first rule that fits a line counts.
    pub when: Option<When>,
    /// What we call it.
    pub becomes: EventType,
    /// Where a line for people is.
    pub text: Option<String>,
    /// Where the session's id is.
    pub session: Option<String>,
    /// `text` is part of the answer when this holds.
    pub answer_when: Option<When>,
    /// What was said before it was talk on the way to the answer.
    #[serde(default)]
    pub restarts_answer: bool,
    /// Where the whole answer is. Without it nothing went well.
    pub answer: Option<String>,
    /// Nothing comes after it.
    #[serde(default)]
    pub is_last: bool,
    /// It says that all went well when all of this holds.
    #[serde(default)]
    pub success_when: Vec<When>,
    /// And when nothing is here.
    pub success_unless: Option<String>,
    /// Where it says what went wrong.
    pub error: Option<String>,
    /// Where it says what was used.
    pub usage: Option<String>,
}

/// A value that must be there.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// Where.
    pub key: String,
    /// What.
    pub value: Value,
}

/// What words of a message mean.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageRule {
    /// Any of these, in whatever case.
    pub contains: Vec<String>,
    /// The kind of error.
    pub kind: ErrorKind,
}

/// Name and text of every adapter.
pub const AGENTS: [(&str, &str); 4] = [
    ("gemini", include_str!("../../policies/agents/gemini.toml")),
    ("claude", include_str!("../../policies/agents/claude.toml")),
    ("codex", include_str!("../../policies/agents/codex.toml")),
    ("agy", include_str!("../../policies/agents/agy.toml")),
];

/// The adapter of this name.
pub fn named(name: &str) -> Option<Adapter> {
    let (name, text) = AGENTS.iter().find(|(known, _)| *known == name)?;
    let adapter: Adapter = toml::from_str(text).ok()?;
    Some(Adapter { name: (*name).to_string(), ..adapter })
}

/// The adapter for a program, by its file's name.
pub fn of_program(program: &Path) -> Option<Adapter> {
    let name = program.file_name()?.to_str()?;
    AGENTS
        .iter()
        .filter_map(|(agent, _)| named(agent))
        .find(|adapter| adapter.programs.iter().any(|known| known == name))
}

impl Adapter {
    /// The adapter as the user's configuration wants it: with the login instead of a key where that is asked for.
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

    /// The same, with the configuration of the user who runs this process.
    pub fn configured_by_user(self) -> Result<Self, ConfigError> {
        let config = Config::place().map_or_else(|| Ok(Config::default()), |place| Config::read(&place));
        config.map(|config| self.configured(&config))
    }

    /// Hosts that the CLI talks to without a gateway.
    pub fn hosts(&self) -> Vec<String> {
        self.login.iter().filter(|_| self.uses_login).flat_map(|login| login.hosts.clone()).collect()
    }

    /// Whether it has sessions that can go on.
    pub fn has_sessions(&self) -> bool {
        !self.start.resume_session.is_empty()
    }

    /// Whether the CLI chooses the id of a session, instead of taking one.
    pub fn chooses_session_ids(&self) -> bool {
        self.has_sessions() && self.start.begin_session.is_empty()
    }

    /// The kind of error an exit code means.
    pub(super) fn kind_of_exit(&self, code: i32) -> Option<ErrorKind> {
        self.exits.get(&code.to_string()).copied()
    }

    /// The kind of error that words mean.
    pub(super) fn kind_of_words(&self, words: &str) -> Option<ErrorKind> {
        let words = words.to_lowercase();
        let fits =
            |rule: &&MessageRule| rule.contains.iter().any(|part| words.contains(&part.to_lowercase()));
        self.message.iter().find(fits).map(|rule| rule.kind)
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
            assert!(adapter.presets.iter().all(|preset| crate::policy::preset(preset).is_some()), "{name}");
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
