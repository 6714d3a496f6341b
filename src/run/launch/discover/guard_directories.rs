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
use crate::sys::fs::resolve_existing;

/// Refuses a plan that lets the run write to guard's own directories, or read snapshots. `made_for_run` lists the exceptions:
/// directories inside guard's own directories that guard creates for this run alone.
pub(crate) fn check(
    request: &RunRequest,
    grants: &[Grant],
    made_for_run: &[&Path],
) -> Result<(), LaunchError> {
    let state = request.runs.parent().unwrap_or(&request.runs);
    let own = [("its records", Some(state)), ("its configuration", request.config_dir.as_deref())];
    let snapshots = resolve_existing(&snapshots_directory(&request.runs));
    for grant in grants.iter().filter(|_| snapshots.exists()) {
        let path = resolve_existing(&grant.path);
        if path.starts_with(&snapshots) || snapshots.starts_with(&path) {
            return Err(LaunchError::Directory {
                directory: grant.path.clone(),
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
        let Some(directory) = directory.map(resolve_existing) else { continue };
        for grant in grants.iter().filter(|grant| grant.rights.is_write()) {
            let path = resolve_existing(&grant.path);
            let is_made_for_run = made_for_run.iter().any(|made| path.starts_with(made));
            if directory.starts_with(&path) || path.starts_with(&directory) && !is_made_for_run {
                return Err(LaunchError::Directory {
                    directory: grant.path.clone(),
                    problem: format!(
                        "guard keeps {what} in {}, which no run may write; run in another directory, or set \
                         XDG_STATE_HOME and XDG_CONFIG_HOME to directories elsewhere",
                        directory.display()
                    ),
                });
            }
        }
    }
    Ok(())
}
