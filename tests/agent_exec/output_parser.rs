//! Tests the parsers for each output format of a CLI. The constants are also seed inputs of a fuzz target.

use guard::agents::adapter::{AgentEvent, Conclusion, Ending, OutputFormat, OutputParser, Wait, named};
use guard::run::outcome::ErrorKind;
use serde_json::json;

fn in_format(format: OutputFormat) -> OutputParser {
    OutputParser::new(named("gemini").unwrap(), format)
}

fn reading() -> OutputParser {
    in_format(OutputFormat::StreamJson)
}

fn read(text: &str) -> (OutputParser, Vec<AgentEvent>) {
    let (mut reading, mut events) = (reading(), Vec::new());
    reading.feed(text.as_bytes(), |event| events.push(event));
    (reading, events)
}

const INIT: &str = "{\"type\":\"init\",\"session_id\":\"s1\",\"model\":\"m\"}\n";
const HELLO: &str = "{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"Hel\",\"delta\":true}\n{\"type\":\"message\",\"role\":\"user\",\"content\":\"no\"}\n{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"lo\",\"delta\":true}\n";
const DONE: &str = "{\"type\":\"result\",\"status\":\"success\",\"stats\":{\"total_tokens\":3}}\n";

#[test]
fn success_requires_exit_code_zero_and_a_final_success_event() {
    let whole = format!("{INIT}{HELLO}{DONE}");
    let (run, events) = read(&whole);
    let end = run.conclude(Ending::Code(0), None, "");
    assert!(end.success && end.error.is_none(), "{end:?}");
    assert_eq!((end.answer.as_str(), end.session.as_deref()), ("Hello", Some("s1")));
    assert_eq!(end.usage, Some(json!({ "total_tokens": 3 })));
    assert_eq!(events.first().map(|event| event.event_type.as_str()), Some("agent.init"));
    for (text, code, kind) in [
        (format!("{INIT}{HELLO}"), 0, "upstream_error"),
        (format!("{INIT}{DONE}{HELLO}"), 0, "upstream_error"),
        (whole.clone(), 1, "upstream_error"),
        (String::new(), 0, "upstream_error"),
        (INIT.to_string(), 41, "auth_error"),
        (INIT.to_string(), 53, "turn_limit"),
        (INIT.to_string(), 173, "rate_limited"),
        (
            format!(
                "{INIT}{{\"type\":\"result\",\"status\":\"error\",\"error\":{{\"message\":\"You exceeded your current quota\"}}}}\n"
            ),
            1,
            "rate_limited",
        ),
    ] {
        let end = read(&text).0.conclude(Ending::Code(code), None, "");
        assert!(!end.success, "{text}");
        assert_eq!(end.error.as_ref().map(|(kind, _)| kind.as_str()), Some(kind), "{text} {code}");
    }
}

#[test]
fn answer_of_another_session_is_session_lost() {
    let end = read(&format!("{INIT}{HELLO}{DONE}")).0.conclude(Ending::Code(0), Some("s0"), "");
    assert!(!end.success && end.error.is_some_and(|(kind, _)| kind == ErrorKind::SessionLost));
    assert!(read(&format!("{INIT}{DONE}")).0.conclude(Ending::Code(0), Some("s1"), "").success);
}

#[test]
fn unknown_events_are_counted_and_passed_on() {
    let (run, events) = read("{\"type\":\"future\",\"x\":1}\nnot json\n[1]\n\n{\"type\":5}\n");
    let end = run.conclude(Ending::EndedByGuard, None, "");
    assert_eq!((end.unknown, end.unreadable), (2, 2));
    let kinds: Vec<&str> = events.iter().map(|event| event.event_type.as_str()).collect();
    assert_eq!(kinds, ["agent.other", "agent.text", "agent.text", "agent.other"]);
}

fn conclude(format: OutputFormat, out: &str, code: i32, err: &str) -> Conclusion {
    let mut run = in_format(format);
    run.feed(out.as_bytes(), |_| {});
    run.conclude(Ending::Code(code), None, err)
}

fn kind(end: &Conclusion) -> &str {
    end.error.as_ref().map(|(kind, _)| kind.as_str()).unwrap_or_default()
}

const OBJECT: &str =
    "{\n  \"session_id\": \"s1\",\n  \"response\": \"Hello\",\n  \"stats\": {\n    \"x\": 1\n  }\n}";
const FAILED: &str = "{\n  \"session_id\": \"s1\",\n  \"error\": {\n    \"type\": \"Error\",\n    \"message\": \"You exceeded your current quota.\\nSuggested retry after 1.5s.\",\n    \"code\": 429\n  }\n}";

#[test]
fn json_format_gives_the_same_conclusion_as_events() {
    let end = conclude(OutputFormat::Json, OBJECT, 0, "YOLO mode is enabled.\n");
    assert!(end.success && end.answer == "Hello", "{end:?}");
    assert_eq!((end.session.as_deref(), end.usage), (Some("s1"), Some(json!({ "x": 1 }))));
    let end = conclude(OutputFormat::Json, &format!("a warning\n{OBJECT}\n"), 0, "");
    assert!(end.success && end.unreadable == 1, "{end:?}");
    let blocked = OBJECT.replace("\"stats\"", "\"error\": {\"message\": \"SAFETY\"},\n  \"stats\"");
    for (out, code) in [
        (OBJECT, 1),
        ("", 0),
        ("{\n  \"session_id\": \"s1\"\n}", 0),
        ("{\n  \"response\": \"cut", 0),
        ("{\n\"response\":\n}\n}\n", 0),
        (blocked.as_str(), 0),
    ] {
        let end = conclude(OutputFormat::Json, out, code, "");
        assert!(!end.success && kind(&end) == "upstream_error", "{out}: {end:?}");
    }
}

