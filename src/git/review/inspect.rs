//! Lists the workspaces of runs, shows their changes, and previews merges. Never changes the user's repository.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::git::plumbing::command::{Git, Trust, program};
use crate::git::plumbing::jail::{Bounds, Jail};
use crate::git::plumbing::outcome::GitError;
use crate::git::plumbing::refs;
use crate::git::review::review_base::ReviewBase;
use crate::git::workspace::create::Workspace;
use crate::git::workspace::run_record::{Lock, Record, State};
use crate::git::{WorkspaceError, at};

/// A workspace that [`list`] found, and whether a guard process uses it.
#[derive(Debug)]
pub struct Entry {
    /// The directory with the files of the run that created the workspace.
    pub run_folder: PathBuf,
    pub record: Result<Record, WorkspaceError>,
    /// True if a guard process is using the workspace: it holds the workspace's lock.
    pub is_busy: bool,
}

/// Lists the workspaces of all runs in the directory `runs`, the newest first. Returns an empty list if `runs` does not
/// exist.
pub fn list(runs: &Path) -> Result<Vec<Entry>, WorkspaceError> {
    let entries = match std::fs::read_dir(runs) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => at("read", runs, entries)?,
    };
    let mut dirs: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|dir| Record::exists(dir)).collect();
    dirs.sort();
    dirs.reverse();
    let entry = |run_folder: PathBuf| {
        let (record, is_busy) = (Record::read(&run_folder), Lock::is_held(&run_folder));
        Entry { run_folder, record, is_busy }
    };
    Ok(dirs.into_iter().map(entry).collect())
}

/// Finds the newest run that still has a worktree in the repository with the common directory `common_dir`. Returns
/// the run's directory and the workspace's record; `None` if there is no such run.
pub fn newest(runs: &Path, common_dir: &Path) -> Result<Option<(PathBuf, Record)>, WorkspaceError> {
    newest_where(runs, |record| record.state != State::Removed && record.common_dir == common_dir)
}

/// Finds the newest run on a branch of the repository with the common directory `common_dir`, even if the run's
/// worktree was removed. `branch` is the full name of the ref. Returns the run's directory and the workspace's record;
/// `None` if there is no such run.
pub fn newest_on_branch(
    runs: &Path,
    common_dir: &Path,
    branch: &str,
) -> Result<Option<(PathBuf, Record)>, WorkspaceError> {
    newest_where(runs, |record| record.common_dir == common_dir && record.branch == branch)
}

/// Finds the newest workspace whose record fulfils the condition; `None` if there is none. Reads no more records than
/// necessary, and skips those that it cannot read.
fn newest_where(
    runs: &Path,
    condition: impl Fn(&Record) -> bool,
) -> Result<Option<(PathBuf, Record)>, WorkspaceError> {
    let entries = match std::fs::read_dir(runs) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        entries => at("read", runs, entries)?,
    };
    let mut dirs: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    dirs.sort();
    let found = dirs.into_iter().rev().find_map(|dir| {
        let record = Record::read(&dir).ok()?;
        condition(&record).then_some((dir, record))
    });
    Ok(found)
}

/// True if the run's quarantine repository (its private git directory) still exists, and the branch in it is not at the
/// commit that guard last received. Also true if guard cannot read the branch.
pub fn has_unreceived_commits(run_folder: &Path, record: &Record) -> bool {
    let git = run_folder.join("git");
    if git.symlink_metadata().is_err() {
        return false;
    }
    let before = run_folder.join("refs-before");
    !refs::read_ref(&git, &before, &record.branch, &record.object_format).is_ok_and(|tip| tip == record.tip)
}

/// What merging a run's branch into another branch would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// The branch or other revision to merge the run's branch into, as the caller named it; `HEAD` by default.
    pub into: String,
    /// The number of commits that only the run's branch has.
    pub ahead: usize,
    /// The number of commits that only `into` has.
    pub behind: usize,
    /// The files that the run's branch changes since it diverged from `into`.
    pub files: Vec<PathBuf>,
    /// The files in which the merge would have conflicts; empty if there are none.
    pub conflicts: Vec<PathBuf>,
}

/// Opens a workspace for reading. Needs no lock, because guard replaces a workspace's record atomically.
fn peek(run_folder: &Path) -> Result<Reader, WorkspaceError> {
    Ok(Reader { record: Record::read(run_folder)? })
}

struct Reader {
    record: Record,
}

