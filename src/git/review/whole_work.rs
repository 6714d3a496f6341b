//! Reads the whole work on a run's branch as one tree: all commits that the user's branch does not have, however many
//! runs made them, and the uncommitted changes in the worktree.
//!
//! The agent may have written every file in the worktree, so git reads these files only in a jail and ignores their
//! attributes. This module writes only git objects, and files in a temporary directory of this process.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::git::dispose::uncommitted::{RETRY_TIMEOUT, unreadable_dirs};
use crate::git::dispose::{gitlinks, new_gitlink_directories};
use crate::git::plumbing::command::{Git, Trust, program};
use crate::git::plumbing::gitfile;
use crate::git::plumbing::jail::{Bounds, Jail};
use crate::git::plumbing::jailed_worktree::JailedWorktree;
use crate::git::plumbing::outcome::GitError;
use crate::git::plumbing::stderr_messages::GitMessage;
use crate::git::review::hidden_files::{HiddenFiles, add_hidden, zero_separated};
use crate::git::review::review_base::ReviewBase;
use crate::git::task_branch::line;
use crate::git::workspace::run_record::{Record, State};
use crate::git::{WorkspaceError, at};
use crate::sys::remove_tree::remove_tree;

const MAX_PATCH_BYTES: usize = 256 << 20;
/// Maximum size of a list of paths from git, in bytes.
const MAX_LIST_BYTES: usize = 256 << 20;
/// Maximum number of paths that guard leaves out of the whole work: nested repositories, and files beyond
/// [`MAX_UNCOMMITTED_BYTES`]. guard refuses a worktree with more of them.
const MAX_LEFT_OUT: usize = 1_000;
/// Maximum size of all uncommitted files together that guard reads, in bytes. git reads every byte of a sparse file,
/// which can be larger than any disk.
const MAX_UNCOMMITTED_BYTES: u64 = 1 << 30;
/// Timeout for git to list the files: git blocks forever if an ignore file is a FIFO.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReviewStart<'a> {
    /// Where the run's branch left the history of this commit, which the user has checked out; for `None`, that of the
    /// `HEAD` of the repository's main working tree. The review then covers everything that `guard apply` would bring.
    Fork(Option<&'a str>),
    /// Where the run began, even if earlier runs worked on the same branch.
    Run,
}

/// The whole work on a run's branch: its commits and the uncommitted changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeWork {
    /// The commit with which the work is compared.
    pub base: String,
    /// The commit whose history is not part of the work: the commit that the user has checked out, or the base.
    pub known: String,
    /// The current commit of the run's branch. The user may have added commits after the run.
    pub tip: String,
    /// A revision whose tree contains the whole work. If the run has no uncommitted changes, this is the tip.
    pub tree: String,
    /// The number of commits on the branch that are not in the history of `known`.
    pub commits: usize,
    /// The paths of files in the worktree that are new, changed or deleted compared with the tip.
    pub uncommitted: Vec<PathBuf>,
    /// Repositories in the worktree that are not submodules. The tree of the whole work does not contain them.
    pub nested: Vec<PathBuf>,
    /// The largest uncommitted files, if all of them together are larger than 1 GiB. The tree of the whole work does not
    /// contain them.
    pub too_large: Vec<PathBuf>,
    /// The uncommitted files that ignore files of the run hide from git, although the ignore files of the base do not.
    pub hidden: Vec<PathBuf>,
    /// Top-level directories or files that git cannot read completely. The tree of the whole work may lack files in
    /// them.
    pub unreadable: Vec<PathBuf>,
}

/// A file that the run's work changes, with the number of changed lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedFile {
    pub path: PathBuf,
    /// The number of added and deleted lines; `None` for a binary file.
    pub lines: Option<(u64, u64)>,
}

/// Reads the work of a run. Needs no lock, because guard replaces a workspace's record atomically.
pub struct WorkReader {
    pub(crate) record: Record,
    /// A temporary directory of this process for an index and objects. Dropping the reader removes it.
    scratch: PathBuf,
}

impl Drop for WorkReader {
    fn drop(&mut self) {
        let _ = remove_tree(&self.scratch);
    }
}

/// Splits a list of paths that git printed, separated by NUL bytes.
pub(crate) fn split_paths(output: &[u8]) -> impl Iterator<Item = PathBuf> + '_ {
    let parts = output.split(|byte| *byte == 0).filter(|part| !part.is_empty());
    parts.map(|part| PathBuf::from(OsStr::from_bytes(part)))
}

