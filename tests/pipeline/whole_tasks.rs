// slow
//! Runs whole pipelines, and checks the messages, commits, documents and archives, and which step follows each verdict.
use crate::support::{TaskFixture, describe_task, task_messages};

#[test]
fn one_sentence_becomes_a_reviewed_branch() {
    let fixture = TaskFixture::new();
    let before = fixture.git("for-each-ref refs/heads/main; cat .git/config 2>/dev/null || true");
    let outcome = fixture.task(&["Add a simple Dark Mode toggle to the main settings page. Use a checkbox."]);
    assert_eq!(
        (outcome.code, &outcome.result["status"]),
        (0, &"succeeded".into()),
        "{}",
        describe_task(&outcome)
    );
    let feat = "dark-mode-toggle-main";
    let wanted = [
        "ORCHESTRATOR: Task Received.".to_string(),
        "ORCHESTRATOR: The repository has no GitHub remote, so the branch stays in this repository."
            .to_string(),
        format!("ORCHESTRATOR: Created branch 'task/{feat}'."),
        "ORCHESTRATOR: Spawning ARCHITECT...".to_string(),
        format!("ARCHITECT: Implementation Plan created at 'docs/dev_docs/plans/plan_{feat}.md'."),
        "ORCHESTRATOR: Committing Plan... OK.".to_string(),
        "ORCHESTRATOR: Spawning PLAN REVIEWER...".to_string(),
        "PLAN REVIEWER: Plan approved.".to_string(),
        "ORCHESTRATOR: Verifying plan... OK. (Review Committed)".to_string(),
        "ORCHESTRATOR: Spawning DEVELOPER...".to_string(),
        "ORCHESTRATOR: guard ran no tests, because it found no test command that is installed.".to_string(),
        "DEVELOPER: Implementation complete. Tests not run. Commit:".to_string(),
        "ORCHESTRATOR: Spawning AUDITOR...".to_string(),
        format!("AUDITOR: Review passed. Report at 'docs/dev_docs/reviews/code_review_{feat}_v1.md'."),
        "ORCHESTRATOR: Committing Review Report... OK.".to_string(),
        "ORCHESTRATOR: Merging 'main'... already up to date.".to_string(),
        "ORCHESTRATOR: Archiving 4 documents... OK.".to_string(),
        format!("ORCHESTRATOR: Pipeline Success! Branch 'task/{feat}' is ready for merge."),
    ];
    let lines = task_messages(&outcome);
    assert_eq!(lines.len(), wanted.len(), "{}", describe_task(&outcome));
    for (line, wanted) in lines.iter().zip(&wanted) {
        assert!(line.starts_with(wanted.as_str()), "{line} is not {wanted}");
    }
    let branch = format!("task/{feat}");
    let subjects = fixture.subjects(&branch);
    let expected = [
        format!("Plan: {feat}"),
        format!("Plan Review: {feat}: APPROVE"),
        "Add the toggle".to_string(),
        format!("Notes: {feat}"),
        format!("Review Report: {feat}: PASS"),
        format!("Archive: {feat}"),
    ];
    assert_eq!(subjects, expected);
    let files = fixture.git(&format!("ls-tree -r --name-only {branch}"));
    for file in [
        format!("docs/dev_docs/archived/plans/plan_{feat}.md"),
        format!("docs/dev_docs/archived/reviews/plan_review_{feat}_v1.md"),
        format!("docs/dev_docs/archived/reviews/code_review_{feat}_v1.md"),
        format!("docs/dev_docs/archived/reviews/verification_report_{feat}_v1.md"),
        "docs/dev_docs/backlog.md".to_string(),
        "docs/dev_docs/AGENT_MEMORY.md".to_string(),
        "toggle.txt".to_string(),
    ] {
        assert!(files.lines().any(|line| line == file), "{file} is missing:\n{files}");
    }
    assert!(!files.contains("docs/dev_docs/plans/"), "{files}");
    // Every commit that guard makes must have a trailer with its step, and the worktree must match the branch.
    let trailers =
        fixture.git(&format!("log --format='%(trailers:key=Guard-Step,valueonly)' main..{branch}"));
    assert_eq!(trailers.lines().filter(|line| !line.is_empty()).count(), 5, "{trailers}");
    let worktree = outcome.result["worktree"].as_str().unwrap();
    assert_eq!(fixture.environment.run_outside(&format!("git -C {worktree} status --porcelain")), "");
    assert_eq!(before, fixture.git("for-each-ref refs/heads/main; cat .git/config 2>/dev/null || true"));
    fixture.git("fsck --strict");
    fixture.git(&format!("merge -q --no-edit {branch}"));
}

