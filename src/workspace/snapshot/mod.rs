//! Fingerprints of a repository: comparing two shows what changed in between, and who can have changed it.
//!
//! The repository is read, never written, and no git runs. Nothing in the repository can make this code start
//! a program or block, and ten thousand refs cost a few hundredths of a second. Others may work in the
//! repository at the same time: what disappears or is replaced while it is read is recorded in its old or new
//! state, and is no error.
//!
//! What is recorded, and why:
//! - **refs** by value, in every storage format, of every worktree, so that a difference shows the old and
//!   the new value. Loose refs are read before `packed-refs`, in git's own order, so that a ref that is packed
//!   meanwhile is not missed. Where a value is stored is not compared: packing changes no ref.
//! - **files that git obeys** (configuration, hooks, attributes, grafts, alternates, everything else except
//!   objects) by their SHA-256, so that rewriting a file with the same content is no difference. Files above
//!   one MiB (a large index) only by inode, size and times. No program can set the ctime.
//! - **reflogs** by their SHA-256 as well, because `git gc` rewrites all of them with the same content. Hashing
//!   thousands of them would take longer than everything else, so beyond the first thousand only the size
//!   counts. That shows every line added or removed, but not one replaced by another of the same length.
//! - **objects** not at all: they are named by their content, and `git fsck` checks them.

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
pub(crate) use state::{DirectoryState, Entry, whole};

use refs::{Ref, Value, is_lock};
use state::{Content, MOST_HASHED, Stat, State, hash};

/// A fingerprint that could not be taken.
#[derive(Debug, thiserror::Error)]
#[error("the repository {} cannot be looked at: {source}", path.display())]
pub struct FingerprintError {
    /// The repository's directory.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

/// The state of a repository at one moment. It can be stored, so that the next run can compare after one that
/// was interrupted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The repository's common directory, without symbolic links.
    common: Name,
    /// The device of that directory.
    device: u64,
    /// When the fingerprint was started, in nanoseconds since 1970.
    looked: i64,
    /// By name; refs of linked worktrees are named `worktrees/ID/HEAD`, as git names them.
    refs: BTreeMap<Name, Ref>,
    /// By path below the common directory.
    files: BTreeMap<Name, State>,
    /// By path below the common directory.
    logs: BTreeMap<Name, State>,
    /// The repository exceeds a limit, so the fingerprint is incomplete.
    cut: bool,
}

/// Maximum number of directory entries to read.
const MOST_ENTRIES: usize = 2_000_000;
/// Maximum number of bytes to hash; beyond that, files are compared by `Stat`.
const MOST_BYTES: u64 = 16 << 20;
/// Maximum number of reflogs to hash.
const MOST_LOGS: usize = 1_000;
/// Maximum depth of directories.
const DEEPEST: usize = 32;
/// From this many entries on, several threads share the work.
const MANY: usize = 1_000;

/// The state while a fingerprint is taken.
struct Look<'a> {
    earlier: Option<&'a Fingerprint>,
    root: PathBuf,
    entries: usize,
    bytes: u64,
    logs: usize,
    cut: bool,
}

