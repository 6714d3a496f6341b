//! git's side of a plan: the worktree and git directory that were made for a run, or the repository it happens to lie in.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::RunRequest;
use super::workdir::is_same;
use crate::sandbox::{Grant, Rights};

/// What was made of a repository for one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checkout {
    /// The branch the run commits to.
    pub branch: String,
    /// The commit it begins at.
    pub base: String,
    /// The working tree.
    pub worktree: PathBuf,
    /// The run's private git directory, which it may do with what it likes.
    pub git_folder: PathBuf,
    /// A file that leads to that directory: takes the place of the worktree's `.git` where the run has mounts of its own.
    pub pointer: PathBuf,
    /// The repository's objects, and other things the run reads.
    pub readable: Vec<PathBuf>,
    /// Installed dependencies of the user's checkout that the run sees in its own: (where, the user's).
    pub dependencies: Vec<(PathBuf, PathBuf)>,
    /// The user's hooks, which run inside.
    pub hooks: PathBuf,
    /// The user's repository: the git directory that all its worktrees share.
    pub common_dir: PathBuf,
    /// The user has changes that are not committed, and that the run does not get.
    pub leaves_changes_behind: bool,
}

impl Checkout {
    /// What the run may do with all this, beside writing in the worktree.
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

    /// Files that are mounted, read-only, over others: the pointer over the worktree's `.git`, and the git directory's
    /// configuration over itself, so that the user's hooks cannot be switched off.
    pub(crate) fn mounted_files(&self) -> [(PathBuf, PathBuf); 2] {
        let config = self.git_folder.join("config");
        [(self.pointer.clone(), self.worktree.join(".git")), (config.clone(), config)]
    }
}

/// What of a repository a run in a directory of it can read, where no worktree was made for it. What lies inside the directory
/// can be read with it.
pub(crate) fn git_places(request: &RunRequest, folder: &Path) -> Vec<PathBuf> {
    let mut places = Vec::new();
    for level in folder.ancestors() {
        let dot_git = level.join(".git");
        let Ok(found) = dot_git.symlink_metadata() else { continue };
        // Above the directory nothing is the agent's, but it may be another user's: git trusts only one's own as well.
        let is_ours =
            level == folder || found.uid() == request.uid && !is_shared_place(request.home.as_deref(), level);
        if !is_ours {
            break;
        }
        if level != folder {
            // git looks at the whole working tree, of which the directory is a part.
            places.push(level.to_path_buf());
        }
        if found.is_dir() {
            if level != folder {
                places.push(dot_git);
            }
        } else if let Some((own, common)) = linked_git_folders(&dot_git, level) {
            // An earlier run may have written the file: it must not lead to anything the agent can write, either.
            if !own.starts_with(folder) && !common.starts_with(folder) {
                places.extend([own, common]);
            }
        }
        break;
    }
    places
}

/// Whether a directory may lie in a repository: a quick look that rules most others out.
pub fn may_be_in_repository(folder: &Path) -> bool {
    let is_bare = |level: &Path| level.join("HEAD").is_file() && level.join("objects").is_dir();
    folder.ancestors().any(|level| level.join(".git").symlink_metadata().is_ok() || is_bare(level))
}

/// Directories that are too much to hand out because somebody put a `.git` there.
pub fn is_shared_place(home: Option<&Path>, level: &Path) -> bool {
    let holds_home = home.is_some_and(|home| home.starts_with(level) || is_same(home, level));
    holds_home
        || level.parent().is_none()
        || ["/tmp", "/var/tmp", "/home", "/var", "/srv"].iter().any(|place| level == Path::new(place))
}

/// Where a `.git` file leads: the worktree's own git directory and the repository's. Only what `git worktree add` makes: the
/// own directory is `COMMON/worktrees/NAME` and points back at this very file. So a planted file leads nowhere.
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
