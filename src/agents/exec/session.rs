//! Stored sessions. The record of a session names the working directory and the worktree that the session belongs to.
//! Next to the record, guard saves files of the agent's home directory between turns.
//!
//! A session belongs to one agent and one directory. Resuming an unknown session, or a session of another
//! directory, is an error, so that sessions are never confused. Only one request at a time can use a session.
//! Agents cannot write these records, and no file that an agent can write may decide in which directory the
//! next turn runs.

use std::fs::{self, DirBuilder, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::failure::Failure;
use crate::run::outcome::{ErrorKind, RunResult};
use crate::sys::fs::{Durability, replace_file};

/// The stored sessions of one agent. Each session has its own subdirectory.
pub(super) struct Store {
    pub(super) directory: PathBuf,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Record {
    /// The directory that the session belongs to, as a canonical path.
    folder: PathBuf,
    /// The worktree that contains the session's work; `None` before the first run, or if guard removed the worktree
    /// because it was empty.
    #[serde(default)]
    worktree: Option<Worktree>,
    #[serde(default)]
    runs: Vec<String>,
    /// The agent's own id of the session; `None` if the agent uses the id that guard chose, or has not reported
    /// one yet.
    #[serde(default)]
    agents_id: Option<String>,
}

/// The worktree in which the runs of a session work, and its branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Worktree {
    pub(super) branch: String,
    pub(super) folder: PathBuf,
    /// True if the last run ended and kept the worktree. False while a run has not reported its end: it may have
    /// removed the worktree, if that was empty.
    pub(super) is_kept: bool,
}

/// A session that this request has locked.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    directory: PathBuf,
    record: Record,
    lock: Flock<fs::File>,
}

fn failed(what: &str, path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(ErrorKind::Internal, format!("cannot {what} {}: {error}", path.display()))
}

impl Store {
    /// Creates and locks a session that belongs to the directory `cd`.
    pub(super) fn create(&self, cd: &Path) -> Result<Session, Failure> {
        self.create_with_id(uuid::Uuid::now_v7().to_string(), cd)
    }

    /// Opens and locks the session with the id that the caller has chosen, or creates it if it does not exist. Fails if
    /// the id is not a UUID, or if the session belongs to another directory or is in use.
    pub(super) fn open_or_create(&self, id: &str, cd: &Path) -> Result<Session, Failure> {
        if is_id(id) && !self.directory.join(id).join(RECORD).exists() {
            return self.create_with_id(id.to_string(), cd);
        }
        self.resume(id, cd)
    }

    fn create_with_id(&self, id: String, cd: &Path) -> Result<Session, Failure> {
        let record = Record { folder: canonical(cd), ..Record::default() };
        let directory = self.directory.join(&id);
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&directory)
            .map_err(|error| failed("create the directory", &directory, &error))?;
        let session = Session { lock: lock(&directory, &id)?, id, directory, record };
        session.write()?;
        Ok(session)
    }

    /// Opens and locks the session with this id. Fails if the session does not exist, is in use, or does not belong to
    /// the directory `cd`.
    pub(super) fn resume(&self, id: &str, cd: &Path) -> Result<Session, Failure> {
        let lost = |why: &str| {
            Failure::new(
                ErrorKind::SessionLost,
                format!("the session {id:?} {why}; start a new session and repeat the context in its prompt"),
            )
        };
        if !is_id(id) {
            return Err(lost("has an invalid id"));
        }
        let directory = self.directory.join(id);
        let unknown = || lost("does not exist, or belongs to another agent");
        if !directory.join(RECORD).exists() {
            return Err(unknown());
        }
        // Take the lock before reading, so that no other request writes the record meanwhile.
        let lock = lock(&directory, id)?;
        let text = fs::read(directory.join(RECORD)).map_err(|_| unknown())?;
        let record: Record = serde_json::from_slice(&text).map_err(|_| lost("has a damaged record"))?;
        if record.folder != canonical(cd) {
            return Err(lost(&format!("belongs to the directory {}", record.folder.display())));
        }
        Ok(Session { lock, id: id.to_string(), directory, record })
    }
}

