//! The worktree that has a branch, found from the user's repository: to go on in it.
//!
//! Its files are an agent's. What they say about where they belong (a `.git` that was replaced, a directory that became a
//! link) is held against what git's own directory says, which no agent can write; nothing is looked for from inside it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::gitfile::read_small;
use super::repository::{PATIENCE, Repository};
use crate::workspace::{WorkspaceError, at};

impl Repository {
    /// The repository as it is seen from the linked worktree that has this branch (without `refs/heads/`), which must be
    /// at this place.
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

    /// True when there is a branch of this name (without `refs/heads/`).
    pub fn has_branch(&self, branch: &str) -> Result<bool, WorkspaceError> {
        Ok(self.commit(&format!("refs/heads/{branch}"))?.is_some())
    }

    /// git's own directory of a linked worktree: the one that names this place.
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

/// The worktree that has a branch, as `git worktree list --porcelain -z` tells it.
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

/// Whether a small plain file of one line leads to a path, from a directory.
fn leads_to(file: &Path, prefix: &[u8], from: &Path, wanted: &Path) -> bool {
    let Ok(text) = read_small(file, 8192) else { return false };
    let Some(target) = text.strip_prefix(prefix) else { return false };
    let target = from.join(OsStr::from_bytes(target.trim_ascii_end()));
    // Compared as text where that is enough; a relative one only as the thing that is there.
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
