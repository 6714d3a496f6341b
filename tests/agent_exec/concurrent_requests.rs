// slow
//! Sends many requests to `guard exec` at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use super::scripted;
use crate::support::{expect_no_process_left, one_environment, unique_mark};

/// Fifty conversations run at once in one repository, each on its own branch. Each must return its own answer and its
/// own commit.
#[test]
fn fifty_concurrent_conversations_get_their_own_answers_and_commits() {
    const RUNS: usize = 50;
    let environment = one_environment();
    environment.run_outside("cd repository && git config user.name n && git config user.email e");
    let repository = environment.directory.with_file_name("repository");
    let mark = unique_mark();
    let next = AtomicUsize::new(0);
    // The script is written only once: a process cannot execute a file that another one has open for writing.
    let request = scripted::request(&environment, "", &json!({ "cd": repository, "return_metrics": true }));
    std::thread::scope(|scope| {
        for _ in 0..RUNS {
            scope.spawn(|| {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let mut asked = request.clone();
                asked["prompt"] = json!(format!("export {mark}; echo {number} > mine-{number}; git add -A; git commit -qm number-{number}; cat mine-*"));
                let answered = super::exec(&environment, "http://127.0.0.1:1", &asked);
                assert_eq!((answered.code, &answered.result["success"]), (0, &json!(true)), "{}", answered.shown());
                assert_eq!(answered.result["result"], json!(number.to_string()), "{}", answered.shown());
                assert_eq!(answered.result["commits"][0]["subject"], json!(format!("number-{number}")), "{}", answered.shown());
                assert_eq!(answered.result["events"]["dropped"], 0);
            });
        }
    });
    expect_no_process_left(&mark, Duration::from_secs(5));
    let branches = environment.run_outside("git -C repository branch --list 'task/session-*' | wc -l");
    assert_eq!(branches.trim(), RUNS.to_string());
    assert_eq!(
        environment
            .run_outside("git -C repository fsck --no-progress 2>&1 | grep -v dangling | wc -l")
            .trim(),
        "0"
    );
}
