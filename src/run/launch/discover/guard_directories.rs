//! Protects the directories that contain guard's records, configuration and policies: no run may write there. No run may
//! read the snapshots of directories either.
//!
//! Otherwise a run could change the permissions of the next run, or the events that `guard log` shows of this run, or
//! read files of a directory in which another run worked.

use std::path::{Path, PathBuf};

use crate::git::snapshots_directory;
use crate::run::launch::plan::error::LaunchError;
use crate::run::launch::plan::request::RunRequest;
use crate::sandbox::Grant;
use crate::sys::agent_paths::deciding_paths;
use crate::sys::fs::resolve_existing;

/// Refuses a plan that lets the run write to guard's own directories, or read snapshots. The paths of `grants` must be real
/// (see [`resolve_links`](crate::sandbox::resolve_links)). `made_for_run` lists the exceptions: directories inside guard's
/// own directories that guard creates for this run alone.
pub(crate) fn check(
    request: &RunRequest,
    grants: &[Grant],
    made_for_run: &[&Path],
) -> Result<(), LaunchError> {
    let state = request.runs.parent().unwrap_or(&request.runs);
    let mut own = vec![("its records", resolve_existing(state))];
    own.extend(configuration(request).into_iter().map(|path| ("its configuration", path)));
    own.extend(git_configuration(request).into_iter().map(|path| ("your git configuration", path)));
    let snapshots = resolve_existing(&snapshots_directory(&request.runs));
    let readable = if snapshots.exists() { grants } else { &[] };
    for Grant { path, .. } in readable {
        if path.starts_with(&snapshots) || snapshots.starts_with(path) {
            return Err(LaunchError::Directory {
                directory: path.clone(),
                problem: format!(
                    "guard keeps its snapshots of directories in {}, which no run may read; grant the directories that \
                     the command needs one by one, or set XDG_STATE_HOME to a directory elsewhere",
                    snapshots.display()
                ),
            });
        }
    }
    let made_for_run: Vec<PathBuf> = made_for_run.iter().map(|path| resolve_existing(path)).collect();
    for (what, directory) in own {
        for Grant { path, .. } in grants.iter().filter(|grant| grant.rights.is_write()) {
            let is_made_for_run = made_for_run.iter().any(|made| path.starts_with(made));
            if directory.starts_with(path) || path.starts_with(&directory) && !is_made_for_run {
                return Err(LaunchError::Directory {
                    directory: path.clone(),
                    problem: format!(
                        "guard reads {what} from {}, which no run may write; run in another directory or in a worktree, or \
                         keep these files elsewhere",
                        directory.display()
                    ),
                });
            }
        }
    }
    Ok(())
}

/// The maximum number of policies of the user whose links guard follows.
const MAX_POLICIES: usize = 1_000;

/// Returns the paths of guard's configuration, and of the links that lead to it. The directory, the file in it and
/// each policy may be links to a directory in which the user keeps such files.
fn configuration(request: &RunRequest) -> Vec<PathBuf> {
    let Some(directory) = &request.config_dir else { return Vec::new() };
    let policies = directory.join("policies");
    let files = std::fs::read_dir(&policies).into_iter().flatten().flatten().take(MAX_POLICIES);
    let links = files.map(|file| file.path()).filter(|path| path.is_symlink());
    let named = [directory.clone(), directory.join("config.toml"), policies.clone()];
    named.into_iter().chain(links).flat_map(|path| deciding_paths(&path)).collect()
}

/// Returns the paths of the user's git configuration, and of the links that lead to it. It names programs that git starts
/// outside the sandbox.
fn git_configuration(request: &RunRequest) -> Vec<PathBuf> {
    let variable = |name: &str| {
        let found = request.environment.iter().rev().find(|(known, _)| known == name);
        found.map(|(_, value)| PathBuf::from(value)).filter(|path| path.is_absolute())
    };
    let home = request.home.as_deref();
    let of_xdg = variable("XDG_CONFIG_HOME").or_else(|| Some(home?.join(".config")));
    let files = [
        variable("GIT_CONFIG_GLOBAL"),
        home.map(|home| home.join(".gitconfig")),
        of_xdg.map(|base| base.join("git/config")),
    ];
    let existing = files.into_iter().flatten().filter(|file| file.is_file());
    existing.flat_map(|file| deciding_paths(&file)).collect()
}
