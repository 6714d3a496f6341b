//! Finds git repositories below a directory that a run may write to, and reports how the run changed them.
//!
//! A process that can write to a repository's configuration or hooks chooses which programs the user's next git
//! command there executes. Therefore guard must notice when a run in a plain directory (or with `--in-place` or
//! `--write`) changes a repository in that directory. [`search`] finds the repositories before the run. [`Snapshot`]
//! records their state, and after the run reports which repositories changed, moved, disappeared or are new.
//!
//! The search follows no symbolic link, starts no process, and is limited in entries, depth, time and number of
//! results. If it may have missed repositories, its result says why.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::snapshot::{Difference, Entry, ExpectedChanges, Fingerprint, OpenDirectory, Stat};
use crate::git::plumbing::gitfile;
use crate::git::review::findings;
use crate::git::review::findings::Danger;

/// The limits on a search for repositories.
#[derive(Debug, Clone, Copy)]
pub struct SearchBounds {
    /// Maximum number of directory entries to visit.
    pub entries: usize,
    /// Maximum depth of directories to visit. The search keeps one directory open per level.
    pub depth: usize,
    /// Number of repositories after which the search stops.
    pub repositories: usize,
    /// Timeout for the search.
    pub time: Duration,
}

impl Default for SearchBounds {
    fn default() -> Self {
        Self { entries: 1_000_000, depth: 128, repositories: 1_000, time: Duration::from_secs(20) }
    }
}

/// What makes git treat a path as a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RepositoryKind {
    /// A directory named `.git`.
    GitDirectory,
    /// A regular file named `.git`, which names a git directory, as in linked worktrees and submodules.
    GitFile,
    /// A symbolic link or a special file named `.git`. guard cannot protect such an entry with a mount.
    GitLink,
    /// A git directory whose name is not `.git`.
    Bare,
}

/// A git repository that [`search`] found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NestedRepository {
    /// The absolute path of the `.git` entry, or of the bare repository.
    pub path: PathBuf,
    pub kind: RepositoryKind,
}

#[derive(Debug, Clone, Default)]
pub struct SearchResult {
    /// The repositories that the search found, sorted by path, without those inside the git directory of another
    /// repository.
    pub repositories: Vec<NestedRepository>,
    /// Why the search may have missed repositories; `None` if it missed none.
    pub unseen: Option<String>,
}

/// Finds the git repositories at and below the directory `root`, including the git directories there that `.git` files
/// name. The path of `root` must not contain symbolic links.
pub fn search(root: &Path, bounds: SearchBounds) -> SearchResult {
    let mut search = Search {
        left: bounds.entries,
        bounds,
        deadline: Instant::now() + bounds.time,
        user: nix::unistd::geteuid().as_raw(),
        found: SearchResult::default(),
    };
    match OpenDirectory::open(root) {
        Ok(dir) => search.search_dir(&dir, root, 0),
        Err(error) => search.unseen(format!("cannot read {}: {error}", root.display())),
    }
    search.follow_git_files(root);
    let mut found = search.found;
    found.repositories.sort();
    found.repositories.dedup();
    found
}

struct Search {
    bounds: SearchBounds,
    left: usize,
    deadline: Instant,
    user: u32,
    found: SearchResult,
}

impl Search {
    fn unseen(&mut self, why: String) {
        self.found.unseen.get_or_insert(why);
    }

    fn is_exhausted(&mut self) -> bool {
        if self.left == 0 {
            self.unseen(format!("the directory has more than {} entries", self.bounds.entries));
        } else if self.found.repositories.len() >= self.bounds.repositories {
            self.unseen(format!("guard stopped after {} repositories", self.bounds.repositories));
        } else if Instant::now() > self.deadline {
            self.unseen(format!("the search took longer than {} seconds", self.bounds.time.as_secs()));
        } else {
            return false;
        }
        true
    }

    fn add(&mut self, path: PathBuf, kind: RepositoryKind) {
        self.found.repositories.push(NestedRepository { path, kind });
    }

