//! Finds what a run left uncommitted in its worktree.
//!
//! What git cannot read, or not in time, counts as work: a failed check must never pass for "nothing found".

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::workspace::git::command::{Answer, Git, GitError, Running};
use crate::workspace::git::gitfile;
use crate::workspace::git::stderr_messages::UNREADABLE_DIRECTORY;
use crate::workspace::run::create::Workspace;
use crate::workspace::run::extra_files;
use crate::workspace::{WorkspaceError, at};

/// Timeout of the first `git status`, before guard looks for a file that blocks it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Timeout of the second attempt, and of committing the work.
pub(crate) const LONGEST: Duration = Duration::from_secs(120);
/// Maximum number of paths in a report.
const MOST_PATHS: usize = 100;
/// Maximum number of changed files in a report.
const MOST_CHANGES: usize = 1_000;
/// Maximum size of the list of files in new directories.
const MOST_LISTED: usize = 4 << 20;

/// How a file changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Changed {
    /// The file is new.
    Created,
    /// The content or type changed.
    Modified,
    /// The file was removed.
    Deleted,
}

/// Combines the changes from a first to a second state with those from the second to a third.
pub fn merged(
    first: impl IntoIterator<Item = (PathBuf, Changed)>,
    then: impl IntoIterator<Item = (PathBuf, Changed)>,
) -> BTreeMap<PathBuf, Changed> {
    let mut all: BTreeMap<PathBuf, Changed> = first.into_iter().collect();
    for (path, change) in then {
        let change = match (all.get(&path), change) {
            // The file was committed, so it is in the branch, whatever happened to it since.
            (Some(Changed::Created), _) => Changed::Created,
            (Some(Changed::Deleted), Changed::Created) => Changed::Modified,
            (Some(Changed::Modified), Changed::Created) => Changed::Modified,
            (_, change) => change,
        };
        all.insert(path, change);
    }
    all
}

/// A file, and how it changed.
type Change = (PathBuf, Changed);

/// The contents of a worktree that are not in its branch.
pub(crate) struct Work {
    /// Paths, including directories; at most a hundred.
    pub(crate) uncommitted: Vec<PathBuf>,
    /// The changed files.
    pub(crate) changes: Vec<Change>,
    /// `changes` is complete.
    pub(crate) is_all: bool,
}

impl Workspace {
    /// Paths with uncommitted work, at most a hundred. For a worktree that was given back to the user.
    pub fn uncommitted(&self) -> Result<Vec<PathBuf>, WorkspaceError> {
        self.copy_index()?;
        Ok(self.look_for_work(false)?.uncommitted)
    }

    /// Finds uncommitted work. With `opens`, also in directories that are not accessible to their owner.
    pub(crate) fn look_for_work(&self, opens: bool) -> Result<Work, WorkspaceError> {
        let status = || {
            self.patiently(|| {
                let git = self.worktree_git("status", false)?.env("GIT_OPTIONAL_LOCKS", "1");
                let untracked = "--untracked-files=normal";
                Ok(git.args(["--porcelain", "-z", untracked, "--ignore-submodules=all", "--no-renames"]))
            })
        };
        let mut answer = match status() {
            // For example a sparse file as large as a disk, which git reads completely to see whether it
            // changed.
            Err(WorkspaceError::Git(GitError::TimedOut { .. })) => {
                let uncommitted = vec![PathBuf::from(".")];
                return Ok(Work { uncommitted, changes: Vec::new(), is_all: false });
            }
            answer => answer?,
        };
        if opens && !unseen(&answer.message).is_empty() {
            gitfile::open_up(&self.record.worktree);
            answer = status()?;
        }
        // A failed check must not pass for "nothing found", or work would be removed.
        if !answer.status.success() {
            let (verb, code) = ("status".to_string(), answer.code());
            return Err(GitError::Failed { verb, code, message: answer.message }.into());
        }
        let entries: Vec<Change> = answer.output.split(|byte| *byte == 0).filter_map(entry).collect();
        let mut uncommitted: Vec<PathBuf> =
            entries.iter().take(MOST_PATHS).map(|(path, _)| path.clone()).collect();
        // What git cannot read may be work.
        let unseen = unseen(&answer.message);
        for folder in &unseen {
            if !uncommitted.iter().any(|path| path.starts_with(folder)) {
                uncommitted.push(folder.clone());
            }
        }
        let (changes, is_all) = self.files(entries);
        Ok(Work { uncommitted, changes, is_all: is_all && unseen.is_empty() })
    }

