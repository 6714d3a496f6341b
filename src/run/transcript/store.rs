//! The directory of all runs: lists them, finds one, and prunes old ones.
//!
//! Only the first and last line of each transcript are read, so that thousands of runs can be listed quickly.
//! An unreadable entry is reported and never prevents listing the others. An unfinished run must never be
//! deleted.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nix::fcntl::{FcntlArg, fcntl};
use serde_json::Value;

use super::event::Event;
use super::event_type::EventType;
use super::reader::{LONGEST_LINE, Reader, Step, open_file};

/// The name of the transcript file in a run's directory.
pub const FILE: &str = "transcript.jsonl";

/// If a run is older than this and has no transcript, guard was killed while it started the run. Starting a run can
/// take long, because guard may wait for the user to unlock a key.
const LONGEST_BEGINNING: Duration = Duration::from_secs(24 * 60 * 60);

/// The prefix of the names of directories that guard is deleting. If a deletion is interrupted, the next prune
/// finishes it.
const DELETING_PREFIX: &str = ".leaving-";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateDirError {
    /// Neither `XDG_STATE_HOME` nor `HOME` is an absolute path.
    #[error("guard cannot find its state directory: neither XDG_STATE_HOME nor HOME is an absolute path")]
    NoHome,
}

/// Returns the directory of runs: `$XDG_STATE_HOME/guard/runs`, or `~/.local/state/guard/runs` if the variable is not
/// set to an absolute path. Fails if HOME is not one either.
pub fn runs_dir() -> Result<PathBuf, StateDirError> {
    Ok(crate::sys::agent_paths::state_directory().ok_or(StateDirError::NoHome)?.join("runs"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// The transcript ends with the event `run.finished`.
    Finished,
    /// guard is still writing the transcript.
    Running,
    /// guard has ended without writing the last event.
    Unfinished,
    /// There is no readable transcript.
    Unreadable,
}

impl RunState {
    /// Returns the name of the state, for display.
    pub fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Running => "running",
            Self::Unfinished => "unfinished",
            Self::Unreadable => "unreadable",
        }
    }
}

/// A run, as described by the first and last line of its transcript.
#[derive(Debug, Clone)]
pub struct Run {
    /// The run's id, which is the name of its directory.
    pub id: String,
    pub folder: PathBuf,
    pub transcript: PathBuf,
    pub state: RunState,
    /// Why the transcript cannot be read; `None` if it can.
    pub problem: Option<String>,
    /// The size of the transcript, in bytes.
    pub bytes: u64,
    /// The first event of the transcript, `run.started`.
    pub first: Option<Event>,
    /// The last event of the transcript, `run.finished`; `None` if the run has not finished.
    pub last: Option<Event>,
}

impl Run {
    /// Returns when the run began, according to its first event; `None` if that event cannot be read.
    pub fn started(&self) -> Option<Timestamp> {
        self.first.as_ref().and_then(Event::time)
    }

    /// Returns when the run ended; `None` if it has not finished.
    pub fn finished(&self) -> Option<Timestamp> {
        self.last.as_ref().and_then(Event::time)
    }

    /// Returns the command that the run executes, as the user gave it; empty if the first event cannot be read.
    pub fn command(&self) -> Vec<String> {
        let words = self.first.as_ref().and_then(|event| event.data.get("command")).and_then(Value::as_array);
        words.into_iter().flatten().map(|word| word.as_str().unwrap_or("?").to_string()).collect()
    }

    /// Returns the name of the run's policy; `None` if the first event does not contain it.
    pub fn policy(&self) -> Option<&str> {
        let policy = self.first.as_ref()?.data.get("policy")?;
        policy.as_str().or_else(|| policy.get("name")?.as_str())
    }

    /// Returns the names of the policies that the run's policy extends, nearest first.
    pub fn policy_extends(&self) -> impl Iterator<Item = &str> {
        let names = self.first.as_ref().and_then(|first| first.data.get("policy_extends")?.as_array());
        names.into_iter().flatten().filter_map(Value::as_str)
    }

