//! Answers for a path: may an agent have written this file, or a symbolic link on the way to it?
//!
//! guard judges what a run does while it lasts. What a run leaves behind (files, links, `#!` lines) must not decide
//! what guard starts, grants, copies or writes later, outside the sandbox. So every such decision asks [`AgentPaths`].
//! It knows these places:
//! - guard's own state directory, which contains histories and files saved from runs;
//! - directories that a run could write, and checkouts on which a run worked, from the record that
//!   [`AgentPaths::record`] and [`AgentPaths::record_checkouts`] keep beside the runs. The record has their paths and
//!   inodes, so that guard still knows a directory that was moved or whose `.git` is gone;
//! - worktrees in a directory with the name `.worktrees`;
//! - every other git working tree, whether a run had it or not. Exceptions are a working tree that is or contains the
//!   caller's home directory (dotfiles in git) or the system's directories (`/etc` in git), and one in a hidden
//!   directory of the home directory on which no run has worked: `~/.nvm`, `~/.pyenv` and `~/.asdf` are clones that
//!   contain installed tools.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use nix::fcntl::{Flock, FlockArg};

use super::fs::{
    Durability, Links, Walk, c_path, open_regular_file, open_with_flags, replace_file, resolve_existing,
};

/// The name of the directory in which guard creates worktrees, beside the user's repository.
const WORKTREES: &str = ".worktrees";
/// The name of the record of directories of runs, in guard's state directory.
const RECORD: &str = "agent-directories";
/// The maximum size of the record in bytes. When it is half as large, guard removes the entries of missing directories,
/// and of those that were moved.
const MAX_RECORD_BYTES: u64 = 8 << 20;
/// The maximum number of symbolic links that guard follows in one path. The kernel has the same limit.
const MAX_LINKS: usize = 40;
/// How often [`AgentPaths::open`] resolves a path again because another process replaced a part of it meanwhile.
const MAX_TRIES: usize = 20;

/// A directory in which an agent may have written every file and link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentPlace {
    /// The directory, without symbolic links in its path.
    pub root: PathBuf,
    pub kind: PlaceKind,
}

/// Why guard assumes that an agent wrote in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlaceKind {
    /// A run had write access to the directory.
    Written,
    /// guard saves histories and other files of runs there.
    State,
    /// A git working tree, in which a run may have worked.
    WorkingTree,
}

impl fmt::Display for AgentPlace {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let root = self.root.display();
        match self.kind {
            PlaceKind::Written => write!(to, "{root}, where agents work"),
            PlaceKind::State => write!(to, "{root}, where guard saves files of runs"),
            PlaceKind::WorkingTree => write!(to, "the git working tree {root}"),
        }
    }
}

/// A symbolic link that an agent may have written, and that leads out of the place that contains it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignLink {
    /// The path of the link, without symbolic links in its directory.
    pub link: PathBuf,
    pub place: AgentPlace,
    /// The real path to which the whole path leads.
    pub target: PathBuf,
}

impl fmt::Display for ForeignLink {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (link, target) = (self.link.display(), self.target.display());
        write!(to, "{link} is a symbolic link to {target}, and an agent could have created the link")
    }
}

/// The real path of an existing file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The path with all symbolic links resolved.
    pub real: PathBuf,
    /// The first link on the way that an agent may have written, and that leads out of its place. The caller must then
    /// use `real` only if the run may use it anyway.
    pub foreign: Option<ForeignLink>,
    /// True if there is a link on the way that an agent may have written, wherever it leads.
    pub has_agent_link: bool,
}

impl Resolved {
    /// Returns the real path; fails with the foreign link if there is one.
    pub fn own(self) -> Result<PathBuf, ForeignLink> {
        match self.foreign {
            None => Ok(self.real),
            Some(link) => Err(link),
        }
    }
}

/// The places in which agents may have written, as seen by one user.
#[derive(Debug, Clone, Default)]
pub struct AgentPaths {
    home: Option<PathBuf>,
    state: Option<PathBuf>,
    by_path: HashMap<PathBuf, PlaceKind>,
    by_inode: HashMap<Inode, PlaceKind>,
}

/// What distinguishes a directory from all others, also after it was moved. The birth time, in nanoseconds, distinguishes
/// it from a later directory with the same inode number; 0 if the file system has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Inode {
    device: u64,
    number: u64,
    born: u64,
}

