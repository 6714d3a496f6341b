//! The refs of a quarantine, read as what they are: files an agent wrote.
//!
//! git itself would follow links and symbolic refs, and read the quarantine's configuration for their format. Here a ref
//! is a small plain file with an object's name, or a line of `packed-refs`, and nothing else.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::repository::is_id;

/// Larger files of packed refs are not read: ten times the largest repositories known.
const MOST_BYTES: u64 = 256 << 20;
/// More loose refs than this are not listed.
const MOST_REFS: usize = 20_000;
/// Deeper folders of refs are not listed.
const DEEPEST: usize = 32;

/// Why a ref cannot be taken.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RefError {
    /// There is none.
    #[error("it is not there any more")]
    Missing,
    /// It leads to another ref.
    #[error("it was made a symbolic ref to {0:?}")]
    Symbolic(String),
    /// It, or a folder above it, is a link or something else that is no plain file.
    #[error("it is {0}, not a plain file")]
    NotPlain(&'static str),
    /// It holds something else than an object's name.
    #[error("it does not hold the name of an object")]
    NotAnId,
    /// The refs are in another format.
    #[error("the refs are kept in the format reftable, which is not received")]
    Reftable,
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
}

/// The object a ref of the quarantine names.
pub(super) fn read(git: &Path, name: &str, object_format: &str) -> Result<String, RefError> {
    if git.join("reftable").symlink_metadata().is_ok() {
        return Err(RefError::Reftable);
    }
    match loose(git, name)? {
        Some(text) => value(&text, object_format),
        None => {
            packed(&git.join("packed-refs"), object_format)?.remove(name.as_bytes()).ok_or(RefError::Missing)
        }
    }
}

fn value(text: &[u8], object_format: &str) -> Result<String, RefError> {
    if let Some(target) = text.strip_prefix(b"ref:") {
        let target: String =
            String::from_utf8_lossy(target).trim().chars().filter(|c| !c.is_control()).collect();
        return Err(RefError::Symbolic(target));
    }
    let text = std::str::from_utf8(text).map_err(|_| RefError::NotAnId)?.trim_end();
    if is_id(text, object_format) { Ok(text.to_string()) } else { Err(RefError::NotAnId) }
}

/// The text of a loose ref; none when there is no such file. No link is followed on the way.
fn loose(git: &Path, name: &str) -> Result<Option<Vec<u8>>, RefError> {
    let mut path = git.to_path_buf();
    let mut parts = name.split('/').peekable();
    while let Some(part) = parts.next() {
        path.push(part);
        let data = match path.symlink_metadata() {
            Ok(data) => data,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(RefError::Unreadable(error.to_string())),
        };
        let kind = data.file_type();
        match parts.peek() {
            _ if kind.is_symlink() => return Err(RefError::NotPlain("a link")),
            Some(_) if kind.is_dir() => {}
            // An empty folder where the ref was: git packs it and leaves that.
            None if kind.is_dir() => return Ok(None),
            None if kind.is_file() => {}
            _ => return Err(RefError::NotPlain("no file")),
        }
    }
    let unreadable = |error: io::Error| RefError::Unreadable(error.to_string());
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(&path).map_err(unreadable)?;
    let mut text = Vec::new();
    file.take(4096).read_to_end(&mut text).map_err(unreadable)?;
    Ok(Some(text))
}

type Refs = BTreeMap<Vec<u8>, String>;

/// All refs of a file of packed refs. Lines that are none are passed over.
pub(super) fn packed(file: &Path, object_format: &str) -> Result<Refs, RefError> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let opened = match OpenOptions::new().read(true).custom_flags(flags).open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Refs::new()),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(RefError::NotPlain("a link")),
        Err(error) => return Err(RefError::Unreadable(error.to_string())),
    };
    let data = opened.metadata().map_err(|error| RefError::Unreadable(error.to_string()))?;
    if !data.is_file() {
        return Err(RefError::NotPlain("no file"));
    }
    if data.len() > MOST_BYTES {
        return Err(RefError::Unreadable(format!("it is larger than {MOST_BYTES} bytes")));
    }
    let mut text = Vec::new();
    opened
        .take(MOST_BYTES)
        .read_to_end(&mut text)
        .map_err(|error| RefError::Unreadable(error.to_string()))?;
    let mut refs = Refs::new();
    for line in
        text.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"#") && !line.starts_with(b"^"))
    {
        let mut halves = line.splitn(2, |byte| *byte == b' ');
        let (Some(id), Some(name)) = (halves.next(), halves.next()) else { continue };
        let Ok(id) = std::str::from_utf8(id) else { continue };
        if is_id(id, object_format) && name.starts_with(b"refs/") {
            refs.insert(name.to_vec(), id.to_string());
        }
    }
    Ok(refs)
}

/// A ref that is not as it was when the run began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) name: String,
    /// The object it names now; none when it is gone, or is no plain ref.
    pub(super) now: Option<String>,
    /// It was there when the run began.
    pub(super) was_there: bool,
}

/// Every ref of the quarantine but one that is new, moved or gone since `before` was written.
pub(super) fn changed(
    git: &Path,
    before: &Path,
    except: &str,
    object_format: &str,
) -> Result<Vec<Changed>, RefError> {
    let before = packed(before, object_format)?;
    let mut now: BTreeMap<Vec<u8>, Option<String>> = packed(&git.join("packed-refs"), object_format)?
        .into_iter()
        .map(|(name, id)| (name, Some(id)))
        .collect();
    let mut room = MOST_REFS;
    walk(&git.join("refs"), b"refs", 0, object_format, &mut now, &mut room);
    let text = |name: &[u8]| -> String {
        String::from_utf8_lossy(name).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
    };
    let mut changed = Vec::new();
    for (name, id) in &now {
        if name != except.as_bytes() && before.get(name) != id.as_ref() {
            changed.push(Changed { name: text(name), now: id.clone(), was_there: before.contains_key(name) });
        }
    }
    let gone = before.keys().filter(|name| !now.contains_key(*name) && name.as_slice() != except.as_bytes());
    changed.extend(gone.map(|name| Changed { name: text(name), now: None, was_there: true }));
    Ok(changed)
}

fn walk(
    folder: &Path,
    name: &[u8],
    depth: usize,
    object_format: &str,
    found: &mut BTreeMap<Vec<u8>, Option<String>>,
    room: &mut usize,
) {
    // Not through a link, and not without end.
    let is_folder = folder.symlink_metadata().is_ok_and(|data| data.is_dir());
    if depth > DEEPEST || !is_folder {
        return;
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if *room == 0 {
            return;
        }
        let full = [name, b"/", entry.file_name().as_bytes()].concat();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            walk(&entry.path(), &full, depth + 1, object_format, found, room);
            continue;
        }
        *room -= 1;
        let text = kind.is_file().then(|| super::pointer::read_small(&entry.path(), 4096).ok()).flatten();
        match text {
            // Private copies of the user's symbolic refs, such as origin/HEAD, are not the agent's work.
            Some(text) if text.starts_with(b"ref:") => {}
            text => {
                let id = text.and_then(|text| value(&text, object_format).ok());
                found.insert(full, id);
            }
        }
    }
}
