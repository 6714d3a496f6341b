//! Fingerprints of a repository: records of its state at one moment. Comparing two of them shows what changed in
//! between, and who (the user, guard or the agent) can have changed it.
//!
//! guard reads the repository without running git, and never writes to it. Nothing in the repository can make this
//! code start a program or block, and reading ten thousand refs takes a few hundredths of a second. Other processes
//! may use the repository at the same time. If a file disappears or is replaced while guard reads it, the fingerprint
//! has the file's old or new state, and guard reports no error.
//!
//! A fingerprint records:
//! - **refs** with their values, in every storage format and of every worktree, so that a difference shows the old
//!   and the new value. guard reads loose refs before `packed-refs`, as git does, so that it does not miss a ref that
//!   git packs meanwhile. If git only moves a value into `packed-refs`, guard reports no difference.
//! - **files that git obeys** (configuration, hooks, attributes, grafts, alternates, everything else except objects)
//!   with their SHA-256, so that guard reports no difference if a file is rewritten with the same content. For files
//!   above one MiB (such as a large index), and after 16 MiB in total, it records only the metadata. The metadata
//!   shows every write, because it includes the ctime, which no program can set.
//! - **reflogs** with their SHA-256 as well, because `git gc` rewrites all of them with the same content. Hashing
//!   thousands of reflogs would take longer than everything else, so guard compares all after the first thousand only
//!   by size and mode. The size shows added and removed lines, but not a line replaced by another of the same length.
//! - **no objects**: an object's name is the hash of its content, and `git fsck` checks it.

mod compare;
mod name;
mod refs;
mod reftable;
mod state;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub use compare::{Actor, Difference, ExpectedChanges, Kind};
pub use name::Name;
pub(crate) use name::is_deceptive;
pub(crate) use refs::join;
pub(crate) use state::{Entry, OpenDirectory, Stat, read_whole};

use refs::{Ref, Value, is_lock};
use state::{Content, MAX_HASHED_BYTES, State, hash};

#[derive(Debug, thiserror::Error)]
#[error("cannot read the repository {}: {source}", path.display())]
pub struct FingerprintError {
    /// The directory of the repository that guard could not read.
    pub path: PathBuf,
    pub source: io::Error,
}

/// The recorded state of a repository at one moment. guard stores it on disk, so that the next run can compare with
/// it if this run is interrupted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The path of the repository's common directory, without symbolic links.
    common: Name,
    /// The device number of the common directory.
    device: u64,
    /// When guard started to take the fingerprint, in nanoseconds since 1970.
    looked: i64,
    /// The refs by name. A ref of a linked worktree has a name such as `worktrees/ID/HEAD`, as in git.
    refs: BTreeMap<Name, Ref>,
    /// The files that git obeys, by path relative to the common directory.
    files: BTreeMap<Name, State>,
    /// The reflogs, by path relative to the common directory.
    logs: BTreeMap<Name, State>,
    /// True if the fingerprint is incomplete, because the repository exceeds a limit.
    cut: bool,
}

/// Maximum number of directory entries to record.
const MAX_ENTRIES: usize = 2_000_000;
/// Maximum number of bytes to hash in total. guard compares files beyond that only by their `Stat`.
const MAX_BYTES: u64 = 16 << 20;
/// Maximum number of reflogs to hash. guard compares further reflogs only by size and mode.
const MAX_LOGS: usize = 1_000;
/// Maximum depth of directories to read.
const MAX_DEPTH: usize = 32;
/// Minimum length of a list of files or refs for which guard uses methods that are faster only for long lists, such as
/// several threads.
const PARALLEL_THRESHOLD: usize = 1_000;

/// The state while guard takes a fingerprint: what is left of each limit, and the earlier fingerprint if there is one.
struct Scan<'a> {
    earlier: Option<&'a Fingerprint>,
    root: PathBuf,
    entries: usize,
    bytes: u64,
    logs: usize,
    cut: bool,
}

