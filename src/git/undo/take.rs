//! Takes a snapshot of a directory: copies what differs from the last snapshot and from git's object database.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::CString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::FlockArg;
use nix::unistd::{Whence, lseek};

use super::compare;
use super::list::{read_list, write_list};
use super::manifest::{
    AFTER, Content, ITEMS, IndexPlace, Info, Item, Items, NotCovered, SnapshotKind, copy_of, pack_of,
};
use super::objects::Tracked;
use super::plan::Undo;
use super::restore::open_top;
use super::store::{Lock, SavedSnapshot, Store, snapshots_directory, was_plain};
use super::tree;
use super::tree::{Closed, FileState, Found, Tree, UsersRepositories};
use crate::git::dispose::uncommitted::Changed;
use crate::git::snapshot::{Name, OpenDirectory};
use crate::git::{WorkspaceError, at};
use crate::sys::fs::{Walk, open_with_flags, share_content};
use crate::sys::signals;

/// Files up to this size are copied into one file, which is faster than one file each.
const MAX_PACKED: u64 = 64 << 10;
/// How many earlier snapshots the copies of one snapshot may be in.
const MAX_SOURCES: usize = 32;
/// The clocks of file systems tick in milliseconds, some in seconds. A file that changed less than this before guard
/// took the last snapshot, in nanoseconds, may have changed again since without new metadata.
const SETTLED_AFTER: i64 = 2_000_000_000;
/// How many bytes guard reads or writes at a time.
const CHUNK: usize = 1 << 20;

/// What to take a snapshot of, and how much of it to copy.
#[derive(Debug, Clone)]
pub struct SnapshotRequest<'a> {
    /// The directory, as an absolute path without symbolic links.
    pub directory: &'a Path,
    /// The directory of all runs, beside which snapshots are stored.
    pub runs: &'a Path,
    /// The id of the run, or of the undo.
    pub id: &'a str,
    pub kind: SnapshotKind,
    /// The command of the run, for display.
    pub command: &'a [String],
    /// The maximum number of bytes to copy of files that git does not ignore.
    pub max_bytes: u64,
    /// The maximum number of bytes to copy of files that git ignores.
    pub max_ignored_bytes: u64,
    /// True if the run cannot change the repository, so that its objects need not be copied.
    pub trusts_objects: bool,
}

/// A snapshot that guard has taken, before the run whose changes it shall record.
#[derive(Debug)]
pub struct DirectorySnapshot {
    info: Info,
    items: Items,
    folder: PathBuf,
    directory: PathBuf,
    /// Keeps other processes from deleting the snapshot.
    _lock: Lock,
}

#[derive(Debug, Default)]
pub struct TreeChanges {
    /// The changed files, sorted by path, without directories.
    pub files: Vec<(PathBuf, Changed)>,
    pub is_complete: bool,
    /// The entries `.git` that the run deleted or replaced.
    pub lost_repositories: Vec<PathBuf>,
    /// Why guard could not record the state of the directory after the run; `None` if it did.
    pub problem: Option<String>,
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WorkspaceError {
    move |source| WorkspaceError::Io { what, path: path.to_path_buf(), source }
}

impl DirectorySnapshot {
    /// Takes a snapshot of a directory. A directory with limited access or very many files is not an error; the
    /// snapshot then says what it does not contain.
    pub fn take(request: &SnapshotRequest<'_>) -> Result<Self, WorkspaceError> {
        Self::take_with(request, &UsersRepositories::All)
    }

    /// Takes a snapshot before an undo, which contains what the undo removes: also repositories that the run made.
    pub fn take_before_undo(request: &SnapshotRequest<'_>, undo: &Undo) -> Result<Self, WorkspaceError> {
        Self::take_with(request, &UsersRepositories::before(&undo.before))
    }

