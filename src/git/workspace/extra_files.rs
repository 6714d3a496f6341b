//! Copies or links untracked files that builds need (`node_modules`, `.venv`, `.env.test`) from the user's
//! worktree into the worktree of a run.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::checkout_files::{CheckoutFiles, open_plain_directory};
use crate::sys::copy_tree::{CopyBudget, copy_opened, open_directory};
use crate::sys::remove_tree::remove_tree;

/// An untracked file or directory of the user that guard copied or linked into the worktree of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExtraFile {
    /// The path of the copy or link, relative to the top of the run's worktree.
    #[serde(with = "super::path_text")]
    pub path: PathBuf,
    /// True if guard made a symbolic link to the user's file, or if `is_layer` is true; false if guard made a copy.
    pub is_link: bool,
    /// True if guard shows the user's directory to the run through an overlay mount: what the run writes there does
    /// not change the user's directory. Without a mount namespace the run gets a symbolic link instead.
    #[serde(default)]
    pub is_layer: bool,
    /// The path of the user's file or directory.
    #[serde(with = "super::path_text")]
    pub from: PathBuf,
    /// A digest of the copy's metadata, taken right after guard made the copy; empty for a link.
    pub seal: String,
}

/// Copies the paths `copy` and links the paths `link` from the user's worktree `from` into the worktree `to`. Skips
/// paths that are missing in `from` or already exist in `to`, and paths that `files` leaves out. Also skips paths below a
/// symbolic link, because the commit may contain a link in place of a directory.
pub(crate) fn install(
    from: &Path,
    to: &Path,
    copy: &[String],
    link: &[String],
    files: &mut CheckoutFiles,
) -> io::Result<Vec<ExtraFile>> {
    let mut brought: Vec<ExtraFile> = Vec::new();
    let wanted = copy.iter().map(|path| (path, false)).chain(link.iter().map(|path| (path, true)));
    for (name, is_link) in wanted {
        let path = PathBuf::from(name);
        let place = to.join(&path);
        if !is_inside(&path)
            || brought.iter().any(|known| known.path == path)
            || place.symlink_metadata().is_ok()
            || !has_plain_parents(to, &path)
        {
            continue;
        }
        let Some(source) = files.open(name, &from.join(&path))? else { continue };
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        let seal = if is_link {
            symlink(&source.real, &place)?;
            String::new()
        } else {
            let mut budget = CopyBudget { bytes: u64::MAX, ..CopyBudget::default() };
            copy_opened(&source.file, &place, &mut budget)?;
            metadata_digest(&place)?
        };
        brought.push(ExtraFile { path, is_link, is_layer: false, from: source.real, seal });
    }
    Ok(brought)
}

/// Selects the directories of the user's worktree that the run gets as overlay mounts. The launcher mounts or links
/// them later, when it knows whether the run has a mount namespace. Skips paths that already exist in the run's
/// worktree or have no parent directory there, and paths with a symbolic link in the user's worktree.
pub(crate) fn select_layers(from: &Path, to: &Path, paths: &[PathBuf]) -> io::Result<Vec<ExtraFile>> {
    let from = from.canonicalize()?;
    let top = open_directory(&from)?;
    let layer = |path: &PathBuf| {
        open_plain_directory(&top, path).ok()?;
        let is_free =
            is_inside(path) && to.join(path).symlink_metadata().is_err() && has_plain_parents(to, path);
        // If the run's commit has no such parent directory, nothing in the run uses the dependencies.
        let is_wanted = path.parent().is_some_and(|parent| to.join(parent).is_dir());
        (is_free && is_wanted).then(|| ExtraFile {
            path: path.clone(),
            is_link: true,
            is_layer: true,
            from: from.join(path),
            seal: String::new(),
        })
    };
    Ok(paths.iter().filter_map(layer).collect())
}

/// Formats a line for a git ignore file that matches only this path, both as a symbolic link and as a directory.
pub(crate) fn ignore_line(path: &Path) -> Vec<u8> {
    let mut line = b"/".to_vec();
    for &byte in path.as_os_str().as_bytes() {
        if matches!(byte, b'\\' | b'*' | b'?' | b'[' | b' ') {
            line.push(b'\\');
        }
        line.push(byte);
    }
    line.push(b'\n');
    line
}

/// True if every existing parent of the path below `top` is a real directory, and not a symbolic link to one.
pub(crate) fn has_plain_parents(top: &Path, path: &Path) -> bool {
    let above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
    above
        .map(|above| top.join(above).symlink_metadata())
        .all(|data| data.map_or_else(|error| error.kind() == io::ErrorKind::NotFound, |data| data.is_dir()))
}

/// True for a non-empty relative path without `..` and without a component `.git`.
pub fn is_inside(path: &Path) -> bool {
    let plain =
        path.components().all(|part| matches!(part, Component::Normal(name) if name != OsStr::new(".git")));
    plain && path.components().next().is_some()
}

/// Returns a digest of the paths, inodes, modes, sizes and ctimes of all files in a tree. The digest changes if a
/// program writes to anything in the tree.
fn metadata_digest(tree: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    hash_metadata(tree, &mut hasher)?;
    Ok(crate::text::hex::encode(hasher.finalize()))
}

fn hash_metadata(path: &Path, hasher: &mut Sha256) -> io::Result<()> {
    let data = path.symlink_metadata()?;
    hasher.update(path.as_os_str().as_bytes());
    // Use the ctime, because no program can set it.
    let facts =
        [data.ino(), u64::from(data.mode()), data.size(), data.ctime() as u64, data.ctime_nsec() as u64];
    facts.iter().for_each(|fact| hasher.update(fact.to_le_bytes()));
    if data.is_dir() {
        let mut names: Vec<PathBuf> =
            fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        names.sort();
        names.iter().try_for_each(|name| hash_metadata(name, hasher))?;
    }
    Ok(())
}

/// True if the copy in the run's worktree has not changed since guard made it.
pub(crate) fn is_unchanged_copy(worktree: &Path, one: &ExtraFile) -> bool {
    !one.is_link && metadata_digest(&worktree.join(&one.path)).is_ok_and(|now| now == one.seal)
}

/// Removes the copies and links that have not changed since guard made them. Keeps copies for which `is_ignored`
/// returns true, because git does not show them as new files.
pub(crate) fn remove_unchanged(
    worktree: &Path,
    brought: &[ExtraFile],
    is_ignored: impl Fn(&Path) -> bool,
) -> io::Result<()> {
    for one in brought {
        let place = worktree.join(&one.path);
        let is_there =
            place.parent().is_some_and(|parent| parent.canonicalize().is_ok_and(|real| real == parent));
        if !is_there {
            continue;
        }
        if one.is_link {
            if fs::read_link(&place).is_ok_and(|target| target == one.from) {
                fs::remove_file(&place)?;
            } else if one.is_layer {
                // The path is the mount point of an overlay. If it is not empty, the agent wrote the files in it:
                // keep them.
                let _ = fs::remove_dir(&place);
            }
        } else if !is_ignored(&one.path) && is_unchanged_copy(worktree, one) {
            remove_tree(&place)?;
        }
    }
    Ok(())
}
