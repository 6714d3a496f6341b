//! Prepares `guard run` for a CLI that an adapter knows, so that `guard run -- gemini -p "…"` works without
//! any setup other than installing guard and the CLI.
//!
//! Input is the user's command line; output is a [`Profile`] with the arguments, environment and home files to add. The
//! user's own arguments are never changed. Added arguments are inserted before them, and `--dry-run` shows the added
//! arguments.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::agents::adapter::known::{Adapter, CommandLine, OutputFormat};
use crate::judge::policy::{Config, key_variables, preset};

/// How `guard run` runs a command line that the user typed for a known CLI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    pub adapter: Adapter,
    /// Whether the run is unattended, so that the CLI must not ask for approval.
    pub is_unattended: bool,
    pub asks_model: bool,
    /// Arguments to insert before the user's arguments.
    pub added: Vec<String>,
    pub format: OutputFormat,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no API key found for the gateway {gateway}: set {}, or set `key_file` or `key_command` in [gateway.{gateway}] of {config}",
    variables.iter().map(|name| format!("${name}")).collect::<Vec<_>>().join(" or ")
)]
pub struct MissingKey {
    /// The name of the gateway that adds the key to the agent's requests.
    pub gateway: String,
    /// The environment variables that may hold the key, none of which is set.
    pub variables: Vec<String>,
    /// The path of the user's configuration file.
    pub config: String,
}

impl Adapter {
    /// Interprets a command line of this CLI. `arguments` are the arguments after the program name.
    pub fn profile(&self, arguments: &[OsString], has_terminal: bool) -> Profile {
        let line = &self.command_line;
        let is_other = arguments
            .first()
            .is_some_and(|first| line.other_commands.iter().any(|word| first == word.as_str()));
        let is_unattended =
            !has_terminal || line.unattended.iter().any(|option| has_option(arguments, option));
        let is_wanted = |add: &&crate::agents::adapter::known::AddedArguments| {
            (is_unattended || !add.only_unattended)
                && !add.unless.iter().any(|option| has_option(arguments, option))
        };
        let added = line.add.iter().filter(is_wanted).flat_map(|add| add.arguments.clone());
        Profile {
            adapter: self.clone(),
            is_unattended,
            asks_model: !is_other,
            added: if is_other { Vec::new() } else { added.collect() },
            format: line.output_format(arguments),
        }
    }
}

/// Returns the error for the first gateway of these network presets whose key is missing; `None` if no key is missing.
/// `is_set` says whether a variable has a value in the caller's environment.
pub fn missing_key(presets: &[String], config: &Config, is_set: impl Fn(&str) -> bool) -> Option<MissingKey> {
    let gateways = presets.iter().filter_map(|name| preset(name)).flat_map(|preset| preset.gateway);
    for gateway in gateways {
        let own = config.gateway.get(&gateway.name).cloned().unwrap_or_default();
        let variables: Vec<String> = match own.key_variable {
            Some(name) => vec![name],
            None => {
                let usual = key_variables(&gateway.name).unwrap_or_default();
                usual.iter().map(|name| (*name).to_string()).collect()
            }
        };
        let is_elsewhere = own.key_file.is_some() || own.key_command.is_some();
        if !is_elsewhere && !variables.is_empty() && !variables.iter().any(|name| is_set(name)) {
            let place = Config::place();
            let config = place.map_or_else(|| "config.toml".to_string(), |place| place.display().to_string());
            return Some(MissingKey { gateway: gateway.name, variables, config });
        }
    }
    None
}

impl Profile {
    /// Returns the environment variables to set for the CLI: name and value. In a run that a person uses on a terminal,
    /// leaves out the variables in [`CommandLine::of_the_terminal`].
    pub fn environment(&self) -> impl Iterator<Item = (&str, &str)> {
        let of_terminal = &self.adapter.command_line.of_the_terminal;
        let is_users = |name: &str| !self.is_unattended && of_terminal.iter().any(|known| known == name);
        let all = self.adapter.start.environment.iter();
        all.map(|(name, value)| (name.as_str(), value.as_str())).filter(move |(name, _)| !is_users(name))
    }

    /// Returns the files to create in the private home directory of a run that works in `directory`: path and
    /// content.
    pub fn home_files(&self, directory: &Path) -> Vec<(String, String)> {
        let directory = directory.to_string_lossy();
        let quoted = serde_json::Value::from(directory.as_ref()).to_string();
        let fill = |text: &str| text.replace("{directory-json}", &quoted).replace("{directory}", &directory);
        let settings = self.adapter.start.home_file.iter().map(|file| {
            let text = if self.is_unattended { file.text.clone() } else { file.terminal_text() };
            (file.path.clone(), text)
        });
        let history = self.adapter.history.home_file.iter();
        settings.chain(history.map(|file| (file.path.clone(), fill(&file.text)))).collect()
    }

    /// Returns the paths that guard saves for the next run, as pairs: the name under which guard stores the path, and
    /// the path below the home directory of a run that works in `directory`.
    pub fn kept(&self, directory: &Path) -> Vec<(String, String)> {
        let name = directory_name(directory);
        let keep = self.adapter.history.keep.iter();
        keep.map(|path| {
            (path.replace("{directory-name}", "directory"), path.replace("{directory-name}", &name))
        })
        .collect()
    }

