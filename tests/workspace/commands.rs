//! `guard worktree …` as people and scripts use it.

use std::process::Output;

use guard::workspace::{KeepPolicy, Limits};
use serde_json::Value;

use super::{Place, agent, commit};
use crate::support::{guard, text};

fn worktree(place: &Place, args: &[&str]) -> Output {
    // The runs of these tests lie where the state directory would have them.
    let state = place.scratch.0.join("xdg");
    if !state.exists() {
        std::fs::create_dir_all(&state).unwrap();
        std::os::unix::fs::symlink(place.scratch.0.join("state"), state.join("guard")).unwrap();
    }
    guard().arg("worktree").args(args).env("XDG_STATE_HOME", state).output().unwrap()
}

#[test]
fn list_path_diff_preview_receive_and_clean() {
    let place = Place::new();
    let mut kept = place.open("kept");
    commit(&kept, "a.txt", "theirs\n", "change a");
    kept.receive(&Limits::default()).unwrap();
    kept.dispose(KeepPolicy::Auto).unwrap();
    std::fs::write(kept.worktree().join("loose.txt"), "x").unwrap();
    let path = kept.worktree().to_path_buf();
    drop(kept);
    let open = place.open("open");
    let unreceived = commit(&open, "c.txt", "c", "add c");

    let listed: Value = serde_json::from_slice(&worktree(&place, &["list", "--json"]).stdout).unwrap();
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
    assert!(text(&worktree(&place, &["list"])).contains("in use"));
    assert_eq!(text(&worktree(&place, &["path", "task/kept"])).trim_end(), path.to_str().unwrap());

    let shown = worktree(&place, &["diff", "run-kept"]);
    assert!(text(&shown).contains("+theirs") && text(&shown).contains("-one"));
    assert!(String::from_utf8_lossy(&shown.stderr).contains("loose.txt"));
    assert!(text(&worktree(&place, &["diff", "kept", "--stat"])).contains("a.txt | 2 +-"));

    let busy = worktree(&place, &["receive", "task/open"]);
    assert_eq!(busy.status.code(), Some(2), "{busy:?}");
    open.point_at_repository().unwrap();
    drop(open);
    let received: Value =
        serde_json::from_slice(&worktree(&place, &["receive", "task/open", "--json"]).stdout).unwrap();
    assert_eq!(received["new"], unreceived);
    assert_eq!(received["commits"][0]["subject"], "add c");

    let before = place.snapshot();
    let preview = worktree(&place, &["merge-preview", "kept"]);
    assert_eq!(preview.status.code(), Some(0), "{preview:?}");
    std::fs::write(place.repository.join("a.txt"), "mine\n").unwrap();
    place.git(&["commit", "--quiet", "-am", "change a as well"]);
    assert_ne!(place.snapshot(), before);
    let before = place.snapshot();
    let preview = worktree(&place, &["merge-preview", "kept", "--json"]);
    assert_eq!(preview.status.code(), Some(1), "conflicts");
    let preview: Value = serde_json::from_slice(&preview.stdout).unwrap();
    assert_eq!(
        (&preview["ahead"], &preview["behind"], &preview["conflicts"][0]),
        (&1.into(), &1.into(), &"a.txt".into())
    );
    assert_eq!(place.snapshot(), before, "a preview writes nothing");

    assert_eq!(worktree(&place, &["clean"]).status.code(), Some(0));
    assert!(path.exists(), "it has something new");
    let cleaned = worktree(&place, &["clean", "kept", "open"]);
    assert!(text(&cleaned).contains("refs/guard/run-kept/work"), "{cleaned:?}");
    assert_eq!(place.git(&["show", "refs/guard/run-kept/work:loose.txt"]), "x");
    assert_eq!(place.git(&["branch", "--list", "task/*"]), "");
    assert_eq!(text(&worktree(&place, &["list"])), "no worktrees of runs\n");
    assert_eq!(text(&worktree(&place, &["list", "--all"])).lines().count(), 3);
    assert_eq!(worktree(&place, &["path", "nothing"]).status.code(), Some(2));
    place.fsck();
}

#[test]
fn what_cannot_be_received_says_why() {
    let place = Place::new();
    let workspace = place.open("forged");
    agent(&workspace, &["commit", "--quiet", "--allow-empty", "--amend", "-m", "forged"]);
    drop(workspace);
    let output = worktree(&place, &["receive", "forged"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("changed or dropped commits from before the run") && said.contains("hint:"),
        "{said}"
    );
    let output = worktree(&place, &["receive", "forged", "--json"]);
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["retryable"], false);
}