    /// Expands new directories to their files.
    fn files(&self, entries: Vec<Change>) -> (Vec<Change>, bool) {
        let is_folder = |path: &Path| path.as_os_str().as_bytes().ends_with(b"/");
        let (folders, mut files): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|(path, _)| is_folder(path));
        let mut is_all = files.len() <= MOST_CHANGES && folders.len() <= MOST_CHANGES;
        files.truncate(MOST_CHANGES);
        if !folders.is_empty() && files.len() < MOST_CHANGES {
            match self.new_files(&folders) {
                Ok((new, whole)) => {
                    files.extend(new);
                    is_all &= whole;
                }
                // The list is informational; nothing depends on it.
                Err(_) => {
                    files.extend(folders);
                    is_all = false;
                }
            }
            is_all &= files.len() <= MOST_CHANGES;
            files.truncate(MOST_CHANGES);
        }
        (files, is_all)
    }

    fn new_files(&self, folders: &[Change]) -> Result<(Vec<Change>, bool), WorkspaceError> {
        let list = self.worktree_git("ls-files", false)?.args(["--others", "--exclude-standard", "-z", "--"]);
        let list = list.env("GIT_LITERAL_PATHSPECS", "1");
        let list = list.args(folders.iter().take(MOST_CHANGES).map(|(path, _)| path));
        let (listed, whole) = list.limit(PATIENCE).most(MOST_LISTED).start().and_then(Running::part)?;
        let end = listed.iter().rposition(|byte| *byte == 0).unwrap_or(0);
        let new = listed[..end].split(|byte| *byte == 0).filter(|path| !path.is_empty());
        Ok((new.map(|path| (PathBuf::from(OsStr::from_bytes(path)), Changed::Created)).collect(), whole))
    }

    /// Runs a git call that reads ignore files. An agent may have put a FIFO in place of one, on which every
    /// git blocks forever; guard moves it away and retries.
    pub(crate) fn patiently(
        &self,
        call: impl Fn() -> Result<Git, WorkspaceError>,
    ) -> Result<Answer, WorkspaceError> {
        match call()?.limit(PATIENCE).answer() {
            Err(GitError::TimedOut { .. }) => {}
            answered => return Ok(answered?),
        }
        let moved = self.move_pipes(&self.record.worktree);
        at("look for pipes in", &self.record.worktree, moved)?;
        Ok(call()?.limit(LONGEST).answer()?)
    }

    fn move_pipes(&self, folder: &Path) -> io::Result<()> {
        let mut folders = vec![folder.to_path_buf()];
        while let Some(folder) = folders.pop() {
            // git cannot read anything in an unreadable directory either.
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if !kind.is_file()
                    && !kind.is_symlink()
                    && entry.file_name().as_bytes().starts_with(b".git")
                {
                    gitfile::take_away(&entry.path(), &self.run_folder)?;
                }
            }
        }
        Ok(())
    }

    /// True if the uncommitted change may have been made since this moment. Only a worktree that existed
    /// before the run can contain older work.
    pub fn is_since(&self, path: &Path, change: Changed, since: SystemTime) -> bool {
        if !self.record.here {
            return true;
        }
        let place = self.record.worktree.join(path);
        // A deleted file changes its directory's ctime.
        let mut witnesses = place.ancestors().skip(usize::from(change == Changed::Deleted));
        let found = witnesses.find_map(|path| path.symlink_metadata().ok());
        // File system clocks are coarse: a file can appear slightly older than it is.
        let since = since.checked_sub(Duration::from_millis(10)).unwrap_or(since);
        found.is_none_or(|data| {
            let changed = Duration::new(data.ctime().max(0) as u64, data.ctime_nsec() as u32);
            SystemTime::UNIX_EPOCH + changed >= since
        })
    }
}

/// Parses one entry of `git status --porcelain -z`.
fn entry(line: &[u8]) -> Option<Change> {
    let (codes, path) = (line.get(..2)?, line.get(3..)?);
    let change = match codes {
        b"??" | b"A " | b"AM" => Changed::Created,
        [_, b'D'] | [b'D', b' '] => Changed::Deleted,
        _ => Changed::Modified,
    };
    Some((PathBuf::from(OsStr::from_bytes(path)), change))
}

/// The directories that git reports as unreadable, or only partly readable.
pub(crate) fn unseen(message: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for mark in UNREADABLE_DIRECTORY {
        for (at, _) in message.match_indices(mark) {
            let path = message[at + mark.len()..].split(['/', '\'']).next().unwrap_or_default();
            let path = PathBuf::from(path);
            if extra_files::is_inside(&path) && !found.contains(&path) {
                found.push(path);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::Changed::{Created, Deleted, Modified};
    use super::{entry, merged, unseen};
    use std::path::{Path, PathBuf};

    #[test]
    fn lines_and_their_sum() {
        let of = |line: &[u8]| entry(line).map(|(_, change)| change);
        assert_eq!(of(b"?? a"), Some(Created));
        assert_eq!(of(b" D a"), Some(Deleted));
        assert_eq!(of(b"D  a"), Some(Deleted));
        assert_eq!(of(b" M a"), Some(Modified));
        assert_eq!(of(b" T a"), Some(Modified));
        assert_eq!(of(b"UU a"), Some(Modified));
        assert_eq!(of(b"??"), None);
        for (first, then, sum) in [
            (Created, Deleted, Created),
            (Created, Modified, Created),
            (Modified, Deleted, Deleted),
            (Deleted, Created, Modified),
            (Modified, Modified, Modified),
        ] {
            let path = || PathBuf::from("a");
            let all = merged([(path(), first)], [(path(), then)]);
            assert_eq!(all.get(Path::new("a")), Some(&sum), "{first:?} {then:?}");
        }
    }

    #[test]
    fn folders_that_git_could_not_look_into() {
        let said =
            "warning: could not open directory 'a/b/': File name too long; warning: unable to access 'c";
        assert_eq!(unseen(said), [Path::new("a"), Path::new("c")]);
        assert_eq!(unseen("warning: could not open directory '../x/'"), Vec::<PathBuf>::new());
    }
}
