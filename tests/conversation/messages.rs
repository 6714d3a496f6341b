//! A user sends messages of all kinds and sizes. guard must store them unchanged.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use super::{Talk, printed_json};

/// The user sends two messages. The agent of the second turn must get the first message and its answer, and must find
/// the files of the first turn.
#[test]
fn second_turn_gets_the_first_message_and_its_files() {
    let talk = Talk::new("conversation-two-turns");
    let one = talk.turn("echo four; echo kept > file", &[]);
    assert_eq!((&one["success"], one["result"].as_str()), (&true.into(), Some("four")), "{one:#}");
    // Without earlier turns, the prompt must be the message alone.
    assert_eq!(talk.prompt(), "echo four; echo kept > file");
    let two = talk.turn("cat file", &["--session", one["SESSION_ID"].as_str().unwrap()]);
    assert_eq!(two["result"], "kept", "{two:#}");
    assert_eq!(two["SESSION_ID"], one["SESSION_ID"]);
    assert_eq!(two["worktree"]["path"], one["worktree"]["path"]);
    assert_ne!(two["run_id"], one["run_id"]);
    let prompt = talk.prompt();
    let expected = "## Recent Messages\nUser: echo four; echo kept > file\n\nAssistant: four\n\n## Current Message\ncat file";
    assert!(prompt.ends_with(expected), "{prompt}");
    // Each turn must be an ordinary run with a transcript.
    for turn in [&one, &two] {
        let (log, error, code) = talk.guard(&["log", turn["run_id"].as_str().unwrap()]);
        assert_eq!(code, 0, "{log}{error}");
    }
}

/// The user sends emoji, Chinese, line breaks, quotes and terminal escapes. guard must store and return them
/// unchanged.
#[test]
fn message_text_is_stored_unchanged() {
    let talk = Talk::new("conversation-texts");
    for text in
        ["echo '🎉👩‍👩‍👧 ok'", "echo 你好，世界", "echo \"a\nb\t'c'\"", "echo \x1b[31mred", "--help || echo dash"]
    {
        let result = talk.turn(text, &[]);
        assert_eq!(result["success"], true, "{text}: {result:#}");
        let shown = talk.history(&["show", result["SESSION_ID"].as_str().unwrap()]);
        assert_eq!(shown["turns"][0]["user"], text);
        assert_eq!(shown["turns"][0]["assistant"], result["result"]);
    }
    // guard must not print an escape sequence of a message to a terminal.
    let (shown, _, _) = talk.guard(&["history", "search", "red"]);
    assert!(shown.contains("red") && !shown.contains('\x1b'), "{shown:?}");
}

/// The user sends an empty or a too long message. guard must refuse it with a reason, and store no conversation.
#[test]
fn empty_and_too_long_messages_are_refused() {
    let talk = Talk::new("conversation-refused");
    for (message, expected) in [("", "is empty"), (" \n\t", "is empty")] {
        let (printed, error, code) = talk.guard(&["chat", "--once", message]);
        assert_eq!((printed.as_str(), code), ("", 2), "{error}");
        assert!(error.contains(expected) && error.contains("hint: "), "{error}");
    }
    let mut command = talk.turn_command("-", &[]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // guard stops reading at the limit, so the pipe may be closed while the test still writes.
    let _ = child.stdin.take().unwrap().write_all(&vec![b'x'; (1 << 20) + 1]);
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("at most 1048576"), "{error}");
    assert!(talk.conversations().is_empty());
}

/// The user sends a message of exactly one MiB. guard must accept it and store it whole, and shorten it in the prompt
/// with a note.
#[test]
fn message_of_one_mebibyte_is_stored_whole() {
    let talk = Talk::new("conversation-mebibyte");
    let message = format!("echo ok; exit # {}", "x".repeat((1 << 20) - 16));
    assert_eq!(message.len(), 1 << 20);
    let mut command = talk.turn_command("-", &[]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(message.as_bytes()).unwrap();
    let result = printed_json(&child.wait_with_output().unwrap());
    assert_eq!(
        (&result["success"], result["result"].as_str()),
        (&true.into(), Some("ok")),
        "{}",
        result["error"]
    );
    assert!(result["notes"].to_string().contains("guard left out its middle"), "{}", result["notes"]);
    let shown = talk.history(&["show"]);
    assert_eq!(shown["turns"][0]["user"].as_str().map(str::len), Some(1 << 20));
    assert_eq!(talk.says("echo still here"), "still here");
}

/// Other users must not be able to read the stored conversations.
#[test]
fn conversation_files_are_private() {
    let talk = Talk::new("conversation-private");
    talk.user.types("umask 0; guard chat --once 'echo hi' --agent generic -- bash agent.sh");
    let conversation = talk.conversations().remove(0);
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&conversation), 0o700);
    for entry in std::fs::read_dir(&conversation).unwrap() {
        let path = entry.unwrap().path();
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode(&path), expected, "{}", path.display());
    }
}
