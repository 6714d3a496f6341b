//! Tests `guard research` with a scripted agent, and with the real Gemini CLI and a scripted API.

mod command_line;
mod interrupted;
mod second_agent;
mod speed;
mod with_gemini;

use std::path::Path;
use std::sync::LazyLock;

use serde_json::Value;

use crate::support::{UserShell, make_program};

/// The beginning of an agent that acts like the Gemini CLI. If the prompt asks for a sub-query, `$question` contains
/// it.
const AGENT: &str = r#"#!/bin/bash
for word in "$@"; do
  case "$before" in --session-id | --resume) session=$word ;; esac
  case "$word" in --prompt=*) prompt=${word#--prompt=} ;; esac
  before=$word
done
printf '{"type":"init","session_id":"%s"}\n' "$session"
say() {
  printf '{"type":"message","role":"assistant","content":%s}\n' "$1"
  printf '{"type":"result","status":"success","stats":{}}\n'
  exit 0
}
fail() {
  printf '{"type":"result","status":"error","error":{"type":"error","message":"%s"}}\n' "$1"
  exit 1
}
question=${prompt##*$'\n\n'}
"#;

/// A home directory with a repository, in which `gemini` is a script that prints a plan, an answer for each
/// sub-query, and a synthesis.
pub(crate) struct Researcher {
    pub(crate) user: UserShell,
}

impl Researcher {
    /// Installs the scripted agent. The three scripts are bodies of `case` arms that end with `say` or `fail`.
    pub(crate) fn new(name: &str, plan: &str, sub_query: &str, synthesis: &str) -> Self {
        let user = UserShell::new(name);
        let script = format!(
            "{AGENT}case \"$prompt\" in\n\"You plan\"*) {plan} ;;\n\"You research\"*) {sub_query} ;;\n\"You combine\"*) {synthesis} ;;\n\
             *) say '\"[]\"' ;;\nesac\nfail unexpected\n"
        );
        std::fs::create_dir_all(user.home().join("bin")).unwrap();
        make_program(&user.home().join("bin/gemini"), script);
        Self { user }
    }

    /// Returns shell lines that put the scripted agent on PATH and set an API key.
    pub(crate) fn preamble() -> &'static str {
        "export PATH=~/bin:$PATH GEMINI_API_KEY=key\n"
    }

    /// Runs commands with the scripted agent. Returns their output, and the exit code of the last one.
    pub(crate) fn ends(&self, script: &str) -> (String, i32) {
        self.user.ends(&format!("{}{script}", Self::preamble()))
    }

    /// Returns the ids of the stored research runs.
    pub(crate) fn ids(&self) -> Vec<String> {
        let folder = self.user.home().join(".local/state/guard/research");
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

/// A script line that prints a plan with five sub-queries about quantum computing.
pub(crate) const PLAN: &str =
    r#"say '"Here it is:\n[\"hardware\", \"correction\", \"algorithms\", \"vendors\", \"markets\"]"'"#;

/// Parses lines of events. Fails unless each line matches its published schema.
pub(crate) fn events(lines: &str) -> Vec<Value> {
    static SCHEMAS: LazyLock<Vec<(String, jsonschema::Validator)>> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas/events");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let read = |path: std::path::PathBuf| {
            let schema: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().replace(".schema.json", "");
            (name, jsonschema::validator_for(&schema).unwrap())
        };
        files.map(read).collect()
    });
    let parse = |line: &str| -> Value {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let schema = SCHEMAS.iter().find(|(name, _)| event["event_type"] == name.as_str());
        let (_, validator) = schema.unwrap_or_else(|| panic!("no schema: {line}"));
        let problems: Vec<String> =
            validator.iter_errors(&event).map(|problem| problem.to_string()).collect();
        assert!(problems.is_empty(), "{}\n{line}", problems.join("\n"));
        let time = event["timestamp"].as_str().unwrap();
        assert!(time.parse::<jiff::Timestamp>().is_ok() && time.ends_with('Z'), "{time}");
        event
    };
    lines.lines().filter(|line| line.starts_with('{')).map(parse).collect()
}

/// Returns the types of these events.
pub(crate) fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event_type"].as_str().unwrap()).collect()
}
