// slow
//! Runs the example workflow with the real Gemini CLI and a scripted model.

use crate::egress::gemini::Gemini;
use crate::support::scripted_api::{Api, Turn};
use crate::support::{TaskFixture, describe_task, task_messages};

const PLAN: &str = "# Plan\n\n## Reference Documents\n\nNone.\n\n## Detailed Logic\n\nA checkbox.\n\n## Test Scenarios\n\nChecked: dark.\n\n\
    ## Documentation to Update\n\nNone.\n\n## Expected Deliverables\n\nsettings.html\n\n## Completion Checklist\n\n- [ ] box\n";

/// Returns the turns of an agent that writes this document and names it in its answer.
fn writes(path: &str, text: &str, answer: &str) -> [Turn; 2] {
    [Turn::write(path, text), Turn::text(&format!("It is done.\n```json\n{answer}\n```\nThat is all."))]
}

/// Returns the turns of an agent that runs this command, which makes a commit, and then gives this answer.
fn commits(command: &str, answer: &str) -> [Turn; 2] {
    [Turn::shell(&format!("{command} && git rev-parse HEAD")), Turn::text(answer)]
}

fn task(fixture: &TaskFixture, gemini: &Gemini, api: &Api, arguments: &[&str]) -> crate::support::RunOutcome {
    let mut command = fixture.command(arguments);
    if arguments.first() != Some(&"resume") {
        command.args(["--model", "gemini-2.5-flash", "--agent-command"]).arg(gemini.program());
    }
    command
        .arg("--stream-json")
        .env("GEMINI_API_KEY", "the-key")
        .env("GOOGLE_GEMINI_BASE_URL", api.server.url(""));
    fixture.environment.run_to_end(command, b"")
}

#[test]
fn gemini_completes_the_example_task() {
    let Some(gemini) = Gemini::installed() else { return };
    let fixture = TaskFixture::new();
    let (plan, review) = (
        "docs/dev_docs/plans/plan_dark-mode-toggle-main.md",
        "docs/dev_docs/reviews/code_review_dark-mode-toggle-main_v1.md",
    );
    let mut turns = Vec::new();
    // The architect and the auditor try to write the code themselves. The kernel must refuse, and both must continue.
    turns.push(Turn::write("settings.html", "planted by the architect"));
    turns.extend(writes(plan, PLAN, &format!("{{\"plan_path\": \"{plan}\"}}")));
    turns.push(Turn::text("It is good. {\"verdict\": \"APPROVE\"}"));
    turns.extend(commits(
        "echo '<input type=checkbox id=dark>' > settings.html && mkdir -p docs/dev_docs/reviews \
         && echo '- [x] box' > docs/dev_docs/reviews/verification_report_dark-mode-toggle-main_v1.md && git add -A && git commit -q -m 'Add a dark mode toggle'",
        "All boxes are ticked. {\"commit_hash\": \"<hash>\", \"status\": \"success\"}",
    ));
    turns.push(Turn::shell("echo '<b>planted by the auditor</b>' >> settings.html"));
    turns.extend(writes(
        review,
        "# Review\n\nAll is well.\n",
        &format!("{{\"verdict\": \"PASS\", \"review_path\": \"{review}\"}}"),
    ));
    let api = Api::plain(turns);
    let outcome = task(
        &fixture,
        &gemini,
        &api,
        &["Add a simple Dark Mode toggle to the main settings page. Use a checkbox."],
    );
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let branch = "task/dark-mode-toggle-main";
    let subjects = fixture.subjects(branch);
    assert_eq!(
        subjects,
        [
            "Plan: dark-mode-toggle-main",
            "Plan Review: dark-mode-toggle-main: APPROVE",
            "Add a dark mode toggle",
            "Review Report: dark-mode-toggle-main: PASS",
            "Archive: dark-mode-toggle-main",
        ]
    );
    assert!(!fixture.git(&format!("log -p {branch}")).contains("planted"));
    assert_eq!(fixture.git(&format!("show {branch}:settings.html")), "<input type=checkbox id=dark>");
    assert_eq!(
        fixture
            .git(&format!("show {branch}:docs/dev_docs/archived/plans/plan_dark-mode-toggle-main.md"))
            .lines()
            .next(),
        Some("# Plan")
    );
    // The model must have been told about the refused write, and the result must count the tokens of all requests.
    let told =
        api.questions().iter().map(|question| question.json().to_string()).collect::<Vec<_>>().join("\n");
    assert!(
        told.contains("EACCES")
            || told.contains("EROFS")
            || told.contains("ermission denied")
            || told.contains("ead-only"),
        "{told}"
    );
    assert_eq!(outcome.result["used"]["calls"], 4, "{}", describe_task(&outcome));
    assert!(outcome.result["used"]["tokens"].as_u64() > Some(400), "{}", describe_task(&outcome));
    assert!(
        task_messages(&outcome)
            .last()
            .unwrap()
            .contains("Pipeline Success! Branch 'task/dark-mode-toggle-main' is ready for merge.")
    );
}