impl Look<'_> {
    /// Counts entries against the limit, and drops those beyond it.
    fn charge(&mut self, entries: &mut Vec<Entry>) {
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
        Self::look(common, None)
    }

    /// Takes another fingerprint of the same repository. Much faster than the first: only files whose
    /// metadata changed are read.
    pub fn again(&self) -> Result<Self, FingerprintError> {
        Self::look(&self.common.path(), Some(self))
    }

    /// True if the repository exceeds a limit, so that the fingerprint is incomplete.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// The number of refs, including HEADs.
    pub fn refs(&self) -> usize {
        self.refs.len()
    }

    /// The value of a ref: an object id, or `ref: NAME` for a symbolic ref.
    pub fn value(&self, name: &[u8]) -> Option<String> {
        self.refs.get(&Name::from(name)).map(|found| found.value.to_string())
    }

    /// All refs and their values, including HEADs.
    pub fn values(&self) -> impl Iterator<Item = (&Name, String)> {
        self.refs.iter().map(|(name, found)| (name, found.value.to_string()))
    }

    /// What changed between this fingerprint and a later one, and who can have changed it.
    pub fn compare(&self, after: &Self, ours: &ExpectedChanges) -> Vec<Difference> {
        compare::compare(self, after, ours)
    }

    fn look(common: &Path, earlier: Option<&Self>) -> Result<Self, FingerprintError> {
        let failed = |source| FingerprintError { path: common.to_path_buf(), source };
        let looked = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |passed| i64::try_from(passed.as_nanos()).unwrap_or(i64::MAX));
        let root = common.canonicalize().map_err(failed)?;
        let folder = DirectoryState::open(&root).map_err(failed)?;
        let device = folder.stat().map_err(failed)?.device;
        // After a reboot the device numbers may differ. Then every file is read again, which is only slower.
        let mut look =
            Look { earlier, root, entries: MOST_ENTRIES, bytes: MOST_BYTES, logs: MOST_LOGS, cut: false };
        let mut found = Self {
            common: name_of(&look.root),
            device,
            looked,
            refs: BTreeMap::new(),
            files: BTreeMap::new(),
            logs: BTreeMap::new(),
            cut: false,
        };
        found.read(&folder, &mut look).map_err(failed)?;
        found.cut = look.cut;
        Ok(found)
    }

    fn read(&mut self, common: &DirectoryState, look: &mut Look<'_>) -> io::Result<()> {
        self.admin(common, b"", look)?;
        if let Some(worktrees) = common.below(b"worktrees")? {
            for entry in worktrees.entries()? {
                self.admin(common, &join(b"worktrees", &entry.name), look)?;
            }
        }
        // After all loose refs: see the module documentation.
        let (packed, strange) = refs::packed(common, look)?;
        let mut packed: BTreeMap<Name, Ref> = packed.into_iter().collect();
        for (name, loose) in &mut self.refs {
            // If both name the same object, the peeled value applies to the loose ref as well.
            if let Some(packed) = packed.get(name).filter(|packed| packed.value == loose.value) {
                loose.peeled.clone_from(&packed.peeled);
            }
        }
        packed.append(&mut self.refs);
        self.refs = packed;
        self.strange(b"packed-refs", strange);
        Ok(())
    }

    /// Records the unparsable part of a ref file as a broken ref, so that changes of it are noticed.
    fn strange(&mut self, path: &[u8], strange: Option<String>) {
        if let Some(hash) = strange {
            let broken = Ref { value: Value::Broken(hash), peeled: None, file: None };
            self.refs.insert(Name::from(path), broken);
        }
    }

    /// Reads one git directory: the common one, or a linked worktree's.
    fn admin(&mut self, common: &DirectoryState, path: &[u8], look: &mut Look<'_>) -> io::Result<()> {
        let below = |name: &[u8]| if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() };
        let Some(folder) = common.below(if path.is_empty() { b"." } else { path })? else { return Ok(()) };
        let mut entries = folder.entries()?;
        look.charge(&mut entries);
        let mut rest = Vec::new();
        let mut reftable = false;
        for entry in entries {
            match entry.name.to_bytes() {
                b"HEAD" => {
                    let name = Name::own(below(b"HEAD"));
                    if let Some(head) = refs::read_loose(&folder, &entry.name, &name, look)? {
                        reftable = head.value == Value::Symbolic(Name::from(NO_HEAD));
                        self.refs.insert(name, head);
                    }
                }
                b"refs" => merge(&mut self.refs, refs::loose(common, &below(b"refs"), look)?),
                b"logs" => self.logs(common, &below(b"logs"), look)?,
                b"objects" if path.is_empty() => {
                    if let Some(info) = folder.below(b"objects/info")? {
                        for name in [c"alternates", c"http-alternates"] {
                            self.file(&info, name, Name::own(join(b"objects/info", name)), None, look)?;
                        }
                    }
                }
                b"objects" | b"worktrees" | b"packed-refs" | b"reftable" | b"lfs" | b"annex"
                    if path.is_empty() => {}
                b"reftable" => {}
                _ => rest.push(entry),
            }
        }
        if let Some((tables, strange)) = reftable::stack(common, &below(b"reftable"), look)? {
            for (name, one) in tables {
                let name = if path.is_empty() { name } else { Name::own(below(name.bytes())) };
                // git reads either tables or files. With a reftable, the file `HEAD` exists only for old
                // versions of git.
                if reftable || !self.refs.contains_key(&name) {
                    self.refs.insert(name, one);
                }
            }
            self.strange(&below(b"reftable"), strange);
        }
        self.walk(folder, path, rest, look)
    }

    /// Reads all files below a directory, except those that configure nothing.
    fn walk(
        &mut self,
        folder: DirectoryState,
        path: &[u8],
        entries: Vec<Entry>,
        look: &mut Look<'_>,
    ) -> io::Result<()> {
        let mut open = vec![(folder, path.to_vec(), None::<PathBuf>, entries)];
        while let Some((folder, path, real, entries)) = open.pop() {
            for entry in entries {
                if is_passing(&path, &entry) {
                    continue;
                }
                let name = join(&path, &entry.name);
                let is_link = match entry.is_folder {
                    Some(_) => false,
                    None => folder.stat_of(&entry.name)?.is_some_and(|stat| stat.is_link()),
                };
                let is_folder = match entry.is_folder {
                    Some(is_folder) => is_folder,
                    None => folder.stat_behind(&entry.name)?.is_some_and(|stat| stat.is_folder()),
                };
                use std::os::unix::ffi::OsStrExt;
                let plain = std::ffi::OsStr::from_bytes(entry.name.to_bytes());
                let real = match &real {
                    _ if is_link => look.root.join(Name::from(&name).path()).canonicalize().ok(),
                    Some(real) => Some(real.join(plain)),
                    None => None,
                };
                if !is_folder || is_link {
                    self.file(&folder, &entry.name, Name::from(&name), real.as_deref().map(name_of), look)?;
                }
                if !is_folder {
                    continue;
                }
                if name.iter().filter(|byte| **byte == b'/').count() >= DEEPEST {
                    look.cut = true;
                } else if let Some(inner) = readable(folder.below(entry.name.to_bytes()))? {
                    let mut entries = inner.entries()?;
                    look.charge(&mut entries);
                    open.push((inner, name, real, entries));
                }
            }
        }
        Ok(())
    }

    fn file(
        &mut self,
        folder: &DirectoryState,
        file: &std::ffi::CStr,
        name: Name,
        real: Option<Name>,
        look: &mut Look<'_>,
    ) -> io::Result<()> {
        let earlier = look.earlier.and_then(|earlier| Some((earlier.files.get(&name)?, earlier.looked)));
        if let Some(state) = state(folder, file, real, earlier, <[u8]>::to_vec, &mut look.bytes)? {
            self.files.insert(name, state);
        }
        Ok(())
    }

    fn logs(&mut self, common: &DirectoryState, top: &[u8], look: &mut Look<'_>) -> io::Result<()> {
        let mut open = vec![top.to_vec()];
        while let Some(path) = open.pop() {
            let Some(folder) = common.below(&path)? else { continue };
            let mut entries = folder.entries()?;
            entries.retain(|entry| !is_lock(&entry.name));
            look.charge(&mut entries);
            let (folders, files): (Vec<_>, Vec<_>) =
                entries.into_iter().partition(|entry| entry.is_folder == Some(true));
            if path.iter().filter(|byte| **byte == b'/').count() < DEEPEST {
                open.extend(folders.iter().map(|entry| join(&path, &entry.name)));
            } else {
                look.cut |= !folders.is_empty();
            }
            let (hashed, counted) = files.split_at(files.len().min(look.logs));
            look.logs -= hashed.len();
            for entry in hashed {
                let name = Name::own(join(&path, &entry.name));
                let earlier =
                    look.earlier.and_then(|earlier| Some((earlier.logs.get(&name)?, earlier.looked)));
                if let Some(state) = state(&folder, &entry.name, None, earlier, lines, &mut look.bytes)? {
                    self.logs.insert(name, state);
                }
            }
            let counted = shared(counted, |entry| {
                let Some(stat) = folder.stat_of(&entry.name)? else { return Ok(None) };
                let state = State { stat, content: Content::Unread, real: None };
                Ok(Some((Name::own(join(&path, &entry.name)), state)))
            })?;
            merge(&mut self.logs, counted);
        }
        Ok(())
    }
}

