//! A user cancels a turn with `guard control`, pauses and resumes the conversation, and changes its model.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::Talk;
use crate::support::wait_until;

/// `guard control cancel` must end the running turn, and the conversation must continue. While it is paused, guard
/// must refuse turns.
#[test]
fn conversation_turn_is_cancelled_and_paused_by_commands() {
    let talk = Talk::new("talk-control");
    talk.says("echo first");
    let id = talk.conversations()[0].file_name().unwrap().to_str().unwrap().to_string();
    let mut command = talk.turn_command("echo started; sleep 60", &["--session", "@"]);
    let turn = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // A turn accepts control commands as soon as its message is stored.
    wait_until("the turn is running", || talk.history(&["list"])[0]["state"] == "running");
    let began = Instant::now();
    let (printed, told, code) = talk.guard(&["control", &id, "cancel", "--command-id", "c1"]);
    assert_eq!((printed.as_str(), code), ("completed\n", 0), "{told}");
    let result = super::printed_json(&turn.wait_with_output().unwrap());
    assert_eq!(result["error_kind"], "cancelled", "{result:#}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    // The conversation must continue after the cancelled turn.
    assert!(talk.says("echo second").contains("second"));

    assert_eq!(talk.guard(&["control", &id, "pause"]).2, 0);
    let refused = talk.turn("echo third", &["--session", "@"]);
    assert_eq!(
        (&refused["success"], &refused["error_kind"]),
        (&false.into(), &"session_busy".into()),
        "{refused:#}"
    );
    assert!(refused["error"].as_str().unwrap().contains("is paused"), "{refused:#}");
    assert_eq!(talk.guard(&["control", &id, "resume"]).2, 0);
    assert!(talk.says("echo third").contains("third"));

    let (printed, _, code) = talk.guard(&["control", &id, "cancel"]);
    assert_eq!(
        (printed.as_str(), code),
        ("rejected: no turn is in progress, so there is nothing to cancel\n", 1)
    );
    assert_eq!(talk.guard(&["control", &id, "adjust_config", "--data", r#"{"model": "other"}"#]).2, 0);
    let settings = std::fs::read_to_string(talk.conversations()[0].join("conversation.json")).unwrap();
    assert!(settings.contains("\"other\""), "{settings}");
    let (_, told, code) = talk.guard(&["control", "nobody", "cancel"]);
    assert!(code == 2 && told.contains("no batch, task, research run or conversation has the id"), "{told}");
}
