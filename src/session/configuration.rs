//! The user's configuration, and the policy and the settings that a run gets from it and from the project.

use std::path::Path;

use crate::agents::adapter::{AGENTS, named};
use crate::judge::policy::{Config, Policy, is_branch_prefix};
use crate::run::launch::Keys;
use crate::run::settings::RunSettings;
use crate::session::allow_rules::allow_for_one_run;
use crate::session::caller::{Ask, Caller};
use crate::session::defaults::{CommitWithoutFiles, Defaults};
use crate::session::{Failure, policy_files};

/// Reads the user's configuration, and removes the API keys from the environment.
pub(crate) fn configuration() -> Result<(Config, Keys), Failure> {
    let config = user_config()?;
    let keys = Keys::take(&config);
    Ok((config, keys))
}

/// Reads the user's configuration file; without a file, returns the defaults. Fails if guard cannot read or parse the
/// file, or if a section `[agent.NAME]` names an agent for which guard cannot copy a login.
pub(crate) fn user_config() -> Result<Config, Failure> {
    let config = match Config::place() {
        Some(place) => Config::read(&place)
            .map_err(|error| Failure::usage(error.to_string(), "correct the file, or move it away"))?,
        None => Config::default(),
    };
    let has_login = |name: &str| named(name).is_some_and(|agent| agent.login.is_some());
    let Some(name) = config.agent.keys().find(|name| !has_login(name)) else { return Ok(config) };
    let known: Vec<&str> = AGENTS.iter().map(|(name, _)| *name).filter(|name| has_login(name)).collect();
    Err(Failure::usage(
        format!("[agent.{name}] in config.toml: guard knows no agent `{name}` whose login it can copy"),
        format!("remove the section, or use an agent whose login guard can copy: {}", known.join(", ")),
    ))
}

/// The settings of a run with the defaults of the project and the user, and the policy.
pub(crate) struct CompleteSettings {
    pub(crate) settings: RunSettings,
    pub(crate) policy: Policy,
    /// What [`PreparedRun::open`](super::PreparedRun::open) records when the run is about to start.
    pub(crate) new_commit: Option<CommitWithoutFiles>,
}

/// Completes the settings of a run with the defaults of the project and the user, and loads the policy with the rules
/// of `--allow`. Fails if the user does not confirm what the project asks for.
pub(crate) fn with_defaults(
    mut settings: RunSettings,
    config: &Config,
    caller: &Caller<'_>,
) -> Result<CompleteSettings, Failure> {
    let directory = match &settings.dir {
        Some(directory) => directory.clone(),
        None => std::env::current_dir().unwrap_or_default(),
    };
    let (base, policy) = (settings.worktree.base.as_deref(), settings.policy.as_deref());
    let defaults = Defaults::find(&directory, base, policy, config)?;
    defaults.confirm(caller.ask)?;
    defaults.complete(&mut settings, caller.is_attended);
    let prefix = defaults.branch_prefix().map(str::to_string);
    let mut policy = allow_for_one_run(defaults.policy, &settings.allow, caller.note)?;
    if let Some(prefix) = prefix {
        if !is_branch_prefix(&prefix) {
            return Err(Failure::usage(
                format!("branch_prefix = {prefix:?} is not a valid prefix of a branch name"),
                "set a prefix such as \"task/\"; `guard config show --origin` says which file sets it",
            ));
        }
        policy.git.branch_prefix = prefix;
    }
    Ok(CompleteSettings { settings, policy, new_commit: defaults.new_commit })
}

/// Asks the user about what needs a confirmation before a run in a directory: what the project asks for beyond what the
/// user allows, and policy files that a run may have changed. `policy` is the policy that the command line names, if any.
pub(crate) fn confirm_defaults(directory: &Path, policy: Option<&str>, ask: &Ask) -> Result<(), Failure> {
    let defaults = Defaults::find(directory, None, policy, &user_config()?)?;
    defaults.confirm(ask)?;
    policy_files::confirm(&defaults.policy, ask)
}

/// Returns the policy with which guard answers questions: the one that the user named, or the one that runs in the
/// current directory would use.
pub(crate) fn policy_here(named: Option<&str>) -> Result<Policy, Failure> {
    let config = user_config()?;
    let directory = std::env::current_dir().unwrap_or_default();
    Ok(Defaults::find(&directory, None, named, &config)?.policy)
}
