//! Entry points for fuzz targets and property tests of parsers. An agent may have written refs, and in a directory that
//! was in no repository also an index.

use std::path::Path;

use crate::git::plumbing::refs;

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

/// Returns the number of files in a git index with this content; `None` if guard does not accept it.
pub fn index_entries(bytes: &[u8]) -> Option<usize> {
    super::undo::index_entries(bytes)
}

/// Returns the number of paths in a list of a snapshot with this content; `None` if guard does not accept it.
pub fn snapshot_items(bytes: &[u8]) -> Option<usize> {
    super::undo::snapshot_items(bytes)
}

/// Returns the rules of the ignore file with the content `text` in `directory`, as guard writes them for the top of a
/// working tree.
pub fn ignore_rules(directory: &[u8], text: &[u8]) -> Vec<u8> {
    crate::git::review::hidden_files::rules_at_top(directory, text)
}
