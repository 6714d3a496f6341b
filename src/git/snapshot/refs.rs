//! Reads refs that are stored as files: one file per ref below `refs/`, and many refs in `packed-refs`.
//!
//! guard records the values of refs, not only the metadata of their files, because a difference must show the old and
//! the new value. For a second fingerprint guard reads only files whose metadata changed.

use std::ffi::CStr;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use super::state::{Entry, OpenDirectory, Stat, hash, read_whole};
use super::{Name, Scan, map_parallel};

/// What a fingerprint records about a ref.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ref {
    pub(crate) value: Value,
    /// The id of the object to which an annotated tag points, if the storage format contains it. git trusts this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peeled: Option<String>,
    /// The metadata of the loose ref's file; `None` for a ref without a file of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<Stat>,
}

/// The value of a ref.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Value {
    Object(String),
    /// The name of the ref to which a symbolic ref points.
    Symbolic(Name),
    /// The SHA-256 of content that git cannot parse as a ref; of no bytes if guard cannot read the content.
    Broken(String),
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Object(object) => f.write_str(object),
            Self::Symbolic(target) => write!(f, "ref: {target}"),
            Self::Broken(hash) => write!(f, "unreadable (sha256 {})", hash.get(..12).unwrap_or(hash)),
        }
    }
}

/// Refs with their names, and the SHA-256 of the data that guard could not parse, if there is any.
pub(crate) type Found = (Vec<(Name, Ref)>, Option<String>);

/// Maximum number of bytes of a loose ref to read after the first 256: enough for `ref: ` and a long name.
const MAX_LOOSE_BYTES: u64 = 8 << 10;
/// Maximum size of `packed-refs`, in bytes: enough for some millions of refs.
const MAX_PACKED_BYTES: u64 = 512 << 20;
/// Maximum depth of the directories that contain loose refs.
const MAX_DEPTH: usize = 100;

/// Reads the loose refs below the directory `top`, which is relative to `common`. Skips lock files. Sets `scan.cut` if
/// there are too many entries or levels of directories.
pub(crate) fn loose(common: &OpenDirectory, top: &[u8], scan: &mut Scan<'_>) -> io::Result<Vec<(Name, Ref)>> {
    let mut found = Vec::new();
    let mut open = vec![(top.to_vec(), false)];
    while let Some((path, linked)) = open.pop() {
        // A reftable repository has a file in place of the directory `refs/heads`, so that old versions of git fail.
        let Some(dir) = common.open_below(&path)? else { continue };
        let mut entries = dir.entries()?;
        entries.retain(|entry| !is_lock(&entry.name));
        scan.count_entries(&mut entries);
        let mut files = Vec::new();
        for entry in entries {
            // git follows symbolic links to directories. Follow at most one on each path, because links can form
            // cycles.
            let behind = |entry: &Entry| {
                Ok::<_, io::Error>(dir.stat_target(&entry.name)?.is_some_and(|stat| stat.is_dir()))
            };
            let is_dir = match entry.is_dir {
                Some(is_dir) => is_dir,
                None => !linked && behind(&entry)?,
            };
            if !is_dir {
                files.push(entry);
            } else if path.iter().filter(|byte| **byte == b'/').count() < MAX_DEPTH {
                open.push((join(&path, &entry.name), linked || entry.is_dir.is_none()));
            } else {
                scan.cut = true;
            }
        }
        found.append(&mut map_parallel(&files, |entry| {
            let name = Name::own(join(&path, &entry.name));
            Ok(read_loose(&dir, &entry.name, &name, scan)?.map(|one| (name, one)))
        })?);
    }
    Ok(found)
}

/// Reads one loose ref; `None` if its file does not exist. Reuses the value from the earlier fingerprint if the
/// file's metadata is unchanged. A file that guard may not read or that is not a regular file has a broken value.
pub(crate) fn read_loose(
    dir: &OpenDirectory,
    file: &CStr,
    name: &Name,
    scan: &Scan<'_>,
) -> io::Result<Option<Ref>> {
    if let Some((earlier, looked)) = scan.earlier_ref(name)
        && let Some(stat) = &earlier.file
        && stat.is_file()
        && stat.is_settled(looked)
        && dir.stat_of(file)?.as_ref() == Some(stat)
    {
        return Ok(Some(earlier.clone()));
    }
    let (mut open, stat) = match dir.file(file, false) {
        Ok(Some(opened)) => opened,
        Ok(None) => return read_linked(dir, file),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let stat = dir.stat_of(file)?;
            return Ok(stat.map(|stat| Ref {
                value: Value::Broken(hash(b"")),
                peeled: None,
                file: Some(stat),
            }));
        }
        Err(error) => return Err(error),
    };
    let value = if stat.is_file() { value_in(&mut open, stat.size)? } else { Value::Broken(hash(b"")) };
    Ok(Some(Ref { value, peeled: None, file: Some(stat) }))
}

