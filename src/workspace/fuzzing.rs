//! Entry points for fuzz targets. They test the code that parses refs, because an agent may have written the refs.

use std::path::Path;

use super::git::refs;

/// Returns the object id of the ref `name` in a git directory, read as guard reads it when it receives a branch; `None`
/// if guard refuses to read the ref, or if it does not exist.
pub fn branch(git_dir: &Path, name: &str, object_format: &str) -> Option<String> {
    refs::read_ref(git_dir, &git_dir.join("packed-refs-before"), name, object_format).ok()
}

/// Returns the number of refs, other than `except`, that differ from the file `packed-refs-before`, but at most the
/// number that guard lists by name. Returns `None` if guard refuses to read the refs.
pub fn changed_refs(git_dir: &Path, except: &str, object_format: &str) -> Option<usize> {
    let before = git_dir.join("packed-refs-before");
    let changed = refs::changed_refs(git_dir, &before, except, object_format).ok()?;
    Some(changed.listed.len())
}
