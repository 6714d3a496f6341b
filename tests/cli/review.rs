//! A user reviews and applies a branch on which several runs have worked. Whatever the last run did, guard must show and
//! judge everything that comes with the branch.

use crate::agent_exec::scripted;
use crate::support::{
    RunOutcome, TaskFixture, TestEnvironment, UserShell, guard_program, in_every_environment,
    in_two_environments, one_environment,
};

/// A first run plants files that act without being asked. What comes after it is harmless.
const PLANT: &str = "mkdir -p .github/workflows .vscode && echo on > .github/workflows/x.yml && \
                     echo '{}' > .vscode/tasks.json && ln -s /etc/passwd link && git add -A && git commit -qm plant";
const HARMLESS: &str = "echo fine > harmless && git add -A && git commit -qm harmless";
const PLANTED: [&str; 3] = [".github/workflows/x.yml", ".vscode/tasks.json", "link"];

/// Runs guard outside the sandbox, in the working directory of the environment.
fn guard(environment: &TestEnvironment, arguments: &[&str]) -> RunOutcome {
    let mut command = environment.command(guard_program());
    command.args(arguments);
    environment.run_to_end(command, b"")
}

fn with_identity(environment: &TestEnvironment) {
    environment.run_outside("git -C repository config user.name n && git -C repository config user.email e");
}

/// Returns what a command printed to standard output.
pub(super) fn said(outcome: &RunOutcome) -> String {
    String::from_utf8_lossy(&outcome.output).into_owned()
}

/// Returns the paths of the findings in a JSON result.
fn paths(findings: &serde_json::Value) -> Vec<&str> {
    findings.as_array().unwrap().iter().filter_map(|finding| finding["path"].as_str()).collect()
}

// slow
#[test]
fn later_run_does_not_hide_findings_of_an_earlier_one() {
    in_every_environment(|environment| {
        with_identity(environment);
        let run = |options: &[&str], script: &str| {
            let outcome = environment.run(options, &["bash", "-c", script]);
            outcome.expect_code(0);
            outcome
        };
        run(&["--name", "x"], PLANT);
        let second = run(&["--name", "x", "--continue"], HARMLESS);
        let found = paths(&second.result["findings"]);
        assert!(PLANTED.iter().all(|path| found.contains(path)), "{second}");
        // The result's list of files is still about this run.
        let files: Vec<&str> = second.result["files_changed"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|file| file["path"].as_str())
            .collect();
        assert_eq!(files, ["harmless"], "{second}");

        for command in [&["diff", "--stat"][..], &["worktree", "diff", "task/x", "--stat"]] {
            let diff = guard(environment, command);
            diff.expect_code(0);
            let all = PLANTED.iter().chain(&["harmless"]);
            assert!(all.into_iter().all(|path| said(&diff).contains(path)), "{diff}");
        }
        let diff = guard(environment, &["diff", "--stat", "--since-run"]);
        assert!(said(&diff).contains("harmless") && !said(&diff).contains("tasks.json"), "{diff}");

        for method in ["--merge", "--squash", "--uncommitted"] {
            let refused = guard(environment, &["apply", method]);
            refused.expect_code(1);
            assert!(PLANTED.iter().all(|path| said(&refused).contains(path)), "{refused}");
            assert!(refused.error.contains("nobody confirmed"), "{refused}");
            assert_eq!(
                environment.run_outside("git -C project status --porcelain; git -C project log --format=%s"),
                "first\n"
            );
        }
        let applied = guard(environment, &["apply", "--yes"]);
        applied.expect_code(0);
        assert!(said(&applied).contains("as a fast-forward: 2 commits, 4 files"), "{applied}");
        assert_eq!(environment.run_outside("git -C project log --format=%s"), "harmless\nplant\nfirst\n");
    });
}

