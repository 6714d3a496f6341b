// slow
//! The machine fails while batches are submitted and executed: the disk is full, or the clock is set.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::command_line::{poll_to_the_end, result, submit};
use crate::support::{Mounted, UserShell, wait_until};

/// A worker process that is killed when the test ends, even if the test fails.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_worker(user: &UserShell, clock_offset: &str) -> Worker {
    let worker = user
        .command("guard")
        .args(["worker", "--concurrency", "2"])
        .env("LD_PRELOAD", user.home().join("clock.so"))
        .env("CLOCK_OFFSET_S", clock_offset)
        .stderr(Stdio::null())
        .spawn();
    Worker(worker.unwrap())
}

/// A user submits a batch while the disk is full: guard must refuse it and queue nothing of it. A worker that finds
/// the disk full must continue when there is space again, and every task must complete.
#[test]
fn full_disk_loses_no_batch_task() {
    let user = UserShell::new("batch-disk");
    let Some(disk) = Mounted::new(user.home().join(".local/state"), "32m") else { return };
    let tasks: Vec<Value> = (0..3000)
        .map(|n| json!({"task_id": format!("t{n}"), "type": "echo", "parameters": {"text": "x".repeat(1000), "n": n}}))
        .collect();
    let tasks = json!(tasks).to_string();
    let first = submit(&user, &tasks, "--no-worker");
    let mut worker = Worker(user.command("guard").arg("worker").stderr(Stdio::null()).spawn().unwrap());
    let id = first["response_id"].as_str().unwrap();
    wait_until("the worker works", || {
        let polled: Value =
            serde_json::from_str(&user.types(&format!("guard batch poll {id} --summary"))).unwrap();
        polled["counts"]["completed"].as_u64() > Some(0)
    });
    disk.fill(0);
    let printed = user.sees_with_code(
        "guard batch submit --no-worker ~/tasks.json",
        2,
        &["cannot use the queue", "its disk"],
    );
    assert!(!printed.contains("panicked"), "{printed}");
    std::thread::sleep(Duration::from_secs(2));
    assert!(worker.0.try_wait().unwrap().is_none(), "the worker ended because of the full disk");
    disk.free();
    let last = poll_to_the_end(&user, &first);
    assert_eq!(last["counts"]["completed"], 3000, "{}", last["counts"]);
    assert_eq!(result(&last, "t2999")["output"]["n"], 2999);
    drop(worker);
    let list: Value = serde_json::from_str(&user.types("guard batch list --json")).unwrap();
    assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
}

/// The C source of a library that, when a program preloads it, shifts the wall clock of that program. The machine's
/// clock stays as it is.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *time) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real(id, time);
    const char *offset = getenv("CLOCK_OFFSET_S");
    if (id == CLOCK_REALTIME && offset) time->tv_sec += atol(offset);
    return answer;
}
"#;

fn build_clock_library(user: &UserShell) {
    std::fs::write(user.home().join("clock.c"), CLOCK).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(user.home().join("clock.so"));
    assert!(compiler.arg(user.home().join("clock.c")).status().unwrap().success());
}

/// Workers whose wall clocks are a day ahead and a day behind share a queue. Neither may take a running task from the
/// other, and each task must run once.
#[test]
fn wrong_wall_clocks_of_workers_take_no_task_away() {
    let user = UserShell::new("batch-clock");
    build_clock_library(&user);
    let tasks = json!([
        {"task_id": "slow", "type": "execute_shell_command", "parameters": {"command": "sleep 4"}},
        {"task_id": "other", "type": "echo", "parameters": {"n": 1}},
    ]);
    let first = submit(&user, &tasks.to_string(), "--no-worker");
    let behind = start_worker(&user, "-86400");
    std::thread::sleep(Duration::from_secs(1));
    let ahead = start_worker(&user, "86400");
    let last = poll_to_the_end(&user, &first);
    drop((ahead, behind));
    for task in ["slow", "other"] {
        let result = result(&last, task);
        assert_eq!((&result["status"], &result["attempts"]), (&json!("completed"), &json!(1)), "{result}");
    }
}
