//! Tests `guard doctor`: what it reports about the machine, and that it starts no program that others can replace.

use std::path::Path;

use serde_json::Value;

use crate::support::{Scratch, UserShell, guard, text};

#[test]
fn doctor_prints_text_and_json() {
    let output = guard().args(["doctor", "--json"]).output().unwrap();
    let report: Value = serde_json::from_str(&text(&output)).unwrap();
    assert!(report["kernel"]["landlock"].as_i64().unwrap() >= 0);
    let strict =
        report["policies"].as_array().unwrap().iter().find(|policy| policy["name"] == "strict").unwrap();
    assert_eq!(strict["enforceable"].as_bool(), Some(strict["missing"].as_array().unwrap().is_empty()));
    let shown = text(&guard().arg("doctor").output().unwrap());
    assert!(shown.contains("landlock") && shown.contains("strict"), "{shown}");
}

/// A policy file of the user that guard cannot load must not hide the rest of the report.
#[test]
fn doctor_reports_an_invalid_policy_and_continues() {
    let scratch = Scratch::new("doctor-policy");
    scratch.write(".config/guard/policies/mine.toml", "version = 1\nname = 5\n");
    let output = guard().arg("doctor").env("HOME", &scratch.0).output().unwrap();
    let shown = text(&output);
    assert!(shown.contains("policy mine") && shown.contains("guard policy lint mine"), "{shown}");
    assert!(shown.contains("landlock") && output.status.code() == Some(1), "{shown}");
}

#[test]
fn doctor_reports_agents_and_unsafe_directories_on_path() {
    let user = UserShell::new("doctor-path");
    user.types(
        "mkdir -p ~/bin ~/open && chmod 777 ~/open && printf '#!/bin/sh\\necho 9.8.7 \\033[31mgem\\n' > ~/bin/gemini &&
         printf '#!/bin/sh\\necho reached > /tmp/doctor-path-reached\\n' > ~/open/claude && printf '#!/bin/sh\\nsleep 60\\n' > ~/bin/codex &&
         chmod +x ~/bin/* ~/open/*",
    );
    let doctor = "PATH=~/bin:~/open:relative:$PATH OPENAI_API_KEY=sk-secret guard doctor";
    let seen = user.types(doctor);
    for text in [
        "git version 2.",
        "9.8.7",
        "codex did not print its version within 5 seconds",
        "openai                 OPENAI_API_KEY is set",
        "GEMINI_API_KEY or GOOGLE_API_KEY is not set",
        "all users can write to",
        "relative               a relative path",
        "fix: remove the directory from PATH",
        "state directory",
        " free",
    ] {
        assert!(seen.contains(text), "{text:?} is missing:\n{seen}");
    }
    assert!(!seen.contains("sk-secret") && !seen.contains('\u{1b}'), "{seen}");
    // `guard doctor` must not have started a program that other users can replace.
    user.types("test ! -e /tmp/doctor-path-reached");
    let json = user.types(&format!("{doctor} --json"));
    let report: Value = serde_json::from_str(&json).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let of = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap();
    assert_eq!(of("git")["state"], "ok");
    // If PATH has an agent only where others can replace it, guard uses the one that the machine has, if any.
    let is_installed =
        ["/usr/local/bin", "/usr/bin"].iter().any(|place| Path::new(place).join("claude").exists());
    assert_eq!(of("claude")["state"], if is_installed { "ok" } else { "warning" }, "{json}");
    assert_eq!(of("anthropic")["state"], "absent");
    assert!(of("anthropic")["fix"].as_str().unwrap().contains("ANTHROPIC_API_KEY"));
    // `guard doctor` must report an old git, and a state directory that it cannot write.
    user.types("printf '#!/bin/sh\\necho git version 2.30.1\\n' > ~/bin/git && chmod +x ~/bin/git");
    user.sees(&format!("{doctor}; echo code $?"), &["no   git", "install git 2.38 or newer", "code 1"]);
    user.types("rm ~/bin/git");
    user.sees(
        "touch file; XDG_STATE_HOME=$PWD/file guard doctor; echo code $?",
        &["you cannot write to", "XDG_STATE_HOME to another directory", "code 1"],
    );
}
