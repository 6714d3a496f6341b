//! Plans an undo: what to bring back, and what to leave alone because somebody changed it since the run.

use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::fcntl::FlockArg;
use nix::sys::stat::SFlag;

use super::compare::{created_repository, is_lost, is_missing};
use super::content::{has_content, with_contents};
use super::list::read_list;
use super::manifest::{AFTER, After, Content, ITEMS, Item, Items, Outcome};
use super::restore::open_top;
use super::store::{Lock, SavedSnapshot, Store};
use super::tree;
use super::tree::{Closed, FileState, Found, Tree, UsersRepositories};
use crate::git::snapshot::{Name, OpenDirectory};
use crate::git::{WorkspaceError, at};
use crate::sys::fs::chmod;

/// An undo of a run: its snapshot, with the current state of the directory.
#[derive(Debug)]
pub struct Undo {
    pub(super) saved: SavedSnapshot,
    pub(super) before: Items,
    /// What the run changed; `None` if guard was killed before it could record that.
    after: Option<After>,
    pub(super) top: OpenDirectory,
    /// The permission bits that the directory gets at the end, if guard has changed them for the time being.
    pub(super) final_mode: Cell<Option<u32>>,
    /// Keeps other processes from deleting the snapshot.
    _lock: Lock,
}

#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Only these paths and everything below them, relative to the directory; empty for everything.
    pub paths: Vec<Name>,
    /// Only bring back what the run deleted.
    pub only_deleted: bool,
    /// Also overwrite or remove what somebody changed since the run.
    pub force: bool,
}

/// What to do with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepKind {
    /// Bring back what the run deleted.
    Restore,
    /// Bring back the content that the run changed.
    Revert,
    /// Bring back the mode and the owner.
    Mode,
    /// Remove what the run created.
    Remove,
}

/// One path of an undo.
#[derive(Debug, Clone)]
pub struct UndoStep {
    /// The path, relative to the directory.
    pub path: Name,
    pub kind: StepKind,
    /// Whether the path is a directory: before the run or, for [`StepKind::Remove`], now.
    pub is_directory: bool,
    /// The state before the run; `None` if nothing existed.
    pub(super) item: Option<Item>,
    /// The current state; `None` if nothing exists.
    pub(super) current: Option<FileState>,
}

/// Why an undo leaves a path alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SkipReason {
    /// Somebody changed it after the run.
    ChangedSince,
    /// Somebody deleted it after the run.
    DeletedSince,
    /// The run deleted it, and somebody created it again.
    CreatedSince,
    /// guard does not know whether the run or somebody else changed it.
    Unknown,
    /// guard leaves alone a file or link that has taken the place of a directory above it.
    Blocked,
    NoCopy,
    /// It was a socket or a device.
    Special,
    /// It is a `.git` that the run deleted or replaced.
    Repository,
    /// It is a `.git` directory of the user that the run moved here.
    MovedRepository,
}

#[derive(Debug, Default)]
pub struct UndoPlan {
    /// What to do, sorted by path.
    pub steps: Vec<UndoStep>,
    /// The paths that the undo leaves alone although the run changed them, sorted by path.
    pub skipped: Vec<(Name, SkipReason)>,
    /// Why guard cannot see the whole directory; `None` if it can.
    pub unseen: Option<String>,
    /// The permission bits of the directory itself before the run, if they are different now.
    pub(super) top_mode: Option<u32>,
}

impl UndoPlan {
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.top_mode.is_none()
    }
}