impl Scan<'_> {
    /// Subtracts the number of entries from `self.entries`, which is what is left of the limit. Drops the entries
    /// beyond the limit.
    fn count_entries(&mut self, entries: &mut Vec<Entry>) {
        if entries.len() > self.entries {
            self.cut = true;
            entries.truncate(self.entries);
        }
        self.entries -= entries.len();
    }

    fn earlier_ref(&self, name: &Name) -> Option<(&Ref, i64)> {
        let earlier = self.earlier?;
        Some((earlier.refs.get(name)?, earlier.looked))
    }
}

impl Fingerprint {
    /// Takes a fingerprint of a repository, given its common directory (`git rev-parse --git-common-dir`).
    pub fn take(common: &Path) -> Result<Self, FingerprintError> {
        Self::scan(common, None)
    }

    /// Takes a new fingerprint of the same repository. This method is much faster than [`Self::take`], because guard
    /// does not read a loose ref, reflog or other file again if its metadata is unchanged and it last changed more than
    /// two seconds before the earlier fingerprint.
    pub fn retake(&self) -> Result<Self, FingerprintError> {
        Self::scan(&self.common.path(), Some(self))
    }

    /// True if the fingerprint is incomplete, because the repository exceeds a limit.
    pub fn is_incomplete(&self) -> bool {
        self.cut
    }

    /// Returns the number of refs, including the `HEAD` of each worktree.
    pub fn refs(&self) -> usize {
        self.refs.len()
    }

    /// Returns the value of a ref: an object id, `ref: NAME` for a symbolic ref, or `unreadable (sha256 HASH)` for a
    /// broken ref; `None` if there is no such ref.
    pub fn value(&self, name: &[u8]) -> Option<String> {
        self.refs.get(&Name::from(name)).map(|found| found.value.to_string())
    }

    /// Returns all refs and their values, including the `HEAD` of each worktree.
    pub fn values(&self) -> impl Iterator<Item = (&Name, String)> {
        self.refs.iter().map(|(name, found)| (name, found.value.to_string()))
    }

    /// Compares this fingerprint with `after`, a later one of the same repository. `expected` says what guard itself
    /// changed in between.
    pub fn compare(&self, after: &Self, expected: &ExpectedChanges) -> Vec<Difference> {
        compare::compare(self, after, expected)
    }

