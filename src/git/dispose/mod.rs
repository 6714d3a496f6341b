//! Disposes of a run's workspace after the agent has ended: gives the worktree back to the user, or removes it.
//!
//! The agent may have written every file in the worktree. Therefore git reads the worktree only in a jail,
//! with an explicitly named git directory, and without the worktree's attributes, which could choose programs
//! to run. guard never deletes work that exists nowhere else: it saves the work under `refs/guard/` or in the
//! run's directory.
pub(crate) mod recover;
pub(crate) mod uncommitted;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::nested_repositories::{RepositoryKind, SearchBounds, search};
use super::receive::Limits;
use super::receive::lfs;
use super::receive::tree_size;
use super::receive::tree_size::TreeSizeError;
use super::undo::index_gitlinks;
use super::{WorkspaceError, at};
use crate::git::plumbing::command::Git;
use crate::git::plumbing::jailed_worktree::JailedWorktree;
use crate::git::plumbing::outcome::GitError;
use crate::git::plumbing::repository::is_id;
use crate::git::plumbing::{gitfile, refs};
use crate::git::review::hidden_files::add_hidden;
use crate::git::workspace::create::Workspace;
use crate::git::workspace::run_record::{Record, State};
use crate::git::workspace::{extra_files, path_text, slug};
use crate::sys::remove_tree::remove_tree;
use uncommitted::{Changed, RETRY_TIMEOUT, unreadable_dirs};

/// What guard does with the worktree and the branch of a run after the agent has ended. guard always keeps a worktree
/// that existed before the run (`--here`), and its branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeepPolicy {
    Keep,
    /// Remove the worktree and the branch, and save new work under `refs/guard/` or in the run's directory.
    Discard,
    /// Remove the worktree and the branch if they contain no new work; otherwise keep both.
    #[default]
    Auto,
}

/// The result of disposing of a workspace: the work that guard found in it, and what guard did with the work.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DisposeReport {
    /// True if the worktree and the branch still exist after guard has disposed of the workspace.
    pub kept: bool,
    /// True if guard has received commits that the agent made on the branch.
    pub has_commits: bool,
    /// Paths of at most a hundred files with uncommitted changes (new, changed or deleted files), and of all
    /// directories that git cannot read. A new directory counts as one path.
    pub uncommitted: Vec<PathBuf>,
    /// Files in the worktree that differ from the tip of the branch; at most a thousand.
    pub changes: Vec<(PathBuf, Changed)>,
    /// True if `changes` lists all changed files.
    pub all_changes: bool,
    /// True if guard kept the run's quarantine repository (its private git directory), because it has commits, other
    /// refs, a stash or LFS objects that exist nowhere else.
    pub unreceived: bool,
    /// The refs under which guard saved the work that it removed.
    pub saved: Vec<String>,
    /// Files and directories that guard moved out of the worktree, or the worktree itself: (old path, new path).
    pub moved: Vec<(PathBuf, PathBuf)>,
}

/// Maximum size of a file that guard commits when it saves uncommitted work, in bytes. guard moves a worktree with a
/// larger file to the run's directory instead.
const MAX_SAVED_FILE_BYTES: u64 = 1 << 30;
/// Maximum size of the pack with the uncommitted work that guard saves, in bytes.
const MAX_SAVED_BYTES: u64 = 4 << 30;

impl Workspace {
    /// Makes the worktree's `.git` file point to the user's repository again, or removes the worktree, as `disposal`
    /// says. If an earlier creation or removal of the workspace was interrupted, removes the workspace, whatever
    /// `disposal` says. The agent must have ended. If the call is interrupted, it can be repeated.
    pub fn dispose(&mut self, disposal: KeepPolicy) -> Result<DisposeReport, WorkspaceError> {
        match self.record.state {
            State::Opening => {
                self.undo()?;
                return Ok(DisposeReport::default());
            }
            State::Removed => return Ok(DisposeReport::default()),
            State::Removing => {
                let mut report = DisposeReport::default();
                if self.is_replaced() {
                    self.set_state(State::Removed)?;
                } else {
                    self.remove(&mut report)?;
                }
                return Ok(report);
            }
            _ => {}
        }
        let mut report = DisposeReport { kept: true, ..DisposeReport::default() };
        let is_there = self.record.worktree.symlink_metadata().is_ok_and(|data| data.is_dir());
        let mut is_compared = true;
        if is_there {
            let foreign = self.point_at_repository()?;
            report.moved.extend(foreign.map(|now| (self.record.worktree.join(".git"), now)));
            match self.compare_with_tip(&mut report) {
                // The work may be too large for a git index. guard can then still move the whole worktree to the
                // run's directory.
                Err(error)
                    if disposal == KeepPolicy::Discard && !self.record.here && is_size_error(&error) =>
                {
                    is_compared = false;
                }
                compared => compared?,
            }
        }
        report.has_commits = self.record.tip != self.record.base;
        report.unreceived = self.has_unreceived();
        let is_new = report.has_commits
            || report.unreceived
            || !report.uncommitted.is_empty()
            || self.has_other_checkout();
        let is_removed = match disposal {
            KeepPolicy::Keep => false,
            KeepPolicy::Discard => true,
            KeepPolicy::Auto => !is_new && self.real_tip()?.as_deref() == Some(&self.record.base),
        };
        if is_removed && !self.record.here {
            if !is_compared {
                self.move_worktree_away(&mut report)?;
            } else if is_there && !report.uncommitted.is_empty() {
                self.save_uncommitted(&mut report)?;
            }
            self.mark_as_own()?;
            self.set_state(State::Removing)?;
            self.remove(&mut report)?;
        } else {
            self.unlock()?;
            self.set_state(State::Kept)?;
        }
        if !report.unreceived {
            self.drop_quarantine()?;
        }
        Ok(report)
    }