impl Undo {
    /// Reads a snapshot and opens its directory.
    pub fn open(saved: SavedSnapshot) -> Result<Self, WorkspaceError> {
        let store = Store { folder: saved.folder.parent().unwrap_or(&saved.folder).to_path_buf() };
        let lock = at("lock", &store.folder, store.lock(FlockArg::LockShared))?;
        let lock = lock.ok_or_else(|| WorkspaceError::Busy(store.folder.clone()))?;
        let items = saved.folder.join(ITEMS);
        let before = at("read", &items, read_list(&items))?;
        let after = saved.folder.join(AFTER);
        let after = match read_list(&after) {
            Ok(after) => Some(after),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return at("read", &after, Err(error)),
        };
        let directory = saved.directory();
        let (top, mode) = at("open", &directory, open_top(&directory))?;
        Ok(Self { saved, before, after, top, final_mode: Cell::new(mode), _lock: lock })
    }

    /// Returns whether guard recorded the state after the run. If not, it was killed, and cannot tell the changes of the
    /// run from later ones.
    pub fn knows_end(&self) -> bool {
        self.after.is_some()
    }

    /// Compares the directory with its state before and after the run.
    pub fn plan(&self, selection: &Selection) -> Result<UndoPlan, WorkspaceError> {
        let directory = self.saved.directory();
        let users = UsersRepositories::before(&self.before);
        let tree = at("read", &directory, tree::list(&self.top, Closed::Open, &users))?;
        let created = |path: &Name| created_repository(path, &self.before);
        let paths: BTreeSet<&Name> = match &self.after {
            Some(after) => after.keys().collect(),
            // guard does not know which of the other files existed before the run if it could not see all.
            None if self.saved.info.unseen.is_some() => self.before.keys().collect(),
            // guard does not know whether the run or the user made a repository.
            None => {
                let now = tree.entries.keys().filter(|path| created(path).is_none());
                self.before.keys().chain(now).collect()
            }
        };
        let used_since = self.repositories_used_since(&tree);
        let selected =
            |path: &Name| selection.paths.is_empty() || selection.paths.iter().any(|one| is_in(path, one));
        let equal = self.with_equal_content(&tree, paths.iter().copied().filter(|path| selected(path)))?;
        let mut plan = UndoPlan { unseen: tree.unseen.clone(), ..UndoPlan::default() };
        let mut needed = BTreeSet::new();
        for path in paths.iter().copied().filter(|path| selected(path)) {
            let decision = match created(path).filter(|one| !selection.force && used_since.contains(one)) {
                Some(repository) if repository == *path => Decision::Skip(SkipReason::ChangedSince),
                Some(_) => Decision::Nothing,
                None if tree.entries.get(path).is_some_and(|found| users.is_moved(path, &found.state)) => {
                    Decision::Skip(SkipReason::MovedRepository)
                }
                None => self.decide(path, &tree, equal.contains(path), selection),
            };
            match decision {
                Decision::Nothing => {}
                Decision::Skip(_) if selection.only_deleted && self.exists(&tree, path) => {}
                Decision::Skip(reason) => plan.skipped.push((path.clone(), reason)),
                Decision::Do(kind) if selection.only_deleted && kind != StepKind::Restore => {}
                Decision::Do(kind) => {
                    needed.extend(ancestors(path));
                    plan.steps.push(self.step(path, kind, &tree));
                }
            }
        }
        // The directories of selected files must exist, too.
        for path in paths.into_iter().filter(|path| needed.contains(path.bytes()) && !selected(path)) {
            if let Decision::Do(kind @ (StepKind::Restore | StepKind::Revert)) =
                self.decide(path, &tree, false, selection)
            {
                plan.steps.push(self.step(path, kind, &tree));
            }
        }
        // What is below a link or a file that guard leaves alone cannot be brought back either.
        let blocked: BTreeSet<Vec<u8>> = plan
            .skipped
            .iter()
            .filter(|(path, _)| tree.entries.get(path).is_some_and(|found| !found.state.is_directory()))
            .map(|(path, _)| path.bytes().to_vec())
            .collect();
        let is_blocked = |step: &UndoStep| ancestors(&step.path).any(|above| blocked.contains(&above));
        let (left_out, steps): (Vec<UndoStep>, Vec<UndoStep>) = plan.steps.into_iter().partition(is_blocked);
        plan.steps = steps;
        plan.skipped.extend(left_out.into_iter().map(|step| (step.path, SkipReason::Blocked)));
        plan.skipped.sort();
        plan.steps.sort_by(|a, b| a.path.cmp(&b.path));
        let mode = at("read", &directory, nix::sys::stat::fstat(&self.top).map_err(io::Error::from))?;
        let mode = self.final_mode.get().unwrap_or(FileState::of(&mode).permissions());
        let is_changed = mode != self.saved.info.mode;
        plan.top_mode =
            (is_changed && selection.paths.is_empty() && !selection.only_deleted && self.knows_end())
                .then_some(self.saved.info.mode);
        Ok(plan)
    }

