//! Conversations: what is stored, what agents are told, and what happens when something fails or is killed. Most tests use a
//! scripted agent: a shell script that runs the current message of its prompt.

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

use serde_json::Value;

use crate::support::UserShell;

/// Keeps its prompt in the file `prompt`, and runs the current message. Asked for a summary, it runs `summary.sh` of the
/// directory. A message with the word SILENT makes it silent, LONG-SILENT only if the prompt has more than 8,000 tokens.
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

/// A user with a repository that contains the scripted agent.
pub(super) struct Talk {
    pub(super) user: UserShell,
}

impl Talk {
    /// A user whose agent answers `the summary` when it is asked for one.
    pub(super) fn new(name: &str) -> Self {
        Self::with_summary(name, "echo the summary")
    }

    /// A user whose agent runs this script when it is asked for a summary.
    pub(super) fn with_summary(name: &str, summary: &str) -> Self {
        let user = UserShell::new(name);
        std::fs::write(user.project.join("agent.sh"), AGENT).unwrap();
        std::fs::write(user.project.join("summary.sh"), summary).unwrap();
        user.types("git add . && git commit -qm agent");
        Self { user }
    }

    /// The command of a turn: `guard chat --once MESSAGE --json`, with further options.
    pub(super) fn turn_command(&self, message: &str, options: &[&str]) -> Command {
        let mut command = self.user.command("guard");
        command.args(["chat", &format!("--once={message}"), "--json"]).args(options);
        if !options.contains(&"--session") {
            command.args(["--agent", "generic", "--", "bash", "agent.sh"]);
        }
        command
    }

    /// One turn. Returns the result, whatever it is.
    pub(super) fn turn(&self, message: &str, options: &[&str]) -> Value {
        let output = self.turn_command(message, options).output().unwrap();
        printed_json(&output)
    }

    /// One turn of the newest conversation that succeeds. Returns the answer.
    pub(super) fn says(&self, message: &str) -> String {
        let has_begun = !self.conversations().is_empty();
        let options: &[&str] = if has_begun { &["--session", "@"] } else { &[] };
        let result = self.turn(message, options);
        assert_eq!(result["success"], true, "{message}: {result:#}");
        result["result"].as_str().unwrap().to_string()
    }

    /// What a command of `guard history` prints with `--json`.
    pub(super) fn history(&self, arguments: &[&str]) -> Value {
        let output =
            self.user.command("guard").arg("history").args(arguments).arg("--json").output().unwrap();
        printed_json(&output)
    }

    /// What any command of guard prints on standard output and standard error, and its exit code.
    pub(super) fn guard(&self, arguments: &[&str]) -> (String, String, i32) {
        let output = self.user.command("guard").args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr), output.status.code().unwrap_or(-1))
    }

    /// The directories of the stored conversations.
    pub(super) fn conversations(&self) -> Vec<PathBuf> {
        let root = self.user.home().join(".local/state/guard/conversations");
        let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        found.sort();
        found
    }

    /// The worktree of the newest conversation.
    pub(super) fn worktree(&self) -> PathBuf {
        let shown = self.history(&["show", "@"]);
        PathBuf::from(shown["worktree"]["path"].as_str().unwrap_or_else(|| panic!("{shown:#}")))
    }

    /// The prompt that the agent got last.
    pub(super) fn prompt(&self) -> String {
        std::fs::read_to_string(self.worktree().join("prompt")).unwrap()
    }
}

/// The JSON on a command's standard output.
pub(super) fn printed_json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        panic!("{error}: {}\n{}", text(&output.stdout), text(&output.stderr))
    })
}

/// A text of about this many estimated tokens.
pub(super) fn words(tokens: usize) -> String {
    "word ".repeat(tokens * 4 / 5)
}
