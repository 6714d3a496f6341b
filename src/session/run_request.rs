//! The request to `run::launch`, from the settings of a run and what guard finds in its environment.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use crate::agents::adapter::Profile;
use crate::judge::policy::{Config, Policy, key_variables, preset};
use crate::run::launch::{HomeState, Keys, Options, RunRequest};
use crate::run::settings::{HomeSettings, RunSettings};
use crate::run::transcript::runs_dir;
use crate::session::Failure;
use crate::session::user_directories::{config_dir, home};
use crate::sys::fs::resolve_existing;

/// Returns the request for a run. It has no worktree yet.
pub(super) fn run_request(
    settings: &RunSettings,
    policy: Policy,
    config: Config,
    keys: &Keys,
    profile: Option<&Profile>,
) -> Result<RunRequest, Failure> {
    let runs = runs_dir().map_err(|error| {
        Failure::usage(error.to_string(), "set XDG_STATE_HOME or HOME to an absolute path")
    })?;
    let folder = directory(settings)?;
    let options = options(settings, keys, profile)?;
    let passed_on = keys.others(&gateway_keys(policy.network.presets.iter().chain(&options.presets)));
    Ok(RunRequest {
        command: settings.command.clone(),
        folder,
        policy,
        environment: std::env::vars_os().chain(passed_on).collect(),
        home: home(),
        // The sandbox opens granted paths without following links, and these directories may be links of the user.
        runs: resolve_existing(&runs),
        scratch: resolve_existing(&std::env::temp_dir()),
        uid: nix::unistd::geteuid().as_raw(),
        options,
        checkout: None,
        config,
        config_dir: config_dir(),
        key_variables: keys.names(),
    })
}

fn directory(settings: &RunSettings) -> Result<PathBuf, Failure> {
    let Some(folder) = &settings.dir else {
        return std::env::current_dir().map_err(|error| {
            Failure::usage(
                format!("cannot determine the current directory: {error}"),
                "change to a directory that exists, or give one with --dir DIR",
            )
        });
    };
    Ok(folder.clone())
}

fn options(settings: &RunSettings, keys: &Keys, profile: Option<&Profile>) -> Result<Options, Failure> {
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let of_agent = profile.iter().flat_map(|profile| &profile.adapter.presets);
    let of_agent = of_agent.filter(|preset| !settings.presets.contains(preset));
    let hosts_of_agent = profile.map(|profile| profile.adapter.hosts()).unwrap_or_default();
    let HomeSettings { from, to, keep, files, .. } = &settings.home;
    check_home_files(files)?;
    Ok(Options {
        namespaces: settings.namespaces,
        read: settings.read.iter().map(absolute).collect(),
        write: settings.write.iter().map(absolute).collect(),
        set: variables(&settings.environment, keys)?,
        no_toolchains: settings.no_toolchains,
        no_shims: settings.no_shims,
        idle_seconds: settings.idle_seconds,
        total_seconds: settings.total_seconds,
        is_attended: false,
        is_users_worktree: settings.worktree.here,
        no_verify: settings.no_verify,
        allow_unprotected_repositories: settings.allow_unprotected_repositories,
        home_state: HomeState {
            from: from.iter().map(absolute).collect(),
            to: to.as_ref().map(absolute),
            keep: keep.clone(),
            history: None,
            login: None,
        },
        home_files: files.clone(),
        hosts: settings.hosts.iter().cloned().chain(hosts_of_agent).collect(),
        listen: settings.listen.clone(),
        presets: settings.presets.iter().chain(of_agent).cloned().collect(),
        budget: settings.budget,
    })
}

/// Returns the variables to set. A variable without a value gets the one that it has in guard's own environment.
fn variables(
    given: &[(OsString, Option<OsString>)],
    keys: &Keys,
) -> Result<Vec<(OsString, OsString)>, Failure> {
    let own = |name: &OsString| {
        let kept = || keys.others(&[]).into_iter().find(|(known, _)| known == name).map(|(_, value)| value);
        std::env::var_os(name).or_else(kept).ok_or_else(|| {
            Failure::usage(
                format!("--env {}: the variable is not set in guard's environment", name.to_string_lossy()),
                "set the variable, or give a value with --env NAME=VALUE",
            )
        })
    };
    let value = |(name, value): &(OsString, Option<OsString>)| match value {
        Some(value) => Ok((name.clone(), value.clone())),
        None => Ok((name.clone(), own(name)?)),
    };
    given.iter().map(value).collect()
}

/// Returns the variables with the keys of these presets' gateways. guard keeps only these keys out of the run, and
/// treats other keys like any other variable.
fn gateway_keys<'a>(presets: impl Iterator<Item = &'a String>) -> Vec<&'static str> {
    let gateways = presets.filter_map(|name| preset(name)).flat_map(|preset| preset.gateway);
    gateways.filter_map(|gateway| key_variables(&gateway.name)).flatten().copied().collect()
}

/// Fails unless the paths of files in the home are relative and contain no `..`.
fn check_home_files(files: &[(PathBuf, String)]) -> Result<(), Failure> {
    let is_plain = |path: &Path| {
        !path.as_os_str().is_empty() && path.components().all(|part| matches!(part, Component::Normal(_)))
    };
    match files.iter().find(|(path, _)| !is_plain(path)) {
        None => Ok(()),
        Some((path, _)) => Err(Failure::usage(
            format!("cannot create {} in the private home: the path leads out of it", path.display()),
            "give a relative path without `..`",
        )),
    }
}
