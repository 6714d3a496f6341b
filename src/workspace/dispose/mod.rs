//! Disposes of a workspace after the agent has ended: gives the worktree back to the user, or removes it.
//!
//! The agent wrote every file in the worktree. Therefore git only ever reads it in a jail, with the real git
//! directory named explicitly, and without the worktree's attributes, which could choose programs to run.
//! Work that exists nowhere else is kept under `refs/guard/` or in the run's directory, never deleted.
pub(crate) mod recover;
pub(crate) mod uncommitted;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::git::command::{Git, GitError};
use super::git::jailed_worktree::Tree;
use super::git::{gitfile, refs};
use super::receive::lfs;
use super::receive::tree_size;
use super::receive::tree_size::TreeSizeError;
use super::run::create::Workspace;
use super::run::run_record::State;
use super::run::{extra_files, slug};
use super::{WorkspaceError, at};
use crate::sys::remove_tree::remove_tree;
use uncommitted::{Changed, LONGEST, unseen};

/// What to do with the worktree and its branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeepPolicy {
    /// Keep both.
    Keep,
    /// Remove both; their contents are kept under `refs/guard/`.
    Discard,
    /// Remove both if they contain nothing new, keep them otherwise.
    #[default]
    Auto,
}

/// The result of disposing of a workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DisposeReport {
    /// The worktree and the branch still exist.
    pub kept: bool,
    /// The branch has commits made by the run.
    pub has_commits: bool,
    /// Paths with work that is neither committed nor ignored; at most a hundred.
    pub uncommitted: Vec<PathBuf>,
    /// Files of the working tree that differ from the branch; at most a thousand.
    pub changes: Vec<(PathBuf, Changed)>,
    /// `changes` is complete.
    pub all_changes: bool,
    /// The quarantine has something that exists nowhere else (commits, other refs, a stash), and was kept.
    pub unreceived: bool,
    /// The refs that keep what was removed.
    pub saved: Vec<String>,
    /// Foreign files found in git's own places: (original path, where guard moved it).
    pub moved: Vec<(PathBuf, PathBuf)>,
}

/// Files larger than this are not committed to the repository.
const LARGEST_KEPT: u64 = 1 << 30;

impl Workspace {
    /// Disposes of the workspace. The agent must have ended. Safe to call again after an interruption.
    pub fn settle(&mut self, disposal: KeepPolicy) -> Result<DisposeReport, WorkspaceError> {
        match self.record.state {
            State::Opening => {
                self.undo()?;
                return Ok(DisposeReport::default());
            }
            State::Removed => return Ok(DisposeReport::default()),
            State::Removing => {
                let mut settled = DisposeReport::default();
                self.remove(&mut settled)?;
                return Ok(settled);
            }
            _ => {}
        }
        let mut settled = DisposeReport { kept: true, ..DisposeReport::default() };
        let is_there = self.record.worktree.symlink_metadata().is_ok_and(|data| data.is_dir());
        let mut is_compared = true;
        if is_there {
            let foreign = self.point_at_repository()?;
            settled.moved.extend(foreign.map(|now| (self.record.worktree.join(".git"), now)));
            match self.compare_with_tip(&mut settled) {
                // Removal needs no index: the work is kept as plain files instead.
                Err(error) if disposal == KeepPolicy::Discard && !self.record.here && is_too_much(&error) => {
                    is_compared = false;
                }
                compared => compared?,
            }
        }
        settled.has_commits = self.record.tip != self.record.base;
        settled.unreceived = self.has_unreceived();
        let is_new = settled.has_commits || settled.unreceived || !settled.uncommitted.is_empty();
        let goes = match disposal {
            KeepPolicy::Keep => false,
            KeepPolicy::Discard => true,
            KeepPolicy::Auto => !is_new && self.real_tip()?.as_deref() == Some(&self.record.base),
        };
        if goes && !self.record.here {
            if !is_compared {
                self.move_worktree_away(&mut settled)?;
            } else if is_there && !settled.uncommitted.is_empty() {
                self.keep_work(&mut settled)?;
            }
            self.set_state(State::Removing)?;
            self.remove(&mut settled)?;
        } else {
            self.unlock()?;
            self.set_state(State::Kept)?;
        }
        if !settled.unreceived {
            self.drop_quarantine()?;
        }
        Ok(settled)
    }