    fn take_with(request: &SnapshotRequest<'_>, users: &UsersRepositories) -> Result<Self, WorkspaceError> {
        let began = Instant::now();
        let snapshots = snapshots_directory(request.runs);
        let store = Store::of(&snapshots, request.directory);
        at("create", &store.folder, store.create(request.directory))?;
        let lock = at("lock", &store.folder, store.lock(FlockArg::LockShared))?;
        let lock = lock.ok_or_else(|| WorkspaceError::Busy(store.folder.clone()))?;
        let folder = store.folder.join(request.id);
        at("create", &folder, DirBuilder::new().mode(0o700).create(&folder))?;
        let top = at("open", request.directory, OpenDirectory::open(request.directory))?;
        let taken = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let taken = i64::try_from(taken.as_nanos()).unwrap_or(i64::MAX);
        let previous = Previous::load(&store, request.id);
        let known = previous.as_ref().filter(|one| one.has_current_index(request, &snapshots));
        let known_index = known.and_then(|one| one.saved.info.index.clone());
        let tracked = if known_index.is_none() { find_tracked(request, &snapshots, &store)? } else { None };
        let tree = at("read", request.directory, tree::list(&top, Closed::LeaveOut, users))?;
        let tracked = tracked.filter(|_| !tree.blocks_git());
        let top_state = at("read", request.directory, nix::sys::stat::fstat(&top).map_err(io::Error::from))?;
        check_interrupted()?;
        let mut snapshot = Taking {
            request,
            top: &top,
            folder: &folder,
            info: Info::new(request.id, request.kind, request.directory, request.command, taken),
            items: BTreeMap::new(),
            previous,
            known_index,
            own_source: None,
            pack: None,
            large: 0,
        };
        snapshot.info.unseen = tree.unseen.clone();
        snapshot.info.mode = FileState::of(&top_state).permissions();
        snapshot.add(tree, users, tracked, || find_tracked(request, &snapshots, &store))?;
        let Taking { mut info, items, previous, .. } = snapshot.flushed()?;
        info.files =
            items.values().filter(|item| item.state.is_file() && item.content != Content::Repository).count();
        // A snapshot that is equal to the last one shares its list.
        let is_equal =
            previous.as_ref().is_some_and(|one| one.items == items && one.saved.info.sources == info.sources);
        let earlier = previous.as_ref().filter(|_| is_equal).map(|one| one.saved.folder.join(ITEMS));
        let own = folder.join(ITEMS);
        let is_linked = earlier.is_some_and(|earlier| std::fs::hard_link(earlier, &own).is_ok());
        if !is_linked {
            at("write", &own, write_list(&own, &items))?;
        }
        at("write", &folder, info.write(&folder))?;
        let microseconds = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        tracing::info!(files = info.files, copied = info.copied_bytes, microseconds, "took a snapshot");
        Ok(Self { info, items, folder, directory: request.directory.to_path_buf(), _lock: lock })
    }

    pub fn id(&self) -> &str {
        &self.info.id
    }

    pub fn files(&self) -> usize {
        self.info.files
    }

    pub fn copied_bytes(&self) -> u64 {
        self.info.copied_bytes
    }

    /// Returns the files, other than ignored ones, that are too large for the configured limit.
    pub fn too_large(&self) -> &NotCovered {
        &self.info.too_large
    }

    /// Returns the ignored files that are too large for the configured limit.
    pub fn too_large_ignored(&self) -> &NotCovered {
        &self.info.too_large_ignored
    }

    pub fn unreadable(&self) -> &NotCovered {
        &self.info.unreadable
    }

    /// Returns why the snapshot does not contain the whole directory; `None` if it does, apart from the files in
    /// [`Self::too_large`], [`Self::too_large_ignored`] and [`Self::unreadable`].
    pub fn unseen(&self) -> Option<&str> {
        self.info.unseen.as_deref()
    }

    /// Removes the snapshot, because the run has not started.
    pub fn discard(self) {
        // What remains is removed with the next snapshot that expires.
        let _ = std::fs::remove_file(self.folder.join(super::manifest::INFO));
        let _ = crate::sys::remove_tree::remove_tree(&self.folder);
    }