impl Inode {
    fn of(path: &Path) -> Option<Self> {
        let found = path.symlink_metadata().ok()?;
        let born = found.created().ok().and_then(|born| born.duration_since(SystemTime::UNIX_EPOCH).ok());
        let born = born.map_or(0, |born| born.as_nanos() as u64);
        Some(Self { device: found.dev(), number: found.ino(), born })
    }
}

/// An entry of the record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    path: PathBuf,
    /// [`PlaceKind::Written`], or [`PlaceKind::WorkingTree`] for a checkout.
    kind: PlaceKind,
    /// `None` in the records of older versions of guard.
    inode: Option<Inode>,
}

impl Entry {
    /// The words that stand for the kinds in the record.
    const KINDS: [(&str, PlaceKind); 2] =
        [("=written", PlaceKind::Written), ("=checkout", PlaceKind::WorkingTree)];

    /// Returns the path and, for versions of guard that know it, a second part with the kind and the inode. A NUL byte
    /// ends each.
    fn encode(&self) -> Vec<u8> {
        let mut text = self.path.as_os_str().as_bytes().to_vec();
        text.push(0);
        if let Some(Inode { device, number, born }) = self.inode {
            let word = Self::KINDS.iter().find(|(_, kind)| *kind == self.kind).map_or("", |(word, _)| word);
            text.extend_from_slice(format!("{word} {device} {number} {born}\0").as_bytes());
        }
        text
    }

    /// Parses the second part of an entry.
    fn decode_inode(part: &[u8]) -> Option<(PlaceKind, Inode)> {
        let mut words = std::str::from_utf8(part).ok()?.split(' ');
        let word = words.next()?;
        let (_, kind) = *Self::KINDS.iter().find(|(known, _)| *known == word)?;
        let mut number = || words.next()?.parse().ok();
        Some((kind, Inode { device: number()?, number: number()?, born: number()? }))
    }

    /// Returns the entry without what no longer holds for its path; `None` if there is nothing at the path.
    fn compacted(mut self) -> Option<Self> {
        let inode = Inode::of(&self.path)?;
        self.inode = self.inode.filter(|recorded| *recorded == inode);
        Some(self)
    }
}

/// Returns guard's state directory: `$XDG_STATE_HOME/guard`, or `~/.local/state/guard` if the variable is not set to an
/// absolute path. `None` if HOME is not one either.
pub fn state_directory() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    base.map(|base| base.join("guard"))
}

impl AgentPaths {
    /// Returns the places for the user's home directory `home` and guard's state directory `state`. Reads the record of
    /// written directories in `state`. Fails if the record exists, but guard cannot read it.
    pub fn read(home: Option<&Path>, state: Option<&Path>) -> io::Result<Self> {
        let real = |path: &Path| path.canonicalize().ok().filter(|_| path.is_absolute());
        let (home, state) = (home.and_then(real), state.and_then(real));
        let entries = state.as_deref().map(read_record).transpose()?.unwrap_or_default();
        let mut paths = Self { home, state, ..Self::default() };
        for Entry { path, kind, inode } in entries {
            paths.by_path.entry(path).and_modify(|known| *known = kind.min(*known)).or_insert(kind);
            if let Some(inode) = inode {
                paths.by_inode.entry(inode).and_modify(|known| *known = kind.min(*known)).or_insert(kind);
            }
        }
        Ok(paths)
    }

    /// Returns the places for the user whose HOME and XDG_STATE_HOME are in the environment of this process.
    pub fn from_environment() -> io::Result<Self> {
        Self::read(std::env::var_os("HOME").as_deref().map(Path::new), state_directory().as_deref())
    }

    /// Adds a directory to which a run has write access. Only this value knows it: see [`Self::record`].
    pub fn add(&mut self, directory: &Path) {
        if let Ok(real) = directory.canonicalize() {
            self.by_path.insert(real, PlaceKind::Written);
        }
    }