/// Uncommitted work of an earlier run, and work that a later run committed under another name, is on the branch as well.
#[test]
fn uncommitted_work_of_an_earlier_run_is_in_the_diff() {
    let user = UserShell::new("review-uncommitted");
    user.types("guard run -q --name x -- bash -c 'mkdir .vscode && echo {} > .vscode/tasks.json'");
    user.types("guard run -q --name x --continue -- bash -c 'echo b > b'");
    user.sees_with_code(
        "guard diff --stat",
        0,
        &["0 commits, 2 paths not committed", ".vscode/tasks.json", " b "],
    );
    user.sees_with_code("guard apply", 1, &["review: .vscode/tasks.json", "nobody confirmed"]);
    // The second run commits everything, so the file is old for a third one.
    user.types("guard run -q --name x --continue -- bash -c 'git add -A && git commit -qm all'");
    user.types("guard run -q --name x --continue -- bash -c 'echo c > c && git add -A && git commit -qm c'");
    user.sees_with_code("guard diff --stat", 0, &["2 commits, no uncommitted changes", ".vscode/tasks.json"]);
    user.sees_with_code("guard apply", 1, &["review: .vscode/tasks.json"]);
}

/// The same branch in other ways: a run in the worktree itself, a new branch from the first one, and a commit of the user
/// between two runs.
#[test]
fn findings_are_shown_however_a_branch_was_continued() {
    let user = UserShell::new("review-ways");
    user.types(&format!("guard run -q --name a -- bash -c '{}'", PLANT.replace('\'', "\"")));
    user.types(&format!(
        "cd \"$(guard worktree path task/a)\" && guard run -q --here -- bash -c '{HARMLESS}'"
    ));
    user.sees_with_code("guard diff --stat", 0, &["2 commits", "x.yml", "tasks.json", "link", "harmless"]);
    user.sees_with_code("guard apply", 1, &["review: .github/workflows/x.yml", "review: link"]);
    // In the run's own worktree, the checked-out commit is the branch itself.
    user.sees_with_code(
        "cd \"$(guard worktree path task/a)\" && guard diff --stat",
        0,
        &["2 commits", "tasks.json"],
    );

    user.types(
        "guard run -q --name b --base task/a -- bash -c 'echo b > b && git add -A && git commit -qm b'",
    );
    user.sees_with_code("guard diff task/b --stat", 0, &["3 commits", "tasks.json", "harmless", " b "]);
    user.sees_with_code("guard apply task/b", 1, &["review: .vscode/tasks.json"]);

    user.types(
        "cd \"$(guard worktree path task/b)\" && echo mine > mine && git add -A && git commit -qm mine",
    );
    user.types("guard run -q --name b --continue -- bash -c 'echo c > c && git add -A && git commit -qm c'");
    user.sees_with_code("guard diff task/b --stat", 0, &["5 commits", "tasks.json", "mine"]);
    user.sees_with_code("guard apply task/b", 1, &["review: .vscode/tasks.json"]);
    user.sees_with_code("guard apply task/b --yes", 0, &["5 commits, 7 files"]);
}

/// What the user's branch already has is neither shown nor asked about again, and what it lost is.
#[test]
fn review_covers_only_what_the_user_branch_lacks() {
    let user = UserShell::new("review-new");
    user.types("git commit -q --allow-empty -m second");
    user.types("guard run -q --name a -- bash -c 'mkdir .vscode && echo {} > .vscode/tasks.json && git add -A && git commit -qm plant'");
    user.types("guard apply --yes --keep");
    user.types("guard run -q --name a --continue -- bash -c 'echo b > b && git add -A && git commit -qm b'");
    let diff = user.sees_with_code("guard diff --stat", 0, &["1 commit, no uncommitted changes", " b "]);
    assert!(!diff.contains("tasks.json"), "{diff}");
    user.sees_with_code("guard apply --keep", 0, &["1 commit, 1 file"]);
    // The user goes back to before both, so that the branch brings both again.
    user.types("git reset -q --hard HEAD~2");
    user.sees_with_code("guard diff --stat", 0, &["2 commits", "tasks.json"]);
    user.sees_with_code("guard apply", 1, &["review: .vscode/tasks.json"]);
    // The user rewrites the commit from which the branch began, and goes on.
    user.types(
        "git commit -q --amend --allow-empty -m rewritten && echo m > m && git add m && git commit -qm m",
    );
    user.sees_with_code("guard diff --stat", 0, &["tasks.json"]);
    user.sees("guard apply", &["review: .vscode/tasks.json"]);
    // After a squash the commits are still not in the user's history, but their content is, and apply asks for nothing.
    let user = UserShell::new("review-squash");
    user.types("guard run -q --name a -- bash -c 'mkdir .vscode && echo {} > .vscode/tasks.json && git add -A && git commit -qm plant'");
    user.types("guard apply --yes --keep --squash");
    user.types("guard run -q --name a --continue -- bash -c 'echo b > b && git add -A && git commit -qm b'");
    user.sees_with_code("guard apply --squash", 0, &["as one commit: 1 file"]);
}