impl WorkReader {
    /// Creates a reader for the run whose directory is `run_folder`. The reader changes nothing in the repository.
    pub fn open(run_folder: &Path) -> Result<Self, WorkspaceError> {
        Self::new(Record::read(run_folder)?, run_folder)
    }

    pub(crate) fn new(record: Record, run_folder: &Path) -> Result<Self, WorkspaceError> {
        if record.state == State::Removed {
            let run = &record.run_id;
            return Err(match has_saved_work(&record) {
                Ok(false) => WorkspaceError::refused(
                    format!("the worktree of the run {run} was removed, and no work of the run is saved"),
                    format!(
                        "the run left no work, or its work was applied or deleted; `guard log {run}` shows what \
                         the run did"
                    ),
                ),
                Ok(true) | Err(_) => WorkspaceError::refused(
                    format!("the worktree of the run {run} was removed"),
                    "`guard restore --list` shows what is saved of it",
                ),
            });
        }
        if record.admin_dir.as_os_str().is_empty() {
            return Err(WorkspaceError::refused(
                format!("the run {} has no worktree yet", record.run_id),
                "wait until the run has started, or remove what is left of it: guard worktree clean",
            ));
        }
        let scratch = run_folder.join(format!("reading-{}", std::process::id()));
        at("clear", &scratch, remove_tree(&scratch))?;
        at("create", &scratch, fs::create_dir_all(scratch.join("objects")))?;
        Ok(Self { record, scratch })
    }

    /// Returns the directory for the objects that this reader makes. Nobody has checked them.
    pub(crate) fn objects(&self) -> PathBuf {
        self.scratch.join("objects")
    }

    /// Makes a git call write new objects to `scratch`, and read objects there and in the repository.
    fn with_objects(&self, git: Git) -> Git {
        let others: Vec<&[u8]> = self.record.objects.iter().map(|path| path.as_os_str().as_bytes()).collect();
        git.env("GIT_OBJECT_DIRECTORY", self.objects())
            .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", OsStr::from_bytes(&others.join(&b':')))
    }

    /// Builds a jailed (sandboxed) git call that works on the repository only and does not read the worktree. If git
    /// starts merge drivers, they run in the same jail.
    pub(crate) fn git(&self, verb: &str) -> Result<Git, WorkspaceError> {
        let record = &self.record;
        let mut read: Vec<&Path> = record.objects.iter().map(PathBuf::as_path).collect();
        read.push(&record.common_dir);
        let write: Vec<&Path> = vec![&self.scratch];
        let bounds = Bounds { cpu_seconds: 600, memory: 4 << 30, file: libc::RLIM_INFINITY };
        let jail = Jail::new(program()?, &read, &write, false, bounds)?;
        let git = Git::new(Trust::Neutral, verb)?.git_dir(&record.common_dir).jailed(jail);
        Ok(self.with_objects(git.current_dir(&self.scratch).env("GIT_NO_REPLACE_OBJECTS", "1")))
    }

    /// Builds a jailed (sandboxed) git call on the worktree that uses a copy of the worktree's index. git uses the
    /// attributes in the commit `base`, from which the review starts, because no agent wrote that commit.
    fn tree_git(&self, base: &str, verb: &str) -> Result<Git, WorkspaceError> {
        let record = &self.record;
        let tree = JailedWorktree {
            common_dir: &record.common_dir,
            admin_dir: &record.admin_dir,
            worktree: &record.worktree,
            objects: &record.objects,
            object_format: &record.object_format,
            excludes: &record.excludes,
            scratch: &self.scratch,
        };
        let git = tree.git(verb, false)?.env("GIT_ATTR_SOURCE", base);
        Ok(self.with_objects(git.env("GIT_INDEX_FILE", self.index()).timeout(RETRY_TIMEOUT)))
    }

    /// Returns the path of the copy of the worktree's index. After [`Self::read`] this index contains the whole work.
    pub(crate) fn index(&self) -> PathBuf {
        self.scratch.join("index")
    }