    fn search_dir(&mut self, dir: &OpenDirectory, path: &Path, depth: usize) {
        let entries = match dir.entries_up_to(self.left) {
            Ok(entries) => entries,
            Err(error) => return self.unseen(format!("cannot read {}: {error}", path.display())),
        };
        if self.is_bare(dir, path, &entries) {
            return self.add(path.to_path_buf(), RepositoryKind::Bare);
        }
        let mut directories = Vec::new();
        for entry in entries {
            if self.left == 0 && self.is_exhausted() {
                return;
            }
            self.left -= 1;
            if entry.name.to_bytes() == b".git" {
                if let Some(stat) = self.stat_of(dir, path, c".git") {
                    self.add(path.join(".git"), kind_of_git_entry(&stat));
                }
                continue;
            }
            let is_directory = entry
                .is_dir
                .unwrap_or_else(|| self.stat_of(dir, path, &entry.name).is_some_and(|stat| stat.is_dir()));
            if is_directory {
                directories.push(entry.name);
            }
        }
        for name in directories {
            if self.is_exhausted() {
                return;
            }
            let at = path.join(OsStr::from_bytes(name.to_bytes()));
            if depth + 1 >= self.bounds.depth {
                return self.unseen(format!(
                    "{} is more than {} levels deep",
                    truncated(&at),
                    self.bounds.depth
                ));
            }
            match dir.open_subdir(&name) {
                Ok(Some(inner)) => self.search_dir(&inner, &at, depth + 1),
                Ok(None) => {}
                // Report only unreadable directories of the user, because the run could make them readable. The run
                // cannot enter those of other users either.
                Err(error) => {
                    if self.is_own(dir, &name) {
                        self.unseen(format!("cannot read {}: {error}", at.display()));
                    }
                }
            }
        }
    }

    /// Returns the metadata of an entry of the directory `dir`, whose path is `path`; `None` if the entry does not exist.
    /// Without search permission in the directory, guard cannot determine that. Then reports the directory as unseen if
    /// it belongs to the user, because the run could change its permissions.
    fn stat_of(&mut self, dir: &OpenDirectory, path: &Path, name: &CStr) -> Option<Stat> {
        dir.stat_of(name).unwrap_or_else(|error| {
            let found = nix::sys::stat::fstat(dir.as_fd());
            if found.map_or(true, |found| self.user == 0 || found.st_uid == self.user) {
                self.unseen(format!("cannot open files in {}: {error}", path.display()));
            }
            None
        })
    }

    /// True if git would treat the directory as a git directory: it contains `HEAD`, and either `objects` and `refs`,
    /// or `commondir`.
    fn is_bare(&mut self, dir: &OpenDirectory, path: &Path, entries: &[Entry]) -> bool {
        if !entries.iter().any(|entry| entry.name.to_bytes() == b"HEAD") {
            return false;
        }
        let mut stat_of = |name: &CStr| self.stat_of(dir, path, name);
        let is_head = stat_of(c"HEAD").is_some_and(|stat| !stat.is_dir());
        is_head
            && (stat_of(c"commondir").is_some()
                || stat_of(c"objects").is_some() && stat_of(c"refs").is_some())
    }

    fn is_own(&self, dir: &OpenDirectory, name: &CStr) -> bool {
        let flags = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
        let found = nix::sys::stat::fstatat(dir.as_fd(), name, flags);
        found.map_or(true, |found| self.user == 0 || found.st_uid == self.user)
    }

    /// Adds the git directories to which the found `.git` files point, if they are below `root` and the search has
    /// not found them yet.
    fn follow_git_files(&mut self, root: &Path) {
        let is_file = |found: &&NestedRepository| found.kind == RepositoryKind::GitFile;
        let files: Vec<PathBuf> =
            self.found.repositories.iter().filter(is_file).map(|found| found.path.clone()).collect();
        for file in files {
            let Some(target) = git_file_target(&file) else { continue };
            let is_known = self.found.repositories.iter().any(|known| target.starts_with(&known.path));
            if !is_known && target.starts_with(root) && target.join("HEAD").symlink_metadata().is_ok() {
                self.add(target, RepositoryKind::Bare);
            }
        }
    }
}