    /// Records the state of the directory after the run, and returns what the run changed. Every process of the run must
    /// be dead.
    pub fn finish(self) -> TreeChanges {
        let users = UsersRepositories::before(&self.items);
        let after = open_top(&self.directory)
            .and_then(|(top, mode)| Ok((tree::list(&top, Closed::Open, &users)?, top, mode)))
            .map(|(tree, top, mode)| {
                // Put back the mode that the run gave the directory.
                if let Some(mode) = mode {
                    let _ = crate::sys::fs::chmod(top.as_fd(), mode);
                }
                (tree, top)
            })
            .map(|(tree, top)| compare::compare(&self.items, self.info.unseen.is_none(), &tree, &top));
        match after {
            Ok(compared) => {
                let written = write_list(&self.folder.join(AFTER), &compared.after);
                TreeChanges {
                    files: compared.files,
                    is_complete: compared.is_complete,
                    lost_repositories: compared.lost_repositories,
                    problem: written.err().map(|error| error.to_string()),
                }
            }
            Err(error) => TreeChanges { problem: Some(error.to_string()), ..TreeChanges::default() },
        }
    }
}

/// Asks git for the repository that contains the directory; `None` if there is none that guard can use, and trust.
fn find_tracked(
    request: &SnapshotRequest<'_>,
    snapshots: &Path,
    store: &Store,
) -> Result<Option<Tracked>, WorkspaceError> {
    // A repository that guard cannot use is only a directory.
    let tracked = Tracked::find(request.directory).ok().flatten();
    if tracked.is_none() && !store.is_marked_plain() {
        at("write to", &store.folder, store.mark_plain())?;
    }
    // An agent may have made a repository in a directory that was in none.
    Ok(tracked.filter(|tracked| !was_plain(snapshots, tracked.common_dir())))
}

fn check_interrupted() -> Result<(), WorkspaceError> {
    match signals::are_blocked().then(signals::pending_end_signal).flatten() {
        Some(signal) => Err(WorkspaceError::Interrupted(signal)),
        None => Ok(()),
    }
}

/// The last snapshot of the same directory.
struct Previous {
    saved: SavedSnapshot,
    items: Items,
    /// For each of its sources, whether the new snapshot may use it too.
    usable: Vec<bool>,
}

impl Previous {
    fn load(store: &Store, id: &str) -> Option<Self> {
        let saved = store.newest(id)?;
        let items = read_list(&saved.folder.join(ITEMS)).ok()?;
        let mut previous = Self { usable: vec![true; saved.info.sources.len()], saved, items };
        previous.usable = previous.usable_sources(store);
        Some(previous)
    }

    /// True if the directory is still in the repository of this snapshot, with the same index.
    fn has_current_index(&self, request: &SnapshotRequest<'_>, snapshots: &Path) -> bool {
        let Info { objects: Some(objects), index: Some(index), .. } = &self.saved.info else { return false };
        request.trusts_objects
            && index.is_current(request.directory)
            && !was_plain(snapshots, &objects.path())
    }

    /// Leaves out sources of which less than half is in use, so that a few unchanged files do not keep many outdated
    /// copies. The new snapshot copies these files again.
    fn usable_sources(&self, store: &Store) -> Vec<bool> {
        let sources = &self.saved.info.sources;
        let mut used = vec![0u64; sources.len()];
        for item in self.items.values() {
            if let Content::Packed(source, _) | Content::File(source, _) = item.content
                && let Some(bytes) = used.get_mut(source as usize)
            {
                *bytes += item.state.size;
            }
        }
        let is_usable = |(index, source): (usize, &String)| {
            let folder = store.folder.join(source);
            let copied = Info::read(&folder).map(|info| info.copied_bytes);
            // A snapshot that has been deleted itself, but whose copies are in use, has no description.
            let copied = copied.or_else(|| pack_of(&folder).metadata().ok().map(|found| found.len()));
            copied.is_some_and(|copied| used[index] >= copied / 2)
        };
        let usable: Vec<bool> = sources.iter().enumerate().map(is_usable).collect();
        if usable.len() >= MAX_SOURCES { vec![false; usable.len()] } else { usable }
    }
}

/// A snapshot that is being taken.
struct Taking<'a> {
    request: &'a SnapshotRequest<'a>,
    top: &'a OpenDirectory,
    folder: &'a Path,
    info: Info,
    items: Items,
    previous: Option<Previous>,
    /// The index of the repository, if it has not changed since the last snapshot.
    known_index: Option<IndexPlace>,
    /// The index of this snapshot in its own list of sources.
    own_source: Option<u32>,
    pack: Option<Pack>,
    large: u64,
}

/// The file with the copies of small files.
struct Pack {
    file: BufWriter<File>,
    length: u64,
}