    /// Returns the current commit of the run's branch. Fails if the branch no longer exists.
    fn tip(&self) -> Result<String, WorkspaceError> {
        let branch = &self.record.branch;
        let revision = format!("{branch}^{{commit}}");
        let answer =
            self.git("rev-parse")?.args(["--verify", "--quiet", "--end-of-options", &revision]).output()?;
        if answer.status.success() {
            return Ok(line(&answer.output));
        }
        let branch = branch.strip_prefix("refs/heads/").unwrap_or(branch);
        Err(WorkspaceError::refused(
            format!("the branch {branch} of the run no longer exists"),
            format!("recreate it at its last known commit: git branch {branch} {}", self.record.tip),
        ))
    }

    /// Reads the commits and the uncommitted changes on the run's branch. If the worktree or its index is missing, reads
    /// only the commits.
    pub fn read(&self, start: ReviewStart<'_>) -> Result<WholeWork, WorkspaceError> {
        let tip = self.tip()?;
        let target = match start {
            ReviewStart::Fork(target) => target,
            ReviewStart::Run => Some(self.record.base.as_str()),
        };
        let base = ReviewBase::find(&|verb| self.git(verb), &self.record, target, &tip)?;
        let count = self.git("rev-list")?.args(["--count", &format!("{}..{tip}", base.known), "--"]).run()?;
        let mut work = WholeWork {
            base: base.commit,
            known: base.known,
            tree: tip.clone(),
            tip,
            commits: line(&count).parse().unwrap_or(0),
            uncommitted: Vec::new(),
            nested: Vec::new(),
            too_large: Vec::new(),
            hidden: Vec::new(),
            unreadable: Vec::new(),
        };
        let index = self.record.admin_dir.join("index");
        let is_there = self.record.worktree.symlink_metadata().is_ok_and(|data| data.is_dir());
        if !is_there || !index.is_file() {
            return Ok(work);
        }
        at("copy", &index, gitfile::copy_index(&index, &self.index()))?;
        self.add_all(&mut work)?;
        let shape = ["--cached", "-z", "--name-only", "--no-renames", &work.tip];
        let differing =
            self.tree_git(&work.base, "diff-index")?.args(shape).max_output(MAX_LIST_BYTES).run()?;
        work.uncommitted = split_paths(&differing).collect();
        if !work.uncommitted.is_empty() {
            work.tree = line(&self.tree_git(&work.base, "write-tree")?.run()?);
        }
        Ok(work)
    }

    /// Adds the files in the worktree that git does not ignore, and those that runs hid from it, to the copy of the
    /// index. Leaves out nested repositories and the largest files beyond 1 GiB, and records them in `work`; fails if
    /// there are more than `MAX_LEFT_OUT` of them.
    fn add_all(&self, work: &mut WholeWork) -> Result<(), WorkspaceError> {
        let list = ["--others", "--modified", "--exclude-standard", "-z"];
        let call = self
            .tree_git(&work.base, "ls-files")?
            .args(list)
            .timeout(LIST_TIMEOUT)
            .max_output(MAX_LIST_BYTES);
        let listed = call.output()?;
        if !listed.status.success() {
            return Err(failed("ls-files", listed.code(), listed.message));
        }
        work.unreadable = unreadable_dirs(&listed.message);
        if work.unreadable.is_empty() && GitMessage::PermissionDenied.is_in(&listed.message) {
            work.unreadable.push(PathBuf::from("."));
        }
        let hidden = HiddenFiles::find(
            &self.record,
            self.scratch.parent().unwrap_or(&self.scratch),
            &self.scratch,
            |verb| self.tree_git(&work.base, verb),
            || work.base.clone(),
        )?;
        work.unreadable.extend(hidden.unreadable);
        // Skip the links to the user's dependencies, which guard makes in the worktree during a run.
        let links: Vec<&Path> =
            self.record.brought.iter().filter(|one| one.is_link).map(|one| one.path.as_path()).collect();
        let is_nested = |path: &PathBuf| path.as_os_str().as_bytes().ends_with(b"/");
        let (nested, files): (Vec<PathBuf>, Vec<PathBuf>) = split_paths(&listed.output)
            .filter(|path| !links.contains(&path.as_path()))
            .chain(hidden.files.iter().cloned())
            .partition(is_nested);
        let size = |path: &PathBuf| {
            let data = self.record.worktree.join(path).symlink_metadata();
            data.map_or(0, |data| if data.is_file() { data.len() } else { 0 })
        };
        let (files, too_large) =
            fitting(files.into_iter().map(|path| (size(&path), path)), MAX_UNCOMMITTED_BYTES);
        if nested.len() + too_large.len() > MAX_LEFT_OUT {
            let example = nested.iter().chain(&too_large).next().map(|path| path.display().to_string());
            return Err(WorkspaceError::refused(
                format!(
                    "the worktree contains more than {MAX_LEFT_OUT} items that guard cannot commit (git repositories, and uncommitted files that are together larger than 1 GiB), such as {}",
                    crate::text::terminal_text::escape(&example.unwrap_or_default())
                ),
                "remove or ignore some of them; `guard worktree path RUN` prints the path of the worktree",
            ));
        }
        (work.nested, work.too_large) = (nested, too_large);
        let git = |verb: &str| self.tree_git(&work.base, verb);
        let gitlinks = gitlinks(git("ls-files")?)?;
        work.nested.extend(new_gitlink_directories(&self.record, gitlinks, git)?);
        if files.is_empty() {
            return Ok(());
        }
        let fit: HashSet<&PathBuf> = files.iter().collect();
        work.hidden = hidden.files.into_iter().filter(|path| fit.contains(path)).collect();
        let left_out = work.nested.iter().chain(&work.too_large).map(PathBuf::as_path).chain(links);
        let left_out = left_out.map(|path| {
            let bytes = path.as_os_str().as_bytes();
            let mut pathspec = OsString::from(":(top,exclude,literal)");
            pathspec.push(OsStr::from_bytes(bytes.strip_suffix(b"/").unwrap_or(bytes)));
            pathspec
        });
        let all = self.tree_git(&work.base, "add")?.args(["--all", "--", "."]).args(left_out);
        let mut calls = vec![all];
        if !work.hidden.is_empty() {
            calls.push(add_hidden(self.tree_git(&work.base, "add")?, &work.hidden));
        }
        for call in calls {
            let added = call.output()?;
            if !added.status.success() || GitMessage::PermissionDenied.is_in(&added.message) {
                return Err(failed("add", added.code(), added.message));
            }
        }
        Ok(())
    }

