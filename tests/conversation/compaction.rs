// slow
//! Tests summaries of older messages: which agent writes them, what happens when that fails, and that no turn waits
//! for them.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Talk, words};

/// Sends messages in turns of about 1,500 tokens each. The first message contains a constraint.
fn fill(talk: &Talk, turns: usize) {
    talk.says(&format!("echo ok # Never push to main. {}", words(1500)));
    for _ in 1..turns {
        talk.says(&format!("echo ok # {}", words(1500)));
    }
}

fn diff(talk: &Talk) -> Value {
    talk.history(&["diff"])
}

/// After a turn that makes a conversation longer than 8,000 tokens, guard must make a summary. The next prompt must
/// contain the summary, the user's constraint word for word, and the newest messages.
#[test]
fn long_conversation_gets_a_summary() {
    let talk = Talk::with_summary("conversation-summary", "echo They chose plum.");
    fill(&talk, 7);
    let shown = diff(&talk);
    assert_eq!(shown["summary"]["text"], "They chose plum.", "{shown:#}");
    assert!(shown["prompt_tokens"].as_u64().unwrap() < shown["all_tokens"].as_u64().unwrap(), "{shown:#}");
    assert_eq!(talk.says("echo next"), "next");
    let prompt = talk.prompt();
    for expected in
        ["## Conversation Summary", "They chose plum.", "Never push to main.", "## Recent Messages"]
    {
        assert!(prompt.contains(expected), "{expected}: {prompt}");
    }
    // The next turn must use the stored summary, without a run that makes a new one.
    let before = talk.user.kept_runs().len();
    talk.says("echo once more");
    assert_eq!(talk.user.kept_runs().len(), before + 1, "the turn is the only new run");
}

/// The user forks a conversation that has a summary. The fork must use the same summary, without a run that makes a new
/// one.
#[test]
fn forked_conversation_keeps_the_summary() {
    let talk = Talk::with_summary("conversation-fork-summary", "echo They chose plum.");
    fill(&talk, 7);
    let fork = talk.history(&["fork", "@"]);
    let id = fork["SESSION_ID"].as_str().unwrap();
    let shown = talk.history(&["diff", id]);
    assert_eq!(shown["summary"]["text"], "They chose plum.", "{shown:#}");
    let before = talk.user.kept_runs().len();
    let turn = talk.turn("echo next", &["--session", id]);
    assert_eq!(turn["result"], "next", "{turn:#}");
    assert_eq!(talk.user.kept_runs().len(), before + 1, "the turn is the only new run");
}

/// The summariser fails twice. guard must drop the oldest messages from the prompt, put a note in their place, and
/// continue the conversation.
#[test]
fn failing_summariser_leads_to_truncation() {
    let talk = Talk::with_summary("conversation-summary-fails", "exit 1");
    fill(&talk, 9);
    let shown = diff(&talk);
    assert_eq!(shown["summary"]["made_by"], "truncation", "{shown:#}");
    assert!(shown["summary"]["text"].as_str().unwrap().contains("left out without a summary"), "{shown:#}");
    assert!(shown["summary"]["pinned"].to_string().contains("Never push to main."), "{shown:#}");
    let result = talk.turn("echo still here", &["--session", "@"]);
    assert_eq!(result["result"], "still here");
    assert!(result["turn"]["estimated_tokens"].as_u64().unwrap() <= 16_000);
}

/// A model summarises the first messages, and fails afterwards. `guard history diff` must distinguish the messages that
/// the summary describes from those that guard dropped without a summary.
#[test]
fn history_diff_distinguishes_summarised_from_dropped_messages() {
    let talk = Talk::with_summary(
        "conversation-diff-dropped",
        "if [ -e fail ]; then exit 1; fi; echo They chose plum.",
    );
    fill(&talk, 6);
    let covered = diff(&talk)["summary"]["covers"].as_u64().unwrap();
    std::fs::write(talk.worktree().join("fail"), "").unwrap();
    fill(&talk, 5);
    let shown = diff(&talk);
    assert_eq!(shown["summary"]["made_by"], "truncation", "{shown:#}");
    assert!(shown["summary"]["covers"].as_u64().unwrap() > covered, "{shown:#}");
    for message in shown["left_out"].as_array().unwrap() {
        let is_described = message["turn"].as_u64().unwrap() <= covered / 2;
        assert_eq!(message["is_in_summary"], is_described, "{shown:#}");
        assert_eq!(message["is_cut"], false, "{shown:#}");
    }
    let (text, _, _) = talk.guard(&["history", "diff"]);
    assert!(text.contains("(in the summary)") && text.contains("(left out)"), "{text}");
}

/// An answer is larger than a prompt. `guard history diff` must say that the next prompt leaves out its middle.
#[test]
fn history_diff_names_messages_that_are_cut() {
    let talk = Talk::new("conversation-diff-cut");
    talk.says("head -c 80000 /dev/zero | tr '\\0' x");
    let shown = diff(&talk);
    assert_eq!(shown["left_out"][0]["is_cut"], true, "{shown:#}");
    let (text, _, _) = talk.guard(&["history", "diff"]);
    assert!(
        text.contains("turn 1, assistant (cut: the prompt leaves out the middle of this message):"),
        "{text}"
    );
    assert!(!text.contains("every message word for word"), "{text}");
}

