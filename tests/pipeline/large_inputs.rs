// slow
//! Tests tasks with large files, many files and long lines.

use super::bad_input::acts;
use crate::support::{RunOutcome, TaskFixture, describe_task};

/// Runs a task up to the gate after the audit, changes the base, and resumes the task.
fn goes_on(fixture: &TaskFixture, base: &str) -> RunOutcome {
    let outcome = fixture.task(&["--name", "x", "--gate", "code=human", "Do it."]);
    assert_eq!(outcome.code, 3, "{}", describe_task(&outcome));
    fixture
        .environment
        .run_outside(&format!("cd repository && {base} && git add -A && git commit -qm theirs"));
    let id = outcome.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(fixture.about(&["approve", &id]).code, 0);
    fixture.about(&["resume", &id, "--stream-json"])
}

/// Returns the script of a developer that does this work and commits it.
fn develops(work: &str) -> String {
    format!(
        "{work}; report; git add -A; git commit -qm work || exit 1\n\
         finish \"{{\\\"commit_hash\\\": \\\"$(git rev-parse HEAD)\\\", \\\"status\\\": \\\"success\\\"}}\""
    )
}

/// Returns the script of an integration agent that resolves the conflicts in these files, and leaves markers in the
/// others.
fn resolves(files: &str) -> String {
    format!(
        "git merge -q main >/dev/null 2>&1\nfor file in {files}; do sed -i '/^[<=>]\\{{7\\}}/d' \"$file\"; done\n\
         git add -A; git commit -q --no-edit\n\
         finish \"{{\\\"status\\\": \\\"success\\\", \\\"commit_hash\\\": \\\"$(git rev-parse HEAD)\\\"}}\""
    )
}

/// guard must find conflict markers at the end of a 17 MiB file, and must accept the file without them.
#[test]
fn conflict_markers_at_the_end_of_a_large_file_are_found() {
    for (resolved, is_fine) in [("large.txt", true), ("", false)] {
        let fixture = TaskFixture::new();
        fixture.environment.run_outside(
            "cd repository && seq 1 2500000 > large.txt && test $(stat -c %s large.txt) -gt 17825792 && git add -A && git commit -qm large",
        );
        acts(&fixture, "Developer", &develops("sed -i '$ s/.*/ours/' large.txt"));
        acts(&fixture, "Integration Specialist", &resolves(resolved));
        let outcome = goes_on(&fixture, "sed -i '$ s/.*/theirs/' large.txt");
        if is_fine {
            assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
            assert!(fixture.git("show task/x:large.txt | tail -n 2").contains("ours\ntheirs"));
        } else {
            let reason = outcome.result["reason"].as_str().unwrap_or_default();
            assert!(reason.contains("large.txt still has conflict markers"), "{}", describe_task(&outcome));
        }
    }
}

/// guard must check each of sixty conflicts, and one in a file whose name contains a line break.
#[test]
fn each_of_sixty_conflicts_is_checked() {
    let change =
        |text: &str| format!("for n in $(seq -w 1 60); do echo {text} > f$n; done; echo {text} > $'g\\nh'");
    // In the first case the agent leaves the conflict in `f60`, in the second the one in the file with the line break,
    // and in the third none.
    for (resolved, left) in
        [("f[0-5]* $'g\\nh'", Some("f60 still has")), ("f*", Some("g\nh still has")), ("f* $'g\\nh'", None)]
    {
        let fixture = TaskFixture::new();
        fixture.environment.run_outside(&format!(
            "cd repository && {} && git add -A && git commit -qm many",
            change("first")
        ));
        acts(&fixture, "Developer", &develops(&change("ours")));
        acts(&fixture, "Integration Specialist", &resolves(resolved));
        let outcome = goes_on(&fixture, &change("theirs"));
        match left {
            Some(left) => {
                let reason = outcome.result["reason"].as_str().unwrap_or_default();
                assert!(reason.contains(left), "{}", describe_task(&outcome));
            }
            None => assert_eq!(outcome.code, 0, "{}", describe_task(&outcome)),
        }
    }
}

/// A developer changes more files than the auditor's prompt can list. guard must shorten the list and say so, and the
/// task must succeed.
#[test]
fn prompt_shortens_a_long_list_of_changed_files() {
    let fixture = TaskFixture::new();
    let name =
        "a-name-that-is-long-enough-to-make-the-list-of-them-longer-than-a-mebibyte-when-there-are-many";
    acts(
        &fixture,
        "Developer",
        &develops(&format!(
            "mkdir m; seq -f 'm/{name}-%.0f' 1 14000 | while read -r file; do echo x > \"$file\"; done"
        )),
    );
    let outcome = fixture.task(&["--name", "x", "Do it."]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let prompt = &fixture.about(&["show", "--json"]).result_of_show("audit")[0];
    assert!(prompt.contains(" 14004 files changed"), "{}", prompt.len());
    assert!(prompt.contains("This is not all of it") && prompt.len() < 512 << 10, "{}", prompt.len());
}

/// A commit subject is a megabyte long and contains control characters. guard must shorten and escape it in its
/// summary.
#[test]
fn megabyte_long_commit_subject_is_shortened_and_escaped() {
    let fixture = TaskFixture::new();
    let work = "echo x > toggle.txt; git add -A; { printf 'evil \\033]0;owned\\007 @everyone closes #1 '; head -c 1000000 /dev/zero | tr '\\0' y; } > /tmp/message; \
                git commit -qF /tmp/message || exit 1; echo more > more.txt";
    acts(&fixture, "Developer", &develops(work));
    let outcome = fixture.task(&["--name", "x", "Do it."]);
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    assert!(fixture.git("log --format=%s task/x").len() > 1_000_000, "it was made");
    let summary = std::fs::read_to_string(outcome.result["delivered"].as_str().unwrap()).unwrap();
    assert!(summary.len() < 4000, "{}", summary.len());
    assert!(!summary.contains(|c: char| c.is_control() && c != '\n'), "{summary:?}");
    let line = summary.lines().find(|line| line.contains("evil")).unwrap();
    assert!(line.starts_with("- `") && line.ends_with('`'), "{line}");
    assert!(!outcome.result["commits"].to_string().contains("\\u001b"), "{}", outcome.result["commits"]);
}
