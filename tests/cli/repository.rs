//! Tests `guard run` in a repository: the worktree, the branch, and the messages about them.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::{Scratch, guard, isolated_command, text};

struct Project {
    scratch: Scratch,
    folder: PathBuf,
}

impl Project {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let folder = scratch.0.join("project");
        std::fs::create_dir_all(folder.join("sub")).unwrap();
        std::fs::write(folder.join("sub/file"), "one\n").unwrap();
        let project = Self { scratch, folder };
        for words in [
            &["init", "-q", "-b", "main"][..],
            &["config", "user.name", "User"],
            &["config", "user.email", "user@example.org"],
            &["add", "."],
            &["commit", "-qm", "start"],
        ] {
            project.git(&project.folder, words);
        }
        project
    }

    fn git(&self, folder: &Path, words: &[&str]) -> String {
        let output = isolated_command("git", Path::new("/nonexistent"))
            .args(words)
            .current_dir(folder)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn command(&self, folder: &Path, words: &[&str]) -> Command {
        self.guard(folder, &[&["run"], words].concat())
    }

    fn guard(&self, folder: &Path, words: &[&str]) -> Command {
        let mut command = guard();
        command
            .args(words)
            .env("HOME", self.scratch.0.join("home"))
            .env("XDG_STATE_HOME", self.scratch.0.join("state"))
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .current_dir(folder);
        command
    }

    fn run(&self, folder: &Path, words: &[&str]) -> Output {
        self.command(folder, words).output().unwrap()
    }

    fn result(&self, folder: &Path, words: &[&str]) -> Value {
        let output = self.run(folder, &[&["--json"], words].concat());
        let printed = text(&output);
        serde_json::from_str(&printed)
            .unwrap_or_else(|error| panic!("{error}: {printed}{}", String::from_utf8_lossy(&output.stderr)))
    }
}

const COMMIT: &str = "echo two >> file; git commit -q -a -m 'second\n\nbody'; pwd; git branch --show-current";

#[test]
fn commit_arrives_on_its_branch_and_no_other_ref_moves() {
    let project = Project::new("repository");
    let before = project.git(&project.folder, &["for-each-ref"]);
    let sub = project.folder.join("sub");
    let result = project.result(&sub, &["--name", "Dark Mode!", "--", "bash", "-c", COMMIT]);
    assert_eq!(result["success"], true, "{result:#}");
    let worktree = result["worktree"]["path"].as_str().unwrap();
    assert_eq!(result["result"], format!("{worktree}/sub\ntask/dark-mode\n"));
    assert_eq!(result["worktree"]["branch"], "task/dark-mode");
    assert_eq!(result["worktree"]["kept"], true);
    assert_eq!(result["commits"][0]["subject"], "second");
    assert_eq!(result["findings"], serde_json::json!([]), "{result:#}");
    assert_eq!(result["files_changed"][0]["path"], "sub/file");
    let tip = project.git(&project.folder, &["rev-parse", "task/dark-mode"]);
    assert_eq!(result["commits"][0]["id"], tip.trim());
    let after = project.git(&project.folder, &["for-each-ref", "--exclude=refs/heads/task/dark-mode"]);
    assert_eq!(before, after);
    assert_eq!(project.git(Path::new(worktree), &["status", "--short"]), "");
    assert_eq!(project.git(&project.folder, &["status", "--short"]), "");
    project.git(&project.folder, &["fsck", "--strict"]);
}

