//! Agents that answer badly, repositories that are not what they should be, requests that are none.

use super::{Yard, said, shown};

/// Replaces what the scripted agent does in a role: a few lines of shell before its own.
pub(super) fn acts(yard: &Yard, role: &str, lines: &str) {
    let text = std::fs::read_to_string(yard.agent()).unwrap();
    let (head, tail) = text.split_once("case $prompt in\n\"You are the Investigator.\"").unwrap();
    let own = format!("case $prompt in \"You are the {role}\"*)\n{lines}\n;; esac\n");
    std::fs::write(yard.agent(), format!("{head}{own}case $prompt in\n\"You are the Investigator.\"{tail}"))
        .unwrap();
}

/// An answer with these words, and nothing done.
fn answers(text: &str) -> String {
    format!("say '{text}'; printf '{{\"type\":\"result\",\"status\":\"success\"}}\\n'; exit 0")
}

#[test]
fn answers_that_cannot_be_used() {
    let commit = "0123456789012345678901234567890123456789";
    let cases: Vec<(&str, String, &str)> = vec![
        ("Lead Architect", answers("I approve."), "no JSON object"),
        ("Lead Architect", answers("{\"verdict\": \"MAYBE\"}"), "one of APPROVE, REJECT"),
        ("Lead Architect", answers("{\"verdict\": \"REJECT\"}"), "`feedback` is missing"),
        ("Architect.", answers("{\"plan_path\": \"plan.md\"}"), "`plan_path` must be"),
        ("Architect.", answers("{\"plan_path\": \"docs/dev_docs/plans/plan_x.md\"}"), "is empty"),
        (
            "Architect.",
            format!("echo '# Plan' > \"$(document)\"\n{}", answers("{\"plan_path\": \"docs/dev_docs/plans/plan_x.md\"}")),
            "has no heading for: Reference Documents",
        ),
        ("Developer", answers(&format!("{{\"commit_hash\": \"{commit}\", \"status\": \"success\"}}")), "there is no commit"),
        (
            "Developer",
            format!(
                "base=$(git rev-parse main)\nsay \"{{\\\"commit_hash\\\": \\\"$base\\\", \\\"status\\\": \\\"success\\\"}}\"\n{}",
                "printf '{\"type\":\"result\",\"status\":\"success\"}\\n'; exit 0"
            ),
            "older than this step",
        ),
        (
            "Developer",
            "echo x > toggle.txt; git add -A; git commit -qm x; echo $RANDOM$RANDOM > left.txt\nfinish \"{\\\"commit_hash\\\": \\\"$(git rev-parse HEAD)\\\", \\\"status\\\": \\\"success\\\"}\"".to_string(),
            "files are not committed: left.txt",
        ),
        (
            "Developer",
            "echo x > toggle.txt; report; git add -A; git commit -qm x\nfinish \"{\\\"commit_hash\\\": \\\"$(git rev-parse HEAD)\\\", \\\"status\\\": \\\"success\\\", \\\"feedback\\\": {\\\"message\\\": \\\"the build crashed\\\"}}\"".to_string(),
            "its feedback says `crash`",
        ),
        (
            "Developer",
            "echo x > toggle.txt; git add -A; git commit -qm x\nfinish \"{\\\"commit_hash\\\": \\\"$(git rev-parse HEAD)\\\", \\\"status\\\": \\\"success\\\"}\"".to_string(),
            "verification_report_x_v1.md` is empty; write it, and commit it",
        ),
        (
            "Developer",
            "echo x > toggle.txt; report; echo '- [ ] tests' >> \"$(document)\"; git add -A; git commit -qm x\nfinish \"{\\\"commit_hash\\\": \\\"$(git rev-parse HEAD)\\\", \\\"status\\\": \\\"success\\\"}\"".to_string(),
            "an item that is not ticked: [ ] tests",
        ),
        ("Architect.", "exit 0".to_string(), "upstream_error"),
        ("Architect.", "exit 41".to_string(), "auth_error"),
    ];
    for (role, lines, wanted) in cases {
        let yard = Yard::new();
        acts(&yard, role, &lines);
        let ran = yard.task(&["--name", "x", "Do it."]);
        assert_eq!(
            (ran.code, &ran.result["status"]),
            (1, &"failed".into()),
            "{role} {lines}: {}",
            shown(&ran)
        );
        let reason = ran.result["reason"].as_str().unwrap();
        assert!(reason.contains(wanted), "{role} {lines}: {reason}");
        // What is wrong with the answer is asked about once, never more; a step that fails is not committed.
        let calls = ran.result["used"]["calls"].as_u64().unwrap();
        assert!(calls <= 4, "{}", shown(&ran));
        assert!(!yard.subjects("task/x").iter().any(|subject| subject.starts_with("Archive")));
    }
}

