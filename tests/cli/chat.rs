// slow
//! A user talks to an agent with `guard chat` at a real terminal. The agent is a script that does what the message
//! says.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::agent_exec::scripted;
use crate::support::{Terminal, TestEnvironment, guard_program, one_environment};

/// The agent: a script that prints what the Gemini CLI would print. The words of the message say what it does.
const AGENT: &str = r##"#!/bin/bash
for word in "$@"; do
  case "$before" in --session-id | --resume) session=$word ;; --model) model=$word ;; esac
  case "$word" in --prompt=*) prompt=${word#--prompt=} ;; esac
  before=$word
done
message=${prompt##*## Current Message}
read -r verb object <<<"$(tr -s '\n' ' ' <<<"$message")"
line() { printf '%s\n' "$1"; }
say() { line "{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"$1\",\"delta\":true}"; }
tool() { line "{\"type\":\"tool_use\",\"tool_name\":\"$1\",\"tool_id\":\"t\",\"parameters\":{\"command\":\"$2\"}}"; }
line "{\"type\":\"init\",\"session_id\":\"$session\"}"
line '{"type":"message","role":"user","content":"never shown"}'
case "$verb" in
write)
  tool write_file "$object"
  echo text >"$object"; git add "$object"; git commit -qm "Add $object"
  say "I wrote **${object%.txt}"; say ".txt** to the branch.\\n" ;;
push) tool run_shell_command "git push"; git push 2>/dev/null; say "I could not push.\\n" ;;
sleep) tool run_shell_command "sleep 60"; sleep 60; say "I woke up.\\n" ;;
model) say "My model is $model.\\n" ;;
list) say "# Title\\n- first\\n- \`second\`\\n\`\`\`sh\\nls **x**\\n\`\`\`\\n" ;;
lines) say "I got $(wc -l <<<"$message") lines and $(wc -w <<<"$message") words.\\n" ;;
hostile) say "\\u001b[2J\\u001b]2;owned\\u0007\\u202eevil\\u009b31m answer\\n" ;;
break) line '{"type":"result","status":"error","error":{"message":"the model is \u001b[31mtired"}}'; exit 1 ;;
*) say "I heard $verb.\\n" ;;
esac
printf '{"type":"result","status":"success","stats":{}}\n'
"##;

/// Installs the agent, and returns the command line that starts a conversation with it.
fn chat_command(environment: &TestEnvironment) -> String {
    environment.run_outside("cd repository && git config user.name n && git config user.email e");
    let agent = scripted::agent(environment, "chatty", AGENT);
    format!("$GUARD chat --policy {} -- {}", scripted::policy(environment).display(), agent.display())
}

/// The message on standard input is too long, and guard's limit cuts it inside a character. guard must report the
/// maximum length, and not an encoding error.
#[test]
fn too_long_message_is_reported_with_the_limit() {
    let environment = one_environment();
    let mut command = environment.command(guard_program());
    command.args(["chat", "--once", "-"]);
    let outcome = environment.run_to_end(command, "é".repeat((1 << 19) + 1).as_bytes());
    outcome.expect_code(2);
    assert!(outcome.error.contains("a message may have at most 1048576"), "{outcome}");
}

/// Starts a conversation in the repository of the environment. Returns the terminal when it shows the first prompt.
fn conversation<'e>(environment: &'e TestEnvironment) -> Option<Terminal<'e>> {
    let command = chat_command(environment);
    let terminal = Terminal::open(environment)?;
    terminal.types(&format!("cd ../repository; clear; {command}"));
    terminal.shows("gemini · 0/");
    Some(terminal)
}

/// Waits until the last line of the screen is an empty prompt, and the screen shows more prompts than before. Returns
/// their number.
fn wait_for_prompt(terminal: &Terminal<'_>, before: usize) -> usize {
    let count = |screen: &str| screen.matches('›').count();
    let screen =
        terminal.waits_for("a prompt", |screen| screen.trim_end().ends_with('›') && count(screen) > before);
    // guard draws the prompt only after the line editor controls the terminal, so the test can type now.
    count(&screen)
}

