//! What an agent says beside its result, and what becomes of it: the documentation is written at once, by somebody who can
//! write nothing else.

use super::bad_input::acts;
use super::{Yard, said, shown};
use crate::launch::world::in_every_world_owned;

/// Something to say of the guide, and the decision that the guide should say it.
const REQUEST: &str = "Do it. @remark=toggles @triage=DOCS";

/// Documentation that is there before the task.
pub(super) fn with_guide(yard: &Yard) {
    yard.world.outside(
        "cd repository && echo '# Guide' > GUIDE.md && mkdir -p docs/guide src && echo text > docs/guide/more.md \
         && echo code > src/code.sh && git add -A && git commit -qm guide",
    );
}

fn count(yard: &Yard, wanted: &str) -> usize {
    yard.subjects("task/x").iter().filter(|subject| *subject == wanted).count()
}

#[test]
fn it_is_written_at_once() {
    let yard = Yard::new();
    with_guide(&yard);
    let ran = yard.task(&["--name", "x", REQUEST]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    assert_eq!(yard.git("show task/x:GUIDE.md"), "# Guide\nthe guide now tells of toggles");
    let subjects = yard.subjects("task/x");
    let at = |wanted: &str| subjects.iter().position(|subject| subject == wanted);
    assert_eq!(count(&yard, "Documentation: x"), 1, "{subjects:?}");
    assert!(at("Documentation: x") > at("Add the toggle"), "{subjects:?}");
    assert!(at("Documentation: x") < at("Review Report: x: PASS"), "{subjects:?}");
    assert_eq!(yard.git("log -1 --format=%an --grep='^Documentation: x'  task/x"), "Person");
    assert!(!yard.git("show task/x:docs/dev_docs/backlog.md").contains("guide"));
    let lines = said(&ran).join("\n");
    assert!(
        lines.contains("LEAD ANALYST: Feedback: DOCS.\nORCHESTRATOR: Spawning TECHNICAL WRITER..."),
        "{lines}"
    );
    assert!(lines.contains("TECHNICAL WRITER: Updated GUIDE.md."), "{lines}");
    // What the writer says beside its result is nobody's to decide about: four steps, who decided, who wrote.
    assert_eq!(ran.result["used"]["calls"], 6, "{}", shown(&ran));
    // The auditor sees it with the rest.
    let prompt = &yard.about(&["show", "--json"]).result_of_show("audit")[0];
    assert!(prompt.contains("+the guide now tells of toggles"), "{prompt}");
}

/// Feedback is a text, a list or an object, and an approval may have one.
#[test]
fn feedback_in_any_form_is_decided_about() {
    for (feedback, remark, wanted) in [
        (
            "\"no+crash+happened;+the+tools+are+odd\"",
            "no crash happened; the tools are odd",
            "the tools are odd",
        ),
        ("[\"odd+tools\",\"no+guide\"]", "- odd tools", "no guide"),
        ("{\"message\":\"odd+tools\"}", "odd tools", "odd tools"),
    ] {
        let yard = Yard::new();
        let ran = yard.task(&["--name", "x", &format!("Do it. @approval={feedback}")]);
        assert_eq!(ran.code, 0, "{feedback}: {}", shown(&ran));
        let lines = said(&ran).join("\n");
        let said = format!("PLAN REVIEWER: Feedback: {remark}\nLEAD ANALYST: Feedback: BACKLOG.");
        assert!(lines.contains(&said), "{feedback}: {lines}");
        let backlog = yard.git("show task/x:docs/dev_docs/backlog.md");
        assert!(backlog.contains(wanted), "{feedback}: {backlog}");
    }
    let yard = Yard::new();
    let ran = yard.task(&["--name", "x", "Do it. @approval=[\"fine\",\"the+build+crashed\"]"]);
    assert_eq!(ran.result["status"], "failed", "{}", shown(&ran));
    assert!(ran.result["reason"].as_str().unwrap().contains("its feedback says `crash`"), "{}", shown(&ran));
}

/// Each round that says something is decided about once, and written once.
#[test]
fn it_goes_round_no_further() {
    let yard = Yard::new();
    with_guide(&yard);
    let ran = yard.task(&["--name", "x", &format!("{REQUEST} @audit=FAIL,PASS")]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    assert_eq!(count(&yard, "Documentation: x"), 2, "{:?}", yard.subjects("task/x"));
    assert_eq!(ran.result["used"]["calls"], 10, "{}", shown(&ran));
}

/// Everything else is out of reach, by whatever way it is tried.
#[test]
fn nothing_else_can_be_written() {
    in_every_world_owned(|world| {
        let (namespaces, name) = (world.namespaces, world.name());
        let yard = Yard::of(world);
        with_guide(&yard);
        acts(
            &yard,
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
        let policies = yard.repository.with_file_name("config/guard/policies");
        std::fs::create_dir_all(&policies).unwrap();
        let wanted = if namespaces { "require" } else { "off" };
        let text = format!(
            "version = 1\nname = \"writer\"\nextends = \"writer\"\n[sandbox]\nnamespaces = \"{wanted}\"\noverride = true\n"
        );
        std::fs::write(policies.join("writer.toml"), text).unwrap();
        let mut command = yard.command(&["--stream-json", "--name", "x", REQUEST, "--agent-command"]);
        command.arg(yard.agent()).env("XDG_CONFIG_HOME", yard.repository.with_file_name("config"));
        let ran = yard.world.finish(command, b"");
        assert_eq!(ran.code, 0, "{name}: {}", shown(&ran));
        let changed = yard.git("show --format= --name-status $(git -C repository log -1 --format=%H --grep='^Documentation: x' task/x)");
        assert_eq!(changed, "M\tGUIDE.md\nA\tdocs/guide/fresh.md", "{name}: {}", shown(&ran));
        assert!(!yard.git("log -p task/x").contains("planted"), "{name}: {}", shown(&ran));
        assert_eq!(yard.git("show task/x:src/code.sh"), "code", "{name}");
        let worktree = ran.result["worktree"].as_str().unwrap();
        assert_eq!(
            yard.world.outside(&format!("git -C {worktree} status --porcelain --ignored")),
            "",
            "{name}"
        );
    });
}

/// A directory of documentation can hold code, and a page can be a second name of it: neither comes onto the branch.
#[test]
fn what_is_no_documentation_is_put_back() {
    let yard = Yard::new();
    with_guide(&yard);
    acts(&yard, "Technical Writer", "echo 'import os' > docs/guide/conf.py");
    let ran = yard.task(&["--name", "x", REQUEST]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    assert_eq!(count(&yard, "Documentation: x"), 0);
    assert!(!yard.git("ls-tree -r --name-only task/x").contains("conf.py"));
    assert_eq!(yard.git("show task/x:GUIDE.md"), "# Guide");
    let backlog = yard.git("show task/x:docs/dev_docs/backlog.md");
    assert!(backlog.contains("- Documentation: the guide says nothing of toggles"), "{backlog}");
    assert!(
        said(&ran)
            .iter()
            .any(|line| line.contains("docs/guide/conf.py was changed, but is not documentation"))
    );
    // The developer leaves a second name of the code where documentation is.
    let yard = Yard::new();
    with_guide(&yard);
    acts(
        &yard,
        "Developer",
        "rm GUIDE.md docs/guide/more.md; ln src/code.sh GUIDE.md; ln src/code.sh docs/guide/more.md",
    );
    acts(&yard, "Technical Writer", "echo planted >> docs/guide/more.md; echo planted >> GUIDE.md");
    let ran = yard.task(&["--name", "x", REQUEST]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    let worktree = ran.result["worktree"].as_str().unwrap();
    assert_eq!(yard.world.outside(&format!("cat {worktree}/src/code.sh")), "code\n", "{}", shown(&ran));
    assert!(!yard.git("log -p task/x").contains("planted"), "{}", shown(&ran));
}

/// What is written down before it is committed is bounded, and what git does not see is seen.
#[test]
fn very_much_and_hidden_things_are_put_back() {
    let cases = [
        (
            "for i in 1 2 3; do head -c 3500000 /dev/zero | tr '\\0' x > docs/guide/f$i.md; done",
            "more than 8 MiB",
        ),
        ("echo x > docs/guide/left.log", "git ignores"),
        ("printf '*\\n' > docs/guide/.gitignore; echo code > docs/guide/conf.py", "git ignores"),
        (
            // Not by commands that are judged by their words.
            "perl -e 'my $n = \"docs/guide/nest\"; mkdir $_ or die for $n, \"$n/.git\", \"$n/.git/objects\", \"$n/.git/refs\"; for ([\"$n/.git/HEAD\", \"ref: refs/heads/x\"], [\"$n/run.sh\", \"code\"]) { open(my $f, \">\", $_->[0]) or die; print $f \"$_->[1]\\n\" }' || exit 1",
            "git ignores",
        ),
        (
            "perl -e 'symlink \"../../src\", \"docs/guide/out\" or die; symlink \"../../src/code.sh\", \"docs/guide/code.md\" or die' || exit 1",
            "git ignores or that is not a regular file",
        ),
        (
            "mkfifo docs/guide/pipe.md; echo more >> docs/guide/more.md",
            "git ignores or that is not a regular file",
        ),
    ];
    for (lines, problem) in cases {
        let yard = Yard::new();
        with_guide(&yard);
        let ignored = "cd repository && echo '*.log' > .gitignore && git add -A && git commit -qm ignored";
        yard.world.outside(ignored);
        acts(&yard, "Technical Writer", lines);
        let ran = yard.task(&["--name", "x", REQUEST]);
        assert_eq!(ran.code, 0, "{lines}: {}", shown(&ran));
        assert_eq!(count(&yard, "Documentation: x"), 0, "{lines}: {}", shown(&ran));
        assert!(said(&ran).iter().any(|line| line.contains(problem)), "{lines}: {}", shown(&ran));
        let worktree = ran.result["worktree"].as_str().unwrap();
        let left = yard.world.outside(&format!("cd {worktree}/docs/guide && find . -type f && cat more.md"));
        assert_eq!(left, "./more.md\ntext\n", "{lines}: {}", shown(&ran));
        assert_eq!(yard.world.outside(&format!("find {worktree} -type p -o -type l")), "", "{lines}");
        assert_eq!(yard.world.outside(&format!("cat {worktree}/src/code.sh")), "code\n", "{lines}");
        let backlog = yard.git("show task/x:docs/dev_docs/backlog.md");
        assert!(backlog.contains("Documentation: the guide says nothing of toggles"), "{lines}: {backlog}");
    }
}

/// An agent that fails here fails nothing but this.
#[test]
fn a_failure_is_remembered() {
    let yard = Yard::new();
    with_guide(&yard);
    acts(&yard, "Technical Writer", "echo half >> GUIDE.md; exit 1");
    let ran = yard.task(&["--name", "x", REQUEST]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    assert_eq!(yard.git("show task/x:GUIDE.md"), "# Guide");
    let backlog = yard.git("show task/x:docs/dev_docs/backlog.md");
    assert!(backlog.contains("Documentation: the guide says nothing of toggles"), "{backlog}");
}
