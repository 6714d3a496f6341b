//! Tests how guard counts the tokens that real APIs report.

use guard::run::egress::token_usage::{Places, Scanner, Tokens};
use proptest::prelude::*;

fn places(input: &[&str], output: &[&str], cached: &[&str]) -> Places {
    let all = |paths: &[&str]| paths.iter().map(|path| (*path).to_string()).collect();
    Places { input: all(input), output: all(output), cached: all(cached), sources: Vec::new() }
}

fn gemini() -> Places {
    places(
        &["usageMetadata.promptTokenCount", "usageMetadata.toolUsePromptTokenCount"],
        &["usageMetadata.candidatesTokenCount", "usageMetadata.thoughtsTokenCount"],
        &["usageMetadata.cachedContentTokenCount"],
    )
}

fn openai() -> Places {
    places(
        &["usage.prompt_tokens|response.usage.input_tokens"],
        &["usage.completion_tokens|response.usage.output_tokens"],
        &["usage.prompt_tokens_details.cached_tokens|response.usage.input_tokens_details.cached_tokens"],
    )
}

fn anthropic() -> Places {
    places(
        &[
            "message.usage.input_tokens|usage.input_tokens",
            "message.usage.cache_creation_input_tokens|usage.cache_creation_input_tokens",
            "message.usage.cache_read_input_tokens|usage.cache_read_input_tokens",
        ],
        &["message.usage.output_tokens|usage.output_tokens"],
        &["message.usage.cache_read_input_tokens|usage.cache_read_input_tokens"],
    )
}

fn scan(places: &Places, is_event_stream: bool, body: &str) -> (Tokens, bool) {
    let mut scanner = Scanner::new(places, is_event_stream);
    scanner.feed(body.as_bytes());
    scanner.finish()
}

fn tokens(input: u64, output: u64, cached: u64) -> Tokens {
    Tokens { input, output, cached }
}

const GEMINI_EVENTS: &str = "data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"Hel\"}],\"role\": \"model\"},\"index\": 0}],\"usageMetadata\": {\"promptTokenCount\": 120,\"candidatesTokenCount\": 2,\"totalTokenCount\": 162,\"cachedContentTokenCount\": 64,\"promptTokensDetails\": [{\"modality\": \"TEXT\",\"tokenCount\": 120}],\"thoughtsTokenCount\": 40},\"modelVersion\": \"gemini-2.5-flash\"}\r\n\r\ndata: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"lo\"}],\"role\": \"model\"},\"finishReason\": \"STOP\",\"index\": 0}],\"usageMetadata\": {\"promptTokenCount\": 120,\"candidatesTokenCount\": 7,\"totalTokenCount\": 170,\"cachedContentTokenCount\": 64,\"toolUsePromptTokenCount\": 3,\"thoughtsTokenCount\": 40},\"modelVersion\": \"gemini-2.5-flash\"}\r\n\r\n";

const CHAT_EVENTS: &str = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}],\"usage\":null}\n\ndata: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":5,\"total_tokens\":16,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";

const RESPONSES_EVENTS: &str = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\"}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"usage\":{\"input_tokens\":37,\"input_tokens_details\":{\"cached_tokens\":8},\"output_tokens\":11,\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":48}}}\n\n";

const MESSAGES_EVENTS: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":25,\"cache_creation_input_tokens\":100,\"cache_read_input_tokens\":1000,\"output_tokens\":1}}}\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"{\\\"usage\\\":{\\\"output_tokens\\\":999999}}\"}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

#[test]
fn tokens_are_counted_in_event_streams_of_each_api() {
    assert_eq!(scan(&gemini(), true, GEMINI_EVENTS), (tokens(123, 47, 64), true));
    assert_eq!(scan(&openai(), true, CHAT_EVENTS), (tokens(11, 5, 4), true));
    assert_eq!(scan(&openai(), true, RESPONSES_EVENTS), (tokens(37, 11, 8), true));
    // The answer in this stream talks about token counts. guard must treat that as text.
    assert_eq!(scan(&anthropic(), true, MESSAGES_EVENTS), (tokens(1125, 15, 1000), true));
}

/// guard must report the pages that the API's own search found, and must not take text of the model for such a page.
#[test]
fn pages_found_by_the_search_of_the_api_are_reported() {
    let mut places = gemini();
    places.sources = vec!["candidates.groundingMetadata.groundingChunks.web.uri".to_string()];
    let body = r#"{"candidates": [{"content": {"parts": [{"text": "\"uri\": \"https://said.org\""}]}, "groundingMetadata": {
        "webSearchQueries": ["x"], "groundingChunks": [{"web": {"uri": "https://a.org/1", "title": "a"}}, {"web": {"uri": "https://b.org"}},
        {"web": {"uri": "https://a.org/1"}}, {"web": [[{"uri": "https://nested.org"}]]}, {"maps": {"uri": "https://maps.org"}}]}}],
        "usageMetadata": {"promptTokenCount": 4, "candidatesTokenCount": 2}}"#;
    let expected = (tokens(4, 2, 0), true, vec!["https://a.org/1".to_string(), "https://b.org".to_string()]);
    let mut whole = Scanner::new(&places, false);
    whole.feed(body.as_bytes());
    assert_eq!(whole.finish_with_sources(), expected);
    let mut stream = Scanner::new(&places, true);
    stream.feed(format!("data: {}\n\n", body.replace('\n', " ")).as_bytes());
    assert_eq!(stream.finish_with_sources(), expected);
}

