//! The inspector's command-line mode: a client that is not ours, nor of the same kin.

use std::process::Command;

use serde_json::{Value, json};

use super::server::Served;
use super::{agents, hold_to_schema, installed};
use crate::egress::api::{Api, Turn};
use crate::egress::gemini::Gemini;
use crate::launch::world::{World, one_world, program};

/// Its command, as this person would start it.
fn inspector(world: &World) -> Option<Command> {
    let program = installed("inspector/node_modules/.bin/mcp-inspector", "the MCP inspector")?;
    let mut command = world.command(program);
    // Its own files.
    command.env("HOME", world.temporary());
    command.arg("--cli");
    Some(command)
}

/// What it prints, and how it ends.
fn says(world: &World, target: &[String], words: &[&str]) -> Option<(i32, Value)> {
    let mut command = inspector(world)?;
    agents(&mut command, world, &Gemini::installed()?, "http://127.0.0.1:1");
    command.args(target).args(words);
    let ran = world.finish(command, b"");
    let said = serde_json::from_slice(&ran.output).unwrap_or(json!(String::from_utf8_lossy(&ran.output)));
    assert!(!said.is_null(), "{}", ran.error);
    Some((ran.code, said))
}

/// List, call, and call wrongly.
fn look(world: &World, target: &[String]) -> Option<()> {
    let (code, listed) = says(world, target, &["--method", "tools/list", "--strict"])?;
    assert_eq!(code, 0, "{listed:#}");
    let names: Vec<&str> =
        listed["tools"].as_array()?.iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names, ["gemini", "guard_check", "guard_report", "guard_cancel"]);
    let call = |tool: &str, arguments: &Value| {
        let words =
            ["--method", "tools/call", "--tool-name", tool, "--tool-args-json", &arguments.to_string()];
        let (_, said) = says(world, target, &words)?;
        let structured = said["structuredContent"].clone();
        hold_to_schema(&listed["tools"], tool, &structured);
        assert_eq!(said["isError"] == true, structured["success"] != true, "{said:#}");
        Some(structured)
    };
    let checked = call("guard_check", &json!({ "shell": "git push" }))?;
    assert_eq!(checked["decision"], "deny", "{checked:#}");
    // It makes of a word in the place of a number what it likes; a number that is too small it sends.
    let wrong = call("gemini", &json!({ "PROMPT": "x", "cd": world.folder, "timeout": 0 }))?;
    assert!(
        wrong["error_kind"] == "invalid_input" && wrong["error"].as_str()?.contains("timeout"),
        "{wrong:#}"
    );
    let outside = call("gemini", &json!({ "PROMPT": "x", "cd": "/etc" }))?;
    assert_eq!(outside["error_kind"], "invalid_input");
    Some(())
}

#[test]
fn the_inspector_is_served_over_pipes() {
    let world = one_world();
    let words =
        [program().display().to_string(), "mcp".into(), "--root".into(), world.folder.display().to_string()];
    look(&world, &words);
}

#[test]
fn the_inspector_is_served_over_http_and_asks_the_agent() {
    let Some(gemini) = Gemini::installed() else { return };
    let world = one_world();
    let api = Api::plain(vec![Turn::text("Seen.")]);
    let server = Served::start(&world, &api.server.url(""), &gemini, &[]);
    let header = format!("Authorization: Bearer {}", server.token);
    let target = |header: &str| {
        ["--server-url", &server.url, "--transport", "http", "--header", header].map(str::to_string).to_vec()
    };
    if look(&world, &target(&header)).is_none() {
        return;
    }
    let ask =
        json!({ "PROMPT": "look", "cd": world.folder, "sandbox": "read-only", "model": "gemini-2.5-flash" })
            .to_string();
    let words = ["--method", "tools/call", "--tool-name", "gemini", "--tool-args-json", &ask];
    let (_, said) = says(&world, &target(&header), &words).unwrap();
    assert_eq!(said["structuredContent"]["result"], "Seen.", "{said:#}");
    let (code, said) = says(
        &world,
        &target("Authorization: Bearer wrong"),
        &["--stored-auth-only", "--method", "tools/list"],
    )
    .unwrap();
    assert!(code != 0 && !said.to_string().contains("guard_check"), "{code}: {said:#}");
}
