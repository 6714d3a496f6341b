//! The tool `guard_check`: returns what a policy decides about a command.

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Serialize;

use super::parameters::Parameters;
use crate::command::{Context, Cwd, Request};
use crate::decide::{judge, load};
use crate::outcome::ErrorKind;
use crate::policy::PolicyDirs;

/// Ask a policy about a command.
#[derive(Debug, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Check {
    /// The command and its arguments.
    #[serde(default)]
    command: Vec<String>,
    /// Shell text instead.
    #[serde(default)]
    #[schemars(with = "String")]
    shell: Option<String>,
    /// The policy, by its name; `strict` unless given.
    #[serde(default = "strict")]
    policy: String,
    /// The directory it would run in: an absolute path.
    #[serde(default = "top")]
    cwd: String,
}

fn strict() -> String {
    "strict".to_string()
}

fn top() -> String {
    "/".to_string()
}

/// What the policy says.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct Checked {
    /// The question could be answered.
    success: bool,
    /// `allow`, `ask` (a person; denied where there is none) or `deny`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["allow", "ask", "deny"]), with = "String")]
    decision: Option<String>,
    /// The rule behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// What to do instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instead: Option<String>,
    /// The part of the command that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part: Option<String>,
    /// The policy's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    /// What was wrong with the question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The same in a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error_kind: Option<ErrorKind>,
}

/// Handles a call of the tool.
pub(super) fn check(given: JsonObject) -> Checked {
    read(given).and_then(|asked| judged(&asked)).unwrap_or_else(|problem| Checked {
        error: Some(problem),
        error_kind: Some(ErrorKind::InvalidInput),
        ..Checked::default()
    })
}

fn read(given: JsonObject) -> Result<Check, String> {
    let mut given = Parameters::new(given);
    let asked = Check {
        command: given.optional("command")?.unwrap_or_default(),
        shell: given.optional("shell")?,
        policy: given.optional("policy")?.unwrap_or_else(strict),
        cwd: given.optional("cwd")?.unwrap_or_else(top),
    };
    given.nothing_else()?;
    Ok(asked)
}

fn judged(asked: &Check) -> Result<Checked, String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    // A path is not accepted: guard would read the file, and its error messages could reveal the content.
    if !asked.policy.bytes().all(is_name) || asked.policy.ends_with(".toml") {
        return Err("the parameter `policy` is the name of a policy, not a file".to_string());
    }
    if !asked.cwd.starts_with('/') {
        return Err("the parameter `cwd` must be an absolute path".to_string());
    }
    let request = match (&asked.shell, asked.command.is_empty()) {
        (Some(text), true) => Request::Shell(text.clone().into_bytes()),
        (None, false) => Request::Argv(asked.command.iter().map(|word| word.clone().into_bytes()).collect()),
        _ => return Err("give either the parameter `command` or the parameter `shell`".to_string()),
    };
    let policy = load(&asked.policy, &PolicyDirs::from_environment(), false)
        .map_err(|error| format!("the parameter `policy`: {error}"))?;
    let context = Context {
        folder: Cwd::from_absolute(asked.cwd.as_bytes()),
        limits: policy.command_limits(),
        ..Context::default()
    };
    let (verdict, _) = judge(&policy, &request, &context);
    Ok(Checked {
        success: true,
        decision: Some(verdict.action().name().to_string()),
        rule: Some(verdict.cause.rule),
        reason: Some(verdict.cause.reason),
        instead: Some(verdict.cause.instead),
        part: verdict.part,
        policy: Some(policy.name),
        ..Checked::default()
    })
}