#[test]
fn status_of_each_step_is_printed_without_a_terminal() {
    let fixture = TaskFixture::new();
    let mut command =
        fixture.command(&["--name", "x", "Do it. @plan_review=REJECT,APPROVE", "--agent-command"]);
    command.arg(fixture.agent());
    let outcome = fixture.environment.run_to_end(command, b"");
    let output = String::from_utf8_lossy(&outcome.output).into_owned();
    assert_eq!(outcome.code, 0, "{output}: {outcome}");
    let steps: Vec<&str> = output.lines().filter(|line| line.contains("]... ")).collect();
    let expected = [
        "PLANNING",
        "REVIEWING",
        "PLANNING",
        "REVIEWING",
        "IMPLEMENTING",
        "AUDITING",
        "INTEGRATING",
        "ARCHIVING",
        "DELIVERING",
    ];
    let expected: Vec<String> = expected
        .iter()
        .flat_map(|step| [format!("[{step}]... In Progress"), format!("[{step}]... Done")])
        .collect();
    assert_eq!(steps, expected);
    // A step that waits for a user must not be shown as done.
    let mut command = fixture.command(&["--name", "y", "Do it.", "--gate", "plan=human", "--agent-command"]);
    command.arg(fixture.agent());
    let outcome = fixture.environment.run_to_end(command, b"");
    let output = String::from_utf8_lossy(&outcome.output).into_owned();
    assert!(output.contains("[REVIEWING]... In Progress\n[REVIEWING]... Needs Human\n"), "{output}");
}

/// The prefix of task branches must come from the command line or, without that, from the workflow.
#[test]
fn branch_prefix_comes_from_command_line_or_workflow() {
    let fixture = TaskFixture::new();
    let workflow = fixture.repository.with_file_name("fixes.yaml");
    let text = include_str!("../../policies/workflows/default.yaml");
    std::fs::write(&workflow, text.replace("branch_prefix: task/", "branch_prefix: team/fix/")).unwrap();
    let workflow = workflow.to_str().unwrap();
    for (arguments, branch) in [
        (vec!["--branch-prefix", "feature/"], "feature/x"),
        (vec!["--workflow", workflow], "team/fix/x"),
        (vec!["--workflow", workflow, "--branch-prefix", "other/"], "other/x"),
    ] {
        let outcome = fixture.task(&[&["--name", "x", "Do it."], arguments.as_slice()].concat());
        assert_eq!(
            (outcome.code, &outcome.result["branch"]),
            (0, &branch.into()),
            "{}",
            describe_task(&outcome)
        );
        let lines = task_messages(&outcome).join("\n");
        assert!(lines.contains(&format!("Created branch '{branch}'.")), "{lines}");
        assert!(lines.ends_with(&format!("Branch '{branch}' is ready for merge.")), "{lines}");
        let files = fixture.git(&format!("ls-tree -r --name-only {branch}"));
        assert!(files.contains("docs/dev_docs/archived/plans/plan_x.md"), "{files}");
        let id = outcome.result["task_id"].as_str().unwrap();
        assert_eq!(fixture.about(&["clean", id]).code, 0);
    }
}

