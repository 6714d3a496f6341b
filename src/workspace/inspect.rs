//! What workspaces there are, what is in them, and what merging one would do. Changes nothing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::git::GitError;
use super::open::Workspace;
use super::record::{Lock, Record};
use super::{WorkspaceError, at};

/// A workspace in the list.
#[derive(Debug)]
pub struct Entry {
    /// The run's folder.
    pub run_folder: PathBuf,
    /// What is known of it, or why that cannot be read.
    pub record: Result<Record, WorkspaceError>,
    /// A guard works on it.
    pub is_busy: bool,
}

/// All workspaces whose runs are in this folder, the newest first.
pub fn list(runs: &Path) -> Result<Vec<Entry>, WorkspaceError> {
    let entries = match std::fs::read_dir(runs) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => at("read", runs, entries)?,
    };
    let mut folders: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|folder| Record::exists(folder)).collect();
    folders.sort();
    folders.reverse();
    let entry = |run_folder: PathBuf| {
        let (record, is_busy) = (Record::read(&run_folder), Lock::is_held(&run_folder));
        Entry { run_folder, record, is_busy }
    };
    Ok(folders.into_iter().map(entry).collect())
}

/// What merging a branch would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// What it would be merged into.
    pub into: String,
    /// Commits it would bring.
    pub ahead: usize,
    /// Commits it does not have.
    pub behind: usize,
    /// Files it would change.
    pub files: Vec<PathBuf>,
    /// Files in which both sides changed the same place.
    pub conflicts: Vec<PathBuf>,
}

/// Reading needs no lock: a record that is being written is always a whole one.
fn peek(run_folder: &Path) -> Result<Reader, WorkspaceError> {
    Ok(Reader { record: Record::read(run_folder)? })
}

struct Reader {
    record: Record,
}

impl Reader {
    fn git(&self, verb: &str) -> Result<super::git::Git, GitError> {
        let record = &self.record;
        let git = super::git::Git::new(super::git::Trust::Neutral, verb)?;
        Ok(git.dir(&record.common_dir).within(&record.common_dir))
    }

    fn branch(&self) -> &str {
        &self.record.branch
    }
}

/// The difference between where the run began and where its branch is, as text.
pub fn diff(run_folder: &Path, stat: bool) -> Result<Vec<u8>, WorkspaceError> {
    let reader = peek(run_folder)?;
    let shape = if stat { "--stat" } else { "--patch" };
    let output = reader
        .git("diff")?
        .args([
            "--no-ext-diff",
            "--no-textconv",
            "--no-color",
            shape,
            &reader.record.base,
            reader.branch(),
            "--",
        ])
        .run()?;
    Ok(output)
}

/// What merging the run's branch into another (or the user's current one) would do. Nothing is written to the repository.
pub fn preview(run_folder: &Path, into: Option<&str>) -> Result<Preview, WorkspaceError> {
    let reader = peek(run_folder)?;
    let into = into.unwrap_or("HEAD");
    let line = |output: Vec<u8>| String::from_utf8_lossy(&output).trim_end().to_string();
    let target = reader
        .git("rev-parse")?
        .args(["--verify", "--quiet", "--end-of-options"])
        .arg(format!("{into}^{{commit}}"))
        .answer()?;
    if !target.status.success() {
        return Err(WorkspaceError::refused(
            format!("{into:?} is no commit of the repository"),
            "`git branch --all` shows the names",
        ));
    }
    let target = line(target.output);
    let counts = line(
        reader
            .git("rev-list")?
            .args(["--left-right", "--count"])
            .arg(format!("{target}...{}", reader.branch()))
            .run()?,
    );
    let mut counts = counts.split_whitespace().map(|count| count.parse().unwrap_or(0));
    let (behind, ahead) = (counts.next().unwrap_or(0), counts.next().unwrap_or(0));
    let names = reader
        .git("diff")?
        .args(["--name-only", "-z", "--no-ext-diff"])
        .arg(format!("{target}...{}", reader.branch()))
        .arg("--")
        .run()?;
    // Trees of the merge go to a folder of the run's, not into the repository.
    let scratch = run_folder.join("preview");
    at("make", &scratch, std::fs::create_dir_all(&scratch))?;
    let objects: Vec<Vec<u8>> =
        reader.record.objects.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
    let merged = reader
        .git("merge-tree")?
        .args(["--write-tree", "--name-only", "--no-messages", "-z", &target, reader.branch()])
        .env("GIT_OBJECT_DIRECTORY", &scratch)
        .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", OsStr::from_bytes(&objects.join(&b':')))
        .answer()?;
    let _ = std::fs::remove_dir_all(&scratch);
    if merged.code() > 1 {
        let (verb, code) = ("merge-tree".to_string(), merged.code());
        return Err(GitError::Failed { verb, code, message: merged.message }.into());
    }
    let paths = |output: &[u8]| -> Vec<PathBuf> {
        let parts = output.split(|byte| *byte == 0).filter(|part| !part.is_empty());
        parts.map(|part| PathBuf::from(OsStr::from_bytes(part))).collect()
    };
    let conflicts = paths(&merged.output).into_iter().skip(1).collect();
    Ok(Preview { into: into.to_string(), ahead, behind, files: paths(&names), conflicts })
}

impl Workspace {
    /// The run's folder.
    pub fn run_folder(&self) -> &Path {
        &self.run_folder
    }
}
