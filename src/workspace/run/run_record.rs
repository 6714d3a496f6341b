//! The record of a workspace. It is written to disk before each change, so that after an interruption it says
//! what to finish or undo.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::extra_files::ExtraFile;
use crate::workspace::{WorkspaceError, at};

const FILE: &str = "workspace.json";
/// Locked by the process that works on the workspace.
const LOCK: &str = "workspace.lock";
/// The version of the record's format.
const VERSION: u32 = 1;

/// The state of a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is being created.
    Opening,
    /// The agent may work in it.
    Open,
    /// Its branch is being received.
    Receiving,
    /// Its branch has been received; the worktree has not been given back yet.
    Received,
    /// The worktree belongs to the user again.
    Kept,
    /// The worktree is being removed.
    Removing,
    /// The worktree was removed; its contents are in the branch or under `refs/guard/`.
    Removed,
}

impl State {
    /// The state as a single word.
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

/// The stored description of a workspace.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// The version of this format.
    pub version: u32,
    /// The id of the run.
    pub run_id: String,
    /// The state of the workspace.
    pub state: State,
    /// The common directory that all working trees of the repository share.
    #[serde(with = "path")]
    pub common_dir: PathBuf,
    /// `sha1` or `sha256`.
    pub object_format: String,
    /// `files` or `reftable`.
    pub ref_format: String,
    /// The repository's object directories.
    #[serde(with = "paths")]
    pub objects: Vec<PathBuf>,
    /// The task's branch, a full ref name.
    pub branch: String,
    /// The commit that the run started from. Earlier history cannot be changed.
    pub base: String,
    /// The commit at which guard last saw or set the branch.
    pub tip: String,
    /// The path of the working tree.
    #[serde(with = "path")]
    pub worktree: PathBuf,
    /// The working tree's real git directory.
    #[serde(with = "path")]
    pub admin_dir: PathBuf,
    /// The worktree existed before the run, and guard must not remove it.
    pub here: bool,
    /// The user's own ignore file, outside the repository.
    #[serde(with = "path")]
    pub excludes: PathBuf,
    /// Files that were brought into the worktree in addition to the commit.
    #[serde(default)]
    pub brought: Vec<ExtraFile>,
    /// The `.git` files of submodules that existed before the run: (path, content).
    #[serde(default)]
    pub submodules: Vec<(String, String)>,
}

impl Record {
    pub(crate) fn version() -> u32 {
        VERSION
    }

    /// Reads the record of a run's directory.
    pub fn read(run_folder: &Path) -> Result<Self, WorkspaceError> {
        let path = run_folder.join(FILE);
        let bytes = at("read", &path, std::fs::read(&path))?;
        let bad = |problem: String| WorkspaceError::Record { path: path.clone(), problem };
        let record: Self = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        if record.version != VERSION {
            return Err(bad(format!("version {} is not known", record.version)));
        }
        Ok(record)
    }

    /// True if a run's directory has a record.
    pub fn exists(run_folder: &Path) -> bool {
        run_folder.join(FILE).is_file()
    }

    /// Writes the record atomically: if this process is killed, a complete one remains. Only steps that could
    /// not be reconstructed are synced against a power failure. What the repository itself shows (how far a
    /// receive went) is read from there.
    pub(crate) fn write(&self, run_folder: &Path) -> Result<(), WorkspaceError> {
        let path = run_folder.join(FILE);
        let write = || -> io::Result<()> {
            let new = run_folder.join(".workspace.json.new");
            let mut file = File::create(&new)?;
            file.write_all(&serde_json::to_vec_pretty(self).map_err(io::Error::other)?)?;
            if matches!(self.state, State::Open | State::Removing) {
                file.sync_data()?;
            }
            std::fs::rename(&new, &path)
        };
        at("write", &path, write())
    }
}

/// The lock on a workspace, released on drop.
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

    /// Locks a worktree: of two runs in one worktree, one would give it back while the other's agent still
    /// works there. `None` if the worktree no longer exists.
    pub(crate) fn of_worktree(admin_dir: &Path, worktree: &Path) -> Result<Option<Self>, WorkspaceError> {
        // Lock a file that every linked worktree has, that git never rewrites, and that no agent can open. So
        // no lock file has to be created or removed, and all processes agree on it.
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

    /// True while a process holds the lock.
    pub(crate) fn is_held(run_folder: &Path) -> bool {
        matches!(Self::take(run_folder), Err(WorkspaceError::Busy(_)))
    }
}

/// Serialises paths as text; a path that is not UTF-8 becomes `hex:…`.
pub(crate) mod path {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn text(path: &Path) -> String {
        match path.to_str() {
            Some(text) if !text.starts_with("hex:") => text.to_string(),
            _ => {
                let hex: String =
                    path.as_os_str().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
                format!("hex:{hex}")
            }
        }
    }

    pub(crate) fn parse(text: &str) -> Option<PathBuf> {
        let Some(hex) = text.strip_prefix("hex:") else { return Some(PathBuf::from(text)) };
        let digits = hex.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Vec<u8> = digits.map(byte).collect::<Option<_>>()?;
        Some(PathBuf::from(OsStr::from_bytes(&bytes)))
    }

    pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&text(path))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        let text = String::deserialize(from)?;
        parse(&text).ok_or_else(|| serde::de::Error::custom("not a path"))
    }
}

/// Like `path`, for lists.
mod paths {
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().map(|path| super::path::text(path)))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        let parsed: Option<Vec<PathBuf>> = texts.iter().map(|text| super::path::parse(text)).collect();
        parsed.ok_or_else(|| serde::de::Error::custom("not a path"))
    }
}
