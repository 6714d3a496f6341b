//! guard's history with the real Claude Code and the real Codex.

use serde_json::Value;

use super::printed_json;
use crate::agent_exec::agents::{Cli, KEY};
use crate::agent_exec::{claude::CLAUDE, codex::CODEX};
use crate::support::UserShell;
use crate::support::scripted_api::Turn;

/// Three turns in the mode `own-history`: guard must send the earlier messages to the CLI in the prompt, and all
/// turns must use one worktree.
fn own_history_carries_a_fact(cli: &Cli) {
    let Some(program) = cli.program() else { return };
    let user = UserShell::new(&format!("conversation-{}", cli.agent));
    let api = (cli.api)(vec![
        Turn::text("I will remember plum."),
        (cli.write)("made-by-the-agent", "work\n"),
        Turn::text("Written."),
        Turn::text("It was plum."),
    ]);
    let turn = |message: &str, options: &[&str]| -> Value {
        let [key, address] = cli.variables;
        let mut command = user.command("guard");
        command
            .env(key, KEY)
            .env(address, api.url())
            .args(["chat", "--once", message, "--json"])
            .args(options);
        if !options.contains(&"--session") {
            command.args(["--mode", "own-history", "--agent", cli.agent, "--"]).arg(&program);
        }
        let result = printed_json(&command.output().unwrap());
        assert_eq!(result["success"], true, "{message}: {result:#}");
        result
    };
    turn("the word is plum", &[]);
    let two = turn("write a file", &["--session", "@"]);
    let three = turn("which word?", &["--session", "@"]);
    assert_eq!((&three["result"], &three["turn"]["mode"]), (&"It was plum.".into(), &"own-history".into()));
    assert_eq!(three["worktree"]["path"], two["worktree"]["path"]);
    assert_eq!(three["worktree"]["uncommitted"], serde_json::json!(["made-by-the-agent"]), "{three:#}");
    let sent = api.questions().last().unwrap().json().to_string();
    for expected in ["User: the word is plum", "Assistant: I will remember plum.", "Assistant: Written."] {
        assert!(sent.contains(expected), "{expected}: {sent}");
    }
}

#[test]
fn claude_code_is_told_the_history() {
    own_history_carries_a_fact(&CLAUDE);
}

#[test]
fn codex_is_told_the_history() {
    own_history_carries_a_fact(&CODEX);
}