#[test]
fn tokens_are_counted_in_whole_bodies_of_each_api() {
    let one = "{\n \"candidates\": [],\n \"usageMetadata\": {\"promptTokenCount\": 4, \"candidatesTokenCount\": 2}\n}\n";
    assert_eq!(scan(&gemini(), false, one), (tokens(4, 2, 0), true));
    let list = "[{\"usageMetadata\": {\"promptTokenCount\": 4, \"candidatesTokenCount\": 2}}\n,\r\n{\"usageMetadata\": {\"promptTokenCount\": 4, \"candidatesTokenCount\": 9}}]";
    assert_eq!(scan(&gemini(), false, list), (tokens(4, 9, 0), true));
    let chat = r#"{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":9,"completion_tokens":12,"total_tokens":21}}"#;
    assert_eq!(scan(&openai(), false, chat), (tokens(9, 12, 0), true));
    let message =
        r#"{"type":"message","content":[{"text":"x"}],"usage":{"input_tokens":10,"output_tokens":25}}"#;
    assert_eq!(scan(&anthropic(), false, message), (tokens(10, 25, 0), true));
    assert_eq!(scan(&openai(), false, ""), (tokens(0, 0, 0), true));
}

#[test]
fn token_counts_are_known_during_the_answer() {
    let mut scanner = Scanner::new(&gemini(), true);
    let second = GEMINI_EVENTS.rfind("data:").unwrap();
    scanner.feed(&GEMINI_EVENTS.as_bytes()[..second]);
    assert_eq!(scanner.tokens(), tokens(120, 42, 64));
    scanner.feed(&GEMINI_EVENTS.as_bytes()[second..]);
    assert_eq!(scanner.tokens(), tokens(123, 47, 64));
}

#[test]
fn event_stream_line_endings_and_fields_are_understood() {
    let p = places(&["a.n"], &["b"], &[]);
    for stream in [
        "data: {\"a\":{\"n\":3}}\n\ndata: {\"b\":1}\n\n",
        "data:{\"a\":{\"n\":3}}\n\ndata:{\"b\":1}\n\n",
        "data:{\"a\":{\"n\":3}}\r\rdata:{\"b\":1}\r\r",
        "\u{feff}data:{\"a\":{\"n\":3}}\r\n\r\n: comment\r\nid\r\ndata:{\"b\":1}",
        "data: {\"a\":\ndata: {\"n\":\nevent: x\ndata: 3}}\n\ndata: {\ndata\ndata: \"b\":1}\n\n",
        // Careless servers send two events without an empty line between them.
        "data: {\"a\":{\"n\":3}}\ndata: {\"b\":1}\n\n",
        "data: {\"a\":{\"n\":3}, \"b\": 1}",
        "data: [{\"a\":{\"n\":3}}, {\"b\":\"1\"}]\n\n",
    ] {
        assert_eq!(scan(&p, true, stream), (tokens(3, 1, 0), true), "{stream:?}");
    }
}

