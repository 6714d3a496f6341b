//! Entry points for fuzz targets into the parsers of refs that an agent wrote.

use std::path::Path;

use super::git::refs;

/// The object that a branch of a git directory names, as a receive reads it.
pub fn branch(git_dir: &Path, name: &str, object_format: &str) -> Option<String> {
    refs::read(git_dir, &git_dir.join("packed-refs-before"), name, object_format).ok()
}

/// The number of refs, except one, that differ from before a run; `None` if they are refused.
pub fn changed_refs(git_dir: &Path, except: &str, object_format: &str) -> Option<usize> {
    let changed = refs::changed(git_dir, &git_dir.join("packed-refs-before"), except, object_format).ok()?;
    Some(changed.listed.len())
}
