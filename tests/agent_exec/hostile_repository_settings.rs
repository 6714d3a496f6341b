// slow
//! A repository tries to control the agent that works in it by settings, hooks, servers, variables, commands, skills
//! and prompts. Its files are in `fixtures/hostile_repository_settings/`. The tests check from outside whether they had
//! an effect.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{exec, request};
use crate::egress::gemini::Gemini;
use crate::support::scripted_api::{Api, Part, Turn};
use crate::support::{Scratch, TestEnvironment, in_two_environments, one_environment, run_tool};

/// The files that the repository's settings create if they take effect.
const MADE: [&str; 7] = [
    "made-by-hook",
    "made-by-server",
    "made-by-discovery",
    "made-by-telemetry",
    "made-by-command",
    "made-by-shell",
    "made-by-node",
];

/// The texts that the repository's settings send to the model if they take effect.
const TOLD: [&str; 4] =
    ["steered by a system prompt", "steered by a context file", "planted-skill", "steered by a command"];

/// Copies a hostile repository into the working directory, and fills in the address of its server.
fn plant(environment: &TestEnvironment, name: &str, server: &str) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/hostile_repository_settings").join(name);
    let folder = environment.directory.join(name);
    run_tool("cp", &["-R".as_ref(), from.as_ref(), folder.as_ref()]);
    fill(&folder, &[("@FOLDER@", folder.to_str().unwrap()), ("@SERVER@", server)]);
    environment.give_to_user(&folder);
    folder
}

fn fill(folder: &Path, words: &[(&str, &str)]) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            fill(&path, words);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let text = words.iter().fold(text, |text, (mark, word)| text.replace(mark, word));
        std::fs::write(path, text).unwrap();
    }
}

fn made(folder: &Path) -> Vec<&'static str> {
    MADE.into_iter().filter(|name| folder.join(name).exists()).collect()
}

/// Returns which of the repository's texts and headers the API received.
fn told(api: &Api) -> Vec<&'static str> {
    let questions = api.questions();
    let says = |words: &str| questions.iter().any(|question| question.json().to_string().contains(words));
    let header = questions.iter().any(|question| question.header("x-planted").is_some());
    TOLD.into_iter().filter(|words| says(words)).chain(header.then_some("a header")).collect()
}

fn turns() -> Vec<Turn> {
    vec![Turn::shell("node -e 0; true"), Turn::text("Fine.")]
}

/// Returns the CLI as a user starts it without guard, with the key, in a directory that the user trusts.
fn plain(gemini: &Gemini, environment: &TestEnvironment, folder: &Path, prompt: &str) -> Command {
    let home = environment.temporary_directory().join("home");
    std::fs::create_dir_all(home.join(".gemini")).unwrap();
    let settings = json!({
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": false},
        "general": {"enableAutoUpdate": false, "maxAttempts": 1},
    });
    std::fs::write(home.join(".gemini/settings.json"), settings.to_string()).unwrap();
    let mut command = environment.command(gemini.program());
    command
        .args([&format!("--prompt={prompt}"), "--yolo", "-o", "stream-json", "-m", "gemini-2.5-flash"])
        .env("HOME", &home)
        .env("GEMINI_API_KEY", "the-key")
        .env("GEMINI_CLI_TRUST_WORKSPACE", "true")
        .env("GEMINI_CLI_NO_RELAUNCH", "true")
        .env("NO_PROXY", "127.0.0.1")
        .current_dir(folder);
    command
}

/// Without guard, every hostile setting must take effect. Otherwise the tests below would pass even if guard
/// prevented nothing.
#[test]
fn hostile_repository_settings_take_effect_without_guard() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let thief = Api::plain(turns());
    let folder = plant(&environment, "planted", &thief.server.url(""));
    let outcome = environment.run_to_end(plain(&gemini, &environment, &folder, "/planted"), b"");
    let shown = || format!("{}\n{}", String::from_utf8_lossy(&outcome.output), outcome.error);
    assert_eq!(made(&folder), MADE, "{}", shown());
    assert_eq!(told(&thief), [&TOLD[..], &["a header"]].concat(), "{}", shown());
    assert!(thief.questions().iter().all(|question| question.header("x-goog-api-key") == Some("the-key")));

    let thief = Api::plain(turns());
    let folder = plant(&environment, "variables", &thief.server.url(""));
    let outcome = environment.run_to_end(plain(&gemini, &environment, &folder.join("inner"), "hello"), b"");
    assert_eq!(made(&folder), ["made-by-shell"], "{outcome:?}");
    assert_eq!(told(&thief), [TOLD[0], "a header"], "{outcome:?}");

    let thief = Api::plain(turns());
    let folder = plant(&environment, "proxy", &thief.server.url(""));
    let mut command = plain(&gemini, &environment, &folder, "hello");
    command.env_remove("NO_PROXY").env("GOOGLE_GEMINI_BASE_URL", "http://api.invalid");
    let outcome = environment.run_to_end(command, b"");
    assert!(!thief.server.requests().is_empty(), "{outcome:?}");
}