/// The summariser answers with more text than it was given. guard must reject the answer and count it as a failure.
#[test]
fn summary_longer_than_its_input_is_rejected() {
    let talk = Talk::with_summary("conversation-summary-longer", "head -c 200000 /dev/zero | tr '\\0' x");
    fill(&talk, 9);
    let shown = diff(&talk);
    assert_eq!(shown["summary"]["made_by"], "truncation", "{shown:#}");
}

/// The summariser is slow. guard must print the answer of the turn before the summary is done, and the next turn must
/// not wait for it.
#[test]
fn slow_summariser_delays_no_turn() {
    let talk = Talk::with_summary("conversation-summary-slow", "sleep 30; echo late");
    fill(&talk, 5);
    let mut command = talk.turn_command(&format!("echo answer # {}", words(1500)), &["--session", "@"]);
    let began = Instant::now();
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut answers = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let line = answers.next().unwrap().unwrap();
    let printed = began.elapsed();
    assert!(line.contains("\"answer\""), "{line}");
    assert!(printed < Duration::from_secs(29), "the answer came after {printed:?}");
    assert!(child.wait().unwrap().success());
    assert!(began.elapsed() >= Duration::from_secs(30), "guard waited for the summary after the answer");
    assert_eq!(diff(&talk)["summary"]["text"], "late");
}

/// The reader of guard's output closes the pipe after the answer. guard must still make the summary.
#[test]
fn summary_is_made_after_the_reader_closed_the_pipe() {
    let talk = Talk::with_summary("conversation-summary-reader", "sleep 1; echo made");
    fill(&talk, 5);
    let message = format!("echo answer # {}", words(1500));
    std::fs::write(talk.user.home().join("message"), message).unwrap();
    let printed = talk.user.types("guard chat --once - --session @ < ~/message | head -n 1; sleep 3");
    assert!(printed.contains("answer\n"), "{printed}");
    crate::support::wait_until("the summary is there", || diff(&talk)["summary"]["text"] == "made");
}

/// The user asks for a summary, and guard must print what it saved. A second request must find nothing to do.
#[test]
fn compact_command_prints_the_saving_and_then_finds_nothing() {
    let talk = Talk::with_summary(
        "conversation-compact",
        "if ! [ -e ready ]; then exit 1; fi; echo They chose plum.",
    );
    // The first summary fails, so that the summary on request has something to do.
    fill(&talk, 6);
    assert_eq!(diff(&talk)["summary"], Value::Null);
    std::fs::write(talk.worktree().join("ready"), "").unwrap();
    let done = talk.history(&["compact", "@"]);
    assert_eq!(done["made_by"], "generic", "{done:#}");
    assert!(done["summary_tokens"].as_u64() < done["replaced_tokens"].as_u64(), "{done:#}");
    let (_, error, code) = talk.guard(&["history", "compact", "@"]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("nothing to summarise"), "{error}");
}

/// The user asks for a summary of a short conversation, and after guard has dropped messages without a summary. guard
/// must make the summary both times.
#[test]
fn compact_command_works_on_a_short_conversation() {
    let talk = Talk::with_summary(
        "conversation-compact-short",
        "if [ -e fail ]; then exit 1; fi; echo They chose plum.",
    );
    for number in 0..6 {
        talk.says(&format!("echo ok # {number} {}", words(50)));
    }
    let done = talk.history(&["compact", "@"]);
    assert_eq!((&done["covers"], &done["made_by"]), (&4.into(), &"generic".into()), "{done:#}");
    let failing = talk.worktree().join("fail");
    std::fs::write(&failing, "").unwrap();
    fill(&talk, 9);
    let dropped = diff(&talk);
    assert_eq!(dropped["summary"]["made_by"], "truncation", "{dropped:#}");
    std::fs::remove_file(&failing).unwrap();
    let done = talk.history(&["compact", "@"]);
    assert_eq!(done["made_by"], "generic", "{done:#}");
    let described = diff(&talk);
    assert!(
        described["left_out"].as_array().unwrap().iter().all(|one| one["is_in_summary"] == true),
        "{described:#}"
    );
}

/// The run that writes a summary must see the conversation's worktree, and must not see files that are only in the
/// user's own checkout.
#[test]
fn summariser_cannot_read_files_of_the_user() {
    let talk = Talk::with_summary(
        "conversation-secret",
        "cat .env ../project/.env ../../project/.env 2>&1; echo end",
    );
    std::fs::write(talk.user.project.join(".env"), "SECRET-IN-THE-CHECKOUT").unwrap();
    fill(&talk, 7);
    let shown = diff(&talk);
    let text = shown["summary"]["text"].as_str().unwrap();
    assert!(text.contains("end") && !text.contains("SECRET"), "{shown:#}");
}