impl Reader {
    /// Builds a jailed (sandboxed) git call that can read the agent's commits but cannot start processes.
    fn git(&self, verb: &str) -> Result<Git, WorkspaceError> {
        let bounds = Bounds { cpu_seconds: 600, memory: 4 << 30, file: 0 };
        self.jailed(verb, &[], true, bounds).map(|git| git.current_dir(&self.record.common_dir))
    }

    fn jailed(
        &self,
        verb: &str,
        write: &[&Path],
        no_children: bool,
        bounds: Bounds,
    ) -> Result<Git, WorkspaceError> {
        let record = &self.record;
        let mut read: Vec<&Path> = record.objects.iter().map(PathBuf::as_path).collect();
        read.push(&record.common_dir);
        let jail = Jail::new(program()?, &read, write, no_children, bounds)?;
        Ok(Git::new(Trust::Neutral, verb)?.git_dir(&record.common_dir).jailed(jail))
    }

    fn branch(&self) -> &str {
        &self.record.branch
    }
}

/// Returns the diff from the commit where the run's branch left the user's history to the branch: as a summary with
/// `stat`, otherwise as a patch. `target` is the commit that the user has checked out; `None` for the `HEAD` of the main
/// working tree.
pub fn diff(run_folder: &Path, stat: bool, target: Option<&str>) -> Result<Vec<u8>, WorkspaceError> {
    let reader = peek(run_folder)?;
    let base = ReviewBase::find(&|verb| reader.git(verb), &reader.record, target, reader.branch())?;
    let shape = if stat { "--stat" } else { "--patch" };
    let output = reader
        .git("diff")?
        .args([
            "--no-ext-diff",
            "--no-textconv",
            // Show which commit a submodule points to, but never enter the submodule.
            "--ignore-submodules=none",
            "--submodule=short",
            "--no-color",
            shape,
            &base.commit,
            reader.branch(),
            "--",
        ])
        .run()?;
    Ok(output)
}

/// Previews a merge of the run's branch into the branch or other revision `into`, which by default is the `HEAD` of the
/// repository's main working tree. Writes nothing to the repository. Fails if `into` is not a commit.
pub fn preview(run_folder: &Path, into: Option<&str>) -> Result<Preview, WorkspaceError> {
    let reader = peek(run_folder)?;
    let into = into.unwrap_or("HEAD");
    let line = |output: Vec<u8>| String::from_utf8_lossy(&output).trim_end().to_string();
    let target = reader
        .git("rev-parse")?
        .args(["--verify", "--quiet", "--end-of-options"])
        .arg(format!("{into}^{{commit}}"))
        .output()?;
    if !target.status.success() {
        return Err(WorkspaceError::refused(
            format!("{into:?} is not a commit of the repository"),
            "`git branch --all` shows the branches to merge into",
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
        .args(["--name-only", "-z", "--no-ext-diff", "--ignore-submodules=none"])
        .arg(format!("{target}...{}", reader.branch()))
        .arg("--")
        .run()?;
    // git writes the trees of the merge to the run's directory, not to the repository.
    let scratch = run_folder.join("preview");
    at("create", &scratch, std::fs::create_dir_all(&scratch))?;
    let objects: Vec<Vec<u8>> =
        reader.record.objects.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
    // This jail allows child processes, because git starts the merge drivers that the attributes and the configuration
    // name. The drivers write their temporary files to git's working directory.
    let bounds = Bounds { cpu_seconds: 120, memory: 4 << 30, file: libc::RLIM_INFINITY };
    let merged = reader
        .jailed("merge-tree", &[&scratch], false, bounds)?
        .current_dir(&scratch)
        .timeout(Duration::from_secs(120))
        .args(["--write-tree", "--name-only", "--no-messages", "-z", &target, reader.branch()])
        .env("GIT_OBJECT_DIRECTORY", &scratch)
        .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", OsStr::from_bytes(&objects.join(&b':')))
        .output();
    let _ = crate::sys::remove_tree::remove_tree(&scratch);
    let merged = merged?;
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
    /// Returns the commit where the run's branch left the user's history, which is not where the run began if earlier
    /// runs worked on the branch: the history of the commit that the user had checked out when they started the run.
    pub(crate) fn review_base(&self) -> Result<String, WorkspaceError> {
        let git = |verb: &str| Ok(self.real_git(verb)?);
        let target = self.record.target.as_deref();
        ReviewBase::find(&git, &self.record, target, &self.record.tip).map(|base| base.commit)
    }

    pub fn run_folder(&self) -> &Path {
        &self.run_folder
    }
}