impl<'a> Taking<'a> {
    /// Adds everything in a tree. `find` asks git for the repository. That takes longer than the rest of the snapshot of
    /// an unchanged directory, so guard does it only if there is something to find out.
    fn add(
        &mut self,
        tree: Tree,
        users: &UsersRepositories,
        mut tracked: Option<Tracked>,
        find: impl FnOnce() -> Result<Option<Tracked>, WorkspaceError>,
    ) -> Result<(), WorkspaceError> {
        let previous = self.previous.take();
        let trusts_objects = self.request.trusts_objects;
        match (&self.known_index, tracked.as_ref().filter(|_| trusts_objects)) {
            (Some(index), _) => {
                self.info.index = Some(index.clone());
                self.info.objects = previous.as_ref().and_then(|one| one.saved.info.objects.clone());
            }
            (None, Some(tracked)) => {
                self.info.index = tracked.index_place().cloned();
                self.info.objects = Some(Name::from(tracked.common_dir().as_os_str().as_bytes()));
            }
            (None, None) => {}
        }
        let reuse = self.reuse(previous.as_ref());
        let mut files: Vec<(Name, Found)> = Vec::new();
        for (path, found) in tree.entries {
            let tracked = tracked.as_ref().filter(|_| trusts_objects);
            let content = match (&found.target, found.state.is_file()) {
                _ if users.contains(&path) => Some(Content::Repository),
                (Some(target), _) => Some(Content::Link(target.clone())),
                (None, true) => reuse.as_ref().and_then(|one| one.content(&path, &found.state, tracked)),
                (None, false) => Some(Content::None),
            };
            match content {
                Some(content) => {
                    self.items.insert(path, Item { state: found.state, content });
                }
                None => files.push((path, found)),
            }
        }
        self.previous = previous;
        if self.known_index.is_some() && !files.is_empty() {
            let objects = self.info.objects.as_ref().map(Name::path);
            tracked = find()?.filter(|tracked| objects.as_deref() == Some(tracked.common_dir()));
        }
        let to_copy = match tracked.as_ref().filter(|_| trusts_objects) {
            Some(tracked) => self.add_blobs(files, tracked),
            None => files,
        };
        check_interrupted()?;
        let untracked: Vec<Name> = match &tracked {
            Some(tracked) => to_copy
                .iter()
                .map(|(path, _)| path)
                .filter(|path| !tracked.is_tracked(path))
                .cloned()
                .collect(),
            None => Vec::new(),
        };
        let ignored = match tracked.filter(|_| !untracked.is_empty()) {
            // If git fails, guard treats every file like one that git does not ignore.
            Some(tracked) => tracked.ignored(&untracked, &tree.repositories).unwrap_or_default(),
            None => HashSet::new(),
        };
        let (of_ignored, of_others): (Vec<_>, Vec<_>) =
            to_copy.into_iter().partition(|(path, _)| ignored.contains(path));
        let free = free_bytes(self.folder);
        let too_large = self.copy_all(of_others, self.request.max_bytes.min(free / 2))?;
        self.info.too_large = too_large;
        let too_large = self.copy_all(of_ignored, self.request.max_ignored_bytes.min(free / 4))?;
        self.info.too_large_ignored = too_large;
        Ok(())
    }

    /// Adds the files that the object database contains. Returns the others.
    fn add_blobs(&mut self, files: Vec<(Name, Found)>, tracked: &Tracked) -> Vec<(Name, Found)> {
        let (mut to_check, mut others) = (Vec::new(), Vec::new());
        let mut found_blobs: HashMap<Name, Found> = HashMap::new();
        for (path, found) in files {
            match tracked.unchanged_blob(&path, &found.state) {
                Some(blob) => {
                    to_check.push((path.clone(), blob, found.state.size));
                    found_blobs.insert(path, found);
                }
                None => others.push((path, found)),
            }
        }
        let same = tracked.with_same_content(&to_check).unwrap_or_default();
        for (path, blob, _) in to_check {
            let Some(found) = found_blobs.remove(&path) else { continue };
            if same.contains(&path) {
                self.items.insert(path, Item { state: found.state, content: Content::Blob(blob) });
            } else {
                others.push((path, found));
            }
        }
        others
    }

