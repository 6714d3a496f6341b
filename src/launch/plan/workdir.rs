//! Checks the working directory of a run: no links made by an agent, no shared temporary directory, none of guard's
//! own.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{LaunchError, RunRequest};

/// Refuses a directory whose path contains a symbolic link that an agent could have made. A caller that starts runs by
/// directory name would otherwise grant another directory than the one it names, because of what an earlier run left.
/// Links of the machine's own (`/home`, …) are followed. A user's current directory needs no check: the user is in it.
pub fn check_links(folder: &Path) -> Result<(), LaunchError> {
    let Ok(folder) = std::path::absolute(folder) else { return Ok(()) };
    let mut at = PathBuf::new();
    for part in folder.components() {
        at.push(part);
        let Ok(found) = at.symlink_metadata() else { return Ok(()) };
        let is_at_the_top = at.parent() == Some(Path::new("/"));
        let is_machines = found.uid() == 0 && (is_at_the_top || !nix::unistd::geteuid().is_root());
        if found.is_symlink() && !is_machines {
            let to = at.canonicalize().map_or_else(|_| "nowhere".to_string(), |to| to.display().to_string());
            let problem = format!(
                "{} is a link to {to}, which an agent could have made; name the real directory if it is meant",
                at.display()
            );
            return Err(LaunchError::Folder { folder, problem });
        }
    }
    Ok(())
}

/// The real path of the working directory, if a run may work there.
pub(crate) fn working_folder(request: &RunRequest) -> Result<PathBuf, LaunchError> {
    let bad = |problem: String| LaunchError::Folder { folder: request.folder.clone(), problem };
    if request.checkout.as_ref().is_some_and(|checkout| !checkout.worktree.exists()) {
        // For display only: guard would create the worktree before the run.
        return Ok(request.folder.clone());
    }
    let folder = std::fs::canonicalize(&request.folder).map_err(|error| bad(error.to_string()))?;
    std::fs::read_dir(&folder).map_err(|error| bad(error.to_string()))?;
    let worktree = request.checkout.as_ref().and_then(|checkout| checkout.worktree.canonicalize().ok());
    if worktree.is_some_and(|worktree| !folder.starts_with(worktree)) {
        return Err(bad("in the task's worktree it is a link that leads out".into()));
    }
    if folder == Path::new("/") || request.home.as_deref().is_some_and(|home| is_same(home, &folder)) {
        return Err(bad(
            "the whole machine or a whole home directory cannot be handed out; go to a project's directory"
                .into(),
        ));
    }
    // A run has its own temporary directory, which is removed with it. Other users' files are in the machine's.
    if [Path::new("/tmp"), Path::new("/var/tmp"), Path::new("/dev/shm"), &request.scratch]
        .iter()
        .any(|temporary| is_same(temporary, &folder))
    {
        return Err(bad(
            "a run has a directory for temporary files of its own; make a directory below it, and work there"
                .into(),
        ));
    }
    // The shims are beside the runs.
    let records = request.runs.parent().unwrap_or(&request.runs);
    let is_made_there =
        request.checkout.as_ref().is_some_and(|checkout| folder.starts_with(&checkout.worktree));
    if records.starts_with(&folder) || folder.starts_with(records) && !is_made_there {
        return Err(bad("guard keeps its own records there".into()));
    }
    Ok(folder)
}

pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    std::fs::canonicalize(a).is_ok_and(|a| a == b)
}
