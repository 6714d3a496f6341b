// slow
//! Tests agents with invalid answers, unusual repositories, and invalid requests.
use crate::support::{TaskFixture, describe_task, task_messages};

/// Makes the scripted agent run these lines first when it has this role.
pub(super) fn acts(fixture: &TaskFixture, role: &str, lines: &str) {
    let text = std::fs::read_to_string(fixture.agent()).unwrap();
    let (head, tail) = text.split_once("case $prompt in\n\"You are the Investigator.\"").unwrap();
    let own = format!("case $prompt in \"You are the {role}\"*)\n{lines}\n;; esac\n");
    std::fs::write(
        fixture.agent(),
        format!("{head}{own}case $prompt in\n\"You are the Investigator.\"{tail}"),
    )
    .unwrap();
}

/// Returns a script that gives this answer and does nothing else.
fn answers(text: &str) -> String {
    format!("say '{text}'; printf '{{\"type\":\"result\",\"status\":\"success\"}}\\n'; exit 0")
}

#[test]
fn unusable_answers_fail_the_task_with_the_reason() {
    let commit = "0123456789012345678901234567890123456789";
    let cases: Vec<(&str, String, &str)> = vec![
        ("Lead Architect", answers("I approve."), "does not end with a JSON object"),
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
            "file is not committed: left.txt",
        ),
        (
            "Developer",
            "echo x > toggle.txt; report; git add -A; git commit -qm x\nfinish \"{\\\"commit_hash\\\": \\\"$(git rev-parse HEAD)\\\", \\\"status\\\": \\\"success\\\", \\\"feedback\\\": {\\\"message\\\": \\\"the build crashed\\\"}}\"".to_string(),
            "its feedback says `crash`",
        ),
        (
            "Developer",
            "echo x > toggle.txt; git add -A; git commit -qm x\nfinish \"{\\\"commit_hash\\\": \\\"$(git rev-parse HEAD)\\\", \\\"status\\\": \\\"success\\\"}\"".to_string(),
            "verification_report_x_v1.md` is empty; complete the document and commit it",
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
        let fixture = TaskFixture::new();
        acts(&fixture, role, &lines);
        let outcome = fixture.task(&["--name", "x", "Do it."]);
        assert_eq!(
            (outcome.code, &outcome.result["status"]),
            (1, &"failed".into()),
            "{role} {lines}: {}",
            describe_task(&outcome)
        );
        let reason = outcome.result["reason"].as_str().unwrap();
        assert!(reason.contains(wanted), "{role} {lines}: {reason}");
        // guard must ask at most once for a corrected answer, and must not go on to the archive.
        let calls = outcome.result["used"]["calls"].as_u64().unwrap();
        assert!(calls <= 4, "{}", describe_task(&outcome));
        assert!(!fixture.subjects("task/x").iter().any(|subject| subject.starts_with("Archive")));
    }
}

#[test]
fn unusable_answer_is_corrected_once() {
    let fixture = TaskFixture::new();
    acts(
        &fixture,
        "Lead Architect",
        "[[ $prompt == *\"You have done this already\"* ]] || { say 'I approve.'; printf '{\"type\":\"result\",\"status\":\"success\"}\\n'; exit 0; }",
    );
    let outcome = fixture.task(&["--name", "x", "Do it."]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert_eq!(outcome.result["used"]["calls"], 5, "{}", describe_task(&outcome));
}

/// The user resumes a task in which a step has failed. guard must save what the failed attempt left, and must repeat
/// the step from its beginning without these files.
#[test]
fn failed_step_is_repeated_without_leftovers_on_resume() {
    let fixture = TaskFixture::new();
    let working = std::fs::read_to_string(fixture.agent()).unwrap();
    acts(
        &fixture,
        "Developer",
        "echo half > toggle.txt; git add -A; git commit -qm half; echo more > left.txt; exit 1",
    );
    let outcome = fixture.task(&["--name", "x", "Do it."]);
    assert_eq!(outcome.result["status"], "failed", "{}", describe_task(&outcome));
    std::fs::write(fixture.agent(), working).unwrap();
    let outcome = fixture.about(&["resume", "--stream-json"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert!(fixture.git("for-each-ref refs/guard/").contains("refs/guard/task-"));
    assert!(!fixture.git("ls-tree -r --name-only task/x").contains("left.txt"));
}

#[test]
fn tests_option_sets_the_test_command() {
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "x", "--tests", "grep -q never toggle.txt", "Do it."]);
    assert_eq!(outcome.result["status"], "failed", "{}", describe_task(&outcome));
    assert!(
        outcome.result["reason"].as_str().unwrap().contains("the tests fail"),
        "{}",
        describe_task(&outcome)
    );
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "x", "--tests", "grep -q line toggle.txt", "Do it."]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
}

