//! guard is killed during a turn or a compaction, or its stored conversation is damaged.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Talk, words};
use crate::support::{wait_for_file, wait_until};

/// Starts a turn that does not end by itself, and kills guard with SIGKILL once the agent works.
fn kill_during_turn(talk: &Talk, options: &[&str], started: &std::path::Path) {
    let mut command: Command = talk.turn_command("echo partial > kept; touch started; sleep 60", options);
    let mut child = command.stdout(Stdio::null()).process_group(0).spawn().unwrap();
    wait_for_file(started);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
}

/// guard is killed with SIGKILL during a turn. The message must be stored, the turn must count as interrupted, and
/// the next turn must work in the same worktree, with the files of the interrupted turn.
#[test]
fn a_killed_turn_is_interrupted_and_the_next_goes_on() {
    let talk = Talk::new("conversation-killed");
    talk.says("echo one");
    let worktree = talk.worktree();
    kill_during_turn(&talk, &["--session", "@"], &worktree.join("started"));
    let turns = talk.history(&["show"])["turns"].clone();
    assert_eq!(turns[1]["state"]["name"], "interrupted", "{turns:#}");
    assert!(turns[1]["user"].as_str().unwrap().contains("sleep 60"));
    assert_eq!(talk.says("cat kept"), "partial");
    assert_eq!(talk.worktree(), worktree);
    let prompt = talk.prompt();
    assert!(prompt.contains("sleep 60") && prompt.contains("not answered"), "{prompt}");
}

/// guard is killed with SIGKILL in the first turn of a conversation. The next turn must use the worktree of that
/// turn.
#[test]
fn a_killed_first_turn_keeps_its_worktree() {
    let talk = Talk::new("conversation-killed-first");
    let mut command = talk.turn_command("echo partial > kept; sleep 60", &[]);
    let mut child = command.stdout(Stdio::null()).process_group(0).spawn().unwrap();
    let worktrees = talk.user.home().join(".worktrees");
    let has_file = || {
        let entries = std::fs::read_dir(&worktrees).into_iter().flatten().flatten();
        entries
            .into_iter()
            .any(|entry| std::fs::read(entry.path().join("kept")).is_ok_and(|bytes| !bytes.is_empty()))
    };
    wait_until("the agent has written its file", has_file);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    assert_eq!(talk.says("cat kept"), "partial");
}

/// A process was killed while it appended to the store. guard must cut off the incomplete line and keep everything
/// before it.
#[test]
fn a_torn_line_is_cut_and_other_damage_is_left_out() {
    let talk = Talk::new("conversation-torn");
    talk.says("echo one");
    let messages = talk.conversations()[0].join("messages.jsonl");
    let append = |text: &[u8]| {
        let mut file = std::fs::OpenOptions::new().append(true).open(&messages).unwrap();
        file.write_all(text).unwrap();
    };
    append(b"{\"type\":\"sent\",\"turn\":2,\"text\":\"torn");
    assert_eq!(talk.history(&["show"])["turns"].as_array().map(Vec::len), Some(1));
    assert_eq!(talk.says("echo two"), "two");
    let shown = talk.history(&["show"]);
    assert_eq!((shown["turns"].as_array().map(Vec::len), &shown["damaged_lines"]), (Some(2), &0.into()));
    append(b"not json\n");
    assert_eq!(talk.says("echo three"), "three");
    let shown = talk.history(&["show"]);
    assert_eq!((shown["turns"].as_array().map(Vec::len), &shown["damaged_lines"]), (Some(3), &1.into()));
}

/// guard is killed with SIGKILL while an agent writes a summary. guard must have printed the answer before; the next
/// turn must work, and must make the summary.
#[test]
fn a_killed_compaction_is_made_up_for() {
    // The first summariser hangs.
    let talk = Talk::with_summary(
        "conversation-killed-compaction",
        "if ! [ -e fast ]; then sleep 60; fi; echo the summary",
    );
    for _ in 0..7 {
        let quiet = talk.turn(
            &format!("echo ok # {}", words(1000)),
            &["--session", "@"][..2 * usize::from(!talk.conversations().is_empty())],
        );
        assert_eq!(quiet["success"], true, "{quiet:#}");
    }
    let mut command = talk.turn_command(&format!("echo last # {}", words(2000)), &["--session", "@"]);
    let mut child = command.stdout(Stdio::piped()).process_group(0).spawn().unwrap();
    let answers = std::io::BufReader::new(child.stdout.take().unwrap());
    let line = std::io::BufRead::lines(answers).next().unwrap().unwrap();
    assert!(line.contains("\"last\""), "{line}");
    assert!(child.try_wait().unwrap().is_none(), "guard still waits for the summary");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    // The summariser's script finds this file in the worktree, and is fast from now on.
    std::fs::write(talk.worktree().join("fast"), "").unwrap();
    assert_eq!(talk.says("echo next"), "next");
    let diff = talk.history(&["diff"]);
    assert_eq!(diff["summary"]["text"], "the summary", "{diff:#}");
}
