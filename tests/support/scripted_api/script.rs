//! Code that the scripted APIs of Anthropic and OpenAI share: the remaining turns, and how they are streamed.

use std::collections::VecDeque;
use std::sync::Mutex;

use serde_json::{Value, json};

use super::{Part, Turn};
use crate::support::http_server::{Response, Step};

/// The turns of a script that no request has used yet.
pub(crate) struct Script(Mutex<VecDeque<Turn>>);

impl Script {
    pub(crate) fn new(turns: Vec<Turn>) -> Self {
        Self(Mutex::new(turns.into()))
    }

    /// Returns the next turn. If the last turn is a failure, it is repeated, because the CLIs retry by themselves.
    pub(crate) fn next(&self) -> Option<Turn> {
        let mut turns = self.0.lock().unwrap();
        let is_failure = !matches!(turns.front(), Some(Turn::Says(_) | Turn::Slow(..)));
        if turns.len() == 1 && is_failure { turns.front().cloned() } else { turns.pop_front() }
    }
}

/// Returns one event of a stream, named after its type.
pub(crate) fn event(kind: &str, mut data: Value) -> Step {
    data["type"] = json!(kind);
    Step::Bytes(format!("event: {kind}\ndata: {data}\n\n").into_bytes())
}

/// Returns the response to a turn: `begin`, the events of each part and, if the turn is complete, `end`.
pub(crate) fn streamed(
    turn: &Turn,
    begin: Step,
    part: impl Fn(usize, &Part) -> Vec<Step>,
    end: Vec<Step>,
) -> Response {
    let (parts, pause) = match turn {
        Turn::Fails(status, body) => return Response::json(*status, body),
        Turn::Says(parts) | Turn::Cut(parts) | Turn::Silent(parts) => (parts, None),
        Turn::Slow(pause, parts) => (parts, Some(*pause)),
    };
    let mut steps = vec![begin];
    for (at, content) in parts.iter().enumerate() {
        steps.extend(pause.map(Step::Wait));
        steps.extend(part(at, content));
    }
    match turn {
        Turn::Cut(_) => steps.push(Step::Cut),
        Turn::Silent(_) => steps.push(Step::Silence),
        _ => steps.extend(end),
    }
    Response::steps("text/event-stream", steps)
}