/// Reads a ref whose file is a symbolic link. Like git, treats a link into `refs/` as a symbolic ref, and follows
/// any other link. Returns `None` if the link no longer exists.
fn read_linked(dir: &OpenDirectory, file: &CStr) -> io::Result<Option<Ref>> {
    let Some(target) = dir.link(file) else { return Ok(None) };
    let Some(stat) = dir.stat_of(file)? else { return Ok(None) };
    let value = if target.bytes().starts_with(b"refs/") {
        Value::Symbolic(target)
    } else {
        match dir.file(file, true) {
            Ok(Some((mut open, behind))) if behind.is_file() => value_in(&mut open, behind.size)?,
            _ => Value::Broken(hash(target.bytes())),
        }
    };
    Ok(Some(Ref { value, peeled: None, file: Some(stat) }))
}

fn value_in(file: &mut std::fs::File, size: u64) -> io::Result<Value> {
    let mut bytes = [0; 256];
    // Almost all refs are 41 bytes long, so one read is enough.
    let count = file.read(&mut bytes)?;
    if count as u64 == size {
        return Ok(value_of(&bytes[..count]));
    }
    let mut all = bytes[..count].to_vec();
    file.take(MAX_LOOSE_BYTES).read_to_end(&mut all)?;
    Ok(value_of(&all))
}

/// Parses the content of a loose ref as git does.
pub(crate) fn value_of(content: &[u8]) -> Value {
    if let Some(target) = content.strip_prefix(b"ref:") {
        return Value::Symbolic(Name::from(target.trim_ascii()));
    }
    let digits = content.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let ended = content.get(digits).is_none_or(|byte| *byte == 0 || byte.is_ascii_whitespace());
    match std::str::from_utf8(&content[..digits]) {
        Ok(object) if ended && matches!(digits, 40 | 64) => Value::Object(object.to_ascii_lowercase()),
        _ => Value::Broken(hash(content)),
    }
}

/// Reads the refs in `packed-refs`, and the hash of the lines that guard cannot parse. Returns no refs if there is no
/// such file, or if it is larger than 512 MiB; in the second case, sets `scan.cut`.
pub(crate) fn packed(common: &OpenDirectory, scan: &mut Scan<'_>) -> io::Result<Found> {
    let Some((mut file, stat)) = common.file(c"packed-refs", true)? else { return Ok((Vec::new(), None)) };
    if !stat.is_file() {
        return Ok((Vec::new(), Some(hash(b"not a file"))));
    }
    let Some(text) = read_whole(&mut file, stat.size, MAX_PACKED_BYTES)? else {
        scan.cut = true;
        return Ok((Vec::new(), None));
    };
    Ok(packed_in(&text))
}

pub(crate) fn packed_in(text: &[u8]) -> Found {
    let mut found: Vec<(Name, Ref)> = Vec::with_capacity(text.len() / 60);
    let mut unparsable = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        if line.is_empty() || line[0] == b'#' {
            continue;
        }
        if line[0] == b'^' {
            if let (Some(object), Some((_, tag))) = (object_name(&line[1..]), found.last_mut()) {
                tag.peeled = Some(object);
                continue;
            }
        } else if let Some(space) = line.iter().position(|byte| *byte == b' ')
            && let Some(object) = object_name(&line[..space])
        {
            let one = Ref { value: Value::Object(object), peeled: None, file: None };
            found.push((Name::from(&line[space + 1..]), one));
            continue;
        }
        unparsable.extend_from_slice(line);
        unparsable.push(b'\n');
    }
    (found, (!unparsable.is_empty()).then(|| hash(&unparsable)))
}

fn object_name(text: &[u8]) -> Option<String> {
    match value_of(text) {
        Value::Object(object) if object.len() == text.len() => Some(object),
        _ => None,
    }
}

/// True for the names of lock files, which running git processes create. A lock file is never a ref.
pub(crate) fn is_lock(name: &CStr) -> bool {
    name.to_bytes().ends_with(b".lock")
}

pub(crate) fn join(path: &[u8], name: &CStr) -> Vec<u8> {
    let mut joined = Vec::with_capacity(path.len() + 1 + name.to_bytes().len());
    joined.extend_from_slice(path);
    if !path.is_empty() {
        joined.push(b'/');
    }
    joined.extend_from_slice(name.to_bytes());
    joined
}