/// Records every byte that guard writes to the terminal. Returns the file.
fn record_bytes(environment: &TestEnvironment, terminal: &Terminal<'_>) -> PathBuf {
    let file = environment.temporary_directory().join("bytes");
    terminal.tmux(&["pipe-pane", "-o", &format!("cat > {}", file.display())]);
    file
}

/// The user lets the agent work for several turns, looks at the work, applies it, undoes a turn, changes the model,
/// continues in a copy of the conversation, and leaves. Each step must show its result.
#[test]
fn user_works_several_turns_and_applies_the_result() {
    let environment = one_environment();
    let Some(terminal) = conversation(&environment) else { return };
    terminal.types("write one.txt");
    let screen = terminal.shows("· 1 commit on task/");
    for text in ["● write_file: one.txt", "I wrote one.txt to the branch.", "ok in "] {
        assert!(screen.contains(text), "{text:?} is missing:\n{screen}");
    }
    assert!(!screen.contains("never shown") && !screen.contains("**"), "{screen}");
    terminal.types("push");
    let screen = terminal.shows("1 action refused (/why)");
    assert!(
        screen.contains("✗ refused: git push (rule ") && screen.contains("I could not push."),
        "{screen}"
    );
    terminal.types("/why");
    terminal.shows("always:  guard allow");
    terminal.types("write two.txt");
    terminal.shows("I wrote two.txt");
    terminal.types("/diff --stat");
    let screen = terminal.shows("1 commit, no uncommitted changes");
    assert!(!screen.contains("one.txt |"), "{screen}");
    terminal.types("/diff all --stat");
    let screen = terminal.shows("2 commits, no uncommitted changes");
    assert!(screen.contains("one.txt |") && screen.contains("two.txt |"), "{screen}");
    terminal.types("/apply");
    terminal.shows("to main as a fast-forward: 2 commits, 2 files");
    assert_eq!(environment.run_outside("cd repository; ls *.txt").trim(), "one.txt\ntwo.txt");
    // After `/apply` the worktree must still exist, and the conversation must continue.
    terminal.types("write three.txt");
    terminal.shows("I wrote three.txt");
    terminal.types("/undo");
    terminal.shows("turn 4 is undone; the files are as they were before the turn");
    terminal.types("/history");
    let screen = terminal.shows("  3  done");
    assert!(!screen.contains("  4  done"), "{screen}");
    terminal.types("/model gemini-3-flash");
    terminal.shows("model: gemini-3-flash-preview, from the next message on");
    terminal.types("model");
    terminal.shows("My model is gemini-3-flash-preview.");
    terminal.types("/fork 1");
    terminal.shows("you are in the copy ");
    terminal.types("hello-from-the-copy");
    terminal.shows("I heard hello-from-the-copy.");
    terminal.types("/quit");
    terminal.shows("come back: guard chat --session ");
    terminal.types("echo code-$?");
    terminal.shows("code-0");
    // The stored conversation must continue where it ended.
    terminal.types("clear; $GUARD chat --session @");
    terminal.shows(", 2 turns: write one.txt");
    terminal.press("C-d");
    terminal.shows("come back: guard chat --session ");
}

