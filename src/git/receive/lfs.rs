//! Copies the git-lfs objects of a run into the user's repository. The name of each object's file is the hash of
//! its content, and guard copies a file only if its content matches its name.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::sys::fs::{Links, open_regular_file};

/// The time after which guard copies no further object. The run's private repository keeps the others.
const MAX_TIME: Duration = Duration::from_secs(600);

/// Copies every LFS object of a quarantine repository (a run's private git directory) whose content matches its name,
/// up to `max` bytes and [`MAX_TIME`] in total. Returns the paths of the objects that the user's repository still lacks.
pub(crate) fn receive(quarantine: &Path, common_dir: &Path, max: u64) -> io::Result<Vec<PathBuf>> {
    let mut left = Vec::new();
    let mut remaining = max;
    let deadline = Instant::now() + MAX_TIME;
    for file in objects(&quarantine.join("lfs/objects"), 0) {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_string();
        let is_name = name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let is_late = Instant::now() > deadline;
        if !is_name || is_late || !copy(&file, &name, common_dir, &mut remaining)? {
            left.push(file);
        }
    }
    Ok(left)
}

/// Lists the files in the directory `dir`, which is `depth` levels below the directory of LFS objects. Descends at most
/// to the second level below that directory, and follows no symbolic link. Includes directories that guard cannot read.
fn objects(dir: &Path, depth: usize) -> Vec<PathBuf> {
    let is_dir = dir.symlink_metadata().is_ok_and(|data| data.is_dir());
    if !is_dir || depth > 2 {
        return Vec::new();
    }
    // A directory that guard cannot read may contain objects, so it counts as a file that guard cannot receive.
    let Ok(entries) = fs::read_dir(dir) else { return vec![dir.to_path_buf()] };
    let found = entries.flat_map(|entry| match entry.map(|entry| (entry.file_type(), entry.path())) {
        Ok((Ok(kind), path)) if kind.is_dir() => objects(&path, depth + 1),
        Ok((_, path)) => vec![path],
        Err(_) => vec![dir.to_path_buf()],
    });
    found.collect()
}

fn copy(file: &Path, name: &str, common_dir: &Path, remaining: &mut u64) -> io::Result<bool> {
    let dir = common_dir.join("lfs/objects").join(&name[..2]).join(&name[2..4]);
    let place = dir.join(name);
    if place.is_file() {
        return Ok(true);
    }
    let Ok(mut from) = open_regular_file(file, *remaining, Links::Refuse) else { return Ok(false) };
    // Content that does not match its name counts too: an agent can write many such files.
    *remaining = remaining.saturating_sub(from.metadata()?.len());
    fs::create_dir_all(&dir)?;
    let new = dir.join(format!(".guard-{}", uuid::Uuid::now_v7()));
    let mut to = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0u8; 128 << 10];
    let copied = (|| -> io::Result<()> {
        loop {
            let count = from.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            hasher.update(&buffer[..count]);
            to.write_all(&buffer[..count])?;
        }
    })();
    let found = crate::text::hex::encode(hasher.finalize());
    if copied.is_err() || found != name {
        fs::remove_file(&new)?;
        return copied.map(|()| false);
    }
    fs::rename(new, place)?;
    Ok(true)
}

/// True if a quarantine repository (a run's private git directory) has LFS objects that the user's repository lacks.
pub(crate) fn has_unreceived(quarantine: &Path, common_dir: &Path) -> bool {
    objects(&quarantine.join("lfs/objects"), 0).iter().any(|file| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let place =
            name.get(..2).zip(name.get(2..4)).map(|(a, b)| common_dir.join("lfs/objects").join(a).join(b));
        !place.is_some_and(|dir| dir.join(name).is_file())
    })
}