const RECORD: &str = "session.json";

/// Returns true if a text is an id of a session. The id becomes part of a path and of command lines, so guard accepts
/// only the exact form that it writes itself.
fn is_id(text: &str) -> bool {
    uuid::Uuid::parse_str(text).map(|uuid| uuid.to_string()).as_deref() == Ok(text)
}

fn canonical(directory: &Path) -> PathBuf {
    directory.canonicalize().unwrap_or_else(|_| directory.to_path_buf())
}

fn lock(directory: &Path, id: &str) -> Result<Flock<fs::File>, Failure> {
    let path = directory.join("lock");
    let open = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = open.map_err(|error| failed("open", &path, &error))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
        let message = format!("another request is using the session {id}; wait until it has ended");
        Failure::new(ErrorKind::SessionBusy, message)
    })
}

impl Session {
    /// Returns the directory that holds the saved files of the agent's home directory.
    pub(super) fn home(&self) -> PathBuf {
        self.directory.join("home")
    }

    /// Returns a copy of the session's lock for a child process. If this process is killed, the child keeps the session
    /// locked until it has ended.
    pub(super) fn lock_for_child(&self) -> std::io::Result<OwnedFd> {
        self.lock.as_fd().try_clone_to_owned()
    }

    /// Returns the name of the session's task, from which the branch and the worktree get their names.
    pub(super) fn task(&self) -> String {
        // The end of a UUIDv7 is the random part.
        format!("session-{}", self.id.get(self.id.len().saturating_sub(12)..).unwrap_or(&self.id))
    }

    pub(super) fn worktree(&self) -> Option<&Worktree> {
        self.record.worktree.as_ref()
    }

    /// Returns the agent's own id of the session; `None` if the agent has not chosen one.
    pub(super) fn agents_id(&self) -> Option<&str> {
        self.record.agents_id.as_deref()
    }

    /// Stores the agent's own id of the session. The agent printed this id, and guard passes it as an argument
    /// when it resumes the session, so only a plain UUID is accepted.
    pub(super) fn set_agents_id(&mut self, id: &str) {
        if is_id(id) {
            self.record.agents_id = Some(id.to_string());
        }
    }

    /// Records the worktree in which the agent works from now on.
    pub(super) fn record_worktree(&mut self, branch: &str, worktree: &str) -> Result<(), Failure> {
        let (branch, folder) = (branch.to_string(), PathBuf::from(worktree));
        self.record.worktree = Some(Worktree { branch, folder, is_kept: false });
        self.write()
    }

    /// Records that a run has ended, and whether its worktree still exists: guard removes an empty worktree.
    pub(super) fn record_run(&mut self, run: &RunResult) -> Result<(), Failure> {
        if !run.run_id.is_empty() {
            self.record.runs.push(run.run_id.clone());
        }
        if let Some(worktree) = &run.worktree {
            let (branch, folder) = (worktree.branch.clone(), PathBuf::from(&worktree.path));
            self.record.worktree = worktree.kept.then_some(Worktree { branch, folder, is_kept: true });
        }
        self.write()
    }