/// The user presses Ctrl-C during a turn, which must end only the turn. A failed turn must say what to do. The
/// conversation must continue after both, and Ctrl-D must end it.
#[test]
fn chat_continues_after_ctrl_c_and_after_a_failed_turn() {
    let environment = one_environment();
    let Some(terminal) = conversation(&environment) else { return };
    terminal.types("sleep");
    terminal.shows("● run_shell_command: sleep 60");
    let is_time = |screen: &str| (1..60).any(|seconds| screen.contains(&format!(" {seconds} s · ")));
    terminal.waits_for("the status line with the elapsed time", is_time);
    terminal.press("C-c");
    terminal.shows("the agent has been asked to end and has 5 seconds; Ctrl-C again ends it at once");
    let screen = terminal.shows("cancelled");
    assert!(!screen.contains(" s · Ctrl-C"), "the line with the elapsed time is still there:\n{screen}");
    terminal.types("first");
    terminal.shows("I heard first.");
    terminal.types("break");
    let screen = terminal.shows("next: send the message again");
    assert!(screen.contains("✗ upstream_error: ") && screen.contains("tired"), "{screen}");
    terminal.types("second");
    terminal.shows("I heard second.");
    terminal.types("/hlep");
    terminal.shows("did you mean /help?");
    // At a prompt, Ctrl-C must not end the conversation; the second one must print how to leave it.
    for _ in 0..2 {
        let prompts = wait_for_prompt(&terminal, 0);
        terminal.press("C-c");
        wait_for_prompt(&terminal, prompts);
    }
    terminal.shows("Ctrl-D or /quit leaves the conversation");
    terminal.press("C-d");
    terminal.shows("come back: guard chat --session ");
    terminal.types("echo code-$?");
    terminal.shows("code-0");
}

/// A turn reaches its time limit. The error must name commands that work while the conversation is open, and only limits
/// that `guard chat` accepts.
#[test]
fn chat_time_out_suggests_only_commands_that_chat_accepts() {
    let environment = one_environment();
    let command = chat_command(&environment).replace(" chat ", " chat --timeout 2 --max-retries 0 ");
    let Some(terminal) = Terminal::open(&environment) else { return };
    terminal.types(&format!("cd ../repository; clear; {command}"));
    terminal.shows("gemini · 0/");
    terminal.types("sleep");
    let screen = terminal.shows("`/clear` clears its history and keeps its files");
    assert!(!screen.contains("guard history clear") && !screen.contains("--timeout 0"), "{screen}");
    terminal.types("/clear");
    terminal.shows("the agent forgets the earlier messages");
    terminal.types("/quit");
    terminal.shows("come back: guard chat --session ");
}

/// A signal other than Ctrl-C must end the conversation, even while guard waits for a message, and leave the terminal
/// usable.
#[test]
fn signal_ends_chat_and_restores_the_terminal() {
    let environment = one_environment();
    let Some(terminal) = conversation(&environment) else { return };
    terminal.types("one");
    terminal.shows("I heard one.");
    terminal.shows("ok in ");
    let shell = terminal.tmux(&["display-message", "-p", "#{pane_pid}"]);
    environment.run_outside(&format!("pkill -TERM -x guard -P {}", shell.trim()));
    terminal.shows("come back: guard chat --session ");
    terminal.types("echo code-$?");
    terminal.shows("code-143");
    terminal.types("stty -a | grep -c ' icanon'");
    terminal.shows("\n1\n");
}