    /// Returns the first uncommitted path whose content a filter such as git-lfs must convert before a commit; `None`
    /// if there is none.
    pub(crate) fn first_filtered(&self, work: &WholeWork) -> Result<Option<PathBuf>, WorkspaceError> {
        let input = zero_separated(&work.uncommitted);
        let output =
            self.tree_git(&work.base, "check-attr")?.args(["-z", "--stdin", "filter"]).input(input).run()?;
        let fields: Vec<&[u8]> = output.split(|byte| *byte == 0).collect();
        let mut found = fields.chunks_exact(3).filter(|one| one[2] != b"unspecified" && one[2] != b"unset");
        Ok(found.next().map(|one| PathBuf::from(OsStr::from_bytes(one[0]))))
    }

    fn diff_call(&self, work: &WholeWork, shape: &[&str], paths: &[OsString]) -> Result<Git, WorkspaceError> {
        // Show which commit a submodule points to, but never enter the submodule.
        let submodules = ["--ignore-submodules=none", "--submodule=short"];
        let git = self.git("diff")?.args(["--no-ext-diff", "--no-textconv", "--no-color"]).args(submodules);
        let git = git.args(shape).args([&work.base, &work.tree]).arg("--").args(paths);
        Ok(git.max_output(MAX_PATCH_BYTES))
    }

    /// Returns the whole work as a patch or, with `stat`, as a summary. If `paths` is not empty, includes only files
    /// that match one of these pathspecs. Fails if the output is larger than 256 MiB.
    pub fn diff(&self, work: &WholeWork, stat: bool, paths: &[OsString]) -> Result<Vec<u8>, WorkspaceError> {
        let shape = if stat { "--stat" } else { "--patch" };
        match self.diff_call(work, &[shape], paths)?.run() {
            Err(GitError::TooMuch { .. }) => Err(WorkspaceError::refused(
                format!("the diff is larger than {} MiB", MAX_PATCH_BYTES >> 20),
                "`guard diff --stat` shows the files; name some of them: guard diff RUN -- PATH",
            )),
            output => Ok(output?),
        }
    }

    /// Returns the files that the whole work changes, with the number of changed lines. If `paths` is not empty,
    /// includes only files that match one of these pathspecs.
    pub fn changed_files(
        &self,
        work: &WholeWork,
        paths: &[OsString],
    ) -> Result<Vec<ChangedFile>, WorkspaceError> {
        let output = self.diff_call(work, &["--numstat", "-z", "--no-renames"], paths)?.run()?;
        Ok(output.split(|byte| *byte == 0).filter_map(changed_file).collect())
    }

