//! Rules that allow commands, as `guard allow` and `guard run --allow` add them to a policy.

use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::judge::command::{Context, Cwd};
use crate::judge::decide;
use crate::judge::decide::{AllowRule, CannotAllow, rules_to_allow};
use crate::judge::policy;
use crate::judge::policy::{Policy, Source};
use crate::session::{Failure, user_directories};
use crate::text::terminal_text;

/// Returns the policy with additional rules, which allow the commands that the user gave with `--allow`. A command that
/// the policy already allows is no error: a script with the option must keep working after the user has saved the rule.
pub(super) fn allow_for_one_run(
    mut policy: Policy,
    commands: &[String],
    note: &dyn Fn(&str),
) -> Result<Policy, Failure> {
    for command in commands {
        let reason = format!("Allowed for this run by --allow {command:?}.");
        let rules = match rules_to_allow(&policy, command, &context()) {
            Err(error @ CannotAllow::Already(..)) => {
                note(&format!(
                    "guard: --allow has no effect: {}",
                    terminal_text::replace(&error.to_string())
                ));
                continue;
            }
            rules => rules.map_err(|error| cannot_allow(command, &error))?,
        };
        let rule = rules_as_toml(&policy, &rules, decide::ALLOW_IDS, &reason);
        let header = policy::new_file(&policy.name, &policy.name, "");
        let source = Source {
            name: format!("--allow {command:?}"),
            text: policy::add_rule(&header, &rule).into(),
            built_in: false,
        };
        policy = policy::extend(policy, source)?;
    }
    Ok(policy)
}

/// Returns the error for a command that no rule can allow.
pub(crate) fn cannot_allow(command: &str, error: &CannotAllow) -> Failure {
    let quoted = shell_words::quote(command);
    Failure::usage(
        error.to_string(),
        format!("`guard check --shell {quoted}` shows how guard judges the command"),
    )
}

/// Returns rules as TOML text, each with `reason`. Their ids begin with `ids` and differ from those of the policy's
/// rules.
pub(crate) fn rules_as_toml(policy: &Policy, rules: &[AllowRule], ids: &str, reason: &str) -> String {
    let is_taken = |id: &str| policy.rules.iter().any(|rule| rule.id == id);
    let rules: Vec<String> = rules.iter().map(|rule| rule.to_toml(ids, reason, is_taken)).collect();
    rules.join("\n")
}

/// Returns the context for judging a command that runs in the current directory, or in `/` if guard cannot determine
/// the current directory.
pub(crate) fn context() -> Context {
    let current = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    Context {
        cwd: Cwd::Known(current.into_os_string().into_vec()),
        home: user_directories::home().map(|home| home.into_os_string().into_vec()),
        ..Context::default()
    }
}
