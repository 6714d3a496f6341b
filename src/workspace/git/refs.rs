//! Reads the refs of a quarantine, which are files that an agent wrote.
//!
//! git itself would follow symbolic links and symbolic refs, and read the quarantine's configuration to learn
//! their format. Here a ref is a small regular file with an object id, or a line of `packed-refs`, and
//! nothing else.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::repository::is_id;

/// Maximum size of `packed-refs`, unless it was already large: then four times its size before the run. The
/// file is never held in memory as a whole.
const MOST_BYTES: u64 = 64 << 20;
/// Absolute maximum size of `packed-refs`.
const MOST_BYTES_EVER: u64 = 1 << 30;
/// A longer line is no ref.
const LONGEST_LINE: usize = 64 << 10;
/// Maximum number of loose refs to read.
const MOST_REFS: usize = 20_000;
/// Maximum number of changed refs to list. The others are counted.
pub(crate) const MOST_CHANGED: usize = 1_000;
/// Maximum size of the listed names together.
const MOST_CHANGED_BYTES: usize = 256 << 10;
/// Maximum depth of ref directories.
const DEEPEST: usize = 32;

/// Why a ref cannot be received.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RefError {
    /// The ref does not exist.
    #[error("it is not there any more")]
    Missing,
    /// The ref names another ref.
    #[error("it was made a symbolic ref to {0:?}")]
    Symbolic(String),
    /// The ref, or a directory above it, is a symbolic link or another special file.
    #[error("it is {0}, not a plain file")]
    NotPlain(&'static str),
    /// The content is no object id.
    #[error("it does not hold the name of an object")]
    NotAnId,
    /// The quarantine stores its refs as a reftable.
    #[error("the refs are kept in the format reftable, which is not received")]
    Reftable,
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
}

/// The size limit of `packed-refs`, depending on its size when the run began.
fn most_bytes(before: &Path) -> u64 {
    let before = before.symlink_metadata().map_or(0, |data| data.len());
    MOST_BYTES.max(before.saturating_mul(4)).min(MOST_BYTES_EVER)
}

/// The object that a ref of the quarantine names.
pub(crate) fn read(git: &Path, before: &Path, name: &str, object_format: &str) -> Result<String, RefError> {
    if git.join("reftable").symlink_metadata().is_ok() {
        return Err(RefError::Reftable);
    }
    match loose(git, name)? {
        Some(text) => value(&text, object_format),
        None => packed_one(&git.join("packed-refs"), most_bytes(before), name, object_format)?
            .ok_or(RefError::Missing),
    }
}

fn value(text: &[u8], object_format: &str) -> Result<String, RefError> {
    if let Some(target) = text.strip_prefix(b"ref:") {
        let target: String = String::from_utf8_lossy(target)
            .trim()
            .chars()
            .filter(|c| !crate::terminal_text::is_unsafe(*c))
            .collect();
        return Err(RefError::Symbolic(target));
    }
    let text = std::str::from_utf8(text).map_err(|_| RefError::NotAnId)?.trim_end();
    if is_id(text, object_format) { Ok(text.to_string()) } else { Err(RefError::NotAnId) }
}

/// The content of a loose ref; `None` if there is no such file. Follows no symbolic link on the path.
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
            // When git packs a ref, it may leave an empty directory of that name.
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