    /// Writes the directories to which a run is about to get write access into the record in the state directory.
    /// Leaves out directories that it contains, and those that guard itself created for runs. The record must be on disk
    /// before the run starts.
    pub fn record<'p>(
        state: &Path,
        known: &Self,
        directories: impl IntoIterator<Item = &'p Path>,
    ) -> io::Result<()> {
        known.append(state, PlaceKind::Written, directories)
    }

    /// Writes the checkouts of a repository on which a run is about to work in a worktree into the record in the state
    /// directory: the work of the run ends there. Leaves out the home directory and directories of the system, because
    /// guard would then trust no program.
    pub fn record_checkouts<'p>(
        state: &Path,
        known: &Self,
        checkouts: impl IntoIterator<Item = &'p Path>,
    ) -> io::Result<()> {
        let contains_home = |tree: &Path| known.home.as_ref().is_some_and(|home| home.starts_with(tree));
        let may_be_recorded = |tree: &&Path| {
            tree.canonicalize().is_ok_and(|real| !contains_home(&real) && !is_of_system(&real))
        };
        known.append(state, PlaceKind::WorkingTree, checkouts.into_iter().filter(may_be_recorded))
    }

    fn append<'p>(
        &self,
        state: &Path,
        kind: PlaceKind,
        directories: impl IntoIterator<Item = &'p Path>,
    ) -> io::Result<()> {
        let is_unknown = |real: &PathBuf| {
            let place = self.place_of(real);
            let is_of_other =
                place.is_some_and(|place| place.kind != PlaceKind::WorkingTree && place.root != *real);
            !is_of_other && !is_worktree_directory(real)
        };
        let real = directories.into_iter().filter_map(|directory| directory.canonicalize().ok());
        let entry = |path: PathBuf| Some(Entry { kind, inode: Some(Inode::of(&path)?), path });
        let mut new: Vec<Entry> = real.filter(is_unknown).filter_map(entry).collect();
        new.retain(|entry| !self.contains(entry));
        new.sort();
        new.dedup();
        if new.is_empty() { Ok(()) } else { append_to_record(state, &new) }
    }

    /// Returns true if the record has the path and the inode of an entry, with the same kind or a stricter one.
    fn contains(&self, entry: &Entry) -> bool {
        let is_as_strict = |known: Option<&PlaceKind>| known.is_some_and(|known| *known <= entry.kind);
        is_as_strict(self.by_path.get(&entry.path))
            && entry.inode.is_none_or(|inode| is_as_strict(self.by_inode.get(&inode)))
    }

    /// Returns what the record says about a directory.
    fn recorded_kind(&self, directory: &Path) -> Option<PlaceKind> {
        let by_path = self.by_path.get(directory);
        let inode = if self.by_inode.is_empty() { None } else { Inode::of(directory) };
        by_path.into_iter().chain(inode.and_then(|inode| self.by_inode.get(&inode))).min().copied()
    }

    /// Returns the innermost place that contains a path. The directory of the path must not contain symbolic links. If
    /// the path is a symbolic link, returns the place of the link, not of its target.
    pub fn place_of(&self, path: &Path) -> Option<AgentPlace> {
        path.ancestors().skip(usize::from(path.is_symlink())).find_map(|level| {
            let recorded = self.recorded_kind(level);
            let kind = if recorded == Some(PlaceKind::Written) || is_worktree_directory(level) {
                PlaceKind::Written
            } else if self.state.as_deref() == Some(level) {
                PlaceKind::State
            } else if recorded.is_some() || self.is_working_tree(level) {
                PlaceKind::WorkingTree
            } else {
                return None;
            };
            Some(AgentPlace { root: level.to_path_buf(), kind })
        })
    }

    /// Returns the first place through which a path leads, with symbolic links followed one by one. `None` if no agent
    /// can have written the file, or a link on the way to it. Fails if the path does not exist.
    pub fn first_place(&self, path: &Path) -> io::Result<Option<AgentPlace>> {
        let mut place = None;
        let real = walk(path, |at, _| {
            if place.is_none() {
                place = self.place_of(at);
            }
        })?;
        Ok(place.or_else(|| self.place_of(&real)))
    }

    /// Returns true if a run had a directory through which the path leads, with symbolic links followed one by one: one
    /// that the record contains, a worktree of a run, or guard's state directory. Other git working trees do not count.
    pub fn leads_through_run(&self, path: &Path) -> io::Result<bool> {
        let is_of_run = |at: &Path| {
            at.ancestors().any(|level| {
                self.recorded_kind(level).is_some()
                    || is_worktree_directory(level)
                    || self.state.as_deref() == Some(level)
            })
        };
        let mut found = false;
        let real = walk(path, |at, _| found |= is_of_run(at))?;
        Ok(found || is_of_run(&real))
    }

    /// Resolves the symbolic links of a path one by one. Fails if the path does not exist.
    pub fn resolve(&self, path: &Path) -> io::Result<Resolved> {
        let mut links: Vec<(PathBuf, AgentPlace)> = Vec::new();
        let real = walk(path, |at, step| {
            if let Some(place) = self.place_of(at).filter(|_| step == Step::Link) {
                links.push((at.to_path_buf(), place));
            }
        })?;
        let has_agent_link = !links.is_empty();
        let foreign = links.into_iter().find(|(_, place)| !real.starts_with(&place.root));
        let foreign = foreign.map(|(link, place)| ForeignLink { link, place, target: real.clone() });
        Ok(Resolved { real, foreign, has_agent_link })
    }

    /// Returns the real path of a file or directory that need not exist yet. Fails if a link that an agent may have written
    /// leads there from another place.
    pub fn own_path(&self, path: &Path) -> io::Result<PathBuf> {
        for above in path.ancestors() {
            match self.resolve(above) {
                Ok(resolved) => {
                    let real = resolved.own().map_err(|link| io::Error::other(link.to_string()))?;
                    return Ok(path.strip_prefix(above).map_or(real.clone(), |below| real.join(below)));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound && !above.is_symlink() => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::InvalidInput.into())
    }

    /// Opens a file or directory, with the given flags, at the path to which [`Self::resolve`] leads. The descriptor
    /// refers to exactly this real path, even if another process replaces parts of the path meanwhile.
    pub fn open(&self, path: &Path, flags: i32) -> io::Result<(OwnedFd, Resolved)> {
        let root = File::open("/")?;
        for _ in 0..MAX_TRIES {
            let resolved = self.resolve(path)?;
            let name = c_path(&resolved.real)?;
            match open_with_flags(root.as_fd(), &name, flags | libc::O_CLOEXEC, Walk::NoLinks) {
                // Another process has put a link in place of a directory.
                Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {}
                opened => return Ok((opened?, resolved)),
            }
        }
        Err(io::Error::other(format!("another process keeps replacing {}", path.display())))
    }

    fn is_working_tree(&self, directory: &Path) -> bool {
        directory.join(".git").symlink_metadata().is_ok()
            && !self.holds_installed_tools(directory)
            && !is_of_system(directory)
    }

    /// Returns true if a working tree contains installed tools and not a project: it is or contains the home
    /// directory, or it is in a hidden directory of the home directory.
    fn holds_installed_tools(&self, tree: &Path) -> bool {
        let Some(home) = &self.home else { return false };
        let is_hidden = |below: &Path| {
            let first = below.components().next();
            first.is_some_and(|first| first.as_os_str().as_bytes().starts_with(b"."))
        };
        home.starts_with(tree) || tree.strip_prefix(home).is_ok_and(is_hidden)
    }
}

/// Reads a regular file of at most `most` bytes as UTF-8 text. Fails if a symbolic link that an agent may have written
/// leads to it from another place: guard's messages quote the text of a file, and prompts are sent to an agent. Returns
/// the problem as text.
pub fn read_text_file(path: &Path, most: usize) -> Result<String, String> {
    let fails = |error: io::Error| error.to_string();
    let path = std::path::absolute(path).map_err(fails)?;
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
    let (file, resolved) =
        AgentPaths::from_environment().and_then(|paths| paths.open(&path, flags)).map_err(fails)?;
    resolved.own().map_err(|link| link.to_string())?;
    let file = File::from(file);
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return Err("the path is not a regular file".to_string());
    }
    let mut bytes = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(fails)?;
    if bytes.len() > most {
        return Err(format!("the file is larger than {most} bytes"));
    }
    String::from_utf8(bytes)
        .map_err(|error| format!("the file is not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
}

/// Returns the real path of an existing file or directory that the user named. Fails if a link that an agent may have
/// written leads there from another place.
pub fn own_real_path(path: &Path) -> io::Result<PathBuf> {
    let resolved = AgentPaths::from_environment()?.resolve(&std::path::absolute(path)?)?;
    resolved.own().map_err(|link| io::Error::other(link.to_string()))
}

/// Opens a file that the user named, for reading. In a place where an agent may have written, opens only a regular file,
/// and no file to which a link leads from that place. Elsewhere opens anything, such as the pipe of `<(command)`.
pub fn open_named_file(path: &Path) -> io::Result<File> {
    // These lead to a descriptor of this process, which may have no path.
    let descriptors = [Path::new("/dev/fd"), Path::new("/proc/self/fd")];
    if path == Path::new("/dev/stdin") || path.parent().is_some_and(|parent| descriptors.contains(&parent)) {
        return File::open(path);
    }
    let path = std::path::absolute(path)?;
    let paths = AgentPaths::from_environment()?;
    if paths.first_place(&path)?.is_none() {
        return File::open(path);
    }
    let (file, resolved) = paths.open(&path, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY)?;
    resolved.own().map_err(|link| io::Error::other(link.to_string()))?;
    let file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("the path is not a regular file, and an agent could have created it"));
    }
    Ok(file)
}