/// The user's branch and the run's have merged each other, so that git knows two fork points. A file that the run's branch
/// took back from one of them is in the diff.
#[test]
fn review_covers_changes_after_several_fork_points() {
    let user = UserShell::new("review-criss-cross");
    user.types("mkdir .vscode && echo safe > .vscode/tasks.json && git add -A && git commit -qm safe");
    user.types("guard run -q --name a -- bash -c 'echo a > a && git add -A && git commit -qm a'");
    user.types("echo m > m && git add m && git commit -qm m && git rev-parse HEAD > ~/m && git merge -q --no-edit task/a");
    user.types("cd \"$(guard worktree path task/a)\" && git merge -q --no-edit \"$(cat ~/m)\"");
    user.types("guard run -q --name a --continue -- bash -c 'echo evil > .vscode/tasks.json && git add -A && git commit -qm evil'");
    user.types("test $(git merge-base --all main task/a | wc -l) = 2");
    user.sees_with_code("guard diff --stat", 0, &[".vscode/tasks.json"]);
    user.sees_with_code("guard apply", 1, &["review: .vscode/tasks.json"]);
}

#[test]
fn turns_of_a_conversation_are_reviewed_together() {
    let environment = one_environment();
    with_identity(&environment);
    let agent = scripted::agent(&environment, "two-turns", scripted::SCRIPT);
    let policy = scripted::policy(&environment);
    let turn = |message: &str, more: &[&str]| {
        let mut command = environment.command(guard_program());
        command.args(["chat", "--once", message, "--policy"]).arg(&policy).args(more);
        let outcome = environment.run_to_end(command, b"");
        outcome.expect_code(0);
    };
    turn(PLANT, &["--", agent.to_str().unwrap()]);
    turn(HARMLESS, &["--session", "@"]);
    let diff = guard(&environment, &["diff", "--stat"]);
    assert!(
        PLANTED.iter().chain(&["harmless", "2 commits"]).all(|text| said(&diff).contains(text)),
        "{diff}"
    );
    let refused = guard(&environment, &["apply"]);
    refused.expect_code(1);
    assert!(PLANTED.iter().all(|path| said(&refused).contains(path)), "{refused}");
    let applied = guard(&environment, &["apply", "--yes"]);
    assert!(said(&applied).contains("2 commits, 4 files"), "{applied}");
}

// slow
#[test]
fn diff_of_a_task_shows_its_code() {
    let fixture = TaskFixture::new();
    let outcome = fixture.task(&["--name", "toggle", "Add a toggle."]);
    outcome.expect_code(0);
    let mut command = fixture.environment.command(guard_program());
    command.args(["diff", "task/toggle", "--stat"]).current_dir(&fixture.repository);
    let diff = fixture.environment.run_to_end(command, b"");
    diff.expect_code(0);
    assert!(said(&diff).contains("toggle.txt") && said(&diff).contains("plan_toggle.md"), "{diff}");
}

/// guard commits files that the agent left uncommitted. git must check their objects like those of received commits, in
/// every form of apply, before the user's repository has them.
// slow
#[test]
fn uncommitted_work_gets_the_object_checks_of_received_commits() {
    in_every_environment(|environment| {
        with_identity(environment);
        let outcome = environment.run(
            &["--name", "x"],
            &["bash", "-c", "printf '[submodule \"../../x\"]\\n\\tpath = x\\n\\turl = https://example.org/x\\n' > .gitmodules; echo b > b"],
        );
        outcome.expect_code(0);
        let state = "cd project && git rev-parse HEAD task/x && git status --porcelain && git for-each-ref && git count-objects";
        let before = environment.run_outside(state);
        for method in ["--merge", "--squash", "--uncommitted", "--commit-only", "--dry-run"] {
            let mut arguments = vec!["apply", "task/x", method];
            arguments.extend(if method == "--commit-only" { None } else { Some("--yes") });
            let refused = guard(environment, &arguments);
            refused.expect_code(2);
            assert!(
                refused.error.contains("guard cannot commit what the run left uncommitted")
                    && refused.error.contains("gitmodulesName"),
                "{method}: {refused}"
            );
            assert_eq!(environment.run_outside(state), before, "{method}: {refused}");
        }
        // Without the file, the work is applied, and git finds no fault in the repository.
        let worktree = outcome.result["worktree"]["path"].as_str().unwrap();
        std::fs::remove_file(format!("{worktree}/.gitmodules")).unwrap();
        guard(environment, &["apply", "task/x", "--yes"]).expect_code(0);
        environment.run_outside("cd project && cat b && git fsck --strict && test -z \"$(git for-each-ref refs/guard | grep incoming)\"");
    });
}