/// The developer must not choose how its work is tested: guard must use the test command that the project had before
/// the task.
#[test]
fn test_command_added_by_the_agent_is_not_used() {
    let fixture = TaskFixture::new();
    let package = r#"{ "scripts": { "test": "grep -q never toggle.txt" } }"#;
    fixture.environment.run_outside(&format!(
        "cd repository && echo '{package}' > package.json && git add -A && git commit -qm package"
    ));
    acts(&fixture, "Developer", "printf 'test:\\n\\ttrue\\n' > Makefile");
    let outcome = fixture.task(&["--name", "x", "Do it."]);
    let lines = task_messages(&outcome).join("\n");
    assert!(
        !lines.contains("Running make test") && !lines.contains("Tests passed."),
        "{}",
        describe_task(&outcome)
    );
}

/// If the repository has a changelog, the developer must update it, or its report must say why not.
#[test]
fn missing_changelog_update_is_sent_back() {
    let commits = "git add -A; git commit -qm x || exit 1\nfinish \"{\\\"commit_hash\\\": \\\"$(git rev-parse HEAD)\\\", \\\"status\\\": \\\"success\\\"}\"";
    for (work, wanted) in [
        ("echo '- [x] CHANGELOG.md updated' >> \"$(document)\"", Some("`CHANGELOG.md` is unchanged")),
        ("echo new >> CHANGELOG.md", None),
        ("echo '- [x] CHANGELOG.md unchanged: nothing users see' >> \"$(document)\"", None),
    ] {
        let fixture = TaskFixture::new();
        fixture.environment.run_outside(
            "cd repository && echo '# Changelog' > CHANGELOG.md && git add -A && git commit -qm log",
        );
        acts(&fixture, "Developer", &format!("echo x >> toggle.txt; report; {work}; {commits}"));
        let outcome = fixture.task(&["--name", "x", "Do it."]);
        let status = if wanted.is_some() { "failed" } else { "succeeded" };
        assert_eq!(outcome.result["status"], status, "{work}: {}", describe_task(&outcome));
        if let Some(wanted) = wanted {
            assert!(
                outcome.result["reason"].as_str().unwrap().contains(wanted),
                "{work}: {}",
                describe_task(&outcome)
            );
        }
    }
}