    fn scan(common: &Path, earlier: Option<&Self>) -> Result<Self, FingerprintError> {
        let failed = |source| FingerprintError { path: common.to_path_buf(), source };
        let looked = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |passed| i64::try_from(passed.as_nanos()).unwrap_or(i64::MAX));
        let root = common.canonicalize().map_err(failed)?;
        let dir = OpenDirectory::open(&root).map_err(failed)?;
        // The device number may change with a reboot. guard then reads every file again, which only takes longer.
        let device = dir.stat().map_err(failed)?.device;
        let mut scan =
            Scan { earlier, root, entries: MAX_ENTRIES, bytes: MAX_BYTES, logs: MAX_LOGS, cut: false };
        let mut found = Self {
            common: name_of(&scan.root),
            device,
            looked,
            refs: BTreeMap::new(),
            files: BTreeMap::new(),
            logs: BTreeMap::new(),
            cut: false,
        };
        found.read(&dir, &mut scan).map_err(failed)?;
        found.cut = scan.cut;
        Ok(found)
    }

    fn read(&mut self, common: &OpenDirectory, scan: &mut Scan<'_>) -> io::Result<()> {
        self.read_git_dir(common, b"", scan)?;
        if let Some(worktrees) = common.open_below(b"worktrees")? {
            for entry in worktrees.entries()? {
                self.read_git_dir(common, &join(b"worktrees", &entry.name), scan)?;
            }
        }
        // Read `packed-refs` after all loose refs, so that guard does not miss a ref that git packs meanwhile.
        let (packed, unparsable) = refs::packed(common, scan)?;
        let mut packed: BTreeMap<Name, Ref> = packed.into_iter().collect();
        for (name, loose) in &mut self.refs {
            // If both refs have the same value, the target of the annotated tag in `packed-refs` is also that of the
            // loose ref.
            if let Some(packed) = packed.get(name).filter(|packed| packed.value == loose.value) {
                loose.peeled.clone_from(&packed.peeled);
            }
        }
        packed.append(&mut self.refs);
        self.refs = packed;
        self.record_unparsable(b"packed-refs", unparsable);
        Ok(())
    }

    /// Records the hash of unparsable data in a file with refs as a broken ref, so that a comparison shows when the
    /// data changes.
    fn record_unparsable(&mut self, path: &[u8], unparsable: Option<String>) {
        if let Some(hash) = unparsable {
            let broken = Ref { value: Value::Broken(hash), peeled: None, file: None };
            self.refs.insert(Name::from(path), broken);
        }
    }

    /// Records one git directory: the repository's common directory, or the git directory of a linked worktree.
    fn read_git_dir(&mut self, common: &OpenDirectory, path: &[u8], scan: &mut Scan<'_>) -> io::Result<()> {
        let below = |name: &[u8]| if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() };
        let Some(dir) = common.open_below(if path.is_empty() { b"." } else { path })? else { return Ok(()) };
        let mut entries = dir.entries()?;
        scan.count_entries(&mut entries);
        let mut rest = Vec::new();
        let mut reftable = false;
        for entry in entries {
            match entry.name.to_bytes() {
                b"HEAD" => {
                    let name = Name::own(below(b"HEAD"));
                    if let Some(head) = refs::read_loose(&dir, &entry.name, &name, scan)? {
                        reftable = head.value == Value::Symbolic(Name::from(NO_HEAD));
                        self.refs.insert(name, head);
                    }
                }
                b"refs" => merge(&mut self.refs, refs::loose(common, &below(b"refs"), scan)?),
                b"logs" => self.logs(common, &below(b"logs"), scan)?,
                b"objects" if path.is_empty() => {
                    if let Some(info) = dir.open_below(b"objects/info")? {
                        for name in [c"alternates", c"http-alternates"] {
                            self.file(&info, name, Name::own(join(b"objects/info", name)), None, scan)?;
                        }
                    }
                }
                b"objects" | b"worktrees" | b"packed-refs" | b"reftable" | b"lfs" | b"annex"
                    if path.is_empty() => {}
                b"reftable" => {}
                _ => rest.push(entry),
            }
        }
        if let Some((tables, unparsable)) = reftable::stack(common, &below(b"reftable"), scan)? {
            for (name, one) in tables {
                let name = if path.is_empty() { name } else { Name::own(below(name.bytes())) };
                // git reads either reftables or ref files, not both. With a reftable, the file `HEAD` exists only for
                // old versions of git.
                if reftable || !self.refs.contains_key(&name) {
                    self.refs.insert(name, one);
                }
            }
            self.record_unparsable(&below(b"reftable"), unparsable);
        }
        self.read_files(dir, path, rest, scan)
    }

    /// Records `entries`, which are in the directory `dir`, and all files below them. Skips temporary files of git,
    /// and data that does not affect git's behaviour. Of a directory that guard may not list, records only the metadata. `path` is the path of `dir`
    /// relative to the common directory.
    fn read_files(
        &mut self,
        dir: OpenDirectory,
        path: &[u8],
        entries: Vec<Entry>,
        scan: &mut Scan<'_>,
    ) -> io::Result<()> {
        let mut open = vec![(dir, path.to_vec(), None::<PathBuf>, entries)];
        while let Some((dir, path, real, entries)) = open.pop() {
            for entry in entries {
                if is_transient(&path, &entry) {
                    continue;
                }
                let name = join(&path, &entry.name);
                let is_link = match entry.is_dir {
                    Some(_) => false,
                    None => dir.stat_of(&entry.name)?.is_some_and(|stat| stat.is_link()),
                };
                let is_dir = match entry.is_dir {
                    Some(is_dir) => is_dir,
                    None => dir.stat_target(&entry.name)?.is_some_and(|stat| stat.is_dir()),
                };
                use std::os::unix::ffi::OsStrExt;
                let plain = std::ffi::OsStr::from_bytes(entry.name.to_bytes());
                let real = match &real {
                    _ if is_link => scan.root.join(Name::from(&name).path()).canonicalize().ok(),
                    Some(real) => Some(real.join(plain)),
                    None => None,
                };
                if !is_dir || is_link {
                    self.file(&dir, &entry.name, Name::from(&name), real.as_deref().map(name_of), scan)?;
                }
                if !is_dir {
                    continue;
                }
                if name.iter().filter(|byte| **byte == b'/').count() >= MAX_DEPTH {
                    scan.cut = true;
                    continue;
                }
                match dir.open_below(entry.name.to_bytes()) {
                    Ok(Some(inner)) => {
                        let mut entries = inner.entries()?;
                        scan.count_entries(&mut entries);
                        open.push((inner, name, real, entries));
                    }
                    Ok(None) => {}
                    // git may be able to use the files in a directory that guard cannot list, so record the directory.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        if let Some(stat) = dir.stat_of(&entry.name)? {
                            let state = State { stat, content: Content::Unread, real: None };
                            self.files.insert(Name::from(&name), state);
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn file(
        &mut self,
        dir: &OpenDirectory,
        file: &std::ffi::CStr,
        name: Name,
        real: Option<Name>,
        scan: &mut Scan<'_>,
    ) -> io::Result<()> {
        let earlier = scan.earlier.and_then(|earlier| Some((earlier.files.get(&name)?, earlier.looked)));
        if let Some(state) = state(dir, file, real, earlier, <[u8]>::to_vec, &mut scan.bytes)? {
            self.files.insert(name, state);
        }
        Ok(())
    }

    fn logs(&mut self, common: &OpenDirectory, top: &[u8], scan: &mut Scan<'_>) -> io::Result<()> {
        let mut open = vec![top.to_vec()];
        while let Some(path) = open.pop() {
            let Some(dir) = common.open_below(&path)? else { continue };
            let mut entries = dir.entries()?;
            entries.retain(|entry| !is_lock(&entry.name));
            scan.count_entries(&mut entries);
            let (dirs, files): (Vec<_>, Vec<_>) =
                entries.into_iter().partition(|entry| entry.is_dir == Some(true));
            if path.iter().filter(|byte| **byte == b'/').count() < MAX_DEPTH {
                open.extend(dirs.iter().map(|entry| join(&path, &entry.name)));
            } else {
                scan.cut |= !dirs.is_empty();
            }
            let (hashed, counted) = files.split_at(files.len().min(scan.logs));
            scan.logs -= hashed.len();
            for entry in hashed {
                let name = Name::own(join(&path, &entry.name));
                let earlier =
                    scan.earlier.and_then(|earlier| Some((earlier.logs.get(&name)?, earlier.looked)));
                let found = state(&dir, &entry.name, None, earlier, normalise_log, &mut scan.bytes)?;
                if let Some(state) = found {
                    self.logs.insert(name, state);
                }
            }
            let counted = map_parallel(counted, |entry| {
                let Some(stat) = dir.stat_of(&entry.name)? else { return Ok(None) };
                let state = State { stat, content: Content::Unread, real: None };
                Ok(Some((Name::own(join(&path, &entry.name)), state)))
            })?;
            merge(&mut self.logs, counted);
        }
        Ok(())
    }
}

/// Removes the tab that `git gc` adds to the end of each reflog line that has no message, so that equal logs have
/// equal hashes.
fn normalise_log(log: &[u8]) -> Vec<u8> {
    let lines = log.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\t").unwrap_or(line));
    lines.collect::<Vec<_>>().join(&b'\n')
}

/// Returns the state of a file; `None` if the file does not exist. Reuses the state from the earlier fingerprint if
/// the file's metadata and real path are unchanged and its last change was not too recent, except for symbolic links.
/// guard hashes the result of `normalise` for the file's content, and subtracts the size of the content from `left`,
/// the number of bytes that guard may still hash.
fn state(
    dir: &OpenDirectory,
    file: &std::ffi::CStr,
    real: Option<Name>,
    earlier: Option<(&State, i64)>,
    normalise: impl Fn(&[u8]) -> Vec<u8>,
    left: &mut u64,
) -> io::Result<Option<State>> {
    let Some(stat) = dir.stat_of(file)? else { return Ok(None) };
    if let Some((earlier, looked)) = earlier
        && earlier.stat == stat
        && earlier.real == real
        && stat.is_settled(looked)
        && !matches!(earlier.content, Content::Link(..))
    {
        return Ok(Some(earlier.clone()));
    }
    let mut hashed = |follow: bool| -> io::Result<Option<(String, Stat)>> {
        let Some((mut open, stat)) = skip_unreadable(dir.file(file, follow))? else { return Ok(None) };
        if !stat.is_file() || stat.size > MAX_HASHED_BYTES || stat.size > *left {
            return Ok(None);
        }
        *left -= stat.size;
        Ok(read_whole(&mut open, stat.size, MAX_HASHED_BYTES)?.map(|bytes| (hash(&normalise(&bytes)), stat)))
    };
    Ok(Some(if stat.is_link() {
        let target = dir.link(file).unwrap_or_default();
        let behind = hashed(true)?.map(|(hash, _)| hash);
        State { stat, content: Content::Link(target, behind), real }
    } else {
        match if stat.is_file() { hashed(false)? } else { None } {
            // Use the metadata of the opened file: another file may have replaced the one that guard examined first.
            Some((hash, stat)) => State { stat, content: Content::Hash(hash), real },
            None => State { stat, content: Content::Unread, real },
        }
    }))
}

/// The target in the file `HEAD` if the repository stores its actual HEAD in a reftable.
const NO_HEAD: &[u8] = b"refs/heads/.invalid";

/// Adds a list to a map. Merges a long list as a whole, which is faster than thousands of insertions.
fn merge<T>(map: &mut BTreeMap<Name, T>, list: Vec<(Name, T)>) {
    if list.len() < PARALLEL_THRESHOLD {
        map.extend(list);
    } else {
        map.append(&mut list.into_iter().collect());
    }
}

/// Applies `each` to all items, with up to four threads if there are at least a thousand items. Leaves out `None`
/// results.
fn map_parallel<A: Sync, B: Send>(
    things: &[A],
    each: impl Fn(&A) -> io::Result<Option<B>> + Sync,
) -> io::Result<Vec<B>> {
    let some = |things: &[A]| things.iter().filter_map(|thing| each(thing).transpose()).collect();
    if things.len() < PARALLEL_THRESHOLD {
        return some(things);
    }
    // Ask for the number of processors only here: the answer takes a dozen system calls.
    let threads = std::thread::available_parallelism().map_or(1, |number| number.get().min(4));
    if threads < 2 {
        return some(things);
    }
    std::thread::scope(|scope| {
        let some = &some;
        let (mine, others) = things.split_at(things.len() / threads);
        let others: Vec<_> = others
            .chunks(things.len().div_ceil(threads))
            .map(|part| scope.spawn(move || -> io::Result<Vec<B>> { some(part) }))
            .collect();
        let mut found: Vec<B> = some(mine)?;
        for other in others {
            found.append(&mut other.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?);
        }
        Ok(found)
    })
}

/// True for entries that a fingerprint ignores: temporary files of running git processes, the list of refs that `git
/// gc` writes for plain web servers, and directories with data that does not affect git's behaviour.
fn is_transient(path: &[u8], entry: &Entry) -> bool {
    let name = entry.name.to_bytes();
    let in_submodule = path.split(|byte| *byte == b'/').any(|part| part == b"modules");
    is_lock(&entry.name)
        || name.starts_with(b"tmp_")
        || name.starts_with(b".tmp")
        || name.starts_with(b".nfs")
        || name.starts_with(b"fsmonitor--daemon")
        || matches!(name, b"gc.pid" | b"packed-refs.new")
        || path == b"info" && name == b"refs"
        || in_submodule && matches!(name, b"objects" | b"logs" | b"lfs")
}

/// Converts a "permission denied" error to `None`, so that the caller skips the file.
fn skip_unreadable<T>(result: io::Result<Option<T>>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        other => other,
    }
}

fn name_of(path: &Path) -> Name {
    use std::os::unix::ffi::OsStrExt;
    Name::from(path.as_os_str().as_bytes())
}
