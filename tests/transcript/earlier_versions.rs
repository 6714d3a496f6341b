//! What an earlier version wrote can still be read: transcripts (whose events have `folder` instead of `directory`),
//! conversations, sessions and the queue of batches.

use serde_json::{Value, json};

use crate::support::UserShell;

const RUN: &str = "task/notes";

/// A user whose state directory an earlier version wrote.
fn user_with_earlier_state() -> UserShell {
    let user = UserShell::new("earlier-state");
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/earlier-versions/0.1/state");
    user.types(&format!("mkdir -p ~/.local/state && cp -r {fixture} ~/.local/state/guard"));
    // git stores no such modes.
    user.types("chmod -R go= ~/.local/state/guard");
    user
}

#[test]
fn transcripts_of_an_earlier_version_are_read() {
    let user = user_with_earlier_state();
    let runs: Vec<Value> = serde_json::from_str(&user.types("guard runs --json")).unwrap();
    assert_eq!(runs.len(), 2, "{runs:#?}");
    assert_eq!(runs[1]["directory"], json!("/home/person/.worktrees/project-notes"), "{runs:#?}");
    user.sees("cd / && guard runs", &[RUN]);
    user.sees(&format!("cd / && guard log {RUN}"), &["sh run.sh", "git commit -qm \"Add b\"", "deny.exec"]);
    user.sees(&format!("cd / && guard why {RUN}"), &["git -C /home/person", "rule:    git.switch"]);
    user.types(&format!("cd / && guard verify {RUN}"));
}

#[test]
fn conversations_and_batches_of_an_earlier_version_are_read() {
    let user = user_with_earlier_state();
    user.sees("cd / && guard history list", &["generic", "hello"]);
    user.sees("cd / && guard history show @", &["hello", "turn 1: hello"]);
    let batches = user.types("cd / && guard batch list");
    let id = batches.split_whitespace().find(|word| word.starts_with("batch_")).expect("a batch");
    let polled: Value = serde_json::from_str(&user.types(&format!("guard batch poll {id}"))).unwrap();
    assert_eq!(polled["counts"]["pending"], json!(2), "{polled:#}");
    user.types(&format!("guard batch cancel {id}"));
    let polled: Value = serde_json::from_str(&user.types(&format!("guard batch poll {id}"))).unwrap();
    assert_eq!(polled["status"], json!("failed"), "{polled:#}");
}
