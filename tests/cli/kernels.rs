//! `guard doctor` and the result of a run must say which layer enforces which boundary on this kernel.

use std::process::Command;

use serde_json::Value;

use crate::support::{Scratch, skip};

fn guard(home: &Scratch, arguments: &[&str]) -> String {
    let project = home.0.join("project");
    std::fs::create_dir_all(&project).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_guard"))
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", &home.0)
        .current_dir(&project)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(home: &Scratch, arguments: &[&str]) -> Value {
    let text = guard(home, arguments);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn doctor_names_what_enforces_each_boundary() {
    let home = Scratch::new("kernels-doctor");
    let report = json(&home, &["doctor", "--json"]);
    let landlock = report["kernel"]["landlock"].as_i64().unwrap();
    let boundaries = report["boundaries"].as_array().unwrap();
    let signals = boundaries.iter().find(|boundary| boundary["name"] == "signals").unwrap();
    let layers = signals["held_by"].as_array().unwrap();
    assert_eq!(layers.contains(&Value::from("landlock")), landlock >= 6, "{report}");
    let text = guard(&home, &["doctor"]);
    for line in ["boundaries of a run, and what enforces them", "file-truncation", "tcp", "signals"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn result_names_what_enforced_each_boundary() {
    let home = Scratch::new("kernels-result");
    let report = json(&home, &["doctor", "--json"]);
    let landlock = report["kernel"]["landlock"].as_i64().unwrap();
    for (choice, has_namespaces) in [("require", true), ("off", false)] {
        let result = json(&home, &["run", "--json", "--namespaces", choice, "--", "true"]);
        if result["success"] != true {
            let message = result["error_detail"]["message"].as_str().unwrap_or_default().to_string();
            assert!(message.contains("namespaces"), "{result}");
            skip(&format!("--namespaces {choice}"), &message);
            continue;
        }
        let held_by = &result["enforcement"]["held_by"];
        let has = |boundary: &str, layer: &str| {
            let layers = held_by[boundary].as_array().unwrap_or_else(|| panic!("{boundary}: {result}"));
            assert!(!layers.is_empty(), "{boundary}: {result}");
            layers.contains(&Value::from(layer))
        };
        assert_eq!(has("signals", "pid-namespace"), has_namespaces);
        assert_eq!(has("file-truncation", "mounts"), has_namespaces);
        assert_eq!(has("file-metadata", "supervisor"), !has_namespaces);
        assert_eq!(has("file-truncation", "landlock"), landlock >= 3);
        assert_eq!(has("tcp", "landlock"), landlock >= 4);
        assert!(has("tcp", "supervisor") && has("abstract-sockets", "supervisor"));
    }
}
