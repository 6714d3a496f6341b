//! Tests the commands of `guard worktree` as users and scripts run them.

use std::process::Output;

use guard::git::{KeepPolicy, Limits};
use serde_json::Value;

use crate::support::{TestRepository, agent_commit, agent_git, guard, text};

fn worktree(fixture: &TestRepository, args: &[&str]) -> Output {
    // guard finds runs in `$XDG_STATE_HOME/guard`, so this is a link to the state directory of the fixture.
    let state = fixture.scratch.0.join("xdg");
    if !state.exists() {
        std::fs::create_dir_all(&state).unwrap();
        std::os::unix::fs::symlink(fixture.scratch.0.join("state"), state.join("guard")).unwrap();
    }
    guard().arg("worktree").args(args).env("XDG_STATE_HOME", state).output().unwrap()
}

#[test]
fn worktree_commands_list_diff_preview_receive_and_clean() {
    let fixture = TestRepository::new();
    let mut kept = fixture.open("kept");
    agent_commit(&kept, "a.txt", "theirs\n", "change a");
    kept.receive(&Limits::default()).unwrap();
    kept.dispose(KeepPolicy::Auto).unwrap();
    std::fs::write(kept.worktree().join("loose.txt"), "x").unwrap();
    let path = kept.worktree().to_path_buf();
    drop(kept);
    let open = fixture.open("open");
    let unreceived = agent_commit(&open, "c.txt", "c", "add c");

    let listed: Value = serde_json::from_slice(&worktree(&fixture, &["list", "--json"]).stdout).unwrap();
    let states: Vec<(&str, &str, bool)> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            (
                one["branch"].as_str().unwrap(),
                one["state"].as_str().unwrap(),
                one["in_use"].as_bool().unwrap(),
            )
        })
        .collect();
    assert_eq!(states, [("task/open", "open", true), ("task/kept", "kept", false)]);
    assert!(text(&worktree(&fixture, &["list"])).contains("in use"));
    assert_eq!(text(&worktree(&fixture, &["path", "task/kept"])).trim_end(), path.to_str().unwrap());

    let shown = worktree(&fixture, &["diff", "run-kept"]);
    assert!(text(&shown).contains("+theirs") && text(&shown).contains("-one"));
    assert!(String::from_utf8_lossy(&shown.stderr).contains("loose.txt"));
    assert!(text(&worktree(&fixture, &["diff", "kept", "--stat"])).contains("a.txt | 2 +-"));

    let busy = worktree(&fixture, &["receive", "task/open"]);
    assert_eq!(busy.status.code(), Some(2), "{busy:?}");
    open.point_at_repository().unwrap();
    drop(open);
    let received: Value =
        serde_json::from_slice(&worktree(&fixture, &["receive", "task/open", "--json"]).stdout).unwrap();
    assert_eq!(received["new"], unreceived);
    assert_eq!(received["commits"][0]["subject"], "add c");

    let before = fixture.snapshot();
    let preview = worktree(&fixture, &["merge-preview", "kept"]);
    assert_eq!(preview.status.code(), Some(0), "{preview:?}");
    std::fs::write(fixture.repository.join("a.txt"), "mine\n").unwrap();
    fixture.git(&["commit", "--quiet", "-am", "change a as well"]);
    assert_ne!(fixture.snapshot(), before);
    let before = fixture.snapshot();
    let preview = worktree(&fixture, &["merge-preview", "kept", "--json"]);
    assert_eq!(preview.status.code(), Some(1), "conflicts");
    let preview: Value = serde_json::from_slice(&preview.stdout).unwrap();
    assert_eq!(
        (&preview["ahead"], &preview["behind"], &preview["conflicts"][0]),
        (&1.into(), &1.into(), &"a.txt".into())
    );
    assert_eq!(fixture.snapshot(), before, "a preview writes nothing");

    assert_eq!(worktree(&fixture, &["clean"]).status.code(), Some(0));
    assert!(path.exists(), "it has something new");
    let cleaned = worktree(&fixture, &["clean", "kept", "open"]);
    assert!(text(&cleaned).contains("refs/guard/run-kept/work"), "{cleaned:?}");
    assert_eq!(fixture.git(&["show", "refs/guard/run-kept/work:loose.txt"]), "x");
    assert_eq!(fixture.git(&["branch", "--list", "task/*"]), "");
    assert_eq!(text(&worktree(&fixture, &["list"])), "there are no worktrees of runs\n");
    assert_eq!(text(&worktree(&fixture, &["list", "--all"])).lines().count(), 3);
    assert_eq!(worktree(&fixture, &["path", "nothing"]).status.code(), Some(2));
    fixture.fsck();
}

#[test]
fn failed_receive_reports_why() {
    let fixture = TestRepository::new();
    let workspace = fixture.open("forged");
    agent_git(&workspace, &["commit", "--quiet", "--allow-empty", "--amend", "-m", "forged"]);
    drop(workspace);
    let output = worktree(&fixture, &["receive", "forged"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("changed or dropped commits from before the run") && said.contains("hint:"),
        "{said}"
    );
    let output = worktree(&fixture, &["receive", "forged", "--json"]);
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["retryable"], false);
}