    /// Returns the ids and subjects of the work's commits, oldest first. If there are more than `max`,
    /// returns only the newest.
    pub fn commits(&self, work: &WholeWork, max: usize) -> Result<Vec<(String, String)>, WorkspaceError> {
        let range = format!("{}..{}", work.known, work.tip);
        let git = self.git("log")?.args(["--reverse", "-z", "--format=%H %s", &format!("--max-count={max}")]);
        let output = git.args([&range, "--"]).max_output(MAX_LIST_BYTES).run()?;
        let commit = |text: &[u8]| {
            let text = String::from_utf8_lossy(text);
            text.split_once(' ').map(|(id, subject)| (id.to_string(), subject.to_string()))
        };
        Ok(output.split(|byte| *byte == 0).filter_map(commit).collect())
    }
}

/// Splits files, given with their sizes, into those that are together at most `max` bytes, and the largest ones, which
/// do not fit. Each list is sorted by path.
fn fitting(files: impl Iterator<Item = (u64, PathBuf)>, max: u64) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let mut files: Vec<(u64, PathBuf)> = files.collect();
    files.sort_unstable();
    let mut sum = 0u64;
    let mut is_in = |size: u64| {
        sum = sum.saturating_add(size);
        sum <= max
    };
    let (fit, rest): (Vec<_>, Vec<_>) = files.into_iter().partition(|(size, _)| is_in(*size));
    let sorted = |files: Vec<(u64, PathBuf)>| {
        let mut paths: Vec<PathBuf> = files.into_iter().map(|(_, path)| path).collect();
        paths.sort_unstable();
        paths
    };
    (sorted(fit), sorted(rest))
}

/// True if the user's repository contains work of the run that guard saved when it removed the run's worktree.
fn has_saved_work(record: &Record) -> Result<bool, WorkspaceError> {
    let git = Git::new(Trust::Neutral, "for-each-ref")?.git_dir(&record.common_dir);
    let refs = format!("refs/guard/{}/", record.run_id);
    let output =
        git.current_dir(&record.common_dir).args(["--count=1", "--format=%(refname)", &refs]).run()?;
    Ok(!output.is_empty())
}

/// Parses an entry of `git diff --numstat -z`: the number of added lines, the number of deleted lines, and the path.
/// Returns `None` if the entry has fewer than three fields.
fn changed_file(entry: &[u8]) -> Option<ChangedFile> {
    let mut parts = entry.splitn(3, |byte| *byte == b'\t');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
    let lines = (number(), number());
    let path = PathBuf::from(OsStr::from_bytes(parts.next()?));
    Some(ChangedFile { path, lines: lines.0.zip(lines.1) })
}

fn failed(verb: &str, code: i32, message: String) -> WorkspaceError {
    GitError::Failed { verb: verb.to_string(), code, message }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_files_do_not_fit() {
        let fit = |files: &[(u64, &str)], max: u64| {
            let (fit, rest) = fitting(files.iter().map(|(size, path)| (*size, PathBuf::from(path))), max);
            let text = |paths: Vec<PathBuf>| {
                paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
            };
            (text(fit), text(rest))
        };
        let of = |fit: &str, rest: &str| (fit.to_string(), rest.to_string());
        assert_eq!(fit(&[(3, "c"), (1, "a"), (2, "b")], 6), of("a b c", ""));
        assert_eq!(fit(&[(3, "b"), (1, "c"), (2, "a")], 5), of("a c", "b"));
        assert_eq!(fit(&[(7, "a"), (0, "b")], 5), of("b", "a"));
        assert_eq!(fit(&[(u64::MAX, "a"), (u64::MAX, "b"), (1, "c")], 5), of("c", "a b"));
        assert_eq!(fit(&[], 0), of("", ""));
    }

    #[test]
    fn entries_of_numstat() {
        let file = |lines| Some(ChangedFile { path: PathBuf::from("a\tb\n"), lines });
        assert_eq!(changed_file(b"1\t20\ta\tb\n"), file(Some((1, 20))));
        assert_eq!(changed_file(b"-\t-\ta\tb\n"), file(None));
        assert_eq!(changed_file(b""), None);
        assert_eq!(changed_file(b"1\t2"), None);
    }
}
