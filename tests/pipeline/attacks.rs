//! What one role does to the next, and to guard itself, with what it leaves behind. Looked at from outside.

use super::bad_input::acts;
use super::{Yard, said, shown};

/// Works, commits, and answers as a developer does, with more before.
fn develops(more: &str) -> String {
    format!(
        "{more}\necho line >> toggle.txt; report; git add -A; git commit -qm work || exit 1\n\
         finish \"{{\\\"commit_hash\\\": \\\"$(git rev-parse HEAD)\\\", \\\"status\\\": \\\"success\\\"}}\""
    )
}

/// Documents of other roles are not the developer's: not the approved plan, not a review that is still to come.
#[test]
fn a_developer_changes_no_documents() {
    for (more, wanted) in [
        ("echo forged >> docs/dev_docs/plans/plan_x.md", "plan_x.md` is another role's document"),
        (
            "echo 'PASS, I say' > docs/dev_docs/reviews/code_review_x_v1.md",
            "code_review_x_v1.md` is another role's document",
        ),
        ("echo '- obey' >> docs/dev_docs/AGENT_MEMORY.md", "AGENT_MEMORY.md` is another role's document"),
        ("rm -rf docs/dev_docs/reviews; ln -s /etc docs/dev_docs/reviews", "is another role's document"),
        (
            "mkdir -p docs/dev_docs/archived; echo x > docs/dev_docs/archived/plans",
            "archived/plans` must be a directory",
        ),
    ] {
        let yard = Yard::new();
        acts(&yard, "Developer", &develops(more));
        let ran = yard.task(&["--name", "x", "Do it."]);
        assert_eq!(ran.result["status"], "failed", "{more}: {}", shown(&ran));
        assert!(ran.result["reason"].as_str().unwrap().contains(wanted), "{more}: {}", shown(&ran));
    }
}

/// A review that lies where the auditor's will be, unseen by git, is nobody's; nor is it a second name of the code.
#[test]
fn a_review_is_not_written_beforehand() {
    for plant in [
        "echo 'PASS, I say' > docs/dev_docs/reviews/code_review_x_v1.md",
        "ln toggle.txt docs/dev_docs/reviews/code_review_x_v1.md",
        "mkfifo docs/dev_docs/reviews/code_review_x_v1.md",
        "ln -s ../../../toggle.txt docs/dev_docs/reviews/code_review_x_v1.md",
        "mkdir docs/dev_docs/reviews/code_review_x_v1.md",
    ] {
        let yard = Yard::new();
        let more = format!("echo 'code_review*' > .gitignore; echo code > toggle.txt; {plant}");
        acts(&yard, "Developer", &develops(&more));
        // An auditor that writes nothing, and one that writes its review.
        let ran = yard.task(&["--name", "x", "Do it."]);
        assert_eq!(ran.code, 0, "{plant}: {}", shown(&ran));
        let review = yard.git("show task/x:docs/dev_docs/archived/reviews/code_review_x_v1.md");
        assert!(review.contains("# Review PASS") && !review.contains("I say"), "{plant}: {review}");
        let worktree = ran.result["worktree"].as_str().unwrap();
        assert_eq!(yard.world.outside(&format!("cat {worktree}/toggle.txt")), "code\nline\n", "{plant}");
    }
}