    /// True if [`Self::dispose`] with [`KeepPolicy::Auto`] would keep the workspace: it has new commits or uncommitted
    /// work, its branch has moved, the user has checked out something else in its worktree, or the worktree existed
    /// before the run (`--here`). Changes nothing.
    pub fn holds_new_work(&self) -> Result<bool, WorkspaceError> {
        if matches!(self.record.state, State::Opening | State::Removing | State::Removed) {
            return Ok(false);
        }
        if self.record.here
            || self.record.tip != self.record.base
            || self.has_unreceived()
            || self.has_other_checkout()
        {
            return Ok(true);
        }
        let is_there = self.record.worktree.symlink_metadata().is_ok_and(|data| data.is_dir());
        let is_changed = is_there && !self.uncommitted()?.is_empty();
        Ok(is_changed || self.real_tip()?.as_deref() != Some(&self.record.base))
    }

    /// Removes the directory of a run that never began, if guard has already removed the workspace or given it back
    /// to the user. Keeps a directory that contains anything besides the workspace's record, such as a transcript.
    pub fn forget(&self) {
        let is_over =
            self.record.state == State::Removed || self.record.here && self.record.state == State::Kept;
        let mut entries = fs::read_dir(&self.run_folder).into_iter().flatten().flatten();
        if !is_over || entries.any(|entry| !Record::FILES.iter().any(|file| entry.file_name() == **file)) {
            return;
        }
        Record::FILES.iter().for_each(|file| drop(fs::remove_file(self.run_folder.join(file))));
        let _ = fs::remove_dir(&self.run_folder);
    }

    /// Finds the differences between the worktree and the tip of the run's branch. If guard received commits and the
    /// worktree is still at that tip, also updates the worktree's index to it. Before that, moves each submodule's
    /// `.git` that the agent created or changed out of the worktree, and removes the files that guard copied into the
    /// worktree and that have not changed.
    fn compare_with_tip(&self, report: &mut DisposeReport) -> Result<(), WorkspaceError> {
        self.update_index_copy()?;
        let gitlinks = self.submodules(None)?;
        self.move_nested_repositories(&gitlinks, report)?;
        self.remove_extra_files()?;
        let work = self.find_uncommitted(true)?;
        (report.uncommitted, report.changes, report.all_changes) =
            (work.uncommitted, work.changes, work.is_all);
        report
            .uncommitted
            .extend(new_gitlink_directories(&self.record, gitlinks, |verb| self.worktree_git(verb, false))?);
        self.install_index()
    }

    fn move_worktree_away(&self, report: &mut DisposeReport) -> Result<(), WorkspaceError> {
        let worktree = &self.record.worktree;
        let now = at("move", worktree, gitfile::move_foreign(worktree, &self.run_folder))?;
        report.moved.push((worktree.clone(), now));
        Ok(())
    }

    /// Returns the prefix of the names of all refs under which guard saves work of this run.
    pub(crate) fn saved_refs_prefix(&self) -> String {
        format!("refs/guard/{}", slug::slug(&self.record.run_id).unwrap_or_else(|| "run".to_string()))
    }

    /// True if the quarantine repository (the run's private git directory) has commits on the run's branch, other
    /// refs, a stash or LFS objects that exist nowhere else, or if guard cannot read its refs.
    fn has_unreceived(&self) -> bool {
        let git = self.quarantine();
        if git.symlink_metadata().is_err() {
            return false;
        }
        let (branch, format) = (&self.record.branch, &self.record.object_format);
        let same =
            refs::read_ref(&git, &self.refs_before(), branch, format).is_ok_and(|tip| tip == self.record.tip);
        let others = refs::changed_refs(&git, &self.refs_before(), branch, format);
        lfs::has_unreceived(&git, &self.record.common_dir)
            || !same
            || !others.is_ok_and(|others| !others.has_new_value)
    }