#[test]
fn bugfix_task_repeats_a_rejected_diagnosis() {
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "x", "--mode", "bugfix", "It hangs. @analyse=REJECT,APPROVE"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let subjects = fixture.subjects("task/x");
    let head = [
        "Diagnostic Report: x",
        "Analysis: x: REJECT",
        "Diagnostic Report: x",
        "Analysis: x: APPROVE",
        "Plan: x",
    ];
    assert_eq!(subjects[..5], head, "{subjects:?}");
    let files = fixture.git("ls-tree -r --name-only task/x");
    assert!(files.contains("docs/dev_docs/archived/research/diagnostic_report_x.md"), "{files}");
    assert!(files.contains("docs/dev_docs/archived/reviews/report_review_x_v2.md"), "{files}");
    // The prompt of the second investigation must contain the analyst's feedback.
    let asked = fixture.about(&["show", "--json"]);
    let prompts: Vec<String> = asked.result_of_show("investigate");
    assert!(prompts[1].contains("round 1: say more"), "{}", prompts[1]);
}

#[test]
fn escalated_diagnosis_asks_the_researcher() {
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "x", "--mode", "bugfix", "It is slow. @analyse=ESCALATE,APPROVE"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let prompt = &fixture.about(&["show", "--json"]).result_of_show("plan")[0];
    assert!(prompt.contains("diagnostic_report_x.md") && prompt.contains("research_report_x.md"), "{prompt}");
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "y", "--mode", "research", "Which colours?"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert_eq!(fixture.subjects("task/y")[0], "Research Report: y");
}

#[test]
fn rejected_plans_and_code_are_revised() {
    let fixture = TaskFixture::new();
    let outcome =
        fixture.task(&["--name", "x", "Do it. @plan_review=REJECT,REJECT,APPROVE @audit=FAIL,PASS"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let subjects = fixture.subjects("task/x");
    assert_eq!(
        subjects.iter().filter(|subject| *subject == "Plan Review: x: REJECT").count(),
        2,
        "{subjects:?}"
    );
    assert!(subjects.contains(&"Review Report: x: FAIL".to_string()), "{subjects:?}");
    let shown = fixture.about(&["show", "--json"]);
    let developer = shown.result_of_show("develop");
    assert!(
        developer[1].contains("docs/dev_docs/reviews/code_review_x_v1.md")
            && developer[1].contains("plan_x.md"),
        "{}",
        developer[1]
    );
    // The second audit's prompt must contain all changes of the branch since main, and refer to the last review.
    let auditor = shown.result_of_show("audit");
    assert_eq!(auditor[1].matches("+line after").count(), 2, "{}", auditor[1]);
    assert!(auditor[1].contains("code_review_x_v1.md"), "{}", auditor[1]);
}

#[test]
fn task_that_is_rejected_too_often_needs_a_human() {
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "x", "Do it. @plan_review=REJECT"]);
    assert_eq!(
        (outcome.code, &outcome.result["status"]),
        (3, &"needs_human".into()),
        "{}",
        describe_task(&outcome)
    );
    assert!(
        outcome.result["reason"].as_str().unwrap().contains("the step plan has run 3 times"),
        "{}",
        describe_task(&outcome)
    );
    // A user resumes the task, which must allow the same number of rounds again.
    let again = fixture.about(&["resume", "--json"]);
    assert_eq!((again.code, &again.result["status"]), (3, &"needs_human".into()), "{}", again.error);
    let plans = fixture.subjects("task/x").iter().filter(|subject| *subject == "Plan: x").count();
    assert_eq!(plans, 6);
}

