//! Stores the results of calls on disk, so that clients that stopped waiting can ask for them later, even after this
//! server has ended.
//!
//! The server creates a file for each call when the call begins, and holds a lock on the file while it runs the call.
//! If a file contains no result and is not locked, the server ended before the call did.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The maximum number of calls that are stored.
const MOST_KEPT: usize = 256;
/// The maximum total size of the stored calls, in bytes.
const MOST_BYTES: u64 = 64 << 20;
/// The maximum size of one stored result, in bytes.
const LARGEST: usize = 4 << 20;

/// The record of a call, as stored in its file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) call_id: String,
    pub(super) cd: PathBuf,
    /// When the call began (RFC 3339, UTC).
    pub(super) began: String,
    #[serde(default)]
    pub(super) result: Option<Value>,
}

/// The state of a stored call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Done,
    /// The server ended before the call did.
    BrokenOff,
}

/// The directory in which calls are stored, one file for each.
#[derive(Debug, Clone)]
pub(super) struct ResultStore {
    pub(super) directory: PathBuf,
}

/// The record of a running call, with the lock on its file.
#[derive(Debug)]
pub(super) struct OpenCall {
    file: Flock<File>,
    record: Record,
    store: ResultStore,
}

impl ResultStore {
    /// Creates and locks the file with the record of a new call.
    pub(super) fn begin(&self, record: Record) -> io::Result<OpenCall> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        self.prune();
        let file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.path(&record.call_id))?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, error)| io::Error::from(error))?;
        let mut open = OpenCall { file, record, store: self.clone() };
        open.write()?;
        Ok(open)
    }

    /// Finds the record and the state of a call by its id. `None` if the id is invalid or unknown.
    pub(super) fn find(&self, id: &str) -> Option<(Record, State)> {
        // The id becomes part of a path, so only the canonical form is accepted.
        let id = uuid::Uuid::parse_str(id).ok().filter(|parsed| parsed.to_string() == id)?;
        read(&self.path(&id.to_string()))
    }

    /// Lists the newest calls, at most `most`, without their results.
    pub(super) fn newest(&self, most: usize) -> Vec<(Record, State)> {
        let found = self.files().into_iter().rev().filter_map(|path| read(&path));
        found.map(|(record, state)| (Record { result: None, ..record }, state)).take(most).collect()
    }

    fn path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.json"))
    }

    /// Returns the files of all stored calls, oldest first: call ids sort by creation time.
    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut files: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|ending| ending == "json")).collect();
        files.sort();
        files
    }

    /// Removes the oldest records beyond the limits on number and size, but never the record of a running call.
    fn prune(&self) {
        let files = self.files();
        let size = |path: &PathBuf| path.symlink_metadata().map_or(0, |found| found.size());
        let (mut count, mut bytes) = (files.len(), files.iter().map(size).sum::<u64>());
        for path in files {
            if count < MOST_KEPT && bytes <= MOST_BYTES {
                return;
            }
            if !matches!(read(&path), Some((_, State::Running))) {
                (count, bytes) = (count - 1, bytes.saturating_sub(size(&path)));
                let _ = fs::remove_file(&path);
            }
        }
    }
}

impl OpenCall {
    /// Stores the call's result and releases the lock.
    pub(super) fn finish(mut self, result: Value) -> io::Result<()> {
        self.record.result = Some(result);
        self.write()?;
        let store = self.store.clone();
        drop(self);
        store.prune();
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let text = serde_json::to_vec(&self.record)?;
        self.file.rewind()?;
        self.file.set_len(0)?;
        self.file.write_all(&text)?;
        self.file.sync_data()
    }
}

fn read(path: &Path) -> Option<(Record, State)> {
    let mut file = File::open(path).ok()?;
    let is_being_made = |file: &File| {
        let lock = file.try_clone().map(|file| Flock::lock(file, FlockArg::LockSharedNonblock));
        !matches!(lock, Ok(Ok(_)))
    };
    let is_running = is_being_made(&file);
    let mut text = Vec::new();
    (&mut file).take(2 * LARGEST as u64).read_to_end(&mut text).ok()?;
    let record: Result<Record, _> = serde_json::from_slice(&text);
    match record {
        _ if is_running => {
            // The server may still be writing the record, so take the id from the file name.
            let id = path.file_stem()?.to_str()?.to_string();
            let unread = Record { call_id: id, cd: PathBuf::new(), began: String::new(), result: None };
            Some((record.unwrap_or(unread), State::Running))
        }
        Ok(record) if record.result.is_some() => Some((record, State::Done)),
        Ok(record) => Some((record, State::BrokenOff)),
        Err(_) => None,
    }
}

