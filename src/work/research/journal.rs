//! The journal of one research run. guard writes every finished part of the run to disk before it reports the
//! part.
//!
//! The journal is a file of JSON lines in the state directory. Resuming a run repeats only the parts that have no line.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::config::ResearchConfig;
use super::error::{AgentError, JournalError};
use super::llm::LlmUsage;
use super::sources::Retrieval;
use super::update::FinalResult;
use crate::sys::append_log::{self, Writers};
use crate::text::string_enum::string_enum;

/// The settings with which a run was started. They do not change when the run is resumed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Started {
    pub query: String,
    pub config: ResearchConfig,
    pub model: String,
    /// The name of the agent; `None` means the default agent.
    #[serde(default)]
    pub agent: Option<String>,
    /// The directory that the sub-queries may read; `None` if the user named none.
    #[serde(default)]
    pub directory: Option<PathBuf>,
    /// The policy of the sub-queries' runs; `None` means the default policy.
    #[serde(default)]
    pub policy: Option<String>,
    /// The hosts that the sub-queries' runs may connect to.
    #[serde(default)]
    pub allow_hosts: Vec<String>,
    #[serde(default)]
    pub limits: RequestLimits,
}

/// The limits of a run's requests to the model, as the user gave them. `None` means the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestLimits {
    /// The time limit of a request, in seconds.
    pub timeout_s: Option<u64>,
    pub max_retries: Option<u32>,
    pub max_tokens: Option<u64>,
    /// The maximum cost of the run, by the prices in `config.toml`.
    pub max_cost: Option<f64>,
}

impl RequestLimits {
    /// Returns these limits, with the value of `other` for each one that is `None`.
    pub fn or(self, other: Self) -> Self {
        Self {
            timeout_s: self.timeout_s.or(other.timeout_s),
            max_retries: self.max_retries.or(other.max_retries),
            max_tokens: self.max_tokens.or(other.max_tokens),
            max_cost: self.max_cost.or(other.max_cost),
        }
    }
}

/// A sub-query that has an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    pub id: usize,
    pub result: String,
    pub usage: LlmUsage,
    /// The pages and hosts that guard observed the sub-query retrieve.
    #[serde(default)]
    pub retrievals: Vec<Retrieval>,
    /// Phrases in the retrieved texts that give orders to their reader.
    #[serde(default)]
    pub orders: Vec<String>,
    /// The id of the run that answered the sub-query, for `guard log`.
    #[serde(default)]
    pub run_id: Option<String>,
}

/// The sub-queries of a round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// The number of the round, from 1.
    pub round: usize,
    /// The id of the round's first sub-query. The others have the following ids.
    pub first_id: usize,
    /// The sub-queries. If the list is empty, there are no further rounds.
    pub sub_queries: Vec<String>,
    /// Notes for the user about the list, such as that sub-queries were merged.
    #[serde(default)]
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    Started(Started),
    Planned(Planned),
    Finished(Finished),
    /// The tokens and the cost of a request to the model for a phase of the research, or of a failed sub-query.
    /// [`Record::Finished`] contains those of an answered sub-query.
    Spent(LlmUsage),
    Answered(FinalResult),
}

/// The content of a journal: how far its run has progressed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    pub started: Option<Started>,
    /// The planned rounds, in order.
    pub rounds: Vec<Planned>,
    pub finished: Vec<Finished>,
    /// The usage that the journal has recorded: that of all requests before the run was interrupted.
    pub used: LlmUsage,
    /// The final answer; `None` if the run is not complete.
    pub answer: Option<FinalResult>,
}

impl Progress {
    pub(super) const NOTHING: Self = Self {
        started: None,
        rounds: Vec::new(),
        finished: Vec::new(),
        used: LlmUsage::NOTHING,
        answer: None,
    };

    fn add(&mut self, record: Record) {
        match record {
            Record::Started(started) => self.started = Some(started),
            Record::Planned(planned) => self.rounds.push(planned),
            Record::Finished(finished) => {
                self.used = self.used.plus(finished.usage);
                self.finished.retain(|known| known.id != finished.id);
                self.finished.push(finished);
            }
            Record::Spent(usage) => self.used = self.used.plus(usage),
            Record::Answered(result) => self.answer = Some(result),
        }
    }

    /// Reads the complete lines of a journal. Fails if one of them cannot be parsed.
    fn read(path: &Path) -> Result<Self, String> {
        let bytes = append_log::read(path, 0, u64::MAX).map_err(|error| error.to_string())?;
        Self::parse(&bytes)
    }