    /// Returns the path of the file of the run's policy, as guard read it; `None` for a built-in policy.
    pub fn policy_file(&self) -> Option<&Path> {
        self.first.as_ref()?.data.get("policy_file")?.as_str().map(Path::new)
    }

    /// Returns the branch that the run works on, without `refs/heads/`; `None` if it works on no branch.
    pub fn branch(&self) -> Option<&str> {
        self.first.as_ref()?.data.get("branch")?.as_str()
    }

    /// Returns the repository that the run works on: its main working tree, or the bare repository. `None` if the run
    /// is not in a repository.
    pub fn repository(&self) -> Option<&Path> {
        self.first.as_ref()?.data.get("repository")?.as_str().map(Path::new)
    }

    /// Returns the directory that the run works in; `None` if the first event does not contain it.
    pub fn directory(&self) -> Option<&Path> {
        self.first.as_ref()?.directory().map(Path::new)
    }

    /// Returns the name of the agent, or of the program if guard does not know it as an agent; `None` if the transcript
    /// contains neither.
    pub fn tool(&self) -> Option<&str> {
        let of_result = self.last.as_ref().and_then(|event| event.data.get("tool")).and_then(Value::as_str);
        let of_start = || self.first.as_ref()?.data.get("program")?.as_str();
        let tool = of_result.filter(|tool| !tool.is_empty()).or_else(of_start)?;
        Some(tool.rsplit('/').next().unwrap_or(tool))
    }

    /// Returns how long the run took, or, if it is still running, how long it has been running at the time `now`.
    /// `None` if the run was interrupted or its times are not known.
    pub fn duration(&self, now: Timestamp) -> Option<SignedDuration> {
        let end = match self.state {
            RunState::Finished => self.finished()?,
            RunState::Running => now,
            RunState::Unfinished | RunState::Unreadable => return None,
        };
        Some(end.duration_since(self.started()?))
    }

    /// Returns the PID of the guard process that supervises the run. `None` if the run is not running, or if the PID
    /// of the process that locks the transcript is not the PID in the first event. These two differ if the run was
    /// started in another PID namespace.
    pub fn supervisor_pid(&self) -> Option<i32> {
        let holder = open_file(&self.transcript).and_then(|file| lock_holder(&file)).ok()??;
        let began = self.first.as_ref()?.data.get("pid")?.as_i64()?;
        (i64::from(holder) == began).then_some(holder)
    }

    /// Returns the agent's exit code; `None` if the run has not finished or has no exit code.
    pub fn exit_code(&self) -> Option<i64> {
        self.last.as_ref()?.data.get("exit_code")?.as_i64()
    }

    /// Returns the number of denials in the run's result; `None` if the run has not finished.
    pub fn denials(&self) -> Option<usize> {
        Some(self.last.as_ref()?.data.get("denials")?.as_array()?.len())
    }

    /// Reads the run at a path, which is either the run's directory or its transcript. If the transcript cannot be
    /// read, the run's state is [`RunState::Unreadable`].
    pub fn at(path: &Path) -> Self {
        if path.is_dir() {
            return Self::read(path);
        }
        Self::read_file(path.parent().unwrap_or(path), path.to_path_buf())
    }

    /// Reads the run whose directory is `folder`. If the transcript cannot be read, the run's state is
    /// [`RunState::Unreadable`].
    pub fn read(folder: &Path) -> Self {
        Self::read_file(folder, folder.join(FILE))
    }

    fn read_file(folder: &Path, transcript: PathBuf) -> Self {
        let id = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let mut run = Self {
            id,
            folder: folder.to_path_buf(),
            transcript,
            state: RunState::Unreadable,
            problem: None,
            bytes: 0,
            first: None,
            last: None,
        };
        if let Err(error) = run.read_first_and_last() {
            run.state = RunState::Unreadable;
            run.problem = Some(error.to_string());
        }
        run
    }