/// Shortens a result of more than `LARGEST` bytes before guard stores or sends it. Removes the agent's intermediate
/// messages (`all_messages`), and then further lists for as long as the result is too large, but never the answer.
pub(super) fn bounded(mut result: Value) -> Value {
    let size = |value: &Value| serde_json::to_vec(value).map_or(0, |text| text.len());
    if size(&result) <= LARGEST {
        return result;
    }
    if result["all_messages"].is_array() {
        result["all_messages"] = json!([]);
        result["all_messages_cut"] = json!(true);
    }
    for list in ["denials", "files_changed", "findings", "commits", "network"] {
        if size(&result) > LARGEST && result[list].is_array() {
            result[list] = json!([]);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str) -> Record {
        Record { call_id: id.to_string(), cd: "/work".into(), began: "now".to_string(), result: None }
    }

    #[test]
    fn a_call_is_running_done_or_broken_off() -> io::Result<()> {
        let directory = std::env::temp_dir().join(format!("guard-kept-{}", uuid::Uuid::now_v7()));
        let store = ResultStore { directory };
        let ids: Vec<String> = (0..3).map(|_| uuid::Uuid::now_v7().to_string()).collect();
        let state = |id: &str| store.find(id).map(|(_, state)| state);
        let open = store.begin(record(&ids[0]))?;
        assert_eq!(state(&ids[0]), Some(State::Running));
        assert_eq!(store.directory.metadata()?.mode() & 0o777, 0o700);
        assert_eq!(store.path(&ids[0]).metadata()?.mode() & 0o777, 0o600);
        open.finish(json!({ "success": true }))?;
        let (done, how) = store.find(&ids[0]).unwrap_or_else(|| panic!("the call is not stored"));
        assert_eq!((how, done.result), (State::Done, Some(json!({ "success": true }))));
        drop(store.begin(record(&ids[1]))?);
        assert_eq!(state(&ids[1]), Some(State::BrokenOff));
        for no_id in ["", "..", "../x", &ids[2], &ids[0].to_uppercase(), &ids[0].replace('-', "")] {
            assert_eq!(state(no_id), None, "{no_id}");
        }
        assert_eq!(store.newest(9).len(), 2);
        fs::remove_dir_all(&store.directory)
    }

    #[test]
    fn there_are_never_too_many() -> io::Result<()> {
        let directory = std::env::temp_dir().join(format!("guard-kept-{}", uuid::Uuid::now_v7()));
        let store = ResultStore { directory };
        let first = uuid::Uuid::now_v7().to_string();
        let running = store.begin(record(&first))?;
        for _ in 0..MOST_KEPT + 20 {
            store.begin(record(&uuid::Uuid::now_v7().to_string()))?.finish(json!(1))?;
        }
        assert!(store.files().len() <= MOST_KEPT, "{}", store.files().len());
        assert_eq!(store.find(&first).map(|(_, state)| state), Some(State::Running));
        running.finish(json!({ "long": "x".repeat(MOST_BYTES as usize) }))?;
        let bytes: u64 =
            store.files().iter().filter_map(|path| path.metadata().ok()).map(|found| found.size()).sum();
        assert!(bytes <= MOST_BYTES, "{bytes}");
        fs::remove_dir_all(&store.directory)
    }

    #[test]
    fn a_result_is_cut_where_it_matters_least() {
        let messages: Vec<Value> = (0..2000).map(|_| json!("x".repeat(4096))).collect();
        let cut = bounded(json!({ "result": "the answer", "all_messages": messages }));
        assert_eq!(cut, json!({ "result": "the answer", "all_messages": [], "all_messages_cut": true }));
    }
}
