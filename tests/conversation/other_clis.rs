// slow
//! guard's history with the real Claude Code and the real Codex.

use serde_json::Value;

use super::gemini_long::{CONSTRAINT, FACT, QUESTION, TURNS, ends_with_both, prose};
use super::printed_json;
use crate::agent_exec::agents::{Cli, KEY};
use crate::agent_exec::{claude::CLAUDE, codex::CODEX};
use crate::support::UserShell;
use crate::support::http_server::Request;
use crate::support::scripted_api::Turn;
use crate::support::scripted_api::openai::OpenAi;

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
fn own_history_reaches_claude() {
    own_history_carries_a_fact(&CLAUDE);
}

#[test]
fn own_history_reaches_codex() {
    own_history_carries_a_fact(&CODEX);
}

/// Returns all texts in the input of a request to the OpenAI API.
fn texts(request: &Request) -> String {
    let body = request.json();
    let items = body["input"].as_array().cloned().unwrap_or_default();
    let parts = items.iter().filter_map(|item| item["content"].as_array()).flatten();
    parts.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
}

fn is_summary(request: &Request) -> bool {
    texts(request).contains("## Messages to Summarise")
}

/// A model that knows only what the request contains. Its summaries repeat the code word but not the constraint, so
/// guard itself must keep the constraint.
fn model(request: &Request) -> Turn {
    let sent = texts(request);
    let knows = |text: &'static str| if sent.contains(text) { text } else { "unknown" };
    if is_summary(request) {
        return Turn::text(&format!("The user plans a release. The code word is {}.", knows(FACT)));
    }
    if !sent.contains(QUESTION) {
        return Turn::text(&format!("Noted. {}", prose(300, sent.len())));
    }
    Turn::text(&format!("{} / {}", knows(FACT), knows(CONSTRAINT)))
}

/// 25 turns with Codex in the mode `own-history`. The last answer must contain the code word and the constraint of
/// the first message, no prompt may be larger than 16,000 estimated tokens, and `guard history diff` must show what
/// was left out.
#[test]
fn codex_keeps_a_fact_and_a_constraint_for_25_turns() {
    let Some(program) = CODEX.program() else { return };
    let (user, api) = (UserShell::new("conversation-codex-long"), OpenAi::answering(model));
    let [key, address] = CODEX.variables;
    let turn = |message: &str, options: &[&str]| -> Value {
        let mut command = user.command("guard");
        command.env(key, KEY).env(address, api.server.url(""));
        command.args(["chat", "--once", message, "--json"]).args(options);
        if options.is_empty() {
            command.args(["--mode", "own-history", "--agent", "codex", "--"]).arg(&program);
        }
        let result = printed_json(&command.output().unwrap());
        assert_eq!(result["success"], true, "{message}: {result:#}");
        assert!(result["turn"]["estimated_tokens"].as_u64().unwrap() <= 16_000, "{}", result["turn"]);
        result
    };
    let first = format!("The code word is {FACT}. {CONSTRAINT} {}", prose(400, 1));
    let mut results = vec![turn(&first, &[])];
    for number in 2..TURNS {
        results.push(turn(&format!("Step {number}: {}", prose(400, number)), &["--session", "@"]));
    }
    results.push(turn(QUESTION, &["--session", "@"]));
    ends_with_both(&results);
    assert!(api.questions().iter().any(is_summary), "nothing was summarised");
    let diff: Value = serde_json::from_str(&user.types("guard history diff --json")).unwrap();
    assert!(diff["summary"]["pinned"].to_string().contains(CONSTRAINT), "{diff:#}");
    assert!(diff["left_out"][0]["text"].as_str().unwrap().contains(FACT), "{diff:#}");
}