/// guard saves uncommitted work as a commit before it removes a worktree, and `guard restore` makes a branch of it.
#[test]
fn saved_work_gets_the_object_checks_of_received_commits() {
    let user = UserShell::new("review-saved");
    let bad = "printf \"[submodule \\\"../../x\\\"]\\n\\tpath = x\\n\\turl = https://example.org/x\\n\" > .gitmodules; echo kept > kept";
    user.types(&format!("guard run -q --discard --name bad -- bash -c '{bad}'"));
    user.types("test -z \"$(git for-each-ref refs/guard)\"");
    let kept = user.types("find ~/.local/state/guard/runs -name kept");
    assert_eq!(kept.lines().count(), 1, "the files are not lost: {kept}");
    user.types("guard run -q --discard --name good -- bash -c 'echo kept > kept'");
    user.types("git for-each-ref refs/guard | grep -q /work && git fsck --strict");
}

/// git reads every byte of a sparse file, so guard limits the sum of the sizes.
// slow
#[test]
fn sparse_files_beyond_the_size_limit_are_left_out_by_name() {
    in_two_environments(|environment| {
        with_identity(environment);
        let outcome = environment.run(&["--name", "x"], &["bash", "-c", "echo x > small"]);
        outcome.expect_code(0);
        let worktree = outcome.result["worktree"]["path"].as_str().unwrap();
        // Each is smaller than the limit, and both together are larger.
        environment
            .run_outside(&format!("cd '{worktree}' && truncate -s 10M large && truncate -s 1020M huge"));
        let diff = guard(environment, &["diff", "task/x", "--stat"]);
        diff.expect_code(0);
        assert!(said(&diff).contains("small") && said(&diff).contains("large"), "{diff}");
        assert!(
            !said(&diff).contains("huge")
                && diff.error.contains("largest uncommitted files")
                && diff.error.contains("huge"),
            "{diff}"
        );
        let refused = guard(environment, &["apply", "task/x", "--yes"]);
        refused.expect_code(2);
        assert!(
            refused.error.contains("together larger than 1 GiB") && refused.error.contains("huge"),
            "{refused}"
        );
        let json = guard(environment, &["diff", "task/x", "--json", "--stat"]);
        let value: serde_json::Value = serde_json::from_slice(&json.output).unwrap();
        assert_eq!(value["too_large"], serde_json::json!(["huge"]), "{json}");
    });
}

/// What the user's own git commands change during a run is no finding. What makes programs run is one, whoever wrote it.
// slow
#[test]
fn git_commands_of_the_user_are_not_findings() {
    in_two_environments(|environment| {
        with_identity(environment);
        let during = |script: &str| {
            let mut run = environment.guard_run(
                &["--json", "--name", "x", "--discard"],
                &[
                    "bash",
                    "-c",
                    "touch started; for _ in $(seq 600); do test -e go && exit 0; sleep 0.1; done; exit 1",
                ],
            );
            let child = run
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let started = std::time::Instant::now();
            let find = "cd project; tree=$(git worktree list --porcelain | sed -n 's/^worktree //p' | grep -- '-x$')";
            environment.run_outside(&format!("for _ in $(seq 600); do ( {find}; test -e $tree/started ) 2>/dev/null && exit 0; sleep 0.1; done; exit 1"));
            environment.run_outside(script);
            environment.run_outside(&format!("{find}; touch $tree/go"));
            let outcome = environment.collect_outcome(child, started);
            outcome.expect_code(0);
            outcome
        };
        let outcome = during(
            "cd repository && echo u >> tracked && git add tracked && git commit -qm mine && git switch -qc other && git reset -q --hard HEAD~1 \
             && git merge -q main && echo s >> tracked && git stash -q && git tag v1 && git branch -q third && git branch -q -D third \
             && git worktree add -q ../fourth && git worktree remove ../fourth && git gc -q",
        );
        assert_eq!(outcome.result["findings"], serde_json::json!([]), "{outcome}");
        let outcome = during(
            "mkdir -p repository/.git/hooks && echo x > repository/.git/hooks/pre-commit && git -C repository config core.pager less",
        );
        let findings = outcome.result["findings"].to_string();
        assert!(findings.contains("hooks/pre-commit") && findings.contains("config changed"), "{outcome}");
    });
}