    fn read_first_and_last(&mut self) -> io::Result<()> {
        let mut file = match open_file(&self.transcript) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.folder.is_dir() => {
                return Err(io::Error::new(
                    error.kind(),
                    "there is no transcript yet: the run is starting, or guard was killed while it started",
                ));
            }
            file => file?,
        };
        // Check the lock before reading the last line: a run that ends in between is then seen as running or
        // finished, never as unfinished.
        let running = lock_holder(&file)?.is_some();
        self.bytes = file.metadata()?.len();
        self.last = last_line(&mut file, self.bytes)?
            .and_then(|line| serde_json::from_slice(&line).ok())
            .filter(|event: &Event| event.event_type == EventType::RunFinished);
        file.seek(SeekFrom::Start(0))?;
        match Reader::new(file).step()? {
            Step::Event(event) => self.first = Some(*event),
            Step::End { .. } => {}
            Step::Bad(why) => return Err(io::Error::new(io::ErrorKind::InvalidData, why)),
        }
        self.state = match (&self.last, running) {
            (Some(_), _) => RunState::Finished,
            (None, true) => RunState::Running,
            (None, false) => RunState::Unfinished,
        };
        Ok(())
    }

    /// Returns the temporary directory that a killed run left behind; `None` if there is none, or it does not belong to
    /// the current user. Its path is in the transcript; if the run was killed before it recorded the path, the
    /// directory can only be in `scratch`. The directory's name contains the run's id.
    pub fn leftovers(&self, scratch: &Path) -> Option<PathBuf> {
        if self.state != RunState::Unfinished {
            return None;
        }
        let parent = match &self.first {
            Some(first) => Path::new(first.data.get("tmp")?.as_str()?).parent()?.to_path_buf(),
            None => self.scratch_dir(scratch),
        };
        let name = parent.file_name()?.to_str()?.strip_prefix("guard-")?;
        let is_its = name.len() >= SHORTEST_NAME && self.id.ends_with(name);
        (is_its && is_own_directory(&parent)).then_some(parent)
    }

    fn scratch_dir(&self, scratch: &Path) -> PathBuf {
        let name = self.id.get(self.id.len().saturating_sub(SHORTEST_NAME)..).unwrap_or(&self.id);
        scratch.join(format!("guard-{name}"))
    }

    /// Returns true if guard is still writing the transcript.
    pub fn is_running(&self) -> bool {
        is_locked(&self.transcript)
    }
}

/// Minimum number of characters of the run's id in the name of its temporary directory.
const SHORTEST_NAME: usize = 12;

/// True if the path is a directory that belongs to the current user, and not a symbolic link to one.
fn is_own_directory(path: &Path) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    path.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == own)
}

