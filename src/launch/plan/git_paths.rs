//! The git paths of a plan: those of the worktree created for the run or, without one, those of the repository that the
//! working directory lies in. A `.git` file that an agent may have written must never lead to a grant.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::RunRequest;
use super::workdir::is_same;
use crate::sandbox::{Grant, Rights};

/// The worktree and git directory created for one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checkout {
    /// The branch the run commits to.
    pub branch: String,
    /// The commit the branch starts at.
    pub base: String,
    /// The working tree.
    pub worktree: PathBuf,
    /// The run's private git directory, in which it may change anything.
    pub git_folder: PathBuf,
    /// A file that points at that directory. With a mount namespace, it is mounted over the worktree's `.git`.
    pub pointer: PathBuf,
    /// The repository's objects, and other paths the run reads.
    pub readable: Vec<PathBuf>,
    /// Installed dependencies of the user's checkout that the run sees in its own: (path in the run, the user's path).
    pub dependencies: Vec<(PathBuf, PathBuf)>,
    /// The user's hooks, which run inside the sandbox.
    pub hooks: PathBuf,
    /// The git directory of the user's repository, which all its worktrees share.
    pub common_dir: PathBuf,
    /// The user has uncommitted changes that the run does not get.
    pub leaves_changes_behind: bool,
}

impl Checkout {
    /// The grants for all of these but the worktree itself.
    pub(crate) fn grants(&self) -> Vec<Grant> {
        let grant =
            |path: &Path, rights, why: &str| Grant { path: path.to_path_buf(), rights, why: why.to_string() };
        let mut grants = vec![
            grant(&self.git_folder, Rights::Write, "the run's private git directory"),
            grant(&self.hooks, Rights::ReadExecute, "the repository's hooks"),
        ];
        grants.extend(self.readable.iter().map(|path| grant(path, Rights::Read, "the repository, to read")));
        let dependencies = self.dependencies.iter();
        grants.extend(
            dependencies.map(|(_, from)| grant(from, Rights::ReadExecute, "dependencies of your checkout")),
        );
        grants
    }

    /// Files that are mounted read-only over others: the pointer over the worktree's `.git`, and the git directory's
    /// configuration over itself, so that the agent cannot disable the user's hooks.
    pub(crate) fn mounted_files(&self) -> [(PathBuf, PathBuf); 2] {
        let config = self.git_folder.join("config");
        [(self.pointer.clone(), self.worktree.join(".git")), (config.clone(), config)]
    }
}

/// The git paths that a run without a worktree of its own may read. Paths inside the working directory are readable
/// already.
pub(crate) fn git_places(request: &RunRequest, folder: &Path) -> Vec<PathBuf> {
    let mut places = Vec::new();
    for level in folder.ancestors() {
        let dot_git = level.join(".git");
        let Ok(found) = dot_git.symlink_metadata() else { continue };
        // The agent cannot write above its directory, but another user may. git, too, trusts only the user's own.
        let is_ours =
            level == folder || found.uid() == request.uid && !is_shared_place(request.home.as_deref(), level);
        if !is_ours {
            break;
        }
        if level != folder {
            // git reads the whole working tree, which contains the directory.
            places.push(level.to_path_buf());
        }
        if found.is_dir() {
            if level != folder {
                places.push(dot_git);
            }
        } else if let Some((own, common)) = linked_git_folders(&dot_git, level) {
            // An earlier run may have written the file, so it must not lead to a directory that the agent can write.
            if !own.starts_with(folder) && !common.starts_with(folder) {
                places.extend([own, common]);
            }
        }
        break;
    }
    places
}

/// Whether a directory may lie in a repository: a quick check that rules most others out.
pub fn may_be_in_repository(folder: &Path) -> bool {
    let is_bare = |level: &Path| level.join("HEAD").is_file() && level.join("objects").is_dir();
    folder.ancestors().any(|level| level.join(".git").symlink_metadata().is_ok() || is_bare(level))
}

/// Directories that are too broad to grant because of a `.git` in them.
pub fn is_shared_place(home: Option<&Path>, level: &Path) -> bool {
    let holds_home = home.is_some_and(|home| home.starts_with(level) || is_same(home, level));
    holds_home
        || level.parent().is_none()
        || ["/tmp", "/var/tmp", "/home", "/var", "/srv"].iter().any(|place| level == Path::new(place))
}

/// The targets of a `.git` file: the worktree's own git directory and the repository's. Accepts only what `git worktree
/// add` creates: `COMMON/worktrees/NAME`, which points back at this very file. So a planted file leads nowhere.
fn linked_git_folders(file: &Path, level: &Path) -> Option<(PathBuf, PathBuf)> {
    let line = |path: &Path| -> Option<PathBuf> {
        let bytes = std::fs::read(path).ok().filter(|bytes| bytes.len() < 8192)?;
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
