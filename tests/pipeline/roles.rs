// slow
//! The kernel must enforce what each role may write, whatever its agent tries. The tests check the files from outside.
use crate::support::{TaskFixture, describe_task, in_every_owned_environment};

/// Shell lines with which the scripted agent first tries, in every role except the developer, to change everything
/// that it may not change.
const BREAKS_OUT: &str = r#"
try() {
    echo planted > "$1" || true
    echo planted >> tracked || true
    rm -f tracked || true
    mkdir docs/dev_docs/other || true
    echo planted > docs/dev_docs/reviews/another.md || true
    ln -s /etc/passwd docs/dev_docs/link || true
    mv "$(document)" docs/dev_docs/moved || true
    git add -A || true
    git commit -q -m planted --allow-empty || true
    /usr/bin/git commit -q -m planted --allow-empty || true
    python3 - <<'PY' || true
import os, glob, pathlib
for place in ("tracked", "planted", ".git", "docs/planted"):
    try:
        open(place, "w").write("planted")
    except OSError:
        pass
link = open(".git").read().split(": ", 1)[1].strip() if os.path.isfile(".git") else ".git"
for place in (link + "/HEAD", link + "/index", link + "/../../refs/heads/planted", link + "/../../refs/heads/task/x", link + "/../../config"):
    try:
        open(place, "a").write("planted")
    except OSError:
        pass
PY
} >/dev/null 2>&1
"#;

#[test]
fn reading_roles_can_write_only_their_document() {
    in_every_owned_environment(|environment| {
        let (namespaces, name) = (environment.namespaces, environment.name());
        let fixture = TaskFixture::of(environment);
        // The scripted agent makes these attempts before the work of its role.
        let text = std::fs::read_to_string(fixture.agent()).unwrap();
        let (head, tail) = text.split_once("case $prompt in\n\"You are the Investigator.\"").unwrap();
        let attempts = "case $prompt in \"You are the Developer.\"*) ;; *) try planted.txt ;; esac\n";
        let text =
            format!("{head}{BREAKS_OUT}\n{attempts}case $prompt in\n\"You are the Investigator.\"{tail}");
        std::fs::write(fixture.agent(), text).unwrap();
        let config = fixture.repository.with_file_name("config/guard/policies");
        std::fs::create_dir_all(&config).unwrap();
        for role in ["investigator", "analyst", "architect", "reviewer", "developer", "auditor"] {
            let wanted = if namespaces { "require" } else { "off" };
            let text = format!(
                "version = 1\nname = \"{role}\"\nextends = \"{role}\"\n[sandbox]\nnamespaces = \"{wanted}\"\noverride = true\n"
            );
            std::fs::write(config.join(format!("{role}.toml")), text).unwrap();
        }
        let before = fixture.git("rev-parse main")
            + &fixture.environment.run_outside("cat repository/.git/config repository/.git/HEAD");
        let mut command = fixture.command(&[
            "--stream-json",
            "--name",
            "x",
            "--mode",
            "bugfix",
            "Do it.",
            "--agent-command",
        ]);
        command.arg(fixture.agent()).env("XDG_CONFIG_HOME", config.parent().unwrap().parent().unwrap());
        let outcome = fixture.environment.run_to_end(command, b"");
        assert_eq!(outcome.code, 0, "{name}: {}", describe_task(&outcome));
        let files = fixture.git("ls-tree -r --name-only task/x");
        let wanted = [
            "docs/dev_docs/AGENT_MEMORY.md",
            "docs/dev_docs/archived/plans/plan_x.md",
            "docs/dev_docs/archived/research/diagnostic_report_x.md",
            "docs/dev_docs/archived/reviews/code_review_x_v1.md",
            "docs/dev_docs/archived/reviews/plan_review_x_v1.md",
            "docs/dev_docs/archived/reviews/report_review_x_v1.md",
            "docs/dev_docs/archived/reviews/verification_report_x_v1.md",
            "docs/dev_docs/backlog.md",
            "toggle.txt",
            "tracked",
        ];
        assert_eq!(files.lines().collect::<Vec<_>>(), wanted, "{name}");
        assert_eq!(fixture.git("show task/x:tracked"), "first", "{name}");
        let subjects = fixture.subjects("task/x");
        assert!(!subjects.iter().any(|subject| subject == "planted"), "{name}: {subjects:?}");
        let worktree = outcome.result["worktree"].as_str().unwrap();
        assert_eq!(
            fixture.environment.run_outside(&format!("git -C {worktree} status --porcelain --ignored")),
            "",
            "{name}"
        );
        assert_eq!(
            before,
            fixture.git("rev-parse main")
                + &fixture.environment.run_outside("cat repository/.git/config repository/.git/HEAD"),
            "{name}"
        );
        assert_eq!(
            fixture.git("for-each-ref --format='%(refname)' refs/heads/"),
            "refs/heads/main\nrefs/heads/task/x",
            "{name}"
        );
        fixture.git("fsck --strict");
    });
}
