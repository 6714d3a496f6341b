//! Checks the working directory of a run. Refuses the root directory, the user's home directory, a shared temporary
//! directory, guard's own directories, and a path with a symbolic link that an agent could have created.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::LaunchError;
use super::request::RunRequest;

/// Refuses a directory whose path contains a symbolic link that an agent could have created. Otherwise, an earlier run
/// could leave a link, and a program that later starts guard in a directory of this name would let the run work in a
/// different directory. Allows links that belong to root (such as `/home`); if guard itself runs as root, only those in
/// the root directory. Does not check the rest of a path after a component that does not exist. guard calls this only
/// for a directory that the caller names, not for the caller's current directory.
pub fn check_links(directory: &Path) -> Result<(), LaunchError> {
    let Ok(directory) = std::path::absolute(directory) else { return Ok(()) };
    let mut at = PathBuf::new();
    for part in directory.components() {
        at.push(part);
        let Ok(found) = at.symlink_metadata() else { return Ok(()) };
        let is_in_root = at.parent() == Some(Path::new("/"));
        let is_of_system = found.uid() == 0 && (is_in_root || !nix::unistd::geteuid().is_root());
        if found.is_symlink() && !is_of_system {
            let to = at.canonicalize().map_or_else(|_| "nothing".to_string(), |to| to.display().to_string());
            let problem = format!(
                "{} is a symbolic link (to {to}), and an agent could have created the link; to run there, give the real path",
                at.display()
            );
            return Err(LaunchError::Directory { directory, problem });
        }
    }
    Ok(())
}

/// Returns the real path of the working directory. Fails if a run may not work there. If the run's worktree does not
/// exist yet, as in a dry run, returns the requested path unchecked.
pub(crate) fn working_directory(request: &RunRequest) -> Result<PathBuf, LaunchError> {
    let refused = |problem: String| LaunchError::Directory { directory: request.folder.clone(), problem };
    if request.checkout.as_ref().is_some_and(|checkout| !checkout.worktree.exists()) {
        // In a dry run the worktree does not exist: guard would create it before the run.
        return Ok(request.folder.clone());
    }
    let unusable = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            refused(format!("{error}; change the mode or the owner of the directory, or of one above it"))
        }
        _ => refused(error.to_string()),
    };
    let directory = std::fs::canonicalize(&request.folder).map_err(unusable)?;
    std::fs::read_dir(&directory).map_err(unusable)?;
    let worktree = request.checkout.as_ref().and_then(|checkout| checkout.worktree.canonicalize().ok());
    if worktree.is_some_and(|worktree| !directory.starts_with(worktree)) {
        return Err(refused("a symbolic link in the path leads out of the run's worktree".into()));
    }
    if directory == Path::new("/") || request.home.as_deref().is_some_and(|home| is_same(home, &directory)) {
        return Err(refused(
            "a run may not write to the whole machine or to a whole home directory; go to a project's directory"
                .into(),
        ));
    }
    // The machine's temporary directories contain files of other programs and users.
    if [Path::new("/tmp"), Path::new("/var/tmp"), Path::new("/dev/shm"), &request.scratch]
        .iter()
        .any(|temporary| is_same(temporary, &directory))
    {
        return Err(refused(
            "all programs on the machine share this directory; create a directory inside it and run there"
                .into(),
        ));
    }
    // Protect the parent of the directory of all runs, because it also contains the shims.
    let records = request.runs.parent().unwrap_or(&request.runs);
    let is_worktree =
        request.checkout.as_ref().is_some_and(|checkout| directory.starts_with(&checkout.worktree));
    if records.starts_with(&directory) || directory.starts_with(records) && !is_worktree {
        let problem = "guard keeps its records there, which no run may change; go to another directory";
        return Err(refused(problem.into()));
    }
    Ok(directory)
}

pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    std::fs::canonicalize(a).is_ok_and(|a| a == b)
}
