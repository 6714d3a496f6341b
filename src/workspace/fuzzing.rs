//! Entry points for fuzz targets. They test the code that parses refs, because an agent may have written the refs.

use std::path::Path;

use super::git::refs;

/// Returns the object id of a branch in a git directory, read as guard reads it when it receives the branch.
pub fn branch(git_dir: &Path, name: &str, object_format: &str) -> Option<String> {
    refs::read_ref(git_dir, &git_dir.join("packed-refs-before"), name, object_format).ok()
}

/// Counts the refs, other than `except`, that differ from the file `packed-refs-before`; `None` if guard refuses to
/// read the refs.
pub fn changed_refs(git_dir: &Path, except: &str, object_format: &str) -> Option<usize> {
    let before = git_dir.join("packed-refs-before");
    let changed = refs::changed_refs(git_dir, &before, except, object_format).ok()?;
    Some(changed.listed.len())
}
