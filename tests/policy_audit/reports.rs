//! Tests the reports for other programs: JUnit, SARIF and JSON.

use std::process::Command;

use serde_json::Value;

use crate::support::{Scratch, guard, text};

const CORPUS: &str =
    "allow\tls\ndeny\tgit push\nallow\tgit switch main\ndeny\techo \u{7}\"<&>\u{1b}\"; sudo x\n";

fn report(format: &str) -> (String, Option<i32>) {
    let scratch = Scratch::new("report");
    let corpus = scratch.write("a b.txt", CORPUS);
    let output = guard().args(["policy", "audit", "--format", format]).arg(&corpus).output().unwrap();
    (text(&output), output.status.code())
}

/// Returns the public schema of SARIF 2.1.0, which a published crate contains.
fn sarif_schema() -> Value {
    let rustc = Command::new("rustc").arg("-vV").output().unwrap();
    let about = String::from_utf8(rustc.stdout).unwrap();
    let host = about.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline", "--filter-platform", host])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let package = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .find(|package| package["name"] == "serde-sarif")
        .unwrap();
    let manifest = std::path::PathBuf::from(package["manifest_path"].as_str().unwrap());
    let bytes = std::fs::read(manifest.with_file_name("src").join("schema.json")).unwrap();
    let mut schema: Value = serde_json::from_slice(&bytes).unwrap();
    // The published schema has a pattern with an extra `]`, which is not a valid regular expression. The field is not
    // used here.
    for object in ["run", "toolComponent"] {
        let language = &mut schema["definitions"][object]["properties"]["language"];
        assert!(language.as_object_mut().unwrap().remove("pattern").is_some());
    }
    schema
}

#[test]
fn sarif_report_is_valid_and_has_contradictions_as_errors() {
    let (text, code) = report("sarif");
    assert_eq!(code, Some(1), "a label is contradicted");
    let sarif: Value = serde_json::from_str(&text).unwrap();
    let validator = jsonschema::validator_for(&sarif_schema()).unwrap();
    let errors: Vec<String> = validator.iter_errors(&sarif).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{}", errors.join("\n"));
    let results = sarif["runs"][0]["results"].as_array().unwrap();
    let levels: Vec<&str> = results.iter().map(|result| result["level"].as_str().unwrap()).collect();
    assert_eq!(levels, ["note", "error", "note"]);
    assert_eq!(results[1]["ruleId"], "git.switch");
    assert_eq!(results[1]["locations"][0]["physicalLocation"]["region"]["startLine"], 3);
    // The validator must reject a document that is not SARIF, which proves that the check above tests something.
    assert!(!validator.is_valid(&serde_json::json!({ "version": "2.1.0", "runs": [{}] })));
}

#[test]
fn junit_report_counts_contradictions_as_failures() {
    let (xml, code) = report("junit");
    assert_eq!(code, Some(1));
    let report = quick_junit::Report::deserialize_from_str(&xml).unwrap();
    let suite = &report.test_suites[0];
    assert_eq!(suite.test_cases.len(), 4);
    let failed: Vec<&str> = suite
        .test_cases
        .iter()
        .filter(|case| matches!(case.status, quick_junit::TestCaseStatus::NonSuccess { .. }))
        .map(|case| case.name.as_str())
        .collect();
    assert_eq!(failed, ["3: git switch main"]);
}

#[test]
fn json_report_has_every_verdict_of_every_command() {
    let (json, _) = report("json");
    let audit: Value = serde_json::from_str(&json).unwrap();
    let commands = audit["commands"].as_array().unwrap();
    assert_eq!(commands.len(), 4);
    assert_eq!(commands[1]["verdicts"]["strict"]["rule"], "git.remote");
    assert_eq!(commands[1]["expected"], "deny");
}

/// Every report format must show a decision that differs from the snapshot as a failure, in addition to the exit code.
#[test]
fn differences_from_a_snapshot_are_failures_in_every_report() {
    let scratch = Scratch::new("report-snapshot");
    let corpus = scratch.write("list.txt", "ls\ngit push\n");
    let snapshot = scratch.0.join("list.audit");
    let audit = |format: &str, more: &[&str]| {
        let mut command = guard();
        command.args(["policy", "audit", "--format", format, "--snapshot"]).arg(&snapshot).args(more);
        let output = command.arg(&corpus).output().unwrap();
        (text(&output), output.status.code())
    };
    assert_eq!(audit("text", &["--update"]).1, Some(0));
    let failures = |xml: &str| xml.matches("<failure").count();
    let (same, code) = audit("junit", &[]);
    assert_eq!((failures(&same), code), (0, Some(0)), "{same}");
    let old = std::fs::read_to_string(&snapshot).unwrap();
    let changed = old.replace("deny git.remote", "allow default") + "deny x.y                    \tgone\n";
    assert_ne!(changed, old);
    std::fs::write(&snapshot, changed).unwrap();
    let (xml, code) = audit("junit", &[]);
    assert_eq!((failures(&xml), code), (2, Some(1)), "{xml}");
    assert!(
        xml.contains("the snapshot has `allow default`, and the audit now has `deny git.remote`"),
        "{xml}"
    );
    quick_junit::Report::deserialize_from_str(&xml).unwrap();
    let (sarif, code) = audit("sarif", &[]);
    let sarif: Value = serde_json::from_str(&sarif).unwrap();
    let validator = jsonschema::validator_for(&sarif_schema()).unwrap();
    assert!(validator.is_valid(&sarif), "{sarif}");
    let results = sarif["runs"][0]["results"].as_array().unwrap();
    let errors: Vec<&Value> = results.iter().filter(|result| result["level"] == "error").collect();
    assert_eq!((errors.len(), code), (2, Some(1)), "{sarif}");
    let pushed =
        errors.iter().find(|error| error["message"]["text"].as_str().unwrap().contains("git push")).unwrap();
    assert_eq!(pushed["ruleId"], "audit.snapshot");
    assert_eq!(pushed["locations"][0]["physicalLocation"]["region"]["startLine"], 2);
    let (json, code) = audit("json", &[]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["changes"].as_array().unwrap().len(), code), (2, Some(1)), "{json}");
}