/// guard must run the tests of the project, and must report `Tests passed.` only if they ran and passed.
#[test]
fn tests_of_the_project_are_found_and_run() {
    let fixture = TaskFixture::new();
    let makefile = |recipe: &str| {
        format!(
            "cd repository && printf 'test:\\n\\t{recipe}\\n' > Makefile && git add -A && git commit -qm make"
        )
    };
    fixture.environment.run_outside(&makefile("grep -q line toggle.txt"));
    let outcome = fixture.task(&["--name", "x", "Do it."]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let lines = task_messages(&outcome).join("\n");
    assert!(
        lines.contains(
            "ORCHESTRATOR: Running make test...\nDEVELOPER: Implementation complete. Tests passed. Commit:"
        ),
        "{lines}"
    );
    let prompt = &fixture.about(&["show", "--json"]).result_of_show("develop")[0];
    assert!(prompt.contains("`make test` must pass"), "{prompt}");
    // Failing tests must make the step fail, until the user sets another test command or none.
    fixture.environment.run_outside(&makefile("grep -q never toggle.txt"));
    let outcome = fixture.task(&["--name", "y", "Do it."]);
    assert_eq!(outcome.result["status"], "failed", "{}", describe_task(&outcome));
    let reason = outcome.result["reason"].as_str().unwrap();
    assert!(reason.contains("the tests fail") && reason.contains("--no-tests"), "{reason}");
    assert!(!task_messages(&outcome).join("\n").contains("Tests passed."), "{}", describe_task(&outcome));
    let outcome = fixture.about(&["resume", "--stream-json", "--no-tests"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert!(
        task_messages(&outcome).join("\n").contains("Implementation complete. Tests not run."),
        "{}",
        describe_task(&outcome)
    );
}

#[test]
fn missing_api_key_is_reported_before_the_task_starts() {
    let fixture = TaskFixture::new();
    let mut command = fixture.command(&["--json", "--name", "x", "Do it.", "--agent-command"]);
    command.arg(fixture.agent()).env_remove("GEMINI_API_KEY");
    let outcome = fixture.environment.run_to_end(command, b"");
    assert_eq!((outcome.code, outcome.kind()), (125, "auth_error"), "{}", describe_task(&outcome));
    let reason = outcome.result["reason"].as_str().unwrap();
    assert!(reason.contains("GEMINI_API_KEY") && reason.contains("[gateway.gemini]"), "{reason}");
    assert_eq!(fixture.git("for-each-ref --format='%(refname)' refs/heads/"), "refs/heads/main");
    assert_eq!(fixture.about(&["list", "--json"]).result.as_array().map(Vec::len), Some(0));
}

#[test]
fn unusable_requests_and_repositories_are_refused() {
    let fixture = TaskFixture::new();
    for (arguments, wanted) in [
        (vec![""], "guard task got no request"),
        (vec![], "guard task got no request"),
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
        let outcome = fixture.about(&arguments);
        assert_eq!(outcome.code, 2, "{arguments:?}: {outcome}");
        assert!(
            outcome.error.contains(wanted) && outcome.error.contains("hint:"),
            "{arguments:?}: {outcome}"
        );
    }
    let outcome = fixture.about(&["x", "--branch-prefix", "feature"]);
    assert!(outcome.code == 2 && outcome.error.contains("end in `/`"), "{outcome}");
    let long = "x ".repeat(58_000);
    assert!(fixture.about(&[&long]).error.contains("the maximum is"));
    fixture.git("branch task/taken");
    assert!(fixture.about(&["x", "--name", "taken"]).error.contains("already exists"));
    assert_eq!(fixture.git("worktree list").lines().count(), 1);
    // A detached HEAD and uncommitted changes must not prevent a task. A missing repository or a missing first commit
    // must.
    fixture.environment.run_outside("cd repository && git checkout -q --detach && echo mine >> tracked");
    let outcome = fixture.task(&["--name", "x", "Do it."]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert!(outcome.error.contains("uncommitted"), "{outcome}");
    assert_eq!(fixture.environment.run_outside("cat repository/tracked"), "first\nmine\n");
    fixture.environment.run_outside("git init -q -b main unborn");
    // The directory is outside this project's checkout, which is a repository itself.
    let plain = crate::support::Scratch::new("plain");
    for (folder, wanted) in [
        (plain.0.clone(), "not in a git repository"),
        (fixture.repository.with_file_name("unborn"), "the base branch `main` does not exist"),
    ] {
        let mut command = fixture.command(&["x", "--dir"]);
        command.arg(&folder);
        let outcome = fixture.environment.run_to_end(command, b"");
        outcome.expect_code(2);
        assert!(outcome.error.contains(wanted), "{}: {}", folder.display(), outcome.error);
    }
}