/// Formats a path, and shortens it to 120 characters: a path may be thousands of characters long.
fn truncated(path: &Path) -> String {
    let text = path.display().to_string();
    match text.char_indices().nth(120) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

fn kind_of_git_entry(stat: &Stat) -> RepositoryKind {
    if stat.is_dir() {
        RepositoryKind::GitDirectory
    } else if stat.is_file() {
        RepositoryKind::GitFile
    } else {
        RepositoryKind::GitLink
    }
}

const MAX_GIT_FILE_BYTES: usize = 64 << 10;

fn git_file_target(file: &Path) -> Option<PathBuf> {
    let text = gitfile::read_small(file, MAX_GIT_FILE_BYTES).ok()?;
    let target = text.strip_prefix(b"gitdir:")?.trim_ascii().to_vec();
    file.parent()?.join(std::ffi::OsString::from_vec(target)).canonicalize().ok()
}

/// What happened to a git repository during the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NestedChangeKind {
    /// The configuration, a hook, a ref or another file that git reads has changed.
    Changed,
    Moved,
    /// A different repository is now at the path.
    Replaced,
    Removed,
    /// guard could not compare all of the repository with its state before the run.
    Unseen,
}

impl NestedChangeKind {
    /// Returns the kind as a single word, as guard prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Moved => "moved",
            Self::Replaced => "replaced",
            Self::Removed => "removed",
            Self::Unseen => "unseen",
        }
    }
}

/// A change that the run made to a git repository.
#[derive(Debug, Clone)]
pub struct NestedChange {
    pub kind: NestedChangeKind,
    /// The path of the changed repository, relative to the searched directory; empty if guard cannot name one
    /// repository.
    pub path: PathBuf,
    /// A sentence for the user that describes the change.
    pub message: String,
}

/// What a run did to the git repositories below a directory.
#[derive(Debug, Default)]
pub struct NestedComparison {
    /// Changes to repositories that existed before the run.
    pub changes: Vec<NestedChange>,
    /// Dangers in new repositories, such as hooks, and settings that make git run programs.
    pub new: Vec<Danger>,
}

/// The state of the git repositories below a directory at one moment.
#[derive(Debug)]
pub struct Snapshot {
    root: PathBuf,
    entries: Vec<RecordedRepository>,
    unseen: Option<String>,
}

#[derive(Debug)]
struct RecordedRepository {
    repository: NestedRepository,
    identity: Option<Identity>,
    content: RecordedContent,
}

/// Device, inode and creation time of a directory entry (of a symbolic link itself, not of its target). The inode
/// alone does not identify a file, because file systems soon reuse the inode of a removed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Identity(u64, u64, Option<SystemTime>);

impl Identity {
    fn of(path: &Path) -> Option<Self> {
        path.symlink_metadata().ok().map(|found| Self(found.dev(), found.ino(), found.created().ok()))
    }
}

#[derive(Debug)]
enum RecordedContent {
    /// Boxed, because a fingerprint is much larger than the other variants.
    Directory(Option<Box<Fingerprint>>),
    File(Option<Vec<u8>>),
    Link(Option<PathBuf>),
}

impl RecordedContent {
    fn of(repository: &NestedRepository) -> Self {
        match repository.kind {
            RepositoryKind::GitDirectory | RepositoryKind::Bare => {
                Self::Directory(Fingerprint::take(&repository.path).ok().map(Box::new))
            }
            RepositoryKind::GitFile => {
                Self::File(gitfile::read_small(&repository.path, MAX_GIT_FILE_BYTES).ok())
            }
            RepositoryKind::GitLink => Self::Link(std::fs::read_link(&repository.path).ok()),
        }
    }
}

/// Maximum number of changes to list per repository.
const MAX_DIFFERENCES: usize = 20;
/// Maximum number of changes to list for all repositories together.
const MAX_CHANGES: usize = 200;

impl Snapshot {
    /// Records the state of the repositories `found`, which a search found below the directory `root`. If guard cannot
    /// read a repository, the snapshot contains only its path and identity.
    pub fn take(root: &Path, found: &SearchResult) -> Self {
        let record = |repository: &NestedRepository| RecordedRepository {
            identity: Identity::of(&repository.path),
            content: RecordedContent::of(repository),
            repository: repository.clone(),
        };
        let entries = found.repositories.iter().map(record).collect();
        Self { root: root.to_path_buf(), entries, unseen: found.unseen.clone() }
    }