    /// Removes the quarantine repository (the run's private git directory) and the files that guard made for it.
    /// Keeps the workspace's record, and the files that guard moved out of the worktree.
    fn drop_quarantine(&self) -> Result<(), WorkspaceError> {
        // Rename the quarantine before deleting it: a half-deleted quarantine would look as if the agent had damaged
        // it.
        let (git, leaving) = (self.quarantine(), self.run_folder.join("leaving"));
        at("remove", &leaving, remove_tree(&leaving))?;
        if git.symlink_metadata().is_ok() {
            at("move", &git, fs::rename(&git, &leaving))?;
        }
        for name in ["leaving", "sender", "hooks", "gitfile", "refs-before", "scratch"] {
            let path = self.run_folder.join(name);
            at("remove", &path, remove_tree(&path))?;
        }
        Ok(())
    }

    /// Builds a jailed (sandboxed) git call on the worktree, with the copy of the worktree's index that this process
    /// made. git ignores the attribute files in the worktree. With `writes_objects`, git may store objects in the
    /// user's repository.
    pub(crate) fn worktree_git(&self, verb: &str, writes_objects: bool) -> Result<Git, WorkspaceError> {
        let record = &self.record;
        let scratch = self.scratch();
        let tree = JailedWorktree {
            common_dir: &record.common_dir,
            admin_dir: &record.admin_dir,
            worktree: &record.worktree,
            objects: &record.objects,
            object_format: &record.object_format,
            excludes: &record.excludes,
            scratch: &scratch,
        };
        Ok(tree.git(verb, writes_objects)?.env("GIT_INDEX_FILE", self.index()))
    }

