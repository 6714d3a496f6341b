// slow
//! A user has a conversation of 25 turns with the real Gemini CLI, in both modes. The answer to the last message
//! depends on a fact and on a constraint of the first one.

use std::path::Path;

use serde_json::Value;

use super::printed_json;
use crate::egress::gemini::Gemini;
use crate::support::UserShell;
use crate::support::http_server::Request;
use crate::support::scripted_api::{Api, Turn};

pub(super) const TURNS: usize = 25;
pub(super) const FACT: &str = "BLUEFIN-42";
pub(super) const CONSTRAINT: &str = "Never change the file LICENSE.";
pub(super) const QUESTION: &str = "Which code word did I give you, and what must you never do?";

/// Returns all texts that the request sends to the model.
fn texts(request: &Request) -> String {
    let body = request.json();
    let contents = body["contents"].as_array().cloned().unwrap_or_default();
    let parts = contents.iter().filter_map(|content| content["parts"].as_array()).flatten();
    parts.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
}

fn is_summary(request: &Request) -> bool {
    texts(request).contains("## Messages to Summarise")
}

/// A model that knows only what the request contains. Its summaries repeat the code word but not the constraint, so
/// guard itself must keep the constraint.
fn model(request: &Request) -> Turn {
    let sent = texts(request);
    if is_summary(request) {
        assert!(request.path().contains("gemini-2.5-flash"), "{}", request.path());
        let word = if sent.contains(FACT) { FACT } else { "unknown" };
        return Turn::text(&format!("The user plans a release. The code word is {word}."));
    }
    assert!(request.path().contains("gemini-2.5-pro"), "{}", request.path());
    if !sent.contains(QUESTION) {
        return Turn::text(&format!("Noted. {}", prose(300, sent.len())));
    }
    let knows = |text: &str| if sent.contains(text) { text.to_string() } else { "unknown".to_string() };
    Turn::text(&format!("{} / {}", knows(FACT), knows(CONSTRAINT)))
}

/// Returns a text of about this many estimated tokens without repetitions, because the CLI stops answers that repeat
/// themselves.
pub(super) fn prose(tokens: usize, seed: usize) -> String {
    const WORDS: [&str; 16] = [
        "window", "garden", "slowly", "carries", "morning", "under", "bridge", "listens", "quiet", "stone",
        "written", "between", "letters", "winter", "travels", "beyond",
    ];
    let mut state = seed * 7919 + 17;
    let mut text = String::new();
    while text.len() < tokens * 4 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(WORDS[(state >> 33) % WORDS.len()]);
        text.push(' ');
    }
    text
}

struct Conversation<'c> {
    user: &'c UserShell,
    api: &'c Api,
}

impl Conversation<'_> {
    fn turn(&self, message: &str, options: &[&str]) -> Value {
        let path = format!("{}/node_modules/.bin:/usr/local/bin:/usr/bin:/bin", Gemini::folder().display());
        let mut command = self.user.command(env!("CARGO_BIN_EXE_guard"));
        command
            .env("PATH", path)
            .env("GEMINI_API_KEY", "key")
            .env("GOOGLE_GEMINI_BASE_URL", self.api.server.url(""));
        let output = command.args(["chat", "--once", message, "--json"]).args(options).output().unwrap();
        let result = printed_json(&output);
        assert_eq!(result["success"], true, "{message}: {result:#}");
        result
    }

    /// Sends 25 messages in a conversation with this mode. Returns the results of the turns.
    fn talk(&self, mode: &str) -> Vec<Value> {
        let first = format!("The code word is {FACT}. {CONSTRAINT} {}", prose(400, 1));
        let mut results = vec![self.turn(&first, &["--mode", mode, "-m", "gemini-2.5-pro"])];
        for number in 2..TURNS {
            results.push(self.turn(&format!("Step {number}: {}", prose(400, number)), &["--session", "@"]));
        }
        results.push(self.turn(QUESTION, &["--session", "@"]));
        results
    }
}