    /// Compares the worktree with the branch's tip, using an index.
    fn compare_with_tip(&self, settled: &mut DisposeReport) -> Result<(), WorkspaceError> {
        self.bring_index_up()?;
        self.move_nested_repositories(settled)?;
        self.take_back()?;
        let work = self.look_for_work(true)?;
        (settled.uncommitted, settled.changes, settled.all_changes) =
            (work.uncommitted, work.changes, work.is_all);
        self.install_index()
    }

    fn move_worktree_away(&self, settled: &mut DisposeReport) -> Result<(), WorkspaceError> {
        let worktree = &self.record.worktree;
        let now = at("move", worktree, gitfile::take_away(worktree, &self.run_folder))?;
        settled.moved.push((worktree.clone(), now));
        Ok(())
    }

    /// The namespace of the refs under which guard keeps what it removes.
    pub(crate) fn kept_under(&self) -> String {
        format!("refs/guard/{}", slug::slug(&self.record.run_id).unwrap_or_else(|| "run".to_string()))
    }

    /// True if the quarantine has something that exists nowhere else: commits on the branch, other refs, a
    /// stash.
    fn has_unreceived(&self) -> bool {
        let git = self.quarantine();
        if git.symlink_metadata().is_err() {
            return false;
        }
        let (branch, format) = (&self.record.branch, &self.record.object_format);
        let same =
            refs::read(&git, &self.refs_before(), branch, format).is_ok_and(|tip| tip == self.record.tip);
        let others = refs::changed(&git, &self.refs_before(), branch, format);
        lfs::has_more(&git, &self.record.common_dir)
            || !same
            || !others.is_ok_and(|others| !others.has_new_value)
    }

