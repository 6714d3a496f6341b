//! Finds the work that a run left uncommitted in its worktree.
//!
//! If git cannot read a file or directory, or takes too long, guard treats it as work: guard removes worktrees
//! without work, so a failed check must never look like "no work".

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::git::plumbing::command::{Git, Running};
use crate::git::plumbing::gitfile;
use crate::git::plumbing::outcome::{GitError, GitOutput};
use crate::git::plumbing::stderr_messages::{GitMessage, UNREADABLE_DIRECTORY};
use crate::git::review::hidden_files::HiddenFiles;
use crate::git::workspace::create::Workspace;
use crate::git::workspace::extra_files;
use crate::git::{WorkspaceError, at};

/// Timeout for the first attempt of a git call that reads ignore files, such as `git status`. If the call exceeds it,
/// guard moves FIFOs that may block git out of the worktree, and tries again. Also the timeout for listing the files
/// in new directories.
const FIRST_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for the second attempt of a git call that reads ignore files, and for calls that read all trees of a commit
/// or all files of a worktree.
pub(crate) const RETRY_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum number of uncommitted paths in a report.
const MAX_PATHS: usize = 100;
/// Maximum number of changed files in a report.
const MAX_CHANGES: usize = 1_000;
/// Maximum size of git's list of the files in new directories, in bytes.
const MAX_LISTED_BYTES: usize = 4 << 20;

/// How a file differs from an earlier version of the worktree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Changed {
    Created,
    /// The file's content or type changed.
    Modified,
    Deleted,
}

/// Combines two consecutive lists of changes into one: `first` has the earlier changes, and `then` the later ones. A
/// file that was created and then deleted counts as created.
pub fn merged(
    first: impl IntoIterator<Item = (PathBuf, Changed)>,
    then: impl IntoIterator<Item = (PathBuf, Changed)>,
) -> BTreeMap<PathBuf, Changed> {
    let mut all: BTreeMap<PathBuf, Changed> = first.into_iter().collect();
    for (path, change) in then {
        let change = match (all.get(&path), change) {
            // The earlier change created the file, whatever happened to the file afterwards.
            (Some(Changed::Created), _) => Changed::Created,
            (Some(Changed::Deleted), Changed::Created) => Changed::Modified,
            (Some(Changed::Modified), Changed::Created) => Changed::Modified,
            (_, change) => change,
        };
        all.insert(path, change);
    }
    all
}

type Change = (PathBuf, Changed);

/// The uncommitted work in a worktree.
pub(crate) struct Work {
    /// The paths of at most a hundred new and changed files, and of all directories that git cannot read. A new
    /// directory counts as one path. If `git status` timed out, only the path `.`.
    pub(crate) uncommitted: Vec<PathBuf>,
    /// At most 1,000 new and changed files, including the files in new directories.
    pub(crate) changes: Vec<Change>,
    /// True if `changes` lists all changed files.
    pub(crate) is_all: bool,
}

impl Workspace {
    /// Returns at most a hundred paths with uncommitted work, and all directories that git cannot read. The worktree's
    /// `.git` file must point to the user's repository again, as it does after [`Workspace::dispose`].
    pub fn uncommitted(&self) -> Result<Vec<PathBuf>, WorkspaceError> {
        self.copy_index()?;
        Ok(self.find_uncommitted(false)?.uncommitted)
    }