/// Returns the paths that decide what a path leads to: those of all symbolic links on the way, `DIRECTORY/..` for the
/// directories that `..` leaves, and the real path. Without links, or if the path does not exist, that is the path itself
/// with its existing directories resolved.
pub fn deciding_paths(path: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let real = walk(path, |at, step| {
        paths.push(match step {
            Step::Link => at.to_path_buf(),
            Step::LeftDirectory => at.join(".."),
        });
    });
    paths.push(real.unwrap_or_else(|_| resolve_existing(path)));
    paths
}

/// Returns true for the directory of all worktrees, and for a directory directly below it.
fn is_worktree_directory(directory: &Path) -> bool {
    let is_named = |path: &Path| path.file_name() == Some(OsStr::new(WORKTREES));
    is_named(directory) || directory.parent().is_some_and(is_named)
}

/// Returns true for `/etc`, which administrators may keep in git, and for directories that contain the system's
/// programs.
fn is_of_system(directory: &Path) -> bool {
    directory == Path::new("/etc") || Path::new("/usr/bin").starts_with(directory)
}

/// What [`walk`] visits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Link,
    /// A directory that `..` leaves. Another process could replace it by a link after the walk.
    LeftDirectory,
}

/// Resolves all symbolic links of an absolute path, as the kernel does. Calls `visit` with the path of every [`Step`].
/// These paths contain no symbolic links in their directories.
fn walk(path: &Path, mut visit: impl FnMut(&Path, Step)) -> io::Result<PathBuf> {
    if !path.is_absolute() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let names = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|part| part.as_os_str().to_os_string()).collect()
    };
    let mut ahead = names(path);
    let mut real = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = ahead.pop() {
        match Path::new(&name).components().next() {
            Some(Component::Normal(name)) => {
                let next = real.join(name);
                match std::fs::read_link(&next) {
                    Ok(target) => {
                        visit(&next, Step::Link);
                        links += 1;
                        if links > MAX_LINKS {
                            return Err(io::Error::from_raw_os_error(libc::ELOOP));
                        }
                        ahead.extend(names(&target));
                    }
                    // EINVAL: not a link.
                    Err(error) if error.raw_os_error() == Some(libc::EINVAL) => real = next,
                    Err(error) => return Err(error),
                }
            }
            Some(Component::ParentDir) => {
                visit(&real, Step::LeftDirectory);
                real.pop();
            }
            Some(Component::RootDir) => real = PathBuf::from("/"),
            _ => {}
        }
    }
    Ok(real)
}

