//! Finds the worktree that has a branch checked out, starting from the user's repository, to continue work in
//! it.
//!
//! An agent wrote the worktree's files. What they claim about their repository (a replaced `.git`, a
//! directory that became a symbolic link) is compared with git's own directory, which no agent can write.
//! Nothing is discovered from inside the worktree.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::gitfile::read_small;
use super::repository::{PATIENCE, Repository};
use crate::workspace::{WorkspaceError, at};

impl Repository {
    /// The repository as seen from the linked worktree that has this branch (without `refs/heads/`) checked
    /// out. The worktree must be at this path.
    pub fn at_branch(&self, branch: &str, worktree: &Path) -> Result<Self, WorkspaceError> {
        let lost = |why: String| Err(WorkspaceError::Lost(format!("the worktree of {branch} {why}")));
        let name = format!("refs/heads/{branch}");
        let listing = self.git("worktree")?.args(["list", "--porcelain", "-z"]).limit(PATIENCE).run()?;
        let Some(place) = place_of(&listing, &name) else {
            return lost("is not there any more".to_string());
        };
        if place != worktree {
            return lost(format!("was {} and is {} now", worktree.display(), place.display()));
        }
        if !place.symlink_metadata().is_ok_and(|data| data.is_dir()) {
            return lost(format!("is no directory any more: {}", place.display()));
        }
        let Some(git_dir) = self.own_folder(&place)? else {
            return lost("is the repository's main one".to_string());
        };
        let dot_git = place.join(".git");
        if !leads_to(&dot_git, b"gitdir: ", &place, &git_dir) {
            return lost(format!(
                "does not lead to its repository: {} (`guard worktree list` shows runs that were cut)",
                dot_git.display()
            ));
        }
        let mut found = Self { git_dir, toplevel: Some(place), bare: false, ..self.clone() };
        found.head = found.read_head()?;
        Ok(found)
    }

    /// True if a branch of this name (without `refs/heads/`) exists.
    pub fn has_branch(&self, branch: &str) -> Result<bool, WorkspaceError> {
        Ok(self.commit(&format!("refs/heads/{branch}"))?.is_some())
    }

    /// git's own directory of the linked worktree at this path.
    fn own_folder(&self, place: &Path) -> Result<Option<PathBuf>, WorkspaceError> {
        let all = self.common_dir.join("worktrees");
        let entries = match std::fs::read_dir(&all) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            entries => at("read", &all, entries)?,
        };
        let dot_git = place.join(".git");
        let names_it = |folder: &PathBuf| leads_to(&folder.join("gitdir"), b"", folder, &dot_git);
        Ok(entries.flatten().map(|entry| entry.path()).find(names_it))
    }
}

/// The path of the worktree that has a branch, from the output of `git worktree list --porcelain -z`.
fn place_of(listing: &[u8], branch: &str) -> Option<PathBuf> {
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

/// True if a small one-line file names the path `wanted`, relative to `from`.
fn leads_to(file: &Path, prefix: &[u8], from: &Path, wanted: &Path) -> bool {
    let Ok(text) = read_small(file, 8192) else { return false };
    let Some(target) = text.strip_prefix(prefix) else { return false };
    let target = from.join(OsStr::from_bytes(target.trim_ascii_end()));
    // Compare as text if that is enough. A relative path only matches as the existing file.
    target == wanted || matches!((target.canonicalize(), wanted.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_has_one_place() {
        let listing = b"worktree /a\0HEAD 1\0branch refs/heads/main\0\0worktree /b c\nd\0HEAD 2\0branch refs/heads/task/x\0locked guard\0\0worktree /e\0HEAD 3\0detached\0\0";
        assert_eq!(place_of(listing, "refs/heads/main"), Some(PathBuf::from("/a")));
        assert_eq!(place_of(listing, "refs/heads/task/x"), Some(PathBuf::from("/b c\nd")));
        assert_eq!(place_of(listing, "refs/heads/task"), None);
        assert_eq!(place_of(b"", "refs/heads/task"), None);
    }
}
