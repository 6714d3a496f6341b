//! Reads the refs of a run's quarantine repository without git, because an agent wrote the files. Also reads single refs
//! of the user's repository, which takes a hundredth of the time of a git call.
//!
//! git would follow symbolic links and symbolic refs, and read the quarantine's configuration to learn the ref
//! format. This module accepts a ref only as a small regular file with an object id, or as a line of `packed-refs`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::repository::is_id;
use crate::sys::fs::{Links, OpenError, open_regular_file};

/// Maximum size of `packed-refs`, in bytes. For a repository with many refs, the maximum is instead four times the
/// size of the file before the run, but not more than [`ABSOLUTE_MAX_BYTES`].
const MAX_BYTES: u64 = 64 << 20;
/// Maximum size of `packed-refs`, in bytes, even if the file was larger before the run.
const ABSOLUTE_MAX_BYTES: u64 = 1 << 30;
/// Maximum length of a line of `packed-refs`, in bytes.
const MAX_LINE_BYTES: usize = 64 << 10;
/// Maximum number of loose refs to read.
const MAX_REFS: usize = 20_000;
/// Maximum number of changed refs that guard lists by name; it only counts the others.
pub(crate) const MAX_CHANGED: usize = 1_000;
/// Maximum total size of the names of the listed refs, in bytes.
const MAX_CHANGED_BYTES: usize = 256 << 10;
/// Maximum depth of the directories that contain loose refs.
const MAX_DEPTH: usize = 32;

/// Why guard cannot receive a ref from the run's quarantine repository (its private git directory).
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RefError {
    #[error("the ref no longer exists in the run's private repository")]
    Missing,
    #[error("the ref is now a symbolic ref to {0:?}, which guard does not follow")]
    Symbolic(String),
    /// The ref's file, a directory above it, or `packed-refs` is, for example, a symbolic link or a FIFO.
    #[error("{} is {found}", path.display())]
    NotPlain {
        path: PathBuf,
        /// The type that the file or directory has.
        found: &'static str,
    },
    #[error("the file of the ref does not contain an object id")]
    NotAnId,
    #[error(
        "the run's private repository stores its refs as a reftable; guard reads only refs that are files"
    )]
    Reftable,
    /// guard cannot read a file with refs, or the file is too large; the text says which file.
    #[error("cannot read the refs of the run's private repository: {0}")]
    Unreadable(String),
}

const SYMLINK: &str = "a symbolic link, which guard does not follow";
const NOT_A_FILE: &str = "not a regular file";

fn unreadable(path: &Path, error: &io::Error) -> RefError {
    RefError::Unreadable(format!("{}: {error}", path.display()))
}

/// Returns the maximum size of `packed-refs`, in bytes. `before` is the copy of the file that guard made before the
/// run.
fn packed_refs_limit(before: &Path) -> u64 {
    let before = before.symlink_metadata().map_or(0, |data| data.len());
    MAX_BYTES.max(before.saturating_mul(4)).min(ABSOLUTE_MAX_BYTES)
}

/// Returns the object id that the ref with the full name `name` contains. `git` is the quarantine repository (the run's
/// private git directory), and `before` is the copy of `packed-refs` that guard made before the run.
pub(crate) fn read_ref(
    git: &Path,
    before: &Path,
    name: &str,
    object_format: &str,
) -> Result<String, RefError> {
    if git.join("reftable").symlink_metadata().is_ok() {
        return Err(RefError::Reftable);
    }
    match read_loose(git, name)? {
        Some(text) => parse_value(&text, object_format),
        None => find_packed(&git.join("packed-refs"), packed_refs_limit(before), name, object_format)?
            .ok_or(RefError::Missing),
    }
}

fn parse_value(text: &[u8], object_format: &str) -> Result<String, RefError> {
    if let Some(target) = text.strip_prefix(b"ref:") {
        let target: String = String::from_utf8_lossy(target)
            .trim()
            .chars()
            .filter(|c| !crate::text::terminal_text::is_unsafe(*c))
            .collect();
        return Err(RefError::Symbolic(target));
    }
    let text = std::str::from_utf8(text).map_err(|_| RefError::NotAnId)?.trim_end();
    if is_id(text, object_format) { Ok(text.to_string()) } else { Err(RefError::NotAnId) }
}

