//! Tests native sessions of the agent's CLI: guard resumes them while they exist, and uses its own history instead
//! when they are lost.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use super::{printed_json, words};
use crate::support::{UserShell, make_program};

/// A script that acts like the Gemini CLI. It stores its prompts in its session and in a file of the worktree. If the
/// worktree has a file `forget`, it begins a new session instead of resuming the old one. It answers the prompt
/// `arguments` with its arguments, and fails after the prompt `fail`. It does not answer a prompt with the word SLOW that
/// has more than 8,000 tokens. When asked for a summary, it answers with the name of its model.
const SCRIPT: &str = r#"#!/bin/bash
for word in "$@"; do
  case "$before" in
  --session-id) session=$word; begins=yes ;;
  --resume) session=$word ;;
  --model) model=$word ;;
  esac
  case "$word" in --prompt=*) prompt=${word#--prompt=} ;; esac
  before=$word
done
case "$prompt" in *SLOW*) if ((${#prompt} > 32000)); then sleep 60; fi ;; esac
file=$HOME/.gemini/tmp/project/chats/$session.json
mkdir -p "$HOME/.gemini/tmp/project/chats"
if [ -n "$session" ] && [ -z "$begins" ] && ! [ -e "$file" ]; then
  echo 'Error resuming session: Invalid session identifier' >&2
  exit 42
fi
if [ -z "$begins" ] && [ -e forget ]; then session=0197f0a0-0000-7000-8000-000000000000; fi
printf '%s\n' "${prompt//$'\n'/ }" >> "$file"
printf '%s' "$prompt" > prompt
printf '{"type":"init","session_id":"%s"}\n' "$session"
case "$prompt" in
*'## Messages to Summarise'*) answer="summary by $model" ;;
arguments) answer="$*" ;;
fail) exit 3 ;;
*) answer="known: $(wc -l < "$file")" ;;
esac
printf '{"type":"message","role":"assistant","content":"%s"}\n' "$answer"
printf '{"type":"result","status":"success","stats":{}}\n'
"#;

struct Native {
    user: UserShell,
}

impl Native {
    fn new(name: &str) -> Self {
        let user = UserShell::new(name);
        make_program(&user.project.join("bin/gemini"), SCRIPT);
        user.types("git add . && git commit -qm agent");
        Self { user }
    }

    fn turn(&self, message: &str, options: &[&str]) -> Value {
        let program = self.user.project.join("bin/gemini");
        let mut command = self.user.command("guard");
        command.env("GEMINI_API_KEY", "key").args([
            "chat",
            "--once",
            message,
            "--json",
            "--max-retries",
            "0",
        ]);
        command.args(options);
        if !options.contains(&"--session") {
            command.args(["--agent", "gemini", "--"]).arg(program);
        }
        printed_json(&command.output().unwrap())
    }

    fn continued(&self, message: &str) -> Value {
        let result = self.turn(message, &["--session", "@"]);
        assert_eq!(result["success"], true, "{result:#}");
        result
    }

    fn prompt(&self, result: &Value) -> String {
        let worktree = Path::new(result["worktree"]["path"].as_str().unwrap());
        std::fs::read_to_string(worktree.join("prompt")).unwrap()
    }
}

/// The user sends a second message. guard must resume the agent's own session and pass only the new message, and the
/// CLI must know the earlier one.
#[test]
fn native_session_is_resumed_with_only_the_new_message() {
    let native = Native::new("conversation-native");
    let one = native.turn("first", &[]);
    assert_eq!(one["result"], "known: 1", "{one:#}");
    assert_eq!(one["turn"]["mode"], "native");
    let two = native.continued("second");
    assert_eq!(two["result"], "known: 2", "{two:#}");
    assert_eq!(native.prompt(&two), "second");
    assert!(two.get("notes").is_none(), "{two:#}");
}