#[test]
fn moved_base_branch_is_merged_into_the_task() {
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "y", "--gate", "code=human", "Do it."]);
    assert_eq!(outcome.code, 3, "{}", describe_task(&outcome));
    fixture
        .environment
        .run_outside("cd repository && echo other > other && git add other && git commit -qm other");
    let id = outcome.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(fixture.about(&["approve", &id]).code, 0);
    let outcome = fixture.about(&["resume", &id, "--stream-json"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let subjects = fixture.git("log --first-parent --reverse --format=%s main..task/y");
    assert!(subjects.contains("Merge main into task/y\nMerge Review: y: PASS\nArchive: y"), "{subjects}");
    assert_eq!(fixture.git("show task/y:other"), "other");
    let worktree = outcome.result["worktree"].as_str().unwrap();
    assert_eq!(
        fixture
            .environment
            .run_outside(&format!("cat {worktree}/other; git -C {worktree} status --porcelain")),
        "other\n"
    );
}

#[test]
fn rejected_merge_is_repaired_and_reviewed_again() {
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "x", "--gate", "code=human", "Do it. @merge_review=FAIL,PASS"]);
    assert_eq!(outcome.code, 3, "{}", describe_task(&outcome));
    fixture
        .environment
        .run_outside("cd repository && echo other > other && git add other && git commit -qm other");
    let id = outcome.result["task_id"].as_str().unwrap().to_string();
    // The user must approve twice, because the audit of the repair has the same gate.
    for code in [3, 0] {
        assert_eq!(fixture.about(&["approve", &id]).code, 0);
        let outcome = fixture.about(&["resume", &id, "--stream-json"]);
        assert_eq!(outcome.code, code, "{}", describe_task(&outcome));
    }
    let subjects = fixture.subjects("task/x");
    let reviews: Vec<&String> = subjects.iter().filter(|line| line.starts_with("Merge Review")).collect();
    assert_eq!(reviews, ["Merge Review: x: FAIL", "Merge Review: x: PASS"], "{subjects:?}");
    let shown = fixture.about(&["show", "--json"]);
    let report = "docs/dev_docs/reviews/merge_review_x_v1.md";
    for (step, round) in [("develop", 1), ("merge_review", 1)] {
        let prompt = &shown.result_of_show(step)[round];
        assert!(prompt.contains(report), "{step}: {prompt}");
    }
    let first = &shown.result_of_show("merge_review")[0];
    assert!(!first.contains("Your last review of the merge"), "{first}");
}

#[test]
fn merge_conflict_is_resolved_by_the_integration_agent() {
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "x", "--gate", "code=human", "Do it."]);
    assert_eq!(outcome.code, 3, "{}", describe_task(&outcome));
    fixture.environment.run_outside(
        "cd repository && echo 'line of main' > toggle.txt && git add toggle.txt && git commit -qm theirs",
    );
    let id = outcome.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(fixture.about(&["approve", &id]).code, 0);
    let outcome = fixture.about(&["resume", &id, "--stream-json"]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let lines = task_messages(&outcome).join("\n");
    assert!(
        lines.contains("conflicts in toggle.txt")
            && lines.contains("INTEGRATION SPECIALIST: Conflicts resolved."),
        "{lines}"
    );
    let text = fixture.git("show task/x:toggle.txt");
    assert!(text.contains("line of main") && text.contains("line after") && !text.contains("<<<<"), "{text}");
    let merges = fixture.git("log --merges --format=%P -1 task/x");
    assert!(merges.contains(&fixture.git("rev-parse main")), "{merges}");
    let prompt = &fixture.about(&["show", "--json"]).result_of_show("resolve")[0];
    assert!(prompt.contains("<<<<<<<") && prompt.contains("line of main"), "{prompt}");
}

#[test]
fn six_tasks_run_at_once_in_one_repository() {
    let fixture = TaskFixture::new();
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..6)
            .map(|n| {
                let fixture = &fixture;
                scope.spawn(move || fixture.task(&["--name", &format!("t{n}"), "Do it."]))
            })
            .collect();
        for outcome in started.into_iter().map(|one| one.join().unwrap()) {
            assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
        }
    });
    for n in 0..6 {
        assert_eq!(fixture.subjects(&format!("task/t{n}")).len(), 6);
    }
    fixture.git("fsck --strict");
    let list = fixture.about(&["list", "--json"]);
    assert_eq!(list.result.as_array().map(Vec::len), Some(6));
}

impl crate::support::RunOutcome {
    /// Returns the prompts of all calls at a step, from `guard task show --json`.
    pub(crate) fn result_of_show(&self, step: &str) -> Vec<String> {
        let shown: serde_json::Value = serde_json::from_slice(&self.output).unwrap();
        let journal = shown["journal"].as_array().unwrap().iter();
        journal
            .filter(|entry| entry["step"] == step && entry["effect"] == "agent")
            .map(|entry| entry["intent"]["prompt"].as_str().unwrap().to_string())
            .collect()
    }
}
