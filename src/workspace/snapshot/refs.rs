//! Reads refs stored as files: one file each below `refs/`, and many in `packed-refs`.
//!
//! Reads the values, not only the metadata, because a difference must show the old and the new value. A
//! second fingerprint reads only files whose metadata changed.

use std::ffi::CStr;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use super::state::{DirectoryState, Entry, Stat, hash, whole};
use super::{Look, Name, shared};

/// The recorded state of a ref.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ref {
    pub(crate) value: Value,
    /// The object that the value, a tag, peels to. `packed-refs` and reftables store it, and git trusts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peeled: Option<String>,
    /// The metadata of the ref's own file, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<Stat>,
}

/// The value of a ref.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Value {
    /// An object id.
    Object(String),
    /// The name of another ref.
    Symbolic(Name),
    /// Content that git cannot parse: its hash.
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

/// The refs that were read, and the hash of what could not be parsed.
pub(crate) type Found = (Vec<(Name, Ref)>, Option<String>);

/// Maximum size of a loose ref: `ref: ` and a path.
const LONGEST: u64 = 8 << 10;
/// Maximum size of `packed-refs`: some millions of refs.
const LARGEST_PACKED: u64 = 512 << 20;
/// Maximum depth of directories.
const DEEPEST: usize = 100;

/// Reads the loose refs below a directory.
pub(crate) fn loose(
    common: &DirectoryState,
    top: &[u8],
    look: &mut Look<'_>,
) -> io::Result<Vec<(Name, Ref)>> {
    let mut found = Vec::new();
    let mut open = vec![(top.to_vec(), false)];
    while let Some((path, linked)) = open.pop() {
        // A reftable repository has a file in place of this directory, so that old versions of git stop.
        let Some(folder) = common.below(&path)? else { continue };
        let mut entries = folder.entries()?;
        entries.retain(|entry| !is_lock(&entry.name));
        look.charge(&mut entries);
        let mut files = Vec::new();
        for entry in entries {
            // git follows symbolic links to directories. Follow at most one, because links can form cycles.
            let behind = |entry: &Entry| {
                Ok::<_, io::Error>(folder.stat_behind(&entry.name)?.is_some_and(|stat| stat.is_folder()))
            };
            let is_folder = match entry.is_folder {
                Some(is_folder) => is_folder,
                None => !linked && behind(&entry)?,
            };
            if !is_folder {
                files.push(entry);
            } else if path.iter().filter(|byte| **byte == b'/').count() < DEEPEST {
                open.push((join(&path, &entry.name), linked || entry.is_folder.is_none()));
            } else {
                look.cut = true;
            }
        }
        found.append(&mut shared(&files, |entry| {
            let name = Name::own(join(&path, &entry.name));
            Ok(read_loose(&folder, &entry.name, &name, look)?.map(|one| (name, one)))
        })?);
    }
    Ok(found)
}

/// Reads one loose ref; `None` if it is gone.
pub(crate) fn read_loose(
    folder: &DirectoryState,
    file: &CStr,
    name: &Name,
    look: &Look<'_>,
) -> io::Result<Option<Ref>> {
    if let Some((earlier, looked)) = look.earlier_ref(name)
        && let Some(stat) = &earlier.file
        && stat.is_file()
        && stat.is_settled(looked)
        && folder.stat_of(file)?.as_ref() == Some(stat)
    {
        return Ok(Some(earlier.clone()));
    }
    let (mut open, stat) = match folder.file(file, false) {
        Ok(Some(opened)) => opened,
        Ok(None) => return read_linked(folder, file),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let stat = folder.stat_of(file)?;
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

/// Reads a ref that is a symbolic link. git treats one that points into `refs/` as a symbolic ref, and
/// follows any other.
fn read_linked(folder: &DirectoryState, file: &CStr) -> io::Result<Option<Ref>> {
    let Some(target) = folder.link(file) else { return Ok(None) };
    let Some(stat) = folder.stat_of(file)? else { return Ok(None) };
    let value = if target.bytes().starts_with(b"refs/") {
        Value::Symbolic(target)
    } else {
        match folder.file(file, true) {
            Ok(Some((mut open, behind))) if behind.is_file() => value_in(&mut open, behind.size)?,
            _ => Value::Broken(hash(target.bytes())),
        }
    };
    Ok(Some(Ref { value, peeled: None, file: Some(stat) }))
}

fn value_in(file: &mut std::fs::File, size: u64) -> io::Result<Value> {
    let mut bytes = [0; 256];
    // Almost all refs are 41 bytes long, so that one read is enough.
    let count = file.read(&mut bytes)?;
    if count as u64 == size {
        return Ok(value_of(&bytes[..count]));
    }
    let mut all = bytes[..count].to_vec();
    file.take(LONGEST).read_to_end(&mut all)?;
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

/// The refs of `packed-refs`, and the hash of the lines that cannot be parsed.
pub(crate) fn packed(common: &DirectoryState, look: &mut Look<'_>) -> io::Result<Found> {
    let Some((mut file, stat)) = common.file(c"packed-refs", true)? else { return Ok((Vec::new(), None)) };
    if !stat.is_file() {
        return Ok((Vec::new(), Some(hash(b"not a file"))));
    }
    let Some(text) = whole(&mut file, stat.size, LARGEST_PACKED)? else {
        look.cut = true;
        return Ok((Vec::new(), None));
    };
    Ok(packed_in(&text))
}

pub(crate) fn packed_in(text: &[u8]) -> Found {
    let mut found: Vec<(Name, Ref)> = Vec::with_capacity(text.len() / 60);
    let mut strange = Vec::new();
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
        strange.extend_from_slice(line);
        strange.push(b'\n');
    }
    (found, (!strange.is_empty()).then(|| hash(&strange)))
}

fn object_name(text: &[u8]) -> Option<String> {
    match value_of(text) {
        Value::Object(object) if object.len() == text.len() => Some(object),
        _ => None,
    }
}

/// Lock files come and go while others work, and are never refs.
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