/// The files of the agent's session are gone. Within the same turn, guard must begin a new session with its own
/// history, and say so. The next turn must resume the new session.
#[test]
fn lost_native_session_is_replaced_within_the_turn() {
    let native = Native::new("conversation-lost");
    let one = native.turn("first", &[]);
    native.user.types("rm -r ~/.local/state/guard/sessions/gemini/*/home/.gemini/tmp/*");
    let two = native.continued("second");
    let notes = two["notes"].to_string();
    assert!(
        notes.contains("session is lost") && notes.contains("begins a new session with the stored history"),
        "{notes}"
    );
    let prompt = native.prompt(&two);
    assert!(prompt.contains("User: first") && prompt.ends_with("## Current Message\nsecond"), "{prompt}");
    assert_eq!(two["worktree"]["path"], one["worktree"]["path"]);
    let three = native.continued("third");
    assert_eq!(native.prompt(&three), "third", "{three:#}");
    assert!(three.get("notes").is_none(), "{three:#}");
}

/// The CLI silently begins another session than the one it should resume. guard must notice this, and must not accept
/// the answer of an agent that does not know the conversation.
#[test]
fn answer_from_another_native_session_is_rejected() {
    let native = Native::new("conversation-other-session");
    let one = native.turn("first", &[]);
    let worktree = one["worktree"]["path"].as_str().unwrap().to_string();
    native
        .user
        .types(&format!("touch {worktree}/forget && cd {worktree} && git add -A && git commit -qm forget"));
    let two = native.turn("second", &["--session", "@"]);
    assert_eq!((&two["success"], &two["error_kind"]), (&false.into(), &"session_lost".into()), "{two:#}");
    // The script has written its prompt into the worktree, so guard must not ask it again in this turn.
    assert!(two["notes"].to_string().contains("had already changed files"), "{two:#}");
    native.user.types(&format!("rm {worktree}/forget"));
    let three = native.continued("third");
    let prompt = native.prompt(&three);
    assert!(prompt.contains("User: first") && prompt.contains("User: second"), "{prompt}");
    assert!(three["notes"].to_string().contains("begins a new session with the stored history"), "{three:#}");
}

/// The user removes the worktree of a conversation. The next turn must say so, and begin a new worktree with the
/// history.
#[test]
fn removed_worktree_is_replaced_with_a_note() {
    let native = Native::new("conversation-lost-worktree");
    let one = native.turn("first", &[]);
    let worktree = one["worktree"]["path"].as_str().unwrap().to_string();
    native.user.types(&format!("git worktree remove --force {worktree}"));
    let two = native.continued("second");
    assert!(two["notes"].to_string().contains("worktree is lost"), "{two:#}");
    let prompt = native.prompt(&two);
    assert!(prompt.contains("User: first"), "{prompt}");
    let three = native.continued("third");
    assert_eq!(three["worktree"]["path"], two["worktree"]["path"], "{three:#}");
}

/// In the mode `own-history`, the CLI must never resume a session: every prompt contains the history, and all turns
/// use one worktree.
#[test]
fn own_history_never_resumes_a_native_session() {
    let native = Native::new("conversation-own-history");
    native.turn("first", &["--mode", "own-history"]);
    let two = native.continued("second");
    assert_eq!((&two["result"], &two["turn"]["mode"]), (&"known: 1".into(), &"own-history".into()));
    assert!(native.prompt(&two).contains("User: first\n\nAssistant: known: 1"), "{}", native.prompt(&two));
}

