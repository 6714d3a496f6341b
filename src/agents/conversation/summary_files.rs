//! The summaries of a conversation: one file per summary in `summaries/`, named after the digest of the
//! messages that it replaces, and the failures of the summary model in `summaries/breaker.json`.
//!
//! Files are replaced by rename, so no lock is needed: a compaction in the background may write while a turn
//! reads, and a killed compaction leaves no file that a reader would use.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::agents::history::{CircuitBreaker, Message, Summary, digest_of};
use crate::sys::fs::{Durability, replace_file};

/// Maximum number of stored summaries. Older ones are deleted.
const MOST_KEPT: usize = 32;
/// Maximum size of a file that is read, in bytes.
const LARGEST: u64 = 4 << 20;

fn folder(conversation: &Path) -> PathBuf {
    conversation.join("summaries")
}

fn breaker_file(conversation: &Path) -> PathBuf {
    folder(conversation).join("breaker.json")
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let size = path.metadata().ok()?.len();
    serde_json::from_slice(&fs::read(path).ok().filter(|_| size <= LARGEST)?).ok()
}

/// Returns the stored summary that covers the most of these messages; `None` if there is none. Does not delete
/// summaries of other messages, because an undo can make them useful again.
pub(super) fn best(conversation: &Path, messages: &[Message]) -> Option<Summary> {
    let mut found: Vec<Summary> = files(conversation).iter().filter_map(|path| read(path)).collect();
    found.sort_by_key(|summary| std::cmp::Reverse(summary.covers));
    let fits = |summary: &Summary| {
        messages.get(..summary.covers).is_some_and(|covered| digest_of(covered) == summary.digest)
    };
    found.into_iter().find(fits)
}

/// Returns the files of all summaries, the oldest first.
fn files(conversation: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder(conversation)).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        path.extension().is_some_and(|ending| ending == "json") && name != "breaker"
    });
    let mut paths: Vec<PathBuf> = paths.collect();
    paths.sort_by_key(|path| path.metadata().and_then(|data| data.modified()).ok());
    paths
}

/// Creates the directory for the summaries of a conversation. Fails if the conversation was deleted meanwhile.
fn create_folder(conversation: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder(conversation)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        created => created,
    }
}

/// Stores a summary, and deletes the oldest ones if there are too many. Fails if the conversation was deleted
/// meanwhile.
pub(super) fn save(conversation: &Path, summary: &Summary) -> io::Result<()> {
    create_folder(conversation)?;
    let is_digest = summary.digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_digest {
        return Err(io::Error::other("the digest of a summary is not hexadecimal"));
    }
    let path = folder(conversation).join(format!("{}.json", summary.digest));
    replace_file(&path, &serde_json::to_vec(summary)?, 0o600, Durability::Synced)?;
    let all = files(conversation);
    for old in &all[..all.len().saturating_sub(MOST_KEPT)] {
        let _ = fs::remove_file(old);
    }
    Ok(())
}

/// Copies the summaries of a conversation to another one. Does not copy the failures of the summary model.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let files = files(from);
    if files.is_empty() {
        return Ok(());
    }
    create_folder(to)?;
    for path in files {
        let Some(name) = path.file_name() else { continue };
        replace_file(&folder(to).join(name), &fs::read(&path)?, 0o600, Durability::Synced)?;
    }
    Ok(())
}

/// Returns the stored circuit breaker, which counts the recent failures of the summary model; a breaker without
/// failures if none is stored.
pub(super) fn breaker(conversation: &Path) -> CircuitBreaker {
    read(&breaker_file(conversation)).unwrap_or_default()
}

pub(super) fn save_breaker(conversation: &Path, breaker: &CircuitBreaker) -> io::Result<()> {
    create_folder(conversation)?;
    replace_file(&breaker_file(conversation), &serde_json::to_vec(breaker)?, 0o600, Durability::Synced)
}
