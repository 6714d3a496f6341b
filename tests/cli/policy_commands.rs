//! Tests the subcommands of `guard policy` as programs.

use serde_json::Value;

use crate::support::{Scratch, guard, text};

#[test]
fn policy_list_show_and_diff_print_text() {
    let run = |args: &[&str]| {
        let output = guard().arg("policy").args(args).output().unwrap();
        format!("$ guard policy {}\n{}", args.join(" "), text(&output))
    };
    insta::assert_snapshot!("list", run(&["list"]));
    insta::assert_snapshot!("show_effective", run(&["show", "auditor", "--effective"]));
    insta::assert_snapshot!("diff", run(&["diff", "strict", "standard"]));
    assert_eq!(guard().args(["policy", "diff", "strict", "strict"]).output().unwrap().status.code(), Some(0));
    let json: Value = serde_json::from_slice(
        &guard().args(["policy", "show", "strict", "--json"]).output().unwrap().stdout,
    )
    .unwrap();
    assert_eq!(json["git_default_action"], "deny");
    assert_eq!(json["filesystem"]["execute"], Value::Null);
    assert_eq!(json["sandbox"], serde_json::json!({ "namespaces": "auto", "verify_exec": true }));
    assert_eq!(json["home"]["import"], serde_json::json!([]));
    assert_eq!(json["toolchains"]["caches"], "shared");
}

#[test]
fn policy_diff_shows_differences_in_sandbox_home_and_toolchains() {
    let scratch = Scratch::new("built");
    let body = "[filesystem]\nexecute = [\"{system}\"]\n[sandbox]\noverride = true\nnamespaces = \"require\"\nverify_exec = false\n\
                [home]\noverride = true\nimport = [\"~/.gitconfig\"]\n[toolchains]\ndetect = [\"rust\", \"go\"]\ncaches = \"private\"\n";
    let path =
        scratch.write("mine.toml", format!("version = 1\nname = \"mine\"\nextends = \"strict\"\n{body}"));
    let shown = text(&guard().args(["policy", "diff", "strict"]).arg(&path).output().unwrap());
    insta::assert_snapshot!("diff_built", shown);
    let effective = text(&guard().args(["policy", "show", "--effective"]).arg(&path).output().unwrap());
    assert!(effective.contains("\nexecute: {system}\n"), "{effective}");
    assert!(effective.contains("\nsandbox: namespaces require, verify_exec false\n"), "{effective}");
    assert!(
        effective.contains("\nfiles copied into the run's home directory: ~/.gitconfig\n"),
        "{effective}"
    );
    assert!(effective.contains("\ntoolchains: rust go, caches private\n"), "{effective}");
}

#[test]
fn output_of_policy_show_is_a_valid_policy_file() {
    let scratch = Scratch::new("shown");
    let shown = guard().args(["policy", "show", "strict"]).output().unwrap();
    let path = scratch.write("mine.toml", shown.stdout);
    let lint = guard().args(["policy", "lint"]).arg(&path).output().unwrap();
    assert_eq!(lint.status.code(), Some(0), "{}", text(&lint));
    let check = guard().args(["check", "--policy"]).arg(&path).args(["--", "git", "push"]).output().unwrap();
    assert_eq!(check.status.code(), Some(1));
}

/// The hint on an invalid policy contains a command, which must work as guard prints it.
#[test]
fn invalid_policy_hint_is_a_working_command() {
    let scratch = Scratch::new("lint hint");
    let path = scratch.write("a.toml", "version = 1\nname = \"a\"\nextends = \"strict\"\nx = 1\n");
    let extending = scratch.write("b.toml", "version = 1\nname = \"b\"\nextends = \"./a.toml\"\n");
    for policy in [&path, &extending] {
        let output = guard().args(["check", "--policy"]).arg(policy).args(["--", "ls"]).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        let hint = format!("hint: `guard policy lint '{}' --json` lists all errors", path.display());
        assert!(printed.contains(&hint), "{printed}");
    }
}

#[test]
fn policy_lint_prints_json() {
    let scratch = Scratch::new("lint");
    let path = scratch.write("a.toml", "version = 1\nname = \"a\"\nx = 1\n");
    let output = guard().args(["policy", "lint", "--json"]).arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_str(&text(&output)).unwrap();
    assert_eq!(json["ok"], false);
    assert_eq!(json["problems"][0]["source"]["line"], 3);
}
