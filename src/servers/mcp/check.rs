//! The tool `guard_check`: returns what a policy decides about a command.

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Serialize;

use super::parameters::Parameters;
use crate::judge::command::{Context, Cwd, Request};
use crate::judge::decide::{judge, load};
use crate::judge::policy::PolicyDirs;
use crate::run::outcome::ErrorKind;

/// Ask what a policy decides about a command. The command does not run.
#[derive(Debug, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Check {
    /// The command and its arguments. Give either `command` or `shell`.
    #[serde(default)]
    command: Vec<String>,
    /// A shell command line, instead of `command`.
    #[serde(default)]
    #[schemars(with = "String")]
    shell: Option<String>,
    /// The name of the policy. Default: `strict`.
    #[serde(default = "strict")]
    policy: String,
    /// The directory in which the command would run, as an absolute path. Default: `/`.
    #[serde(default = "top")]
    cwd: String,
}

fn strict() -> String {
    "strict".to_string()
}

fn top() -> String {
    "/".to_string()
}

/// The decision of the policy.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct Checked {
    /// Whether the parameters were valid, so that there is a decision.
    success: bool,
    /// The decision: `allow`, `deny`, or `ask`. `ask` means that the user must confirm; an unattended run is denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["allow", "ask", "deny"]), with = "String")]
    decision: Option<String>,
    /// The id of the rule that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    /// The reason that the rule gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// What the rule suggests to do instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instead: Option<String>,
    /// The part of the command that the rule matched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part: Option<String>,
    /// The name of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    /// The error message, if a parameter is invalid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The kind of error: `invalid_input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error_kind: Option<ErrorKind>,
}

/// Handles a call of the tool `guard_check`.
pub(super) fn check(given: JsonObject) -> Checked {
    read(given).and_then(|asked| evaluate(&asked)).unwrap_or_else(|problem| Checked {
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
    given.reject_unknown()?;
    Ok(asked)
}

fn evaluate(asked: &Check) -> Result<Checked, String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    // Reject a path: guard would read the file, and the error messages could reveal its content.
    if !asked.policy.bytes().all(is_name) || asked.policy.ends_with(".toml") {
        return Err("the parameter `policy` must be the name of a policy, not a path".to_string());
    }
    if !asked.cwd.starts_with('/') {
        return Err("the parameter `cwd` must be an absolute path".to_string());
    }
    let request = match (&asked.shell, asked.command.is_empty()) {
        (Some(text), true) => Request::Shell(text.clone().into_bytes()),
        (None, false) => Request::Argv(asked.command.iter().map(|word| word.clone().into_bytes()).collect()),
        _ => return Err("set exactly one of the parameters `command` and `shell`".to_string()),
    };
    let policy = load(&asked.policy, &PolicyDirs::from_environment(), false)
        .map_err(|error| format!("the parameter `policy`: {error}"))?;
    let context = Context {
        cwd: Cwd::from_absolute(asked.cwd.as_bytes()),
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