    /// Finds uncommitted work. If git cannot read some directories and `opens` is true, restores the owner's
    /// permissions, which the agent may have removed, and tries again.
    pub(crate) fn find_uncommitted(&self, opens: bool) -> Result<Work, WorkspaceError> {
        let status = || {
            self.run_moving_fifos(|| {
                let git = self.worktree_git("status", false)?.env("GIT_OPTIONAL_LOCKS", "1");
                let untracked = "--untracked-files=normal";
                Ok(git.args(["--porcelain", "-z", untracked, "--ignore-submodules=all", "--no-renames"]))
            })
        };
        let mut answer = match status() {
            // git reads a changed file completely, and a sparse file can be larger than any disk. After a timeout,
            // report the whole worktree as work.
            Err(WorkspaceError::Git(GitError::TimedOut { .. })) => {
                let uncommitted = vec![PathBuf::from(".")];
                return Ok(Work { uncommitted, changes: Vec::new(), is_all: false });
            }
            answer => answer?,
        };
        let is_unseen = |message: &str| {
            !unreadable_dirs(message).is_empty() || GitMessage::PermissionDenied.is_in(message)
        };
        if opens && is_unseen(&answer.message) {
            gitfile::restore_access(&self.record.worktree);
            answer = status()?;
        }
        // A failed check must not look like "no work", or guard would remove work.
        if !answer.status.success() {
            let (verb, code) = ("status".to_string(), answer.code());
            return Err(GitError::Failed { verb, code, message: answer.message }.into());
        }
        let entries: Vec<Change> = answer.output.split(|byte| *byte == 0).filter_map(entry).collect();
        let mut uncommitted: Vec<PathBuf> =
            entries.iter().take(MAX_PATHS).map(|(path, _)| path.clone()).collect();
        // A directory that git cannot read may contain work.
        let mut unseen = unreadable_dirs(&answer.message);
        for dir in &unseen {
            if !uncommitted.iter().any(|path| path.starts_with(dir)) {
                uncommitted.push(dir.clone());
            }
        }
        // git names only the files whose directory lets it see that they exist.
        if unseen.is_empty() && GitMessage::PermissionDenied.is_in(&answer.message) {
            unseen.push(PathBuf::from("."));
            uncommitted.push(PathBuf::from("."));
        }
        let (mut changes, mut is_all) = self.files(entries);
        let mut hidden = match self.hidden_files() {
            // There are too many of them, or too many in a directory that git must read.
            Err(WorkspaceError::Git(GitError::TimedOut { .. } | GitError::TooMuch { .. })) => {
                uncommitted.push(PathBuf::from("."));
                return Ok(Work { uncommitted, changes, is_all: false });
            }
            hidden => hidden?,
        };
        if opens && !hidden.unreadable.is_empty() {
            gitfile::restore_access(&self.record.worktree);
            hidden = self.hidden_files()?;
        }
        unseen.extend(hidden.unreadable.iter().cloned());
        let all = hidden.unreadable.into_iter().chain(hidden.files.iter().cloned());
        uncommitted.extend(all.take(MAX_PATHS.saturating_sub(uncommitted.len())));
        let left = MAX_CHANGES.saturating_sub(changes.len());
        is_all &= hidden.files.len() <= left;
        changes.extend(hidden.files.into_iter().take(left).map(|path| (path, Changed::Created)));
        Ok(Work { uncommitted, changes, is_all: is_all && unseen.is_empty() })
    }

    /// Finds the files in the worktree that this run or earlier runs in it hid from git.
    pub(crate) fn hidden_files(&self) -> Result<HiddenFiles, WorkspaceError> {
        // Earlier runs may have committed ignore files: the review starts where the branch left the user's history.
        let base = || self.review_base().unwrap_or_else(|_| self.record.base.clone());
        let git = |verb: &str| self.worktree_git(verb, false);
        HiddenFiles::find(&self.record, &self.run_folder, &self.scratch(), git, base)
    }