#[test]
fn run_without_changes_leaves_no_branch_or_worktree() {
    let project = Project::new("repository-auto");
    let state = |project: &Project| {
        let refs = project.git(&project.folder, &["for-each-ref"]);
        (refs, project.git(&project.folder, &["worktree", "list"]))
    };
    let before = state(&project);
    let result = project.result(&project.folder, &["--", "git", "log", "--oneline"]);
    assert_eq!(result["worktree"]["kept"], false, "{result:#}");
    assert_eq!(state(&project), before);
    // A command that does not exist, and one that guard refuses, must leave nothing either.
    for command in [&["--", "no-such-program"][..], &["--", "git", "checkout", "main"]] {
        assert_eq!(project.result(&project.folder, command)["success"], false);
        assert_eq!(state(&project), before, "{command:?}");
    }
    let kept = project.result(&project.folder, &["--keep", "--name", "k", "--", "true"]);
    assert_eq!(kept["worktree"]["kept"], true);
    let gone = project.result(
        &project.folder,
        &[
            "--discard",
            "--name",
            "d",
            "--",
            "bash",
            "-c",
            "cd sub; git rm -q file; git commit -qm x; echo y > untracked",
        ],
    );
    assert_eq!(gone["worktree"]["kept"], false, "{gone:#}");
    for saved in gone["worktree"]["saved"].as_array().unwrap() {
        project.git(&project.folder, &["rev-parse", "--verify", saved.as_str().unwrap()]);
    }
    assert_eq!(gone["worktree"]["saved"].as_array().unwrap().len(), 2, "{gone:#}");
}

#[test]
fn here_works_in_the_current_worktree() {
    let project = Project::new("repository-here");
    let linked = project.scratch.0.join("linked");
    project.git(&project.folder, &["worktree", "add", "-q", "-b", "mine", linked.to_str().unwrap()]);
    for namespaces in ["auto", "off"] {
        let command = ["--namespaces", namespaces, "--here", "--", "bash", "-c", COMMIT];
        let result = project.result(&linked.join("sub"), &command);
        assert_eq!(result["success"], true, "{result:#}");
        assert_eq!(result["result"], format!("{}/sub\nmine\n", linked.display()));
        assert_eq!(project.git(&linked, &["status", "--short", "--branch"]), "## mine\n");
    }
    assert_eq!(project.git(&linked, &["rev-list", "--count", "main..mine"]), "2\n");
    let refused = project.result(&project.folder, &["--here", "--", "true"]);
    assert_eq!(refused["error_kind"], "invalid_input", "{refused:#}");
    assert!(refused["error"].as_str().unwrap().contains("main worktree"), "{refused:#}");
}

/// `--name N --continue` must create the branch and the worktree of that name if they are missing, and otherwise work
/// in them.
#[test]
fn continue_works_in_the_worktree_of_the_name() {
    let project = Project::new("repository-continue");
    let append = ["--name", "fix", "--continue", "--", "bash", "-c", "echo line >> new; cat new; pwd"];
    let first = project.result(&project.folder, &append);
    let second = project.result(&project.folder, &append);
    let place = first["worktree"]["path"].as_str().unwrap();
    assert_eq!(first["result"], format!("line\n{place}\n"), "{first:#}");
    assert_eq!(second["result"], format!("line\nline\n{place}\n"), "{second:#}");
    assert_eq!(second["worktree"]["branch"], "task/fix");
    let copied = project.run(&project.folder, &[&["--copy", "sub/file"], &append[..]].concat());
    let said = String::from_utf8_lossy(&copied.stderr);
    assert!(said.contains("--copy has no effect, because the worktree exists already"), "{said}");
    // If the branch exists but no worktree has it checked out, guard must refuse to continue.
    project.git(&project.folder, &["branch", "task/bare"]);
    let lost = project.result(&project.folder, &["--name", "bare", "--continue", "--", "true"]);
    assert!(lost["error"].as_str().unwrap().contains("worktree of task/bare no longer exists"), "{lost:#}");
}

/// Starts a run named `fix` whose agent commits, and kills guard after the commit. Returns the run's id.
fn killed_run(project: &Project, namespaces: &str) -> String {
    let script = "echo b > b; git add b; git commit -qm work; printf 'com%s\\n' mitted; sleep 60";
    let mut guard = project
        .command(
            &project.folder,
            &["--name", "fix", "--namespaces", namespaces, "--stream-json", "--", "bash", "-c", script],
        )
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(guard.stdout.take().unwrap()).lines().map_while(Result::ok);
    let first: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
    assert!(lines.any(|line| line.contains("committed")));
    guard.kill().unwrap();
    guard.wait().unwrap();
    first["run_id"].as_str().unwrap().to_string()
}

/// Repeats a command of guard until the other processes of a killed run have ended. Until then the worktree is locked.
fn when_unlocked(mut command: impl FnMut() -> Output) -> Output {
    let mut outputs = (0..100).map(|_| command()).inspect(|_| std::thread::sleep(Duration::from_millis(100)));
    outputs.find(|output| !String::from_utf8_lossy(&output.stderr).contains("another run")).unwrap()
}

