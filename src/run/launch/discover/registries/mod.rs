//! Finds the hosts from which the user's package tools fetch packages.
//!
//! With these hosts, a policy can allow a tool such as cargo to fetch packages without naming hosts: users have
//! different mirrors, and the tools know them. This module reads the tools' settings. If a tool has none, guard runs
//! the tool to learn its default: either the tool prints the default, or guard acts as the tool's proxy and reads the
//! host that the tool requests.
//!
//! The module takes a home directory and an environment, and returns entries for `[network] allow`, and notes for the
//! user. It must never read settings in the working directory, which an agent may have written. If it cannot read a
//! file, it adds a note, and never fails. URLs in settings may contain passwords, so notes name the file and never
//! quote a URL.
#![forbid(unsafe_code)]

mod apt;
mod cargo;
mod ini;
mod npm;
mod pip;
mod query_tool;
mod search;
mod url;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::sys::agent_paths::{AgentPaths, state_directory};
use search::Search;
pub use search::{Registries, Tool};

/// Finds the hosts from which a tool fetches packages. May run the tool to learn its default host, which guard then
/// saves in the user's cache directory.
pub fn find_registries(tool: Tool, home: Option<&Path>, environment: &[(OsString, OsString)]) -> Registries {
    let directory = std::env::current_dir().ok();
    find_registries_with(tool, home, environment, Path::new("/etc"), directory.as_deref())
}

/// Finds the hosts from which a tool fetches packages, as [`find_registries`] does. This variant is for tests: it reads
/// `etc` in place of `/etc`, and takes `directory` for the working directory.
pub fn find_registries_with(
    tool: Tool,
    home: Option<&Path>,
    environment: &[(OsString, OsString)],
    etc: &Path,
    directory: Option<&Path>,
) -> Registries {
    let home = home.filter(|home| home.is_absolute());
    let worktree = directory.and_then(|directory| worktree_of(directory, home));
    let agent_paths = AgentPaths::read(home, state_directory().as_deref()).ok();
    let found = Registries::default();
    let mut search = Search { tool, home, environment, etc, worktree, agent_paths, found };
    match tool {
        Tool::Cargo => cargo::search(&mut search),
        Tool::Npm => npm::search(&mut search),
        Tool::Pip => pip::search(&mut search),
        Tool::Apt => apt::search(&mut search),
    }
    if search.found.entries.is_empty() {
        let (name, hint) = (tool.name(), "[network] allow = [\"HOST:443\"]");
        search.note(&format!(
            "guard cannot find out from which host {name} fetches packages; write the host into the policy: {hint}"
        ));
    }
    search.found
}

/// Returns the real path of the git worktree that contains `directory`. If there is no worktree, or if it contains the
/// user's home directory, returns the real path of `directory` itself. `None` if that contains the home directory as
/// well, or does not exist.
fn worktree_of(directory: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let directory = directory.canonicalize().ok()?;
    let tree = directory.ancestors().find(|above| above.join(".git").exists()).unwrap_or(&directory);
    let home = home.and_then(|home| home.canonicalize().ok());
    let contains_home = |tree: &Path| home.as_ref().is_some_and(|home| home.starts_with(tree));
    [tree, &directory].into_iter().find(|tree| !contains_home(tree)).map(Path::to_path_buf)
}
