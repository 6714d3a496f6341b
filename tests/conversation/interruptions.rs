// slow
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
fn killed_turn_counts_as_interrupted_and_the_next_continues() {
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
    assert!(prompt.contains("sleep 60") && prompt.contains("did not finish its answer"), "{prompt}");
}

/// guard is killed with SIGKILL in the first turn of a conversation. The next turn must use the worktree of that
/// turn.
#[test]
fn next_turn_uses_the_worktree_of_a_killed_first_turn() {
    let talk = Talk::new("conversation-killed-first");
    kill_during_first_turn(&talk);
    assert_eq!(talk.says("cat kept"), "partial");
}

/// guard is killed with SIGKILL in the first turn of a conversation, before it has recorded the turn's worktree. The
/// next turn must use that worktree.
#[test]
fn next_turn_uses_the_unrecorded_worktree_of_a_killed_first_turn() {
    let talk = Talk::new("conversation-killed-unrecorded");
    kill_during_first_turn(&talk);
    let sessions = talk.user.home().join(".local/state/guard/sessions/generic");
    let mut entries = std::fs::read_dir(sessions).unwrap();
    let record = entries.next().unwrap().unwrap().path().join("session.json");
    let mut session: serde_json::Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    session["worktree"] = serde_json::Value::Null;
    std::fs::write(&record, session.to_string()).unwrap();
    assert_eq!(talk.says("cat kept"), "partial");
}

/// The run of a turn shares the lock of the session, so that the session stays locked if guard is killed. Programs that
/// the run starts, such as git, must not inherit the lock: one of them could outlive the run.
#[test]
fn session_lock_is_not_inherited_by_programs() {
    let talk = Talk::new("conversation-lock");
    let mut command = talk.turn_command("touch started; sleep 60", &[]);
    let mut child = command.stdout(Stdio::null()).process_group(0).spawn().unwrap();
    let home = talk.user.home();
    let is_lock = |path: &std::path::Path| path.starts_with(&home) && path.ends_with("lock");
    let holders = || -> Vec<String> {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let files = processes.filter_map(|entry| std::fs::read_dir(entry.path().join("fd")).ok());
        let links = files.flatten().flatten().filter(|link| {
            std::fs::read_link(link.path())
                .is_ok_and(|path| is_lock(&path) && path.to_string_lossy().contains("/sessions/"))
        });
        links.map(|link| link.path().to_string_lossy().replace("/fd/", "/fdinfo/")).collect()
    };
    wait_until("the session and its run hold the lock", || holders().len() == 2);
    let is_inherited = |info: &String| {
        let text = std::fs::read_to_string(info).unwrap_or_default();
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:")).map(str::trim);
        flags
            .and_then(|flags| u32::from_str_radix(flags, 8).ok())
            .is_some_and(|flags| flags & 0o2_000_000 == 0)
    };
    wait_until("no holder passes the lock on", || !holders().iter().any(is_inherited));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
}

/// Starts the first turn of a conversation, and kills guard with SIGKILL once the agent has written a file.
fn kill_during_first_turn(talk: &Talk) {
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
}

/// A process was killed while it appended to the store. guard must cut off the incomplete line and keep everything
/// before it.
#[test]
fn torn_last_line_of_the_store_is_cut_off() {
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

/// A newer version of guard stored the conversation in another format. guard must say so, and must not call the file
/// damaged.
#[test]
fn conversation_of_a_newer_format_is_not_reported_as_damaged() {
    let talk = Talk::new("conversation-newer");
    talk.says("echo one");
    let settings = talk.conversations()[0].join("conversation.json");
    let text = std::fs::read_to_string(&settings).unwrap();
    let newer =
        text.replacen("\"version\":1", "\"version\":2", 1).replacen("\"version\": 1", "\"version\": 2", 1);
    assert_ne!(newer, text);
    std::fs::write(&settings, newer).unwrap();
    let (_, error, code) = talk.guard(&["history", "show", "@"]);
    assert_ne!(code, 0);
    assert!(error.contains("format version 2") && error.contains("newer version of guard"), "{error}");
}

/// guard is killed with SIGKILL while an agent writes a summary. guard must have printed the answer before; the next
/// turn must work, and must make the summary.
#[test]
fn killed_compaction_is_repeated_after_the_next_turn() {
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

/// guard is killed in the first turn. An undo of that turn must not say that there are no files, and an undo of the
/// next turn must not take back the files of the first one.
#[test]
fn undo_after_a_killed_first_turn_keeps_its_files() {
    let talk = Talk::new("conversation-killed-undo");
    kill_during_first_turn(&talk);
    talk.says("echo more > more; echo ok");
    let undone = talk.history(&["undo", "@"]);
    assert_eq!(undone["files"]["name"], "not_possible", "{undone:#}");
    let undone = talk.history(&["undo", "@"]);
    assert_eq!(undone["files"]["name"], "not_possible", "{undone:#}");
    assert_eq!(talk.says("cat kept more"), "partial\nmore");
}

/// A user deletes a conversation. The agent's own session, which contains the same messages, must be deleted too.
#[test]
fn deleted_conversation_deletes_the_session_of_the_agent() {
    let talk = Talk::new("conversation-deleted");
    talk.says("echo one");
    let sessions = talk.user.home().join(".local/state/guard/sessions/generic");
    assert_eq!(std::fs::read_dir(&sessions).unwrap().count(), 1);
    talk.guard(&["history", "delete", "@"]);
    assert_eq!(std::fs::read_dir(&sessions).unwrap().count(), 0);
}
