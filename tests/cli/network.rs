//! Tests what users see of the network: `guard check --connect`, `guard policy presets`, `guard log --network`.

use serde_json::{Value, json};

use super::log::{FIRST, shown, transcript};
use crate::support::{Scratch, guard, text};

const POLICY: &str = r#"
version = 1
name = "hosts"
extends = "strict"

[network]
override = true
allow = [
    "example.org", "*.example.net:443", "raw git.example.org:22", "GET,HEAD mirror.example.org:80/debian/",
    "10.1.0.0/16:8000-8100", "0.0.0.0/0:443",
]
deny = ["bad.example.net:*"]
resolve = { "pinned.example.org" = "10.9.9.9" }
"#;

/// Returns the output and the exit code of `guard check --connect` for one target.
fn connect(scratch: &Scratch, target: &str, options: &[&str]) -> String {
    let policy = scratch.0.join("hosts.toml");
    let mut command = guard();
    // The user's own settings must not affect the result.
    command.env("HOME", &scratch.0).env_remove("XDG_CONFIG_HOME").current_dir(&scratch.0);
    let output = command
        .args(["check", "--policy"])
        .arg(policy)
        .args(options)
        .args(["--connect", target])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code().unwrap();
    format!(
        "$ guard check {}--connect {target}\n{}{errors}[exit {code}]\n",
        options.join(" ") + if options.is_empty() { "" } else { " " },
        text(&output)
    )
}

#[test]
fn check_connect_judges_targets() {
    let scratch = Scratch::new("check-connect");
    scratch.write("hosts.toml", POLICY);
    let targets = [
        "example.org:443",
        "Example.ORG.",
        "example.org:8080",
        "www.example.org:443",
        "a.b.example.net:443",
        "bad.example.net:443",
        "git.example.org:22",
        "mirror.example.org:80",
        "10.1.2.3:8050",
        "10.2.2.3:8050",
        "8.8.8.8:443",
        "127.0.0.1:443",
        "169.254.169.254:443",
        "[::1]:443",
        "[::ffff:127.0.0.1]:443",
        "2130706433:443",
        "0177.0.0.1:443",
        "user@example.org:443",
        "fe80::1%eth0",
        "bücher.example:443",
        "example.org:0",
    ];
    let all: Vec<String> = targets.iter().map(|target| connect(&scratch, target, &[])).collect();
    insta::assert_snapshot!("check_connect", all.join("\n"));
}

#[test]
fn check_connect_prints_json() {
    let scratch = Scratch::new("check-connect-json");
    scratch.write("hosts.toml", POLICY);
    let targets = [
        "example.org:443",
        "git.example.org:22",
        "bad.example.net:443",
        "127.0.0.1:443",
        "elsewhere.example:1",
    ];
    let all: Vec<String> = targets.iter().map(|target| connect(&scratch, target, &["--json"])).collect();
    insta::assert_snapshot!("check_connect_json", all.join("\n"));
}

/// The built-in policies allow no host, so `guard check --connect` must refuse every target and name `network.default`.
#[test]
fn check_connect_refuses_every_host_under_built_in_policies() {
    for policy in crate::support::built_in() {
        let output =
            guard().args(["check", "--policy", policy, "--connect", "example.org:443"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{policy}");
        assert!(text(&output).contains("network.default"), "{policy}: {}", text(&output));
    }
}

#[test]
fn policy_presets_are_listed() {
    let output = guard().args(["policy", "presets"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!("presets", text(&output));
    let output = guard().args(["policy", "presets", "--json"]).output().unwrap();
    let list: Value = serde_json::from_str(&text(&output)).unwrap();
    let names: Vec<&str> =
        list.as_array().unwrap().iter().filter_map(|preset| preset["name"].as_str()).collect();
    for name in &names {
        assert!(text(&guard().args(["policy", "presets"]).output().unwrap()).contains(name), "{name}");
    }
    assert_eq!(
        list[0].as_object().unwrap().keys().collect::<Vec<_>>(),
        ["allow", "description", "gateways", "name", "tools"]
    );
}

#[test]
fn log_network_lists_connections() {
    let state = Scratch::new("log-network");
    let started = json!({ "command": ["npm", "ci"], "policy": "strict" });
    let refused = json!({
        "pid": 7, "what": "connect to elsewhere.example:443", "host": "elsewhere.example", "port": 443, "rule": "network.default",
        "reason": "The policy does not allow this host and port.",
    });
    let asked = json!({
        "gateway": "gemini", "pid": 7, "what": "POST /v1beta/models/m:generateContent", "model": "m", "status": 200,
        "bytes_up": 10, "bytes_down": 20, "milliseconds": 30, "tokens": { "input": 5, "output": 6, "cached": 0, "estimated": false }, "whole": true,
    });
    transcript(
        &state,
        FIRST,
        &[
            (0, "run.started", "npm ci", started),
            (1_000, "exec", "npm ci", json!({ "path": "/usr/bin/npm" })),
            (
                2_000,
                "network.open",
                "connect to example.org:443",
                json!({ "pid": 7, "host": "example.org", "port": 443, "way": "connect" }),
            ),
            (
                3_000,
                "deny.network",
                "connect to elsewhere.example:443: The policy does not allow this host and port.",
                refused,
            ),
            (
                4_000,
                "deny.connect",
                "connect to 127.0.0.1:53",
                json!({ "pid": 7, "rule": "sandbox.network", "reason": "The policy grants no network there." }),
            ),
            (
                5_000,
                "network.request",
                "GET http://example.org/x\u{1b}[31m → 200",
                json!({ "pid": 7, "status": 200 }),
            ),
            (6_000, "gateway.request", "POST /v1beta/models/m:generateContent → 200", asked),
            (
                7_000,
                "gateway.error",
                "POST /v1beta/models/m:generateContent: https://api.example.org cannot be reached",
                json!({ "gateway": "gemini" }),
            ),
            (
                8_000,
                "network.error",
                "example.org:443 cannot be reached: no answer in time",
                json!({ "host": "example.org", "port": 443 }),
            ),
            (
                9_000,
                "network.outsider",
                "somebody who is not of the run was turned away",
                json!({ "from": "127.0.0.1:50000" }),
            ),
            (
                10_000,
                "network.close",
                "example.org:443: 100 bytes up, 200 down",
                json!({ "bytes_up": 100, "bytes_down": 200 }),
            ),
            (11_000, "output", "", json!({ "stream": "stdout", "text": "added 1 package\n" })),
            (12_000, "run.finished", "exit 0", json!({ "exit_code": 0 })),
        ],
    );
    let all: Vec<String> =
        [vec!["log", "--network"], vec!["log", "--network", "--denied"], vec!["log", "--network", "--json"]]
            .iter()
            .map(|words| shown(&state, words))
            .collect();
    insta::assert_snapshot!("log_network", all.join("\n"));
}
