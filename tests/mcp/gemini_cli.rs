// slow
//! The real Gemini CLI is the client. It must be able to connect to a server that `gemini mcp add` configured.

use std::process::Command;

use serde_json::{Value, json};

use super::server::Served;
use crate::egress::gemini::Gemini;
use crate::support::{TestEnvironment, guard_program, one_environment};

/// Returns a command that starts the CLI with its own home.
fn cli(environment: &TestEnvironment, gemini: &Gemini) -> Command {
    let home = environment.temporary_directory().join("home");
    if !home.exists() {
        Gemini::furnish(&home);
        let mut settings = Gemini::settings();
        settings["mcp"] = json!({});
        // The CLI starts no MCP servers in a directory that it does not trust, so the test switches trust checks off.
        settings["security"]["folderTrust"] = json!({ "enabled": false });
        std::fs::write(home.join(".gemini/settings.json"), settings.to_string()).unwrap();
    }
    let mut command = environment.command(gemini.program());
    command
        .env("HOME", home)
        .envs(Gemini::environment())
        .env("GEMINI_API_KEY", "the-key")
        .env("NO_PROXY", "127.0.0.1");
    command
}

/// Adds guard as an MCP server to the CLI, as the documentation says. Returns the CLI's list of servers.
fn add_and_list(environment: &TestEnvironment, gemini: &Gemini, words: &[&str]) -> String {
    let mut add = cli(environment, gemini);
    add.args(["mcp", "add", "--scope", "user", "--timeout", "60000"]).args(words);
    let outcome = environment.run_to_end(add, b"");
    outcome.expect_code(0);
    let settings =
        std::fs::read_to_string(environment.temporary_directory().join("home/.gemini/settings.json"))
            .unwrap();
    let settings: Value = serde_json::from_str(&settings).unwrap();
    assert!(settings["mcpServers"]["guard"].is_object(), "{settings:#}");
    let mut list = cli(environment, gemini);
    list.args(["mcp", "list"]);
    let outcome = environment.run_to_end(list, b"");
    format!("{}{}", String::from_utf8_lossy(&outcome.output), outcome.error)
}

#[test]
fn gemini_cli_connects_over_stdio() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let folder = environment.directory.display().to_string();
    let guard = guard_program().display().to_string();
    let listed = add_and_list(&environment, &gemini, &["guard", &guard, "mcp", "--root", &folder]);
    let line = listed.lines().find(|line| line.contains("guard:")).unwrap_or_default();
    assert!(line.contains("Connected") && !line.contains("Disconnected"), "{listed}");
    assert!(line.contains(&format!("{guard} mcp --root {folder}")), "{listed}");
}

#[test]
fn gemini_cli_connects_over_http_only_with_the_token() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let server = Served::start(&environment, "", &gemini, &[]);
    for (token, is_let_in) in [(server.token.as_str(), true), ("wrong", false)] {
        let header = format!("Authorization: Bearer {token}");
        let words = ["--transport", "http", "--header", &header, "guard", &server.url];
        let listed = add_and_list(&environment, &gemini, &words);
        let line = listed.lines().find(|line| line.contains("guard:")).unwrap_or_default();
        assert_eq!(line.contains("- Connected"), is_let_in, "{listed}");
    }
}
