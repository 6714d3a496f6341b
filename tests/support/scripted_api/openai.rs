//! An OpenAI Responses API whose answers a test defines in advance. It does not support WebSockets.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::script::{Script, event, streamed};
use super::{Part, Turn};
use crate::support::http_server::{Request, Response, Server, Step};

/// The token usage that every answer reports: input, the cached part of it, output.
const USED: [u64; 3] = [120, 20, 10];

/// A running OpenAI API with scripted answers.
pub(crate) struct OpenAi {
    pub(crate) server: Server,
}

impl OpenAi {
    pub(crate) fn new(turns: Vec<Turn>) -> Self {
        let script = Script::new(turns);
        Self { server: Server::plain(move |request| answer(request, || script.next())) }
    }

    /// Starts an API that chooses every answer by the request.
    pub(crate) fn answering(turn: impl Fn(&Request) -> Turn + Send + Sync + 'static) -> Self {
        Self { server: Server::plain(move |request| answer(request, || Some(turn(request)))) }
    }

    /// Returns the requests that got one of the scripted turns as their answer.
    pub(crate) fn questions(&self) -> Vec<Request> {
        self.server.requests().into_iter().filter(is_question).collect()
    }

    /// Returns the results of the agent's tools, in the order in which the model received them.
    pub(crate) fn tool_results(&self) -> Vec<String> {
        let Some(last) = self.questions().pop() else { return Vec::new() };
        let body = last.json();
        let items = body["input"].as_array().cloned().unwrap_or_default();
        let is_result = |item: &&Value| item["type"].as_str().is_some_and(|kind| kind.ends_with("_output"));
        items.iter().filter(is_result).map(|item| item["output"].to_string()).collect()
    }
}

/// Returns a turn in which the model runs a program that calls the agent's tools, as the newest models do.
fn program(text: &str) -> Turn {
    Turn::Says(vec![Part::Call("exec", json!(text))])
}

/// Returns a turn in which the model calls a shell with this command.
pub(crate) fn shell(command: &str) -> Turn {
    let command = json!(command);
    program(&format!("const r = await tools.exec_command({{cmd: {command}}}); text(JSON.stringify(r));"))
}

/// Returns a turn in which the model writes a file.
pub(crate) fn write(path: &str, content: &str) -> Turn {
    let lines: String = content.lines().map(|line| format!("+{line}\n")).collect();
    let patch = json!(format!("*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch\n"));
    program(&format!("text(JSON.stringify(await tools.apply_patch({patch})));"))
}

/// Returns a turn in which the API refuses the request, in its own error format.
pub(crate) fn fails(status: u16, kind: &str, code: &str, message: &str) -> Turn {
    Turn::Fails(status, json!({"error": {"message": message, "type": kind, "param": null, "code": code}}))
}

fn is_question(request: &Request) -> bool {
    request.method == "POST" && request.path() == "/responses"
}

fn answer(request: &Request, turn: impl FnOnce() -> Option<Turn>) -> Response {
    if !is_question(request) {
        // The CLI would ask for a WebSocket with a GET request, which this API does not support.
        return Response::not_found();
    }
    let Some(turn) = turn() else {
        let over = json!({"type": "invalid_request_error", "message": "the script of this test is over"});
        return Response::json(400, &json!({ "error": over }));
    };
    let response =
        |status: &str| json!({"id": "resp_test", "object": "response", "status": status, "output": []});
    let mut completed = response("completed");
    completed["usage"] = json!({
        "input_tokens": USED[0], "input_tokens_details": {"cached_tokens": USED[1]},
        "output_tokens": USED[2], "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": USED[0] + USED[2],
    });
    streamed(
        &turn,
        event("response.created", json!({"response": response("in_progress")})),
        item,
        vec![event("response.completed", json!({ "response": completed }))],
    )
}

/// Returns the events of one output item.
fn item(at: usize, part: &Part) -> Vec<Step> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let id = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut steps = Vec::new();
    let item = match part {
        Part::Text(text) => {
            let id = format!("msg_{id}");
            let empty = json!({"type": "message", "role": "assistant", "id": id, "content": []});
            steps.push(event("response.output_item.added", json!({"output_index": at, "item": empty})));
            let delta = json!({"output_index": at, "content_index": 0, "item_id": id, "delta": text});
            steps.push(event("response.output_text.delta", delta));
            let content = json!([{"type": "output_text", "text": text, "annotations": []}]);
            json!({"type": "message", "role": "assistant", "id": id, "content": content})
        }
        Part::Call(name, Value::String(input)) => json!({
            "type": "custom_tool_call", "id": format!("ctc_{id}"), "call_id": format!("call_{id}"), "name": name, "input": input,
        }),
        Part::Call(name, arguments) => json!({
            "type": "function_call", "id": format!("fc_{id}"), "call_id": format!("call_{id}"), "name": name,
            "arguments": arguments.to_string(),
        }),
    };
    steps.push(event("response.output_item.done", json!({"output_index": at, "item": item})));
    steps
}
