//! Compares the state of a directory before a run with that after it.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::path::PathBuf;

use super::manifest::{After, Content, Items, Outcome};
use super::tree::{FileState, Found, Tree};
use crate::git::dispose::uncommitted::Changed;
use crate::git::snapshot::{Name, OpenDirectory};
use crate::sys::fs::{Walk, open_in};

/// What a run changed.
pub(super) struct Compared {
    pub(super) after: After,
    pub(super) files: Vec<(PathBuf, Changed)>,
    pub(super) is_complete: bool,
    pub(super) lost_repositories: Vec<PathBuf>,
}

/// True if an entry `.git` of the user, with this state before the run, is not in its place any more.
pub(super) fn is_lost(before: &FileState, found: Option<&Found>) -> bool {
    // guard itself writes the `.git` file of a worktree.
    found.is_none_or(|found| before.is_directory() && found.state.inode != before.inode)
}

/// Compares the state before a run, which is complete if `is_complete` is true, with `tree`, the state after it. If it
/// is incomplete, guard cannot know which files the run created.
pub(super) fn compare(before: &Items, is_complete: bool, tree: &Tree, top: &OpenDirectory) -> Compared {
    let mut after: After = BTreeMap::new();
    let (mut files, mut lost_repositories) = (Vec::new(), Vec::new());
    for (path, item) in before {
        if item.content == Content::Repository {
            let found = tree.entries.get(path);
            if is_lost(&item.state, found)
                && (found.is_some() || tree.unseen.is_none() || is_missing(top, path))
            {
                let outcome = found.map_or(Outcome::Deleted, |found| Outcome::State(found.state.clone()));
                after.insert(path.clone(), outcome);
                files.push((path.path(), Changed::Deleted));
                lost_repositories.push(path.path());
            }
            continue;
        }
        let (outcome, change) = match tree.entries.get(path) {
            Some(found) if found.state.is_same(&item.state) => continue,
            Some(found) => (Outcome::State(found.state.clone()), Some(Changed::Modified)),
            // The list after the run may lack entries that exist.
            None if tree.unseen.is_some() && !is_missing(top, path) => (Outcome::Unknown, None),
            None => (Outcome::Deleted, Some(Changed::Deleted)),
        };
        let is_directory = |outcome: &Outcome| match outcome {
            Outcome::State(state) => state.is_directory(),
            Outcome::Deleted | Outcome::Unknown => true,
        };
        if let Some(change) = change
            && !(item.state.is_directory() && is_directory(&outcome))
        {
            files.push((path.path(), change));
        }
        after.insert(path.clone(), outcome);
    }
    for (path, found) in &tree.entries {
        if before.contains_key(path) || !is_complete {
            continue;
        }
        // The files in a repository that the run made are not listed one by one.
        let is_listed = match created_repository(path, before) {
            Some(repository) => repository == *path,
            None => !found.state.is_directory(),
        };
        if is_listed {
            files.push((path.path(), Changed::Created));
        }
        after.insert(path.clone(), Outcome::State(found.state.clone()));
    }
    files.sort();
    Compared { after, files, is_complete: is_complete && tree.unseen.is_none(), lost_repositories }
}

/// Returns the outermost entry `.git` on the way to a path, or at it, if that did not exist before the run.
pub(super) fn created_repository(path: &Name, before: &Items) -> Option<Name> {
    let ends = path.bytes().split(|byte| *byte == b'/').scan(0, |end, part| {
        *end += part.len() + 1;
        Some((part, *end - 1))
    });
    let repository =
        ends.filter(|(part, _)| *part == b".git").map(|(_, end)| Name::from(&path.bytes()[..end])).next()?;
    (!before.contains_key(&repository)).then_some(repository)
}

/// True if nothing exists at a path below a directory.
pub(super) fn is_missing(top: &OpenDirectory, path: &Name) -> bool {
    let Ok(name) = CString::new(path.bytes()) else { return true };
    let error = open_in(top.as_fd(), &name, Walk::Beneath, false).err();
    // Also if a file or a link has taken the place of a directory on the way.
    error
        .is_some_and(|error| matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP)))
}