#[test]
fn deleted_hooks_and_policies_are_findings() {
    let environment = one_environment();
    environment.run_outside(
        "cd repository && mkdir .guard .husky && echo '[run]' > .guard/config.toml && echo x > .husky/pre-commit && \
         git add . && git -c user.name=n -c user.email=e commit -qm checks",
    );
    let root = environment.directory.parent().unwrap().to_path_buf();
    let mut run = environment.guard_run(
        &["--json", "--name", "one", "--keep"],
        &["sh", "-c", "git rm -qr .guard .husky && git commit -qm gone"],
    );
    let outcome = environment.run_to_end(
        {
            run.current_dir(root.join("repository"));
            run
        },
        b"",
    );
    let findings = outcome.result["findings"].to_string();
    assert!(findings.contains(".guard/config.toml") && findings.contains(".husky/pre-commit"), "{outcome}");
    let mut apply = environment.command(guard_program());
    apply.args(["apply", "task/one"]).current_dir(root.join("repository"));
    let outcome = environment.run_to_end(apply, b"");
    assert_ne!(outcome.code, 0, "guard apply asks before it removes checks: {outcome}");
    assert!(root.join("repository/.husky/pre-commit").exists(), "{outcome}");
}

/// A run in the user's directory has no branch to review. Its findings are about the files that it changed.
// slow
#[test]
fn files_written_by_an_in_place_run_are_findings() {
    in_every_environment(|environment| {
        environment.run_outside("cd project && mkdir .githooks && git config core.hooksPath .githooks");
        let script = "mkdir .vscode && echo '{}' > .vscode/tasks.json && echo evil > .githooks/pre-commit && \
                      ln -s /etc/passwd users";
        let json = environment.run_bash(script);
        let findings = json.result["findings"].to_string();
        for path in [".vscode/tasks.json", ".githooks/pre-commit", "users"] {
            assert!(findings.contains(path), "{path}: {json}");
        }
        environment.run_outside("cd project && rm -r .vscode .githooks/pre-commit users");
        let outcome = environment.run_to_end(environment.guard_run(&[], &["sh", "-c", script]), b"");
        assert!(
            outcome.error.contains("review:") && outcome.error.contains(".vscode/tasks.json"),
            "{outcome}"
        );
        // Also without a snapshot, and in a directory that the run hides from git.
        environment
            .run_outside("rm -r project/.vscode state/guard/snapshots && echo > state/guard/snapshots");
        let hidden = "mkdir -p h/.vscode && echo '{}' > h/.vscode/tasks.json && echo '*' | tee .gitignore > h/.gitignore";
        let json = environment.run_bash(hidden);
        assert!(json.result["snapshot"].to_string().contains("could not take a snapshot"), "{json}");
        assert!(json.result["findings"].to_string().contains("h/.vscode/tasks.json"), "{json}");
    });
}

