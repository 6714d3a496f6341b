//! Plans which git paths a run may use: those of the worktree that guard created for the run or, without one, those
//! of the repository that contains the working directory. guard must never grant access to a path because of a `.git`
//! file that an agent may have written.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::RunRequest;
use super::workdir::is_same;
use crate::sys::fs::{Links, read_regular_file};

/// Returns the git paths outside the working directory that a run without a worktree may read, so that git works in the
/// working directory. Returns none if guard does not trust the owner or the place of the repository that contains it.
pub(crate) fn readable_git_paths(request: &RunRequest, directory: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for level in directory.ancestors() {
        let dot_git = level.join(".git");
        let Ok(found) = dot_git.symlink_metadata() else { continue };
        // The agent cannot write above its working directory, but another user may. Like git, trust only the user's
        // own repositories.
        let is_trusted = level == directory
            || found.uid() == request.uid && !is_shared_directory(request.home.as_deref(), level);
        if !is_trusted {
            break;
        }
        if level != directory {
            // git reads the whole working tree, not only the working directory.
            paths.push(level.to_path_buf());
        }
        if found.is_dir() {
            if level != directory {
                paths.push(dot_git);
            }
        } else if let Some((own, common)) = linked_git_directories(&dot_git, level) {
            // An earlier run may have written the `.git` file, so accept only targets that the agent cannot write.
            if !own.starts_with(directory) && !common.starts_with(directory) {
                paths.extend([own, common]);
            }
        }
        break;
    }
    paths
}

/// Returns true if a directory may be in a git repository. This quick check may also return true for a directory that
/// git does not accept as part of a repository.
pub fn may_be_in_repository(folder: &Path) -> bool {
    let is_bare = |level: &Path| level.join("HEAD").is_file() && level.join("objects").is_dir();
    folder.ancestors().any(|level| level.join(".git").symlink_metadata().is_ok() || is_bare(level))
}

/// Returns true if a directory is too broad to grant access to it just because it contains a `.git`: the root
/// directory, the user's home directory or a directory above it, or a shared directory such as `/tmp`.
pub fn is_shared_directory(home: Option<&Path>, level: &Path) -> bool {
    let holds_home = home.is_some_and(|home| home.starts_with(level) || is_same(home, level));
    holds_home
        || level.parent().is_none()
        || ["/tmp", "/var/tmp", "/home", "/var", "/srv"].iter().any(|place| level == Path::new(place))
}

/// Returns the directories to which the `.git` file of a linked worktree leads: (the worktree's git directory, the
/// repository's git directory). Accepts only the structure that `git worktree add` creates: a directory
/// `COMMON/worktrees/NAME` that points back to this file. Returns `None` for any other file, because an agent may
/// have written it.
fn linked_git_directories(file: &Path, level: &Path) -> Option<(PathBuf, PathBuf)> {
    let line = |path: &Path| -> Option<PathBuf> {
        let bytes = read_regular_file(path, 8192, Links::Refuse).ok()?;
        Some(PathBuf::from(OsString::from_vec(bytes.trim_ascii().to_vec())))
    };
    let text = line(file)?.into_os_string().into_vec();
    let target = OsString::from_vec(text.strip_prefix(b"gitdir:")?.trim_ascii().to_vec());
    let own = std::fs::canonicalize(level.join(target)).ok()?;
    let common = std::fs::canonicalize(own.join(line(&own.join("commondir"))?)).ok()?;
    let is_worktree = own.parent()? == common.join("worktrees");
    let is_repository =
        common.join("HEAD").is_file() && common.join("objects").is_dir() && common.join("refs").is_dir();
    let back = std::fs::canonicalize(own.join(line(&own.join("gitdir"))?)).ok()?;
    (is_worktree && is_repository && back == std::fs::canonicalize(file).ok()?).then_some((own, common))
}
