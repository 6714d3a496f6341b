//! Conversations: which folder and worktree one belongs to, and what its agent keeps of its home.
//!
//! A session belongs to an agent and a folder. Whoever names one that is not there, or in another folder, is told so; it
//! is never mixed up with another. One request at a time works in it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::result::Failure;

/// The sessions of one agent.
pub(super) struct Store {
    pub(super) folder: PathBuf,
}

/// What is written down of one.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Record {
    folder: PathBuf,
    /// Where its agent works: in a worktree, where the folder is in a repository.
    #[serde(default)]
    work: Option<PathBuf>,
    #[serde(default)]
    runs: Vec<String>,
}

/// One conversation, held by this request.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    folder: PathBuf,
    record: Record,
    _lock: Flock<fs::File>,
}

fn failed(what: &str, path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new("internal", format!("cannot {what} {}: {error}", path.display()))
}

impl Store {
    /// A new one.
    pub(super) fn begin(&self, cd: &Path) -> Result<Session, Failure> {
        let id = uuid::Uuid::now_v7().to_string();
        let record = Record { folder: real(cd), ..Record::default() };
        let folder = self.folder.join(&id);
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&folder)
            .map_err(|error| failed("make", &folder, &error))?;
        let session = Session { _lock: lock(&folder, &id)?, id, folder, record };
        session.write()?;
        Ok(session)
    }

    /// The one of this id, if it belongs to this folder.
    pub(super) fn resume(&self, id: &str, cd: &Path) -> Result<Session, Failure> {
        let lost = |why: &str| {
            Failure::new(
                "session_lost",
                format!("the session {id} {why}; begin a new one, with all of its context"),
            )
        };
        // It becomes a part of a path.
        if uuid::Uuid::parse_str(id).is_err() {
            return Err(lost("is none of guard's"));
        }
        let folder = self.folder.join(id);
        let Ok(text) = fs::read_to_string(folder.join("session.json")) else {
            return Err(lost("is not known here"));
        };
        let record: Record = serde_json::from_str(&text).map_err(|_| lost("cannot be read"))?;
        if record.folder != real(cd) {
            return Err(lost(&format!("belongs to {}", record.folder.display())));
        }
        // What its agent has made of it since: by a link the next turn would be led elsewhere.
        if record.work.as_ref().is_some_and(|work| work.exists() && real(work) != *work) {
            return Err(lost("worked in a folder that is now a link"));
        }
        Ok(Session { _lock: lock(&folder, id)?, id: id.to_string(), folder, record })
    }
}

fn real(folder: &Path) -> PathBuf {
    folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf())
}

fn lock(folder: &Path, id: &str) -> Result<Flock<fs::File>, Failure> {
    let path = folder.join("lock");
    let open = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = open.map_err(|error| failed("open", &path, &error))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|_| Failure::new("session_busy", format!("another request works in the session {id}")))
}

impl Session {
    /// What the agent keeps of its home.
    pub(super) fn home(&self) -> PathBuf {
        self.folder.join("home")
    }

    /// What its branch and worktree are called.
    pub(super) fn task(&self) -> String {
        // The end of an id differs most.
        format!("session-{}", self.id.get(self.id.len().saturating_sub(12)..).unwrap_or(&self.id))
    }

    /// The worktree its agent worked in, where that is still there.
    pub(super) fn work(&self) -> Option<&Path> {
        self.record.work.as_deref().filter(|work| work.is_dir() && *work != self.record.folder)
    }

    /// Writes down another run, and where it worked.
    pub(super) fn note(&mut self, run: &str, work: Option<PathBuf>) -> Result<(), Failure> {
        self.record.runs.push(run.to_string());
        self.record.work = work.or(self.record.work.take());
        self.write()
    }

    /// Forgets one that never began.
    pub(super) fn forget(self) {
        if !self.home().exists() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    fn write(&self) -> Result<(), Failure> {
        let path = self.folder.join("session.json");
        let new = self.folder.join("session.json.new");
        let text = serde_json::to_vec(&self.record).unwrap_or_default();
        let written = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&new)
            .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&new, &path));
        written.map_err(|error| failed("write", &path, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_one_folders_and_one_requests() {
        let root = std::env::temp_dir().join(format!("guard-sessions-{}", std::process::id()));
        let store = Store { folder: root.join("gemini") };
        let session = store.begin(&std::env::temp_dir()).unwrap_or_else(|failure| panic!("{failure:?}"));
        let id = session.id.clone();
        let kind = |result: Result<Session, Failure>| {
            result.map(|_| "fine".to_string()).unwrap_or_else(|failure| failure.kind)
        };
        assert_eq!(kind(store.resume(&id, &std::env::temp_dir())), "session_busy");
        drop(session);
        assert_eq!(kind(store.resume(&id, &std::env::temp_dir())), "fine");
        assert_eq!(kind(store.resume(&id, Path::new("/"))), "session_lost");
        assert_eq!(kind(store.resume("../../etc", &std::env::temp_dir())), "session_lost");
        assert_eq!(
            kind(store.resume("0197f0a0-0000-7000-8000-000000000000", &std::env::temp_dir())),
            "session_lost"
        );
        let _ = fs::remove_dir_all(&root);
    }
}