    /// Prepares to use copies of the last snapshot, and takes over its list of sources.
    fn reuse<'p>(&mut self, previous: Option<&'p Previous>) -> Option<Reuse<'p>> {
        let previous = previous?;
        let mut renumbered: Vec<Option<u32>> = Vec::new();
        for (source, usable) in previous.saved.info.sources.iter().zip(&previous.usable) {
            renumbered.push(usable.then_some(self.info.sources.len() as u32));
            if *usable {
                self.info.sources.push(source.clone());
            }
        }
        Some(Reuse {
            items: &previous.items,
            sources: renumbered,
            taken: previous.saved.info.taken,
            has_same_index: self.known_index.is_some(),
            has_same_objects: previous.saved.info.objects.is_some()
                && previous.saved.info.objects == self.info.objects,
        })
    }

    /// Copies files up to `most` bytes together. If they have more, copies the smallest. Returns what it left out.
    fn copy_all(&mut self, mut files: Vec<(Name, Found)>, most: u64) -> Result<NotCovered, WorkspaceError> {
        let cost = |found: &Found| match found.state.size {
            size if size <= MAX_PACKED => size,
            size => size.min(found.allocated),
        };
        let total: u64 = files.iter().map(|(_, found)| cost(found)).fold(0, u64::saturating_add);
        if total > most {
            files.sort_by_key(|(_, found)| cost(found));
        }
        let (mut left, mut left_out) = (most, NotCovered::default());
        for (index, (path, found)) in files.into_iter().enumerate() {
            if index % 64 == 0 {
                check_interrupted()?;
            }
            let content = if cost(&found) > left {
                left_out.add(&path, found.state.size);
                Content::Missing
            } else {
                match self.copy(&path, &found.state, left) {
                    Ok((content, copied)) => {
                        left = left.saturating_sub(copied);
                        content
                    }
                    Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => {
                        return Err(WorkspaceError::Io {
                            what: "copy files to",
                            path: self.folder.to_path_buf(),
                            source: error,
                        });
                    }
                    Err(_) => {
                        self.info.unreadable.add(&path, found.state.size);
                        Content::Missing
                    }
                }
            };
            self.items.insert(path, Item { state: found.state, content });
        }
        Ok(left_out)
    }

    /// Copies a file. Returns where the copy is, and how many bytes were copied.
    fn copy(&mut self, path: &Name, state: &FileState, most: u64) -> io::Result<(Content, u64)> {
        let file = open_file(self.top, path)?;
        if FileState::of(&nix::sys::stat::fstat(&file)?).inode != state.inode {
            return Err(io::Error::other("another file has taken its place"));
        }
        let source = match self.own_source {
            Some(source) => source,
            None => {
                let source = u32::try_from(self.info.sources.len()).map_err(io::Error::other)?;
                self.info.sources.push(self.info.id.clone());
                *self.own_source.insert(source)
            }
        };
        if state.size <= MAX_PACKED {
            return self.copy_into_pack(file, state, source);
        }
        let number = self.large;
        if number == 0 {
            DirBuilder::new().mode(0o700).create(self.folder.join("files"))?;
        }
        self.large += 1;
        let mut options = OpenOptions::new();
        let place = copy_of(self.folder, number);
        let to = options.write(true).create_new(true).mode(0o600).open(&place)?;
        let copied = match share_content(file.as_fd(), to.as_fd()) {
            Ok(()) => Ok(0),
            Err(_) => copy_sparse(&file, &to, state.size, most),
        };
        match copied {
            Ok(copied) => {
                self.info.copied_bytes += copied;
                Ok((Content::File(source, number), copied))
            }
            Err(error) => {
                // Nothing refers to this copy.
                let _ = std::fs::remove_file(&place);
                Err(error)
            }
        }
    }

    fn copy_into_pack(&mut self, file: File, state: &FileState, source: u32) -> io::Result<(Content, u64)> {
        let mut bytes = Vec::with_capacity(state.size as usize + 1);
        file.take(state.size).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != state.size {
            return Err(io::Error::other("the file changed while guard copied it"));
        }
        let pack = match &mut self.pack {
            Some(pack) => pack,
            None => {
                let mut options = OpenOptions::new();
                let file = options.write(true).create_new(true).mode(0o600).open(pack_of(self.folder))?;
                self.pack.insert(Pack { file: BufWriter::with_capacity(CHUNK, file), length: 0 })
            }
        };
        pack.file.write_all(&bytes)?;
        let place = pack.length;
        pack.length += state.size;
        self.info.copied_bytes += state.size;
        Ok((Content::Packed(source, place), state.size))
    }

    /// Writes the rest of the copies.
    fn flushed(mut self) -> Result<Self, WorkspaceError> {
        if let Some(pack) = &mut self.pack {
            pack.file.flush().map_err(io_error("write to", self.folder))?;
        }
        Ok(self)
    }
}

