//! What is known of a CLI, and what it is started with.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

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
    /// The oldest version that is known to work.
    pub oldest: Option<String>,
    /// The newest that was tried.
    pub newest: Option<String>,
    /// The package that says its version.
    pub package: Option<String>,
    /// Network presets it needs.
    #[serde(default)]
    pub presets: Vec<String>,
    /// The model, unless one is asked for.
    pub model: Option<String>,
    /// How it is started.
    pub start: Start,
    /// How its output is read.
    pub stream: Stream,
    /// What its exit codes mean.
    #[serde(default)]
    pub exits: BTreeMap<String, String>,
    /// What its words mean, where its code says nothing.
    #[serde(default)]
    pub message: Vec<MessageRule>,
}

/// How a CLI is started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// Its arguments: `{prompt}`, `{model}`, `{approval}`. A pair that names a model is left out where there is none.
    pub arguments: Vec<String>,
    /// Words for `{approval}`.
    #[serde(default)]
    pub approval: Approval,
    /// What the prompt is when the real one is too long for a command line and goes to standard input.
    pub long_prompt: Option<String>,
    /// More arguments for a session that begins: `{session}`.
    #[serde(default)]
    pub begin_session: Vec<String>,
    /// More for one that goes on.
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
    /// What is in it.
    pub text: String,
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

/// What one kind of line means. Values are found by keys with dots between.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventRule {
    /// The kind.
    pub kind: String,
    /// What we call it.
    pub becomes: String,
    /// Where a line for people is.
    pub text: Option<String>,
    /// Where the session's id is.
    pub session: Option<String>,
    /// `text` is part of the answer when this holds.
    pub answer_when: Option<When>,
    /// Where the whole answer is.
    pub answer: Option<String>,
    /// Nothing comes after it.
    #[serde(default)]
    pub is_last: bool,
    /// It says that all went well when this holds.
    pub success_when: Option<When>,
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
    pub value: String,
}

/// What words of a message mean.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageRule {
    /// Any of these, in whatever case.
    pub contains: Vec<String>,
    /// The kind of error.
    pub kind: String,
}

/// A longer prompt is no word of a command line.
const LONG_PROMPT: usize = 100 << 10;

/// A longer one is not taken even on standard input: the CLI repeats it in its stream, and ends without waiting until
/// more than a pipe holds has been read.
const LONGEST_PROMPT: usize = 512 << 10;

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

/// What an agent is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ask {
    /// The prompt.
    pub prompt: String,
    /// The model; the adapter's own unless given.
    pub model: Option<String>,
    /// It asks nobody.
    pub yolo: bool,
    /// The session, and whether it is to go on.
    pub session: Option<(String, bool)>,
}

/// How an agent is started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Invocation {
    /// The program's arguments.
    pub arguments: Vec<String>,
    /// What it reads on standard input.
    pub input: Option<String>,
    /// Variables.
    pub environment: Vec<(String, String)>,
    /// Files of the private home.
    pub home_files: Vec<(String, String)>,
    /// Network presets.
    pub presets: Vec<String>,
    /// What of the home is a session's.
    pub keep: Vec<String>,
}

impl Adapter {
    /// How it is asked this.
    pub fn invocation(&self, ask: &Ask) -> Invocation {
        let model = ask.model.as_ref().or(self.model.as_ref());
        let approval = if ask.yolo { &self.start.approval.yolo } else { &self.start.approval.asks };
        let short = self.start.long_prompt.as_ref().filter(|_| ask.prompt.len() > LONG_PROMPT);
        let (prompt, input) = match short {
            Some(short) => (short, Some(ask.prompt.clone())),
            None => (&ask.prompt, None),
        };
        let mut arguments: Vec<String> = Vec::new();
        if let Some((session, goes_on)) = &ask.session {
            let more = if *goes_on { &self.start.resume_session } else { &self.start.begin_session };
            arguments.extend(more.iter().map(|word| word.replace("{session}", session)));
        }
        for word in &self.start.arguments {
            if word.contains("{model}") && model.is_none() {
                // The option before it goes too.
                arguments.pop();
                continue;
            }
            // The prompt last: what it contains is not looked at again.
            let word = word
                .replace("{approval}", approval)
                .replace("{model}", model.map(String::as_str).unwrap_or_default());
            arguments.push(word.replace("{prompt}", prompt));
        }
        Invocation {
            arguments,
            input,
            environment: self
                .start
                .environment
                .iter()
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            home_files: self
                .start
                .home_file
                .iter()
                .map(|file| (file.path.clone(), file.text.clone()))
                .collect(),
            presets: self.presets.clone(),
            keep: self.start.keep.clone(),
        }
    }

    /// The longest prompt it can be given.
    pub fn longest_prompt(&self) -> usize {
        if self.start.long_prompt.is_some() { LONGEST_PROMPT } else { LONG_PROMPT }
    }

    /// Whether it has sessions that can go on.
    pub fn has_sessions(&self) -> bool {
        !self.start.resume_session.is_empty()
    }

    /// The kind of error an exit code means.
    pub(super) fn kind_of_exit(&self, code: i32) -> Option<&str> {
        self.exits.get(&code.to_string()).map(String::as_str)
    }

    /// The kind of error that words mean.
    pub(super) fn kind_of_words(&self, words: &str) -> Option<&str> {
        let words = words.to_lowercase();
        let fits =
            |rule: &&MessageRule| rule.contains.iter().any(|part| words.contains(&part.to_lowercase()));
        self.message.iter().find(fits).map(|rule| rule.kind.as_str())
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
            assert!(
                adapter.start.arguments.iter().any(|word| word.contains("{prompt}")),
                "{name} is asked nothing"
            );
            assert!(adapter.exits.keys().all(|code| code.parse::<u8>().is_ok()), "{name}");
            assert!(adapter.presets.iter().all(|preset| crate::policy::preset(preset).is_some()), "{name}");
        }
        assert_eq!(
            of_program(Path::new("/usr/bin/gemini")).map(|adapter| adapter.name),
            Some("gemini".to_string())
        );
        assert_eq!(of_program(Path::new("/usr/bin/bash")), None);
    }

    #[test]
    fn how_it_is_asked() {
        let gemini = named("gemini").unwrap_or_else(|| panic!("gemini"));
        let ask = Ask {
            prompt: "-x {model} {prompt}".into(),
            yolo: true,
            session: Some(("s".into(), true)),
            ..Ask::default()
        };
        let words = gemini.invocation(&ask).arguments;
        assert_eq!(words[..2], ["--resume", "s"]);
        assert!(words.contains(&"--prompt=-x {model} {prompt}".to_string()), "{words:?}");
        assert!(words.windows(2).any(|pair| pair == ["--model", "gemini-3-pro-preview"]), "{words:?}");
        assert!(words.windows(2).any(|pair| pair == ["--approval-mode", "yolo"]), "{words:?}");
        let claude = named("claude").unwrap_or_else(|| panic!("claude"));
        let words = claude.invocation(&Ask { prompt: "p".into(), ..Ask::default() }).arguments;
        assert!(!words.iter().any(|word| word == "--model"), "{words:?}");
    }
}
