//! Conversations with agents that fail or are silent, and with a full disk.

use std::time::{Duration, Instant};

use super::{Talk, words};
use crate::support::{is_root, skip};

/// The agent fails. guard must store the turn as failed with the reason, and the next turn must work.
#[test]
fn failed_turn_is_stored_with_its_reason() {
    let talk = Talk::new("conversation-failed");
    let failed = talk.turn("echo partial; echo why >&2; exit 3", &["--max-retries", "0"]);
    assert_eq!(
        (&failed["success"], &failed["error_kind"]),
        (&false.into(), &"upstream_error".into()),
        "{failed:#}"
    );
    let turns = talk.history(&["show"])["turns"].clone();
    assert_eq!(turns[0]["state"]["name"], "failed");
    assert_eq!(talk.says("echo better"), "better");
}

/// The agent does not answer in a long conversation. guard must try once more with a prompt of at most 8,000 tokens,
/// which the agent answers.
#[test]
fn silent_agent_is_asked_again_with_a_shorter_prompt() {
    let talk = Talk::new("conversation-shorter");
    for _ in 0..5 {
        let turn = format!("echo ok # {}", words(2500));
        talk.says(&turn);
    }
    let began = Instant::now();
    let result = talk.turn("echo answered # LONG-SILENT", &["--session", "@", "--timeout", "2"]);
    assert_eq!(result["result"], "answered", "{result:#}");
    assert!(result["notes"].to_string().contains("tries once more with a shorter prompt"), "{result:#}");
    assert!(result["turn"]["estimated_tokens"].as_u64().unwrap() <= 8000, "{result:#}");
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
}

/// The agent never answers. guard must stop after two attempts, and tell the user how to clear the history.
#[test]
fn second_time_out_suggests_clearing_the_history() {
    let talk = Talk::new("conversation-time-out");
    for _ in 0..5 {
        talk.says(&format!("echo ok # {}", words(2500)));
    }
    let result = talk.turn("echo never # SILENT", &["--session", "@", "--timeout", "1"]);
    assert_eq!(result["error_kind"], "idle_timeout", "{result:#}");
    let error = result["error"].as_str().unwrap();
    let id = result["SESSION_ID"].as_str().unwrap();
    assert!(error.contains(&format!("guard history clear {}", &id[id.len() - 8..])), "{error}");
    // A turn must have a limit, so the error must not advise to set none.
    assert!(error.contains("`--timeout TIME`") && !error.contains("--timeout 0"), "{error}");
}

/// The agent changes files and then prints nothing until the idle limit. guard must not ask it again, and must tell
/// the user why.
#[test]
fn agent_that_changed_files_before_a_time_out_is_not_asked_again() {
    let talk = Talk::new("conversation-changed-files");
    for _ in 0..5 {
        talk.says(&format!("echo ok # {}", words(2500)));
    }
    let result = talk.turn("echo work >> work; sleep 60", &["--session", "@", "--timeout", "2"]);
    assert_eq!(result["error_kind"], "idle_timeout", "{result:#}");
    assert!(result["notes"].to_string().contains("had already changed files"), "{result:#}");
    assert_eq!(talk.says("cat work"), "work");
}

/// The disk is full. guard must say so and lose nothing that was stored, and the conversation must continue when
/// there is space again.
#[test]
fn full_disk_loses_no_stored_message() {
    if !is_root() {
        skip("a full disk", "only root can mount one");
        return;
    }
    let talk = Talk::new("conversation-full-disk");
    let script = r#"
        set -e
        state=~/.local/state/guard/conversations
        mkdir -p $state; mount -t tmpfs -o size=64k none $state
        guard chat --once 'echo one' --agent generic -- bash agent.sh
        before=$(cat $state/*/messages.jsonl | wc -c)
        head -c 1M /dev/zero > $state/fill || true
        code=0
        guard chat --once "echo two # $(head -c 10000 /dev/zero | tr "\0" x)" --session @ || code=$?
        echo "code $code"
        head -c $before $state/*/messages.jsonl | cmp - $state/*/messages.jsonl && echo unchanged
        guard history show @
        rm $state/fill
        guard chat --once 'echo three' --session @
    "#;
    let (printed, code) =
        talk.user.ends(&format!("exec unshare -m bash -c '{}'", script.replace('\'', "'\\''")));
    assert_eq!(code, 0, "{printed}");
    for expected in ["No space left", "free some disk space", "code 125", "unchanged", "> echo one", "three"]
    {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
}