    /// Returns the patterns for the files that are conversations, relative to the home directory of a run that works in
    /// `directory`.
    pub fn conversations(&self, directory: &Path) -> Vec<String> {
        let name = directory_name(directory);
        let patterns = self.adapter.history.conversations.iter();
        patterns.map(|pattern| pattern.replace("{directory-name}", &name)).collect()
    }
}

/// Returns the path of a directory as the CLIs encode it in a file name.
fn directory_name(directory: &Path) -> String {
    let path = directory.to_string_lossy();
    path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// Returns true if the arguments before `--` contain an option, by itself or, for a long option, as `--option=value`.
fn has_option(arguments: &[OsString], option: &str) -> bool {
    let is_it = |argument: &OsString| {
        argument == option
            || option.starts_with("--")
                && argument
                    .to_str()
                    .and_then(|text| text.strip_prefix(option))
                    .is_some_and(|rest| rest.starts_with('='))
    };
    before_end_of_options(arguments).any(is_it)
}

/// Returns the arguments before `--`, which ends the options.
fn before_end_of_options(arguments: &[OsString]) -> impl Iterator<Item = &OsString> {
    arguments.iter().take_while(|argument| argument.as_os_str() != OsStr::new("--"))
}

impl CommandLine {
    /// Returns the output format that the arguments select; [`OutputFormat::Text`] by default.
    fn output_format(&self, arguments: &[OsString]) -> OutputFormat {
        let named = |name: &str| {
            [OutputFormat::StreamJson, OutputFormat::Json, OutputFormat::Text]
                .into_iter()
                .find(|format| format.name() == name)
        };
        let mut found = OutputFormat::Text;
        let mut arguments =
            before_end_of_options(arguments).filter_map(|argument| argument.to_str()).peekable();
        while let Some(argument) = arguments.next() {
            let (option, value) =
                argument.split_once('=').map_or((argument, None), |(option, value)| (option, Some(value)));
            if let Some(format) = self.format_flags.get(argument) {
                found = *format;
            } else if self.format_options.iter().any(|known| known == option) {
                let value = value.or_else(|| arguments.peek().copied());
                found = value.and_then(named).unwrap_or(found);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::named;
    use super::*;

    fn profile(words: &str, has_terminal: bool) -> Profile {
        let arguments: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        named("gemini").unwrap_or_else(|| panic!("gemini")).profile(&arguments, has_terminal)
    }

    #[test]
    fn an_unattended_run_gets_what_it_needs_and_nothing_twice() {
        assert_eq!(profile("-p question", true).added, ["--skip-trust", "--approval-mode", "yolo"]);
        assert_eq!(profile("question", false).added, ["--skip-trust", "--approval-mode", "yolo"]);
        assert_eq!(profile("--prompt=question --yolo", true).added, ["--skip-trust"]);
        assert_eq!(profile("--approval-mode=plan -p x --skip-trust", false).added, [] as [&str; 0]);
        // On a terminal the CLI may ask for approval.
        assert_eq!(profile("", true).added, ["--skip-trust"]);
        // Arguments after `--` are the prompt.
        assert_eq!(profile("-- --yolo", false).added, ["--skip-trust", "--approval-mode", "yolo"]);
        let other = profile("mcp list", false);
        assert!(other.added.is_empty() && !other.asks_model);
    }

    #[test]
    fn the_output_format_is_read_from_the_arguments() {
        for (words, format) in [
            ("-p x", OutputFormat::Text),
            ("-p x -o stream-json", OutputFormat::StreamJson),
            ("-p x --output-format=json", OutputFormat::Json),
            ("-p x -o json -o text", OutputFormat::Text),
            ("-- -o json", OutputFormat::Text),
        ] {
            assert_eq!(profile(words, false).format, format, "{words}");
        }
    }

    #[test]
    fn histories_are_filed_under_the_directory_of_the_run() {
        let profile = profile("-p x", false);
        let files = profile.home_files(Path::new("/work/a \"b\""));
        let text = |path: &str| files.iter().find(|(known, _)| known == path).map(|(_, text)| text.clone());
        assert_eq!(
            text(".gemini/projects.json").as_deref(),
            Some(r#"{"projects":{"/work/a \"b\"":"project"}}"#)
        );
        assert_eq!(text(".gemini/tmp/project/.project_root").as_deref(), Some("/work/a \"b\""));
    }

    #[test]
    fn a_missing_key_is_named() {
        let gemini = named("gemini").unwrap_or_else(|| panic!("gemini"));
        let find = |is_set: fn(&str) -> bool| missing_key(&gemini.presets, &Config::default(), is_set);
        let missing = find(|_| false).unwrap_or_else(|| panic!("none is missing"));
        assert!(
            missing.to_string().contains("$GEMINI_API_KEY")
                && missing.to_string().contains("[gateway.gemini]")
        );
        assert_eq!(find(|name| name == "GEMINI_API_KEY"), None);
    }
}