#[test]
fn error_is_read_from_the_last_json_object_on_standard_error() {
    let log = "Attempt 1 failed: {\"a\": 1}\n  cause: {\n    code: 429\n  }\n}\n";
    for text in [format!("{log}{FAILED}"), format!("{log}{FAILED}\n{FAILED}\n"), FAILED.to_string()] {
        let end = conclude(OutputFormat::Json, "", 173, &text);
        assert_eq!(kind(&end), "rate_limited", "{text}");
        assert_eq!(end.session.as_deref(), Some("s1"));
        assert_eq!(end.wait, Some(Wait::For(std::time::Duration::from_millis(1500))));
        assert!(end.error.is_some_and(|(_, words)| words.contains("exceeded your current quota")));
    }
    // An answer object on standard error is not a success.
    let end = conclude(OutputFormat::Json, "", 0, OBJECT);
    assert!(!end.success, "{end:?}");
}

#[test]
fn text_output_is_the_answer_if_the_exit_code_is_zero() {
    let end = conclude(OutputFormat::Text, "Hello\n\nyou\n", 0, "noise");
    assert!(end.success && end.answer == "Hello\n\nyou" && end.unreadable == 0, "{end:?}");
    for (out, code) in [("", 0), (" \n\n", 0), ("Hello", 1)] {
        assert!(!conclude(OutputFormat::Text, out, code, "").success, "{out}");
    }
    let trace = "Error when talking to Gemini API: {\"error\":{\"code\":401,\"status\":\"UNAUTHENTICATED\"}}\n    at x\nAn unexpected critical error occurred:[object Object]\n";
    let end = conclude(OutputFormat::Text, "", 1, trace);
    assert_eq!(kind(&end), "auth_error");
    assert!(end.error.is_some_and(|(_, words)| words.contains("UNAUTHENTICATED")));
}

#[test]
fn text_before_the_last_tool_call_is_not_part_of_the_answer() {
    let tool = "{\"type\":\"tool_use\",\"tool_name\":\"t\"}\n";
    let end = read(&format!("{INIT}{HELLO}{tool}{HELLO}{DONE}")).0.conclude(Ending::Code(0), None, "");
    assert_eq!((end.success, end.answer.as_str()), (true, "Hello"));
}

#[test]
fn signal_number_is_not_read_as_exit_code() {
    // 173, which is 128 plus 45, is the exit code for an exhausted quota. A signal must not be taken for it.
    let end = read(INIT).0.conclude(Ending::Signal(45), None, "");
    assert_eq!(kind(&end), "upstream_error");
    assert!(end.error.is_some_and(|(_, words)| words.contains("signal 45")));
}

#[test]
fn final_error_message_overrides_messages_of_failed_attempts() {
    let retried = "Attempt 1 failed: RESOURCE_EXHAUSTED\nReached max session turns";
    let result =
        "{\"type\":\"result\",\"status\":\"error\",\"error\":{\"message\":\"Reached max session turns\"}}\n";
    let end = read(&format!("{INIT}{result}")).0.conclude(Ending::Code(53), None, retried);
    assert_eq!(kind(&end), "turn_limit");
}

/// Parses a text twice: whole, and cut into pieces.
fn both(
    format: OutputFormat,
    text: &str,
    cuts: Vec<usize>,
    code: i32,
    err: &str,
) -> [(Vec<AgentEvent>, Conclusion); 2] {
    let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
    cuts.sort_unstable();
    [Vec::new(), cuts].map(|cuts| {
        let (mut run, mut events) = (in_format(format), Vec::new());
        let mut from = 0;
        for cut in cuts.into_iter().chain([text.len()]) {
            run.feed(&text.as_bytes()[from..cut], |event| events.push(event));
            from = cut;
        }
        run.finish(|event| events.push(event));
        (events, run.conclude(Ending::Code(code), None, err))
    })
}

fn formats() -> impl proptest::strategy::Strategy<Value = OutputFormat> {
    proptest::sample::select(vec![OutputFormat::StreamJson, OutputFormat::Json, OutputFormat::Text])
}

proptest::proptest! {
    #[test]
    fn result_does_not_depend_on_how_output_is_split(
        format in formats(),
        cuts in proptest::collection::vec(0usize..400, 0..6),
        noise in "([ -~\\n]|\\{\\n|\\}\\n){0,60}",
        code in 0..3i32,
    ) {
        let text = format!("{INIT}{noise}\n{HELLO}{DONE}{noise}{OBJECT}");
        let [whole, pieces] = both(format, &text, cuts, code, &noise);
        assert_eq!(whole, pieces);
    }

    /// The parser must not report a success unless the output contains a success result.
    #[test]
    fn arbitrary_output_without_a_success_result_is_no_success(noise in "([ -~\\n]|\\{\\n|\\}\\n|\"status\":\"success\"){0,80}") {
        for format in [OutputFormat::StreamJson, OutputFormat::Json] {
            let end = conclude(format, &noise, 0, &format!("{noise}\n{OBJECT}"));
            assert!(!end.success || noise.contains("\"type\":\"result\"") || noise.contains("\"response\""), "{end:?}");
            assert_eq!(end.success, end.error.is_none());
        }
    }
}