/// Reads the last line; `None` if the file ends with an incomplete line, because then the run was interrupted.
fn last_line(file: &mut File, size: u64) -> io::Result<Option<Vec<u8>>> {
    let mut window = 8 << 10;
    loop {
        let length = size.min(window);
        file.seek(SeekFrom::Start(size - length))?;
        let mut tail = Vec::new();
        file.take(length).read_to_end(&mut tail)?;
        let Some(text) = tail.strip_suffix(b"\n") else { return Ok(None) };
        if let Some(before) = text.iter().rposition(|&byte| byte == b'\n') {
            return Ok(Some(text[before + 1..].to_vec()));
        }
        if length == size {
            return Ok(Some(text.to_vec()));
        }
        if window > LONGEST_LINE as u64 {
            return Ok(None);
        }
        window *= 8;
    }
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Locks a transcript until this process ends. The lock tells other processes that guard is still writing the
/// transcript. The lock belongs to the process, not to the descriptor, so that child processes do not hold it. (A
/// process that opens and closes its own transcript loses the lock. Its run then looks unfinished: the transcript is
/// never deleted, but the temporary files are.)
pub(super) fn lock(file: &File) -> io::Result<()> {
    fcntl(file, FcntlArg::F_SETLK(&whole_file(libc::F_WRLCK)))?;
    Ok(())
}

/// True if another process has locked the transcript because it is writing it.
fn is_locked(transcript: &Path) -> bool {
    open_file(transcript).and_then(|file| lock_holder(&file)).is_ok_and(|holder| holder.is_some())
}

/// Returns the PID of the other process that has locked the file; 0 if that process is in another PID namespace; `None`
/// if the file is not locked.
fn lock_holder(file: &File) -> io::Result<Option<i32>> {
    let mut found = whole_file(libc::F_RDLCK);
    fcntl(file, FcntlArg::F_GETLK(&mut found))?;
    Ok((found.l_type != libc::F_UNLCK as libc::c_short).then_some(found.l_pid))
}

#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The directory of runs cannot be read.
    #[error("cannot read the directory of runs {}: {error}", folder.display())]
    Folder { folder: PathBuf, error: io::Error },
    /// The directory of runs at this path has no run whose first event can be read.
    #[error("there are no runs in {}", .0.display())]
    Empty(PathBuf),
    /// No run's id begins or ends with this name.
    #[error("no run matches {0:?}")]
    Unknown(String),
    /// The ids of several runs begin or end with the requested name.
    #[error("{name:?} matches {} runs: {}", candidates.len(), shown(candidates))]
    Ambiguous { name: String, candidates: Vec<String> },
}

fn shown(candidates: &[String]) -> String {
    let more = if candidates.len() > 5 { ", …" } else { "" };
    format!("{}{more}", candidates[..candidates.len().min(5)].join(", "))
}

/// True if an id is a version 7 UUID. Such ids begin with the time, so they sort by time.
fn sorts_by_time(id: &str) -> bool {
    uuid::Uuid::try_parse(id).is_ok_and(|id| id.get_version_num() == 7)
}

