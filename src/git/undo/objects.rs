//! What guard asks git about the files of a directory: which of them are in the object database, and which of them
//! git ignores. None of these calls runs a filter, a hook or a file system monitor.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::stat::lstat;

use super::git_index::Index;
use super::manifest::IndexPlace;
use super::tree::FileState;
use crate::git::plumbing::cat_file::for_each_blob;
use crate::git::plumbing::command::{Git, Trust};
use crate::git::plumbing::outcome::GitError;
use crate::git::snapshot::Name;
use crate::git::{Repository, WorkspaceError};

/// Timeout for a git call. An earlier run may have put a FIFO in place of a file that git reads.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum size of a blob that guard leaves in the object database, in bytes: guard has to read it into memory to bring
/// the file back.
const MAX_BLOB: u64 = 256 << 20;
/// The number of bytes of blobs that guard reads with one git call.
const BATCH_BYTES: u64 = 64 << 20;
/// The number of files from which on guard asks git about whole directories first.
const MANY_FILES: usize = 5_000;

/// The repository that contains a directory.
pub(super) struct Tracked {
    repository: Repository,
    top: PathBuf,
    /// The path of the directory relative to the top of the working tree, with a slash at the end unless it is empty.
    prefix: Vec<u8>,
    index: Index,
    place: Option<IndexPlace>,
}

/// Returns the nearest entry `.git` at or above a directory, with its state.
fn nearest_dot_git(directory: &Path) -> Option<(PathBuf, FileState)> {
    directory.ancestors().map(|level| level.join(".git")).find_map(|path| {
        let state = FileState::of(&lstat(&path).ok()?);
        Some((path, state))
    })
}

impl IndexPlace {
    fn find(directory: &Path, index: &Path) -> Option<Self> {
        let (dot_git, mut dot_git_state) = nearest_dot_git(directory)?;
        if dot_git_state.is_directory() {
            // Most git commands create and remove a file in it.
            (dot_git_state.size, dot_git_state.modified, dot_git_state.changed) = (0, 0, 0);
        }
        Some(Self {
            dot_git: Name::from(dot_git.as_os_str().as_bytes()),
            dot_git_state,
            index: Name::from(index.as_os_str().as_bytes()),
            index_state: FileState::of(&lstat(index).ok()?),
        })
    }

    /// True if the directory is in the same repository, and the index of that has not changed.
    pub(super) fn is_current(&self, directory: &Path) -> bool {
        Self::find(directory, &self.index.path()).as_ref() == Some(self)
    }
}

impl Tracked {
    /// Finds the repository that contains `directory`; `None` if there is none with a working tree.
    pub(super) fn find(directory: &Path) -> Result<Option<Self>, WorkspaceError> {
        // This saves a git call in most plain directories.
        if nearest_dot_git(directory).is_none() {
            return Ok(None);
        }
        let Some(repository) = Repository::find_without_head(directory)? else { return Ok(None) };
        let Some(top) = repository.toplevel.clone() else { return Ok(None) };
        let Ok(below) = directory.strip_prefix(&top) else { return Ok(None) };
        let mut prefix = below.as_os_str().as_bytes().to_vec();
        if !prefix.is_empty() {
            prefix.push(b'/');
        }
        let place = IndexPlace::find(directory, &repository.git_dir.join("index"));
        let index = Index::read(&repository.git_dir.join("index"), &repository.object_format);
        Ok(Some(Self { index: index.unwrap_or_default(), place, repository, top, prefix }))
    }

    /// Returns where the index was before guard read it; `None` if there was none.
    pub(super) fn index_place(&self) -> Option<&IndexPlace> {
        self.place.as_ref()
    }

    /// Returns the git directory that contains the objects.
    pub(super) fn common_dir(&self) -> &Path {
        &self.repository.common_dir
    }

    /// Returns the path relative to the top of the working tree.
    fn in_repository(&self, path: &Name) -> Name {
        Name::own([self.prefix.as_slice(), path.bytes()].concat())
    }