    /// Removes the quarantine and its helper files. Keeps the record and the foreign files.
    fn drop_quarantine(&self) -> Result<(), WorkspaceError> {
        // Rename it first: a half-deleted quarantine would look like one that the agent damaged.
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

    /// A jailed git call on the worktree, with the real git directory, and only attributes from outside the
    /// worktree.
    pub(crate) fn worktree_git(&self, verb: &str, writes_objects: bool) -> Result<Git, WorkspaceError> {
        let record = &self.record;
        let scratch = self.scratch();
        let tree = Tree {
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

    /// Where git may write while it reads the worktree. Each guard process has its own directory: one that
    /// was killed may have left a lock there, or a git process that still writes.
    fn scratch(&self) -> PathBuf {
        self.run_folder.join("scratch").join(std::process::id().to_string())
    }

    /// The path of the copy of the worktree's index.
    fn index(&self) -> PathBuf {
        self.scratch().join("index")
    }

    /// Updates a copy of the worktree's index, which the agent never saw, to the entries of the branch's tip.
    /// The files are not touched, and unchanged entries keep their cached stat data.
    fn bring_index_up(&self) -> Result<(), WorkspaceError> {
        self.copy_index()?;
        if self.record.tip != self.record.base {
            let tip = [self.record.tip.clone()];
            let reader = self.worktree_git("cat-file", false)?.limit(LONGEST);
            tree_size::check(reader, &tip, self.most_paths()).map_err(|error| match error {
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
        at("make", &self.scratch(), fs::create_dir_all(self.scratch()))?;
        at("copy", &from, fs::copy(&from, &to)).map(drop)
    }

    /// Replaces the real index with the copy, using git's own lock protocol.
    fn install_index(&self) -> Result<(), WorkspaceError> {
        if self.record.tip == self.record.base {
            return Ok(());
        }
        let (index, lock) = (self.record.admin_dir.join("index"), self.record.admin_dir.join("index.lock"));
        let write = || -> io::Result<()> {
            let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&lock)?;
            let copied = io::copy(&mut fs::File::open(self.index())?, &mut file);
            copied.and_then(|_| fs::rename(&lock, &index)).inspect_err(|_| drop(fs::remove_file(&lock)))
        };
        match write() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(WorkspaceError::refused(
                format!("the index of {} is locked ({})", self.record.worktree.display(), lock.display()),
                "another git works there; try `guard worktree receive` when it has ended",
            )),
            written => at("write", &index, written),
        }
    }

    /// The paths that the index lists as submodules.
    fn submodules(&self, index: Option<&Path>) -> Result<Vec<PathBuf>, WorkspaceError> {
        let mut git = self.worktree_git("ls-files", false)?.args(["--stage", "-z"]);
        if let Some(index) = index {
            git = git.env("GIT_INDEX_FILE", index);
        }
        let output = git.run()?;
        let path = |line: &[u8]| -> Option<PathBuf> {
            let line = line.strip_prefix(b"160000 ")?;
            let tab = line.iter().position(|byte| *byte == b'\t')?;
            Some(PathBuf::from(OsStr::from_bytes(&line[tab + 1..])))
        };
        Ok(output.split(|byte| *byte == 0).filter_map(path).collect())
    }

    /// The `.git` files of submodules that exist before the agent runs.
    pub(crate) fn submodule_pointers(&self) -> Result<Vec<(String, String)>, WorkspaceError> {
        let mut found = Vec::new();
        self.copy_index()?;
        for path in self.submodules(None)? {
            let file = self.record.worktree.join(&path).join(".git");
            if let Ok(text) = gitfile::read_small(&file, 8192) {
                let text = Path::new(OsStr::from_bytes(&text)).to_path_buf();
                found.push((
                    super::run::run_record::path::text(&path),
                    super::run::run_record::path::text(&text),
                ));
            }
        }
        Ok(found)
    }

    /// Moves away nested repositories of the agent that the index lists as submodules: `git status` would
    /// enter them and follow their configuration.
    fn move_nested_repositories(&self, settled: &mut DisposeReport) -> Result<(), WorkspaceError> {
        for path in self.submodules(None)? {
            let folder = self.record.worktree.join(&path);
            let entry = folder.join(".git");
            // git does not follow a symbolic link here.
            let is_plain =
                extra_files::is_inside(&path) && folder.canonicalize().is_ok_and(|real| real == folder);
            if !is_plain || entry.symlink_metadata().is_err() {
                continue;
            }
            let known = self
                .record
                .submodules
                .iter()
                .find(|(known, _)| *known == super::run::run_record::path::text(&path));
            let text = known.and_then(|(_, text)| super::run::run_record::path::parse(text));
            if text.is_some_and(|text| gitfile::holds(&entry, text.as_os_str().as_bytes())) {
                continue;
            }
            let now = at("move", &entry, gitfile::take_away(&entry, &self.run_folder))?;
            settled.moved.push((entry, now));
        }
        Ok(())
    }

    fn take_back(&self) -> Result<(), WorkspaceError> {
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
            self.patiently(call)?.output
        };
        let ignored: Vec<&[u8]> = ignored.split(|byte| *byte == 0).collect();
        let is_ignored = |path: &Path| ignored.contains(&path.as_os_str().as_bytes());
        at(
            "take files back from",
            &self.record.worktree,
            extra_files::take_back(&self.record.worktree, brought, is_ignored),
        )
    }

    /// Keeps uncommitted work: as a commit if possible, otherwise as plain files in the run's directory.
    fn keep_work(&self, settled: &mut DisposeReport) -> Result<(), WorkspaceError> {
        let worktree = &self.record.worktree;
        if !has_larger_file(worktree, LARGEST_KEPT) {
            match self.save_work(settled) {
                Err(WorkspaceError::Git(GitError::TimedOut { .. })) => {}
                saved => return saved,
            }
        }
        self.move_worktree_away(settled)
    }

    /// Commits everything that is not ignored to a ref of guard's own, using a separate index.
    fn save_work(&self, settled: &mut DisposeReport) -> Result<(), WorkspaceError> {
        let index = self.scratch().join("work-index");
        at("copy", &index, fs::copy(self.index(), &index))?;
        let on_it = |verb: &str| -> Result<Git, WorkspaceError> {
            Ok(self.worktree_git(verb, true)?.env("GIT_INDEX_FILE", &index))
        };
        let add = || -> Result<_, WorkspaceError> {
            Ok(on_it("add")?.args(["--all", "--ignore-errors", "--", "."]).limit(LONGEST).answer()?)
        };
        let mut added = add()?;
        if !added.message.is_empty() {
            // Some files and directories were not accessible to their owner.
            gitfile::open_up(&self.record.worktree);
            added = add()?;
        }
        if !added.status.success() && added.code() != 1 {
            let (verb, code) = ("add".to_string(), added.code());
            return Err(GitError::Failed { verb, code, message: added.message }.into());
        }
        // git cannot read a directory whose path is too long, so it cannot keep it either: move it.
        for path in unseen(&added.message) {
            let folder = self.record.worktree.join(&path);
            if folder.symlink_metadata().is_ok_and(|data| data.is_dir()) {
                let now = at("move", &folder, gitfile::take_away(&folder, &self.run_folder))?;
                settled.moved.push((folder, now));
            }
        }
        // git would record only the commit id of a nested repository, so move the repository itself.
        let known = self.submodules(None)?;
        for path in self.submodules(Some(&index))?.into_iter().filter(|path| !known.contains(path)) {
            let folder = self.record.worktree.join(&path);
            if extra_files::is_inside(&path) && folder.canonicalize().is_ok_and(|real| real == folder) {
                let now = at("move", &folder, gitfile::take_away(&folder, &self.run_folder))?;
                settled.moved.push((folder, now));
            }
        }
        let line = |output: Vec<u8>| String::from_utf8_lossy(&output).trim_end().to_string();
        let tree = line(on_it("write-tree")?.run()?);
        let message = format!("guard: work of run {} that was not committed", self.record.run_id);
        let commit = line(on_it("commit-tree")?.args([&tree, "-p", &self.record.tip, "-m", &message]).run()?);
        let name = format!("{}/work", self.kept_under());
        self.real_git("update-ref")?.args(["-m", "guard: keep", &name, &commit]).run()?;
        settled.saved.push(name);
        Ok(())
    }

    /// Removes the branch and the worktree; the branch's commits are kept. Idempotent.
    fn remove(&mut self, settled: &mut DisposeReport) -> Result<(), WorkspaceError> {
        settled.kept = false;
        if let Some(tip) = self.real_tip()? {
            let branch = &self.record.branch;
            let kept = format!("{}/tip", self.kept_under());
            let mut commands = String::new();
            if tip != self.record.base {
                commands.push_str(&format!("update {kept} {tip}\n"));
                settled.saved.push(kept);
            }
            commands.push_str(&format!("delete {branch} {tip}\n"));
            self.real_git("update-ref")?.arg("--stdin").input(commands.into_bytes()).run()?;
        }
        self.remove_worktree()?;
        self.set_state(State::Removed)
    }

    fn remove_worktree(&self) -> Result<(), WorkspaceError> {
        let record = &self.record;
        let admin_dir = self.find_admin_dir();
        // A directory that this run did not create belongs to somebody else, whatever its name.
        if admin_dir.is_some() || record.state != State::Opening {
            at("remove", &record.worktree, remove_tree(&record.worktree))?;
        } else if let Some(begun) = self.begun_admin_dir() {
            // git was killed between creating the two, so the worktree is still empty.
            let _ = fs::remove_dir(&record.worktree);
            at("remove", &begun, remove_tree(&begun))?;
        }
        if let Some(admin_dir) = admin_dir {
            at("remove", &admin_dir, remove_tree(&admin_dir))?;
        }
        // As git does, remove the directory of all worktrees with the last one; likewise guard's own.
        let _ = fs::remove_dir(record.common_dir.join("worktrees"));
        if let Some(root) = record.worktree.parent().filter(|root| root.ends_with(".worktrees")) {
            let is_empty = fs::read_dir(root)
                .is_ok_and(|entries| entries.flatten().all(|entry| entry.file_name() == ".gitignore"));
            if is_empty && gitfile::holds(&root.join(".gitignore"), b"*\n") {
                let _ = fs::remove_file(root.join(".gitignore"));
                let _ = fs::remove_dir(root);
            }
        }
        Ok(())
    }

    /// The worktree's real git directory, even if the record was written before git created it.
    fn find_admin_dir(&self) -> Option<PathBuf> {
        let worktrees = self.record.common_dir.join("worktrees");
        if self.record.admin_dir.parent() == Some(&worktrees) {
            return Some(self.record.admin_dir.clone());
        }
        let wanted = self.record.worktree.join(".git");
        // Another run or the user may have had a worktree at the same path: the lock file says whose it is.
        let is_own = |folder: &Path| {
            let text = gitfile::read_linked(&folder.join("locked"), 8192).unwrap_or_default();
            self.record.state != State::Opening || text.trim_ascii_end() == self.mark().as_bytes()
        };
        let leads_here = |folder: &PathBuf| {
            let text = gitfile::read_linked(&folder.join("gitdir"), 8192).unwrap_or_default();
            text.strip_suffix(b"\n").is_some_and(|text| text == wanted.as_os_str().as_bytes())
                && is_own(folder)
        };
        fs::read_dir(worktrees).ok()?.flatten().map(|entry| entry.path()).find(leads_here)
    }

    /// A git directory for this run's worktree that does not name the worktree's path yet.
    fn begun_admin_dir(&self) -> Option<PathBuf> {
        let is_begun = |folder: &PathBuf| {
            let text = gitfile::read_linked(&folder.join("locked"), 8192).unwrap_or_default();
            let has_place =
                gitfile::read_linked(&folder.join("gitdir"), 8192).is_ok_and(|text| !text.is_empty());
            text.trim_ascii_end() == self.mark().as_bytes() && !has_place
        };
        let worktrees = fs::read_dir(self.record.common_dir.join("worktrees")).ok()?;
        worktrees.flatten().map(|entry| entry.path()).find(is_begun)
    }

    /// Removes the lock that keeps others from moving the worktree during a run.
    fn unlock(&self) -> Result<(), WorkspaceError> {
        if self.record.here {
            return Ok(());
        }
        let locked = self.record.admin_dir.join("locked");
        at("remove", &locked, remove_tree(&locked))
    }

    /// True if this run created the branch, according to its reflog.
    fn made_branch(&self) -> bool {
        let call =
            self.real_git("reflog").map(|git| git.args(["show", "--format=%gs", &self.record.branch, "--"]));
        let said = call.and_then(Git::run).unwrap_or_default();
        said.trim_ascii_end().rsplit(|byte| *byte == b'\n').next() == Some(self.mark().as_bytes())
    }

    /// Undoes an interrupted `open`, and nothing else.
    pub(crate) fn undo(&mut self) -> Result<(), WorkspaceError> {
        if !self.record.here {
            self.remove_worktree()?;
            let tip = self.real_tip()?.filter(|tip| *tip == self.record.base);
            if let Some(tip) = tip.filter(|_| self.made_branch()) {
                let command = format!("delete {} {tip}\n", self.record.branch);
                self.real_git("update-ref")?.arg("--stdin").input(command.into_bytes()).run()?;
            }
        }
        self.drop_quarantine()?;
        self.set_state(State::Removed)
    }
}

/// True if the index could not be created or read because of its size.
fn is_too_much(error: &WorkspaceError) -> bool {
    matches!(error, WorkspaceError::Git(_) | WorkspaceError::Trees(_))
}

/// True if any file below the directory is larger than `most`.
fn has_larger_file(folder: &Path, most: u64) -> bool {
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(data) if data.is_dir() => folders.push(entry.path()),
                Ok(data) if data.is_file() && data.len() > most => return true,
                _ => {}
            }
        }
    }
    false
}
