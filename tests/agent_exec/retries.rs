//! Tests which failures guard retries and which it does not.

use serde_json::{Value, json};

use super::{Answered, exec, scripted};
use crate::support::{TestEnvironment, in_two_environments, one_environment};

/// Runs an agent that executes this script and then fails with an error that may be temporary.
fn failing(environment: &TestEnvironment, folder: &str, script: &str, more: &Value) -> Answered {
    let agent = scripted::agent(
        environment,
        folder,
        &format!("#!/bin/bash\n{script}\necho Overloaded >&2\nexit 1\n"),
    );
    let mut asked = scripted::request(environment, "x", &json!({ "command": [agent], "max_retries": 2 }));
    for (name, value) in more.as_object().into_iter().flatten() {
        asked[name] = value.clone();
    }
    exec(environment, "http://127.0.0.1:1", &asked)
}

fn told<'a>(answered: &'a Answered, kind: &str) -> Vec<&'a Value> {
    answered.events.iter().filter(|event| event["event_type"] == kind).collect()
}

#[test]
fn result_lists_every_attempt() {
    let environment = one_environment();
    let answered = failing(&environment, "failing", "", &json!({ "in_place": true }));
    assert_eq!((answered.code, answered.kind()), (1, "upstream_error"), "{}", answered.shown());
    let attempts = answered.result["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 3, "{}", answered.shown());
    let runs: std::collections::BTreeSet<&str> =
        attempts.iter().filter_map(|attempt| attempt["run_id"].as_str()).collect();
    assert_eq!(runs.len(), 3, "{}", answered.shown());
    for attempt in attempts {
        assert_eq!(
            (&attempt["error_kind"], &attempt["left_work"]),
            (&json!("upstream_error"), &json!(false))
        );
    }
    let retries = told(&answered, "exec.retry");
    let waits: Vec<_> = retries.iter().map(|event| event["data"]["wait_ms"].as_u64().unwrap()).collect();
    let numbers: Vec<_> = retries.iter().map(|event| event["data"]["attempt"].as_u64().unwrap()).collect();
    assert_eq!((waits, numbers), (vec![500, 1000], vec![1, 2]));
    assert_eq!(answered.result["error_detail"]["retries"], 2, "{}", answered.shown());
    assert_eq!(answered.result["run_id"], attempts[2]["run_id"]);
}

/// guard must not retry after an attempt that left changes, because a second attempt could undo or duplicate them. The
/// result must say so.
// slow
#[test]
fn failed_attempt_that_left_changes_is_not_repeated() {
    in_two_environments(|environment| {
        environment.run_outside("cd repository && git config user.name n && git config user.email e");
        let repository = json!(environment.directory.with_file_name("repository"));
        for (name, script, more) in [
            ("a file in the folder itself", "echo x >> left", json!({ "in_place": true })),
            ("a file in a worktree", "echo x >> left", json!({ "cd": repository })),
            ("a commit", "echo x >> left; git add -A; git commit -qm left", json!({ "cd": repository })),
        ] {
            let answered = failing(environment, "leaving", script, &more);
            let what = || format!("{}: {name}: {}", environment.name(), answered.shown());
            assert_eq!(answered.kind(), "upstream_error", "{}", what());
            let attempts = answered.result["attempts"].as_array().unwrap();
            assert_eq!((attempts.len(), &attempts[0]["left_work"]), (1, &json!(true)), "{}", what());
            assert!(told(&answered, "exec.retry").is_empty(), "{}", what());
            let [not_retried] = told(&answered, "exec.not_retried")[..] else { panic!("{}", what()) };
            assert_eq!(not_retried["data"]["run_id"], attempts[0]["run_id"], "{}", what());
        }
    });
}