    /// Searches the directory again, and reports how its repositories have changed since the snapshot: at most 20
    /// changes per repository, 200 in total, and how many more there are. All processes of the run must have ended.
    pub fn compare(&self, bounds: SearchBounds) -> NestedComparison {
        let now = search(&self.root, bounds);
        let places: BTreeMap<Identity, &Path> = now
            .repositories
            .iter()
            .filter_map(|found| Some((Identity::of(&found.path)?, found.path.as_path())))
            .collect();
        let mut comparison = NestedComparison::default();
        let mut count = 0usize;
        let mut add = |change: NestedChange| {
            count += 1;
            if count <= MAX_CHANGES {
                comparison.changes.push(change);
            }
        };
        for known in &self.entries {
            self.changes_of(known, &places).into_iter().for_each(&mut add);
        }
        for (when, unseen) in [("before the run", &self.unseen), ("after the run", &now.unseen)] {
            if let Some(why) = unseen {
                let message = format!(
                    "{}: the search for git repositories {when} was incomplete: {why}",
                    self.root.display()
                );
                add(NestedChange { kind: NestedChangeKind::Unseen, path: PathBuf::new(), message });
            }
        }
        if let Some(left_out) = count.checked_sub(MAX_CHANGES).filter(|left_out| *left_out > 0) {
            let message = format!("further changes in git repositories, not listed: {left_out}");
            comparison.changes.push(NestedChange {
                kind: NestedChangeKind::Unseen,
                path: PathBuf::new(),
                message,
            });
        }
        let is_new =
            |found: &&NestedRepository| !self.entries.iter().any(|known| known.repository.path == found.path);
        let new: Vec<PathBuf> = now
            .repositories
            .iter()
            .filter(is_new)
            .map(|found| match found.kind {
                RepositoryKind::Bare => found.path.clone(),
                _ => found.path.parent().unwrap_or(&found.path).to_path_buf(),
            })
            .collect();
        comparison.new = findings::repositories(&self.root, &new);
        comparison
    }

    fn changes_of(
        &self,
        known: &RecordedRepository,
        places: &BTreeMap<Identity, &Path>,
    ) -> Vec<NestedChange> {
        let path = &known.repository.path;
        let below = |path: &Path| path.strip_prefix(&self.root).unwrap_or(path).to_path_buf();
        let shown = below(path);
        let change = |kind, what: String| NestedChange {
            kind,
            message: format!("{}: {what}", shown.display()),
            path: shown.clone(),
        };
        // If a parent directory became a symbolic link, another repository may be at the path now.
        let is_there =
            path.parent().is_some_and(|parent| parent.canonicalize().is_ok_and(|real| real == parent));
        let now = Identity::of(path).filter(|_| is_there);
        let is_in_place_file = matches!(known.content, RecordedContent::File(_))
            && path.symlink_metadata().is_ok_and(|found| found.is_file());
        if now != known.identity && !(is_there && is_in_place_file) {
            let elsewhere = known.identity.and_then(|identity| places.get(&identity));
            let kind = match (elsewhere, now) {
                (Some(place), _) => {
                    let what = format!("the repository was moved to {}", below(place).display());
                    change(NestedChangeKind::Moved, what)
                }
                (None, Some(_)) => change(
                    NestedChangeKind::Replaced,
                    "another repository has replaced the one that was there".to_string(),
                ),
                (None, None) => change(NestedChangeKind::Removed, "the repository was removed".to_string()),
            };
            return vec![kind];
        }
        let is_different = match &known.content {
            RecordedContent::Directory(Some(before)) => match before.retake() {
                Ok(after) => return self.differences(before, &after, change),
                Err(_) => true,
            },
            // The run cannot enter a directory of another user that this user cannot enter.
            RecordedContent::Directory(None) if !may_enter(path) => return Vec::new(),
            RecordedContent::Directory(None) => {
                let what =
                    "guard could not read the repository before the run, so it cannot tell what changed";
                return vec![change(NestedChangeKind::Unseen, what.to_string())];
            }
            RecordedContent::File(before) => {
                gitfile::read_small(path, MAX_GIT_FILE_BYTES).ok().as_ref() != before.as_ref()
            }
            RecordedContent::Link(before) => std::fs::read_link(path).ok().as_ref() != before.as_ref(),
        };
        if is_different {
            let what = "`.git` now points to another repository, or guard can no longer read it".to_string();
            return vec![change(NestedChangeKind::Changed, what)];
        }
        Vec::new()
    }

