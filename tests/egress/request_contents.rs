// slow
//! The gateway must refuse requests for tools that the API itself would execute, and must remove the API key from every
//! response.

use std::time::Duration;

use serde_json::{Value, json};

use super::run_options::{Options, probe};
use crate::support::http_server::{Request, Response, Server, Step};
use crate::support::{TestEnvironment, in_every_environment};

const KEY: &str = "AIzaOnlyForTheApi+27182818/84590";

/// Sends these bodies from inside a run. Returns the responses.
fn asked(
    environment: &TestEnvironment,
    server: &Server,
    api: &(&str, &str, &str, &str),
    bodies: &[String],
) -> Vec<String> {
    let &(preset, variable, key_variable, path) = api;
    let file = environment.temporary_directory().join("bodies.json");
    std::fs::write(&file, serde_json::to_string(bodies).unwrap()).unwrap();
    let script = probe("gateway_contents.py");
    let options = Options::default()
        .and(&["--policy", "strict", "--preset", preset, "--json", "--read", file.to_str().unwrap()])
        .probing();
    let words = ["python3", script.to_str().unwrap(), variable, path, file.to_str().unwrap()];
    let mut command = environment.guard_run(&options.words(), &words);
    command.env(key_variable, KEY).env(variable, server.url(""));
    let outcome = environment.run_to_end(command, b"");
    let answers: Vec<String> = serde_json::from_str(&outcome.printed())
        .unwrap_or_else(|_| panic!("{:#} {}", outcome.result, outcome.error));
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let text = |hex: &String| {
        let bytes: Vec<u8> = hex.as_bytes().chunks(2).map(byte).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    answers.iter().map(text).collect()
}

const GEMINI: (&str, &str, &str, &str) =
    ("gemini", "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", "/v1beta/models/m:generateContent");
const ANTHROPIC: (&str, &str, &str, &str) =
    ("anthropic", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "/v1/messages");
const OPENAI: (&str, &str, &str, &str) = ("openai", "OPENAI_BASE_URL", "OPENAI_API_KEY", "/responses");

/// Returns tool lists that the gateway must accept (tools of the agent, and searches) and tool lists that it must
/// refuse.
fn tools(preset: &str) -> (Vec<Value>, Vec<Value>) {
    match preset {
        "gemini" => (
            vec![
                json!([{"functionDeclarations": [{"name": "urlContext", "parameters": {"type": "OBJECT"}}]}]),
                json!([{"function_declarations": []}, {"googleSearch": {}}]),
                json!(null),
            ],
            vec![
                json!([{"urlContext": {}}]),
                json!([{"functionDeclarations": [], "codeExecution": {}}]),
                json!([{"googleMaps": {}}]),
                json!([{"FileSearch": {"x": 1}}]),
                json!({"a_tool_of_tomorrow": {}}),
                json!(["codeExecution"]),
            ],
        ),
        "anthropic" => (
            vec![
                json!([{"name": "web_fetch", "description": "client", "input_schema": {"type": "object"}}]),
                json!([{"type": "custom", "name": "x"}, {"type": "bash_20250124", "name": "bash"}]),
                json!([{"type": "text_editor_20250728", "name": "e"}, {"type": "web_search_20250305", "name": "s"}]),
            ],
            vec![
                json!([{"type": "web_fetch_20250910", "name": "web_fetch"}]),
                json!([{"name": "x"}, {"name": "f", "type": "web_fetch_20260209"}]),
                json!([{"type": "code_execution_20250825", "name": "c"}]),
                json!([{"type": "mcp_toolset", "mcp_server_name": "x"}]),
                json!([{"Type": "web_fetch_20250910", "name": "web_fetch"}]),
                json!([{"type": ["web_fetch_20250910"]}]),
                json!([[{"type": "web_fetch_20250910", "name": "web_fetch"}]]),
            ],
        ),
        _ => (
            vec![
                json!([{"type": "function", "name": "mcp"}, {"type": "custom", "name": "apply_patch"}]),
                json!([{"type": "local_shell"}, {"type": "web_search"}]),
            ],
            vec![
                json!([{"type": "mcp", "server_label": "x"}]),
                json!([{"type": "file_search"}]),
                json!([{"type": "code_interpreter", "container": {"type": "auto"}}]),
                json!([{"name": "no type"}]),
                json!([{"type": "a_tool_of_tomorrow"}]),
            ],
        ),
    }
}

#[test]
fn gateway_refuses_tools_that_the_api_runs() {
    let all = std::cell::RefCell::new(Vec::new());
    in_every_environment(|environment| {
        for api in [&GEMINI, &ANTHROPIC, &OPENAI] {
            let server = Server::plain(|_| Response::json(200, &json!({})));
            let (fine, refused) = tools(api.0);
            let body = |tools: &Value| json!({"model": "m", "messages": [], "tools": tools}).to_string();
            let mut bodies: Vec<String> = fine.iter().chain(&refused).map(body).collect();
            // The body has the key `tools` twice, or under a spelling that some servers treat as the same key.
            let bad = &refused[0];
            bodies.push(format!("{{\"model\":\"m\",\"tools\":{},\"tools\":{bad}}}", fine[0]));
            bodies.push(format!("{{\"model\":\"m\",\"Tools\":{bad}}}"));
            bodies.push(format!("{{\"model\":\"m\",\"tool\\u017f\":{bad}}}"));
            let answers = asked(environment, &server, api, &bodies);
            let mut failures = Vec::new();
            for (index, (body, answer)) in bodies.iter().zip(&answers).enumerate() {
                let passes = index < fine.len();
                let status = if passes { "HTTP/1.1 200" } else { "HTTP/1.1 403" };
                let explains = passes || answer.contains("guard: Permission denied");
                if !answer.starts_with(status) || !explains {
                    failures.push(format!("{body}: {answer}"));
                }
            }
            if !failures.is_empty() || server.requests().len() != fine.len() {
                all.borrow_mut().push(format!("{} {}\n{}", environment.name(), api.0, failures.join("\n")));
            }
        }
    });
    let all = all.into_inner();
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// OpenAI's API also takes tools from items of the input and from namespaces. The gateway must check them like those of
/// the top-level list.
#[test]
fn gateway_checks_tools_in_the_input_too() {
    let (fine, refused) = tools("openai");
    let ways = |tools: &Value| {
        let namespace = json!([{"type": "namespace", "name": "n", "tools": tools}]);
        let item = |kind: &str, tools: &Value| json!([{"type": kind, "role": "developer", "tools": tools}]);
        [
            json!({"model": "m", "input": item("additional_tools", tools)}),
            json!({"model": "m", "input": item("additional_tools", &namespace), "tools": []}),
            json!({"model": "m", "input": item("tool_search_output", tools)}),
            json!({"model": "m", "Input": [item("of_tomorrow", tools)]}),
            json!({"model": "m", "input": "question", "tools": namespace}),
        ]
    };
    let passing: Vec<String> = fine.iter().flat_map(ways).map(|body| body.to_string()).collect();
    let forbidden: Vec<String> = refused.iter().flat_map(ways).map(|body| body.to_string()).collect();
    // The name `tools` in a function's parameters or in a result does not define tools, so the gateway must accept
    // it.
    let schema =
        json!({"type": "object", "properties": {"tools": {"type": "array"}, "input": [{"tools": [1]}]}});
    let function = json!([{"type": "function", "name": "f", "parameters": schema}]);
    let result =
        json!([{"type": "message", "content": [{"type": "input_text", "tools": [{"type": "mcp"}]}]}]);
    let named = [json!({"model": "m", "tools": function}), json!({"model": "m", "input": result})];
    in_every_environment(|environment| {
        let server = Server::plain(|_| Response::json(200, &json!({})));
        let passing: Vec<String> =
            passing.iter().cloned().chain(named.iter().map(Value::to_string)).collect();
        let bodies = [passing.clone(), forbidden.clone()].concat();
        let answers = asked(environment, &server, &OPENAI, &bodies);
        let mut failures = Vec::new();
        for (index, (body, answer)) in bodies.iter().zip(&answers).enumerate() {
            let status = if index < passing.len() { "HTTP/1.1 200" } else { "HTTP/1.1 403" };
            if !answer.starts_with(status) {
                failures.push(format!("{body}: {answer}"));
            }
        }
        assert!(failures.is_empty(), "{}\n{}", environment.name(), failures.join("\n"));
        assert_eq!(server.requests().len(), passing.len(), "{}", environment.name());
    });
}

fn base64(bytes: &[u8]) -> String {
    guard::run::transcript::base64(bytes)
}

/// Returns encodings of the key that a run could easily decode: each as the API sends it, and the part that depends on
/// the key alone.
fn forms() -> Vec<(String, String)> {
    let escaped = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => (byte as char).to_string(),
        false => format!("%{byte:02X}"),
    };
    let percent: String = KEY.bytes().map(escaped).collect();
    let hex: String = KEY.bytes().map(|byte| format!("{byte:02x}")).collect();
    let lower = percent.replace("%2B", "%2b").replace("%2F", "%2f");
    let whole = [KEY.to_string(), percent, lower, hex].map(|form| (form.clone(), form));
    // Base64 encodes groups of three bytes, so the encoding depends on the key's offset in a group. All three offsets
    // are tested.
    let encoded = ["", "x", "xy"].map(|before| base64(format!("{before}{KEY}").as_bytes()));
    let url_safe = encoded.clone().map(|text| text.replace('+', "-").replace('/', "_"));
    let middle = |text: String| (text.clone(), text[4..text.len() - 4].to_string());
    whole.into_iter().chain(encoded.into_iter().chain(url_safe).map(middle)).collect()
}

/// An API that sends the key back in every encoding, in a header and in the body, cut anywhere.
fn repeating(request: &Request) -> Response {
    let key = request.header("x-goog-api-key").unwrap_or_default().to_string();
    assert_eq!(key, KEY, "the API gets the key");
    let sent: Vec<String> = forms().into_iter().map(|(sent, _)| sent).collect();
    let text = format!("before {} after", sent.join(" and "));
    let pieces: usize = request.json()["pieces"].as_u64().unwrap_or(0) as usize;
    let answer = if pieces == 0 {
        Response::text(text)
    } else {
        let steps = text
            .as_bytes()
            .chunks(pieces)
            .flat_map(|piece| [Step::Bytes(piece.to_vec()), Step::Wait(Duration::from_micros(300))]);
        Response::steps("text/event-stream", steps.collect())
    };
    answer.with("x-request", format!("for {key}!")).with("x-encoded", base64(key.as_bytes()))
}

/// Returns the body of a response, with its chunks joined.
fn body_of(answer: &str) -> String {
    let (head, mut rest) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return rest.to_string();
    }
    let mut body = String::new();
    while let Some((length, behind)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        body.push_str(&behind[..length]);
        rest = behind[length..].strip_prefix("\r\n").unwrap_or_default();
    }
    body
}

#[test]
fn key_in_an_answer_is_removed() {
    let failures = std::cell::RefCell::new(Vec::new());
    in_every_environment(|environment| {
        let server = Server::plain(repeating);
        let bodies: Vec<String> =
            [0, 1, 7, 31, 64].map(|pieces| json!({ "pieces": pieces }).to_string()).to_vec();
        let answers = asked(environment, &server, &GEMINI, &bodies);
        for (question, answer) in bodies.iter().zip(&answers) {
            let body = body_of(answer);
            let has = |form: &String| body.contains(form.as_str()) || answer.contains(form.as_str());
            let found: Vec<String> = forms().into_iter().map(|(_, part)| part).filter(has).collect();
            let is_whole = body.starts_with("before ") && body.ends_with(" after");
            let is_whole = is_whole && body.matches(" and ").count() + 1 == forms().len();
            if !found.is_empty() || !is_whole || !answer.contains("x-request: for ") {
                failures
                    .borrow_mut()
                    .push(format!("{} {question}: {found:?} in {answer}", environment.name()));
            }
        }
    });
    let failures = failures.into_inner();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
