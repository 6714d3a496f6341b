// slow
//! The test kills workers and submitters at arbitrary moments. No task may be lost or completed twice.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::command_line::{poll_to_the_end, submit};
use crate::support::UserShell;

#[test]
fn killed_workers_lose_no_task() {
    let user = UserShell::new("batch-killed");
    let tasks: Vec<Value> = (0..40)
        .map(|n| {
            json!({"task_id": format!("t{n}"), "type": "execute_shell_command", "max_retries": 5,
                "parameters": {"command": format!("sleep 0.1; echo {n}")}})
        })
        .collect();
    let first = submit(&user, &json!(tasks).to_string(), "--no-worker");
    let mut kills = 0;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(6) {
        let mut worker = user
            .command("guard")
            .args(["worker", "--concurrency", "4"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(400 + 150 * (kills % 5)));
        worker.kill().unwrap();
        worker.wait().unwrap();
        kills += 1;
    }
    assert!(kills >= 5, "{kills}");
    // The leases of the killed workers expire, and another worker must complete their tasks.
    user.types("timeout 500 guard worker --until-idle --concurrency 4 2> /dev/null");
    let last = poll_to_the_end(&user, &first);
    let mut outputs: BTreeMap<String, String> = BTreeMap::new();
    for result in last["results"].as_array().unwrap() {
        assert_eq!(result["status"], "completed", "{result}");
        let output = result["output"]["stdout"].as_str().unwrap().trim().to_string();
        outputs.insert(result["task_id"].as_str().unwrap().to_string(), output);
    }
    assert!((0..40).all(|n| outputs[&format!("t{n}")] == n.to_string()), "{outputs:?}");
    // The runs of the killed workers must have ended, too.
    user.types(
        "for i in $(seq 100); do guard ps | grep -q 'no runs' && exit 0; sleep 0.1; done; guard ps; exit 1",
    );
}

#[test]
fn killed_submitter_has_queued_the_whole_batch_or_nothing() {
    let user = UserShell::new("batch-submitter");
    let tasks: Vec<Value> = (0..3000)
        .map(|n| json!({"task_id": format!("t{n}"), "type": "echo", "parameters": {"n": n}}))
        .collect();
    std::fs::write(user.home().join("tasks.json"), json!(tasks).to_string()).unwrap();
    user.types("guard batch submit --no-worker ~/tasks.json > /dev/null");
    let mut batches = 1;
    for turn in 0..12 {
        let mut submitter = user
            .command("guard")
            .args(["batch", "submit", "--no-worker"])
            .arg(user.home().join("tasks.json"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(20 + 37 * turn));
        let _ = submitter.kill();
        submitter.wait().unwrap();
        let list: Value = serde_json::from_str(&user.types("guard batch list -n 100 --json")).unwrap();
        for batch in list.as_array().unwrap() {
            assert_eq!(batch["counts"]["total"], 3000, "{batch}");
        }
        batches = list.as_array().unwrap().len();
    }
    assert!(batches >= 1);
}