    fn differences(
        &self,
        before: &Fingerprint,
        after: &Fingerprint,
        change: impl Fn(NestedChangeKind, String) -> NestedChange,
    ) -> Vec<NestedChange> {
        let differences = before.compare(after, &ExpectedChanges::default());
        let mut changes: Vec<NestedChange> = differences
            .iter()
            .take(MAX_DIFFERENCES)
            .map(|difference| change(NestedChangeKind::Changed, describe(difference)))
            .collect();
        if let Some(more) = differences.len().checked_sub(MAX_DIFFERENCES).filter(|more| *more > 0) {
            changes.push(change(NestedChangeKind::Changed, format!("further changes, not listed: {more}")));
        }
        if after.is_incomplete() && !before.is_incomplete() {
            let what = "the repository became too large to compare completely".to_string();
            changes.push(change(NestedChangeKind::Unseen, what));
        }
        changes
    }
}

/// True if the directory belongs to this user, who can then change its mode, or if this user may enter it.
fn may_enter(path: &Path) -> bool {
    let user = nix::unistd::geteuid().as_raw();
    path.symlink_metadata().is_ok_and(|found| found.uid() == user)
        || nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok()
}

fn describe(difference: &Difference) -> String {
    let name = &difference.name;
    match (&difference.old, &difference.new) {
        (None, _) => format!("`{name}` was created"),
        (Some(_), None) => format!("`{name}` was removed"),
        (Some(_), Some(_)) => format!("`{name}` was changed"),
    }
}

/// Restores a directory's `.git` file to its saved content if the run changed or removed the file. Moves whatever the
/// run left at `.git` to the run's directory.
pub fn restore_git_file(
    directory: &Path,
    saved: &[u8],
    run_folder: &Path,
) -> std::io::Result<RestoredGitFile> {
    if gitfile::has_content(&directory.join(".git"), saved) {
        return Ok(RestoredGitFile::Unchanged);
    }
    gitfile::write_git_file(directory, saved, run_folder).map(RestoredGitFile::Restored)
}

/// Whether [`restore_git_file`] had to restore a `.git` file.
#[derive(Debug)]
pub enum RestoredGitFile {
    /// The `.git` file still had its saved content.
    Unchanged,
    /// guard restored the `.git` file. The path is where guard moved what the run had left at `.git`; `None` if guard
    /// moved nothing.
    Restored(Option<PathBuf>),
}

/// Returns the content of a directory's `.git` file; `None` if `.git` is not a regular file of at most 64 KiB, or if
/// guard cannot read it.
pub fn read_git_file(directory: &Path) -> Option<Vec<u8>> {
    gitfile::read_small(&directory.join(".git"), MAX_GIT_FILE_BYTES).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends where something goes wrong")]
mod tests {
    use super::*;

    #[test]
    fn a_search_says_what_it_left_out() {
        let root = std::env::temp_dir().join(format!("guard-nested-{}", std::process::id()));
        for name in ["a/.git", "b/.git", "c/d/e"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        let root = root.canonicalize().unwrap();
        let all = SearchBounds::default();
        let found = search(&root, all);
        assert_eq!((found.repositories.len(), found.unseen), (2, None));
        let unseen = |bounds| search(&root, bounds).unseen.unwrap_or_default();
        assert!(unseen(SearchBounds { entries: 3, ..all }).contains("more than 3 entries"));
        assert!(unseen(SearchBounds { depth: 2, ..all }).contains("more than 2 levels deep"));
        assert!(unseen(SearchBounds { repositories: 1, ..all }).contains("stopped after 1 repositories"));
        assert!(unseen(SearchBounds { time: Duration::ZERO, ..all }).contains("took longer"));
        std::fs::remove_dir_all(root).unwrap();
    }
    #[test]
    fn a_repository_that_was_unreadable_before_the_run_is_reported() {
        let root = std::env::temp_dir().join(format!("guard-nested-unreadable-{}", std::process::id()));
        std::fs::create_dir_all(root.join("a/.git")).unwrap();
        let root = root.canonicalize().unwrap();
        let mut before = Snapshot::take(&root, &search(&root, SearchBounds::default()));
        assert!(before.compare(SearchBounds::default()).changes.is_empty());
        before.entries[0].content = RecordedContent::Directory(None);
        let changes = before.compare(SearchBounds::default()).changes;
        let found: Vec<_> = changes.iter().map(|change| (change.kind, change.path.as_path())).collect();
        assert_eq!(found, [(NestedChangeKind::Unseen, Path::new("a/.git"))]);
        std::fs::remove_dir_all(root).unwrap();
    }
}
