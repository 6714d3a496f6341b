//! The real Gemini CLI as a client: what `gemini mcp add` writes leads to a server that it can talk to.

use std::process::Command;

use serde_json::{Value, json};

use super::server::Served;
use crate::egress::gemini::Gemini;
use crate::launch::world::{World, one_world, program};

/// The CLI in this world, with a home of its own.
fn cli(world: &World, gemini: &Gemini) -> Command {
    let home = world.temporary().join("home");
    if !home.exists() {
        Gemini::furnish(&home);
        let mut settings = Gemini::settings();
        settings["mcp"] = json!({});
        // A directory that is not trusted has no servers.
        settings["security"]["folderTrust"] = json!({ "enabled": false });
        std::fs::write(home.join(".gemini/settings.json"), settings.to_string()).unwrap();
    }
    let mut command = world.command(gemini.program());
    command
        .env("HOME", home)
        .envs(Gemini::environment())
        .env("GEMINI_API_KEY", "the-key")
        .env("NO_PROXY", "127.0.0.1");
    command
}

/// Adds a server as the README says, and lists what the CLI can reach.
fn add_and_list(world: &World, gemini: &Gemini, words: &[&str]) -> String {
    let mut add = cli(world, gemini);
    add.args(["mcp", "add", "--scope", "user"]).args(words);
    let ran = world.finish(add, b"");
    assert_eq!(ran.code, 0, "{}", ran.error);
    let settings = std::fs::read_to_string(world.temporary().join("home/.gemini/settings.json")).unwrap();
    let settings: Value = serde_json::from_str(&settings).unwrap();
    assert!(settings["mcpServers"]["guard"].is_object(), "{settings:#}");
    let mut list = cli(world, gemini);
    list.args(["mcp", "list"]);
    let ran = world.finish(list, b"");
    format!("{}{}", String::from_utf8_lossy(&ran.output), ran.error)
}

#[test]
fn the_gemini_cli_finds_guard_over_pipes() {
    let Some(gemini) = Gemini::installed() else { return };
    let world = one_world();
    let folder = world.folder.display().to_string();
    let guard = program().display().to_string();
    let listed = add_and_list(&world, &gemini, &["guard", &guard, "mcp", "--root", &folder]);
    let line = listed.lines().find(|line| line.contains("guard:")).unwrap_or_default();
    assert!(line.contains("Connected") && !line.contains("Disconnected"), "{listed}");
    assert!(line.contains(&format!("{guard} mcp --root {folder}")), "{listed}");
}

#[test]
fn the_gemini_cli_finds_guard_over_http_with_the_token_only() {
    let Some(gemini) = Gemini::installed() else { return };
    let world = one_world();
    let server = Served::start(&world, "", &gemini, &[]);
    for (token, is_let_in) in [(server.token.as_str(), true), ("wrong", false)] {
        let header = format!("Authorization: Bearer {token}");
        let words = ["--transport", "http", "--header", &header, "guard", &server.url];
        let listed = add_and_list(&world, &gemini, &words);
        let line = listed.lines().find(|line| line.contains("guard:")).unwrap_or_default();
        assert_eq!(line.contains("- Connected"), is_let_in, "{listed}");
    }
}
