//! Refs as files keep them: one file each below `refs/`, and many in `packed-refs`.
//!
//! The values are read, not only looked at, because a difference must say from what to what a ref moved. The second
//! look at a repository reads only those files that are not the same as at the first one.

use std::ffi::CStr;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use super::state::{DirectoryState, Entry, Stat, hash, whole};
use super::{Look, Name, shared};

/// A ref as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ref {
    pub(crate) value: Value,
    /// What the value, a tag, was said to stand for. `packed-refs` and reftables say it, and git believes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peeled: Option<String>,
    /// The ref's own file, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<Stat>,
}

/// What a ref says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Value {
    /// The object's name.
    Object(String),
    /// Another ref.
    Symbolic(Name),
    /// Nothing git understands: the hash of it.
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

/// Many refs, and the hash of what nobody understands among them.
pub(crate) type Found = (Vec<(Name, Ref)>, Option<String>);

/// The longest file of a ref: `ref: ` and a path.
const LONGEST: u64 = 8 << 10;
/// The largest `packed-refs` that is read: some millions of refs.
const LARGEST_PACKED: u64 = 512 << 20;
/// Directories below directories.
const DEEPEST: usize = 100;

/// Reads the files below a directory of refs.
pub(crate) fn loose(
    common: &DirectoryState,
    top: &[u8],
    look: &mut Look<'_>,
) -> io::Result<Vec<(Name, Ref)>> {
    let mut found = Vec::new();
    let mut open = vec![(top.to_vec(), false)];
    while let Some((path, linked)) = open.pop() {
        // Reftable repositories have a file where the directory was, so that old versions of git stop.
        let Some(folder) = common.below(&path)? else { continue };
        let mut entries = folder.entries()?;
        entries.retain(|entry| !is_lock(&entry.name));
        look.charge(&mut entries);
        let mut files = Vec::new();
        for entry in entries {
            // Git reads through links to directories. Through one, that is: links can lead round in circles.
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

/// Reads one file of a ref; `None` when it is gone.
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

/// A ref that is a link: git takes one into `refs/` for a symbolic ref, and reads through any other.
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
    // Almost all are 41 bytes long, and one call is enough to know that.
    let count = file.read(&mut bytes)?;
    if count as u64 == size {
        return Ok(value_of(&bytes[..count]));
    }
    let mut all = bytes[..count].to_vec();
    file.take(LONGEST).read_to_end(&mut all)?;
    Ok(value_of(&all))
}

/// What the content of a ref's file means, as git reads it.
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

/// The refs of `packed-refs`, and the hash of the lines nobody understands.
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

/// Locks come and go while others work, and are never refs.
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
