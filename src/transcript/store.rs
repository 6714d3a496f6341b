//! The directory of all runs: list them, find one, prune old ones.
//!
//! Of each run only the first and the last line are read, so that thousands can be listed. What is not a transcript
//! there is told, never an error for the others. A run that has not finished is never deleted.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use nix::fcntl::{FcntlArg, fcntl};
use serde_json::Value;

use super::event::Event;
use super::event_type::EventType;
use super::reader::{LONGEST_LINE, Reader, Step, open_file};

/// The name of a run's transcript in its directory.
pub const FILE: &str = "transcript.jsonl";

/// A run without a transcript that is older was killed. One that begins may wait for a person, who unlocks a key.
const LONGEST_BEGINNING: Duration = Duration::from_secs(24 * 60 * 60);

/// Directories on their way out; what a prune could not finish the next one does.
const LEAVING: &str = ".leaving-";

/// Why there is no place for state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateFolderError {
    /// Neither variable names an absolute directory.
    #[error("neither XDG_STATE_HOME nor HOME is an absolute path")]
    NoHome,
}

/// Where runs are kept: `$XDG_STATE_HOME/guard/runs`, by default in `~/.local/state`.
pub fn state_folder() -> Result<PathBuf, StateFolderError> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    Ok(state.ok_or(StateFolderError::NoHome)?.join("guard/runs"))
}

/// How a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// Its last event is there.
    Finished,
    /// Its supervisor is writing.
    Running,
    /// Its supervisor is gone and its end was never written.
    Unfinished,
    /// There is no transcript to be read.
    Unreadable,
}

impl RunState {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Running => "running",
            Self::Unfinished => "unfinished",
            Self::Unreadable => "unreadable",
        }
    }
}

/// A run as its first and last line tell it.
#[derive(Debug, Clone)]
pub struct Run {
    /// The name of its directory, which is the run's id.
    pub id: String,
    /// Its directory.
    pub folder: PathBuf,
    /// Its transcript.
    pub transcript: PathBuf,
    /// How it stands.
    pub state: RunState,
    /// Why it cannot be read.
    pub problem: Option<String>,
    /// The transcript's size.
    pub bytes: u64,
    /// Its first event.
    pub first: Option<Event>,
    /// Its last event, when it has finished.
    pub last: Option<Event>,
}

impl Run {
    /// When it began.
    pub fn started(&self) -> Option<Timestamp> {
        self.first.as_ref().and_then(Event::time)
    }

    /// When it ended.
    pub fn finished(&self) -> Option<Timestamp> {
        self.last.as_ref().and_then(Event::time)
    }

    /// The command, as it was given.
    pub fn command(&self) -> Vec<String> {
        let words = self.first.as_ref().and_then(|event| event.data.get("command")).and_then(Value::as_array);
        words.into_iter().flatten().map(|word| word.as_str().unwrap_or("?").to_string()).collect()
    }

    /// The policy's name.
    pub fn policy(&self) -> Option<&str> {
        let policy = self.first.as_ref()?.data.get("policy")?;
        policy.as_str().or_else(|| policy.get("name")?.as_str())
    }

    /// The agent's exit code.
    pub fn exit_code(&self) -> Option<i64> {
        self.last.as_ref()?.data.get("exit_code")?.as_i64()
    }

    /// How often something was refused, as the result says.
    pub fn denials(&self) -> Option<usize> {
        Some(self.last.as_ref()?.data.get("denials")?.as_array()?.len())
    }

    /// What is in a run's directory.
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
        if let Err(error) = run.look() {
            run.state = RunState::Unreadable;
            run.problem = Some(error.to_string());
        }
        run
    }

    fn look(&mut self) -> io::Result<()> {
        let mut file = match open_file(&self.transcript) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.folder.is_dir() => {
                return Err(io::Error::new(
                    error.kind(),
                    "it has no transcript: guard is about to begin it, or was ended before",
                ));
            }
            file => file?,
        };
        // Asked before the last line is read: a run that ends in between is then seen as running or finished.
        let running = is_locked(&file)?;
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

    /// What a run that was killed has left among temporary files, which bear its name. It said where they are, or was killed
    /// before it could: then they are in `scratch`, if anywhere.
    pub fn leftovers(&self, scratch: &Path) -> Option<PathBuf> {
        if self.state != RunState::Unfinished {
            return None;
        }
        let around = match &self.first {
            Some(first) => Path::new(first.data.get("tmp")?.as_str()?).parent()?.to_path_buf(),
            None => self.around_temporary(scratch),
        };
        let name = around.file_name()?.to_str()?.strip_prefix("guard-")?;
        let is_its = name.len() >= SHORTEST_NAME && self.id.ends_with(name);
        (is_its && is_own_folder(&around)).then_some(around)
    }

    fn around_temporary(&self, scratch: &Path) -> PathBuf {
        let name = self.id.get(self.id.len().saturating_sub(SHORTEST_NAME)..).unwrap_or(&self.id);
        scratch.join(format!("guard-{name}"))
    }

    /// True while the supervisor writes.
    pub fn is_running(&self) -> bool {
        open_file(&self.transcript).and_then(|file| is_locked(&file)).unwrap_or(false)
    }
}

/// So much of a run's id its temporary files bear.
const SHORTEST_NAME: usize = 12;

/// A directory, and no link to one, of this user.
fn is_own_folder(path: &Path) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    path.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == own)
}