/// Reads the record of directories of runs. Empty if there is none.
fn read_record(state: &Path) -> io::Result<Vec<Entry>> {
    match open_regular_file(&state.join(RECORD), MAX_RECORD_BYTES, Links::Refuse) {
        Ok(mut file) => read_entries(&mut file),
        Err(error) => match io::Error::from(error) {
            error if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            error => Err(error),
        },
    }
}

fn read_entries(file: &mut File) -> io::Result<Vec<Entry>> {
    let mut bytes = Vec::new();
    file.take(MAX_RECORD_BYTES).read_to_end(&mut bytes)?;
    // What follows the last NUL byte is an entry of a guard that was killed before its run could start.
    let Some(end) = bytes.iter().rposition(|&byte| byte == 0) else { return Ok(Vec::new()) };
    let mut entries: Vec<Entry> = Vec::new();
    for part in bytes[..end].split(|&byte| byte == 0) {
        if part.first() == Some(&b'/') {
            let path = PathBuf::from(OsString::from_vec(part.to_vec()));
            entries.push(Entry { path, kind: PlaceKind::Written, inode: None });
        } else if let (Some((kind, inode)), Some(entry)) = (Entry::decode_inode(part), entries.last_mut()) {
            (entry.kind, entry.inode) = (kind, Some(inode));
        }
    }
    entries.sort();
    entries.dedup();
    Ok(entries)
}

