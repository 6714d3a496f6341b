//! What a repository looked like, so that a later look says what has changed in it, and who can have done it.
//!
//! The repository is read, never written, and no git runs: nothing in it can make this code start anything or wait, and
//! ten thousand refs cost a few hundredths of a second. Others may work in the repository at the same time; what vanishes
//! or is replaced while it is read is taken as it is found, before or after, and is no error.
//!
//! What is remembered, and why so much of it:
//! - **refs** by value, in every storage format, of every worktree: a difference says from what to what. Loose refs come
//!   first and `packed-refs` after them, in the order git reads them, so that a ref that is packed meanwhile is not missed.
//!   Where a value is stored is not compared: packing changes no ref.
//! - **files that git obeys** (configuration, hooks, attributes, grafts, alternates, everything else in the directory but
//!   objects) by their SHA-256, so that a file written again with the same content is no difference. Files of more than a
//!   MiB (a large index) by their identity alone: inode, size, times. The change time cannot be set by anybody.
//! - **reflogs** by their SHA-256 as well, because `git gc` writes all of them again with the same content. Where there is
//!   one for each of thousands of refs, that would take longer than everything else; beyond the first thousand the size
//!   must do, which tells every line that was added or cut off, and not one that was exchanged for another.
//! - **objects** not at all: they are named by their content, and `git fsck` is the judge of them.

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

/// A look at a repository that failed.
#[derive(Debug, thiserror::Error)]
#[error("the repository {} cannot be looked at: {source}", path.display())]
pub struct FingerprintError {
    /// The repository's directory.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// A repository as it was at one moment. It can be stored: a run that was cut short is compared by the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The shared directory of the repository, without links.
    common: Name,
    /// The device of that directory.
    device: u64,
    /// When the look began, in nanoseconds since 1970.
    looked: i64,
    /// By their names; those of linked worktrees as git names them, `worktrees/ID/HEAD`.
    refs: BTreeMap<Name, Ref>,
    /// By their paths below the shared directory.
    files: BTreeMap<Name, State>,
    /// By their paths below the shared directory.
    logs: BTreeMap<Name, State>,
    /// The repository is larger than what is looked at.
    cut: bool,
}

/// Entries of directories that are looked at.
const MOST_ENTRIES: usize = 2_000_000;
/// Bytes of files that are hashed; after that, identities must do.
const MOST_BYTES: u64 = 16 << 20;
/// Reflogs that are hashed.
const MOST_LOGS: usize = 1_000;
/// Directories below directories.
const DEEPEST: usize = 32;
/// From so many entries on, several threads share the work.
const MANY: usize = 1_000;

/// The state of one look.
struct Look<'a> {
    earlier: Option<&'a Fingerprint>,
    root: PathBuf,
    entries: usize,
    bytes: u64,
    logs: usize,
    cut: bool,
}

impl Look<'_> {
    /// Takes entries from what may still be looked at.
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
    /// Looks at a repository, by the directory that all its worktrees share (`git rev-parse --git-common-dir`).
    pub fn take(common: &Path) -> Result<Self, FingerprintError> {
        Self::look(common, None)
    }

    /// Looks again at the repository this fingerprint is of. Much faster than a first look: only what does not look the
    /// same is read.
    pub fn again(&self) -> Result<Self, FingerprintError> {
        Self::look(&self.common.path(), Some(self))
    }

    /// The repository was larger than what is looked at, so that this is not all of it.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// How many refs there are, HEADs included.
    pub fn refs(&self) -> usize {
        self.refs.len()
    }

    /// The value of a ref, as `git for-each-ref` or a HEAD would say it: an object's name, or `ref: NAME`.
    pub fn value(&self, name: &[u8]) -> Option<String> {
        self.refs.get(&Name::from(name)).map(|found| found.value.to_string())
    }

    /// All refs and their values, HEADs included.
    pub fn values(&self) -> impl Iterator<Item = (&Name, String)> {
        self.refs.iter().map(|(name, found)| (name, found.value.to_string()))
    }

    /// What changed between this look and a later one, and who can have changed it.
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
        // After a restart the numbers of devices may be others, and then nothing looks the same: it is only slower.
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
        // After all loose refs: see the top.
        let (packed, strange) = refs::packed(common, look)?;
        let mut packed: BTreeMap<Name, Ref> = packed.into_iter().collect();
        for (name, loose) in &mut self.refs {
            // Said of the same object, it is true of the loose one as well.
            if let Some(packed) = packed.get(name).filter(|packed| packed.value == loose.value) {
                loose.peeled.clone_from(&packed.peeled);
            }
        }
        packed.append(&mut self.refs);
        self.refs = packed;
        self.strange(b"packed-refs", strange);
        Ok(())
    }

    /// What nobody understands of a file of refs, as a ref that nobody understands.
    fn strange(&mut self, path: &[u8], strange: Option<String>) {
        if let Some(hash) = strange {
            let broken = Ref { value: Value::Broken(hash), peeled: None, file: None };
            self.refs.insert(Name::from(path), broken);
        }
    }

    /// One git directory: the shared one, or a worktree's own.
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
                // Git reads either tables or files. The HEAD that is only there for old versions tells which.
                if reftable || !self.refs.contains_key(&name) {
                    self.refs.insert(name, one);
                }
            }
            self.strange(&below(b"reftable"), strange);
        }
        self.walk(folder, path, rest, look)
    }

    /// All files below a directory, but for what is no setting of anything.
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

/// The lines of a reflog. One without a message may end with a tab or not: `git gc` writes it where there was none.
fn lines(log: &[u8]) -> Vec<u8> {
    let lines = log.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\t").unwrap_or(line));
    lines.collect::<Vec<_>>().join(&b'\n')
}

/// What a file is and says; `None` when it is gone. Not read if it looks the same as earlier.
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
            // The identity of what was read, which may have taken the place of what was seen first.
            Some((hash, stat)) => State { stat, content: Content::Hash(hash), real },
            None => State { stat, content: Content::Unread, real },
        }
    }))
}

/// What the file `HEAD` says where the real one is in a reftable.
const NO_HEAD: &[u8] = b"refs/heads/.invalid";

/// Puts a list into a map: a long one all at once, because one by one each of thousands would look for its place.
fn merge<T>(map: &mut BTreeMap<Name, T>, list: Vec<(Name, T)>) {
    if list.len() < MANY {
        map.extend(list);
    } else {
        map.append(&mut list.into_iter().collect());
    }
}

/// Does the same to many things, with a few threads if they are very many. What gives `None` is left out.
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

/// Files that other gits make and remove again as they work, a list of refs for plain web servers that `git gc` makes, and
/// directories of data that is not a setting.
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