    /// Returns the entries `.git` that the run made, and in which something is not as the run left it. The user may have
    /// begun to work with such a repository, so guard removes nothing of it.
    fn repositories_used_since(&self, tree: &Tree) -> HashSet<Name> {
        let Some(after) = &self.after else { return HashSet::new() };
        let is_as_left = |path: &Name, found: &Found| match after.get(path) {
            Some(Outcome::State(state)) => state.is_same_after_undo(&found.state),
            _ => false,
        };
        let changed = tree.entries.iter().filter(|(path, found)| !is_as_left(path, found));
        changed.filter_map(|(path, _)| created_repository(path, &self.before)).collect()
    }

    fn exists(&self, tree: &Tree, path: &Name) -> bool {
        tree.entries.contains_key(path)
    }

    fn step(&self, path: &Name, kind: StepKind, tree: &Tree) -> UndoStep {
        let item = self.before.get(path).cloned();
        let current = tree.entries.get(path).map(|found| found.state.clone());
        let shown = item.as_ref().map(|item| &item.state).or(current.as_ref());
        UndoStep {
            path: path.clone(),
            kind,
            is_directory: shown.is_some_and(FileState::is_directory),
            item,
            current,
        }
    }

    fn outcome(&self, path: &Name) -> Outcome {
        match (&self.after, self.before.get(path)) {
            (None, _) => Outcome::Unknown,
            (Some(after), item) => after.get(path).cloned().unwrap_or_else(|| match item {
                Some(item) => Outcome::State(item.state.clone()),
                None => Outcome::Deleted,
            }),
        }
    }