    /// Replaces each new directory in `entries` by the files in it. Returns at most `MAX_CHANGES` files, and true if
    /// the list is complete.
    fn files(&self, entries: Vec<Change>) -> (Vec<Change>, bool) {
        let is_dir = |path: &Path| path.as_os_str().as_bytes().ends_with(b"/");
        let (dirs, mut files): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(path, _)| is_dir(path));
        let mut is_all = files.len() <= MAX_CHANGES && dirs.len() <= MAX_CHANGES;
        files.truncate(MAX_CHANGES);
        if !dirs.is_empty() && files.len() < MAX_CHANGES {
            match self.new_files(&dirs) {
                Ok((new, whole)) => {
                    files.extend(new);
                    is_all &= whole;
                }
                // If git cannot list the files, list the directories: guard only shows this list, and decides nothing
                // by it.
                Err(_) => {
                    files.extend(dirs);
                    is_all = false;
                }
            }
            is_all &= files.len() <= MAX_CHANGES;
            files.truncate(MAX_CHANGES);
        }
        (files, is_all)
    }

    fn new_files(&self, dirs: &[Change]) -> Result<(Vec<Change>, bool), WorkspaceError> {
        let list = self.worktree_git("ls-files", false)?.args(["--others", "--exclude-standard", "-z", "--"]);
        let list = list.env("GIT_LITERAL_PATHSPECS", "1");
        let list = list.args(dirs.iter().take(MAX_CHANGES).map(|(path, _)| path));
        let list = list.timeout(FIRST_TIMEOUT).max_output(MAX_LISTED_BYTES);
        let (listed, whole) = list.start().and_then(Running::read_partial)?;
        let end = listed.iter().rposition(|byte| *byte == 0).unwrap_or(0);
        let new = listed[..end].split(|byte| *byte == 0).filter(|path| !path.is_empty());
        Ok((new.map(|path| (PathBuf::from(OsStr::from_bytes(path)), Changed::Created)).collect(), whole))
    }

    /// Runs a git call that reads ignore files. If it takes too long, moves FIFOs whose names begin with `.git` out
    /// of the worktree and tries again: git blocks forever if an agent replaced an ignore file by a FIFO.
    pub(crate) fn run_moving_fifos(
        &self,
        call: impl Fn() -> Result<Git, WorkspaceError>,
    ) -> Result<GitOutput, WorkspaceError> {
        match call()?.timeout(FIRST_TIMEOUT).output() {
            Err(GitError::TimedOut { .. }) => {}
            answered => return Ok(answered?),
        }
        let moved = self.move_fifos(&self.record.worktree);
        at("search for FIFOs in", &self.record.worktree, moved)?;
        Ok(call()?.timeout(RETRY_TIMEOUT).output()?)
    }

    fn move_fifos(&self, dir: &Path) -> io::Result<()> {
        let mut dirs = vec![dir.to_path_buf()];
        while let Some(dir) = dirs.pop() {
            // Skip unreadable directories: git cannot read anything in them either.
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_dir() {
                    dirs.push(entry.path());
                } else if !kind.is_file()
                    && !kind.is_symlink()
                    && entry.file_name().as_bytes().starts_with(b".git")
                {
                    gitfile::move_foreign(&entry.path(), &self.run_folder)?;
                }
            }
        }
        Ok(())
    }

    /// True if the uncommitted change at `path` may have been made after the time `since`. Always true if guard
    /// created the worktree for this run, because only an older worktree can contain older changes.
    pub fn may_be_since(&self, path: &Path, change: Changed, since: SystemTime) -> bool {
        if !self.record.here {
            return true;
        }
        let place = self.record.worktree.join(path);
        // A deleted file has no ctime any more, but its deletion changed the ctime of its directory: begin there.
        let mut witnesses = place.ancestors().skip(usize::from(change == Changed::Deleted));
        witnesses.find(|path| path.symlink_metadata().is_ok()).is_none_or(|path| changed_since(path, since))
    }
}

/// True if the content or the metadata of a file may have changed after the time `since`.
pub(crate) fn changed_since(path: &Path, since: SystemTime) -> bool {
    // The clocks of file systems are coarse: a file can appear slightly older than it is.
    let since = since.checked_sub(Duration::from_millis(10)).unwrap_or(since);
    path.symlink_metadata().map_or(true, |data| {
        let changed = Duration::new(data.ctime().max(0) as u64, data.ctime_nsec() as u32);
        SystemTime::UNIX_EPOCH + changed >= since
    })
}

/// Parses one entry of `git status --porcelain -z`; `None` if the entry is too short.
fn entry(line: &[u8]) -> Option<Change> {
    let (codes, path) = (line.get(..2)?, line.get(3..)?);
    let change = match codes {
        b"??" | b"A " | b"AM" => Changed::Created,
        [_, b'D'] | [b'D', b' '] => Changed::Deleted,
        _ => Changed::Modified,
    };
    Some((PathBuf::from(OsStr::from_bytes(path)), change))
}

/// Returns the first component of each path that git could not read, according to its error messages.
pub(crate) fn unreadable_dirs(message: &str) -> Vec<PathBuf> {
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
    use super::{entry, merged, unreadable_dirs};
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
        assert_eq!(unreadable_dirs(said), [Path::new("a"), Path::new("c")]);
        assert_eq!(unreadable_dirs("warning: could not open directory '../x/'"), Vec::<PathBuf>::new());
    }
}
