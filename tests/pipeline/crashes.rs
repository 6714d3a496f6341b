// slow
//! The test kills guard at every write to the journal, and at random moments. The result of the task must be the same
//! as without a kill.

use std::time::Duration;

use super::documentation::with_guide;
use crate::support::{TaskFixture, describe_task};

/// Returns what a crash must not change: the tree of the branch, and the subjects of its commits.
fn branch_and_subjects(fixture: &TaskFixture) -> (String, Vec<String>) {
    (fixture.git("rev-parse task/x^{tree}"), fixture.subjects("task/x"))
}

/// Fails if a lock file, a damaged object or an uncommitted change is left.
fn is_sound(fixture: &TaskFixture, worktree: &str) {
    let locks = fixture.environment.run_outside("find repository/.git -name '*.lock'");
    assert_eq!(locks, "");
    fixture.git("fsck --strict");
    assert_eq!(fixture.environment.run_outside(&format!("git -C {worktree} status --porcelain")), "");
}

/// Arguments of a task with one rejected review, and with one remark that goes into the documentation.
const ARGUMENTS: [&str; 4] =
    ["--name", "x", "Do it. @audit=FAIL,PASS @remark=toggles @triage=DOCS", "--rounds"];

fn fixture() -> TaskFixture {
    let fixture = TaskFixture::new();
    with_guide(&fixture);
    fixture
}

#[test]
fn task_killed_at_every_journal_write_completes_after_resume() {
    let whole = fixture();
    let outcome = whole.task(&[&ARGUMENTS[..], &["3"]].concat());
    assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
    let (wanted, calls) = (branch_and_subjects(&whole), outcome.result["used"]["calls"].as_u64().unwrap());
    let fixture = fixture();
    // The task is killed at its first write to the journal, resumed, killed at the next write, and so on, so that
    // every write is the last one of some process.
    let outcome = fixture.task(&[&ARGUMENTS[..], &["3", "--die-at", "1"]].concat());
    assert_eq!(outcome.code, 137, "{}", describe_task(&outcome));
    let mut deaths = 1;
    let outcome = loop {
        let outcome = fixture.about(&["resume", "--json", "--die-at", "2"]);
        assert_eq!(outcome.code, 137, "{}", describe_task(&outcome));
        deaths += 1;
        assert!(deaths < 200, "it does not get on");
        // The last entry of the journal says that the task has succeeded.
        let list = fixture.about(&["list", "--json"]);
        if list.result[0]["status"] == "succeeded" {
            break list.result[0].clone();
        }
    };
    assert!(deaths > 30, "{deaths}");
    assert_eq!(branch_and_subjects(&fixture), wanted);
    is_sound(&fixture, outcome["worktree"].as_str().unwrap());
    assert_eq!(outcome["used"]["calls"], calls, "calls that were written down count once");
}

#[test]
fn task_killed_at_any_moment_completes_after_resume() {
    let kills: u32 = std::env::var("GUARD_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    let whole = fixture();
    assert_eq!(whole.task(&[&ARGUMENTS[..], &["3"]].concat()).code, 0);
    let wanted = branch_and_subjects(&whole);
    let mut seed = 0x2545_f491_4f6c_dd1du64 ^ u64::from(std::process::id());
    println!("seed {seed}");
    let mut left = kills;
    while left > 0 {
        let fixture = fixture();
        let mut command = fixture.command(&["--json", "--agent-command"]);
        command.arg(fixture.agent()).args(ARGUMENTS).arg("3");
        let worktree = loop {
            let mut child = command
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .unwrap();
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let moment = Duration::from_millis(50 + (seed >> 33) % 2500);
            let began = std::time::Instant::now();
            while began.elapsed() < moment && child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let ended = child.try_wait().unwrap();
            let _ = child.kill();
            let _ = child.wait();
            if ended.is_none() {
                left = left.saturating_sub(1);
            }
            let list = fixture.about(&["list", "--json"]);
            let task = list.result.as_array().and_then(|all| all.first().cloned());
            match task {
                Some(task) if task["status"] == "succeeded" => {
                    break task["worktree"].as_str().unwrap().to_string();
                }
                // guard was killed before it recorded the task, so nothing has happened.
                None => {}
                Some(task) => {
                    let id = task["task_id"].as_str().unwrap().to_string();
                    command = fixture.command(&["resume", "--json", &id]);
                    // After enough kills the test lets the task finish.
                    if left == 0 {
                        let outcome = fixture.environment.run_to_end(command, b"");
                        assert_eq!(outcome.code, 0, "{}", describe_task(&outcome));
                        break task["worktree"].as_str().unwrap().to_string();
                    }
                }
            }
        };
        assert_eq!(branch_and_subjects(&fixture), wanted);
        is_sound(&fixture, &worktree);
    }
}