#[test]
fn an_answer_is_mended_once() {
    let yard = Yard::new();
    acts(
        &yard,
        "Lead Architect",
        "[[ $prompt == *\"You have done this already\"* ]] || { say 'I approve.'; printf '{\"type\":\"result\",\"status\":\"success\"}\\n'; exit 0; }",
    );
    let ran = yard.task(&["--name", "x", "Do it."]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    assert_eq!(ran.result["used"]["calls"], 5, "{}", shown(&ran));
}

/// A step that failed is tried again from its beginning; what it left is kept, not built on.
#[test]
fn a_failed_step_is_tried_again() {
    let yard = Yard::new();
    let working = std::fs::read_to_string(yard.agent()).unwrap();
    acts(
        &yard,
        "Developer",
        "echo half > toggle.txt; git add -A; git commit -qm half; echo more > left.txt; exit 1",
    );
    let ran = yard.task(&["--name", "x", "Do it."]);
    assert_eq!(ran.result["status"], "failed", "{}", shown(&ran));
    std::fs::write(yard.agent(), working).unwrap();
    let ran = yard.about(&["resume", "--stream-json"]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    assert!(yard.git("for-each-ref refs/guard/").contains("refs/guard/task-"));
    assert!(!yard.git("ls-tree -r --name-only task/x").contains("left.txt"));
}

#[test]
fn the_named_tests_are_run_by_the_runner() {
    let yard = Yard::new();
    let ran = yard.task(&["--name", "x", "--tests", "grep -q never toggle.txt", "Do it."]);
    assert_eq!(ran.result["status"], "failed", "{}", shown(&ran));
    assert!(ran.result["reason"].as_str().unwrap().contains("the tests fail"), "{}", shown(&ran));
    let yard = Yard::new();
    let ran = yard.task(&["--name", "x", "--tests", "grep -q line toggle.txt", "Do it."]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
}

/// A developer does not choose its own examiner: what the project said before counts.
#[test]
fn a_test_command_that_an_agent_brings_along_is_not_used() {
    let yard = Yard::new();
    let package = r#"{ "scripts": { "test": "grep -q never toggle.txt" } }"#;
    yard.world.outside(&format!(
        "cd repository && echo '{package}' > package.json && git add -A && git commit -qm package"
    ));
    acts(&yard, "Developer", "printf 'test:\\n\\ttrue\\n' > Makefile");
    let ran = yard.task(&["--name", "x", "Do it."]);
    let lines = said(&ran).join("\n");
    assert!(!lines.contains("Running make test") && !lines.contains("Tests passed."), "{}", shown(&ran));
}

/// Where the repository has a changelog it is updated, or the report says why not.
#[test]
fn a_changelog_is_updated_or_reported_as_unchanged() {
    let commits = "git add -A; git commit -qm x || exit 1\nfinish \"{\\\"commit_hash\\\": \\\"$(git rev-parse HEAD)\\\", \\\"status\\\": \\\"success\\\"}\"";
    for (work, wanted) in [
        ("echo '- [x] CHANGELOG.md updated' >> \"$(document)\"", Some("`CHANGELOG.md` is unchanged")),
        ("echo new >> CHANGELOG.md", None),
        ("echo '- [x] CHANGELOG.md unchanged: nothing users see' >> \"$(document)\"", None),
    ] {
        let yard = Yard::new();
        yard.world.outside(
            "cd repository && echo '# Changelog' > CHANGELOG.md && git add -A && git commit -qm log",
        );
        acts(&yard, "Developer", &format!("echo x >> toggle.txt; report; {work}; {commits}"));
        let ran = yard.task(&["--name", "x", "Do it."]);
        let status = if wanted.is_some() { "failed" } else { "succeeded" };
        assert_eq!(ran.result["status"], status, "{work}: {}", shown(&ran));
        if let Some(wanted) = wanted {
            assert!(ran.result["reason"].as_str().unwrap().contains(wanted), "{work}: {}", shown(&ran));
        }
    }
}

/// A project that says how it is tested is tested so, and `Tests passed.` is said of nothing else.
#[test]
fn the_tests_of_the_project_are_found_and_run() {
    let yard = Yard::new();
    let makefile = |recipe: &str| {
        format!(
            "cd repository && printf 'test:\\n\\t{recipe}\\n' > Makefile && git add -A && git commit -qm make"
        )
    };
    yard.world.outside(&makefile("grep -q line toggle.txt"));
    let ran = yard.task(&["--name", "x", "Do it."]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    let lines = said(&ran).join("\n");
    assert!(
        lines.contains(
            "ORCHESTRATOR: Running make test...\nDEVELOPER: Implementation complete. Tests passed. Commit:"
        ),
        "{lines}"
    );
    let prompt = &yard.about(&["show", "--json"]).result_of_show("develop")[0];
    assert!(prompt.contains("`make test` must pass"), "{prompt}");
    // One that fails ends the step, until somebody names another or none.
    yard.world.outside(&makefile("grep -q never toggle.txt"));
    let ran = yard.task(&["--name", "y", "Do it."]);
    assert_eq!(ran.result["status"], "failed", "{}", shown(&ran));
    let reason = ran.result["reason"].as_str().unwrap();
    assert!(reason.contains("the tests fail") && reason.contains("--no-tests"), "{reason}");
    assert!(!said(&ran).join("\n").contains("Tests passed."), "{}", shown(&ran));
    let ran = yard.about(&["resume", "--stream-json", "--no-tests"]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    assert!(said(&ran).join("\n").contains("Implementation complete. Tests not run."), "{}", shown(&ran));
}

#[test]
fn a_missing_key_is_said_before_anything_is_made() {
    let yard = Yard::new();
    let mut command = yard.command(&["--json", "--name", "x", "Do it.", "--agent-command"]);
    command.arg(yard.agent()).env_remove("GEMINI_API_KEY");
    let ran = yard.world.finish(command, b"");
    assert_eq!((ran.code, ran.kind()), (125, "auth_error"), "{}", shown(&ran));
    let reason = ran.result["reason"].as_str().unwrap();
    assert!(reason.contains("GEMINI_API_KEY") && reason.contains("[gateway.gemini]"), "{reason}");
    assert_eq!(yard.git("for-each-ref --format='%(refname)' refs/heads/"), "refs/heads/main");
    assert_eq!(yard.about(&["list", "--json"]).result.as_array().map(Vec::len), Some(0));
}

#[test]
fn requests_and_repositories() {
    let yard = Yard::new();
    for (arguments, wanted) in [
        (vec![""], "the request is missing"),
        (vec![], "the request is missing"),
        (vec!["x", "--mode", "odd"], "no mode `odd`"),
        (vec!["x", "--workflow", "odd"], "no workflow named `odd`"),
        (vec!["x", "--base", "nowhere"], "base branch `nowhere`"),
        (vec!["x", "--gate", "odd=human"], "--gate odd=human"),
        (vec!["x", "--gate", "plan=cat"], "--gate plan=cat"),
        (vec!["x", "--name", "///"], "no letters"),
        (vec!["x", "--tests", "'"], "--tests"),
        (vec!["x", "--tests", " "], "--tests"),
        (vec!["resume"], "there is no unfinished task"),
        (vec!["show", "odd"], "matches the id `odd`"),
    ] {
        let ran = yard.about(&arguments);
        assert_eq!(ran.code, 2, "{arguments:?}: {}", ran.error);
        assert!(ran.error.contains(wanted) && ran.error.contains("hint:"), "{arguments:?}: {}", ran.error);
    }
    let ran = yard.about(&["x", "--branch-prefix", "feature"]);
    assert!(ran.code == 2 && ran.error.contains("end in `/`"), "{}", ran.error);
    let long = "x ".repeat(58_000);
    assert!(yard.about(&[&long]).error.contains("at most"));
    yard.git("branch task/taken");
    assert!(yard.about(&["x", "--name", "taken"]).error.contains("already exists"));
    assert_eq!(yard.git("worktree list").lines().count(), 1);
    // A detached HEAD and changes of the user's own are no hindrance; no repository, and no first commit, are.
    yard.world.outside("cd repository && git checkout -q --detach && echo mine >> tracked");
    let ran = yard.task(&["--name", "x", "Do it."]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    assert!(ran.error.contains("not committed"), "{}", ran.error);
    assert_eq!(yard.world.outside("cat repository/tracked"), "first\nmine\n");
    yard.world.outside("git init -q -b main unborn");
    // Beside the tests' own directories, which lie in a repository.
    let plain = crate::support::Scratch::new("plain");
    for (folder, wanted) in [
        (plain.0.clone(), "no git repository"),
        (yard.repository.with_file_name("unborn"), "no branch `main`"),
    ] {
        let mut command = yard.command(&["x", "--dir"]);
        command.arg(&folder);
        let ran = yard.world.finish(command, b"");
        assert_eq!(ran.code, 2, "{}", ran.error);
        assert!(ran.error.contains(wanted), "{}: {}", folder.display(), ran.error);
    }
}