/// Reads the first 4 KiB of a loose ref; `None` if its file does not exist or is a directory. Fails if there is a
/// symbolic link on the path.
fn read_loose(git: &Path, name: &str) -> Result<Option<Vec<u8>>, RefError> {
    let mut path = git.to_path_buf();
    let mut parts = name.split('/').peekable();
    while let Some(part) = parts.next() {
        path.push(part);
        let data = match path.symlink_metadata() {
            Ok(data) => data,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(&path, &error)),
        };
        let kind = data.file_type();
        match parts.peek() {
            _ if kind.is_symlink() => return Err(RefError::NotPlain { path, found: SYMLINK }),
            Some(_) if kind.is_dir() => {}
            // When git packs a ref, it may leave an empty directory with the ref's name.
            None if kind.is_dir() => return Ok(None),
            None if kind.is_file() => {}
            Some(_) => return Err(RefError::NotPlain { path, found: "not a directory" }),
            None => return Err(RefError::NotPlain { path, found: NOT_A_FILE }),
        }
    }
    let failed = |error: io::Error| unreadable(&path, &error);
    let file = open_regular_file(&path, u64::MAX, Links::Refuse).map_err(|error| failed(error.into()))?;
    let mut text = Vec::new();
    file.take(4096).read_to_end(&mut text).map_err(failed)?;
    Ok(Some(text))
}

/// Calls `each` with the name and object id of every ref below `refs/` in a `packed-refs` file. Skips malformed lines.
/// Does nothing if the file does not exist, and fails if it has more than `max` bytes or a line that is too long.
fn for_each_packed(
    file: &Path,
    max: u64,
    object_format: &str,
    mut each: impl FnMut(&[u8], &str),
) -> Result<(), RefError> {
    let failed = |error: io::Error| unreadable(file, &error);
    let not_plain = |found| RefError::NotPlain { path: file.to_path_buf(), found };
    let opened = match open_regular_file(file, max, Links::Refuse) {
        Ok(opened) => opened,
        Err(OpenError::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(OpenError::Io(error)) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(not_plain(SYMLINK));
        }
        Err(OpenError::Io(error)) => return Err(failed(error)),
        Err(OpenError::NotRegular) => return Err(not_plain(NOT_A_FILE)),
        Err(OpenError::TooLarge { most, .. }) => {
            let most = most >> 20;
            return Err(RefError::Unreadable(format!("packed-refs is larger than the limit of {most} MiB")));
        }
    };
    let mut reader = io::BufReader::with_capacity(256 << 10, opened.take(max));
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut reader).take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut line).map_err(failed)?;
        if read == 0 {
            return Ok(());
        }
        if read == MAX_LINE_BYTES && !line.ends_with(b"\n") {
            return Err(RefError::Unreadable(format!(
                "packed-refs has a line of more than {MAX_LINE_BYTES} bytes"
            )));
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        if text.starts_with(b"#") || text.starts_with(b"^") {
            continue;
        }
        let mut halves = text.splitn(2, |byte| *byte == b' ');
        let (Some(id), Some(name)) = (halves.next(), halves.next()) else { continue };
        let Ok(id) = std::str::from_utf8(id) else { continue };
        if is_id(id, object_format) && name.starts_with(b"refs/") {
            each(name, id);
        }
    }
}

/// Finds the object id of the ref `wanted` in a `packed-refs` file; `None` if no line names the ref. If several lines
/// do, returns the id from the last one.
fn find_packed(file: &Path, max: u64, wanted: &str, object_format: &str) -> Result<Option<String>, RefError> {
    let mut found = None;
    for_each_packed(file, max, object_format, |name, id| {
        if name == wanted.as_bytes() {
            found = Some(id.to_string());
        }
    })?;
    Ok(found)
}

/// A ref of the run's quarantine repository (its private git directory) that changed since the run began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChangedRef {
    /// The full name of the ref, with `?` in place of control characters.
    pub(crate) name: String,
    /// The object id that the ref contains now; `None` if the ref was deleted or does not contain an id.
    pub(crate) now: Option<String>,
    pub(crate) existed_before: bool,
}