#[test]
fn invalid_token_numbers_count_as_zero() {
    let p = places(&["n"], &["o|m"], &[]);
    for (body, expected) in [
        ("{\"n\":-1,\"o\":1.5}", tokens(0, 0, 0)),
        ("{\"n\":1e300,\"o\":123456789012345678901234567890}", tokens(0, 0, 0)),
        ("{\"n\":null,\"o\":true,\"m\":{\"n\":3}}", tokens(0, 0, 0)),
        ("{\"n\":[1,2],\"o\":{\"o\":5}}", tokens(0, 0, 0)),
        ("{\"n\":7,\"n\":5,\"o\":1,\"m\":2}", tokens(7, 2, 0)),
        ("[[{\"n\":7}]]", tokens(0, 0, 0)),
    ] {
        assert_eq!(scan(&p, false, body), (expected, true), "{body}");
    }
    let all = places(&["n", "m"], &[], &[]);
    let most = format!("{{\"n\":{0},\"m\":{0}}}", u64::MAX);
    assert_eq!(scan(&all, false, &most), (tokens(u64::MAX, 0, 0), true));
}

#[test]
fn unreadable_bodies_are_marked_and_earlier_counts_kept() {
    let p = places(&["n"], &["o"], &[]);
    // Counts before the invalid JSON must be included.
    assert_eq!(scan(&p, false, "{\"n\":7,\"o\":"), (tokens(7, 0, 0), false));
    assert_eq!(scan(&p, true, "data: {\"n\":7,,}\n\ndata: {\"o\":2}\n\n"), (tokens(7, 2, 0), false));
    assert!(scan(&p, true, "data: [DONE]\n\ndata: not JSON\n\n").1, "without a count it need not be JSON");
    for stream in [true, false] {
        let mut compressed = Scanner::new(&p, stream);
        compressed.feed(b"\x1f\x8b\x08\x00\xff\xfe\xfd");
        assert_eq!(compressed.finish(), (tokens(0, 0, 0), false));
    }
    // Deep nesting must not overflow the stack.
    let deep = format!("{{\"n\":1,\"x\":{}", "[".repeat(100_000));
    assert_eq!(scan(&p, false, &deep), (tokens(1, 0, 0), false));
    let deep = format!("{{\"n\":1,\"x\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(scan(&p, false, &deep), (tokens(1, 0, 0), true));
}

#[test]
fn long_event_lines_need_little_memory() {
    let p = places(&["n"], &[], &[]);
    let piece = vec![b' '; 1 << 20];
    for stream in [true, false] {
        let mut scanner = Scanner::new(&p, stream);
        scanner.feed(b"data: {\"n\":1}\n\n");
        scanner.feed(b"data: ");
        for _ in 0..17 {
            scanner.feed(&piece);
        }
        scanner.feed(b"{\"n\":5}\n\ndata: {\"n\":2}\n\n");
        // guard must read the events before and after the one that is too long.
        let expected = if stream { 2 } else { 0 };
        assert_eq!(scanner.finish(), (tokens(expected, 0, 0), false));
    }
    // One event consists of many lines.
    let mut scanner = Scanner::new(&p, true);
    for _ in 0..17 {
        scanner.feed(b"data: ");
        scanner.feed(&piece);
        scanner.feed(b"\n");
    }
    scanner.feed(b"data: {\"n\":5}\n\ndata: {\"n\":2}\n\n");
    assert_eq!(scanner.finish(), (tokens(2, 0, 0), false));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// The token counts must not depend on how the body is cut into pieces.
    #[test]
    fn token_counts_do_not_depend_on_chunks(
        parts in prop::collection::vec(prop_oneof![
            Just("\n".to_string()), Just("\r".to_string()), Just("\r\n".to_string()), Just("data:".to_string()),
            Just("\n\ndata: ".to_string()), Just(": x".to_string()), Just("\u{feff}".to_string()), Just("\u{e9}".to_string()),
            "\\{\"[ab]\":[0-9]{1,3}\\}", "\\{\"a\":\\{\"b\":[0-9]{1,3}", "[\\[\\]{},:\" ]{1,3}",
        ], 0..30),
        cuts in prop::collection::vec(0usize..10_000, 0..20),
        is_event_stream: bool,
    ) {
        let body = parts.concat();
        let p = places(&["a"], &["a.b|b"], &[]);
        let whole = scan(&p, is_event_stream, &body);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (body.len() + 1)).collect();
        cuts.push(body.len());
        cuts.sort_unstable();
        let mut scanner = Scanner::new(&p, is_event_stream);
        let mut from = 0;
        for cut in cuts {
            scanner.feed(&body.as_bytes()[from..cut]);
            from = cut;
        }
        prop_assert_eq!(scanner.finish(), whole);
    }
}