/// Normalises the lines of a reflog: `git gc` adds a tab to a line without a message.
fn lines(log: &[u8]) -> Vec<u8> {
    let lines = log.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\t").unwrap_or(line));
    lines.collect::<Vec<_>>().join(&b'\n')
}

/// Records the state of a file; `None` if it is gone. Does not read it if its metadata is unchanged.
fn state(
    folder: &DirectoryState,
    file: &std::ffi::CStr,
    real: Option<Name>,
    earlier: Option<(&State, i64)>,
    meaning: impl Fn(&[u8]) -> Vec<u8>,
    left: &mut u64,
) -> io::Result<Option<State>> {
    let Some(stat) = folder.stat_of(file)? else { return Ok(None) };
    if let Some((earlier, looked)) = earlier
        && earlier.stat == stat
        && earlier.real == real
        && stat.is_settled(looked)
        && !matches!(earlier.content, Content::Link(..))
    {
        return Ok(Some(earlier.clone()));
    }
    let mut hashed = |follow: bool| -> io::Result<Option<(String, Stat)>> {
        let Some((mut open, stat)) = readable(folder.file(file, follow))? else { return Ok(None) };
        if !stat.is_file() || stat.size > MOST_HASHED || stat.size > *left {
            return Ok(None);
        }
        *left -= stat.size;
        Ok(whole(&mut open, stat.size, MOST_HASHED)?.map(|bytes| (hash(&meaning(&bytes)), stat)))
    };
    Ok(Some(if stat.is_link() {
        let target = folder.link(file).unwrap_or_default();
        let behind = hashed(true)?.map(|(hash, _)| hash);
        State { stat, content: Content::Link(target, behind), real }
    } else {
        match if stat.is_file() { hashed(false)? } else { None } {
            // The metadata of the file that was read: it may have replaced the one that was seen first.
            Some((hash, stat)) => State { stat, content: Content::Hash(hash), real },
            None => State { stat, content: Content::Unread, real },
        }
    }))
}