/// The refs of the run's quarantine repository (its private git directory) that changed since the run began.
#[derive(Debug, Default)]
pub(crate) struct ChangedRefs {
    /// The changed refs, but no more than [`MAX_CHANGED`] refs with [`MAX_CHANGED_BYTES`] of names.
    pub(crate) listed: Vec<ChangedRef>,
    /// The number of changed refs that are not in `listed`. If there are more than [`MAX_REFS`] loose refs, guard does
    /// not read all of them, and counts those that it did not read as one changed ref.
    pub(crate) left_out: usize,
    /// True if any changed ref contains an object id now, or if guard did not read all loose refs. The object with such
    /// an id may be work that exists nowhere else.
    pub(crate) has_new_value: bool,
    /// The total size of the names in `listed`, in bytes.
    bytes: usize,
}

impl ChangedRefs {
    fn add(&mut self, name: &[u8], now: Option<&str>, existed_before: bool) {
        self.has_new_value |= now.is_some();
        if self.listed.len() >= MAX_CHANGED || self.bytes + name.len() > MAX_CHANGED_BYTES {
            self.left_out += 1;
            return;
        }
        self.bytes += name.len();
        let plain = |c: char| if crate::text::terminal_text::is_unsafe(c) { '?' } else { c };
        let name = String::from_utf8_lossy(name).chars().map(plain).collect();
        self.listed.push(ChangedRef { name, now: now.map(str::to_string), existed_before });
    }
}

/// Finds every ref of the quarantine repository, other than `except`, that the agent created, moved or deleted since
/// guard wrote the copy `before` of `packed-refs`. Ignores loose refs that are symbolic. Keeps only the refs in
/// `before` and the loose refs in memory, because an agent can pack any number of refs.
pub(crate) fn changed_refs(
    git: &Path,
    before: &Path,
    except: &str,
    object_format: &str,
) -> Result<ChangedRefs, RefError> {
    // Maps each ref before the run to its object id, and to true once guard has found it again.
    let mut known: BTreeMap<Vec<u8>, (String, bool)> = BTreeMap::new();
    let max = packed_refs_limit(before);
    for_each_packed(before, ABSOLUTE_MAX_BYTES, object_format, |name, id| {
        known.insert(name.to_vec(), (id.to_string(), false));
    })?;
    let mut loose: BTreeMap<Vec<u8>, Option<String>> = BTreeMap::new();
    let mut remaining = Some(MAX_REFS);
    collect_loose(&git.join("refs"), b"refs", 0, object_format, &mut loose, &mut remaining);
    let mut changed = ChangedRefs::default();
    let mut compare_ref = |name: &[u8], id: Option<&str>, changed: &mut ChangedRefs| {
        if name == except.as_bytes() {
            return;
        }
        match known.get_mut(name) {
            Some((old, is_there)) => {
                // If `packed-refs` has several lines for one name, compare only the first one.
                if !std::mem::replace(is_there, true) && Some(old.as_str()) != id {
                    changed.add(name, id, true);
                }
            }
            None => changed.add(name, id, false),
        }
    };
    for (name, id) in &loose {
        compare_ref(name, id.as_deref(), &mut changed);
        // A ref that guard cannot read may lead to commits that exist nowhere else.
        changed.has_new_value |= id.is_none() && name.as_slice() != except.as_bytes();
    }
    for_each_packed(&git.join("packed-refs"), max, object_format, |name, id| {
        // A loose ref overrides a packed one of the same name.
        if !loose.contains_key(name) {
            compare_ref(name, Some(id), &mut changed);
        }
    })?;
    if remaining.is_none() {
        // guard did not read some loose refs: count at least one as changed.
        changed.left_out += 1;
        changed.has_new_value = true;
    }
    let is_unread = |name: &[u8]| {
        remaining.is_none()
            && git
                .join(OsStr::from_bytes(name))
                .symlink_metadata()
                .map_or_else(|error| error.kind() != io::ErrorKind::NotFound, |data| !data.is_dir())
    };
    for (name, (_, is_there)) in &known {
        if !is_there && name.as_slice() != except.as_bytes() && !is_unread(name) {
            changed.add(name, None, true);
        }
    }
    changed.listed.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(changed)
}