    fn decide(&self, path: &Name, tree: &Tree, has_equal_content: bool, selection: &Selection) -> Decision {
        let current = tree.entries.get(path);
        if current.is_none() && tree.unseen.is_some() && !is_missing(&self.top, path) {
            return Decision::Skip(SkipReason::Unknown);
        }
        let outcome = self.outcome(path);
        let is_as_left = |current: &Found| match &outcome {
            Outcome::State(state) => state.is_same_after_undo(&current.state),
            // A killed undo may have left a directory without its final mode.
            Outcome::Deleted => current.state.is_directory() && current.state.permissions() == 0o700,
            Outcome::Unknown => false,
        };
        let unless_forced = |kind: StepKind, reason: SkipReason| match selection.force {
            true => Decision::Do(kind),
            false => Decision::Skip(reason),
        };
        let Some(item) = self.before.get(path) else {
            return match current {
                None => Decision::Nothing,
                Some(found) if is_as_left(found) => Decision::Do(StepKind::Remove),
                Some(_) if outcome == Outcome::Unknown => {
                    unless_forced(StepKind::Remove, SkipReason::Unknown)
                }
                Some(_) => unless_forced(StepKind::Remove, SkipReason::ChangedSince),
            };
        };
        if item.content == Content::Repository {
            let is_of_run = |found: &Found| match &outcome {
                Outcome::State(state) => state.inode == found.state.inode && is_lost(&item.state, current),
                Outcome::Deleted | Outcome::Unknown => false,
            };
            return match current {
                Some(found) if !is_of_run(found) => Decision::Nothing,
                _ => Decision::Skip(SkipReason::Repository),
            };
        }
        let decision = match current {
            None if matches!(outcome, Outcome::State(_)) => {
                unless_forced(StepKind::Restore, SkipReason::DeletedSince)
            }
            None => Decision::Do(StepKind::Restore),
            Some(found) if found.state.is_same(&item.state) => Decision::Nothing,
            Some(found) => {
                let owner_and_mode = |state: &FileState| (state.mode, state.uid, state.gid);
                let is_equal = has_equal_content || is_equal_special(item, found);
                let kind = match is_equal {
                    true if owner_and_mode(&found.state) == owner_and_mode(&item.state) => {
                        return Decision::Nothing;
                    }
                    true if found.state.is_link() => return Decision::Nothing,
                    true => StepKind::Mode,
                    false => StepKind::Revert,
                };
                match &outcome {
                    _ if is_as_left(found) => Decision::Do(kind),
                    Outcome::Unknown => unless_forced(kind, SkipReason::Unknown),
                    Outcome::Deleted => unless_forced(kind, SkipReason::CreatedSince),
                    Outcome::State(_) => unless_forced(kind, SkipReason::ChangedSince),
                }
            }
        };
        match decision {
            Decision::Do(StepKind::Restore | StepKind::Revert) if item.content == Content::Missing => {
                Decision::Skip(SkipReason::NoCopy)
            }
            Decision::Do(StepKind::Restore | StepKind::Revert) if is_special(&item.state) => {
                Decision::Skip(SkipReason::Special)
            }
            decision => decision,
        }
    }

    /// Returns those of the paths whose current content equals that before the run. Reads only files whose size is the
    /// same and whose metadata is not.
    fn with_equal_content<'p>(
        &self,
        tree: &Tree,
        paths: impl Iterator<Item = &'p Name>,
    ) -> Result<HashSet<Name>, WorkspaceError> {
        let mut files: Vec<(&Name, &Item)> = Vec::new();
        for path in paths {
            if let (Some((path, item)), Some(found)) =
                (self.before.get_key_value(path), tree.entries.get(path))
                && item.state.is_file()
                && found.state.is_file()
                && item.state.size == found.state.size
                && item.state != found.state
                && item.content != Content::Missing
            {
                files.push((path, item));
            }
        }
        let mut equal = HashSet::new();
        with_contents(&self.saved, &files, |path, item, copy| {
            if copy.is_ok_and(|copy| has_content(&self.top, path, item.state.size, &copy)) {
                equal.insert(path.clone());
            }
        })?;
        Ok(equal)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(mode) = self.final_mode.get() {
            // If this fails, the user has more permissions on their own directory.
            let _ = chmod(self.top.as_fd(), mode);
        }
    }
}

enum Decision {
    Nothing,
    Do(StepKind),
    Skip(SkipReason),
}

/// True if a directory, a link or a FIFO is the same as before the run, apart from its owner and mode.
fn is_equal_special(item: &Item, found: &Found) -> bool {
    item.state.kind() == found.state.kind()
        && match &item.content {
            Content::Link(target) => found.target.as_ref() == Some(target),
            Content::None => true,
            _ => false,
        }
}

/// True for sockets and devices, which guard does not create.
fn is_special(state: &FileState) -> bool {
    ![SFlag::S_IFREG, SFlag::S_IFDIR, SFlag::S_IFLNK, SFlag::S_IFIFO].contains(&state.kind())
}

/// True if `path` is `top` or below it.
fn is_in(path: &Name, top: &Name) -> bool {
    Path::starts_with(&path.path(), top.path())
}

/// Returns the paths of the directories above a path.
fn ancestors(path: &Name) -> impl Iterator<Item = Vec<u8>> + '_ {
    let ends = path.bytes().iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    ends.map(|end| path.bytes()[..end].to_vec())
}