    pub(super) fn is_tracked(&self, path: &Name) -> bool {
        self.index.entries.contains_key(&self.in_repository(path))
    }

    /// Returns the blob that git's index names for a file, if the file has not changed since git read it. The blob may
    /// differ from the file all the same: git may convert the content, see [`Self::with_same_content`].
    pub(super) fn unchanged_blob(&self, path: &Name, state: &FileState) -> Option<String> {
        let blob = self.index.unchanged_blob(&self.in_repository(path), state)?;
        (state.size <= MAX_BLOB).then(|| blob.to_string())
    }

    /// Returns those of the files whose blob exists and has the content of the file: (path, blob, size).
    ///
    /// git may have converted the content of a file when it read or wrote it. A conversion of line ends and of `$Id$`
    /// changes the size. A filter or another encoding need not, so guard leaves out all files that have these attributes.
    pub(super) fn with_same_content(&self, files: &[(Name, String, u64)]) -> Result<HashSet<Name>, GitError> {
        if files.is_empty() {
            return Ok(HashSet::new());
        }
        let (sizes, converted) = std::thread::scope(|scope| {
            let converted = scope.spawn(|| self.converted(files));
            let sizes = self.blob_sizes(files);
            let converted = converted.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (sizes, converted)
        });
        let (sizes, converted) = (sizes?, converted?);
        let is_same = |(path, blob, size): &&(Name, String, u64)| {
            sizes.get(blob.as_str()) == Some(size) && !converted.contains(path)
        };
        Ok(files.iter().filter(is_same).map(|(path, ..)| path.clone()).collect())
    }

