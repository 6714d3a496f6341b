//! The worktree and the git directory of a run.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::sandbox::{Grant, Rights};

/// The worktree and git directory that guard created for one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checkout {
    /// The branch to which the run commits.
    pub branch: String,
    /// The commit at which the branch begins.
    pub base: String,
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
    /// Texts for the user about files of the checkout that guard left out of the run because of symbolic links.
    pub notes: Vec<String>,
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