/// The copies of the last snapshot.
struct Reuse<'p> {
    items: &'p Items,
    /// The new index of each of its sources; `None` if the new snapshot must not use the source.
    sources: Vec<Option<u32>>,
    taken: i64,
    has_same_objects: bool,
    has_same_index: bool,
}

impl Reuse<'_> {
    /// Returns where the content of a file is, if the file has not changed since the last snapshot.
    fn content(&self, path: &Name, state: &FileState, tracked: Option<&Tracked>) -> Option<Content> {
        let item = self.items.get(path).filter(|item| item.state == *state)?;
        let is_settled = |time: i64| time < self.taken.saturating_sub(SETTLED_AFTER);
        if !is_settled(state.changed) || !is_settled(state.modified) {
            return None;
        }
        let source = |source: u32| self.sources.get(source as usize).copied().flatten();
        match &item.content {
            Content::Packed(from, place) => Some(Content::Packed(source(*from)?, *place)),
            Content::File(from, number) => Some(Content::File(source(*from)?, *number)),
            Content::Blob(blob) if self.has_same_index => Some(Content::Blob(blob.clone())),
            // git may delete a blob that the index no longer names.
            Content::Blob(blob) if self.has_same_objects => {
                let named = tracked?.unchanged_blob(path, state)?;
                (named == *blob).then_some(Content::Blob(named))
            }
            Content::Blob(_) | Content::Missing | Content::None | Content::Link(_) | Content::Repository => {
                None
            }
        }
    }
}

/// Opens a file below a directory for reading. Follows no link, and does not wait for the writer of a FIFO.
pub(super) fn open_file(top: &OpenDirectory, path: &Name) -> io::Result<File> {
    let name = CString::new(path.bytes())?;
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let file = File::from(open_with_flags(top.as_fd(), &name, flags, Walk::Beneath)?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

/// Copies the content of a file, but not its holes. Copies at most `size` bytes of content, and fails if more than
/// `most` of them are data. Returns the number of bytes copied.
pub(super) fn copy_sparse(from: &File, to: &File, size: u64, most: u64) -> io::Result<u64> {
    to.set_len(size)?;
    let mut buffer = vec![0u8; CHUNK.min(usize::try_from(size).unwrap_or(CHUNK))];
    let (mut place, mut copied) = (0u64, 0u64);
    while place < size {
        let seek = |from: &File, place: u64, whence| {
            lseek(from, i64::try_from(place).unwrap_or(i64::MAX), whence)
                .map(|at| u64::try_from(at).unwrap_or(0))
        };
        let start = match seek(from, place, Whence::SeekData) {
            Ok(start) => start,
            // There is no data after this place.
            Err(Errno::ENXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = seek(from, start, Whence::SeekHole)?.min(size);
        let mut next = start;
        while next < end {
            let length = buffer.len().min(usize::try_from(end - next).unwrap_or(usize::MAX));
            let count = from.read_at(&mut buffer[..length], next)?;
            if count == 0 {
                return Err(io::Error::other("the file became shorter while guard copied it"));
            }
            copied += count as u64;
            if copied > most {
                return Err(io::Error::other("the file grew while guard copied it"));
            }
            to.write_all_at(&buffer[..count], next)?;
            next += count as u64;
        }
        place = end.max(place + 1);
    }
    Ok(copied)
}

/// Returns the free disk space for the user at a path, in bytes; no limit if the file system does not say.
fn free_bytes(path: &Path) -> u64 {
    let free = nix::sys::statvfs::statvfs(path)
        .map(|found| found.blocks_available().saturating_mul(found.fragment_size()));
    free.unwrap_or(u64::MAX)
}