    fn blob_sizes<'f>(&self, files: &'f [(Name, String, u64)]) -> Result<HashMap<&'f str, u64>, GitError> {
        let mut ids: Vec<&str> = files.iter().map(|(_, blob, _)| blob.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        let output = self
            .repository
            .git("cat-file")?
            .args(["--batch-check=%(objecttype) %(objectsize)", "--buffer"])
            .input((ids.join("\n") + "\n").into_bytes())
            .timeout(TIMEOUT)
            .run()?;
        let text = String::from_utf8_lossy(&output);
        let sizes = text.lines().map(|line| line.strip_prefix("blob ").and_then(|size| size.parse().ok()));
        Ok(ids.into_iter().zip(sizes).filter_map(|(id, size)| Some((id, size?))).collect())
    }

    /// Returns the files whose content a filter or an encoding may change when git reads or writes them.
    fn converted(&self, files: &[(Name, String, u64)]) -> Result<HashSet<Name>, GitError> {
        let paths = files.iter().map(|(path, ..)| self.in_repository(path));
        let output = self
            .repository
            .git("check-attr")?
            .worktree(&self.top)
            .args(["-z", "--stdin", "filter", "working-tree-encoding"])
            .input(zero_separated(paths))
            .timeout(TIMEOUT)
            .run()?;
        let mut converted = HashSet::new();
        let mut fields = output.split(|byte| *byte == 0);
        while let (Some(path), Some(_), Some(value)) = (fields.next(), fields.next(), fields.next()) {
            if !matches!(value, b"unspecified" | b"unset")
                && let Some(path) = path.strip_prefix(self.prefix.as_slice())
            {
                converted.insert(Name::from(path));
            }
        }
        Ok(converted)
    }

    /// Returns those of the untracked files that git ignores. `repositories` are the directories below which git does
    /// not look, because they are repositories of their own; their files do not count as ignored.
    pub(super) fn ignored(&self, files: &[Name], repositories: &[Name]) -> Result<HashSet<Name>, GitError> {
        let below = |path: &[u8], directory: &[u8]| {
            path.strip_prefix(directory).is_some_and(|rest| rest.first() == Some(&b'/'))
        };
        let is_foreign = |path: &Name| repositories.iter().any(|one| below(path.bytes(), one.bytes()));
        let mut asked: Vec<&Name> = files.iter().filter(|path| !is_foreign(path)).collect();
        // git would take these for patterns.
        asked.retain(|path| !self.in_repository(path).bytes().starts_with(b":"));
        let mut ignored = HashSet::new();
        if asked.len() > MANY_FILES {
            // Most of many untracked files are in a few ignored directories.
            let tops = self.untracked_tops(&asked);
            let answer = self.check_ignore(&tops.iter().collect::<Vec<_>>())?;
            let is_in_ignored = |path: &Name| {
                let parts = (0..path.bytes().len()).filter(|at| path.bytes()[*at] == b'/');
                parts.into_iter().any(|end| answer.contains(&Name::from(&path.bytes()[..end])))
            };
            let (inside, rest): (Vec<&Name>, Vec<&Name>) =
                asked.into_iter().partition(|path| is_in_ignored(path));
            ignored.extend(inside.into_iter().cloned());
            asked = rest;
        }
        ignored.extend(self.check_ignore(&asked)?);
        Ok(ignored)
    }

    /// Returns the outermost directories that contain some of the files, but no tracked file.
    fn untracked_tops(&self, files: &[&Name]) -> HashSet<Name> {
        let parents = |path: &[u8]| -> Vec<Vec<u8>> {
            let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
            ends.map(|end| path[..end].to_vec()).collect()
        };
        let mut tracked: HashSet<Vec<u8>> = HashSet::new();
        for path in self.index.entries.keys() {
            if let Some(below) = path.bytes().strip_prefix(self.prefix.as_slice()) {
                tracked.extend(parents(below));
            }
        }
        let top = |path: &&Name| parents(path.bytes()).into_iter().find(|one| !tracked.contains(one));
        files.iter().filter_map(top).map(Name::own).collect()
    }

    fn check_ignore(&self, paths: &[&Name]) -> Result<HashSet<Name>, GitError> {
        if paths.is_empty() {
            return Ok(HashSet::new());
        }
        let output = self
            .repository
            .git("check-ignore")?
            .worktree(&self.top)
            .args(["-z", "--stdin"])
            .input(zero_separated(paths.iter().map(|path| self.in_repository(path))))
            .timeout(TIMEOUT)
            .output()?;
        // git exits with 1 if it ignores none of the paths.
        if output.code() > 1 {
            let (code, message) = (output.code(), output.message);
            return Err(GitError::Failed { verb: "check-ignore".to_string(), code, message });
        }
        let paths = output.output.split(|byte| *byte == 0);
        Ok(paths.filter_map(|path| path.strip_prefix(self.prefix.as_slice())).map(Name::from).collect())
    }
}

fn zero_separated(paths: impl Iterator<Item = Name>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for path in paths {
        bytes.extend_from_slice(path.bytes());
        bytes.push(0);
    }
    bytes
}

/// Reads blobs from the repository with this git directory, in batches, and passes each with its id to `each`. Skips
/// blobs that do not exist. `blobs` has the size of each.
pub(super) fn read_blobs(
    git_dir: &Path,
    blobs: &[(String, u64)],
    mut each: impl FnMut(&str, &[u8]),
) -> Result<(), GitError> {
    let mut rest = blobs;
    while !rest.is_empty() {
        let mut bytes = 0;
        let count = rest.iter().take_while(|(_, size)| {
            bytes += size;
            bytes <= BATCH_BYTES
        });
        let count = count.count().max(1);
        let (batch, after) = rest.split_at(count);
        rest = after;
        let ids: String = batch.iter().map(|(id, _)| format!("{id}\n")).collect();
        let most: u64 = batch.iter().map(|(_, size)| size + 200).sum();
        let output = Git::new(Trust::Neutral, "cat-file")?
            .git_dir(git_dir)
            .args(["--batch", "--buffer"])
            .input(ids.into_bytes())
            .max_output(usize::try_from(most).unwrap_or(usize::MAX))
            .run()?;
        for_each_blob(&output, &mut each);
    }
    Ok(())
}
