//! The directory of tasks, and the lock on each task. A lock belongs to an open file, so the kernel releases it when
//! the process dies.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use crate::agents::exec::Executor;
use crate::work::pipeline::error::PipelineError;
use crate::work::pipeline::task::journal::{Journal, StoreError};

/// The directories where tasks are stored, and the executor for their agents.
#[derive(Debug, Clone)]
pub struct TaskStore {
    pub executor: Executor,
    /// The directory that holds the data of all runs, one subdirectory for each.
    pub runs: PathBuf,
    /// The directory where tasks are stored: the journal, and one directory per task.
    pub tasks: PathBuf,
}

impl TaskStore {
    pub fn journal(&self) -> Result<Journal, StoreError> {
        Journal::open(&self.tasks.join("journal.db"))
    }

    pub fn task_directory(&self, id: &str) -> PathBuf {
        self.tasks.join(id)
    }

    /// Locks a task for this process. Fails if another process holds the lock.
    pub(crate) fn lock(&self, id: &str) -> Result<TaskLock, PipelineError> {
        let directory = self.task_directory(id);
        let failed = |path: &Path, source| PipelineError::Io { path: path.to_path_buf(), source };
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&directory)
            .map_err(|error| failed(&directory, error))?;
        let path = directory.join("lock");
        let open =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(&path);
        let mut file = open.map_err(|error| failed(&path, error))?;
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&whole_file())) {
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EACCES) => {
                let process = self.worker(id).and_then(|worker| worker.process);
                let process =
                    process.map_or_else(|| "unknown pid".to_string(), |process| format!("pid {process}"));
                return Err(PipelineError::Busy { id: id.to_string(), process });
            }
            Err(error) => return Err(failed(&path, error.into())),
        }
        // Ignore errors, so that a full disk does not keep the task from running: only the user and `guard task
        // cancel` read this process id, and `cancel` verifies it.
        let _ = file.set_len(0);
        let _ = write!(file, "{}", std::process::id());
        Ok(TaskLock { _file: file })
    }

    /// Returns the process that is working on a task; `None` if there is none. The function only queries the lock, so
    /// it never keeps another process from taking the lock.
    pub fn worker(&self, id: &str) -> Option<Worker> {
        let path = self.task_directory(id).join("lock");
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

/// The lock on a task, released on drop.
#[derive(Debug)]
pub(crate) struct TaskLock {
    _file: File,
}

/// A process that holds the lock on a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Worker {
    /// The id of the process; `None` if guard could not determine it reliably.
    pub process: Option<i32>,
}

/// Returns the parameters of a lock on a whole file. They are used for open-file-description locks: a POSIX
/// lock would be released when the process closes any other descriptor of the same file.
fn whole_file() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// True if the process has this file open. A process id read from the lock file may belong to a process that died, and
/// may have been reused.
fn has_open(process: i32, file: &File) -> bool {
    let Ok(wanted) = file.metadata() else { return false };
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let mut open = entries.filter_map(|entry| std::fs::metadata(entry.path()).ok());
    open.any(|found| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: std::time::Duration = std::time::Duration::from_millis(10);

    fn task_store(name: &str) -> TaskStore {
        let tasks = std::env::temp_dir().join(format!("guard-task-store-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&tasks);
        let executor =
            Executor { guard: "/nonexistent".into(), sessions: tasks.join("sessions"), log: Vec::new() };
        TaskStore { executor, runs: tasks.join("runs"), tasks }
    }

    #[test]
    fn looking_is_in_nobodys_way() {
        let task_store = task_store("looking");
        assert_eq!(task_store.worker("t"), None);
        assert!(!task_store.task_directory("t").exists(), "looking makes nothing");
        let held = task_store.lock("t").unwrap_or_else(|error| panic!("{error}"));
        let own = i32::try_from(std::process::id()).ok();
        assert_eq!(task_store.worker("t"), Some(Worker { process: own }));
        assert!(matches!(task_store.lock("t"), Err(PipelineError::Busy { .. })));
        drop(held);
        assert_eq!(task_store.worker("t"), None);
        std::thread::scope(|scope| {
            let looker = scope
                .spawn(|| (0..20_000).all(|_| task_store.worker("t") != Some(Worker { process: Some(0) })));
            // A child process of another test can hold a copy of the lock's descriptor until it executes its program.
            let can_lock = || {
                task_store.lock("t").is_ok() || {
                    std::thread::sleep(MOMENT);
                    false
                }
            };
            while !looker.is_finished() {
                assert!((0..100).any(|_| can_lock()), "the task stayed locked");
            }
        });
        let _ = std::fs::remove_dir_all(&task_store.tasks);
    }

    #[test]
    fn a_number_that_may_be_anybodys_is_none() {
        let task_store = task_store("numbers");
        let _held = task_store.lock("t").unwrap_or_else(|error| panic!("{error}"));
        // A dead process may have left any of these texts in the lock file. The text is empty if the new holder of the
        // lock has not written its process id yet.
        for text in ["1", "", "0", "-1", "4194304", "x", &std::os::unix::process::parent_id().to_string()] {
            let _ = std::fs::write(task_store.task_directory("t").join("lock"), text);
            assert_eq!(task_store.worker("t"), Some(Worker { process: None }), "{text}");
        }
        let _ = std::fs::remove_dir_all(&task_store.tasks);
    }
}
