//! A disk without room: what a task says then, and that it goes on when there is some again.

use super::{Yard, shown};
use crate::launch::world::Ran;
use crate::workspace::shim_load::Mounted;

const REQUEST: [&str; 5] = ["--name", "x", "--gate", "plan=human", "Do it. @audit=FAIL,PASS"];

fn outcome(yard: &Yard) -> (String, Vec<String>) {
    (yard.git("rev-parse task/x^{tree}"), yard.subjects("task/x"))
}

/// What comes out when nothing is in the way.
fn wanted() -> (String, Vec<String>) {
    let yard = Yard::new();
    let id = waits(&yard);
    let ran = yard.about(&["resume", &id, "--stream-json"]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    outcome(&yard)
}

/// A task that has waited for a person, who has said yes.
fn waits(yard: &Yard) -> String {
    let ran = yard.task(&REQUEST);
    assert_eq!(ran.code, 3, "{}", shown(&ran));
    let id = ran.result["task_id"].as_str().unwrap().to_string();
    assert_eq!(yard.about(&["approve", &id]).code, 0);
    id
}

/// It has failed, and says of what and how to go on; nobody was killed by it.
fn is_told(ran: &Ran, words: &[&str]) {
    assert!([1, 2, 125].contains(&ran.code), "{}", shown(ran));
    let told = format!("{} {}", ran.error, ran.result);
    assert!(words.iter().any(|word| told.contains(word)), "{}", shown(ran));
    assert!(
        ran.error.contains("hint: no work is lost;") || ran.result["status"] == "failed",
        "{}",
        shown(ran)
    );
    assert!(!ran.error.contains("panicked"), "{}", ran.error);
}

/// The state's disk is full, a little less full, and at last has room again.
#[test]
fn no_room_for_the_state() {
    let yard = Yard::new();
    let Some(disk) = Mounted::new(yard.repository.with_file_name("state"), "32m") else { return };
    yard.world.give(&yard.repository.with_file_name("state"));
    // A task that cannot even be written down is none.
    disk.fill(0);
    let ran = yard.task(&REQUEST);
    assert_eq!(ran.code, 2, "{}", shown(&ran));
    assert!(ran.error.contains("the task was not started"), "{}", ran.error);
    disk.free();
    assert_eq!(yard.about(&["list", "--json"]).result.as_array().map(Vec::len), Some(0));
    assert_eq!(yard.git("for-each-ref refs/heads/task/"), "");
    let id = waits(&yard);
    let mut failures = 0;
    for left in [0, 16 << 10, 100 << 10, 400 << 10] {
        disk.fill(left);
        let ran = yard.about(&["resume", &id, "--stream-json"]);
        disk.free();
        if ran.code == 0 {
            break;
        }
        failures += 1;
        is_told(&ran, &["No space left", "disk is full", "disk I/O error", "os error 28"]);
        let list = yard.about(&["list", "--json"]);
        assert_eq!(list.result.as_array().map(Vec::len), Some(1), "{}", list.error);
    }
    assert!(failures >= 2, "{failures}");
    let ran = yard.about(&["resume", &id, "--stream-json"]);
    // The largest room may have been enough.
    assert!(ran.code == 0 || ran.error.contains("has succeeded"), "{}", shown(&ran));
    assert_eq!(outcome(&yard), wanted());
}

/// Files that cannot grow: the same, for everybody.
#[test]
fn no_room_in_files() {
    let yard = Yard::new();
    let id = waits(&yard);
    let mut failures = 0;
    for blocks in [0, 4, 32] {
        let mut command = yard.world.command("bash");
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
        command.args(["-c", &script, "bash"]).arg(crate::launch::world::program());
        command.args(["task", "resume", &id, "--stream-json"]).current_dir(&yard.repository);
        let ran = yard.world.finish(command, b"");
        if ran.code == 0 {
            break;
        }
        failures += 1;
        is_told(
            &ran,
            &[
                "File too large",
                "disk I/O error",
                "disk is full",
                "os error 27",
                "internal",
                "upstream_error",
            ],
        );
    }
    assert!(failures >= 2, "{failures}");
    let ran = yard.about(&["resume", &id, "--stream-json"]);
    assert_eq!(ran.code, 0, "{}", shown(&ran));
    assert_eq!(outcome(&yard), wanted());
}
