//! kill -9 at every write to the journal, and at any other moment: what comes out in the end is what would have come out.

use std::time::Duration;

use super::documentation::with_guide;
use super::{Yard, shown};

/// What must be the same: the files of the branch, and the first lines of its commits.
fn outcome(yard: &Yard) -> (String, Vec<String>) {
    (yard.git("rev-parse task/x^{tree}"), yard.subjects("task/x"))
}

/// Nothing is in the way of whoever comes next.
fn is_sound(yard: &Yard, worktree: &str) {
    let locks = yard.world.outside("find repository/.git -name '*.lock'");
    assert_eq!(locks, "");
    yard.git("fsck --strict");
    assert_eq!(yard.world.outside(&format!("git -C {worktree} status --porcelain")), "");
}

/// One round back, and something said that is brought into the documentation.
const ARGUMENTS: [&str; 4] =
    ["--name", "x", "Do it. @audit=FAIL,PASS @remark=toggles @triage=DOCS", "--rounds"];

fn yard() -> Yard {
    let yard = Yard::new();
    with_guide(&yard);
    yard
}

#[test]
fn at_every_write_to_the_journal() {
    let whole = yard();
    let ran = whole.task(&[&ARGUMENTS[..], &["3"]].concat());
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    let (wanted, calls) = (outcome(&whole), ran.result["used"]["calls"].as_u64().unwrap());
    let yard = yard();
    // One task is killed at its first write, resumed and killed at the next, and so on: every write of it is the last of
    // some process.
    let ran = yard.task(&[&ARGUMENTS[..], &["3", "--die-at", "1"]].concat());
    assert_eq!(ran.code, 137, "{}", shown(&ran));
    let mut deaths = 1;
    let ran = loop {
        let ran = yard.about(&["resume", "--json", "--die-at", "2"]);
        assert_eq!(ran.code, 137, "{}", shown(&ran));
        deaths += 1;
        assert!(deaths < 200, "it does not get on");
        // Its last write is that it has succeeded.
        let list = yard.about(&["list", "--json"]);
        if list.result[0]["status"] == "succeeded" {
            break list.result[0].clone();
        }
    };
    assert!(deaths > 30, "{deaths}");
    assert_eq!(outcome(&yard), wanted);
    is_sound(&yard, ran["worktree"].as_str().unwrap());
    assert_eq!(ran["used"]["calls"], calls, "calls that were written down count once");
}

#[test]
fn at_any_moment() {
    let kills: u32 = std::env::var("GUARD_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    let whole = yard();
    assert_eq!(whole.task(&[&ARGUMENTS[..], &["3"]].concat()).code, 0);
    let wanted = outcome(&whole);
    let mut seed = 0x2545_f491_4f6c_dd1du64 ^ u64::from(std::process::id());
    println!("seed {seed}");
    let mut left = kills;
    while left > 0 {
        let yard = yard();
        let mut command = yard.command(&["--json", "--agent-command"]);
        command.arg(yard.agent()).args(ARGUMENTS).arg("3");
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
            let list = yard.about(&["list", "--json"]);
            let task = list.result.as_array().and_then(|all| all.first().cloned());
            match task {
                Some(task) if task["status"] == "succeeded" => {
                    break task["worktree"].as_str().unwrap().to_string();
                }
                // Killed before it was written down: nothing has happened.
                None => {}
                Some(task) => {
                    let id = task["task_id"].as_str().unwrap().to_string();
                    command = yard.command(&["resume", "--json", &id]);
                    // Enough: it may come to its end.
                    if left == 0 {
                        let ran = yard.world.finish(command, b"");
                        assert_eq!(ran.code, 0, "{}", shown(&ran));
                        break task["worktree"].as_str().unwrap().to_string();
                    }
                }
            }
        };
        assert_eq!(outcome(&yard), wanted);
        is_sound(&yard, &worktree);
    }
}
