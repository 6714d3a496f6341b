//! APIs of model providers whose answers a test defines in advance. This file implements the Gemini API.

pub(crate) mod anthropic;
pub(crate) mod openai;
mod script;

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::http_server::{Authority, Request, Response, Server, Step};

/// The token usage that every answer reports: input, output, thoughts, and the cached part of the input.
pub(crate) const USED: [u64; 4] = [100, 10, 5, 20];

/// The page that a web search of [`Api::answering`] finds.
pub(crate) const SEARCHED_PAGE: &str = "https://search.test/algorithms";

/// One answer of the model to one streaming request.
#[derive(Debug, Clone)]
pub(crate) enum Turn {
    /// The model answers with these parts, one event for each.
    Says(Vec<Part>),
    /// The API refuses the request with this status and body.
    Fails(u16, Value),
    /// The model sends these parts, but the connection breaks off before the last event.
    Cut(Vec<Part>),
    /// The model sends these parts, and then nothing more.
    Silent(Vec<Part>),
    /// The model answers with these parts, with a pause before every event.
    Slow(Duration, Vec<Part>),
}

/// A part of an answer.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    Text(String),
    /// The model calls a tool of the agent.
    Call(&'static str, Value),
}

impl Turn {
    pub(crate) fn text(text: &str) -> Self {
        Self::Says(vec![Part::Text(text.to_string())])
    }

    /// Returns a turn in which the model calls a shell with this command. The CLI itself refuses commands with `$(…)`,
    /// backticks or `<(…)`.
    pub(crate) fn shell(command: &str) -> Self {
        let arguments = json!({"command": command, "description": "asked for by the test"});
        Self::Says(vec![Part::Call("run_shell_command", arguments)])
    }

    /// Returns a turn in which the model writes a file.
    pub(crate) fn write(path: &str, content: &str) -> Self {
        Self::Says(vec![Part::Call("write_file", json!({"file_path": path, "content": content}))])
    }

    /// Replaces `<hash>` in the turn with the last commit hash in the request, as if the model had read it.
    fn told(self, request: &Request) -> Self {
        let Self::Says(parts) = self else { return self };
        let put = |part: Part| match part {
            Part::Text(text) if text.contains("<hash>") => {
                let body = request.json().to_string();
                let words = body.split(|c: char| !c.is_ascii_alphanumeric());
                let is_hash =
                    |word: &&str| word.len() == 40 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
                // In JSON text, a line break before the hash is `\n`, and its `n` would be taken for a part of the
                // hash.
                let mut plain =
                    words.map(|word| word.strip_prefix('n').filter(|rest| rest.len() == 40).unwrap_or(word));
                Part::Text(text.replace("<hash>", plain.rfind(is_hash).unwrap_or("none")))
            }
            part => part,
        };
        Self::Says(parts.into_iter().map(put).collect())
    }

    /// Returns a turn in which the API reports an exhausted quota, in its own error format.
    pub(crate) fn quota() -> Self {
        let error = json!({"code": 429, "message": "You exceeded your current quota.", "status": "RESOURCE_EXHAUSTED"});
        Self::Fails(429, json!({ "error": error }))
    }
}

/// A running Gemini API with scripted answers.
pub(crate) struct Api {
    pub(crate) server: Server,
}

impl Api {
    pub(crate) fn plain(turns: Vec<Turn>) -> Self {
        Self { server: Server::plain(routes(turns)) }
    }

    /// Starts an API that chooses every answer by the request, for clients that send several requests at once.
    pub(crate) fn answering(answer: impl Fn(&Request) -> Turn + Send + Sync + 'static) -> Self {
        let routes = move |request: &Request| match request.path().rsplit_once(':') {
            Some((_, "streamGenerateContent")) => {
                streamed(&answer(request), request.query().contains("alt=sse"))
            }
            // The CLI makes a web search with a separate request. The response names the page that the search found.
            Some((_, "generateContent")) => {
                let mut found = document(&[Part::Text("{}".into())], true);
                let page = json!({"web": {"uri": SEARCHED_PAGE, "title": "a page"}});
                found["candidates"][0]["groundingMetadata"] = json!({ "groundingChunks": [page] });
                Response::json(200, &found)
            }
            Some((_, "countTokens")) => Response::json(200, &json!({"totalTokens": USED[0]})),
            _ => failed(404, "there is nothing here"),
        };
        Self { server: Server::plain(routes) }
    }

    pub(crate) fn tls(authority: &Authority, names: &[&str], turns: Vec<Turn>) -> Self {
        Self { server: Server::tls(authority, names, routes(turns)) }
    }