    fn parse(lines: &[u8]) -> Result<Self, String> {
        let mut progress = Self::default();
        for (index, line) in lines.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let record = serde_json::from_slice(line);
            progress.add(record.map_err(|error| format!("line {}: {error}", index + 1))?);
        }
        Ok(progress)
    }
}

string_enum! {
    /// How far a stored run is.
    pub enum RunStage {
        /// A process is working on the run.
        Running = "running",
        /// The run ended without an answer, and can be resumed.
        Interrupted = "interrupted",
        Answered = "answered",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoredRun {
    pub id: String,
    pub query: String,
    pub state: RunStage,
    pub tokens: u64,
}

/// The open journal of one run. Only one process at a time can have it open.
#[derive(Debug)]
pub struct Journal {
    id: String,
    path: PathBuf,
    file: Mutex<Flock<File>>,
    progress: Progress,
}

const FILE_NAME: &str = "journal.jsonl";
/// The number of runs that guard keeps. Starting another run removes the oldest ones that no process is working on.
const MOST_JOURNALS: usize = 200;

impl Journal {
    /// Creates the journal of a new run, in a new subdirectory of `directory`. Removes the oldest runs if the directory
    /// contains too many.
    pub fn create(directory: &Path, started: Started) -> Result<Self, JournalError> {
        remove_oldest(directory, MOST_JOURNALS - 1);
        Self::create_with_id(directory, uuid::Uuid::now_v7().to_string(), started)
    }

    /// Opens the journal of the run with this complete id if the run has the same query and settings. Otherwise deletes
    /// the journal and begins a new one, because the results of another query are of no use. Fails if another process
    /// is working on the run.
    pub fn continue_or_create(directory: &Path, id: &str, started: Started) -> Result<Self, JournalError> {
        match Self::open(directory, id) {
            Ok(journal) if journal.progress.started.as_ref() == Some(&started) => Ok(journal),
            Err(error @ JournalError::Busy { .. }) => Err(error),
            _ => {
                let _ = fs::remove_dir_all(directory.join(id));
                remove_oldest(directory, MOST_JOURNALS - 1);
                Self::create_with_id(directory, id.to_string(), started)
            }
        }
    }

    fn create_with_id(directory: &Path, id: String, started: Started) -> Result<Self, JournalError> {
        let folder = directory.join(&id);
        let path = folder.join(FILE_NAME);
        let unusable = |error: &dyn std::fmt::Display| JournalError::Unusable {
            path: path.clone(),
            problem: error.to_string(),
        };
        DirBuilder::new().mode(0o700).recursive(true).create(&folder).map_err(|error| unusable(&error))?;
        let open = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&path);
        let file = open.map_err(|error| unusable(&error))?;
        let file = lock(file, &id)?;
        // Sync the directories too, so that the new file survives a crash.
        for folder in [folder.as_path(), directory] {
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| unusable(&error))?;
        }
        let mut journal = Self { id, path, file: Mutex::new(file), progress: Progress::default() };
        journal.append(&Record::Started(started.clone())).map_err(|error| JournalError::Unusable {
            path: journal.path.clone(),
            problem: error.to_string(),
        })?;
        journal.progress.started = Some(started);
        Ok(journal)
    }

    /// Opens the journal of an earlier run, and removes an incomplete last line. `id` is the run's id, or at least six
    /// characters at the end of the id. Fails if there is no such run, if another process is working on it, or if the
    /// journal is damaged.
    pub fn open(directory: &Path, id: &str) -> Result<Self, JournalError> {
        let id = complete_id(directory, id)?;
        let path = directory.join(&id).join(FILE_NAME);
        let unusable = |problem: String| JournalError::Unusable { path: path.clone(), problem };
        let open = append_log::open(&path).map_err(|error| unusable(error.to_string()))?;
        let file = lock(open, &id)?;
        let progress = Progress::read(&path).map_err(&unusable)?;
        if progress.started.is_none() {
            return Err(unusable("it does not contain the settings of the run".to_string()));
        }
        append_log::cut_torn_line(&path).map_err(|error| unusable(error.to_string()))?;
        Ok(Self { id, path, file: Mutex::new(file), progress })
    }

    /// Returns the runs in this directory, the newest first. Skips journals that cannot be read.
    pub fn list(directory: &Path) -> Vec<StoredRun> {
        let ids = run_ids(directory).into_iter().rev();
        let stored = |id: String| {
            let progress = Progress::read(&directory.join(&id).join(FILE_NAME)).ok()?;
            let state = match (&progress.answer, Self::is_running(directory, &id)) {
                (Some(_), _) => RunStage::Answered,
                (None, true) => RunStage::Running,
                (None, false) => RunStage::Interrupted,
            };
            Some(StoredRun { id, query: progress.started?.query, state, tokens: progress.used.tokens })
        };
        ids.filter_map(stored).collect()
    }

    /// Returns the complete id of a run and the settings with which it was started; `None` if there is no such run, or
    /// its journal cannot be read. `id` is the run's id, or at least six characters at the end of the id. Works while
    /// another process has the journal open.
    pub fn started(directory: &Path, id: &str) -> Option<(String, Started)> {
        let id = complete_id(directory, id).ok()?;
        let progress = Progress::read(&directory.join(&id).join(FILE_NAME)).ok()?;
        Some((id, progress.started?))
    }

    /// Returns the control directory of a run; `None` if there is no such run. `id` is the run's id, or at least six
    /// characters at the end of the id.
    pub fn control_directory(directory: &Path, id: &str) -> Option<PathBuf> {
        Some(directory.join(complete_id(directory, id).ok()?).join("control"))
    }

    /// Returns true if a process is working on the run; false also if the run does not exist or its journal cannot be
    /// opened.
    pub fn is_running(directory: &Path, id: &str) -> bool {
        let Ok(id) = complete_id(directory, id) else { return false };
        let Ok(file) = File::open(directory.join(id).join(FILE_NAME)) else { return false };
        // A shared lock, so that two processes that ask at the same time do not take each other for the run's process.
        matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, Errno::EWOULDBLOCK)))
    }

    /// Returns the complete id of the run.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Returns the progress that the journal contained when it was opened.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    pub fn planned(&self, planned: Planned) -> Result<(), AgentError> {
        self.append(&Record::Planned(planned))
    }

    pub fn finished(&self, finished: Finished) -> Result<(), AgentError> {
        self.append(&Record::Finished(finished))
    }

    /// Records the usage of a request for a phase of the research, or of a failed sub-query. Writes nothing if the
    /// usage is zero.
    pub fn spent(&self, usage: LlmUsage) -> Result<(), AgentError> {
        if usage == LlmUsage::default() { Ok(()) } else { self.append(&Record::Spent(usage)) }
    }

    /// Records the final answer, which completes the run.
    pub fn answered(&self, result: FinalResult) -> Result<(), AgentError> {
        self.append(&Record::Answered(result))
    }

    /// Appends a line and waits until it is on disk.
    fn append(&self, record: &Record) -> Result<(), AgentError> {
        let failed = |problem: String| AgentError::Journal { path: self.path.clone(), problem };
        let line = serde_json::to_vec(record).map_err(|error| failed(error.to_string()))?;
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        append_log::append(&file, line, u64::MAX, Writers::One).map_err(|error| failed(error.to_string()))
    }
}

