//! Plans the environment variables of the agent.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::RunRequest;
use super::network::NetworkPlan;
use crate::judge::policy::Pattern;
use crate::run::launch::discover::toolchains::Toolchain;
use crate::run::supervisor::shim::protocol::{CONTROL_NAME, SOCKET_VARIABLE};

pub(super) fn value(environment: &[(OsString, OsString)], name: &str) -> Option<OsString> {
    environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}

/// Returns the agent's environment, sorted by name: the variables that the policy passes, those that toolchains, tar
/// and git need, those for the proxy and the gateways, those that the policy and then the caller's options set, and
/// those for the private directories. A later group overrides an earlier one. PATH begins with the directory of the
/// shims, if the run has shims, and has no relative entries.
pub(super) fn environment(
    request: &RunRequest,
    shims: Option<&Path>,
    home: &Path,
    tmp: &Path,
    toolchains: &[Toolchain],
    network: &NetworkPlan,
) -> Vec<(OsString, OsString)> {
    let policy = &request.policy.environment;
    let mut variables: Vec<(OsString, OsString)> = Vec::new();
    let mut set = |name: &OsStr, value: OsString| {
        variables.retain(|(known, _)| known != name);
        variables.push((name.to_os_string(), value));
    };
    let pass: Vec<Pattern> = policy.pass.iter().filter_map(|text| Pattern::new(text).ok()).collect();
    for (name, value) in &request.environment {
        if pass.iter().any(|pattern| pattern.matches(name.as_bytes())) {
            set(name, value.clone());
        }
    }
    for toolchain in toolchains {
        for (name, value) in &toolchain.variables {
            set(name, value.clone());
        }
    }
    if request.uid == 0 {
        // Inside the sandbox even root may not change the owner of files, but tar tries to if root runs it.
        set(OsStr::new("TAR_OPTIONS"), "--no-same-owner".into());
    }
    if request.checkout.is_none() {
        // The agent cannot write to the repository, so git must not take locks that it can do without.
        set(OsStr::new("GIT_OPTIONAL_LOCKS"), "0".into());
    }
    for (name, value) in network.variables(home) {
        set(&name, value);
    }
    for (name, value) in &policy.set {
        set(OsStr::new(name), value.into());
    }
    for (name, value) in &request.options.set {
        set(name, value.clone());
    }
    set(OsStr::new("HOME"), home.into());
    for name in ["TMPDIR", "TMP", "TEMP"] {
        set(OsStr::new(name), tmp.into());
    }
    set(OsStr::new(SOCKET_VARIABLE), CONTROL_NAME.into());
    let path = variables.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone());
    let path = path.unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut directories: Vec<PathBuf> = shims.iter().map(|directory| directory.to_path_buf()).collect();
    // Skip relative entries: with them, the meaning of a command would depend on the working directory.
    let entries = std::env::split_paths(&path).filter(|directory| directory.is_absolute());
    // Resolve links in the user's home directory, such as `~/.nvm/current`: the run sees only their targets.
    let in_home = |directory: &PathBuf| request.home.as_ref().is_some_and(|home| directory.starts_with(home));
    directories.extend(entries.map(|directory| match directory.canonicalize() {
        Ok(real) if in_home(&directory) => real,
        _ => directory,
    }));
    if let Ok(path) = std::env::join_paths(&directories) {
        variables.retain(|(known, _)| known != "PATH");
        variables.push(("PATH".into(), path));
    }
    variables.sort();
    variables
}
