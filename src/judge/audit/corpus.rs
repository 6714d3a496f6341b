//! Parses labelled command lists. Each line is one case, `LABEL<TAB>COMMAND`; the label is optional.
//!
//! A command is shell text, or a JSON object `{"shell": "…"}` or `{"argv": ["…"]}` if newlines or exact arguments
//! matter. A line that begins with `#` is a comment. `#! policy: NAME` states which policy the labels refer to.

use serde::Deserialize;
use thiserror::Error;

use crate::judge::command::Request;
use crate::judge::policy::Action;

/// A parsed corpus file: commands, each with the decision that a policy is expected to make.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// The name of the corpus file, as given by the caller.
    pub name: String,
    /// The name of the policy that the labels refer to, if the file states one.
    pub policy: Option<String>,
    /// The commands to judge, in the order of the file.
    pub cases: Vec<Case>,
}

/// One command of a corpus.
#[derive(Debug, Clone)]
pub struct Case {
    /// The number of the case's line in the file, from 1.
    pub line: usize,
    /// The decision that the policy is expected to make; `None` if the line has no label.
    pub label: Option<Action>,
    /// The command as written in the file.
    pub text: String,
    /// The command in the form in which the policies judge it.
    pub request: Request,
}

/// The error for a line that is not a valid case.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name}:{line}: {problem}")]
pub struct CorpusError {
    /// The name of the corpus file.
    pub name: String,
    /// The number of the invalid line, from 1.
    pub line: usize,
    pub problem: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonCase {
    shell: Option<String>,
    argv: Option<Vec<String>>,
}

impl Corpus {
    /// Parses the text of a corpus file. Fails at the first line that is not a valid case.
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
                return Err(format!("unknown label `{label}`; expected allow, ask or deny"));
            }
            _ => (None, text),
        };
    Ok(Case { line, label, text: text.to_string(), request: request(text)? })
}

/// Parses a command written as shell text or as a JSON object.
fn request(text: &str) -> Result<Request, String> {
    if !text.starts_with("{\"") {
        return Ok(Request::Shell(text.as_bytes().to_vec()));
    }
    let json: JsonCase =
        serde_json::from_str(text).map_err(|error| format!("invalid JSON command: {error}"))?;
    match (json.shell, json.argv) {
        (Some(shell), None) => Ok(Request::Shell(shell.into_bytes())),
        (None, Some(argv)) => Ok(Request::Argv(argv.into_iter().map(String::into_bytes).collect())),
        _ => Err("a JSON command must have either `shell` or `argv`".to_string()),
    }
}
