//! Reads the entries of a git index file: which files git tracks, with the metadata that they had when git last read
//! them. guard reads the file itself, because every git command that prints this metadata may run filters.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::tree::FileState;
use crate::git::snapshot::Name;
use crate::sys::fs::{Links, read_regular_file};

const MAX_INDEX_BYTES: u64 = 512 << 20;

/// How much older than the index file a tracked file must be, in nanoseconds. A file that changed later may have
/// changed again without new metadata, because the clocks of file systems tick in milliseconds.
const SETTLED_AFTER: i64 = 20_000_000;

/// A tracked file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexEntry {
    /// The id of the blob, in hexadecimal.
    pub(super) blob: String,
    changed: (u32, u32),
    modified: (u32, u32),
    inode: u32,
    mode: u32,
    size: u32,
    is_merged: bool,
}

/// The entries of an index file, by path relative to the top of the working tree.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) entries: HashMap<Name, IndexEntry>,
    /// When git wrote the index file, in nanoseconds since 1970.
    pub(super) written: i64,
}

impl Index {
    /// Reads the index file `path`; `None` if it does not exist, or has a form that guard does not read.
    pub(super) fn read(path: &Path, object_format: &str) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let found = path.symlink_metadata().ok()?;
        let bytes = read_regular_file(path, MAX_INDEX_BYTES, Links::Refuse).ok()?;
        let hash_length = if object_format == "sha256" { 32 } else { 20 };
        let entries = parse(&bytes, hash_length)?;
        let written = found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec());
        Some(Self { entries, written })
    }

    /// Returns the blob of a tracked file if the file has not changed since git read it.
    pub(super) fn unchanged_blob(&self, path: &Name, state: &FileState) -> Option<&str> {
        let entry = self.entries.get(path)?;
        let pair = |time: i64| {
            Some((u32::try_from(time / 1_000_000_000).ok()?, u32::try_from(time % 1_000_000_000).ok()?))
        };
        let is_settled = |time: i64| time.saturating_add(SETTLED_AFTER) < self.written;
        let is_same = entry.is_merged
            && pair(state.modified) == Some(entry.modified)
            && pair(state.changed) == Some(entry.changed)
            // git stores only the lower 32 bits.
            && state.inode as u32 == entry.inode
            && state.size as u32 == entry.size
            && state.is_file()
            && entry.mode & 0o170_000 == 0o100_000;
        (is_same && is_settled(state.modified) && is_settled(state.changed)).then_some(entry.blob.as_str())
    }
}

/// Returns the paths of the gitlinks in the index file `path`; `None` if only git can read the file.
pub(crate) fn gitlinks(path: &Path, object_format: &str) -> Option<Vec<PathBuf>> {
    let entries = Index::read(path, object_format)?.entries;
    // The list has only one of the versions of a path in conflict.
    if entries.values().any(|entry| !entry.is_merged) {
        return None;
    }
    let is_gitlink = |entry: &IndexEntry| entry.mode & 0o170_000 == 0o160_000;
    let mut found: Vec<PathBuf> =
        entries.iter().filter(|(_, entry)| is_gitlink(entry)).map(|(path, _)| path.path()).collect();
    found.sort();
    Some(found)
}

/// Parses an index file of version 2, 3 or 4; `None` if it is malformed, or is split into several files.
fn parse(bytes: &[u8], hash_length: usize) -> Option<HashMap<Name, IndexEntry>> {
    let mut rest = bytes.strip_prefix(b"DIRC")?;
    let version = number(&mut rest)?;
    let count = number(&mut rest)?;
    if !(2..=4).contains(&version) {
        return None;
    }
    // The smallest entry has more bytes than this, so a wrong count cannot reserve much memory.
    let mut entries = HashMap::with_capacity((count as usize).min(bytes.len() / 40));
    let mut name: Vec<u8> = Vec::new();
    for _ in 0..count {
        let start = rest;
        let changed = (number(&mut rest)?, number(&mut rest)?);
        let modified = (number(&mut rest)?, number(&mut rest)?);
        let [_device, inode, mode, _user, _group, size] = [(); 6].map(|()| number(&mut rest));
        let blob = take(&mut rest, hash_length)?;
        let flags = u16::from_be_bytes(take(&mut rest, 2)?.try_into().ok()?);
        let is_extended = flags & 0x4000 != 0;
        if is_extended {
            take(&mut rest, 2)?;
        }
        if version == 4 {
            let cut = variable_number(&mut rest)?;
            name.truncate(name.len().checked_sub(cut)?);
        } else {
            name.clear();
        }
        let end = memchr::memchr(0, rest)?;
        name.extend_from_slice(&rest[..end]);
        rest = &rest[end + 1..];
        if version < 4 {
            // One to eight zero bytes end the name, so that the length of an entry is a multiple of eight.
            let length = start.len() - rest.len() - 1;
            take(&mut rest, 7 - length % 8)?;
        }
        // A directory in a sparse index: guard does not know the files in it.
        let mode = mode?;
        if mode & 0o170_000 == 0o040_000 {
            return None;
        }
        let entry = IndexEntry {
            blob: crate::text::hex::encode(blob),
            changed,
            modified,
            inode: inode?,
            mode,
            size: size?,
            is_merged: flags & 0x3000 == 0,
        };
        entries.insert(Name::from(&name), entry);
    }
    // A split index has an extension `link`, and most of its entries are in another file.
    while rest.len() > hash_length {
        let signature = take(&mut rest, 4)?;
        let length = number(&mut rest)?;
        if signature == b"link" {
            return None;
        }
        take(&mut rest, length as usize)?;
    }
    Some(entries)
}

fn take<'b>(rest: &mut &'b [u8], length: usize) -> Option<&'b [u8]> {
    let (head, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(head)
}

fn number(rest: &mut &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(take(rest, 4)?.try_into().ok()?))
}

/// Parses a number as git encodes it in packs and in an index of version 4.
fn variable_number(rest: &mut &[u8]) -> Option<usize> {
    let mut value: usize = 0;
    for index in 0..9 {
        let byte = take(rest, 1)?[0];
        value = (if index == 0 { 0 } else { value.checked_add(1)?.checked_mul(128)? })
            .checked_add(usize::from(byte & 127))?;
        if byte & 128 == 0 {
            return Some(value);
        }
    }
    None
}

/// Parses an index file, for the tests that feed it arbitrary bytes. Returns the number of entries.
pub(crate) fn parse_for_fuzzing(bytes: &[u8]) -> Option<usize> {
    parse(bytes, 20).map(|entries| entries.len())
}