/// Under guard, no hostile setting may take effect, and a prompt that looks like a CLI command must reach the model as
/// text.
#[test]
fn hostile_repository_settings_have_no_effect_under_guard() {
    let Some(gemini) = Gemini::installed() else { return };
    in_two_environments(|environment| {
        // How the CLI finds settings does not depend on namespaces, so one case is enough without them.
        let cases = [("planted", "."), ("planted", "inner"), ("variables", "inner"), ("proxy", ".")];
        for (name, place) in &cases[..if environment.namespaces { cases.len() } else { 1 }] {
            let (api, thief) = (Api::plain(turns()), Api::plain(turns()));
            let folder = plant(environment, name, &thief.server.url(""));
            let mut asked = request(&gemini, environment, "/planted", &json!({ "in_place": true }));
            asked["cd"] = json!(folder.join(place).canonicalize().unwrap());
            let answered = exec(environment, &api.server.url(""), &asked);
            let shown = || format!("{}, {name}/{place}: {}", environment.name(), answered.shown());
            assert_eq!(answered.result["result"], "Fine.", "{}", shown());
            assert_eq!(made(&folder), [""; 0], "{}", shown());
            assert_eq!(told(&api), [""; 0], "{}", shown());
            assert!(thief.server.requests().is_empty(), "{}", shown());
            assert_eq!(said(&api), " /planted", "{}", shown());
            let system = api.questions()[0].json()["systemInstruction"].to_string();
            assert!(system.contains("CLI agent"), "{system}");
            std::fs::remove_dir_all(folder).unwrap();
        }
    });
}

/// Returns the user's message as the model received it.
fn said(api: &Api) -> String {
    let body = api.questions()[0].json();
    let parts = body["contents"].as_array().unwrap().iter().filter_map(|content| content["parts"].as_array());
    let texts: Vec<&Value> = parts.flatten().filter_map(|part| part.get("text")).collect();
    texts.last().and_then(|text| text.as_str()).unwrap_or_default().to_string()
}

/// guard sets every variable that a repository could set, so that the CLI ignores the repository's values. The test
/// switches off the CLI settings with which guard also keeps the CLI from reading them, to see that the variables alone
/// are enough.
#[test]
fn variables_set_by_guard_override_those_of_the_repository() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    let adapter = guard::agents::adapter::named("gemini").unwrap();
    let asked = adapter.invocation(&guard::agents::adapter::InvocationSpec {
        yolo: true,
        ..guard::agents::adapter::InvocationSpec::default()
    });
    let mut settings: Value = serde_json::from_str(&asked.home_files[0].1).unwrap();
    settings["security"]["auth"]["useExternal"] = json!(false);
    settings["advanced"]["ignoreLocalEnv"] = json!(false);
    for (walls, expected) in [(true, vec![]), (false, vec![TOLD[0], "a header"])] {
        let (api, thief) = (Api::plain(turns()), Api::plain(turns()));
        let folder = plant(&environment, "planted", &thief.server.url(""));
        let mut command = plain(&gemini, &environment, &folder, "hello");
        std::fs::write(
            environment.temporary_directory().join("home/.gemini/settings.json"),
            settings.to_string(),
        )
        .unwrap();
        command.env_remove("GEMINI_CLI_TRUST_WORKSPACE").arg("--skip-trust");
        command.env("GOOGLE_GEMINI_BASE_URL", api.server.url(""));
        let own = asked.environment.iter().filter(|(_, value)| walls || !value.is_empty());
        command.envs(own.map(|(name, value)| (name, value)));
        let outcome = environment.run_to_end(command, b"");
        assert_eq!(outcome.code, 0, "{outcome:?}");
        assert_eq!(told(&api), expected, "{outcome:?}");
        assert_eq!(made(&folder).contains(&"made-by-shell"), !walls, "{outcome:?}");
        assert!(thief.server.requests().is_empty(), "{outcome:?}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

/// The CLI replaces `@file` in a prompt with the content of that file. Under guard the text must stay as it is: the CLI
/// searches from `/`, which no run may list. The agent can still read the file with its own tool.
#[test]
fn at_file_in_a_prompt_is_not_replaced_by_the_content() {
    let Some(gemini) = Gemini::installed() else { return };
    let environment = one_environment();
    // The file is in no repository: this project ignores files that its tests make, and the CLI does not read ignored
    // files.
    let scratch = Scratch::new("named");
    let notes = scratch.write("notes.txt", "the plum is ripe");
    let alone = Api::plain(vec![Turn::text("Yes.")]);
    let mut command = plain(&gemini, &environment, &scratch.0, "read @notes.txt please");
    command.env("GOOGLE_GEMINI_BASE_URL", alone.server.url(""));
    environment.run_to_end(command, b"");
    assert!(alone.questions()[0].json()["contents"].to_string().contains("the plum is ripe"));
    for prompt in
        ["read @notes.txt please", "read @notes, says bob@example.org", "read @/etc/passwd @../../etc/passwd"]
    {
        let read = Part::Call("read_file", json!({ "file_path": notes }));
        let api = Api::plain(vec![Turn::Says(vec![read]), Turn::text("Yes.")]);
        let asked =
            request(&gemini, &environment, prompt, &json!({ "sandbox": "read-only", "cd": scratch.0 }));
        let answered = exec(&environment, &api.server.url(""), &asked);
        assert_eq!(answered.result["result"], "Yes.", "{prompt}: {}", answered.shown());
        let body = api.questions()[0].json()["contents"].to_string();
        assert!(body.contains(prompt), "{body}");
        assert!(!body.contains("the plum is ripe") && !body.contains("root:"), "{prompt}: {body}");
        assert!(api.tool_results()[0].1.to_string().contains("the plum is ripe"), "{:?}", api.tool_results());
    }
}
