//! Copies the user's uncommitted changes into a task's worktree, on request.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::extra_files::{is_inside, is_way_plain};
use crate::workspace::git::gitfile::{Budget, copy_tree};
use crate::workspace::git::repository::Repository;
use crate::workspace::{WorkspaceError, at};

/// Maximum size of the diff.
const LARGEST_DIFFERENCE: usize = 256 << 20;
/// Maximum size of one untracked file.
const LARGEST_FILE: u64 = 256 << 20;

/// Applies the user's changes, additions and deletions since `HEAD` to a new worktree of the same commit.
/// Ignored files are not copied. Returns the number of paths.
pub(crate) fn carry(
    repository: &Repository,
    top: &Path,
    worktree: &Path,
    admin_dir: &Path,
) -> Result<usize, WorkspaceError> {
    let shape = ["--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"];
    let call = repository.git("diff")?.worktree(top).within(top).most(LARGEST_DIFFERENCE);
    let difference = call.args(shape).args(["--ignore-submodules=all", "HEAD", "--"]).run()?;
    let files =
        difference.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"diff --git ")).count();
    if !difference.is_empty() {
        let call = repository.git("apply")?.dir(admin_dir).worktree(worktree).within(worktree);
        call.args(["--whitespace=nowarn", "--binary", "-"]).input(difference).run()?;
    }
    let call = repository.git("ls-files")?.worktree(top).within(top);
    let names = call.args(["--others", "--exclude-standard", "-z"]).run()?;
    let mut untracked = 0;
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let path = Path::new(OsStr::from_bytes(name.strip_suffix(b"/").unwrap_or(name)));
        let place = worktree.join(path);
        // A nested repository is listed with a trailing slash, and is not copied.
        let is_repository = name.ends_with(b"/");
        if is_repository
            || !is_inside(path)
            || place.symlink_metadata().is_ok()
            || !is_way_plain(worktree, path)
        {
            continue;
        }
        if let Some(parent) = place.parent() {
            at("make", parent, std::fs::create_dir_all(parent))?;
        }
        let mut budget = Budget { bytes: LARGEST_FILE, ..Budget::default() };
        at("copy to", &place, copy_tree(&top.join(path), &place, &mut budget))?;
        untracked += 1;
    }
    Ok(files + untracked)
}
