// slow
//! An agent makes a remark beside its result, and a triage agent decides what to do with it. If the decision is to
//! document it, an agent that can write only documentation does so at once.

use super::bad_input::acts;
use crate::support::{TaskFixture, describe_task, in_every_owned_environment, task_messages};

/// A request in which the developer makes a remark, and the triage decides to document it.
const REQUEST: &str = "Do it. @remark=toggles @triage=DOCS";

/// Commits documentation to the repository, before a test starts its task.
pub(super) fn with_guide(fixture: &TaskFixture) {
    fixture.environment.run_outside(
        "cd repository && echo '# Guide' > GUIDE.md && mkdir -p docs/guide src && echo text > docs/guide/more.md \
         && echo code > src/code.sh && git add -A && git commit -qm guide",
    );
}

fn count(fixture: &TaskFixture, wanted: &str) -> usize {
    fixture.subjects("task/x").iter().filter(|subject| *subject == wanted).count()
}

#[test]
fn documentation_is_written_in_the_round_of_the_remark() {
    let fixture = TaskFixture::new();
    with_guide(&fixture);
    let outcome = fixture.task(&["--name", "x", REQUEST]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert_eq!(fixture.git("show task/x:GUIDE.md"), "# Guide\nthe guide now tells of toggles");
    let subjects = fixture.subjects("task/x");
    let at = |wanted: &str| subjects.iter().position(|subject| subject == wanted);
    assert_eq!(count(&fixture, "Documentation: x"), 1, "{subjects:?}");
    assert!(at("Documentation: x") > at("Add the toggle"), "{subjects:?}");
    assert!(at("Documentation: x") < at("Review Report: x: PASS"), "{subjects:?}");
    assert_eq!(fixture.git("log -1 --format=%an --grep='^Documentation: x'  task/x"), "Person");
    assert!(!fixture.git("show task/x:docs/dev_docs/backlog.md").contains("guide"));
    let lines = task_messages(&outcome).join("\n");
    assert!(
        lines.contains("LEAD ANALYST: Feedback: DOCS.\nORCHESTRATOR: Spawning TECHNICAL WRITER..."),
        "{lines}"
    );
    assert!(lines.contains("TECHNICAL WRITER: Updated GUIDE.md."), "{lines}");
    // guard must ignore the writer's own remark: the four steps, the triage and the writer make six calls.
    assert_eq!(outcome.result["used"]["calls"], 6, "{}", describe_task(&outcome));
    // The auditor's prompt must contain the new documentation too.
    let prompt = &fixture.about(&["show", "--json"]).result_of_show("audit")[0];
    assert!(prompt.contains("+the guide now tells of toggles"), "{prompt}");
}

/// guard must handle a remark that is a text, a list or an object, also one that comes with an approval.
#[test]
fn remarks_in_any_json_form_are_triaged() {
    for (feedback, remark, wanted) in [
        (
            "\"no+crash+happened;+the+tools+are+odd\"",
            "no crash happened; the tools are odd",
            "the tools are odd",
        ),
        ("[\"odd+tools\",\"no+guide\"]", "- odd tools", "no guide"),
        ("{\"message\":\"odd+tools\"}", "odd tools", "odd tools"),
    ] {
        let fixture = TaskFixture::new();
        let outcome = fixture.task(&["--name", "x", &format!("Do it. @approval={feedback}")]);
        assert_eq!(outcome.code, 0, "{feedback}: {}", describe_task(&outcome));
        let lines = task_messages(&outcome).join("\n");
        let said = format!("PLAN REVIEWER: Feedback: {remark}\nLEAD ANALYST: Feedback: BACKLOG.");
        assert!(lines.contains(&said), "{feedback}: {lines}");
        let backlog = fixture.git("show task/x:docs/dev_docs/backlog.md");
        assert!(backlog.contains(wanted), "{feedback}: {backlog}");
    }
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "x", "Do it. @approval=[\"fine\",\"the+build+crashed\"]"]);
    assert_eq!(outcome.result["status"], "failed", "{}", describe_task(&outcome));
    assert!(
        outcome.result["reason"].as_str().unwrap().contains("its feedback says `crash`"),
        "{}",
        describe_task(&outcome)
    );
}