/// Returns the ids of the runs in a directory, the oldest first: ids begin with the time of their creation.
fn run_ids(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut ids: Vec<String> = names.filter(|name| directory.join(name).join(FILE_NAME).is_file()).collect();
    ids.sort();
    ids
}

/// Removes all runs except the newest `most` and those that a process is working on. Ignores errors.
fn remove_oldest(directory: &Path, most: usize) {
    let ids = run_ids(directory);
    for id in &ids[..ids.len().saturating_sub(most)] {
        if !Journal::is_running(directory, id) {
            let _ = fs::remove_dir_all(directory.join(id));
        }
    }
}

fn lock(file: File, id: &str) -> Result<Flock<File>, JournalError> {
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| JournalError::Busy { id: id.to_string() })
}

/// Returns the complete id of a run. `id` is the whole id, or at least six characters at the end of the id. Fails if no
/// run has such an id, if several runs do, or if `id` contains a character that is neither a hexadecimal digit nor a
/// dash.
fn complete_id(directory: &Path, id: &str) -> Result<String, JournalError> {
    let unknown = || JournalError::Unknown { id: id.to_string() };
    let is_plain = id.len() >= 6 && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if !is_plain {
        return Err(unknown());
    }
    let entries = fs::read_dir(directory).map_err(|_| unknown())?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut found = names.filter(|name| name.ends_with(id) && directory.join(name).join(FILE_NAME).is_file());
    let first = found.next().ok_or_else(unknown)?;
    if found.next().is_some() {
        return Err(JournalError::Ambiguous { id: id.to_string() });
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("guard-journal-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn started() -> Started {
        Started {
            query: "q".into(),
            config: ResearchConfig::default(),
            model: "m".into(),
            agent: None,
            directory: None,
            policy: None,
            allow_hosts: Vec::new(),
            limits: RequestLimits::default(),
        }
    }

    fn finished(id: usize) -> Finished {
        Finished { id, result: format!("r{id}"), usage: LlmUsage::tokens(10), ..Finished::default() }
    }

    fn ok<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
        result.unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn what_was_recorded_is_read_again_even_after_a_torn_line() {
        let directory = Directory::new("torn");
        let journal = ok(Journal::create(&directory.0, started()));
        let id = journal.id().to_string();
        let planned =
            Planned { round: 1, first_id: 0, sub_queries: vec!["a".into(), "b".into()], notes: vec![] };
        ok(journal.planned(planned.clone()));
        ok(journal.finished(finished(1)));
        ok(journal.spent(LlmUsage::tokens(5)));
        assert_eq!(Journal::open(&directory.0, &id).map(drop), Err(JournalError::Busy { id: id.clone() }));
        let path = journal.path.clone();
        drop(journal);
        let whole = ok(fs::read(&path));
        // A crash can interrupt the last write at any byte.
        let before = whole.len();
        let line = ok(serde_json::to_vec(&Record::Finished(finished(0))));
        for cut in [0, 1, line.len() / 2, line.len()] {
            let torn = [whole.as_slice(), &line[..cut]].concat();
            ok(fs::write(&path, &torn));
            let journal = ok(Journal::open(&directory.0, &id[id.len() - 8..]));
            assert_eq!(journal.progress().rounds, std::slice::from_ref(&planned));
            assert_eq!(journal.progress().finished, [finished(1)]);
            assert_eq!(journal.progress().used.tokens, 15);
            assert_eq!(ok(fs::metadata(&path)).len(), before as u64);
            ok(journal.finished(finished(0)));
            drop(journal);
            let again = ok(Journal::open(&directory.0, &id));
            assert_eq!(again.progress().finished.len(), 2);
        }
    }

    #[test]
    fn runs_are_listed_and_the_oldest_removed() {
        let directory = Directory::new("list");
        let first = ok(Journal::create(&directory.0, started()));
        let second = ok(Journal::create(&directory.0, started()));
        ok(second.answered(FinalResult::default()));
        let (first_id, second_id) = (first.id().to_string(), second.id().to_string());
        drop(second);
        let stages: Vec<(String, RunStage)> =
            Journal::list(&directory.0).into_iter().map(|run| (run.id, run.state)).collect();
        assert_eq!(stages, [(second_id.clone(), RunStage::Answered), (first_id.clone(), RunStage::Running)]);
        // The first run is still open, so only the second one can be removed.
        remove_oldest(&directory.0, 0);
        assert_eq!(run_ids(&directory.0), [first_id]);
        drop(first);
        assert_eq!(Journal::list(&directory.0)[0].state, RunStage::Interrupted);
        remove_oldest(&directory.0, 0);
        assert_eq!(Journal::list(&directory.0), []);
    }

    #[test]
    fn a_damaged_journal_and_odd_ids_are_refused() {
        let directory = Directory::new("odd");
        let journal = ok(Journal::create(&directory.0, started()));
        let (id, path) = (journal.id().to_string(), journal.path.clone());
        drop(journal);
        for odd in ["", "x", "../../etc", "ffffffffffff", "*", &id[..8]] {
            let opened = Journal::open(&directory.0, odd).map(drop);
            assert_eq!(opened, Err(JournalError::Unknown { id: odd.to_string() }));
        }
        ok(fs::write(&path, "{\"started\": 5}\n"));
        assert!(matches!(Journal::open(&directory.0, &id), Err(JournalError::Unusable { .. })));
        ok(fs::write(&path, ""));
        assert!(matches!(Journal::open(&directory.0, &id), Err(JournalError::Unusable { .. })));
    }

    #[test]
    fn an_end_of_several_ids_is_ambiguous() {
        let directory = Directory::new("ambiguous");
        for id in ["0000-abcdef", "1111-abcdef"] {
            drop(ok(Journal::create_with_id(&directory.0, id.to_string(), started())));
        }
        let opened = Journal::open(&directory.0, "abcdef").map(drop);
        assert_eq!(opened, Err(JournalError::Ambiguous { id: "abcdef".to_string() }));
        assert_eq!(ok(Journal::open(&directory.0, "1-abcdef")).id(), "1111-abcdef");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_break_the_reader(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = Progress::parse(&bytes);
        }
    }
}
