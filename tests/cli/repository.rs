//! Tests `guard run` in a repository: the worktree, the branch, and the messages about them.

use std::path::{Path, PathBuf};
use std::process::Output;

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

    fn run(&self, folder: &Path, words: &[&str]) -> Output {
        guard()
            .arg("run")
            .args(words)
            .env("HOME", self.scratch.0.join("home"))
            .env("XDG_STATE_HOME", self.scratch.0.join("state"))
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .current_dir(folder)
            .output()
            .unwrap()
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
fn a_commit_arrives_on_its_branch_and_nothing_else_moves() {
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
fn nothing_new_leaves_nothing() {
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
fn here_works_in_the_worktree_it_is_called_from() {
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

#[test]
fn in_place_only_reads_the_repository() {
    let project = Project::new("repository-in-place");
    let script = "git log --format=%s; echo x > new; git add new 2>/dev/null || echo no";
    let result = project.result(&project.folder, &["--in-place", "--", "bash", "-c", script]);
    assert_eq!(result["result"], "start\nno\n", "{result:#}");
    assert_eq!(result["worktree"], Value::Null);
    assert!(project.folder.join("new").exists());
}

#[test]
fn what_cannot_be_done_is_said_before_anything_is_made() {
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
