//! Plans which git paths a run may use: those of the worktree that guard created for the run or, without one, those
//! of the repository that contains the working directory. guard must never grant access to a path because of a `.git`
//! file that an agent may have written.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::RunRequest;
use super::workdir::is_same;
use crate::sandbox::{Grant, Rights};
use crate::sys::fs::{Links, read_regular_file};

/// The worktree and git directory that guard created for one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checkout {
    /// The branch to which the run commits.
    pub branch: String,
    /// The commit at which the branch begins.
    pub base: String,
    /// The run's working tree.
    pub worktree: PathBuf,
    /// The run's private git directory. The agent may change anything in it.
    pub git_folder: PathBuf,
    /// The path of a `.git` file that points to `git_folder`. In a run with a mount namespace, guard mounts it over
    /// the worktree's `.git`.
    pub pointer: PathBuf,
    /// Paths that the run may read: the object directories of the user's repository, `pointer`, and the user's
    /// untracked files to which the worktree has symbolic links.
    pub readable: Vec<PathBuf>,
    /// Dependencies in the user's checkout that the run sees in its worktree: (path in the worktree, the user's
    /// path).
    pub dependencies: Vec<(PathBuf, PathBuf)>,
    /// The directory with copies of the repository's hooks, which run inside the sandbox.
    pub hooks: PathBuf,
    /// The git directory of the user's repository that all of its worktrees share (`git rev-parse --git-common-dir`).
    pub common_dir: PathBuf,
    /// True if the user has uncommitted changes that guard did not copy into the run's worktree.
    pub leaves_changes_behind: bool,
}

impl Checkout {
    /// Returns the grants for all paths of the checkout except the worktree, to which the policy itself grants
    /// access.
    pub(crate) fn grants(&self) -> Vec<Grant> {
        let grant =
            |path: &Path, rights, why: &str| Grant { path: path.to_path_buf(), rights, why: why.to_string() };
        let mut grants = vec![
            grant(&self.git_folder, Rights::Write, "the run's private git directory"),
            grant(&self.hooks, Rights::ReadExecute, "the repository's hooks"),
        ];
        let readable = self.readable.iter();
        grants.extend(readable.map(|path| grant(path, Rights::Read, "the repository, read-only")));
        let dependencies = self.dependencies.iter();
        grants.extend(
            dependencies.map(|(_, from)| grant(from, Rights::ReadExecute, "dependencies of your checkout")),
        );
        grants
    }

    /// Returns the files that guard mounts read-only: (file, mount point). guard mounts `pointer`, the `.git`
    /// file that leads to the private git directory, over the worktree's `.git`. It mounts the configuration of that
    /// directory over itself, so that the agent cannot disable the repository's hooks.
    pub(crate) fn mounted_files(&self) -> [(PathBuf, PathBuf); 2] {
        let config = self.git_folder.join("config");
        [(self.pointer.clone(), self.worktree.join(".git")), (config.clone(), config)]
    }
}

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
