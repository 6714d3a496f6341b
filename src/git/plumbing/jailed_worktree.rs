//! Builds jailed git calls on a working tree that an agent wrote. Each call names the repository explicitly, so
//! that git ignores any `.git` in the working tree.

use std::fs;
use std::path::{Path, PathBuf};

use super::command::{Git, Trust, program};
use super::jail::{Bounds, Jail};
use crate::git::{WorkspaceError, at};

/// A working tree whose files an agent wrote, and the git directories that guard uses with it.
pub(crate) struct JailedWorktree<'t> {
    pub(crate) common_dir: &'t Path,
    pub(crate) admin_dir: &'t Path,
    pub(crate) worktree: &'t Path,
    pub(crate) objects: &'t [PathBuf],
    pub(crate) object_format: &'t str,
    /// The path of the user's global ignore file (`core.excludesFile`). The file need not exist.
    pub(crate) excludes: &'t Path,
    /// The directory that git may write to. If a call writes objects, git may also write to the repository's object
    /// directory.
    pub(crate) scratch: &'t Path,
}

impl JailedWorktree<'_> {
    /// Builds a jailed (sandboxed) git call on the working tree. git ignores the tree's `.gitattributes` files,
    /// because they can choose programs that git runs. With `writes_objects`, git may store objects in the first of the
    /// object directories.
    pub(crate) fn git(&self, verb: &str, writes_objects: bool) -> Result<Git, WorkspaceError> {
        at("create", self.scratch, fs::create_dir_all(self.scratch))?;
        let mut write: Vec<&Path> = vec![self.scratch];
        write.extend(self.objects.first().filter(|_| writes_objects).map(PathBuf::as_path));
        let mut read: Vec<&Path> = vec![self.worktree, self.common_dir, self.excludes];
        read.extend(self.objects.iter().map(PathBuf::as_path));
        let bounds = Bounds { cpu_seconds: 3600, memory: 4 << 30, file: libc::RLIM_INFINITY };
        let jail = Jail::new(program()?, &read, &write, false, bounds)?;
        let mut git = Git::new(Trust::Neutral, verb)?
            .git_dir(self.admin_dir)
            .worktree(self.worktree)
            .env("GIT_ATTR_SOURCE", empty_tree(self.object_format))
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("GIT_AUTHOR_NAME", "guard")
            .env("GIT_AUTHOR_EMAIL", "guard@localhost")
            .env("GIT_COMMITTER_NAME", "guard")
            .env("GIT_COMMITTER_EMAIL", "guard@localhost")
            .jailed(jail);
        if self.excludes.is_file() {
            git = git.config("core.excludesFile", self.excludes.to_path_buf());
        }
        Ok(git)
    }
}

fn empty_tree(object_format: &str) -> &'static str {
    match object_format {
        "sha256" => "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
        _ => "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    }
}