/// A run writes ignore files that hide its new files, and themselves, from git. The ignore files of the user's commit
/// decide what is work.
// slow
#[test]
fn files_hidden_by_new_ignore_files_of_a_run_are_work() {
    in_every_environment(|environment| {
        with_identity(environment);
        environment.run_outside(
            "cd project && mkdir sub && echo out/ > .gitignore && printf '*.o\n!keep.o\n' > sub/.gitignore && \
             echo x > sub/x && git add -A && git commit -qm ignore",
        );
        let hide = "mkdir -p hidden/.vscode hidden/deep out .venv/lib sub/new && echo '{}' > hidden/.vscode/tasks.json && \
                    echo plan > hidden/deep/plan && echo o | tee out/o sub/a.o sub/new/b.o sub/keep.o > .venv/lib/v && \
                    echo '*' | tee hidden/.gitignore > .venv/.gitignore && printf '*\n' > sub/new/.gitignore";
        let outcome = environment.run(&["--name", "x"], &["bash", "-c", hide]);
        outcome.expect_code(0);
        assert_eq!(outcome.result["worktree"]["kept"], true, "{outcome}");
        let changed = outcome.result["files_changed"].to_string();
        assert!(changed.contains("hidden/deep/plan") && !changed.contains("out/o"), "{outcome}");

        let diff = guard(environment, &["diff", "--json"]);
        let diff: serde_json::Value = serde_json::from_slice(&diff.output).unwrap();
        let hidden = [
            "hidden/.gitignore",
            "hidden/.vscode/tasks.json",
            "hidden/deep/plan",
            "sub/keep.o",
            "sub/new/.gitignore",
        ];
        assert_eq!(paths(&diff["files"]), hidden, "{diff:#}");
        let shown = guard(environment, &["diff", "--stat"]);
        assert!(
            shown.error.contains("ignore files of the run hide") && shown.error.contains("plan"),
            "{shown}"
        );

        let refused = guard(environment, &["apply"]);
        refused.expect_code(1);
        assert!(said(&refused).contains("review: hidden/.vscode/tasks.json"), "{refused}");
        guard(environment, &["apply", "--yes"]).expect_code(0);
        environment
            .run_outside("cd project && test -f hidden/deep/plan && test ! -e out && test ! -e sub/a.o");
        assert_eq!(environment.run_outside("git -C project ls-files hidden sub/keep.o").lines().count(), 4);
    });
}

/// An earlier run commits the ignore file, and later runs hide files by it or are removed.
#[test]
fn files_hidden_by_a_committed_ignore_file_of_a_run_are_work() {
    let user = UserShell::new("review-hidden");
    let ignore = "echo secret > .gitignore && git add -A && git commit -qm ignore";
    user.types(&format!("guard run -q --name a -- bash -c '{ignore}'"));
    user.types("guard run -q --name a --continue -- bash -c 'echo s > secret'");
    user.sees_with_code("guard diff --stat", 0, &["1 commit, 1 path not committed", " secret "]);
    // A new worktree on top of that branch has nothing else.
    user.types("guard run -q --name b --base task/a -- bash -c 'echo s > secret'");
    user.sees_with_code("guard diff task/b --stat", 0, &["1 path not committed", " secret "]);
    user.types(
        "guard run -q --name c --discard -- bash -c 'mkdir h; echo \\* > h/.gitignore; echo s > h/secret'",
    );
    user.types("git for-each-ref --format='%(refname)' refs/guard | grep /work > ~/saved");
    assert_eq!(user.types("git show $(cat ~/saved):h/secret"), "s\n");
    user.sees_with_code("guard apply task/a --yes", 0, &["2 commits, 2 files"]);
}

/// The user's own ignored files in a worktree in which they let runs work are not the work of those runs, also if the
/// user has not committed the ignore file yet.
#[test]
fn ignored_files_of_the_user_are_not_work_of_a_run() {
    let user = UserShell::new("review-own-ignored");
    user.types(
        "git worktree add -q -b mine ../mine && cd ../mine && echo .env > .gitignore && echo key > .env",
    );
    user.types(
        "cd ../mine && guard run -q --here -- bash -c 'mkdir h && echo \\* > h/.gitignore && echo b > h/b'",
    );
    let diff = user.sees_with_code("cd ../mine && guard diff --stat", 0, &[" h/b "]);
    assert!(!diff.contains(".env"), "{diff}");
    // A file that the user's rules outside the repository ignore is not work either.
    user.types("mkdir -p ~/.config/git && echo '*.swp' > ~/.config/git/ignore");
    user.types("guard run -q --name s -- bash -c 'echo x > x.swp'");
    user.types("test -z \"$(git branch --list task/s)\"");
}