/// The developer remarks something. The documentation agent, which can write only documentation, must document it.
#[test]
fn gemini_documents_a_remark() {
    let Some(gemini) = Gemini::installed() else { return };
    let fixture = TaskFixture::new();
    fixture
        .environment
        .run_outside("cd repository && echo '# Guide' > GUIDE.md && git add -A && git commit -qm guide");
    let (plan, review) = ("docs/dev_docs/plans/plan_x.md", "docs/dev_docs/reviews/code_review_x_v1.md");
    let mut turns = Vec::new();
    turns.extend(writes(plan, PLAN, &format!("{{\"plan_path\": \"{plan}\"}}")));
    turns.push(Turn::text("{\"verdict\": \"APPROVE\"}"));
    turns.extend(commits(
        "echo box > settings.html && echo '- [x] box' > docs/dev_docs/reviews/verification_report_x_v1.md && git add -A && git commit -q -m 'Add a box'",
        "{\"commit_hash\": \"<hash>\", \"status\": \"success\", \"feedback\": {\"message\": \"the guide does not tell of boxes\"}}",
    ));
    turns.push(Turn::text("{\"decision\": \"DOCS\", \"note\": \"say that there is a box\"}"));
    turns.push(Turn::write("settings.html", "planted"));
    turns.push(Turn::shell("echo planted >> tracked"));
    turns.extend(writes("GUIDE.md", "# Guide\n\nThere is a box.\n", "{\"status\": \"success\"}"));
    turns.extend(writes(
        review,
        "# Review\n",
        &format!("{{\"verdict\": \"PASS\", \"review_path\": \"{review}\"}}"),
    ));
    let api = Api::plain(turns);
    let outcome = task(&fixture, &gemini, &api, &["--name", "x", "Add a box."]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let subjects = fixture.subjects("task/x");
    let wanted = [
        "Plan: x",
        "Plan Review: x: APPROVE",
        "Add a box",
        "Documentation: x",
        "Review Report: x: PASS",
        "Archive: x",
    ];
    assert_eq!(subjects, wanted, "{}", describe_task(&outcome));
    assert_eq!(
        fixture.git("show task/x:GUIDE.md"),
        "# Guide\n\nThere is a box.",
        "{}",
        describe_task(&outcome)
    );
    assert_eq!(fixture.git("show task/x:settings.html"), "box");
    assert!(!fixture.git("log -p task/x").contains("planted"));
}

#[test]
fn gemini_completes_a_task_with_every_kind_of_step() {
    let Some(gemini) = Gemini::installed() else { return };
    let fixture = TaskFixture::new();
    let place = |kind: &str, name: &str| format!("docs/dev_docs/{kind}/{name}_x");
    let (diagnosis, research, plan) = (
        place("research", "diagnostic_report") + ".md",
        place("research", "research_report") + ".md",
        place("plans", "plan") + ".md",
    );
    let report = |path: &str, text: &str| writes(path, text, &format!("{{\"report_path\": \"{path}\"}}"));
    let plans =
        |text: &str| writes(&plan, &format!("{PLAN}{text}"), &format!("{{\"plan_path\": \"{plan}\"}}"));
    let audits = |n: u32, verdict: &str| {
        let path = format!("{}_v{n}.md", place("reviews", "code_review"));
        writes(
            &path,
            &format!("# Review {n}\n"),
            &format!("{{\"verdict\": \"{verdict}\", \"review_path\": \"{path}\"}}"),
        )
    };
    let develops = |n: u32, line: &str| {
        let report = format!("{}_v{n}.md", place("reviews", "verification_report"));
        let work = format!(
            "echo '{line}' >> settings.html && echo '- [x] box' > {report} && git add -A && git commit -q -m 'Work: {line}'"
        );
        commits(&work, "{\"commit_hash\": \"<hash>\", \"status\": \"success\"}")
    };
    let mut turns = Vec::new();
    turns.extend(report(&diagnosis, "# It is the colour\n"));
    turns.push(Turn::text("{\"verdict\": \"REJECT\", \"feedback\": \"which colour?\"}"));
    turns.extend(report(&diagnosis, "# It is the colour grey\n"));
    turns.push(Turn::text("{\"verdict\": \"ESCALATE\"}"));
    turns.extend(report(&research, "# Grey is a mixture\n"));
    turns.push(Turn::text("{\"verdict\": \"APPROVE\"}"));
    turns.extend(plans("one"));
    turns.push(Turn::text("{\"verdict\": \"REJECT\", \"feedback\": \"no tests\"}"));
    turns.extend(plans("two"));
    turns.push(Turn::text("{\"verdict\": \"REJECT\", \"feedback\": \"too few tests\"}"));
    turns.extend(plans("three"));
    turns.push(Turn::text("{\"verdict\": \"APPROVE\"}"));
    turns.extend(develops(1, "first"));
    turns.extend(audits(1, "FAIL"));
    turns.extend(develops(2, "second"));
    turns.extend(audits(2, "PASS"));
    turns.push(Turn::shell("git merge main"));
    turns.push(Turn::shell("printf 'first\\nsecond\\nof main\\n' > settings.html && git add -A && git commit -q --no-edit && git rev-parse HEAD"));
    turns.push(Turn::text("{\"status\": \"success\", \"commit_hash\": \"<hash>\"}"));
    let merged = format!("{}_v1.md", place("reviews", "merge_review"));
    turns.extend(writes(
        &merged,
        "# Merge\n",
        &format!("{{\"verdict\": \"PASS\", \"review_path\": \"{merged}\"}}"),
    ));
    let api = Api::plain(turns);
    // The test changes the same file on main while the task is running.
    fixture
        .environment
        .run_outside("cd repository && echo start > settings.html && git add -A && git commit -qm settings");
    let moved = std::sync::atomic::AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !moved.load(std::sync::atomic::Ordering::Relaxed) {
                if fixture.git("for-each-ref refs/heads/task/").contains("task/x") {
                    fixture.environment.run_outside(
                        "cd repository && echo 'of main' > settings.html && git commit -qam theirs",
                    );
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        let outcome =
            task(&fixture, &gemini, &api, &["--name", "x", "--mode", "bugfix", "Grey looks wrong."]);
        moved.store(true, std::sync::atomic::Ordering::Relaxed);
        outcome
    });
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let subjects = fixture.git("log --first-parent --reverse --format=%s main..task/x");
    let wanted = [
        "Diagnostic Report: x",
        "Analysis: x: REJECT",
        "Diagnostic Report: x",
        "Analysis: x: ESCALATE",
        "Research Report: x",
        "Analysis: x: APPROVE",
        "Plan: x",
        "Plan Review: x: REJECT",
        "Plan: x",
        "Plan Review: x: REJECT",
        "Plan: x",
        "Plan Review: x: APPROVE",
        "Work: first",
        "Review Report: x: FAIL",
        "Work: second",
        "Review Report: x: PASS",
    ];
    assert_eq!(subjects.lines().take(wanted.len()).collect::<Vec<_>>(), wanted, "{subjects}");
    assert!(subjects.ends_with("Merge Review: x: PASS\nArchive: x"), "{subjects}");
    assert_eq!(fixture.git("show task/x:settings.html"), "first\nsecond\nof main");
    let files = fixture.git("ls-tree -r --name-only task/x docs/");
    for file in [
        "research/diagnostic_report_x.md",
        "research/research_report_x.md",
        "plans/plan_x.md",
        "reviews/plan_review_x_v3.md",
        "reviews/code_review_x_v2.md",
        "reviews/merge_review_x_v1.md",
    ] {
        assert!(files.contains(&format!("docs/dev_docs/archived/{file}")), "{file}: {files}");
    }
    fixture.git("fsck --strict");
}