pub(super) fn ends_with_both(results: &[Value]) {
    assert_eq!(results[TURNS - 1]["result"], format!("{FACT} / {CONSTRAINT}"));
    let place = &results[0]["SESSION_ID"];
    assert!(results.iter().all(|result| result["SESSION_ID"] == *place));
}

/// 25 turns in the mode `own-history`. No prompt may be larger than 16,000 estimated tokens, guard must summarise
/// older messages in the background, and `guard history diff` must show what was dropped.
#[test]
fn own_history_keeps_a_fact_and_a_constraint_for_25_turns() {
    if Gemini::installed().is_none() {
        return;
    }
    let (user, api) = (UserShell::new("conversation-gemini-own"), Api::answering(model));
    let results = Conversation { user: &user, api: &api }.talk("own-history");
    ends_with_both(&results);
    for result in &results {
        assert!(result["turn"]["estimated_tokens"].as_u64().unwrap() <= 16_000, "{}", result["turn"]);
        assert_eq!(result["turn"]["mode"], "own-history");
    }
    for question in api.questions() {
        let body = question.json();
        let contents = body["contents"].as_array().unwrap();
        let last = contents.last().unwrap()["parts"][0]["text"].as_str().unwrap().to_string();
        let limit = if is_summary(&question) { 40_000 } else { 16_000 };
        assert!(last.len() / 4 <= limit, "{} characters", last.len());
    }
    let summaries = api.questions().iter().filter(|question| is_summary(question)).count();
    assert!((1..=6).contains(&summaries), "{summaries} summaries");
    let last = texts(api.questions().last().unwrap());
    assert!(last.contains("## Conversation Summary") && last.contains("## Current Message"), "{last}");
    let diff: Value = serde_json::from_str(&user.types("guard history diff --json")).unwrap();
    assert_eq!(diff["summary"]["made_by"], "gemini-2.5-flash", "{diff:#}");
    assert!(diff["summary"]["pinned"].to_string().contains(CONSTRAINT), "{diff:#}");
    let dropped = diff["left_out"][0]["text"].as_str().unwrap();
    assert!(dropped.contains(FACT), "{dropped}");
    assert!(diff["all_tokens"].as_u64().unwrap() > 16_000, "{}", diff["all_tokens"]);
    user.sees("guard history diff", &["- The code word is BLUEFIN-42", "kept word for word: ", CONSTRAINT]);
    // The runs that made summaries must have left no session of the CLI behind.
    let sessions = user.home().join(".local/state/guard/sessions/gemini");
    assert_eq!(std::fs::read_dir(Path::new(&sessions)).unwrap().count(), 1);
}

/// 25 turns in the agent's own session. guard must pass only the new message to the CLI, and the model must receive
/// all messages.
#[test]
fn native_session_keeps_a_fact_and_a_constraint_for_25_turns() {
    if Gemini::installed().is_none() {
        return;
    }
    let (user, api) = (UserShell::new("conversation-gemini-native"), Api::answering(model));
    let results = Conversation { user: &user, api: &api }.talk("native");
    ends_with_both(&results);
    assert!(results.iter().all(|result| result["turn"]["mode"] == "native"));
    // The last turns exceed 16,000 tokens, about which guard must warn. There must be no other notes.
    let (short, long) = results.split_at(TURNS - 5);
    assert!(short.iter().all(|result| result.get("notes").is_none()), "{:#?}", results[1]["notes"]);
    let notes: Vec<&str> = long
        .iter()
        .filter_map(|result| result["notes"].as_array())
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    assert!(!notes.is_empty());
    assert!(notes.iter().all(|note| note.starts_with("the agent's own session has about 1")), "{notes:?}");
    assert!(!api.questions().iter().any(is_summary));
    let last = texts(api.questions().last().unwrap());
    assert!(!last.contains("## Current Message"), "the CLI gets the message alone");
}
