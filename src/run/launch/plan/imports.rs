//! Finds the user's files of which the policy imports copies into a run's private home directory.

use std::path::{Path, PathBuf};

use super::request::RunRequest;
use crate::sys::agent_paths::AgentPaths;
use crate::text::terminal_text;

/// Returns the user's files that the policy imports into the private home directory: (real path, path of the copy).
/// Leaves out entries that do not begin with `~/`, and files that do not exist. Also leaves out a file to which a link
/// leads that an agent may have written, for example in a repository with the user's dotfiles, and adds a note.
pub(super) fn imports(
    request: &RunRequest,
    home: &Path,
    agent_paths: &AgentPaths,
    notes: &mut Vec<String>,
) -> Vec<(PathBuf, PathBuf)> {
    let Some(own) = &request.home else { return Vec::new() };
    let mut found = Vec::new();
    for path in request.policy.home.import.iter().filter_map(|entry| entry.strip_prefix("~/")) {
        let Ok(resolved) = agent_paths.resolve(&own.join(path)) else { continue };
        match resolved.own() {
            Ok(real) if real.is_file() => found.push((real, home.join(path))),
            Ok(_) => {}
            Err(link) => {
                notes.push(terminal_text::replace(&format!("the run does not get ~/{path}: {link}")));
            }
        }
    }
    found
}
