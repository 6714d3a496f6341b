//! Tests conversations: what guard stores, what it tells agents, and what happens when something fails or is killed.
//! Most tests use a scripted agent: a shell script that runs the current message of its prompt.

mod commands;
mod compaction;
mod control;
mod failures;
mod gemini_long;
mod interruptions;
mod messages;
mod other_clis;
mod sessions;
mod undo;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::Value;

use crate::agent_exec::{fits, schema};
use crate::support::UserShell;

/// The scripted agent. It writes its prompt to the file `prompt`, and runs the current message. When asked for a
/// summary, it runs `summary.sh` of the directory. It does not answer a message with the word SILENT, nor one with
/// LONG-SILENT if the prompt has more than 8,000 tokens.
const AGENT: &str = r#"prompt=$(cat)
case "$prompt" in
*'## Messages to Summarise'*) . ./summary.sh; exit ;;
*LONG-SILENT*) if ((${#prompt} > 32000)); then sleep 60; fi ;;
*SILENT*) sleep 60 ;;
esac
printf '%s' "$prompt" > prompt
current=${prompt##*$'## Current Message\n'}
eval -- "$current"
"#;

/// A user's home and repository. The repository contains the script of the agent.
pub(super) struct Talk {
    pub(super) user: UserShell,
}

impl Talk {
    /// Creates a home directory and a repository with the scripted agent. When guard asks the agent for a summary,
    /// the agent answers with the text `the summary`.
    pub(super) fn new(name: &str) -> Self {
        Self::with_summary(name, "echo the summary")
    }

    /// Creates a home directory and a repository with the scripted agent. When guard asks the agent for a summary,
    /// the agent runs the script `summary`.
    pub(super) fn with_summary(name: &str, summary: &str) -> Self {
        let user = UserShell::new(name);
        std::fs::write(user.project.join("agent.sh"), AGENT).unwrap();
        std::fs::write(user.project.join("summary.sh"), summary).unwrap();
        user.types("git add . && git commit -qm agent");
        Self { user }
    }

    /// Returns the command of a turn: `guard chat --once MESSAGE --json`, with further options.
    pub(super) fn turn_command(&self, message: &str, options: &[&str]) -> Command {
        let mut command = self.user.command("guard");
        command.args(["chat", &format!("--once={message}"), "--json"]).args(options);
        if !options.contains(&"--session") {
            command.args(["--agent", "generic", "--", "bash", "agent.sh"]);
        }
        command
    }

    /// Sends a message as one turn of a conversation. Returns the result, even if the turn failed. The result must
    /// match the published schema.
    pub(super) fn turn(&self, message: &str, options: &[&str]) -> Value {
        static SCHEMA: LazyLock<jsonschema::Validator> = LazyLock::new(|| schema("chat-result.schema.json"));
        let output = self.turn_command(message, options).output().unwrap();
        let result = printed_json(&output);
        if result.get("turn").is_some() {
            fits(&SCHEMA, &result);
        }
        result
    }

    /// Sends a message as the next turn of the newest conversation, which must succeed. Returns the agent's answer.
    pub(super) fn says(&self, message: &str) -> String {
        let has_begun = !self.conversations().is_empty();
        let options: &[&str] = if has_begun { &["--session", "@"] } else { &[] };
        let result = self.turn(message, options);
        assert_eq!(result["success"], true, "{message}: {result:#}");
        result["result"].as_str().unwrap().to_string()
    }

    /// Returns what a command of `guard history` prints with `--json`.
    pub(super) fn history(&self, arguments: &[&str]) -> Value {
        let output =
            self.user.command("guard").arg("history").args(arguments).arg("--json").output().unwrap();
        printed_json(&output)
    }

    /// Runs any command of guard. Returns its standard output, its standard error and its exit code.
    pub(super) fn guard(&self, arguments: &[&str]) -> (String, String, i32) {
        let output = self.user.command("guard").args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr), output.status.code().unwrap_or(-1))
    }

    /// Returns the directories of the stored conversations.
    pub(super) fn conversations(&self) -> Vec<PathBuf> {
        let root = self.user.home().join(".local/state/guard/conversations");
        let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        found.sort();
        found
    }

    /// Returns the worktree of the newest conversation.
    pub(super) fn worktree(&self) -> PathBuf {
        let shown = self.history(&["show", "@"]);
        PathBuf::from(shown["worktree"]["path"].as_str().unwrap_or_else(|| panic!("{shown:#}")))
    }

    /// Returns the last prompt that the agent got.
    pub(super) fn prompt(&self) -> String {
        std::fs::read_to_string(self.worktree().join("prompt")).unwrap()
    }
}

/// Parses a command's standard output as JSON.
pub(super) fn printed_json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        panic!("{error}: {}\n{}", text(&output.stdout), text(&output.stderr))
    })
}

/// Returns a text of about this many estimated tokens.
pub(super) fn words(tokens: usize) -> String {
    "word ".repeat(tokens * 4 / 5)
}
