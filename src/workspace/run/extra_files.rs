//! Brings files that builds need but git does not track (`node_modules`, `.venv`, `.env.test`) into a
//! worktree, as copies or as symbolic links.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::sys::remove_tree::remove_tree;
use crate::workspace::git::gitfile::{Budget, copy_tree};

/// A file or directory that was brought into a worktree.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExtraFile {
    /// The path in the worktree.
    #[serde(with = "super::run_record::path")]
    pub path: PathBuf,
    /// It is a symbolic link to the user's file, not a copy.
    pub is_link: bool,
    /// A directory of the user's under a writable layer of the run; a symbolic link if the run has no mount
    /// namespace.
    #[serde(default)]
    pub is_layer: bool,
    /// The user's original.
    #[serde(with = "super::run_record::path")]
    pub from: PathBuf,
    /// A digest of the copy's metadata when it was made.
    pub seal: String,
}

/// Brings these paths from the user's worktree. Skips paths that are missing, already exist, or lead out of
/// `within`. Also skips paths that would be written through a symbolic link, which the commit may contain in
/// place of a directory.
pub(crate) fn bring(
    from: &Path,
    within: Option<&Path>,
    to: &Path,
    copy: &[String],
    link: &[String],
) -> io::Result<Vec<ExtraFile>> {
    let within = within.map(Path::canonicalize).transpose()?;
    let mut brought: Vec<ExtraFile> = Vec::new();
    let wanted = copy.iter().map(|path| (path, false)).chain(link.iter().map(|path| (path, true)));
    for (path, is_link) in wanted {
        let path = PathBuf::from(path);
        if !is_inside(&path) || brought.iter().any(|known| known.path == path) {
            continue;
        }
        let (source, place) = (from.join(&path), to.join(&path));
        let Ok(source) = source.canonicalize() else { continue };
        let leads_out = within.as_ref().is_some_and(|root| !source.starts_with(root));
        if leads_out || place.symlink_metadata().is_ok() || !is_way_plain(to, &path) {
            continue;
        }
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent)?;
        }
        let seal = if is_link {
            symlink(&source, &place)?;
            String::new()
        } else {
            copy_tree(&source, &place, &mut Budget { bytes: u64::MAX, ..Budget::default() })?;
            seal(&place)?
        };
        brought.push(ExtraFile { path, is_link, is_layer: false, from: source, seal });
    }
    Ok(brought)
}

/// The directories of the user's worktree that the run gets as layers. They are only selected here, and put
/// in place later, when it is known whether the run has its own mount namespace. Skips paths that are in the
/// commit or lead out of the user's worktree.
pub(crate) fn layers(from: &Path, to: &Path, paths: &[PathBuf]) -> io::Result<Vec<ExtraFile>> {
    let from = from.canonicalize()?;
    let layer = |path: &PathBuf| {
        let source = from.join(path).canonicalize().ok().filter(|source| source.starts_with(&from))?;
        let is_free = is_inside(path) && to.join(path).symlink_metadata().is_err() && is_way_plain(to, path);
        // If another commit lacks the parent directory, nothing uses its dependencies.
        let is_wanted = path.parent().is_some_and(|parent| to.join(parent).is_dir());
        (is_free && is_wanted).then(|| ExtraFile {
            path: path.clone(),
            is_link: true,
            is_layer: true,
            from: source,
            seal: String::new(),
        })
    };
    Ok(paths.iter().filter_map(layer).collect())
}

/// A line for an ignore file that matches exactly this path, whether symbolic link or directory.
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

/// True if every existing parent of the path is a real directory.
pub(crate) fn is_way_plain(top: &Path, path: &Path) -> bool {
    let above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
    above
        .map(|above| top.join(above).symlink_metadata())
        .all(|data| data.map_or_else(|error| error.kind() == io::ErrorKind::NotFound, |data| data.is_dir()))
}

/// True for a relative path that stays below its start and does not enter `.git`.
pub fn is_inside(path: &Path) -> bool {
    let plain =
        path.components().all(|part| matches!(part, Component::Normal(name) if name != OsStr::new(".git")));
    plain && path.components().next().is_some()
}

/// A digest of names, sizes and change times of a tree: it differs if anything in the tree was touched.
fn seal(tree: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    add(tree, &mut hasher)?;
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn add(path: &Path, hasher: &mut Sha256) -> io::Result<()> {
    let data = path.symlink_metadata()?;
    hasher.update(path.as_os_str().as_bytes());
    // No program can set the ctime.
    let facts =
        [data.ino(), u64::from(data.mode()), data.size(), data.ctime() as u64, data.ctime_nsec() as u64];
    facts.iter().for_each(|fact| hasher.update(fact.to_le_bytes()));
    if data.is_dir() {
        let mut names: Vec<PathBuf> =
            fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        names.sort();
        names.iter().try_for_each(|name| add(name, hasher))?;
    }
    Ok(())
}

/// Removes what is still unchanged since it was brought. `is_ignored` tells which paths the user's git would
/// not show anyway.
pub(crate) fn take_back(
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
                // The mount point of the layer. If it is not empty, its contents are the agent's and stay.
                let _ = fs::remove_dir(&place);
            }
        } else if !is_ignored(&one.path) && seal(&place).is_ok_and(|now| now == one.seal) {
            remove_tree(&place)?;
        }
    }
    Ok(())
}