/// Calls a function for every ref of a `packed-refs` file. Malformed lines are skipped.
fn each_packed(
    file: &Path,
    most: u64,
    object_format: &str,
    mut each: impl FnMut(&[u8], &str),
) -> Result<(), RefError> {
    let unreadable = |error: io::Error| RefError::Unreadable(error.to_string());
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let opened = match OpenOptions::new().read(true).custom_flags(flags).open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(RefError::NotPlain("a link")),
        Err(error) => return Err(unreadable(error)),
    };
    let data = opened.metadata().map_err(unreadable)?;
    if !data.is_file() {
        return Err(RefError::NotPlain("no file"));
    }
    if data.len() > most {
        let (size, most) = (data.len() >> 20, most >> 20);
        return Err(RefError::Unreadable(format!("packed-refs has {size} MiB, more than {most}")));
    }
    let mut reader = io::BufReader::with_capacity(256 << 10, opened.take(most));
    let mut line = Vec::new();
    loop {
        line.clear();
        let read =
            (&mut reader).take(LONGEST_LINE as u64).read_until(b'\n', &mut line).map_err(unreadable)?;
        if read == 0 {
            return Ok(());
        }
        if read == LONGEST_LINE && !line.ends_with(b"\n") {
            return Err(RefError::Unreadable(format!(
                "packed-refs has a line of more than {LONGEST_LINE} bytes"
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

/// One ref of a `packed-refs` file; the last line that names it counts.
fn packed_one(file: &Path, most: u64, wanted: &str, object_format: &str) -> Result<Option<String>, RefError> {
    let mut found = None;
    each_packed(file, most, object_format, |name, id| {
        if name == wanted.as_bytes() {
            found = Some(id.to_string());
        }
    })?;
    Ok(found)
}

/// A ref that changed since the run began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) name: String,
    /// The object that it names now; `None` if it was deleted or is no plain ref.
    pub(crate) now: Option<String>,
    /// It existed when the run began.
    pub(crate) was_there: bool,
}

/// The refs that changed.
#[derive(Debug, Default)]
pub(crate) struct ChangedRefs {
    /// The first of them.
    pub(crate) listed: Vec<Changed>,
    /// The number of the others.
    pub(crate) left_out: usize,
    /// At least one of them names an object now, which may be work.
    pub(crate) has_new_value: bool,
    /// The size of the listed names.
    bytes: usize,
}

impl ChangedRefs {
    fn add(&mut self, name: &[u8], now: Option<&str>, was_there: bool) {
        self.has_new_value |= now.is_some();
        if self.listed.len() >= MOST_CHANGED || self.bytes + name.len() > MOST_CHANGED_BYTES {
            self.left_out += 1;
            return;
        }
        self.bytes += name.len();
        let plain = |c: char| if crate::terminal_text::is_unsafe(c) { '?' } else { c };
        let name = String::from_utf8_lossy(name).chars().map(plain).collect();
        self.listed.push(Changed { name, now: now.map(str::to_string), was_there });
    }
}

/// Finds every ref of the quarantine, except one, that is new, moved or deleted since `before` was written.
/// Memory holds only the refs of the user's repository and the loose refs, not those that an agent packed.
pub(crate) fn changed(
    git: &Path,
    before: &Path,
    except: &str,
    object_format: &str,
) -> Result<ChangedRefs, RefError> {
    // The refs before the run, and whether each still exists.
    let mut known: BTreeMap<Vec<u8>, (String, bool)> = BTreeMap::new();
    let most = most_bytes(before);
    each_packed(before, MOST_BYTES_EVER, object_format, |name, id| {
        known.insert(name.to_vec(), (id.to_string(), false));
    })?;
    let mut loose: BTreeMap<Vec<u8>, Option<String>> = BTreeMap::new();
    let mut room = MOST_REFS;
    walk(&git.join("refs"), b"refs", 0, object_format, &mut loose, &mut room);
    let mut changed = ChangedRefs::default();
    let mut see = |name: &[u8], id: Option<&str>, changed: &mut ChangedRefs| {
        if name == except.as_bytes() {
            return;
        }
        match known.get_mut(name) {
            Some((old, is_there)) => {
                // If a name appears twice, the first line counts here; the others are not reported.
                if !std::mem::replace(is_there, true) && Some(old.as_str()) != id {
                    changed.add(name, id, true);
                }
            }
            None => changed.add(name, id, false),
        }
    };
    for (name, id) in &loose {
        see(name, id.as_deref(), &mut changed);
    }
    each_packed(&git.join("packed-refs"), most, object_format, |name, id| {
        // A loose ref overrides a packed one of the same name.
        if !loose.contains_key(name) {
            see(name, Some(id), &mut changed);
        }
    })?;
    changed.listed.sort_by(|a, b| a.name.cmp(&b.name));
    if room == 0 {
        // Some loose refs were not read: count at least one.
        changed.left_out += 1;
        changed.has_new_value = true;
    }
    for (name, _) in
        known.iter().filter(|(name, (_, is_there))| !is_there && name.as_slice() != except.as_bytes())
    {
        changed.add(name, None, true);
    }
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
    // Not through a symbolic link, and not without a depth limit.
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
        let text = kind.is_file().then(|| super::gitfile::read_small(&entry.path(), 4096).ok()).flatten();
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