    /// Removes the session if no run has stored anything in it.
    pub(super) fn remove_if_unused(self) {
        if !self.home().exists() && self.record.worktree.is_none() {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }

    fn write(&self) -> Result<(), Failure> {
        let path = self.directory.join(RECORD);
        let text = serde_json::to_vec(&self.record).unwrap_or_default();
        // A power failure may lose the record; resuming the session then fails with an error.
        replace_file(&path, &text, 0o600, Durability::Unsynced)
            .map_err(|error| failed("write", &path, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_belongs_to_one_directory_and_one_request() {
        let root = std::env::temp_dir().join(format!("guard-sessions-{}", std::process::id()));
        let store = Store { directory: root.join("gemini") };
        let session = store.create(&std::env::temp_dir()).unwrap_or_else(|failure| panic!("{failure:?}"));
        let id = session.id.clone();
        let kind =
            |result: Result<Session, Failure>| result.map_or_else(|failure| Err(failure.kind), |_| Ok(()));
        assert_eq!(kind(store.resume(&id, &std::env::temp_dir())), Err(ErrorKind::SessionBusy));
        drop(session);
        assert_eq!(kind(store.resume(&id, &std::env::temp_dir())), Ok(()));
        assert_eq!(kind(store.resume(&id, Path::new("/"))), Err(ErrorKind::SessionLost));
        let upper_case = id.to_uppercase();
        let unknown = "0197f0a0-0000-7000-8000-000000000000";
        for other in ["../../etc", "", unknown, &upper_case, &format!("{{{id}}}")] {
            assert_eq!(
                kind(store.resume(other, &std::env::temp_dir())),
                Err(ErrorKind::SessionLost),
                "{other}"
            );
        }
        // The session belongs to another agent.
        let others = Store { directory: root.join("claude") };
        assert_eq!(kind(others.resume(&id, &std::env::temp_dir())), Err(ErrorKind::SessionLost));
        for broken in ["", "{", "[]", "{\"folder\": 5}"] {
            let path = store.directory.join(&id).join(RECORD);
            fs::write(path, broken).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(
                kind(store.resume(&id, &std::env::temp_dir())),
                Err(ErrorKind::SessionLost),
                "{broken}"
            );
        }
        let _ = fs::remove_dir_all(&root);
    }

    #[test]
    fn an_agents_own_id_is_a_uuid_or_nothing() {
        let root = std::env::temp_dir().join(format!("guard-session-ids-{}", std::process::id()));
        let store = Store { directory: root.clone() };
        let mut session = store.create(&root).unwrap_or_else(|failure| panic!("{failure:?}"));
        for odd in ["", "--last", "../x", "0197F0A0-0000-7000-8000-000000000000", "-c model=x"] {
            session.set_agents_id(odd);
            assert_eq!(session.agents_id(), None, "{odd}");
        }
        session.set_agents_id("0197f0a0-0000-7000-8000-000000000000");
        assert_eq!(session.agents_id(), Some("0197f0a0-0000-7000-8000-000000000000"));
        let _ = fs::remove_dir_all(&root);
    }

    #[test]
    fn a_session_knows_the_worktree_that_has_its_work() {
        let root = std::env::temp_dir().join(format!("guard-session-work-{}", std::process::id()));
        let store = Store { directory: root.clone() };
        let mut session = store.create(&root).unwrap_or_else(|failure| panic!("{failure:?}"));
        let id = session.id.clone();
        let noted = |session: &mut Session, kept: Option<bool>| {
            let worktree = kept.map(|kept| crate::run::outcome::Worktree {
                path: "/w".to_string(),
                branch: "task/b".to_string(),
                kept,
                ..Default::default()
            });
            let run = RunResult { worktree, ..RunResult::default() };
            session.record_run(&run).unwrap_or_else(|failure| panic!("{failure:?}"));
        };
        // A process killed at this point has already recorded where the agent works.
        session.record_worktree("task/b", "/w").unwrap_or_else(|failure| panic!("{failure:?}"));
        drop(session);
        let mut session = store.resume(&id, &root).unwrap_or_else(|failure| panic!("{failure:?}"));
        let place = |is_kept| Worktree { branch: "task/b".to_string(), folder: PathBuf::from("/w"), is_kept };
        assert_eq!(session.worktree(), Some(&place(false)));
        // A run that failed before it had a worktree changes nothing.
        noted(&mut session, None);
        assert!(session.worktree().is_some());
        noted(&mut session, Some(false));
        assert_eq!(session.worktree(), None);
        noted(&mut session, Some(true));
        assert_eq!(session.worktree(), Some(&place(true)));
        let _ = fs::remove_dir_all(&root);
    }
}
