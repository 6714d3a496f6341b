//! Protects the directories that contain guard's records, configuration and policies: no run may write there.
//!
//! Otherwise a run could change the permissions of the next run, or the events that `guard log` shows of this run.

use std::path::{Path, PathBuf};

use crate::launch::plan::error::LaunchError;
use crate::launch::plan::request::RunRequest;
use crate::sandbox::Grant;

/// Refuses a plan that lets the run write to guard's own directories. `made_for_run` lists the exceptions:
/// directories inside guard's own directories that guard creates for this run alone.
pub(crate) fn check(
    request: &RunRequest,
    grants: &[Grant],
    made_for_run: &[&Path],
) -> Result<(), LaunchError> {
    let state = request.runs.parent().unwrap_or(&request.runs);
    let own = [("its records", Some(state)), ("its configuration", request.config_dir.as_deref())];
    let made_for_run: Vec<PathBuf> = made_for_run.iter().map(|path| resolve(path)).collect();
    for (what, directory) in own {
        let Some(directory) = directory.map(resolve) else { continue };
        for grant in grants.iter().filter(|grant| grant.rights.is_write()) {
            let path = resolve(&grant.path);
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

/// Returns the path with symbolic links resolved. If the path does not exist yet, resolves only its longest existing
/// ancestor.
fn resolve(path: &Path) -> PathBuf {
    for above in path.ancestors() {
        if let (Ok(real), Ok(below)) = (std::fs::canonicalize(above), path.strip_prefix(above)) {
            return real.join(below);
        }
    }
    path.to_path_buf()
}