/// The developer makes a remark in each of two rounds. In each round guard must ask the triage agent once and the
/// documentation agent once.
#[test]
fn remark_is_documented_once_per_round() {
    let fixture = TaskFixture::new();
    with_guide(&fixture);
    let outcome = fixture.task(&["--name", "x", &format!("{REQUEST} @audit=FAIL,PASS")]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert_eq!(count(&fixture, "Documentation: x"), 2, "{:?}", fixture.subjects("task/x"));
    assert_eq!(outcome.result["used"]["calls"], 10, "{}", describe_task(&outcome));
}

/// The documentation agent must not be able to change any other file, in any way it tries.
#[test]
fn documentation_agent_can_write_only_documentation() {
    in_every_owned_environment(|environment| {
        let (namespaces, name) = (environment.namespaces, environment.name());
        let fixture = TaskFixture::of(environment);
        with_guide(&fixture);
        acts(
            &fixture,
            "Technical Writer",
            r#"for place in src/code.sh toggle.txt tracked docs/dev_docs/plans/plan_x.md docs/dev_docs/backlog.md new.sh new.md AGENTS.md docs/new.md .git; do
    echo planted >> "$place"
    python3 -c "open('$place', 'a').write('planted')"
    rm -f "$place"
    mv "$place" gone
done >/dev/null 2>&1
ln src/code.sh docs/guide/code.md >/dev/null 2>&1
git add -A; git commit -qm planted; /usr/bin/git commit -qm planted --allow-empty
echo fresh > docs/guide/fresh.md"#,
        );
        let policies = fixture.repository.with_file_name("config/guard/policies");
        std::fs::create_dir_all(&policies).unwrap();
        let wanted = if namespaces { "require" } else { "off" };
        let text = format!(
            "version = 1\nname = \"writer\"\nextends = \"writer\"\n[sandbox]\nnamespaces = \"{wanted}\"\noverride = true\n"
        );
        std::fs::write(policies.join("writer.toml"), text).unwrap();
        let mut command = fixture.command(&["--stream-json", "--name", "x", REQUEST, "--agent-command"]);
        command.arg(fixture.agent()).env("XDG_CONFIG_HOME", fixture.repository.with_file_name("config"));
        let outcome = fixture.environment.run_to_end(command, b"");
        assert_eq!(outcome.code, 0, "{name}: {}", describe_task(&outcome));
        let changed = fixture.git("show --format= --name-status $(git -C repository log -1 --format=%H --grep='^Documentation: x' task/x)");
        assert_eq!(changed, "M\tGUIDE.md\nA\tdocs/guide/fresh.md", "{name}: {}", describe_task(&outcome));
        assert!(!fixture.git("log -p task/x").contains("planted"), "{name}: {}", describe_task(&outcome));
        assert_eq!(fixture.git("show task/x:src/code.sh"), "code", "{name}");
        let worktree = outcome.result["worktree"].as_str().unwrap();
        assert_eq!(
            fixture.environment.run_outside(&format!("git -C {worktree} status --porcelain --ignored")),
            "",
            "{name}"
        );
    });
}

/// The documentation agent adds code to a documentation directory, or writes to code through a hard link that the
/// developer left there. Neither change may reach the branch.
#[test]
fn code_written_by_the_documentation_agent_is_undone() {
    let fixture = TaskFixture::new();
    with_guide(&fixture);
    acts(&fixture, "Technical Writer", "echo 'import os' > docs/guide/conf.py");
    let outcome = fixture.task(&["--name", "x", REQUEST]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert_eq!(count(&fixture, "Documentation: x"), 0);
    assert!(!fixture.git("ls-tree -r --name-only task/x").contains("conf.py"));
    assert_eq!(fixture.git("show task/x:GUIDE.md"), "# Guide");
    let backlog = fixture.git("show task/x:docs/dev_docs/backlog.md");
    assert!(backlog.contains("- Documentation: the guide says nothing of toggles"), "{backlog}");
    assert!(
        task_messages(&outcome)
            .iter()
            .any(|line| line.contains("docs/guide/conf.py was changed, but is not documentation"))
    );
    // The developer leaves a hard link to the code in a documentation directory.
    let fixture = TaskFixture::new();
    with_guide(&fixture);
    acts(
        &fixture,
        "Developer",
        "rm GUIDE.md docs/guide/more.md; ln src/code.sh GUIDE.md; ln src/code.sh docs/guide/more.md",
    );
    acts(&fixture, "Technical Writer", "echo planted >> docs/guide/more.md; echo planted >> GUIDE.md");
    let outcome = fixture.task(&["--name", "x", REQUEST]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let worktree = outcome.result["worktree"].as_str().unwrap();
    assert_eq!(
        fixture.environment.run_outside(&format!("cat {worktree}/src/code.sh")),
        "code\n",
        "{}",
        describe_task(&outcome)
    );
    assert!(!fixture.git("log -p task/x").contains("planted"), "{}", describe_task(&outcome));
}

/// guard must undo the documentation agent's work if its files are too large, or if it leaves links, named pipes or
/// files that git ignores.
#[test]
fn too_large_and_hidden_files_of_the_documentation_agent_are_undone() {
    let cases = [
        (
            "for i in 1 2 3; do head -c 3500000 /dev/zero | tr '\\0' x > docs/guide/f$i.md; done",
            "more than 8 MiB",
        ),
        ("echo x > docs/guide/left.log", "git ignores"),
        ("printf '*\\n' > docs/guide/.gitignore; echo code > docs/guide/conf.py", "git ignores"),
        (
            // The script uses system calls of perl, because guard would refuse the git commands.
            "perl -e 'my $n = \"docs/guide/nest\"; mkdir $_ or die for $n, \"$n/.git\", \"$n/.git/objects\", \"$n/.git/refs\"; for ([\"$n/.git/HEAD\", \"ref: refs/heads/x\"], [\"$n/run.sh\", \"code\"]) { open(my $f, \">\", $_->[0]) or die; print $f \"$_->[1]\\n\" }' || exit 1",
            "git ignores",
        ),
        (
            "perl -e 'symlink \"../../src\", \"docs/guide/out\" or die; symlink \"../../src/code.sh\", \"docs/guide/code.md\" or die' || exit 1",
            "contains something that guard does not accept",
        ),
        (
            "mkfifo docs/guide/pipe.md; echo more >> docs/guide/more.md",
            "contains something that guard does not accept",
        ),
    ];
    for (lines, problem) in cases {
        let fixture = TaskFixture::new();
        with_guide(&fixture);
        let ignored = "cd repository && echo '*.log' > .gitignore && git add -A && git commit -qm ignored";
        fixture.environment.run_outside(ignored);
        acts(&fixture, "Technical Writer", lines);
        let outcome = fixture.task(&["--name", "x", REQUEST]);
        assert_eq!(outcome.code, 0, "{lines}: {}", describe_task(&outcome));
        assert_eq!(count(&fixture, "Documentation: x"), 0, "{lines}: {}", describe_task(&outcome));
        assert!(
            task_messages(&outcome).iter().any(|line| line.contains(problem)),
            "{lines}: {}",
            describe_task(&outcome)
        );
        let worktree = outcome.result["worktree"].as_str().unwrap();
        let left = fixture
            .environment
            .run_outside(&format!("cd {worktree}/docs/guide && find . -type f && cat more.md"));
        assert_eq!(left, "./more.md\ntext\n", "{lines}: {}", describe_task(&outcome));
        assert_eq!(
            fixture.environment.run_outside(&format!("find {worktree} -type p -o -type l")),
            "",
            "{lines}"
        );
        assert_eq!(
            fixture.environment.run_outside(&format!("cat {worktree}/src/code.sh")),
            "code\n",
            "{lines}"
        );
        let backlog = fixture.git("show task/x:docs/dev_docs/backlog.md");
        assert!(backlog.contains("Documentation: the guide says nothing of toggles"), "{lines}: {backlog}");
    }
}

/// If the documentation agent fails, the task must succeed, and the remark must go to the backlog.
#[test]
fn remark_goes_to_the_backlog_if_the_documentation_agent_fails() {
    let fixture = TaskFixture::new();
    with_guide(&fixture);
    acts(&fixture, "Technical Writer", "echo half >> GUIDE.md; exit 1");
    let outcome = fixture.task(&["--name", "x", REQUEST]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert_eq!(fixture.git("show task/x:GUIDE.md"), "# Guide");
    let backlog = fixture.git("show task/x:docs/dev_docs/backlog.md");
    assert!(backlog.contains("Documentation: the guide says nothing of toggles"), "{backlog}");
}
