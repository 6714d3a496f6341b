//! An Anthropic Messages API whose answers a test defines in advance.

use serde_json::{Value, json};

use super::script::{Script, event, streamed};
use super::{Part, Turn};
use crate::support::http_server::{Request, Response, Server, Step};

/// The token usage that every answer reports: uncached input, cached input, output.
const USED: [u64; 3] = [100, 20, 10];

/// A running Anthropic API with scripted answers.
pub(crate) struct Anthropic {
    pub(crate) server: Server,
}

impl Anthropic {
    pub(crate) fn new(turns: Vec<Turn>) -> Self {
        let script = Script::new(turns);
        Self { server: Server::plain(move |request| answer(&script, request)) }
    }

    /// Returns the requests that got one of the scripted turns as their answer.
    pub(crate) fn questions(&self) -> Vec<Request> {
        self.server.requests().into_iter().filter(is_question).collect()
    }

    /// Returns the results of the agent's tools, in the order in which the model received them.
    pub(crate) fn tool_results(&self) -> Vec<String> {
        let Some(last) = self.questions().pop() else { return Vec::new() };
        let body = last.json();
        let messages = body["messages"].as_array().cloned().unwrap_or_default();
        let blocks = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
        let results = blocks.filter(|block| block["type"] == "tool_result");
        results.map(|block| block["content"].to_string()).collect()
    }
}

/// Returns a turn in which the model calls a shell with this command.
pub(crate) fn shell(command: &str) -> Turn {
    Turn::Says(vec![Part::Call("Bash", json!({"command": command, "description": "asked for by the test"}))])
}

/// Returns a turn in which the model writes a file.
pub(crate) fn write(path: &str, content: &str) -> Turn {
    Turn::Says(vec![Part::Call("Write", json!({"file_path": path, "content": content}))])
}

/// Returns a turn in which the API refuses the request, in its own error format.
pub(crate) fn fails(status: u16, kind: &str, message: &str) -> Turn {
    Turn::Fails(status, json!({"type": "error", "error": {"type": kind, "message": message}}))
}

/// Returns true if the request belongs to the conversation. Side requests of the CLI have no tools.
fn is_question(request: &Request) -> bool {
    request.path() == "/v1/messages" && request.json()["tools"].as_array().is_some_and(|all| !all.is_empty())
}

fn answer(script: &Script, request: &Request) -> Response {
    match (request.method.as_str(), request.path()) {
        ("POST", "/v1/messages") => {}
        ("POST", "/v1/messages/count_tokens") => {
            return Response::json(200, &json!({"input_tokens": USED[0]}));
        }
        _ => return Response::not_found(),
    }
    let turn = if is_question(request) { script.next() } else { Some(Turn::text("fine")) };
    let Some(turn) = turn else {
        let over = json!({"type": "invalid_request_error", "message": "the script of this test is over"});
        return Response::json(400, &json!({"type": "error", "error": over}));
    };
    if request.json()["stream"] != true {
        return whole(&turn);
    }
    let usage = json!({
        "input_tokens": USED[0], "cache_read_input_tokens": USED[1], "cache_creation_input_tokens": 0, "output_tokens": 1,
    });
    let message = json!({
        "id": "msg_test", "type": "message", "role": "assistant", "model": "test", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": usage,
    });
    let reason = stop_reason(&turn);
    let end = vec![
        event(
            "message_delta",
            json!({"delta": {"stop_reason": reason, "stop_sequence": null}, "usage": {"output_tokens": USED[2]}}),
        ),
        event("message_stop", json!({})),
    ];
    streamed(&turn, event("message_start", json!({ "message": message })), block, end)
}

fn stop_reason(turn: &Turn) -> &'static str {
    match turn {
        Turn::Says(parts) if parts.iter().any(|part| matches!(part, Part::Call(..))) => "tool_use",
        _ => "end_turn",
    }
}

/// Returns the events of one content block.
fn block(at: usize, part: &Part) -> Vec<Step> {
    let (begin, delta) = match part {
        Part::Text(text) => {
            (json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": text}))
        }
        Part::Call(name, input) => (
            json!({"type": "tool_use", "id": call_id(at), "name": name, "input": {}}),
            json!({"type": "input_json_delta", "partial_json": input.to_string()}),
        ),
    };
    vec![
        event("content_block_start", json!({"index": at, "content_block": begin})),
        event("content_block_delta", json!({"index": at, "delta": delta})),
        event("content_block_stop", json!({ "index": at })),
    ]
}

/// Returns a unique id for a tool call.
fn call_id(at: usize) -> String {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("toolu_{at}_{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the answer to a request that is not streamed. The CLI sends such a request after a stream broke off. For a
/// turn that breaks off or falls silent, the API breaks this answer off, too.
fn whole(turn: &Turn) -> Response {
    let parts = match turn {
        Turn::Fails(status, body) => return Response::json(*status, body),
        Turn::Cut(_) | Turn::Silent(_) => return Response::steps("application/json", vec![Step::Cut]),
        Turn::Says(parts) | Turn::Slow(_, parts) => parts,
    };
    let content: Vec<Value> = parts
        .iter()
        .enumerate()
        .map(|(at, part)| match part {
            Part::Text(text) => json!({"type": "text", "text": text}),
            Part::Call(name, input) => {
                json!({"type": "tool_use", "id": call_id(at), "name": name, "input": input})
            }
        })
        .collect();
    let usage =
        json!({"input_tokens": USED[0], "cache_read_input_tokens": USED[1], "output_tokens": USED[2]});
    Response::json(
        200,
        &json!({
            "id": "msg_test", "type": "message", "role": "assistant", "model": "test", "content": content,
            "stop_reason": stop_reason(turn), "stop_sequence": null, "usage": usage,
        }),
    )
}
