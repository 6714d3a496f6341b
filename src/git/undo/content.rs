//! Reads the copies in a snapshot.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

use super::manifest::{Content, Item, copy_of, pack_of};
use super::objects::read_blobs;
use super::store::SavedSnapshot;
use super::take::open_file;
use crate::git::WorkspaceError;
use crate::git::snapshot::{Name, OpenDirectory};
use crate::sys::fs::{Links, open_regular_file};

/// Maximum number of bytes of a large file to compare with its copy, apart from holes.
const MAX_COMPARED: u64 = 1 << 30;

/// The content of a file in a snapshot.
pub(super) enum Copy<'a> {
    Bytes(&'a [u8]),
    /// A file with exactly the content.
    File(&'a File),
}

/// Calls `each` with the content of each of these regular files as it was before the run, or with the reason why the
/// content cannot be read. The order of the calls is not that of the files.
pub(super) fn with_contents(
    saved: &SavedSnapshot,
    files: &[(&Name, &Item)],
    mut each: impl FnMut(&Name, &Item, Result<Copy<'_>, String>),
) -> Result<(), WorkspaceError> {
    let folder = |source: u32| {
        let name = saved.info.sources.get(source as usize);
        name.map(|name| saved.folder.with_file_name(name)).ok_or("the snapshot is damaged")
    };
    let opened = |path: &std::path::Path| {
        open_regular_file(path, u64::MAX, Links::Refuse)
            .map_err(|error| format!("cannot read its copy: {error}"))
    };
    let mut packs: HashMap<u32, Result<File, String>> = HashMap::new();
    let mut of_blob: HashMap<&str, Vec<(&Name, &Item)>> = HashMap::new();
    for (path, item) in files {
        match &item.content {
            Content::Blob(blob) => of_blob.entry(blob).or_default().push((path, item)),
            Content::Packed(source, place) => {
                let pack = packs.entry(*source).or_insert_with(|| opened(&pack_of(&folder(*source)?)));
                let read = |pack: &File| -> io::Result<Vec<u8>> {
                    // A damaged list must not make guard reserve much memory.
                    let left = pack.metadata()?.len().saturating_sub(*place);
                    if item.state.size > left {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    let mut bytes = vec![0; item.state.size as usize];
                    pack.read_exact_at(&mut bytes, *place)?;
                    Ok(bytes)
                };
                let bytes = match pack {
                    Ok(pack) => read(pack).map_err(|error| format!("cannot read its copy: {error}")),
                    Err(problem) => Err(problem.clone()),
                };
                match &bytes {
                    Ok(bytes) => each(path, item, Ok(Copy::Bytes(bytes))),
                    Err(problem) => each(path, item, Err(problem.clone())),
                }
            }
            Content::File(source, number) => {
                let file =
                    folder(*source).map_err(str::to_string).and_then(|one| opened(&copy_of(&one, *number)));
                each(path, item, file.as_ref().map(Copy::File).map_err(Clone::clone));
            }
            Content::None | Content::Link(_) | Content::Missing | Content::Repository => {
                each(path, item, Err("the snapshot has no copy of it".to_string()));
            }
        }
    }
    if let Some(objects) = &saved.info.objects {
        let mut blobs: Vec<(String, u64)> =
            of_blob.iter().map(|(blob, files)| ((*blob).to_string(), files[0].1.state.size)).collect();
        blobs.sort();
        read_blobs(&objects.path(), &blobs, |blob, bytes| {
            for (path, item) in of_blob.remove(blob).unwrap_or_default() {
                let is_whole = bytes.len() as u64 == item.state.size;
                let problem = || "the object of the repository has another size".to_string();
                each(path, item, is_whole.then_some(Copy::Bytes(bytes)).ok_or_else(problem));
            }
        })?;
    }
    for (path, item) in of_blob.into_values().flatten() {
        each(path, item, Err("the repository no longer has the object".to_string()));
    }
    Ok(())
}

/// True if a file below a directory has this content.
pub(super) fn has_content(top: &OpenDirectory, path: &Name, size: u64, copy: &Copy<'_>) -> bool {
    let Ok(file) = open_file(top, path) else { return false };
    match copy {
        Copy::Bytes(bytes) => {
            let mut found = Vec::with_capacity(bytes.len() + 1);
            let read = file.take(size + 1).read_to_end(&mut found);
            read.is_ok() && found == *bytes
        }
        Copy::File(copy) => is_equal(&file, copy, size).unwrap_or(false),
    }
}

/// Compares two files of `size` bytes. Skips what is a hole in both.
fn is_equal(one: &File, other: &File, size: u64) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0u8; 1 << 16], vec![0u8; 1 << 16]);
    let (mut place, mut compared) = (0, 0);
    while place < size {
        place = next_data(one, place, size)?.min(next_data(other, place, size)?);
        let length = usize::try_from(size - place).unwrap_or(usize::MAX).min(left.len());
        compared += length as u64;
        if compared > MAX_COMPARED {
            return Ok(false);
        }
        one.read_exact_at(&mut left[..length], place)?;
        other.read_exact_at(&mut right[..length], place)?;
        if left[..length] != right[..length] {
            return Ok(false);
        }
        place += length as u64;
    }
    // The file must not be longer, either.
    Ok(one.read_at(&mut left[..1], size)? == 0)
}

/// Returns the place of the first data at or after `place`; `size` if there is none.
fn next_data(file: &File, place: u64, size: u64) -> io::Result<u64> {
    match lseek(file, i64::try_from(place).unwrap_or(i64::MAX), Whence::SeekData) {
        Ok(at) => Ok(u64::try_from(at).unwrap_or(size).min(size)),
        Err(Errno::ENXIO) => Ok(size),
        Err(error) => Err(error.into()),
    }
}
