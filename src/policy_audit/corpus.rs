//! Labelled command lists: one case a line, `LABEL<TAB>COMMAND`, the label optional.
//!
//! A command is shell text, or a JSON object `{"shell": "…"}` or `{"argv": ["…"]}` where newlines or exact words matter.
//! `#` begins a comment; `#! policy: NAME` says which policy the labels are about.

use serde::Deserialize;
use thiserror::Error;

use crate::command::Request;
use crate::policy::Action;

/// A file of cases.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// The file's name, as it was given.
    pub name: String,
    /// The policy its labels are about.
    pub policy: Option<String>,
    /// Its cases in order.
    pub cases: Vec<Case>,
}

/// One command of a corpus.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its line, from 1.
    pub line: usize,
    /// The decision it should get.
    pub label: Option<Action>,
    /// The command as it is written in the file.
    pub text: String,
    /// The command.
    pub request: Request,
}

/// A line that is no case.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name}:{line}: {problem}")]
pub struct CorpusError {
    /// The file.
    pub name: String,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonCase {
    shell: Option<String>,
    argv: Option<Vec<String>>,
}

impl Corpus {
    /// Reads a corpus from its text.
    pub fn parse(name: &str, text: &str) -> Result<Self, CorpusError> {
        let mut corpus = Self { name: name.to_string(), policy: None, cases: Vec::new() };
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (index, line) in text.lines().enumerate() {
            let directive =
                line.strip_prefix("#!").and_then(|rest| rest.trim_start().strip_prefix("policy:"));
            if let Some(policy) = directive {
                corpus.policy = Some(policy.trim().to_string());
            } else if !line.trim().is_empty() && !line.starts_with('#') {
                let case = case(index + 1, line).map_err(|problem| CorpusError {
                    name: name.to_string(),
                    line: index + 1,
                    problem,
                })?;
                corpus.cases.push(case);
            }
        }
        Ok(corpus)
    }
}

fn case(line: usize, text: &str) -> Result<Case, String> {
    let (label, text) =
        match text.split_once('\t').map(|(label, rest)| (label.trim().to_ascii_lowercase(), rest)) {
            Some((label, rest)) if label == "allow" => (Some(Action::Allow), rest),
            Some((label, rest)) if label == "ask" => (Some(Action::Ask), rest),
            Some((label, rest)) if label == "deny" => (Some(Action::Deny), rest),
            Some((label, _)) if !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
                return Err(format!("unknown label `{label}`; a label is allow, ask or deny"));
            }
            _ => (None, text),
        };
    Ok(Case { line, label, text: text.to_string(), request: request(text)? })
}

/// A command written as shell text or as a JSON object.
fn request(text: &str) -> Result<Request, String> {
    if !text.starts_with("{\"") {
        return Ok(Request::Shell(text.as_bytes().to_vec()));
    }
    let json: JsonCase =
        serde_json::from_str(text).map_err(|error| format!("not a JSON command: {error}"))?;
    match (json.shell, json.argv) {
        (Some(shell), None) => Ok(Request::Shell(shell.into_bytes())),
        (None, Some(argv)) => Ok(Request::Argv(argv.into_iter().map(String::into_bytes).collect())),
        _ => Err("a JSON command has either `shell` or `argv`".to_string()),
    }
}
