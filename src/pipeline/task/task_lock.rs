//! Where tasks are kept, and who may work on one: an open file, so that whoever dies loses the right.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use crate::agent_exec::Executor;
use crate::pipeline::runner::PipelineError;
use crate::pipeline::task::journal::{Journal, StoreError};

/// Where a task's own things are, and who works for it.
#[derive(Debug, Clone)]
pub struct TaskStore {
    /// Runs requests.
    pub executor: Executor,
    /// Where runs are kept.
    pub runs: PathBuf,
    /// Where tasks are: the journal, and a directory for each.
    pub tasks: PathBuf,
}

impl TaskStore {
    /// The journal.
    pub fn journal(&self) -> Result<Journal, StoreError> {
        Journal::open(&self.tasks.join("journal.db"))
    }

    /// A task's directory.
    pub fn folder(&self, id: &str) -> PathBuf {
        self.tasks.join(id)
    }

    /// The right to work on a task. Whoever dies loses it.
    pub(crate) fn lock(&self, id: &str) -> Result<Held, PipelineError> {
        let folder = self.folder(id);
        let failed = |path: &Path, source| PipelineError::Io { path: path.to_path_buf(), source };
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&folder)
            .map_err(|error| failed(&folder, error))?;
        let path = folder.join("lock");
        let open =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(&path);
        let mut file = open.map_err(|error| failed(&path, error))?;
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&whole_file())) {
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EACCES) => {
                let process = self.worker(id).and_then(|worker| worker.process);
                let process =
                    process.map_or_else(|| "not known yet".to_string(), |process| process.to_string());
                return Err(PipelineError::Busy { id: id.to_string(), process });
            }
            Err(error) => return Err(failed(&path, error.into())),
        }
        // Only for people and `cancel`, who look whether it is so; a full disk is no reason not to work.
        let _ = file.set_len(0);
        let _ = write!(file, "{}", std::process::id());
        Ok(Held { _file: file })
    }

    /// Who works on a task. Looking takes nothing, so it is in nobody's way.
    pub fn worker(&self, id: &str) -> Option<Worker> {
        let path = self.folder(id).join("lock");
        let mut file = File::open(&path).ok()?;
        let mut asked = whole_file();
        fcntl(&file, FcntlArg::F_OFD_GETLK(&mut asked)).ok()?;
        if i32::from(asked.l_type) == libc::F_UNLCK {
            return None;
        }
        let mut text = String::new();
        let _ = (&mut file).take(32).read_to_string(&mut text);
        let process = text.parse().ok().filter(|process| *process > 1 && has_open(*process, &file));
        Some(Worker { process })
    }
}

/// The right to work on a task, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Held {
    _file: File,
}

/// Somebody who works on a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Worker {
    /// The process, when it is certain.
    pub process: Option<i32>,
}

/// A lock on a file as it is open here, not on what this process has of it: closing another one of it loses nothing.
fn whole_file() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Whether a process has this file open: a number in it may be that of somebody who died, and by now anybody's.
fn has_open(process: i32, file: &File) -> bool {
    let Ok(wanted) = file.metadata() else { return false };
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let mut open = entries.filter_map(|entry| std::fs::metadata(entry.path()).ok());
    open.any(|found| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task_store(name: &str) -> TaskStore {
        let tasks = std::env::temp_dir().join(format!("guard-office-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&tasks);
        let executor =
            Executor { guard: "/nonexistent".into(), sessions: tasks.join("sessions"), log: Vec::new() };
        TaskStore { executor, runs: tasks.join("runs"), tasks }
    }

    #[test]
    fn looking_is_in_nobodys_way() {
        let task_store = task_store("looking");
        assert_eq!(task_store.worker("t"), None);
        assert!(!task_store.folder("t").exists(), "looking makes nothing");
        let held = task_store.lock("t").unwrap_or_else(|error| panic!("{error}"));
        let own = i32::try_from(std::process::id()).ok();
        assert_eq!(task_store.worker("t"), Some(Worker { process: own }));
        assert!(matches!(task_store.lock("t"), Err(PipelineError::Busy { .. })));
        drop(held);
        assert_eq!(task_store.worker("t"), None);
        std::thread::scope(|scope| {
            let looker = scope
                .spawn(|| (0..20_000).all(|_| task_store.worker("t") != Some(Worker { process: Some(0) })));
            while !looker.is_finished() {
                assert!(task_store.lock("t").is_ok(), "it was not free");
            }
        });
        let _ = std::fs::remove_dir_all(&task_store.tasks);
    }

    #[test]
    fn a_number_that_may_be_anybodys_is_none() {
        let task_store = task_store("numbers");
        let _held = task_store.lock("t").unwrap_or_else(|error| panic!("{error}"));
        // Written by somebody who died before; empty, because the new one has not come to it yet.
        for text in ["1", "", "0", "-1", "4194304", "x", &std::os::unix::process::parent_id().to_string()] {
            let _ = std::fs::write(task_store.folder("t").join("lock"), text);
            assert_eq!(task_store.worker("t"), Some(Worker { process: None }), "{text}");
        }
        let _ = std::fs::remove_dir_all(&task_store.tasks);
    }
}