/// A run plants many harmless findings, which must not hide the dangerous ones: neither in the limited list of a result,
/// nor in the few lines that people see.
// slow
#[test]
fn dangerous_findings_are_listed_before_many_harmless_ones() {
    in_every_environment(|environment| {
        with_identity(environment);
        let bury = "mkdir -p .vscode .claude .github/workflows .husky .guard a; \
                    for i in $(seq 70); do echo > .vscode/$i; echo > .claude/$i; ln -s /etc/passwd link$i; done; \
                    for i in $(seq 1100); do echo > a/$i; done; \
                    tee .husky/pre-commit .guard/policy.toml < /dev/null > .github/workflows/z.yml";
        let dangerous =
            [".github/workflows/z.yml", ".husky/pre-commit", ".guard/policy.toml", "link", ".vscode/"];
        for options in [&["--name", "x"][..], &[]] {
            let outcome = environment.run(options, &["bash", "-c", bury]);
            outcome.expect_code(0);
            let findings = outcome.result["findings"].as_array().unwrap();
            let first: Vec<&str> = findings.iter().take(10).filter_map(|one| one["path"].as_str()).collect();
            for path in dangerous {
                assert!(first.iter().any(|found| found.starts_with(path)), "{path}: {first:?}");
            }
            let said: Vec<&str> = findings.iter().filter_map(|one| one["message"].as_str()).collect();
            // 70 files each in `.vscode` and `.claude`, and three others.
            assert!(said.contains(&"93 more findings of the kind automatic are not listed; guard lists the most dangerous findings of each kind"), "{said:?}");
            assert!(
                said.iter().any(|text| text.starts_with("20 more findings of the kind link")),
                "{said:?}"
            );
        }
        environment.run_outside("cd project && rm -r .vscode .claude .github .husky .guard a link*");
        let refused = guard(environment, &["apply"]);
        refused.expect_code(1);
        let text = said(&refused);
        assert!(dangerous.iter().all(|path| text.contains(&format!("review: {path}"))), "{refused}");
    });
}

/// The run's policy limits what guard takes from a run: when it receives commits, and when it commits what is left.
// slow
#[test]
fn size_limit_of_the_policy_applies_to_uncommitted_work() {
    in_every_environment(|environment| {
        with_identity(environment);
        let policy = environment.directory.with_file_name("small.toml");
        let text = "version = 1\nname = \"small\"\nextends = \"strict\"\n[git]\nreceive_mib = 1\n";
        std::fs::write(&policy, text).unwrap();
        let write = "head -c 3000000 /dev/urandom > big";
        let run = |name: &str, policy: &str| {
            let outcome = environment.run(&["--policy", policy, "--name", name], &["sh", "-c", write]);
            outcome.expect_code(0);
        };
        run("x", policy.to_str().unwrap());
        for method in ["--merge", "--squash", "--uncommitted", "--commit-only"] {
            let refused = guard(environment, &["apply", "task/x", method]);
            refused.expect_code(2);
            assert!(refused.error.contains("larger than the limit of 1 MiB"), "{method}: {refused}");
        }
        run("y", "strict");
        guard(environment, &["apply", "task/y"]).expect_code(0);
    });
}

/// `guard restore` brings back work of which nobody may have seen the findings.
#[test]
fn restored_work_is_reviewed() {
    let user = UserShell::new("review-restored");
    user.types(
        "mkdir .guard && echo 'version = 1' > .guard/policy.toml && git add -A && git commit -qm policy",
    );
    let plant = "mkdir .vscode && echo {} > .vscode/tasks.json && git add -A && git commit -qm plant";
    user.types(&format!("guard run -q --policy strict --name x --discard -- bash -c '{plant}; echo b > b'"));
    user.types("guard run -q --policy strict --name y --discard -- bash -c 'echo fine > fine'");
    user.sees_with_code(
        "guard restore task/x",
        1,
        &["review: .vscode/tasks.json", "nobody confirmed", "guard restored nothing"],
    );
    user.sees_with_code("guard restore task/x --json > ../refused.json", 1, &["nobody confirmed"]);
    user.types("test -z \"$(git branch --list 'restored/*')\"");
    user.sees_with_code("guard restore task/x --yes --json | grep -q vscode/tasks.json", 0, &[]);
    user.types("test \"$(git show restored/x:b)\" = b");
    user.sees_with_code("guard restore task/y", 0, &["created the branch restored/y"]);
    // What the user has by now is not reviewed again.
    user.types("git merge -q restored/x");
    user.sees_with_code("guard restore task/x --branch again", 0, &["created the branch again"]);
}
