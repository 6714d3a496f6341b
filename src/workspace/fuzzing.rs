//! Entry points for fuzz targets that test the parsers of refs. An agent may have written these refs.

use std::path::Path;

use super::git::refs;

/// Reads the id of the object that a branch of a git directory names, as guard does when it receives the branch.
pub fn branch(git_dir: &Path, name: &str, object_format: &str) -> Option<String> {
    refs::read_ref(git_dir, &git_dir.join("packed-refs-before"), name, object_format).ok()
}

/// Counts the refs that differ from `packed-refs-before`, without the ref `except`; `None` if guard refuses to read
/// the refs.
pub fn changed_refs(git_dir: &Path, except: &str, object_format: &str) -> Option<usize> {
    let before = git_dir.join("packed-refs-before");
    let changed = refs::changed_refs(git_dir, &before, except, object_format).ok()?;
    Some(changed.listed.len())
}