    /// Returns the requests that got one of the scripted turns as their answer.
    pub(crate) fn questions(&self) -> Vec<Request> {
        let is_question = |request: &Request| request.path().ends_with(":streamGenerateContent");
        self.server.requests().into_iter().filter(is_question).collect()
    }

    /// Returns the results of the agent's tools, in the order in which the model received them: names and responses.
    pub(crate) fn tool_results(&self) -> Vec<(String, Value)> {
        let Some(last) = self.questions().pop() else { return Vec::new() };
        let body = last.json();
        let contents = body["contents"].as_array().cloned().unwrap_or_default();
        let parts = contents.iter().filter_map(|content| content["parts"].as_array()).flatten();
        let results = parts.filter_map(|part| part.get("functionResponse"));
        results
            .map(|result| {
                (result["name"].as_str().unwrap_or_default().to_string(), result["response"].clone())
            })
            .collect()
    }
}

fn routes(turns: Vec<Turn>) -> impl Fn(&Request) -> Response + Send + Sync + 'static {
    let turns = Mutex::new(VecDeque::from(turns));
    routes_by(move |_| turns.lock().unwrap().pop_front())
}

fn routes_by(
    next: impl Fn(&Request) -> Option<Turn> + Send + Sync + 'static,
) -> impl Fn(&Request) -> Response + Send + Sync + 'static {
    move |request| {
        let method = request.path().rsplit_once(':').map_or("", |(_, method)| method);
        let is_of_api =
            ["/v1beta/models/", "/v1/models/"].iter().any(|start| request.path().starts_with(start));
        match (request.method.as_str(), method) {
            ("POST", "streamGenerateContent") if is_of_api => match next(request) {
                Some(turn) => streamed(&turn.told(request), request.query().contains("alt=sse")),
                None => failed(400, "the script of this test is over"),
            },
            // Other requests of an agent must not use up the scripted turns. In one of them the CLI asks how hard the
            // task is, to choose a model.
            ("POST", "generateContent") if is_of_api => {
                let easy = json!({"complexity_reasoning": "easy", "complexity_score": 1, "reasoning": "easy", "model_choice": "flash"});
                Response::json(200, &document(&[Part::Text(easy.to_string())], true))
            }
            ("POST", "countTokens") if is_of_api => Response::json(200, &json!({"totalTokens": USED[0]})),
            _ => failed(404, "there is nothing here"),
        }
    }
}

fn failed(status: u16, text: &str) -> Response {
    Response::json(
        status,
        &json!({"error": {"code": status, "message": text, "status": "FAILED_PRECONDITION"}}),
    )
}

/// Returns one JSON document of an answer.
fn document(parts: &[Part], is_last: bool) -> Value {
    let part = |part: &Part| match part {
        Part::Text(text) => json!({ "text": text }),
        Part::Call(name, arguments) => json!({"functionCall": {"name": name, "args": arguments}}),
    };
    let parts: Vec<Value> = parts.iter().map(part).collect();
    let mut candidate = json!({"content": {"role": "model", "parts": parts}, "index": 0});
    if is_last {
        candidate["finishReason"] = json!("STOP");
    }
    let [input, output, thoughts, cached] = USED;
    // The token counts grow during a streamed answer.
    let output = if is_last { output } else { 1 };
    json!({
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": input,
            "candidatesTokenCount": output,
            "thoughtsTokenCount": thoughts,
            "cachedContentTokenCount": cached,
            "totalTokenCount": input + output + thoughts,
        },
        "modelVersion": "gemini-2.5-flash",
        "responseId": "test",
    })
}

fn streamed(turn: &Turn, is_event_stream: bool) -> Response {
    let (parts, pause) = match turn {
        Turn::Fails(status, body) => return Response::json(*status, body),
        Turn::Says(parts) | Turn::Cut(parts) | Turn::Silent(parts) => (parts, None),
        Turn::Slow(pause, parts) => (parts, Some(*pause)),
    };
    let is_whole = matches!(turn, Turn::Says(_) | Turn::Slow(..));
    let documents: Vec<Value> = parts
        .iter()
        .enumerate()
        .map(|(at, part)| document(std::slice::from_ref(part), is_whole && at + 1 == parts.len()))
        .collect();
    if !is_event_stream {
        return Response::json(200, &Value::Array(documents));
    }
    let mut steps = Vec::new();
    for document in documents {
        steps.extend(pause.map(Step::Wait));
        steps.push(Step::Bytes(format!("data: {document}\r\n\r\n").into_bytes()));
    }
    match turn {
        Turn::Cut(_) => {
            steps.push(Step::Bytes(b"data: {\"candidates\": [{\"con".to_vec()));
            steps.push(Step::Cut);
        }
        Turn::Silent(_) => steps.push(Step::Silence),
        _ => {}
    }
    Response::steps("text/event-stream", steps)
}