/// The directory of all runs.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// Returns the store of the runs in the directory `folder`, which need not exist.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Returns the store of the current user's runs.
    pub fn open() -> Result<Self, StateDirError> {
        Ok(Self::new(runs_dir()?))
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Lists all runs, the newest first and unreadable ones last.
    pub fn list(&self) -> Result<Vec<Run>, FindError> {
        let mut runs: Vec<Run> =
            self.ids()?.into_iter().map(|name| Run::read(&self.folder.join(name))).collect();
        runs.sort_by(|a, b| (b.started(), &b.id).cmp(&(a.started(), &a.id)));
        Ok(runs)
    }

    /// Returns the runs, the newest first. Reads each run only when the iterator reaches it: the ids of runs begin with
    /// the time, so this method finds the newest runs without reading the older ones. If the name of any directory is
    /// not such an id, reads all runs first.
    pub fn newest_first(&self) -> Result<Box<dyn Iterator<Item = Run> + '_>, FindError> {
        let ids = self.ids()?;
        if !ids.iter().all(|id| sorts_by_time(id)) {
            return Ok(Box::new(self.list()?.into_iter()));
        }
        Ok(Box::new(ids.into_iter().rev().map(|id| Run::read(&self.folder.join(id)))))
    }

    /// Returns the runs that are still running, the newest first.
    pub fn running(&self) -> Result<Vec<Run>, FindError> {
        let folders = self.ids()?.into_iter().map(|id| self.folder.join(id));
        let mut runs: Vec<Run> = folders
            .filter(|folder| is_locked(&folder.join(FILE)))
            .map(|folder| Run::read(&folder))
            .filter(|run| run.state == RunState::Running)
            .collect();
        runs.sort_by(|a, b| (b.started(), &b.id).cmp(&(a.started(), &a.id)));
        Ok(runs)
    }

    /// Finds a run by its id, by a unique prefix or suffix of the id, or by a path, which contains a slash. Without a
    /// name, or for the name `@`, returns the newest run whose first event can be read. Fails if no run matches, or
    /// more than one.
    pub fn find(&self, name: Option<&str>) -> Result<Run, FindError> {
        let Some(name) = name.filter(|name| *name != "@") else {
            let newest = self.list()?.into_iter().find(|run| run.first.is_some());
            return newest.ok_or_else(|| FindError::Empty(self.folder.clone()));
        };
        if name.contains('/') {
            return Ok(Run::at(Path::new(name)));
        }
        let names = self.ids()?;
        let matching = |test: &dyn Fn(&str) -> bool| -> Vec<String> {
            names.iter().filter(|candidate| test(candidate)).cloned().collect()
        };
        let mut found = matching(&|candidate| candidate == name);
        if found.is_empty() && !name.is_empty() {
            found = matching(&|candidate| candidate.starts_with(name) || candidate.ends_with(name));
        }
        match found.as_slice() {
            [] => Err(FindError::Unknown(name.to_string())),
            [one] => Ok(Run::read(&self.folder.join(one))),
            _ => Err(FindError::Ambiguous { name: name.to_string(), candidates: found }),
        }
    }

    /// Deletes a finished run. Fails for a run that has not finished.
    pub fn delete(&self, run: &Run) -> io::Result<()> {
        // Check again: the state may have changed since the run was listed.
        if Run::read(&run.folder).state != RunState::Finished {
            return Err(io::Error::other("the run has not finished"));
        }
        // Rename the directory first, so that no other process sees a partly deleted run.
        let deleting = self.folder.join(format!("{DELETING_PREFIX}{}", run.id));
        std::fs::rename(&run.folder, &deleting)?;
        crate::sys::remove_tree::remove_tree(&deleting)
    }

    /// Removes the temporary files that a killed run left behind, if there are any.
    pub fn sweep(&self, run: &Run, scratch: &Path) -> io::Result<()> {
        // Check again: the state may have changed since the run was listed.
        match Run::read(&run.folder).leftovers(scratch) {
            Some(left) => crate::sys::remove_tree::remove_tree(&left),
            None => Ok(()),
        }
    }

    /// Removes the directories of a run that was killed before its transcript began, including those in `scratch`.
    /// Returns true if it removed the run's directory. Never removes a directory that contains files or other
    /// directories, or a run that started recently.
    pub fn forget(&self, run: &Run, scratch: &Path) -> bool {
        if !self.never_began(run) {
            return false;
        }
        let parent = run.scratch_dir(scratch);
        if is_own_directory(&parent) {
            ["tmp", "var", ""].iter().for_each(|part| drop(std::fs::remove_dir(parent.join(part))));
        }
        let _ = std::fs::remove_dir(run.folder.join("home"));
        std::fs::remove_dir(&run.folder).is_ok()
    }

    /// True if a run was killed before its transcript began: it has no transcript, although it started at least a day
    /// ago.
    pub fn never_began(&self, run: &Run) -> bool {
        let age = run.folder.metadata().and_then(|found| found.modified()).map(|time| time.elapsed());
        let is_old = matches!(age, Ok(Ok(age)) if age >= LONGEST_BEGINNING);
        run.state == RunState::Unreadable && run.transcript.symlink_metadata().is_err() && is_old
    }

    /// Removes what an interrupted [`Self::delete`] left behind.
    pub fn tidy(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(DELETING_PREFIX) {
                crate::sys::remove_tree::remove_tree(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Returns the ids of all runs, sorted. There are none if the directory does not exist.
    pub fn ids(&self) -> Result<Vec<String>, FindError> {
        let failed = |error| FindError::Folder { folder: self.folder.clone(), error };
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            // A name that is not UTF-8 cannot be a run id.
            match entry.file_name().into_string() {
                Ok(name) if is_directory && !name.starts_with('.') => names.push(name),
                _ => {}
            }
        }
        names.sort();
        Ok(names)
    }
}
