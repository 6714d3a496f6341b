//! Finds the worktree in which a branch is checked out, starting from the user's repository, so that another run can
//! continue in that worktree.
//!
//! An agent wrote the worktree's files, and may have replaced its `.git` or the worktree itself. Therefore guard
//! compares both with the worktree's git directory in the repository, which no agent can write. guard never lets git
//! discover a repository from inside the worktree.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::gitfile::read_small;
use super::repository::{QUERY_TIMEOUT, Repository};
use crate::git::{WorkspaceError, at};

impl Repository {
    /// Returns the same repository, opened at the linked worktree that has this branch (without `refs/heads/`)
    /// checked out. Fails with [`WorkspaceError::Lost`] if there is no such worktree, if guard finds that its directory
    /// or `.git` file was replaced, or if its path is not `expected`.
    pub fn at_branch(&self, branch: &str, expected: Option<&Path>) -> Result<Self, WorkspaceError> {
        let lost = |why: String| Err(WorkspaceError::Lost(format!("the worktree of {branch} {why}")));
        let name = format!("refs/heads/{branch}");
        let listing =
            self.git("worktree")?.args(["list", "--porcelain", "-z"]).timeout(QUERY_TIMEOUT).run()?;
        let Some(place) = worktree_with_branch(&listing, &name) else {
            return lost("no longer exists".to_string());
        };
        if let Some(expected) = expected.filter(|expected| place != **expected) {
            return lost(format!("moved from {} to {}", expected.display(), place.display()));
        }
        if !place.symlink_metadata().is_ok_and(|data| data.is_dir()) {
            return lost(format!("is no longer a directory: {}", place.display()));
        }
        let Some(git_dir) = self.find_admin_dir(&place)? else {
            return lost("is the main worktree of the repository, not a linked one".to_string());
        };
        let dot_git = place.join(".git");
        if !names_path(&dot_git, b"gitdir: ", &place, &git_dir) {
            return lost(format!(
                "is not connected to its repository: {} does not name the expected git directory \
                 (`guard worktree list` shows interrupted runs)",
                dot_git.display()
            ));
        }
        let mut found = Self { git_dir, toplevel: Some(place), bare: false, ..self.clone() };
        found.head = found.read_head()?;
        Ok(found)
    }

    /// True if a branch with this name (without `refs/heads/`) exists.
    pub fn has_branch(&self, branch: &str) -> Result<bool, WorkspaceError> {
        Ok(self.commit(&format!("refs/heads/{branch}"))?.is_some())
    }

    /// Returns the git directory, below `worktrees/` in the repository, of the linked worktree at the path `place`;
    /// `None` if there is no linked worktree at this path.
    fn find_admin_dir(&self, place: &Path) -> Result<Option<PathBuf>, WorkspaceError> {
        let all = self.common_dir.join("worktrees");
        let entries = match std::fs::read_dir(&all) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            entries => at("read", &all, entries)?,
        };
        let dot_git = place.join(".git");
        let names_it = |dir: &PathBuf| names_path(&dir.join("gitdir"), b"", dir, &dot_git);
        Ok(entries.flatten().map(|entry| entry.path()).find(names_it))
    }
}

/// Returns the path of the worktree that has the branch with the full name `branch` checked out; `None` if there is
/// none. `listing` is the output of `git worktree list --porcelain -z`.
fn worktree_with_branch(listing: &[u8], branch: &str) -> Option<PathBuf> {
    let mut place = None;
    for field in listing.split(|byte| *byte == 0) {
        if let Some(path) = field.strip_prefix(b"worktree ") {
            place = Some(PathBuf::from(OsStr::from_bytes(path)));
        } else if field.strip_prefix(b"branch ") == Some(branch.as_bytes()) {
            return place;
        }
    }
    None
}

/// True if the file `file` consists of `prefix` and a path, possibly relative to `from`, that is equal to `wanted` or
/// resolves to the same file. False if guard cannot read `file`.
fn names_path(file: &Path, prefix: &[u8], from: &Path, wanted: &Path) -> bool {
    let Ok(text) = read_small(file, 8192) else { return false };
    let Some(target) = text.strip_prefix(prefix) else { return false };
    let target = from.join(OsStr::from_bytes(target.trim_ascii_end()));
    // Compare the paths as text first. Otherwise both must resolve to the same file.
    target == wanted || matches!((target.canonicalize(), wanted.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_has_one_place() {
        let listing = b"worktree /a\0HEAD 1\0branch refs/heads/main\0\0worktree /b c\nd\0HEAD 2\0branch refs/heads/task/x\0locked guard\0\0worktree /e\0HEAD 3\0detached\0\0";
        assert_eq!(worktree_with_branch(listing, "refs/heads/main"), Some(PathBuf::from("/a")));
        assert_eq!(worktree_with_branch(listing, "refs/heads/task/x"), Some(PathBuf::from("/b c\nd")));
        assert_eq!(worktree_with_branch(listing, "refs/heads/task"), None);
        assert_eq!(worktree_with_branch(b"", "refs/heads/task"), None);
    }
}