fn append_to_record(state: &Path, new: &[Entry]) -> io::Result<()> {
    let path = state.join(RECORD);
    let mut file = lock_record(&path)?;
    let known = read_entries(&mut file)?;
    let unknown = new.iter().filter(|entry| known.binary_search(entry).is_err());
    let mut text: Vec<u8> = unknown.flat_map(Entry::encode).collect();
    if text.is_empty() {
        return Ok(());
    }
    let size = file.metadata()?.len();
    if size + text.len() as u64 > MAX_RECORD_BYTES / 2 {
        let mut known: Vec<Entry> = known.into_iter().filter_map(Entry::compacted).collect();
        known.dedup();
        text.extend(known.iter().flat_map(Entry::encode));
        if text.len() as u64 > MAX_RECORD_BYTES {
            return Err(io::Error::other(format!("{} has too many entries", path.display())));
        }
        return replace_file(&path, &text, 0o600, Durability::Synced);
    }
    // An interrupted write may have left a part of an entry. The NUL byte ends it.
    text.insert(0, 0);
    file.write_all(&text)?;
    file.sync_data()
}

/// Opens the record for appending, and locks it. Another guard may replace the file while this one waits for the lock.
fn lock_record(path: &Path) -> io::Result<Flock<File>> {
    loop {
        let mut options = OpenOptions::new();
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = options.read(true).append(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
        let locked =
            Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| io::Error::from(errno))?;
        let (opened, current) = (locked.metadata()?, path.symlink_metadata());
        if current.is_ok_and(|current| (current.dev(), current.ino()) == (opened.dev(), opened.ino())) {
            return Ok(locked);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test ends where something goes wrong")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Machine(PathBuf);

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    impl Machine {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("guard-agent-paths-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&root);
            for directory in
                ["home/.nvm/.git", "home/project/.git", "home/documents", "state/guard", "plain/sub"]
            {
                std::fs::create_dir_all(root.join(directory)).unwrap();
            }
            for file in ["home/.nvm/node", "home/project/file", "home/documents/letter", "plain/sub/file"] {
                std::fs::write(root.join(file), "").unwrap();
            }
            Self(root.canonicalize().unwrap())
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.join(path)
        }

        fn state(&self) -> PathBuf {
            self.at("state/guard")
        }

        fn paths(&self) -> AgentPaths {
            AgentPaths::read(Some(&self.at("home")), Some(&self.state())).unwrap()
        }

        fn record(&self, directory: &str) {
            let directory = self.at(directory);
            AgentPaths::record(&self.state(), &self.paths(), [directory.as_path()]).unwrap();
        }

        fn record_checkout(&self, directory: &str) {
            let directory = self.at(directory);
            AgentPaths::record_checkouts(&self.state(), &self.paths(), [directory.as_path()]).unwrap();
        }

        fn root_of(&self, path: &str) -> Option<PathBuf> {
            self.paths().place_of(&self.at(path)).map(|place| place.root)
        }
    }

    #[test]
    fn working_trees_worktrees_and_the_state_directory_are_places_of_agents() {
        let machine = Machine::new("places");
        std::fs::create_dir_all(machine.at("home/.git")).unwrap();
        std::fs::create_dir_all(machine.at("home/.worktrees/project-one/bin")).unwrap();
        assert_eq!(machine.root_of("home/project/file"), Some(machine.at("home/project")));
        assert_eq!(machine.root_of("state/guard/history/file"), Some(machine.state()));
        let worktree = machine.at("home/.worktrees/project-one");
        assert_eq!(machine.root_of("home/.worktrees/project-one/bin"), Some(worktree));
        assert_eq!(machine.root_of("home/documents/letter"), None, "the home directory itself is in git");
        assert_eq!(machine.root_of("home/.nvm/node"), None, "installed tools");
        assert_eq!(machine.root_of("plain/sub/file"), None);
        assert_eq!(machine.root_of("/usr/bin/env"), None);
    }

    #[test]
    fn a_recorded_directory_stays_a_place_of_agents() {
        let machine = Machine::new("record");
        machine.record("plain/sub");
        machine.record("home/.nvm");
        machine.record("home/project");
        assert_eq!(machine.root_of("plain/sub/file"), Some(machine.at("plain/sub")));
        assert_eq!(
            machine.root_of("home/.nvm/node"),
            Some(machine.at("home/.nvm")),
            "a run could write there"
        );
        assert_eq!(machine.root_of("plain"), None);
        let record = std::fs::read(machine.state().join(RECORD)).unwrap();
        machine.record("plain/sub");
        assert_eq!(
            std::fs::read(machine.state().join(RECORD)).unwrap(),
            record,
            "a known place is written once"
        );
        let project = machine.paths().place_of(&machine.at("home/project/file")).unwrap();
        assert_eq!(project.kind, PlaceKind::Written, "a run had the working tree itself");
    }

    #[test]
    fn a_recorded_directory_stays_a_place_of_agents_wherever_it_is() {
        let machine = Machine::new("moved");
        machine.record("plain/sub");
        machine.record_checkout("home/project");
        std::fs::rename(machine.at("plain/sub"), machine.at("home/moved")).unwrap();
        std::fs::create_dir(machine.at("plain/sub")).unwrap();
        std::fs::remove_dir(machine.at("home/project/.git")).unwrap();
        std::fs::rename(machine.at("home/project"), machine.at("home/other")).unwrap();
        assert_eq!(machine.root_of("home/moved/file"), Some(machine.at("home/moved")));
        assert_eq!(machine.root_of("plain/sub"), Some(machine.at("plain/sub")), "the path stays");
        assert_eq!(machine.root_of("home/other/file"), Some(machine.at("home/other")));
        assert_eq!(machine.root_of("home/documents/letter"), None);
        // The new directory at the old path is one of its own.
        machine.record("plain/sub");
        std::fs::rename(machine.at("plain/sub"), machine.at("home/second")).unwrap();
        assert_eq!(machine.root_of("home/second"), Some(machine.at("home/second")));
    }

    #[test]
    fn a_clone_in_a_hidden_directory_holds_installed_tools_until_a_run_works_on_it() {
        let machine = Machine::new("checkouts");
        std::fs::create_dir_all(machine.at("home/.git")).unwrap();
        machine.record_checkout("home");
        assert_eq!(machine.root_of("home/documents/letter"), None, "not the home directory itself");
        assert_eq!(machine.root_of("home/.nvm/node"), None);
        machine.record_checkout("home/.nvm");
        let place = machine.paths().place_of(&machine.at("home/.nvm/node")).unwrap();
        assert_eq!((place.root, place.kind), (machine.at("home/.nvm"), PlaceKind::WorkingTree));
        machine.record("home/.nvm");
        let place = machine.paths().place_of(&machine.at("home/.nvm/node")).unwrap();
        assert_eq!(place.kind, PlaceKind::Written, "a run could write there");
        machine.record_checkout("home/.nvm");
        assert_eq!(machine.paths().place_of(&machine.at("home/.nvm/node")).unwrap(), place);
    }

    #[test]
    fn entries_of_an_older_record_stay_valid_and_get_an_inode() {
        let machine = Machine::new("older");
        let old = [machine.at("plain").as_os_str().as_bytes(), b"\0"].concat();
        std::fs::write(machine.state().join(RECORD), old).unwrap();
        assert_eq!(machine.root_of("plain/sub/file"), Some(machine.at("plain")));
        machine.record("plain");
        std::fs::rename(machine.at("plain"), machine.at("moved")).unwrap();
        assert_eq!(machine.root_of("moved/sub/file"), Some(machine.at("moved")));
    }

    #[test]
    fn a_full_record_keeps_the_directories_that_exist() {
        let machine = Machine::new("full");
        machine.record("plain/sub");
        let missing: Vec<u8> =
            (0..40_000).flat_map(|n| format!("/missing/{n:0100}\0").into_bytes()).collect();
        let mut record = OpenOptions::new().append(true).open(machine.state().join(RECORD)).unwrap();
        record.write_all(&missing).unwrap();
        machine.record("home/documents");
        assert!(record_size(&machine) < 1024, "{}", record_size(&machine));
        std::fs::rename(machine.at("plain/sub"), machine.at("moved")).unwrap();
        assert_eq!(machine.root_of("moved/file"), Some(machine.at("moved")));
        assert_eq!(machine.root_of("home/documents/letter"), Some(machine.at("home/documents")));
    }

    fn record_size(machine: &Machine) -> u64 {
        machine.state().join(RECORD).metadata().unwrap().len()
    }

    #[test]
    fn an_interrupted_write_of_the_record_loses_no_other_entry() {
        let machine = Machine::new("torn");
        std::fs::write(machine.state().join(RECORD), b"/some/dir\0/half/of/a").unwrap();
        machine.record("plain");
        let written = machine.paths().by_path;
        assert!(written.contains_key(&machine.at("plain")) && written.contains_key(Path::new("/some/dir")));
        symlink("/etc/passwd", machine.at("link")).unwrap();
        std::fs::rename(machine.at("link"), machine.state().join(RECORD)).unwrap();
        assert!(AgentPaths::read(None, Some(&machine.state())).is_err(), "a link in place of the record");
    }

    #[test]
    fn a_link_of_an_agent_that_leaves_its_place_is_foreign() {
        let machine = Machine::new("links");
        let link = |target: &Path, at: &str| symlink(target, machine.at(at)).unwrap();
        link(Path::new("file"), "home/project/inside");
        link(&machine.at("home/project/file"), "home/project/absolute");
        link(&machine.at("home/documents"), "home/project/out");
        link(Path::new("../documents"), "home/project/up");
        link(&machine.at("home/project"), "home/documents/back");
        link(&machine.at("home/documents/back/file"), "home/project/round");
        let resolve = |path: &str| machine.paths().resolve(&machine.at(path)).unwrap();
        let own = ["inside", "absolute", "round"].map(|name| format!("home/project/{name}"));
        for path in
            own.iter().map(String::as_str).chain(["home/documents/back/file", "home/project/../documents"])
        {
            assert_eq!(resolve(path).foreign, None, "{path}");
        }
        for path in ["home/project/out/letter", "home/project/up", "home/documents/back/up/letter"] {
            let foreign = resolve(path).foreign.unwrap();
            assert_eq!(foreign.place.root, machine.at("home/project"), "{path}");
            assert!(foreign.target.starts_with(machine.at("home/documents")), "{path}: {foreign}");
        }
        let first =
            |path: &str| machine.paths().first_place(&machine.at(path)).unwrap().map(|place| place.root);
        assert_eq!(first("home/project/up/letter"), Some(machine.at("home/project")));
        assert_eq!(first("home/project/../documents"), Some(machine.at("home/project")));
        assert_eq!(first("home/documents/letter"), None);
        link(Path::new("loop"), "home/project/loop");
        assert!(machine.paths().resolve(&machine.at("home/project/loop")).is_err());
        assert!(machine.paths().resolve(&machine.at("home/project/missing")).is_err());
    }

    #[test]
    fn a_directory_that_is_replaced_by_a_link_is_not_opened() {
        use std::sync::atomic::{AtomicBool, Ordering};
        use std::time::{Duration, Instant};
        let machine = Machine::new("race");
        let (place, away) = (machine.at("home/project/sub"), machine.at("home/project/away"));
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("letter"), "own").unwrap();
        std::fs::write(machine.at("home/documents/letter"), "foreign").unwrap();
        let is_over = AtomicBool::new(false);
        let paths = machine.paths();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::fs::rename(&place, &away).unwrap();
                    symlink(machine.at("home/documents"), &place).unwrap();
                    std::fs::remove_file(&place).unwrap();
                    std::fs::rename(&away, &place).unwrap();
                    // Leaves the directory in its place for about as long as it was away, so that some opens succeed.
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
            let deadline = Instant::now() + Duration::from_secs(60);
            let (mut tries, mut opened) = (0, 0);
            while tries < 5_000 || (opened == 0 && Instant::now() < deadline) {
                tries += 1;
                let Ok((file, resolved)) = paths.open(&place.join("letter"), libc::O_RDONLY) else {
                    continue;
                };
                if resolved.foreign.is_none() {
                    let mut text = String::new();
                    File::from(file).read_to_string(&mut text).unwrap();
                    assert_eq!(text, "own");
                    opened += 1;
                }
            }
            is_over.store(true, Ordering::Relaxed);
            assert!(opened > 0);
        });
    }
}