    /// Returns the directory that jailed (sandboxed) git calls may write to. Each guard process uses its own
    /// directory, because a guard that was killed may have left a lock in its directory, or a git process that still
    /// writes there.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.run_folder.join("scratch").join(std::process::id().to_string())
    }

    /// Returns the path of the copy of the worktree's index that this process makes.
    fn index(&self) -> PathBuf {
        self.scratch().join("index")
    }

    /// Copies the worktree's index, and updates the copy to the entries of the branch's tip. Does not touch the
    /// files in the worktree. Unchanged entries keep their cached stat data.
    fn update_index_copy(&self) -> Result<(), WorkspaceError> {
        self.copy_index()?;
        if self.record.tip != self.record.base {
            let tip = [self.record.tip.clone()];
            let reader = self.worktree_git("cat-file", false)?.timeout(RETRY_TIMEOUT);
            tree_size::check(reader, &tip, self.max_paths()).map_err(|error| match error {
                TreeSizeError::Git(error) => error.into(),
                other => WorkspaceError::Trees(other),
            })?;
            self.worktree_git("read-tree", false)?.args(["--reset", &self.record.tip]).run()?;
        }
        Ok(())
    }

    pub(crate) fn copy_index(&self) -> Result<(), WorkspaceError> {
        let (from, to) = (self.record.admin_dir.join("index"), self.index());
        at("clear", &self.scratch(), remove_tree(&self.scratch()))?;
        at("create", &self.scratch(), fs::create_dir_all(self.scratch()))?;
        at("copy", &from, gitfile::copy_index(&from, &to))
    }

    /// Replaces the worktree's index with the updated copy that this process made. Leaves the index alone if guard has
    /// received no commits. Also leaves it alone if the user has switched the worktree to another branch or has
    /// committed since: then it belongs to another commit than the copy.
    fn install_index(&self) -> Result<(), WorkspaceError> {
        if self.record.tip == self.record.base || !self.is_worktree_at_tip()? {
            return Ok(());
        }
        self.replace_index(&self.index())
    }

    /// True if the worktree has the run's branch checked out, and the branch is at the commit that guard last received.
    fn is_worktree_at_tip(&self) -> Result<bool, WorkspaceError> {
        let head = self.worktree_git("rev-parse", false)?.args(["HEAD", "--symbolic-full-name", "HEAD"]);
        let answer = head.output()?;
        let expected = format!("{}\n{}\n", self.record.tip, self.record.branch);
        Ok(answer.status.success() && answer.output == expected.as_bytes())
    }

    /// Replaces the worktree's index with the file `new`, while holding git's `index.lock`.
    pub(crate) fn replace_index(&self, new: &Path) -> Result<(), WorkspaceError> {
        let (index, lock) = (self.record.admin_dir.join("index"), self.record.admin_dir.join("index.lock"));
        let write = || -> io::Result<()> {
            let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&lock)?;
            let copied = io::copy(&mut fs::File::open(new)?, &mut file)
                // Keep the modification time, because git compares file times with it: see `gitfile::copy_index`.
                .and_then(|_| file.set_modified(new.metadata()?.modified()?));
            copied.and_then(|()| fs::rename(&lock, &index)).inspect_err(|_| drop(fs::remove_file(&lock)))
        };
        match write() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(WorkspaceError::refused(
                format!(
                    "the index of {} is locked (lock file: {})",
                    self.record.worktree.display(),
                    lock.display()
                ),
                "another git process uses the worktree; when it has finished, run `guard worktree receive` or \
                 `guard apply` again",
            )),
            written => at("write", &index, written),
        }
    }

    /// Returns the paths of the submodules in the file `index`; with `None`, those in the copy of the worktree's
    /// index that this process made.
    fn submodules(&self, index: Option<&Path>) -> Result<Vec<PathBuf>, WorkspaceError> {
        let copy = self.index();
        if let Some(found) = index_gitlinks(index.unwrap_or(&copy), &self.record.object_format) {
            return Ok(found);
        }
        let mut git = self.worktree_git("ls-files", false)?;
        if let Some(index) = index {
            git = git.env("GIT_INDEX_FILE", index);
        }
        gitlinks(git)
    }

    /// Returns the path of each submodule with the content of its `.git` file. Leaves out submodules without a readable
    /// `.git` file. guard calls this method before the agent starts.
    pub(crate) fn submodule_pointers(&self) -> Result<Vec<(String, String)>, WorkspaceError> {
        let mut found = Vec::new();
        self.copy_index()?;
        for path in self.submodules(None)? {
            let file = self.record.worktree.join(&path).join(".git");
            if let Ok(text) = gitfile::read_small(&file, 8192) {
                let text = Path::new(OsStr::from_bytes(&text)).to_path_buf();
                found.push((path_text::text(&path), path_text::text(&text)));
                for repository in nested_in_submodule(&self.record.worktree.join(&path)) {
                    let Ok(below) = repository.strip_prefix(&self.record.worktree) else { continue };
                    let text = gitfile::read_small(&repository, 8192).unwrap_or_default();
                    let text = PathBuf::from(OsStr::from_bytes(&text));
                    found.push((path_text::text(below), path_text::text(&text)));
                }
            }
        }
        Ok(found)
    }

    /// Moves each submodule's `.git` that the agent created or changed out of the worktree, because `git status`
    /// would enter that repository and obey its configuration.
    fn move_nested_repositories(
        &self,
        gitlinks: &[PathBuf],
        report: &mut DisposeReport,
    ) -> Result<(), WorkspaceError> {
        for path in gitlinks {
            if !extra_files::is_inside(path) {
                continue;
            }
            let dir = self.record.worktree.join(path);
            let entry = dir.join(".git");
            // The agent may have removed the owner's permissions. Restore them first, because later steps restore them
            // in the whole worktree, and then git would find a repository that guard has overlooked here.
            at("open", &dir, gitfile::restore_path_access(&self.record.worktree, path))?;
            // Skip a path that leads through a symbolic link: git does not follow the link.
            match dir.canonicalize() {
                Ok(real) if real == dir => {}
                Ok(_) => continue,
                Err(error) if is_missing(&error) => continue,
                Err(error) if is_too_long(&error) => {}
                Err(error) => return at("open", &dir, Err(error)),
            }
            match entry.symlink_metadata() {
                Ok(_) => {}
                Err(error) if is_missing(&error) => continue,
                Err(error) if is_too_long(&error) => {
                    let top = self.record.worktree.join(path.iter().next().unwrap_or_default());
                    if top.symlink_metadata().is_ok_and(|data| data.is_dir()) {
                        let now = at("move", &top, gitfile::move_foreign(&top, &self.run_folder))?;
                        report.moved.push((top, now));
                    }
                    continue;
                }
                Err(error) => return at("inspect", &entry, Err(error)),
            }
            let known = self.record.submodules.iter().find(|(known, _)| *known == path_text::text(path));
            let text = known.and_then(|(_, text)| path_text::parse(text));
            if text.is_some_and(|text| gitfile::has_content(&entry, text.as_os_str().as_bytes())) {
                self.move_repositories_in_submodule(path, report)?;
                continue;
            }
            let now = at("move", &entry, gitfile::move_foreign(&entry, &self.run_folder))?;
            report.moved.push((entry, now));
        }
        Ok(())
    }

    /// Moves each `.git` below the user's submodule `path` that the agent created or changed out of the worktree: git
    /// enters a submodule, and then the submodules in it.
    fn move_repositories_in_submodule(
        &self,
        path: &Path,
        report: &mut DisposeReport,
    ) -> Result<(), WorkspaceError> {
        let dir = self.record.worktree.join(path);
        gitfile::restore_access(&dir);
        for repository in nested_in_submodule(&dir) {
            let below = repository.strip_prefix(&self.record.worktree).map(path_text::text);
            let known = self.record.submodules.iter().find(|(known, _)| below.as_ref() == Ok(known));
            let is_unchanged = known.is_some_and(|(_, text)| {
                // guard records a git directory without content.
                let text = path_text::parse(text).unwrap_or_default();
                text.as_os_str().is_empty() && repository.is_dir()
                    || gitfile::has_content(&repository, text.as_os_str().as_bytes())
            });
            if !is_unchanged {
                let now = at("move", &repository, gitfile::move_foreign(&repository, &self.run_folder))?;
                report.moved.push((repository, now));
            }
        }
        Ok(())
    }

    fn remove_extra_files(&self) -> Result<(), WorkspaceError> {
        let brought = &self.record.brought;
        if brought.is_empty() {
            return Ok(());
        }
        let mut input = Vec::new();
        for one in brought.iter().filter(|one| !one.is_link) {
            input.extend_from_slice(one.path.as_os_str().as_bytes());
            input.push(0);
        }
        let ignored = if input.is_empty() {
            Vec::new()
        } else {
            let call =
                || Ok(self.worktree_git("check-ignore", false)?.args(["--stdin", "-z"]).input(input.clone()));
            self.run_moving_fifos(call)?.output
        };
        let ignored: Vec<&[u8]> = ignored.split(|byte| *byte == 0).collect();
        let is_ignored = |path: &Path| ignored.contains(&path.as_os_str().as_bytes());
        at(
            "remove copied files from",
            &self.record.worktree,
            extra_files::remove_unchanged(&self.record.worktree, brought, is_ignored),
        )
    }

    /// Saves uncommitted work as a commit. If a file is too large for that, if git takes too long, or if git finds a fault
    /// in the objects, moves the worktree to the run's directory.
    fn save_uncommitted(&self, report: &mut DisposeReport) -> Result<(), WorkspaceError> {
        let worktree = &self.record.worktree;
        if !has_larger_file(worktree, MAX_SAVED_FILE_BYTES) {
            match self.commit_uncommitted(report) {
                Err(WorkspaceError::Git(GitError::TimedOut { .. })) => {}
                Ok(false) => {}
                saved => return saved.map(drop),
            }
        }
        self.move_worktree_away(report)
    }

    /// Commits all files that git does not ignore, and makes a ref below `refs/guard/` point to the commit. Moves
    /// nested repositories and directories that git cannot read to the run's directory. Does not change the worktree's
    /// index. Returns false, without a ref, if the commit does not pass the checks of received commits: a branch that
    /// `guard restore` creates has its objects.
    fn commit_uncommitted(&self, report: &mut DisposeReport) -> Result<bool, WorkspaceError> {
        let index = self.scratch().join("work-index");
        at("copy", &index, gitfile::copy_index(&self.index(), &index))?;
        // The objects stay outside the user's repository until git has checked them.
        let objects = self.scratch().join("objects");
        at("create", &objects, fs::create_dir_all(&objects))?;
        let others: Vec<&[u8]> = self.record.objects.iter().map(|path| path.as_os_str().as_bytes()).collect();
        let others = others.join(&b':');
        let with_index = |verb: &str| -> Result<Git, WorkspaceError> {
            let git = self.worktree_git(verb, false)?.env("GIT_INDEX_FILE", &index);
            let git = git.env("GIT_OBJECT_DIRECTORY", &objects);
            Ok(git.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", OsStr::from_bytes(&others)))
        };
        let add = || -> Result<_, WorkspaceError> {
            let call = with_index("add")?.args(["--all", "--ignore-errors", "--", "."]);
            Ok(call.timeout(RETRY_TIMEOUT).output()?)
        };
        let mut added = add()?;
        if !added.message.is_empty() {
            // `git add` complains if the agent has removed the owner's permissions on some files or directories.
            gitfile::restore_access(&self.record.worktree);
            added = add()?;
        }
        if !added.status.success() && added.code() != 1 {
            let (verb, code) = ("add".to_string(), added.code());
            return Err(GitError::Failed { verb, code, message: added.message }.into());
        }
        let hidden = self.hidden_files()?.files;
        if !hidden.is_empty() {
            let call = add_hidden(with_index("add")?, &hidden).arg("--ignore-errors");
            call.timeout(RETRY_TIMEOUT).output()?;
        }
        // git cannot commit a directory that it cannot read, for example because its path is too long.
        for path in unreadable_dirs(&added.message) {
            let dir = self.record.worktree.join(&path);
            if dir.symlink_metadata().is_ok_and(|data| data.is_dir()) {
                let now = at("move", &dir, gitfile::move_foreign(&dir, &self.run_folder))?;
                report.moved.push((dir, now));
            }
        }
        // git refuses nested repositories without commits, and some names.
        let rest = with_index("ls-files")?.args(["--others", "--exclude-standard", "-z"]).run()?;
        let rest = rest.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        let mut left_out: Vec<PathBuf> = rest
            .map(|path| PathBuf::from(OsStr::from_bytes(path.strip_suffix(b"/").unwrap_or(path))))
            .filter(|path| !self.record.brought.iter().any(|one| one.is_link && one.path == *path))
            .collect();
        let known = self.submodules(None)?;
        let git = |verb: &str| self.worktree_git(verb, false);
        left_out.extend(new_gitlink_directories(&self.record, known.clone(), git)?);
        for path in left_out {
            let place = self.record.worktree.join(&path);
            if extra_files::is_inside(&path) && place.symlink_metadata().is_ok() {
                let now = at("move", &place, gitfile::move_foreign(&place, &self.run_folder))?;
                report.moved.push((place, now));
            }
        }
        // git would record only the commit id of a nested repository, so move the whole repository out of the
        // worktree.
        for path in self.submodules(Some(&index))?.into_iter().filter(|path| !known.contains(path)) {
            let dir = self.record.worktree.join(&path);
            if extra_files::is_inside(&path) && dir.canonicalize().is_ok_and(|real| real == dir) {
                let now = at("move", &dir, gitfile::move_foreign(&dir, &self.run_folder))?;
                report.moved.push((dir, now));
            }
        }
        let line = |output: Vec<u8>| String::from_utf8_lossy(&output).trim_end().to_string();
        let tree = line(with_index("write-tree")?.run()?);
        let message = format!("guard: uncommitted work of run {}", self.record.run_id);
        let call = with_index("commit-tree")?.args([&tree, "-p", &self.record.tip, "-m", &message]);
        let commit = line(call.run()?);
        let tip = &self.record.tip;
        let limits = Limits { bytes: MAX_SAVED_BYTES, ..Limits::default() };
        match self.transfer_made(&objects, &commit, [tip, tip], &limits) {
            Ok(()) => {}
            Err(WorkspaceError::Refused { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        let name = format!("{}/work", self.saved_refs_prefix());
        self.real_git("update-ref")?.args(["-m", "guard: keep", &name, &commit]).run()?;
        self.forget_transfer();
        report.saved.push(name);
        Ok(true)
    }

    /// Removes the branch and the worktree, and saves the commits of the branch and of a detached `HEAD` under
    /// `refs/guard/`. Can be repeated if it was interrupted.
    fn remove(&mut self, report: &mut DisposeReport) -> Result<(), WorkspaceError> {
        report.kept = false;
        let tip = self.real_tip()?;
        let mut commands = String::new();
        let mut save = |name: &str, id: &str| {
            let kept = format!("{}/{name}", self.saved_refs_prefix());
            commands.push_str(&format!("update {kept} {id}\n"));
            report.saved.push(kept);
        };
        if let Some(tip) = tip.as_ref().filter(|tip| **tip != self.record.base) {
            save("tip", tip);
        }
        let is_saved = |id: &String| Some(id) == tip.as_ref() || *id == self.record.base;
        let detached = self.worktree_head().filter(|head| is_id(head, &self.record.object_format));
        if let Some(head) = detached.filter(|head| !is_saved(head)) {
            save("head", &head);
        }
        if let Some(tip) = &tip {
            commands.push_str(&format!("delete {} {tip}\n", self.record.branch));
        }
        if !commands.is_empty() {
            self.real_git("update-ref")?.arg("--stdin").input(commands.into_bytes()).run()?;
        }
        self.remove_worktree()?;
        self.set_state(State::Removed)
    }

    fn remove_worktree(&self) -> Result<(), WorkspaceError> {
        let record = &self.record;
        let admin_dir = self.find_admin_dir();
        // Do not remove a directory at the worktree's path that this run did not create.
        if admin_dir.is_some() || record.state != State::Opening {
            at("remove", &record.worktree, remove_tree(&record.worktree))?;
        } else if let Some(begun) = self.unfinished_admin_dir() {
            // git was killed after it had created the worktree's git directory, so the worktree is still empty.
            let _ = fs::remove_dir(&record.worktree);
            at("remove", &begun, remove_tree(&begun))?;
        }
        if let Some(admin_dir) = admin_dir {
            at("remove", &admin_dir, remove_tree(&admin_dir))?;
        }
        // Remove the directory `worktrees` if this was the last worktree, as git does. Do the same with guard's
        // directory `.worktrees`.
        let _ = fs::remove_dir(record.common_dir.join("worktrees"));
        if let Some(root) = record.worktree.parent().filter(|root| root.ends_with(".worktrees")) {
            let is_empty = fs::read_dir(root)
                .is_ok_and(|entries| entries.flatten().all(|entry| entry.file_name() == ".gitignore"));
            if is_empty && gitfile::has_content(&root.join(".gitignore"), b"*\n") {
                let _ = fs::remove_file(root.join(".gitignore"));
                let _ = fs::remove_dir(root);
            }
        }
        Ok(())
    }

    /// Returns the content of `HEAD` in the worktree's git directory, without the newline: `ref: ` and the name of a
    /// branch, or the id of a commit. `None` if the file cannot be read.
    fn worktree_head(&self) -> Option<String> {
        let text = gitfile::read_small(&self.find_admin_dir()?.join("HEAD"), 8192).ok()?;
        Some(String::from_utf8(text).ok()?.trim_end().to_string())
    }

    /// True if the user has checked out a commit or another branch in the run's worktree.
    fn has_other_checkout(&self) -> bool {
        self.worktree_head().is_some_and(|head| head != format!("ref: {}", self.record.branch))
    }

    /// Writes the mark of this run to the lock file of the worktree, before guard removes the worktree. If the removal
    /// is interrupted, the mark shows that what is left of the worktree belongs to this run.
    fn mark_as_own(&self) -> Result<(), WorkspaceError> {
        let Some(admin_dir) = self.find_admin_dir() else { return Ok(()) };
        let locked = admin_dir.join("locked");
        at("write", &locked, fs::write(&locked, self.run_marker()))
    }

    /// True if something else is now at the path of this run's worktree. This is possible if the removal of the
    /// worktree was interrupted, and the user removed the rest by hand.
    fn is_replaced(&self) -> bool {
        let is_there = self.record.worktree.symlink_metadata().is_ok();
        let marked =
            self.find_admin_dir().and_then(|dir| gitfile::read_small(&dir.join("locked"), 8192).ok());
        is_there && marked.is_none_or(|text| text.trim_ascii_end() != self.run_marker().as_bytes())
    }

    /// Finds the worktree's git directory in the user's repository, even if the workspace's record does not contain
    /// its path yet. Returns `None` if there is none that this run created.
    fn find_admin_dir(&self) -> Option<PathBuf> {
        let worktrees = self.record.common_dir.join("worktrees");
        let wanted = self.record.worktree.join(".git");
        // The user or another run may have a worktree at the same path: the file `locked` says which run created a
        // git directory.
        let is_own = |dir: &Path| {
            let text = gitfile::read_following_links(&dir.join("locked"), 8192).unwrap_or_default();
            self.record.state != State::Opening || text.trim_ascii_end() == self.run_marker().as_bytes()
        };
        if self.record.admin_dir.parent() == Some(&worktrees) {
            return is_own(&self.record.admin_dir).then(|| self.record.admin_dir.clone());
        }
        let leads_here = |dir: &PathBuf| {
            let text = gitfile::read_following_links(&dir.join("gitdir"), 8192).unwrap_or_default();
            text.strip_suffix(b"\n").is_some_and(|text| text == wanted.as_os_str().as_bytes()) && is_own(dir)
        };
        fs::read_dir(worktrees).ok()?.flatten().map(|entry| entry.path()).find(leads_here)
    }

    /// Finds a git directory that git began to create for this run's worktree before git was interrupted. Such a
    /// directory does not contain the worktree's path yet. Returns `None` if there is none.
    fn unfinished_admin_dir(&self) -> Option<PathBuf> {
        let is_begun = |dir: &PathBuf| {
            let text = gitfile::read_following_links(&dir.join("locked"), 8192).unwrap_or_default();
            let has_place =
                gitfile::read_following_links(&dir.join("gitdir"), 8192).is_ok_and(|text| !text.is_empty());
            text.trim_ascii_end() == self.run_marker().as_bytes() && !has_place
        };
        let worktrees = fs::read_dir(self.record.common_dir.join("worktrees")).ok()?;
        worktrees.flatten().map(|entry| entry.path()).find(is_begun)
    }

    /// Removes the worktree's lock file, which makes git refuse to move or remove the worktree during a run. Does
    /// nothing for a run with `--here`, because guard has not locked that worktree for git.
    fn unlock(&self) -> Result<(), WorkspaceError> {
        if self.record.here {
            return Ok(());
        }
        let locked = self.record.admin_dir.join("locked");
        at("remove", &locked, remove_tree(&locked))
    }

    /// True if this run created the branch, according to the branch's reflog. False if git cannot read the reflog.
    fn has_created_branch(&self) -> bool {
        let call =
            self.real_git("reflog").map(|git| git.args(["show", "--format=%gs", &self.record.branch, "--"]));
        let said = call.and_then(Git::run).unwrap_or_default();
        said.trim_ascii_end().rsplit(|byte| *byte == b'\n').next() == Some(self.run_marker().as_bytes())
    }

    /// Removes everything that a failed or interrupted [`Workspace::open`] created. Keeps the branch if it is no longer
    /// at the commit at which guard created it.
    pub(crate) fn undo(&mut self) -> Result<(), WorkspaceError> {
        if !self.record.here {
            self.remove_worktree()?;
            let tip = self.real_tip()?.filter(|tip| *tip == self.record.base);
            if let Some(tip) = tip.filter(|_| self.has_created_branch()) {
                let command = format!("delete {} {tip}\n", self.record.branch);
                self.real_git("update-ref")?.arg("--stdin").input(command.into_bytes()).run()?;
            }
        }
        self.drop_quarantine()?;
        self.set_state(State::Removed)
    }
}

/// Returns the paths of the gitlinks in the index that `list`, a call of `git ls-files`, reads.
pub(crate) fn gitlinks(list: Git) -> Result<Vec<PathBuf>, WorkspaceError> {
    let output = list.args(["--stage", "-z"]).run()?;
    let path = |line: &[u8]| -> Option<PathBuf> {
        let line = line.strip_prefix(b"160000 ")?;
        let tab = line.iter().position(|byte| *byte == b'\t')?;
        Some(PathBuf::from(OsStr::from_bytes(&line[tab + 1..])))
    };
    Ok(output.split(|byte| *byte == 0).filter_map(path).collect())
}

/// Returns the directories with files at paths where the index has a gitlink and the run's base commit has none. git
/// does not see the files in them, so they are work that git cannot save. `gitlinks` are all gitlinks of the index, and
/// `git` builds a call for a verb.
pub(crate) fn new_gitlink_directories(
    record: &Record,
    gitlinks: Vec<PathBuf>,
    git: impl Fn(&str) -> Result<Git, WorkspaceError>,
) -> Result<Vec<PathBuf>, WorkspaceError> {
    if record.here {
        return Ok(Vec::new());
    }
    let mut found = gitlinks;
    found.retain(|path| {
        let dir = record.worktree.join(path);
        let is_empty = || fs::read_dir(&dir).is_ok_and(|mut entries| entries.next().is_none());
        let is_dir = dir.symlink_metadata().is_ok_and(|data| data.is_dir());
        extra_files::is_inside(path) && is_dir && !is_empty()
    });
    if found.is_empty() {
        return Ok(found);
    }
    let list = git("ls-tree")?.env("GIT_LITERAL_PATHSPECS", "1");
    let listed = list.args(["-z", "--full-tree", &record.base, "--"]).args(&found).run()?;
    let is_in_base = |path: &PathBuf| {
        let end = [b"\t", path.as_os_str().as_bytes()].concat();
        listed.split(|byte| *byte == 0).any(|line| line.starts_with(b"160000 ") && line.ends_with(&end))
    };
    found.retain(|path| !is_in_base(path));
    Ok(found)
}

/// Returns the path of every `.git` below the directory of a submodule, without the submodule's own.
fn nested_in_submodule(dir: &Path) -> Vec<PathBuf> {
    let found = search(dir, SearchBounds::default()).repositories.into_iter();
    let nested = found.filter(|one| one.kind != RepositoryKind::Bare).map(|one| one.path);
    nested.filter(|path| path.parent() != Some(dir)).collect()
}

/// True if a path does not exist, or leads through a file or a loop of symbolic links.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP))
}

/// True if a path is too long for the kernel. git can reach such a file in several steps.
fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENAMETOOLONG)
}

/// True if the cause of the error can be that the work is too large to commit: a git call failed, or there are too
/// many paths.
fn is_size_error(error: &WorkspaceError) -> bool {
    matches!(error, WorkspaceError::Git(_) | WorkspaceError::Trees(_))
}

/// True if any file below the directory is larger than `max` bytes.
fn has_larger_file(dir: &Path, max: u64) -> bool {
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(data) if data.is_dir() => dirs.push(entry.path()),
                Ok(data) if data.is_file() && data.len() > max => return true,
                _ => {}
            }
        }
    }
    false
}