/// The user's configuration sets the maximum size of prompts and the model of summaries. guard must use both.
#[test]
fn configuration_sets_prompt_limit_and_summary_model() {
    let native = Native::new("conversation-configured");
    native.user.types(
        "mkdir -p ~/.config/guard && printf '[conversation]\nmax_prompt_tokens = 6000\nsummary_model = \"gemini-2.5-pro\"\n' \
         > ~/.config/guard/config.toml",
    );
    native.turn(&words(2_000), &["--mode", "own-history"]);
    for _ in 0..5 {
        let result = native.continued(&words(100));
        assert!(result["turn"]["estimated_tokens"].as_u64().unwrap() <= 6_000, "{result:#}");
    }
    native.user.types("GEMINI_API_KEY=key guard history compact @");
    let diff: Value = serde_json::from_str(&native.user.types("guard history diff @ --json")).unwrap();
    assert_eq!(diff["limit"], 6_000, "{diff:#}");
    assert_eq!(diff["summary"]["text"], "summary by gemini-2.5-pro", "{diff:#}");
    assert_eq!(diff["summary"]["made_by"], "gemini-2.5-pro", "{diff:#}");
}

/// The user clears the history. guard must not resume the native session, because it still contains the old messages.
#[test]
fn cleared_conversation_does_not_resume_the_native_session() {
    let native = Native::new("conversation-cleared");
    native.turn("first", &[]);
    native.user.types("guard history clear @");
    let two = native.continued("second");
    assert_eq!(two["result"], "known: 1", "{two:#}");
    assert_eq!(native.prompt(&two), "second");
}

/// A native session becomes long. guard must warn the user, in the first turn and in a turn that resumes the session.
#[test]
fn large_native_session_is_reported() {
    let native = Native::new("conversation-native-large");
    let one = native.turn(&words(17_000), &[]);
    assert!(one["notes"].to_string().contains("the agent's own session has about 17"), "{one:#}");
    let two = native.continued("second");
    assert_eq!(native.prompt(&two), "second");
    assert!(two["notes"].to_string().contains("answers become slow above 16000 tokens"), "{two:#}");
}

/// The agent does not answer a large first message. A shorter prompt would be a part of the message, and the agent could
/// act on it: guard must not send it.
#[test]
fn large_first_message_is_not_cut_after_a_time_out() {
    let native = Native::new("conversation-native-slow");
    let one = native.turn(&format!("SLOW {}", words(10_000)), &["--timeout", "2"]);
    assert_eq!((&one["success"], &one["error_kind"]), (&false.into(), &"idle_timeout".into()), "{one:#}");
    assert!(one["notes"].to_string().contains("did not try again with a shorter prompt"), "{one:#}");
    assert!(one["turn"]["estimated_tokens"].as_u64().unwrap() > 8_000, "{one:#}");
}

