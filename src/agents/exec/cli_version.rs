//! Determines the installed version of a CLI from its `package.json`, without starting the CLI.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::agents::adapter::Adapter;

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
}

/// Returns the file of a program: the path itself if `program` contains a slash, otherwise the first file of this name
/// in a directory of `PATH`. `None` if there is none.
fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file())
}

/// Returns the version that is stated in the `package.json` of the npm package `package` to which a program belongs;
/// `None` if none of the eight directories above the program's real file contains such a file.
fn version(program: &Path, package: &str) -> Option<String> {
    let real = program.canonicalize().ok()?;
    real.ancestors().skip(1).take(8).find_map(|directory| {
        let text = std::fs::read_to_string(directory.join("package.json")).ok()?;
        let found: Package = serde_json::from_str(&text).ok()?;
        (found.name == package).then_some(found.version)
    })
}

/// Returns the numeric components of a version, for comparison. A suffix after `-` or `+` is ignored.
fn numbers(version: &str) -> Vec<u64> {
    let plain = version.split(['-', '+']).next().unwrap_or_default();
    plain.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

/// The error for an installed CLI version that is known not to work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{agent} {found} is too old: {reason}; install {agent} {oldest} or newer")]
pub struct OutdatedAgent {
    pub agent: String,
    /// The installed version of the agent's CLI.
    pub found: String,
    pub oldest: String,
    pub reason: String,
}

/// Checks the installed version of a CLI, whose program is the first element of `argv`. Returns an error if the version
/// is known not to work, and otherwise notes for the user, for example about an untested version. Returns no notes if
/// the version cannot be determined.
pub fn check_version(adapter: &Adapter, argv: &[String]) -> Result<Vec<String>, OutdatedAgent> {
    let (Some(package), Some(program)) = (&adapter.package, argv.first()) else { return Ok(Vec::new()) };
    // If the program is missing, the run itself reports that.
    let Some(found) = find(program).and_then(|file| version(&file, package)) else { return Ok(Vec::new()) };
    let name = &adapter.name;
    if let Some(oldest) = adapter.oldest.as_ref().filter(|oldest| numbers(&found) < numbers(&oldest.version))
    {
        let (agent, reason) = (name.clone(), oldest.reason.clone());
        return Err(OutdatedAgent { agent, found, oldest: oldest.version.clone(), reason });
    }
    let newest = adapter.newest.as_ref().filter(|newest| numbers(&found) > numbers(newest));
    Ok(newest
        .map(|newest| {
            format!("{name} {found} is newer than {newest}, the newest version that guard was tested with")
        })
        .into_iter()
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(numbers("0.9.1") < numbers("0.30.0"));
        assert!(numbers("0.30.0-nightly.1") == numbers("0.30.0"));
        assert!(numbers("1.0") > numbers("0.61.0"));
    }
}
