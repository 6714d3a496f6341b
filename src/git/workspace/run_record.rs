//! The record of a workspace: a file in the run's directory. guard writes the record before each change of the
//! workspace, so that another guard process can finish or undo an interrupted operation.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::extra_files::ExtraFile;
use crate::git::receive::Limits;
use crate::git::{WorkspaceError, at};
use crate::sys::fs::{Durability, replace_file};

const FILE: &str = "workspace.json";
/// The name of a workspace's lock file. The guard process that uses the workspace holds the lock.
const LOCK: &str = "workspace.lock";
/// The version of the record's format.
const VERSION: u32 = 1;

/// Which step guard has reached in creating, receiving or removing a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// guard is creating the workspace.
    Opening,
    /// The workspace is complete, and the agent may work in it.
    Open,
    /// guard is receiving the run's branch into the user's repository.
    Receiving,
    /// guard has received the run's branch, but has not yet given the worktree back to the user or removed it.
    Received,
    /// guard keeps the worktree, and its `.git` file points to the user's repository again.
    Kept,
    /// guard is removing the worktree.
    Removing,
    /// guard has removed the worktree, and has saved the work in it under `refs/guard/` or in the run's directory.
    Removed,
}

impl State {
    /// Returns the state as a single word, as guard stores and prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Open => "open",
            Self::Receiving => "receiving",
            Self::Received => "received",
            Self::Kept => "kept",
            Self::Removing => "removing",
            Self::Removed => "removed",
        }
    }
}

/// The description of a workspace that guard stores in the run's directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// The version of the record's format.
    pub version: u32,
    pub run_id: String,
    pub state: State,
    /// The common directory of the user's repository, which all of its working trees share.
    #[serde(with = "super::path_text")]
    pub common_dir: PathBuf,
    /// The hash function of object ids: `sha1` or `sha256`.
    pub object_format: String,
    /// The storage format of refs: `files` or `reftable`.
    pub ref_format: String,
    /// The object directories of the user's repository, including those of its alternates.
    #[serde(with = "super::path_text::list")]
    pub objects: Vec<PathBuf>,
    /// The full ref name of the run's branch.
    pub branch: String,
    /// The commit that the run started from. guard receives only descendants of this commit.
    pub base: String,
    /// The commit of the branch when guard last created the branch, received it or applied its work.
    pub tip: String,
    #[serde(with = "super::path_text")]
    pub worktree: PathBuf,
    /// The worktree's git directory, which is below `worktrees/` in the user's repository.
    #[serde(with = "super::path_text")]
    pub admin_dir: PathBuf,
    /// True if the worktree existed before the run (`--here`), so that guard must not remove it.
    pub here: bool,
    /// The path of the user's global ignore file (`core.excludesFile`).
    #[serde(with = "super::path_text")]
    pub excludes: PathBuf,
    /// Untracked files of the user that guard copied or linked into the run's worktree.
    #[serde(default)]
    pub brought: Vec<ExtraFile>,
    /// The path and the content of each submodule's `.git` file before the run.
    #[serde(default)]
    pub submodules: Vec<(String, String)>,
    /// The commit that the user had checked out when they started the run; `None` for the `HEAD` of the main working tree.
    #[serde(default)]
    pub target: Option<String>,
    /// The maximum size of the objects that guard takes from the run, in bytes; `None` for the default.
    #[serde(default)]
    pub receive_bytes: Option<u64>,
}

impl Record {
    /// Returns the limits for objects that guard takes from the run, as the run's policy set them.
    pub fn limits(&self) -> Limits {
        let default = Limits::default();
        Limits { bytes: self.receive_bytes.unwrap_or(default.bytes), ..default }
    }

    /// The names of the files that describe a workspace in the run's directory.
    pub(crate) const FILES: [&str; 2] = [FILE, LOCK];

    pub(crate) fn version() -> u32 {
        VERSION
    }

    /// Reads the workspace's record from a run's directory. Fails if there is no record, or if another version of guard
    /// wrote it in a format that this version does not know.
    pub fn read(run_folder: &Path) -> Result<Self, WorkspaceError> {
        let path = run_folder.join(FILE);
        let bytes = at("read", &path, std::fs::read(&path))?;
        let bad = |problem: String| WorkspaceError::Record { path: path.clone(), problem };
        let record: Self = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        if record.version != VERSION {
            return Err(bad(format!(
                "unknown format version {}; use the version of guard that wrote it",
                record.version
            )));
        }
        Ok(record)
    }

    /// True if a run's directory contains the record of a workspace.
    pub fn exists(run_folder: &Path) -> bool {
        run_folder.join(FILE).is_file()
    }

    /// Returns when guard last wrote the workspace's record in a run's directory.
    pub(crate) fn written_at(run_folder: &Path) -> io::Result<SystemTime> {
        run_folder.join(FILE).metadata()?.modified()
    }

    /// Writes the record atomically: if this process is killed, the file is either the complete old record or the
    /// complete new one. Syncs the file only in states that guard could not reconstruct after a power failure. For
    /// example, the user's repository itself shows whether guard had received the branch.
    pub(crate) fn write(&self, run_folder: &Path) -> Result<(), WorkspaceError> {
        let path = run_folder.join(FILE);
        let sync = if matches!(self.state, State::Open | State::Removing) {
            Durability::Synced
        } else {
            Durability::Unsynced
        };
        let text = serde_json::to_vec_pretty(self).map_err(io::Error::other);
        at("write", &path, text.and_then(|text| replace_file(&path, &text, 0o600, sync)))
    }
}

/// A lock on a workspace or a worktree. Dropping the value releases the lock.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: Flock<File>,
}

impl Lock {
    pub(crate) fn take(run_folder: &Path) -> Result<Self, WorkspaceError> {
        let path = run_folder.join(LOCK);
        let open = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        Self::hold(at("open", &path, open)?, &path, run_folder)
    }

    /// Locks a worktree, so that two runs cannot use it at the same time: the end of one run would change the
    /// worktree's `.git` file while the agent of the other still works there. `None` if the worktree no longer
    /// exists.
    pub(crate) fn of_worktree(admin_dir: &Path, worktree: &Path) -> Result<Option<Self>, WorkspaceError> {
        // Lock `commondir`: every linked worktree has this file, git never rewrites it, and no agent can open it. So
        // guard need not create or remove a lock file in git's directory.
        let path = admin_dir.join("commondir");
        match OpenOptions::new().write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => Self::hold(at("open", &path, opened)?, &path, worktree).map(Some),
        }
    }

    fn hold(file: File, path: &Path, what: &Path) -> Result<Self, WorkspaceError> {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(Self { _file: file }),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Err(WorkspaceError::Busy(what.to_path_buf())),
            Err((_, error)) => at("lock", path, Err(error.into())),
        }
    }

    /// True if a process holds the lock of the workspace in the directory `run_folder`. False if guard cannot open the
    /// lock file.
    pub(crate) fn is_held(run_folder: &Path) -> bool {
        matches!(Self::take(run_folder), Err(WorkspaceError::Busy(_)))
    }
}
