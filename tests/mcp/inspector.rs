// slow
//! Tests `guard mcp` with the command line of the MCP inspector, an independent client.

use std::process::Command;

use serde_json::{Value, json};

use super::server::Served;
use super::{agents, hold_to_schema, installed};
use crate::egress::gemini::Gemini;
use crate::support::scripted_api::{Api, Turn};
use crate::support::{TestEnvironment, guard_program, one_environment};

/// Returns the command that starts the inspector.
fn inspector(environment: &TestEnvironment) -> Option<Command> {
    let program = installed("inspector/node_modules/.bin/mcp-inspector", "the MCP inspector")?;
    let mut command = environment.command(program);
    // The inspector writes its own files into its home.
    command.env("HOME", environment.temporary_directory());
    command.arg("--cli");
    Some(command)
}

/// Runs the inspector. Returns its exit code and its output.
fn says(environment: &TestEnvironment, target: &[String], words: &[&str]) -> Option<(i32, Value)> {
    let mut command = inspector(environment)?;
    agents(&mut command, environment, &Gemini::installed()?, "http://127.0.0.1:1");
    command.args(target).args(words);
    let outcome = environment.run_to_end(command, b"");
    let said =
        serde_json::from_slice(&outcome.output).unwrap_or(json!(String::from_utf8_lossy(&outcome.output)));
    assert!(!said.is_null(), "{outcome}");
    Some((outcome.code, said))
}

/// Lists the tools, calls one tool with valid arguments, and calls another tool with invalid arguments.
fn look(environment: &TestEnvironment, target: &[String]) -> Option<()> {
    let (code, listed) = says(environment, target, &["--method", "tools/list", "--strict"])?;
    assert_eq!(code, 0, "{listed:#}");
    let names: Vec<&str> =
        listed["tools"].as_array()?.iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names[..4], ["gemini", "guard_check", "guard_report", "guard_cancel"]);
    let call = |tool: &str, arguments: &Value| {
        let words =
            ["--method", "tools/call", "--tool-name", tool, "--tool-args-json", &arguments.to_string()];
        let (_, said) = says(environment, target, &words)?;
        let structured = said["structuredContent"].clone();
        hold_to_schema(&listed["tools"], tool, &structured);
        assert_eq!(said["isError"] == true, structured["success"] != true, "{said:#}");
        Some(structured)
    };
    let checked = call("guard_check", &json!({ "shell": "git push" }))?;
    assert_eq!(checked["decision"], "deny", "{checked:#}");
    // The inspector converts a text in place of a number by itself, so the test uses a number that is too small,
    // which it sends unchanged.
    let wrong = call("gemini", &json!({ "PROMPT": "x", "cd": environment.directory, "timeout": 0 }))?;
    assert!(
        wrong["error_kind"] == "invalid_input" && wrong["error"].as_str()?.contains("timeout"),
        "{wrong:#}"
    );
    let outside = call("gemini", &json!({ "PROMPT": "x", "cd": "/etc" }))?;
    assert_eq!(outside["error_kind"], "invalid_input");
    Some(())
}

#[test]
fn inspector_works_over_stdio() {
    let environment = one_environment();
    let words = [
        guard_program().display().to_string(),
        "mcp".into(),
        "--root".into(),
        environment.directory.display().to_string(),
    ];
    look(&environment, &words);
}

#[test]
fn inspector_works_over_http_and_asks_the_agent() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let api = Api::plain(vec![Turn::text("Seen.")]);
    let server = Served::start(&environment, &api.server.url(""), &gemini, &[]);
    let header = format!("Authorization: Bearer {}", server.token);
    let target = |header: &str| {
        ["--server-url", &server.url, "--transport", "http", "--header", header].map(str::to_string).to_vec()
    };
    if look(&environment, &target(&header)).is_none() {
        return;
    }
    let ask =
        json!({ "PROMPT": "look", "cd": environment.directory, "sandbox": "read-only", "model": "gemini-2.5-flash" })
            .to_string();
    let words = ["--method", "tools/call", "--tool-name", "gemini", "--tool-args-json", &ask];
    let (_, said) = says(&environment, &target(&header), &words).unwrap();
    assert_eq!(said["structuredContent"]["result"], "Seen.", "{said:#}");
    let (code, said) = says(
        &environment,
        &target("Authorization: Bearer wrong"),
        &["--stored-auth-only", "--method", "tools/list"],
    )
    .unwrap();
    assert!(code != 0 && !said.to_string().contains("guard_check"), "{code}: {said:#}");
}