/// An MCP client passes the id of a conversation as SESSION_ID. Its call must be the next turn of that conversation,
/// with the sandbox and the model of the conversation and the idle limit of turns unless the client sets others. guard
/// must refuse the call for another directory.
#[test]
fn mcp_client_continues_a_conversation_by_session_id() {
    let native = Native::new("conversation-mcp");
    let one = native.turn("first", &["--sandbox", "read-only", "-m", "gemini-2.5-pro"]);
    assert_eq!(one["policy"], "readonly", "{one:#}");
    let id = one["SESSION_ID"].as_str().unwrap();
    let mut command = native.user.command("guard");
    command.env("GEMINI_API_KEY", "key").args(["mcp", "--root"]).arg(native.user.home());
    let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, output) = (server.stdin.take().unwrap(), BufReader::new(server.stdout.take().unwrap()));
    let mut answers = output.lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let mut ask = |id: u64, method: &str, parameters: Value| -> Value {
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": parameters });
        writeln!(input, "{request}").unwrap();
        answers.find(|answer| answer["id"] == id).unwrap()
    };
    let client = json!({ "name": "test", "version": "1" });
    ask(
        1,
        "initialize",
        json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client }),
    );
    let call = |cd: &Path| json!({ "name": "gemini", "arguments": { "PROMPT": "second", "cd": cd, "SESSION_ID": id } });
    let answer = ask(2, "tools/call", call(&native.user.project))["result"]["structuredContent"].clone();
    assert_eq!((&answer["result"], &answer["SESSION_ID"]), (&"known: 2".into(), &id.into()), "{answer:#}");
    let elsewhere = ask(3, "tools/call", call(&native.user.home()))["result"]["structuredContent"].clone();
    assert_eq!(elsewhere["error_kind"], "session_lost", "{elsewhere:#}");
    let mut say = |number: u64, prompt: &str, further: Value| -> Value {
        let mut arguments = json!({ "PROMPT": prompt, "cd": native.user.project, "SESSION_ID": id });
        arguments.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        let call = json!({ "name": "gemini", "arguments": arguments });
        ask(number, "tools/call", call)["result"]["structuredContent"].clone()
    };
    let kept = say(4, "arguments", json!({}));
    assert_eq!(kept["policy"], "readonly", "{kept:#}");
    assert!(kept["result"].as_str().unwrap().contains("--model gemini-2.5-pro"), "{kept:#}");
    let set = json!({ "sandbox": "workspace-write", "model": "gemini-2.5-flash" });
    let changed = say(5, "arguments", set);
    assert_eq!(changed["policy"], "strict", "{changed:#}");
    assert!(changed["result"].as_str().unwrap().contains("--model gemini-2.5-flash"), "{changed:#}");
    let failed = say(6, "fail", json!({ "max_retries": 0 }));
    assert_eq!(failed["error_detail"]["idle_timeout_s"], 120, "{failed:#}");
    drop(input);
    server.wait().unwrap();
    let shown = native.user.types("guard history show @ --json");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["turns"][1]["user"], "second", "{shown:#}");
}

/// The user continues a conversation with `guard exec --session`. The request must become a stored turn, with the
/// sandbox and the model of the conversation unless the user sets others. guard must refuse options that a turn would
/// ignore.
#[test]
fn exec_session_option_continues_a_conversation() {
    let native = Native::new("conversation-exec");
    let one = native.turn("first", &["--sandbox", "read-only", "-m", "gemini-2.5-pro"]);
    let id = one["SESSION_ID"].as_str().unwrap();
    let exec = |arguments: &[&str]| {
        let mut command = native.user.command("guard");
        command.env("GEMINI_API_KEY", "key").args(["exec", "--session", id]).args(arguments);
        printed_json(&command.output().unwrap())
    };
    let two = exec(&["arguments"]);
    assert_eq!((&two["policy"], &two["SESSION_ID"]), (&"readonly".into(), &id.into()), "{two:#}");
    assert!(two["result"].as_str().unwrap().contains("--model gemini-2.5-pro"), "{two:#}");
    let failed = exec(&["fail", "--max-retries", "0"]);
    assert_eq!(failed["error_detail"]["idle_timeout_s"], 120, "{failed:#}");
    let request = json!({ "prompt": "arguments", "cd": native.user.project, "SESSION_ID": id });
    std::fs::write(native.user.home().join("request.json"), request.to_string()).unwrap();
    let printed = native.user.types("GEMINI_API_KEY=key guard exec --request ~/request.json");
    let three: Value = serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"));
    assert_eq!(three["policy"], "readonly", "{three:#}");
    let writable = exec(&["second", "--sandbox", "workspace-write", "--timeout", "60"]);
    assert_eq!(writable["policy"], "strict", "{writable:#}");
    let refused = exec(&["third", "--in-place"]);
    assert_eq!(refused["error_kind"], "invalid_input", "{refused:#}");
    assert!(refused["error"].as_str().unwrap().contains("cannot set `in_place`"), "{refused:#}");
    let shown: Value = serde_json::from_str(&native.user.types("guard history show @ --json")).unwrap();
    let messages: Vec<&str> =
        shown["turns"].as_array().unwrap().iter().filter_map(|turn| turn["user"].as_str()).collect();
    assert_eq!(messages, ["first", "arguments", "fail", "arguments", "second"], "{shown:#}");
}