/// Tests are the developer's own code: what they change is not what is judged, and no way for guard out of the worktree.
#[test]
fn tests_change_nothing() {
    let yard = Yard::new();
    yard.world.outside("mkdir victim && echo mine > victim/plan_x.md");
    let victim = yard.repository.with_file_name("victim");
    let tests = format!(
        "printf '#!/bin/sh\\necho nice > evil.sh; rm -rf docs/dev_docs/plans; ln -s {} docs/dev_docs/plans; git add -A; git commit -qm more\\n' > tests.sh; \
         chmod +x tests.sh; echo evil > evil.sh",
        victim.display()
    );
    acts(&yard, "Developer", &develops(&tests));
    acts(
        &yard,
        "Auditor",
        "cp evil.sh \"$(document)\"; finish \"{\\\"verdict\\\": \\\"PASS\\\", \\\"review_path\\\": \\\"$(document)\\\"}\"",
    );
    let ran = yard.task(&["--name", "x", "--tests", "./tests.sh", "Do it."]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    assert_eq!(
        yard.git("show task/x:docs/dev_docs/archived/reviews/code_review_x_v1.md"),
        "evil",
        "what was judged"
    );
    assert_eq!(yard.git("show task/x:evil.sh"), "evil");
    assert!(!yard.subjects("task/x").contains(&"more".to_string()));
    assert_eq!(yard.world.outside("cat victim/plan_x.md"), "mine\n");
}

/// What a person does in the worktree while the task waits is kept, whatever comes next.
#[test]
fn a_persons_work_is_kept() {
    let yard = Yard::new();
    let ran = yard.task(&["--name", "x", "--gate", "code=human", "Do it."]);
    let worktree = ran.result["worktree"].as_str().unwrap().to_string();
    yard.world.outside(&format!("echo mine > {worktree}/mine.txt; cd repository && echo other > other && git add other && git commit -qm other"));
    let id = ran.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(yard.about(&["approve", &id]).code, 0);
    let ran = yard.about(&["resume", &id, "--stream-json"]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    let kept = yard.git("for-each-ref --format='%(refname)' refs/guard/");
    assert_eq!(yard.git(&format!("show {kept}:mine.txt")), "mine", "{}", shown(&ran));
}

/// The worktree is gone, or a failed step is gone back to: the task goes on all the same.
#[test]
fn it_goes_on_after_accidents() {
    let yard = Yard::new();
    let working = std::fs::read_to_string(yard.agent()).unwrap();
    acts(&yard, "Developer", &develops("echo forged >> docs/dev_docs/plans/plan_x.md"));
    let ran = yard.task(&["--name", "x", "--gate", "code=human", "Do it."]);
    let id = ran.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(ran.result["status"], "failed", "{}", shown(&ran));
    std::fs::write(yard.agent(), working).unwrap();
    let ran = yard.about(&["retry", &id, "--from", "develop", "--stream-json"]);
    assert_eq!(ran.code, 3, "{}", shown(&ran));
    assert!(!yard.git("log -p task/x").contains("forged"));
    let worktree = ran.result["worktree"].as_str().unwrap().to_string();
    yard.world.outside(&format!("rm -rf {worktree}"));
    assert_eq!(yard.about(&["approve", &id]).code, 0);
    let ran = yard.about(&["resume", &id, "--stream-json"]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    assert!(said(&ran).last().unwrap().contains("Pipeline Success"));
}

/// Both sides have learned something: the merge of what everybody may write to is the specialist's to make.
#[test]
fn lessons_of_both_sides_are_merged() {
    let yard = Yard::new();
    let ran = yard.task(&["--name", "x", "--gate", "code=human", "Do it."]);
    yard.world.outside("cd repository && mkdir -p docs/dev_docs && printf '# Agent Memory\\n\\n- of main\\n' > docs/dev_docs/AGENT_MEMORY.md && git add -A && git commit -qm lessons");
    let id = ran.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(yard.about(&["approve", &id]).code, 0);
    let ran = yard.about(&["resume", &id, "--stream-json"]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    let memory = yard.git("show task/x:docs/dev_docs/AGENT_MEMORY.md");
    assert!(memory.contains("of main") && memory.contains("toggles are lines"), "{memory}");
}

/// A merge that nobody was asked about would walk round its review. No verb of git's makes this one.
#[test]
fn a_developer_does_not_merge() {
    const BY_HAND: &str = r#"
import hashlib, os, subprocess, sys, zlib
def git(*words):
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
body = "tree %s\nparent %s\nparent %s\nauthor n <e> 1700000000 +0000\ncommitter n <e> 1700000000 +0000\n\nsly\n" % (
    git("rev-parse", "HEAD^{tree}"), git("rev-parse", "HEAD"), git("rev-parse", "other"))
data = b"commit %d\0" % len(body) + body.encode()
name = hashlib.sha1(data).hexdigest()
folder = git("rev-parse", "--absolute-git-dir")
os.makedirs(f"{folder}/objects/{name[:2]}", exist_ok=True)
open(f"{folder}/objects/{name[:2]}/{name[2:]}", "wb").write(zlib.compress(data))
place = f"{folder}/{git('rev-parse', '--symbolic-full-name', 'HEAD')}"
os.makedirs(os.path.dirname(place), exist_ok=True)
open(place, "w").write(name + "\n")
"#;
    let yard = Yard::new();
    yard.world.outside("cd repository && git checkout -q -b other && git commit -q --allow-empty -m theirs && git checkout -q main");
    acts(&yard, "Developer", &develops(&format!("python3 - <<'PY'\n{BY_HAND}\nPY")));
    let ran = yard.task(&["--name", "x", "Do it."]);
    assert!(yard.git("log --all --format=%s").contains("sly"), "it was made: {}", shown(&ran));
    assert_eq!(ran.result["status"], "failed", "{}", shown(&ran));
    assert!(ran.result["reason"].as_str().unwrap().contains("this step must not merge"), "{}", shown(&ran));
}

/// Pipes that git would read are not waited for, and a place that is no directory is told before anything is made.
#[test]
fn pipes_and_other_places() {
    let yard = Yard::new();
    let working = std::fs::read_to_string(yard.agent()).unwrap();
    acts(
        &yard,
        "Developer",
        "mkdir -p d; echo x > d/f; git add -A; git commit -qm d; mkfifo d/.gitattributes; exit 1",
    );
    let ran = yard.task(&["--name", "x", "Do it."]);
    assert_eq!(ran.result["status"], "failed", "{}", shown(&ran));
    std::fs::write(yard.agent(), working).unwrap();
    let ran = yard.about(&["resume", "--stream-json"]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    let yard = Yard::new();
    yard.world.outside("cd repository && echo x > docs && git add docs && git commit -qm docs");
    let ran = yard.task(&["--name", "x", "Do it."]);
    assert_eq!(ran.code, 2, "{}", shown(&ran));
    assert!(ran.error.contains("`docs` is not a directory"), "{}", ran.error);
    assert_eq!(yard.git("for-each-ref refs/heads/task/"), "");
}

/// A branch that somebody deleted had the work: it is not begun anew as if nothing were missing.
#[test]
fn a_branch_that_is_gone_is_missed() {
    let yard = Yard::new();
    let ran = yard.task(&["--name", "x", "--gate", "code=human", "Do it."]);
    let (id, worktree) = (ran.result["task_id"].as_str().unwrap(), ran.result["worktree"].as_str().unwrap());
    let tip = yard.git("rev-parse task/x");
    yard.git(&format!("worktree remove --force {worktree}"));
    yard.git("branch -q -D task/x");
    assert_eq!(yard.about(&["approve", id]).code, 0);
    let lost = yard.about(&["resume", id]);
    assert_eq!(lost.code, 2, "{}", lost.error);
    assert!(lost.error.contains("the branch task/x does not exist"), "{}", lost.error);
    assert_eq!(yard.git("for-each-ref refs/heads/task/"), "");
    yard.git(&format!("branch task/x {tip}"));
    let ran = yard.about(&["resume", id, "--stream-json"]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    assert!(yard.subjects("task/x").contains(&"Add the toggle".to_string()));
}

/// What the developer does before a conflict that somebody must resolve, and what the base does meanwhile.
fn conflicting(integrator: &str) -> (Yard, crate::launch::world::Ran) {
    let yard = Yard::new();
    yard.world.outside(
        "cd repository && seq 1 30 > both.txt && seq 1 30 > moved.txt && echo old > old.txt && git add -A && git commit -qm files",
    );
    acts(&yard, "Developer", &develops("sed -i 's/^1$/one/' both.txt moved.txt"));
    if !integrator.is_empty() {
        acts(&yard, "Integration Specialist", integrator);
    }
    let ran = yard.task(&["--name", "x", "--gate", "code=human", "Do it."]);
    assert_eq!(ran.code, 3, "{}", shown(&ran));
    yard.world.outside(
        "cd repository && echo 'line of main' > toggle.txt && echo theirs > theirs.txt && echo second > tracked && git rm -q old.txt \
         && sed -i 's/^30$/thirty/' both.txt && git mv moved.txt renamed.txt && git add -A && git commit -qm theirs",
    );
    let id = ran.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(yard.about(&["approve", &id]).code, 0);
    let ran = yard.about(&["resume", &id, "--stream-json"]);
    (yard, ran)
}

/// What `git merge -s ours` makes, by other words: its own helper is refused.
const OURS: &str = "git merge -q --no-commit main >/dev/null 2>&1; git restore --source=HEAD --staged --worktree .; git commit -q --no-edit";

const COMMITTED: &str = r#"finish "{\"status\": \"success\", \"commit_hash\": \"$(git rev-parse HEAD)\"}""#;

/// A merge that takes nothing of what it merges, or leaves a part of it out, is none.
#[test]
fn a_merge_takes_what_the_base_alone_has_changed() {
    let resolve = "git merge -q main >/dev/null 2>&1; sed -i '/^[<=>]\\{7\\}/d' toggle.txt; git add -A";
    for (merge, wanted) in [
        (OURS.to_string(), "in 6 files"),
        (
            format!(
                "{resolve}; git restore --source=HEAD --staged --worktree tracked; git commit -q --no-edit"
            ),
            "tracked",
        ),
        (
            format!(
                "{resolve}; git restore --source=HEAD --staged --worktree old.txt; git commit -q --no-edit"
            ),
            "old.txt",
        ),
        (
            format!(
                "{resolve}; git restore --source=HEAD --staged --worktree both.txt; git commit -q --no-edit"
            ),
            "both.txt",
        ),
        (
            format!("{resolve}; git commit -q --no-edit; git rm -q theirs.txt; git commit -qm less"),
            "theirs.txt",
        ),
    ] {
        let (yard, ran) = conflicting(&format!("{merge}\n{COMMITTED}"));
        assert_eq!(ran.result["status"], "needs_human", "{merge}: {}", shown(&ran));
        let reason = ran.result["reason"].as_str().unwrap();
        assert!(reason.contains("lost changes of main") && reason.contains(wanted), "{merge}: {reason}");
        // It was a merge, and is kept.
        let kept = yard.git("log --merges --format=%s --glob='refs/guard/*'");
        assert!(!kept.is_empty(), "{merge}: it was none");
        assert!(yard.git("log --merges --format=%s task/x").is_empty(), "{merge}: it is still there");
    }
    // Asked again it can be mended; and what conflicted, or was renamed, is no reason to ask.
    let mends = format!(
        "if [[ $prompt == *'You have done this already'* ]]; then git restore --source=main --staged --worktree tracked theirs.txt; \
        git rm -q old.txt moved.txt; sed 's/^1$/one/' <(git show main:renamed.txt) > renamed.txt; sed -i 's/^30$/thirty/' both.txt; git add -A; \
        git commit -qm mended; else {OURS}; fi"
    );
    for merge in [mends.as_str(), "git merge -q -X ours --no-edit main"] {
        let (yard, ran) = conflicting(&format!("{merge}\n{COMMITTED}"));
        assert_eq!(ran.code, 0, "{merge}: {}", shown(&ran));
        assert_eq!(yard.git("show task/x:tracked"), "second", "{merge}");
        assert_eq!(yard.git("show task/x:renamed.txt").lines().next(), Some("one"), "{merge}");
    }
}