/// A user edits messages: Tab must complete, a backslash and Alt-Enter must begin another line, pasted lines must
/// stay one message, and only the user may read the file of earlier messages.
#[test]
fn chat_line_editor_completes_and_accepts_multiple_lines() {
    let environment = one_environment();
    let Some(terminal) = conversation(&environment) else { return };
    terminal.tmux(&["send-keys", "-l", "/hist"]);
    terminal.press("Tab");
    terminal.shows("› /history");
    terminal.press("Enter");
    terminal.shows("there are no turns yet");
    terminal.types("lines one \\");
    terminal.types("two");
    terminal.shows("I got 2 lines and 3 words.");
    terminal.tmux(&["send-keys", "-l", "lines one two"]);
    terminal.press("M-Enter");
    terminal.types("three");
    terminal.shows("I got 2 lines and 4 words.");
    terminal.tmux(&["set-buffer", "lines a\nb \\\nc\n\nd"]);
    terminal.tmux(&["paste-buffer", "-p"]);
    terminal.press("Enter");
    terminal.shows("I got 5 lines and 6 words.");
    // Tab must complete the path of a file, and ↑ must bring the last message back.
    terminal.tmux(&["send-keys", "-l", "look at track"]);
    terminal.press("Tab");
    terminal.shows("› look at tracked");
    terminal.press("Enter");
    terminal.shows("I heard look.");
    terminal.press("Up");
    terminal.press("C-a");
    terminal.tmux(&["send-keys", "-l", "again-"]);
    terminal.press("Enter");
    terminal.shows("I heard again-look.");
    terminal.types("/exit");
    terminal.shows("come back");
    let history = environment.runs_directory().with_file_name("chat-history");
    let text = std::fs::read_to_string(&history).unwrap();
    assert!(text.contains("look at tracked"), "{text}");
    assert_eq!(history.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

/// An agent prints control sequences and Markdown. Neither may control the terminal, and guard must render the
/// Markdown.
#[test]
fn answer_cannot_control_the_terminal() {
    let environment = one_environment();
    let Some(terminal) = conversation(&environment) else { return };
    let bytes = record_bytes(&environment, &terminal);
    terminal.types("hostile");
    let screen = terminal.shows("31m answer");
    assert!(screen.contains("\\u{1b}[2J\\u{1b}]2;owned\\u{7}\\u{202e}evil\\u{9b}31m answer"), "{screen}");
    assert!(!terminal.tmux(&["display-message", "-p", "#{pane_title}"]).contains("owned"));
    terminal.types("list");
    let screen = terminal.shows("ls **x**");
    assert!(screen.contains("\nTitle\n• first\n• second\n```sh\nls **x**\n```\n"), "{screen}");
    terminal.shows("gemini · ");
    let bytes = std::fs::read(bytes).unwrap();
    let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    assert!(has("\x1b[1mTitle\x1b[m".as_bytes()) && has("\x1b[36msecond\x1b[m".as_bytes()));
    for hostile in ["\x1b[2J\x1b]2", "\u{202e}", "\u{9b}", "\x07"] {
        assert!(!has(hostile.as_bytes()), "{hostile:?} reached the terminal");
    }
}

/// On a terminal without cursor movement (`TERM=dumb`), a conversation must work without line editing. It must also
/// work after the terminal was made smaller.
#[test]
fn chat_works_on_dumb_and_resized_terminals() {
    let environment = one_environment();
    let command = chat_command(&environment);
    let Some(terminal) = Terminal::open(&environment) else { return };
    terminal.types("cd ../repository; clear; export PS1='OUTSIDE> '");
    terminal.shows("OUTSIDE>");
    let bytes = record_bytes(&environment, &terminal);
    terminal.types(&format!("TERM=dumb {command}"));
    terminal.shows("gemini · 0/");
    terminal.types("lines one \\");
    terminal.types("two");
    terminal.shows("I got 2 lines and 3 words.");
    terminal.types("/quit");
    terminal.shows("come back");
    let text = String::from_utf8_lossy(&std::fs::read(bytes).unwrap()).into_owned();
    let conversation = &text[text.find("gemini · 0/").unwrap()..text.find("come back").unwrap()];
    assert!(!conversation.contains('\x1b'), "{conversation:?}");
    terminal.types(&format!("clear; {command}"));
    terminal.shows("gemini · 0/");
    terminal.tmux(&["resize-window", "-x", "40", "-y", "12"]);
    terminal.types("a message that is longer than a line of this terminal");
    terminal.shows("I heard a.");
    terminal.types("push");
    terminal.shows("1 action refused (/why)");
}

/// Without a terminal `guard chat` must not start a conversation. It must say how to send one message, and store
/// nothing.
#[test]
fn chat_without_terminal_prints_a_hint_and_stores_nothing() {
    let environment = one_environment();
    let mut command = environment.command(guard_program());
    command.arg("chat").current_dir(environment.directory.with_file_name("repository"));
    let outcome = environment.run_to_end(command, b"hello\n");
    outcome.expect_code(2);
    assert!(
        outcome.error.contains("not a terminal") && outcome.error.contains("--once"),
        "{}",
        outcome.error
    );
    assert!(!environment.runs_directory().with_file_name("conversations").exists());
}