/// Reads the loose refs below `dir`, at most `remaining`. That becomes `None` if there are more, or may be more: in a
/// directory that guard cannot read, or behind a symbolic link.
fn collect_loose(
    dir: &Path,
    name: &[u8],
    depth: usize,
    object_format: &str,
    found: &mut BTreeMap<Vec<u8>, Option<String>>,
    remaining: &mut Option<usize>,
) {
    // The agent may have replaced the directory by a symbolic link: do not follow it.
    let entries = match dir.symlink_metadata() {
        Ok(data) if data.is_dir() && depth <= MAX_DEPTH => fs::read_dir(dir),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        _ => return *remaining = None,
    };
    let Ok(entries) = entries else { return *remaining = None };
    for entry in entries {
        let Some(left) = *remaining else { return };
        let Ok((entry, kind)) = entry.and_then(|entry| entry.file_type().map(|kind| (entry, kind))) else {
            return *remaining = None;
        };
        let full = [name, b"/", entry.file_name().as_bytes()].concat();
        if kind.is_dir() {
            collect_loose(&entry.path(), &full, depth + 1, object_format, found, remaining);
            continue;
        }
        *remaining = left.checked_sub(1);
        if remaining.is_none() {
            return;
        }
        let text = kind.is_file().then(|| super::gitfile::read_small(&entry.path(), 4096).ok()).flatten();
        match text {
            // guard copied the user's symbolic refs, such as origin/HEAD, into the quarantine: they are not the
            // agent's work.
            Some(text) if text.starts_with(b"ref:") => {}
            text => {
                let id = text.and_then(|text| parse_value(&text, object_format).ok());
                found.insert(full, id);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends where something goes wrong")]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("guard-refs-{name}-{}", std::process::id()));
        fs::create_dir_all(dir.join("refs/heads")).unwrap();
        dir
    }

    #[test]
    fn changed_refs_are_sorted() {
        let dir = scratch("sorted");
        let id = "1".repeat(40);
        fs::write(dir.join("before"), format!("{id} refs/heads/a\n{id} refs/heads/c\n")).unwrap();
        fs::write(dir.join("refs/heads/b"), &id).unwrap();
        let found = changed_refs(&dir, &dir.join("before"), "refs/heads/x", "sha1").unwrap();
        let names: Vec<&str> = found.listed.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["refs/heads/a", "refs/heads/b", "refs/heads/c"]);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn refs_that_cannot_be_read_count_as_new_work() {
        let dir = scratch("deep");
        fs::write(dir.join("before"), "").unwrap();
        let find = || changed_refs(&dir, &dir.join("before"), "refs/heads/x", "sha1").unwrap();
        assert!(!find().has_new_value);
        let deep = dir.join("refs").join("d/".repeat(MAX_DEPTH + 1));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("ref"), "1".repeat(40)).unwrap();
        assert!(find().has_new_value, "too deep");
        fs::remove_dir_all(dir.join("refs")).unwrap();
        std::os::unix::fs::symlink("elsewhere", dir.join("refs")).unwrap();
        assert!(find().has_new_value, "a link");
        fs::remove_file(dir.join("refs")).unwrap();
        fs::create_dir_all(dir.join("refs/heads")).unwrap();
        assert!(!find().has_new_value);
        fs::write(dir.join("refs/heads/large"), "1".repeat(5000)).unwrap();
        assert!(find().has_new_value, "too large");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn unread_refs_are_not_deleted_ones() {
        let dir = scratch("unread");
        let id = "1".repeat(40);
        let names: Vec<String> = (0..=MAX_REFS).map(|n| format!("refs/heads/{n}")).collect();
        let packed: String = names.iter().map(|name| format!("{id} {name}\n")).collect();
        fs::write(dir.join("before"), packed).unwrap();
        let (last, others) = names.split_last().unwrap();
        for name in others {
            fs::write(dir.join(name), &id).unwrap();
        }
        let find = || changed_refs(&dir, &dir.join("before"), last, "sha1").unwrap();
        let all = find();
        assert_eq!((all.listed.len(), all.left_out), (0, 0), "exactly as many as guard reads");
        fs::write(dir.join(last), &id).unwrap();
        let more = find();
        assert_eq!((more.listed.len(), more.left_out), (0, 1));
        fs::remove_dir_all(dir).unwrap();
    }
}
