//! Somebody else at work beside a task: people in its worktree and on its branch, other programs, other settings.

use std::time::{Duration, Instant};

use super::bad_input::acts;
use super::{Yard, said, shown};
use crate::launch::world::{Ran, collect};

/// An auditor that waits, the first time, until the world has changed: until this fails.
fn waits_while(yard: &Yard, holds: &str) {
    let lines = format!(
        "if [[ $prompt != *'You have done this already'* ]]; then echo waiting > \"$(document)\"\n\
         for n in $(seq 600); do {holds} || break; sleep 0.05; done; fi"
    );
    acts(yard, "Auditor.", &lines);
}

/// Runs a task, and does something when its auditor waits.
fn meanwhile(yard: &Yard, arguments: &[&str], work: impl FnOnce(&str)) -> Ran {
    let mut command = yard.command(&["--stream-json", "--agent-command"]);
    command.arg(yard.agent()).args(arguments);
    let started = Instant::now();
    let pipe = std::process::Stdio::piped;
    let child = command.stdin(pipe()).stdout(pipe()).stderr(pipe()).spawn().unwrap();
    let worktree = yard.repository.with_file_name(".worktrees").join("repository-x");
    let review = worktree.join("docs/dev_docs/reviews/code_review_x_v1.md");
    let reader = std::thread::spawn(move || collect(child, b"", started));
    while std::fs::read_to_string(&review).unwrap_or_default() != "waiting\n" {
        assert!(
            started.elapsed() < Duration::from_secs(60) && !reader.is_finished(),
            "nobody waits at {}",
            review.display()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    work(worktree.to_str().unwrap());
    reader.join().unwrap()
}

/// A commit that came while the auditor looked was not looked at: it looks again.
#[test]
fn a_branch_moved_during_a_review() {
    let yard = Yard::new();
    waits_while(&yard, "[[ ! -e person.txt ]]");
    let ran = meanwhile(&yard, &["--name", "x", "Do it."], |worktree| {
        yard.world.outside(&format!(
            "cd {worktree} && echo mine > person.txt && git add person.txt && git commit -qm mine"
        ));
    });
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    assert!(
        said(&ran).iter().any(|line| line.contains("the branch moved while the agent")),
        "{}",
        shown(&ran)
    );
    let shown = yard.about(&["show", "--json"]);
    let task: serde_json::Value = serde_json::from_slice(&shown.output).unwrap();
    let again = task["journal"].as_array().unwrap().iter().find(|entry| entry["effect"] == "repair").unwrap();
    assert!(again["intent"]["prompt"].as_str().unwrap().contains("person.txt"), "it is told of it");
    let subjects = yard.subjects("task/x");
    assert!(subjects.contains(&"mine".to_string()), "{subjects:?}");
}

/// The worktree goes while somebody works in it: that is told, with what to do, and nothing that was decided is lost.
#[test]
fn a_worktree_that_is_removed() {
    let yard = Yard::new();
    waits_while(&yard, "[[ -e toggle.txt ]]");
    let ran = meanwhile(&yard, &["--name", "x", "Do it."], |worktree| {
        yard.world.outside(&format!("rm -rf {worktree}"));
    });
    assert_eq!(ran.code, 2, "{}", shown(&ran));
    assert!(ran.error.contains("is no longer a worktree of the repository"), "{}", ran.error);
    assert!(ran.error.contains("hint: `guard task resume` creates it again"), "{}", ran.error);
    let ran = yard.about(&["resume", "--stream-json"]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    // A person has decided, and then it cannot go on.
    let yard = Yard::new();
    let ran = yard.task(&["--name", "x", "--gate", "code=human", "Do it."]);
    let id = ran.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(yard.about(&["approve", &id]).code, 0);
    yard.world.outside("rm -rf .worktrees && echo > .worktrees");
    let ran = yard.about(&["resume", &id]);
    assert_eq!(ran.code, 2, "{}", ran.error);
    assert!(ran.error.contains("hint:"), "{}", ran.error);
    yard.world.outside("rm .worktrees");
    let ran = yard.about(&["resume", &id, "--stream-json"]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    assert!(yard.git("show task/x:docs/dev_docs/archived/reviews/code_review_x_v1.md").contains("Person <"));
}

/// The branch goes while somebody works on it.
#[test]
fn a_branch_that_is_deleted() {
    let yard = Yard::new();
    let tip = std::cell::RefCell::new(String::new());
    // It sees nothing of the user's branches, and so is told when to go on.
    waits_while(&yard, "[[ $(<\"$(document)\") == waiting ]]");
    let ran = meanwhile(&yard, &["--name", "x", "Do it."], |worktree| {
        tip.replace(yard.git("rev-parse task/x"));
        yard.git("update-ref -d refs/heads/task/x");
        yard.world.outside(&format!("echo go on > {worktree}/docs/dev_docs/reviews/code_review_x_v1.md"));
    });
    let hint =
        format!("the branch task/x does not exist; recreate it with `git branch task/x {}`", tip.borrow());
    assert_ne!(ran.code, 0, "{}", shown(&ran));
    assert!(ran.error.contains(&hint), "{hint}: {}", shown(&ran));
    let again = yard.about(&["resume"]);
    assert_eq!(again.code, 2, "{}", again.error);
    assert!(again.error.contains(&hint), "{hint}: {}", again.error);
    yard.git(&format!("update-ref refs/heads/task/x {}", tip.borrow()));
    let ran = yard.about(&["resume", "--stream-json"]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
}

/// A checkout of parts is the user's own: whoever reviews a task sees all of it, also after a merge.
#[test]
fn a_sparse_checkout() {
    let yard = Yard::new();
    yard.world.outside(
        "cd repository && mkdir -p src docs/big && echo a > src/a && echo b > docs/big/b && git add -A && git commit -qm dirs && git sparse-checkout set src",
    );
    acts(&yard, "Auditor.", "[[ -s docs/dev_docs/plans/plan_x.md && -s docs/big/b ]] || exit 1");
    let ran = yard.task(&["--name", "x", "--gate", "code=human", "Do it."]);
    assert_eq!(ran.code, 3, "{}", shown(&ran));
    yard.world.outside("cd repository && echo o > src/o && git add -A && git commit -qm o");
    let id = ran.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(yard.about(&["approve", &id]).code, 0);
    let ran = yard.about(&["resume", &id, "--stream-json"]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    assert!(yard.subjects("task/x").contains(&"Merge Review: x: PASS".to_string()));
    assert_eq!(yard.world.outside("ls repository"), "src\ntracked\n", "the user's own stays as it was");
}

/// A place for tasks that cannot be used: the hint is about that, not about a task that is not there.
#[test]
fn a_state_that_cannot_be_written() {
    let yard = Yard::new();
    let file = yard.repository.with_file_name("file");
    std::fs::write(&file, "").unwrap();
    for state in [file.as_path(), std::path::Path::new("/proc/nowhere")] {
        let mut command = yard.command(&["--name", "x", "Do it.", "--agent-command"]);
        command.arg(yard.agent()).env("XDG_STATE_HOME", state);
        let ran = yard.world.finish(command, b"");
        assert_eq!(ran.code, 2, "{}", ran.error);
        assert!(
            ran.error.contains("the task was not started") && !ran.error.contains("task resume"),
            "{}",
            ran.error
        );
        assert_eq!(yard.git("for-each-ref refs/heads/task/"), "");
        let mut command = yard.command(&["list"]);
        command.env("XDG_STATE_HOME", state);
        let ran = yard.world.finish(command, b"");
        assert_eq!(ran.code, 2, "{}", ran.error);
        assert!(
            ran.error.contains("hint: no work is lost; guard stores tasks below $XDG_STATE_HOME"),
            "{}",
            ran.error
        );
    }
}

/// What git-lfs would fetch is for the agent's commit to say, and so is nothing that guard lets it fetch.
#[test]
fn large_files_are_not_fetched() {
    let yard = Yard::new();
    let (log, config) =
        (yard.repository.with_file_name("smudged"), yard.repository.with_file_name("gitconfig"));
    // The user's own, for all repositories, as `git lfs install` makes it.
    let smudge = format!("echo skip=$GIT_LFS_SKIP_SMUDGE >> {}; cat", log.display());
    std::fs::write(&config, format!("[filter \"lfs\"]\n\tsmudge = \"{smudge}\"\n\tclean = cat\n")).unwrap();
    yard.world.outside(
        "cd repository && echo '*.bin filter=lfs' > .gitattributes && echo one > a.bin && git add -A && git commit -qm bin",
    );
    let run = |arguments: &[&str]| {
        let mut command = yard.command(arguments);
        command.arg("--stream-json").env("GIT_CONFIG_GLOBAL", &config);
        yard.world.finish(command, b"")
    };
    let agent = yard.agent().to_str().unwrap();
    let ran = run(&["--name", "x", "--gate", "code=human", "Do it.", "--agent-command", agent]);
    assert_eq!(ran.code, 3, "{}", shown(&ran));
    yard.world.outside("cd repository && echo two > a.bin && git add -A && git commit -qm two");
    assert!(std::fs::read_to_string(&log).unwrap().contains("skip="), "the filter is in use");
    std::fs::write(&log, "").unwrap();
    let id = ran.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(yard.about(&["approve", &id]).code, 0);
    // The worktree is made again from the branch, and what is merged is checked out there.
    yard.world.outside("rm -rf .worktrees");
    let ran = run(&["resume", &id]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    let smudged = std::fs::read_to_string(&log).unwrap();
    assert!(smudged.lines().count() >= 2 && smudged.lines().all(|line| line == "skip=1"), "{smudged}");
}