/// The last complete line. A file that ends within a line has none: the run was cut.
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

/// Marks a transcript as being written, for as long as this process lives. The lock is the process's and not the
/// descriptor's: what it starts must not look like it. (A process that opens and closes its own transcript loses the
/// lock; its run then looks unfinished: its transcript is never deleted, but its temporary files are.)
pub(super) fn lock(file: &File) -> io::Result<()> {
    fcntl(file, FcntlArg::F_SETLK(&whole_file(libc::F_WRLCK)))?;
    Ok(())
}

/// True when another process writes the file.
fn is_locked(file: &File) -> io::Result<bool> {
    let mut found = whole_file(libc::F_RDLCK);
    fcntl(file, FcntlArg::F_GETLK(&mut found))?;
    Ok(found.l_type != libc::F_UNLCK as libc::c_short)
}

/// Why a run was not found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The directory of runs cannot be read.
    #[error("cannot read {}: {error}", folder.display())]
    Folder {
        /// The directory of runs.
        folder: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// There is none at all.
    #[error("there are no runs in {}", .0.display())]
    Empty(PathBuf),
    /// None with this name.
    #[error("no run is called {0:?}")]
    Unknown(String),
    /// Several with this beginning or end.
    #[error("{name:?} could be {} runs: {}", candidates.len(), shown(candidates))]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// The runs it could be.
        candidates: Vec<String>,
    },
}

fn shown(candidates: &[String]) -> String {
    let more = if candidates.len() > 5 { ", …" } else { "" };
    format!("{}{more}", candidates[..candidates.len().min(5)].join(", "))
}

/// The directory of all runs.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// The runs in this directory; it need not exist.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The user's runs.
    pub fn open() -> Result<Self, StateFolderError> {
        Ok(Self::new(state_folder()?))
    }

    /// Where they are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// All runs, the newest first; those that cannot be read come last.
    pub fn list(&self) -> Result<Vec<Run>, FindError> {
        let mut runs: Vec<Run> =
            self.names()?.into_iter().map(|name| Run::read(&self.folder.join(name))).collect();
        runs.sort_by(|a, b| (b.started(), &b.id).cmp(&(a.started(), &a.id)));
        Ok(runs)
    }

    /// A run by its id, by a unique beginning or end of it, or by a path; without a name the newest.
    pub fn find(&self, name: Option<&str>) -> Result<Run, FindError> {
        let Some(name) = name else {
            let newest = self.list()?.into_iter().find(|run| run.first.is_some());
            return newest.ok_or_else(|| FindError::Empty(self.folder.clone()));
        };
        if name.contains('/') {
            let path = Path::new(name);
            if path.is_dir() {
                return Ok(Run::read(path));
            }
            return Ok(Run::read_file(path.parent().unwrap_or(path), path.to_path_buf()));
        }
        let names = self.names()?;
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

    /// Deletes a run that has finished; any other is refused.
    pub fn delete(&self, run: &Run) -> io::Result<()> {
        // Looked at again: what was listed a moment ago may have changed.
        if Run::read(&run.folder).state != RunState::Finished {
            return Err(io::Error::other("the run has not finished"));
        }
        // First out of the list, so that no half of it is ever seen.
        let leaving = self.folder.join(format!("{LEAVING}{}", run.id));
        std::fs::rename(&run.folder, &leaving)?;
        crate::sys::remove_tree::remove_tree(&leaving)
    }

    /// Removes what a killed run left among temporary files.
    pub fn sweep(&self, run: &Run, scratch: &Path) -> io::Result<()> {
        // Looked at again, as above.
        match Run::read(&run.folder).leftovers(scratch) {
            Some(left) => crate::sys::remove_tree::remove_tree(&left),
            None => Ok(()),
        }
    }

    /// Removes the directories of a run that was killed before it began, among temporary files in `scratch` too. Whether there
    /// was one: nothing is removed that has anything in it, or that was made just now.
    pub fn forget(&self, run: &Run, scratch: &Path) -> bool {
        if !self.never_began(run) {
            return false;
        }
        let around = run.around_temporary(scratch);
        if is_own_folder(&around) {
            ["tmp", "var", ""].iter().for_each(|part| drop(std::fs::remove_dir(around.join(part))));
        }
        let _ = std::fs::remove_dir(run.folder.join("home"));
        std::fs::remove_dir(&run.folder).is_ok()
    }

    /// Whether a run was killed before it began.
    pub fn never_began(&self, run: &Run) -> bool {
        let age = run.folder.metadata().and_then(|found| found.modified()).map(|time| time.elapsed());
        let is_old = matches!(age, Ok(Ok(age)) if age >= LONGEST_BEGINNING);
        run.state == RunState::Unreadable && run.transcript.symlink_metadata().is_err() && is_old
    }

    /// Takes up what an interrupted [`Self::delete`] left.
    pub fn tidy(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(LEAVING) {
                crate::sys::remove_tree::remove_tree(&entry.path())?;
            }
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<String>, FindError> {
        let failed = |error| FindError::Folder { folder: self.folder.clone(), error };
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            // A name that is not text is no run's: ids are.
            match entry.file_name().into_string() {
                Ok(name) if is_folder && !name.starts_with('.') => names.push(name),
                _ => {}
            }
        }
        names.sort();
        Ok(names)
    }
}