/// guard is killed while an agent works that has committed. The next run on that branch must say that it starts without
/// the commit, and how to receive the commit; that command must do so.
#[test]
fn continue_reports_commits_of_a_killed_run() {
    for namespaces in ["require", "off"] {
        let project = Project::new(&format!("repository-killed-{namespaces}"));
        let run = killed_run(&project, namespaces);
        let next = ["--name", "fix", "--continue", "--", "bash", "-c", "git log --format=%s; cat b"];
        let next = when_unlocked(|| project.run(&project.folder, &next));
        let said = String::from_utf8_lossy(&next.stderr);
        assert_eq!(text(&next), "start\nb\n", "{namespaces}: {said}");
        let receive = format!("guard worktree receive {run}");
        assert!(said.contains("guard has not received its commits") && said.contains(&receive), "{said}");
        let received = project.guard(&project.folder, &["worktree", "receive", &run]).output().unwrap();
        assert!(received.status.success(), "{namespaces}: {received:?}");
        assert_eq!(project.git(&project.folder, &["rev-list", "--count", "main..task/fix"]), "1\n");
    }
}

/// After guard was killed, the user switches the worktree to another branch and stages a file. When guard receives the
/// commits of the killed run, it must leave the index of the user's branch alone.
#[test]
fn receive_keeps_the_index_of_the_checked_out_branch() {
    let project = Project::new("repository-index");
    let run = killed_run(&project, "require");
    let worktree = project.scratch.0.join(".worktrees/project-fix");
    for words in [&["switch", "-q", "-c", "mine"][..], &["rm", "-q", "sub/file"]] {
        project.git(&worktree, words);
    }
    let received =
        when_unlocked(|| project.guard(&project.folder, &["worktree", "receive", &run]).output().unwrap());
    assert!(received.status.success(), "{received:?}");
    assert_eq!(project.git(&project.folder, &["rev-list", "--count", "main..task/fix"]), "1\n");
    assert_eq!(project.git(&worktree, &["status", "--short"]), "D  sub/file\n?? b\n");
}

#[test]
fn in_place_run_cannot_write_the_repository() {
    let project = Project::new("repository-in-place");
    let script = "git log --format=%s; echo x > new; git add new 2>/dev/null || echo no";
    let result = project.result(&project.folder, &["--in-place", "--", "bash", "-c", script]);
    assert_eq!(result["result"], "start\nno\n", "{result:#}");
    assert_eq!(result["worktree"], Value::Null);
    assert!(project.folder.join("new").exists());
}

#[test]
fn impossible_repository_options_are_refused_before_anything_is_created() {
    let project = Project::new("repository-errors");
    project.result(&project.folder, &["--keep", "--name", "taken", "--", "true"]);
    let before = project.git(&project.folder, &["worktree", "list"]);
    for (words, said) in [
        (&["--name", "taken", "--", "true"][..], "already exists"),
        (&["--name", "///", "--", "true"], "has no letters"),
        (&["--base", "no-such-rev", "--", "true"], "is not a commit"),
    ] {
        let result = project.result(&project.folder, words);
        assert_eq!(result["error_kind"], "invalid_input", "{result:#}");
        assert!(result["error"].as_str().unwrap().contains(said), "{result:#}");
        let shown = project.run(&project.folder, words);
        assert_eq!(shown.status.code(), Some(125));
        let shown = String::from_utf8(shown.stderr).unwrap();
        assert!(shown.contains(said) && shown.contains("hint:"), "{shown}");
    }
    assert_eq!(project.git(&project.folder, &["worktree", "list"]), before);
    let elsewhere = project.result(&project.scratch.0, &["--name", "x", "--", "true"]);
    assert!(elsewhere["error"].as_str().unwrap().contains("not in a git repository"), "{elsewhere:#}");
    let dry = text(&project.run(&project.folder, &["--dry-run", "--name", "dry", "--", "true"]));
    assert!(dry.contains("task/dry") && dry.contains("project-dry"), "{dry}");
    assert_eq!(project.git(&project.folder, &["worktree", "list"]), before);
}