/// The content of the file `HEAD` if the real HEAD is in a reftable.
const NO_HEAD: &[u8] = b"refs/heads/.invalid";

/// Adds a list to a map. A long list is merged at once, which is faster than thousands of single insertions.
fn merge<T>(map: &mut BTreeMap<Name, T>, list: Vec<(Name, T)>) {
    if list.len() < MANY {
        map.extend(list);
    } else {
        map.append(&mut list.into_iter().collect());
    }
}

/// Applies a function to many items, with several threads if there are very many. Drops `None` results.
fn shared<A: Sync, B: Send>(
    things: &[A],
    each: impl Fn(&A) -> io::Result<Option<B>> + Sync,
) -> io::Result<Vec<B>> {
    let some = |things: &[A]| things.iter().filter_map(|thing| each(thing).transpose()).collect();
    let threads = std::thread::available_parallelism().map_or(1, |number| number.get().min(4));
    if things.len() < MANY || threads < 2 {
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

/// True for temporary files of running git processes, for the list of refs that `git gc` writes for plain web
/// servers, and for directories of data that configures nothing.
fn is_passing(path: &[u8], entry: &Entry) -> bool {
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

fn readable<T>(result: io::Result<Option<T>>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        other => other,
    }
}

fn name_of(path: &Path) -> Name {
    use std::os::unix::ffi::OsStrExt;
    Name::from(path.as_os_str().as_bytes())
}
