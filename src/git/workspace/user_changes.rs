//! Copies the user's uncommitted changes into the worktree of a run, if the user asked for that.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::extra_files::{has_plain_parents, is_inside};
use crate::git::plumbing::repository::Repository;
use crate::git::{WorkspaceError, at};
use crate::sys::copy_tree::{CopyBudget, copy_path, open_directory};

/// Maximum size of the diff of the user's uncommitted changes, in bytes.
const MAX_DIFF_BYTES: usize = 256 << 20;
/// Maximum size of an untracked file that guard copies, in bytes.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Applies the user's changes since `HEAD`, including new and deleted files, to a new worktree at the same commit.
/// Does not copy ignored files and nested repositories. Returns the number of changed paths. Fails if the diff or an
/// untracked file is larger than 256 MiB.
pub(crate) fn apply(
    repository: &Repository,
    top: &Path,
    worktree: &Path,
    admin_dir: &Path,
) -> Result<usize, WorkspaceError> {
    let shape = ["--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"];
    let call = repository.git("diff")?.worktree(top).current_dir(top).max_output(MAX_DIFF_BYTES);
    let difference = call.args(shape).args(["--ignore-submodules=all", "HEAD", "--"]).run()?;
    let files =
        difference.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"diff --git ")).count();
    if !difference.is_empty() {
        let call = repository.git("apply")?.git_dir(admin_dir).worktree(worktree).current_dir(worktree);
        call.args(["--whitespace=nowarn", "--binary", "-"]).input(difference).run()?;
    }
    let call = repository.git("ls-files")?.worktree(top).current_dir(top);
    let names = call.args(["--others", "--exclude-standard", "-z"]).run()?;
    let top = at("open", top, top.canonicalize().and_then(|top| open_directory(&top)))?;
    let mut untracked = 0;
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let path = Path::new(OsStr::from_bytes(name.strip_suffix(b"/").unwrap_or(name)));
        let place = worktree.join(path);
        // git lists a nested repository with a trailing slash. guard does not copy it.
        let is_repository = name.ends_with(b"/");
        if is_repository
            || !is_inside(path)
            || place.symlink_metadata().is_ok()
            || !has_plain_parents(worktree, path)
        {
            continue;
        }
        if let Some(parent) = place.parent() {
            at("create", parent, std::fs::create_dir_all(parent))?;
        }
        let mut budget = CopyBudget { bytes: MAX_FILE_BYTES, ..CopyBudget::default() };
        at("copy to", &place, copy_path(top.as_fd(), path, &place, &mut budget))?;
        untracked += 1;
    }
    Ok(files + untracked)
}
